"""What can be seen of a history from outside: logs, what was told, what was delivered, and when.

The simulator writes it; the checkers read it and nothing else. "When" is a number that grows by one
with each thing that is seen, so any two of them have an order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from logtx.coordinator.core.offsets_lanes import OffsetsKey
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.commands import GroupOffsets
from logtx.journal.acks import SnapshotSubscription
from logtx.journal.control import TopicPartition
from logtx.journal.errors import LogtxError
from logtx.journal.mode_registry import ModeKey, TopicModeRecord
from logtx.journal.modes import MODES_TOPIC
from logtx.journal.places import PartitionId
from logtx.journal.records.types import Entry
from logtx.journal.spans import MessageId, Span
from logtx.journal.txid import TxId


class Record:
    """A record of a data partition; it has those methods of a message that the cores call."""

    __slots__ = ("_headers", "_key", "_offset", "_value", "at", "handed_at", "time_ms", "writer")

    def __init__(
        self,
        offset: int,
        headers: list[tuple[str, bytes | None]] | None,
        value: bytes | None,
        *,
        writer: str,
        handed_at: int,
        at: int,
        time_ms: int,
        key: bytes | None = None,
    ) -> None:
        """Keeps a record that landed at `at` and was handed to the client at `handed_at`. Its key
        is its value if none is given."""
        self._offset, self._headers, self._value = offset, headers, value
        self._key = value if key is None else key
        self.writer, self.handed_at, self.at, self.time_ms = writer, handed_at, at, time_ms

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Headers in order, or None."""
        return self._headers

    def offset(self) -> int:
        """Offset in the partition."""
        return self._offset

    def key(self) -> bytes | None:
        """The key; every data record has one, and markers have none."""
        return self._key

    def value(self) -> bytes | None:
        """The value."""
        return self._value

    def error(self) -> None:
        """Returns None: a record is not an event."""

    def __len__(self) -> int:
        """Bytes of the value."""
        return len(self._value or b"")


@dataclass(slots=True)
class JournalRecord:
    """A record of a journal partition as it landed."""

    offset: int
    value: bytes
    entry: Entry
    writer: str
    """The coordinator that appended it, and which of its lives."""
    meant: tuple[str, int, int] | None
    """Producer, generation and BEGIN of the transaction that its writer decided about."""
    handed_at: int
    """When its writer handed it to its producer: a decision was made just before."""
    at: int
    """When it landed."""
    time_ms: int


@dataclass(slots=True)
class Trim:
    """An owner deleted everything below an offset of its journal partition."""

    before: int
    at: int
    time_ms: int


@dataclass(slots=True)
class DataTrim:
    """Retention deleted everything below an offset of a data partition."""

    partition: TopicPartition
    before: int
    at: int


@dataclass(slots=True)
class PastEnd:
    """A former leader told an end of the past, as if it were a partition's."""

    to: str
    """A coordinator, which was to place something; or a reader, which asked for the end of a home,
    or of what is published of modes."""
    partition: TopicPartition
    end: int
    at: int


@dataclass(slots=True)
class Absence:
    """A topic did not exist for a while."""

    topic: str
    at: int
    from_ms: int
    until_at: int = 2**63
    """When it was created anew; far away if it never was."""
    until_ms: int = 2**63


@dataclass(slots=True)
class Told:
    """A coordinator answered a client."""

    coordinator: str
    partition: int
    """Journal partition."""
    command: commands.Command
    reply: commands.Reply
    asked_at: int
    asked_ms: int
    at: int
    time_ms: int


@dataclass(slots=True)
class Delivered:
    """An application got a record."""

    offset: int
    at: int
    time_ms: int


@dataclass(slots=True)
class Resumed:
    """A consumer restarted where its application stood after `kept` records."""

    kept: int
    unaware_below: int = 0
    """Of one that had never heard of a home that places in its partition: the o1 that it goes on
    from; else 0."""


@dataclass(slots=True)
class Rest:
    """A consumer had delivered all that it could of what it had read."""

    next_offset: int
    at: int
    time_ms: int


@dataclass(slots=True)
class Consumed:
    """What one consumer's application saw of one partition."""

    partition: TopicPartition
    start: int
    events: list[Delivered | Resumed | Rest] = field(default_factory=list)
    failure: str = ""


@dataclass(slots=True)
class Given:
    """An application got a record from a serializable reader."""

    partition: TopicPartition
    offset: int
    at: int


@dataclass(slots=True)
class Serial:
    """What the application of one serializable reader saw."""

    journal: int
    """Journal partition of its transaction group."""
    starts: dict[TopicPartition, int]
    events: list[Given | Resumed] = field(default_factory=list)
    failure: str = ""


@dataclass(slots=True)
class Input:
    """A part of an input partition that a transaction processed."""

    group: str
    """Consumer group."""
    partition: TopicPartition
    start: int
    end: int


class Message(NamedTuple):
    """A message of a queue's topic."""

    partition: PartitionId
    name: MessageId


@dataclass(slots=True)
class Taken:
    """A worker of a queue was given a message."""

    worker: str
    message: Message
    offset: int
    value: bytes | None
    at: int
    time_ms: int


@dataclass(slots=True)
class Resting:
    """A queue's consumer takes nothing, as an owner knows."""

    consumer: int
    since: int
    until: int = 2**63

    def end(self, at: int) -> None:
        """Ends it, unless it has ended before."""
        self.until = min(self.until, at)


@dataclass(slots=True)
class Said:
    """A worker of a queue said, outside of transactions, that a message is worked off, or that
    nobody can work it off."""

    worker: str
    message: Message
    rejected: bool
    at: int


