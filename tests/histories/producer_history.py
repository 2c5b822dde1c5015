"""What happened in a history of a producer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import TopicPartition

from logtx.journal.errors import ConfigError
from logtx.journal.position import Place, Position
from logtx.journal.records.types import OffsetStep
from logtx.journal.txid import TxId

from ..producer.fake import FakeTransaction

PARTITIONS: Final = {"t": 2, "u": 1}
"""Topics and their numbers of partitions."""


class CallbackError(Exception):
    """What a callback of the application raises."""


@dataclass(eq=False)
class Begun:
    """A transaction, as the application has seen it."""

    txid: TxId | None = None
    told: list[str] = field(default_factory=list)
    """What its ends told: "committed", "aborted", "refused" or "unknown"."""
    asked: bool = False
    """Whether the application asked for an end otherwise than by confluent-kafka's calls."""
    block: str = ""
    """How its with-block ended: "" (none), "normally" or "raising"."""
    offsets: dict[tuple[str, int], Place] = field(default_factory=dict)
    """Places up to which it was told to commit input."""
    unsure: bool = False
    """Whether a call about offsets was interrupted: then they may count or not."""
    accepted: set[int] = field(default_factory=set)
    """Nonces of branches that it accepted."""


@dataclass(eq=False)
class Sent:
    """A record that the application gave away."""

    value: bytes
    topic: str
    partition: int
    headers: list[tuple[str, bytes]]
    begun: Begun | None
    """Its transaction; None: it is plain, or `unsure`."""
    unsure: bool
    """Whether another thread decides which transaction it goes into; it never is plain."""
    listened: bool
    writer: object
    """Records of one writer lie in their order."""
    branch: int = 0
    result: str = "refused"
    """Or "taken"; or "swallowed": its `Block` is done again; or "interrupted": it may be there."""
    reports: list[tuple[int | None, int | None]] = field(default_factory=list)
    """(code of the error or None, offset) of each call of its on_delivery."""


@dataclass
class History:
    """What happened."""

    seed: int
    mode: str = ""
    begun: list[Begun] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """(checker, what) of what only shows while it happens."""
    lines: list[str] = field(default_factory=list)
    records: dict[tuple[str, int], list[Any]] = field(default_factory=dict)
    """(topic, partition) → (key, value, headers, timestamp) of the log, in the end."""
    transactions: dict[TxId, FakeTransaction] = field(default_factory=dict)

    def note(self, line: str) -> None:
        """Adds to the trace."""
        self.lines.append(f"{threading.current_thread().name}: {line}")


class Input:
    """A consumer as far as a producer knows it: what it delivered, and what it handed out."""

    group_id = "g"

    def __init__(self) -> None:
        self.delivered = 0
        self.handed_out = 0

    def offset_steps(self, positions: Sequence[TopicPartition] | None = None) -> list[OffsetStep]:
        """Hands out the steps up to `positions`, or refuses and hands out nothing."""
        end = self.delivered
        for position in positions or ():
            if not self.handed_out <= position.offset <= self.delivered:
                raise ConfigError("never was there: use position()")
            end = position.offset
        if end == self.handed_out:
            return []
        begin = Place(self.handed_out) if self.handed_out else None
        self.handed_out = end
        return [OffsetStep("in", 0, begin, Position.at(end))]

    def lose_steps(self) -> Callable[[], None]:
        """Forgets nothing: this application goes on."""
        return lambda: None
