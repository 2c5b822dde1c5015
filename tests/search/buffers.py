"""Data partitions and their consumers in a small world: real `PartitionBuffer`s and side reads."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.entries import EndedTransaction, PlainRun
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.side_read import SideReader
from logtx.journal.control import TXCTL_HEADER, TXID_HEADER, BranchRange, Marker, encode_marker
from logtx.journal.position import Position
from logtx.journal.txid import TxId

from ..consumer.core.naive import expected
from ..consumer.records import FakeRecord, malformed
from .machines import Chains, Fingerprint, Interner
from .tenures import txid_of


@dataclass(frozen=True, slots=True)
class Plain:
    """A record without a transaction."""


@dataclass(frozen=True, slots=True)
class Data:
    """A record of a transaction."""

    begin: int


@dataclass(frozen=True, slots=True)
class MarkerItem:
    """A marker."""

    begin: int
    committed: bool
    sequence: int
    hw: int
    ranges: tuple[BranchRange, ...]


Item = Plain | Data | MarkerItem


class LogRecord(FakeRecord):
    """A record as a consumer of a log gets it."""

    number = -1
    """Number of its item, which together with the offset says everything about it."""

    def error(self) -> None:
        """Returns None: a record is not an event."""


_FINGERPRINT: Final = Fingerprint(
    {
        # Left out too: what only `position_after` reads, for it is not called here; and the
        # start, which `LiveBuffer` adds where it still counts.
        PartitionBuffer: frozenset(
            {
                *("counters", "partition", "_malformed", "_pending_map", "_controls"),
                *("_start", "last_take", "_past", "_met_before"),
            }
        )
    },
    {
        LogRecord: lambda record: (record.at, record.number),
        Marker: lambda m: (m.committed, m.commit_sequence, m.hw, m.branches),
        BranchRange: lambda r: (r.branch, r.first_offset, r.last_offset, r.count),
    },
)


class Logs:
    """All logs of a data partition that the search met; each has a number."""

    def __init__(self) -> None:
        self._items = Interner()
        self._chains = Chains()
        self._expected: dict[tuple[int, int], tuple[int, ...]] = {}
        self._records: dict[tuple[int, int], LogRecord] = {}
        self._problems: dict[int, str | None] = {}
        self.lengths = self._chains.lengths
        self.parents = self._chains.parents

    def append(self, log: int, item: Item) -> int:
        """Returns the log that results when an item lands."""
        return self._chains.append(log, self._items(item))

    def items(self, log: int) -> list[Item]:
        """Returns the items of a log."""
        return [self._items.values[n] for n in self._chains.items(log)]

    def numbers(self, log: int) -> tuple[int, ...]:
        """Returns the numbers of a log's items."""
        return self._chains.items(log)

    def prefix(self, log: int, length: int) -> int:
        """Returns the log as it was at a shorter length."""
        while self.lengths[log] > length:
            log = self.parents[log]
        return log

    def record(self, offset: int, number: int) -> LogRecord:
        """Returns an item as a record; always the same object."""
        found = self._records.get((offset, number))
        if found is None:
            found = self._records[offset, number] = _record(offset, self._items.values[number])
            object.__setattr__(found, "number", number)
        return found

    def records(self, log: int) -> list[LogRecord]:
        """Returns a log as records."""
        return [self.record(at, number) for at, number in enumerate(self._chains.items(log))]

    def expected(self, log: int, start: int) -> tuple[int, ...]:
        """Returns the offsets that a reader from `start` on must deliver, by the naive reading."""
        found = self._expected.get((log, start))
        if found is None:
            delivered = expected(self.records(log), start)
            found = self._expected[log, start] = tuple(r.at for r in delivered)
        return found

    def problem(self, log: int) -> str | None:
        """Returns which invariant a log itself breaks: markers in commit-sequence order (4)."""
        if log not in self._problems:
            ended: set[int] = set()
            last, problem = -1, None
            for item in self.items(log):
                if isinstance(item, MarkerItem) and item.begin not in ended:
                    ended.add(item.begin)
                    if item.sequence < last:
                        problem = f"first markers out of commit-sequence order: T{item.begin} (4)"
                    last = item.sequence
            self._problems[log] = problem
        return self._problems[log]


