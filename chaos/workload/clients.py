"""Transactions as the workload's producers use them: of logtx or of Kafka."""

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
    """16 bytes in hex."""
    commit_sequence: int | None = None
    error: str | None = None


class FencedError(Exception):
    """Another client has this one's name; nothing more can be done with it."""


class FailedError(Exception):
    """The transaction can't be used any more; abort it."""

    abortable = False
    """Of a commit: it was refused, and an abort will be taken."""


class BrokenError(Exception):
    """The client can't be used any more, though nobody has taken its name: open another."""


class WriterTransaction(Protocol):
    """An open transaction. Its calls raise FencedError or FailedError."""

    def produce(
        self, topic: str, partition: int, key: bytes, value: bytes, told: DeliveryCallback
    ) -> None:
        """Append a record."""

    def commit(self, ended: Callable[[Ended], None]) -> None:
        """Ask for it; `ended` is called once, on any thread, maybe before this returns."""

    def abort(self, ended: Callable[[Ended], None]) -> None:
        """Ask for it; as `commit`."""


class WriterClient(Protocol):
    """A producer."""

    @property
    def in_flight(self) -> int:
        """How many transactions it can have under way."""

    def begin(self) -> WriterTransaction:
        """Open a transaction. Raises FencedError, BrokenError, or FailedError: there is none."""

    def close(self) -> None:
        """End what is under way, and close; bounded."""
