"""What newer versions of PySpark have: found by looking for it, not by comparing versions."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

_C = TypeVar("_C", bound=type)


def find(home: str, name: str) -> Any:
    """Returns what PySpark's module `home` calls `name`; None if this version has none."""
    try:
        return getattr(import_module(f"pyspark.{home}"), name, None)
    except ModuleNotFoundError as error:
        if error.name != f"pyspark.{home}":
            raise
        return None


def counts_as(home: str, name: str) -> Callable[[_C], _C]:
    """Makes a class count as one of PySpark's abstract classes, where this version has that."""

    def register(of: _C) -> _C:
        kind = find(home, name)
        if kind is not None:
            kind.register(of)
        return of

    return register