@dataclass(slots=True)
class Skip:
    """An operator skips messages of a queue, as a worker said that nobody can read them."""

    partition: PartitionId
    span: Span
    error: str


@dataclass(slots=True)
class Work:
    """What an application did in one transaction, and what it believes became of it."""

    producer: str
    own: list[bytes] = field(default_factory=list)
    """Values of its records."""
    branches: dict[int, list[bytes]] = field(default_factory=dict)
    accepted: set[int] = field(default_factory=set)
    inputs: list[Input] = field(default_factory=list)
    results: dict[bytes, Message] = field(default_factory=dict)
    """Value of a record → the message of a queue that it is the result of, and acknowledges."""
    believes: str = ""
    """``committed`` or ``aborted``; empty while it knows of no decision."""
    believes_at: int = 0
    asked_ms: int | None = None
    """Virtual time of the commit request."""
    known_ms: int | None = None


@dataclass(slots=True)
class Started:
    """An instance of an application started."""

    application: str
    name: str


@dataclass(slots=True)
class Closed:
    """The session of an instance ended for good."""

    application: str
    producer_id: str
    name: str
    error: LogtxError
    is_known: bool
    """Whether a coordinator ever took it."""


@dataclass(slots=True)
class OffsetsRecord:
    """A record of ``__transaction_offsets``; a value of None removes the key."""

    key: OffsetsKey
    value: GroupOffsets | None


@dataclass(slots=True)
class ModesRecord:
    """A record of ``__transaction_topics``; a value of None removes the key."""

    key: ModeKey
    value: TopicModeRecord | None
    time_ms: int = 0
    """When it landed."""


class History:
    """Everything seen so far."""

    def __init__(self, seed: int) -> None:  # noqa: PLR0915 - it is a list
        """Begins empty."""
        self.seed = seed
        self.at = 0
        self.journals: list[list[JournalRecord]] = []
        self.trims: list[list[Trim]] = []
        self.data: dict[TopicPartition, list[Record]] = {}
        self.former: dict[TopicPartition, list[Record]] = {}
        """Data partitions of a topic that was deleted; one that was created anew is in `data`."""
        self.absent: list[Absence] = []
        self.past_ends: list[PastEnd] = []
        self.heard: list[tuple[str, int, str]] = []
        """(coordinator in one of its lives, when, id of a topic), as brokers told it."""
        self.news: list[tuple[str, int, str, int]] = []
        """The same as other coordinators told it; and since what virtual time one of them knew."""
        self.offsets_log: list[OffsetsRecord] = []
        self.modes_log: list[ModesRecord] = []
        self.relocations: list[Record] = []
        """What copiers wrote of where copies of ranges of sidecars lie."""
        self.data_trims: list[DataTrim] = []
        self.mode_records: Counter[tuple[TopicPartition, TxId]] = Counter()
        """(data partition, what names the MODE record) → how often its mode record lies there."""
        self.told: list[Told] = []
        self.consumed: dict[str, Consumed] = {}
        self.shown: dict[str, Consumed] = {}
        """What readers of uncommitted records saw."""
        self.serial: dict[str, Serial] = {}
        self.works: dict[TxId, Work] = {}
        self.taken: list[Taken] = []
        self.said: list[Said] = []
        self.skips: list[Skip] = []
        self.unread: list[Exception] = []
        """Why leases could not be read, of queues."""
        self.resting: list[Resting] = []
        """When consumers of queues took nothing."""
        self.gone: list[tuple[str, int, int]] = []
        """(subscription, consumer, when): an owner noticed that its stream had ended."""
        self.orders: list[commands.Command] = []
        """What the operator of a queue has asked for."""
        self.held_ms = 0
        """How long a new owner of a queue gives out nothing."""
        self.subscriptions: dict[int, list[SnapshotSubscription]] = {}
        """Journal partition → what its owner had of subscriptions in the end."""
        self.sessions: list[Started | Closed] = []
        """Instances of applications, as they start, and as their sessions end for good."""
        self.misled: list[tuple[str, int]] = []
        """Coordinator and virtual time, where it heard of a topic from a broker that was behind."""
        self.settled_ms: int | None = None
        """Virtual time at which the faults stopped."""
        self.unfinished: list[str] = []
        """What was still not done when the time after that was up."""
        self.crash: Exception | None = None
        """Error of a core or of the simulator, which ended the history."""
        self.counts: Counter[str] = Counter()
        self._trace: list[tuple[int, str, str, Sequence[object]]] = []

    def tick(self) -> int:
        """Returns the next number, for something that is seen now."""
        self.at += 1
        return self.at

    def was_told_old_modes(self, reader: str) -> bool:
        """Returns whether a broker told a reader what homes had published of modes in the past."""
        return any(p.to == reader and p.partition[0] == MODES_TOPIC for p in self.past_ends)

    def owner_forgets_rest(self, consumer: int) -> None:
        """Notes that a queue's consumer wants messages again, as its owner was told just now."""
        at = self.tick()
        for rest in self.resting:
            if rest.consumer == consumer:
                rest.end(at)

    def note(self, time_ms: int, who: str, what: str, *about: object) -> None:
        """Adds a line to the trace."""
        self._trace.append((time_ms, who, what, about))

    def trace(self) -> str:
        """Returns what happened, one line for each event."""
        return "\n".join(
            f"{time_ms:7d} {who:<14} {what}{''.join(f' {a}' for a in about)}"
            for time_ms, who, what, about in self._trace
        )
