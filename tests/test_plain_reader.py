"""What the reader of docs/plain-readers.md makes of what a metadata store does not keep."""

from __future__ import annotations

from typing import Any, Final

import pytest

import logtx
from logtx.journal.txid import TxId

from .test_plain_reader_kafka import of_page

TXID: Final = TxId(0, 7, 1)


class OneRecord:
    """A consumer that has one record, of a transaction."""

    def assign(self, _: Any) -> None:
        """Begins at the start."""

    def consume(self, _count: int, _timeout_s: float) -> list[Any]:
        """Returns the record."""
        return [self]

    def error(self) -> None:
        """Returns none."""

    def offset(self) -> int:
        """Returns that of the first record."""
        return 0

    def headers(self) -> list[tuple[str, bytes]]:
        """Returns the transaction."""
        return [("TxId", TXID.to_bytes())]


class Forgetful:
    """A client of a store that does not know the transaction."""

    max_read_position = 9

    def __init__(self, error: Exception) -> None:
        self._error = error

    def horizon(self, _topic: str, _partition: int) -> Forgetful:
        """Returns an end."""
        return self

    def header(self, _: TxId) -> None:
        """Returns none."""

    def operations(self, _: TxId) -> list[Any]:
        """Returns none."""
        return []

    def is_aborted(self, _: TxId) -> bool:
        """Raises what the store says."""
        raise self._error


def reader(error: Exception) -> Any:
    """Returns the reader of the page."""
    return of_page()["PlainReader"](OneRecord(), Forgetful(error), "orders", 0)


def test_what_a_window_has_let_go_is_not_dropped() -> None:
    with pytest.raises(logtx.OutcomeNotKeptError):
        reader(logtx.OutcomeNotKeptError("a window")).poll(0)


def test_what_a_store_without_a_window_does_not_know_is_dropped() -> None:
    assert reader(logtx.UnknownTransactionError("never begun")).poll(0) == []