def _record(offset: int, item: Item) -> LogRecord:
    if isinstance(item, Plain):
        return LogRecord(offset)
    headers: list[tuple[str, bytes | None]] = [(TXID_HEADER, txid_of(item.begin).to_bytes())]
    if isinstance(item, Data):
        return LogRecord(offset, headers)
    marker = Marker(
        committed=item.committed,
        commit_sequence=item.sequence,
        hw=item.hw,
        epoch=0,
        partition_count=2,
        branches=item.ranges,
    )
    headers.append((TXCTL_HEADER, encode_marker(marker)))
    return LogRecord(offset, headers, payload=None)


class OneLog:
    """The part of a `Log`, and of its consumer, that a side read calls."""

    def __init__(self, records: list[LogRecord]) -> None:
        self._records = records
        self._at = 0

    def start_offset(self, *_: Any, timeout_s: float) -> int:  # noqa: ARG002
        return 0

    def consumer(self, _: Any) -> OneLog:
        return self

    def assign(self, partitions: list[Any]) -> None:
        self._at = partitions[0].offset

    def unassign(self) -> None:
        """Does nothing."""

    def poll(self, _: float) -> LogRecord | None:
        found = self.consume(1, 0)
        return found[0] if found else None

    def consume(self, count: int, _: float) -> list[LogRecord]:
        found = self._records[self._at : self._at + count]
        self._at += len(found)
        return found


@dataclass(frozen=True, slots=True)
class BufferFacts:
    """What the world needs to know of a buffer's state."""

    next_offset: int
    ready: bool
    blocked: bool
    side_read_below: int
    """Marker offset of the last transaction that waits for a side read; -1 without one."""
    pending: tuple[int, ...]
    """BEGINs of the pending transactions."""
    failure: str | None


class LiveBuffer:
    """A real buffer, and real side reads for it."""

    def __init__(self, logs: Logs, origin: tuple[Any, ...]) -> None:
        """Begins at a position.

        Args:
            logs: all logs.
            origin: a position as `packed` gives it.
        """
        o1, o2, o3, met = origin
        self._logs = logs
        self._map = PendingTransactionMap(2**62)
        start = Position(o1=o1, o2=o2, o3=o3, met=dict(met))
        self.buffer = PartitionBuffer(("a", 0), start, self._map, malformed=malformed)
        self._given: list[tuple[Any, ...]] = []

    def apply(self, key: Hashable) -> None:
        """Takes an input."""
        buffer = self.buffer
        match key:
            case ("read", offset, number):
                buffer.feed([self._logs.record(offset, number)])
            case ("take",):
                self._given += [("record", record.offset()) for record in buffer.take(1)]
            case ("side read", log):
                reader = SideReader(OneLog(self._logs.records(log)), {}, self._map)  # type: ignore[arg-type]
                while buffer.side_reads() and reader.busy_with is None:
                    reader.step(buffer, 0)
            case ("resolve", begin, end_offset):
                raw = txid_of(begin).to_bytes()
                buffer.resolve(raw, end_offset=end_offset, ended=True)
            case ("stop",):
                self._given.append(("position", *packed(buffer.position())))
            case _:
                raise AssertionError(key)

    def drain(self) -> tuple[tuple[Any, ...], ...]:
        """Returns what it gave out since the last call."""
        given, self._given = tuple(self._given), []
        return given

    def fingerprint(self) -> bytes:
        """Returns its whole state."""
        return _FINGERPRINT((self.buffer, self._start()))

    def _start(self) -> tuple[Any, ...] | None:
        # The start says what lies at its o2 and below; behind that it is not needed any more.
        buffer = self.buffer
        o2 = buffer._start.o2
        passed = buffer.next_offset > o2 and all(place_of(entry) > o2 for entry in buffer._queue)
        return None if passed else packed(buffer._start)

    def facts(self) -> BufferFacts:
        """Returns what the world needs to know."""
        buffer = self.buffer
        failure = buffer.failure
        return BufferFacts(
            next_offset=buffer.next_offset,
            ready=buffer.ready,
            blocked=buffer.blocked,
            side_read_below=max((r.marker_offset for r in buffer.side_reads()), default=-1),
            pending=tuple(TxId.from_bytes(p.txid).offset for p in buffer.pending()),
            failure=None if failure is None else f"{type(failure).__name__}: {failure}",
        )


def place_of(entry: PlainRun | EndedTransaction) -> int:
    """Returns the place in the log of an entry of a buffer's queue."""
    return entry.first_offset if isinstance(entry, PlainRun) else entry.marker_offset


def packed(position: Position) -> tuple[Any, ...]:
    """Returns a position as plain values, made from the text that Kafka keeps."""
    kept = Position.from_metadata(position.o1, position.to_metadata())
    return kept.o1, kept.o2, kept.o3, tuple(sorted(kept.met.items()))
