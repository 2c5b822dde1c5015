"""The error tree: codes are unique and come back as the same class."""

from __future__ import annotations

import inspect

from logtx.journal import errors
from logtx.journal.errors import LogtxError, error_from_code

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, LogtxError) and "code" in vars(cls) and cls.code
]


def test_codes_are_unique() -> None:
    assert len({cls.code for cls in CLASSES}) == len(CLASSES) > 10


def test_an_error_crosses_the_wire_as_its_class() -> None:
    for cls in CLASSES:
        error = error_from_code(cls.code, "why")
        assert type(error) is cls
        assert str(error) == "why"
    assert type(error_from_code(9999, "why")) is LogtxError
    assert type(error_from_code(0, "why")) is LogtxError
