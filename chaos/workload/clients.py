"""Transactions as the workload's producers use them, of logtx or of Kafka."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from confluent_kafka import KafkaError, Message

DeliveryCallback = Callable[[KafkaError | None, Message], None]
OutcomeName = Literal["committed", "aborted", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of a transaction, as far as its writer knows."""

    outcome: OutcomeName
    txid: str | None = None
    """Its 16 bytes in hex."""
    commit_sequence: int | None = None
    error: str | None = None


class FencedError(Exception):
    """Another client has taken this one's name; this one can do nothing more."""


class FailedError(Exception):
    """The transaction can do nothing more except abort."""

    abortable = False
    """For a commit: it was refused, and an abort will be accepted."""


class BrokenError(Exception):
    """The client can do nothing more, though no other has taken its name: open another one."""


class WriterTransaction(Protocol):
    """An open transaction. Its calls raise FencedError or FailedError."""

    def produce(
        self, topic: str, partition: int, key: bytes, value: bytes, told: DeliveryCallback
    ) -> None:
        """Appends a record."""

    def commit(self, ended: Callable[[Ended], None]) -> None:
        """Requests the commit. `ended` is called once, on any thread, maybe before this returns."""

    def abort(self, ended: Callable[[Ended], None]) -> None:
        """Requests the abort; `ended` is called as by `commit`."""


class WriterClient(Protocol):
    """A producer."""

    @property
    def in_flight(self) -> int:
        """How many transactions it can have under way."""

    def begin(self, *, sidecar: bool | None = False) -> WriterTransaction:
        """Opens a transaction.

        Args:
            sidecar: whether it writes to sidecars alone; None: what it writes beyond some bytes.

        Raises FencedError, BrokenError; FailedError if none opens now.
        """

    def close(self) -> None:
        """Ends what is under way, and closes; takes a bounded time."""
