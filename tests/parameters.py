"""Parameters of tests of which `make test` runs some: all would cost more than they prove."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import hypothesis
import pytest


def slow(values: Iterable[Any]) -> list[Any]:
    """Returns values as parameters of slow tests."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


_reduced = False


def reduce_examples() -> None:
    """Lets each `examples` that follows take a quarter. `tests/conftest.py` calls it where slow
    tests are left out, before test files are loaded."""
    global _reduced
    _reduced = True


def examples(count: int, **others: Any) -> hypothesis.settings:
    """Returns hypothesis' settings for `count` examples, of which `make test` draws a quarter."""
    return hypothesis.settings(max_examples=count // 4 if _reduced else count, **others)


KAFKA: Final = pytest.param("kafka", marks=pytest.mark.kafka)
SLOW_MOCK: Final = pytest.param("mock", marks=pytest.mark.slow)
"""The mock cluster, where each run of the tests goes the same way on a real broker."""
SLOW_KAFKA: Final = pytest.param("kafka", marks=(pytest.mark.kafka, pytest.mark.slow))
"""The transport `kafka`, where other tests go the same ways to a real broker."""
