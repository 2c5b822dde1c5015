"""What the journal says of every transaction it still has, read from its first certain place on.

`JournalScan` is pure; `Journal` reads. A journal that was trimmed is read from a snapshot that
counts; of what was decided below nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from ...journal.control import TopicPartition
from ...journal.errors import JournalError
from ...journal.fate import EpochFilter
from ...journal.log import Log
from ...journal.reader import JOURNAL_TOPIC, find_snapshot, read_entries
from ...journal.records import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    Begin,
    Committed,
    Entry,
    OffsetStep,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
    Snapshot,
)
from ...journal.state import VALID_PREVIOUS, State
from ...journal.txid import TxId

READ_TIMEOUT_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class Seen:
    """One transaction as the journal shows it."""

    txid: TxId
    state: State = State.OPEN
    producer_id: str = ""
    started_ms: int = 0
    timeout_ms: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    """All that get a marker."""
    offsets: list[tuple[str, OffsetStep]] = field(default_factory=list)
    """(consumer group, step)."""
    commit_sequence: int | None = None
    """Offset of the decision, whichever it is."""
    decided_ms: int | None = None
    reason: AbortReason | None = None
    writes: tuple[PartitionWrites, ...] = ()
    gone: tuple[TopicPartition, ...] = ()
    """Partitions that were deleted before they took their marker."""


@dataclass(frozen=True, slots=True)
class JournalPart:
    """What was read of one journal partition."""

    partition: int
    first: int
    """Where reading began: of what was decided below, nothing is known."""
    transactions: Mapping[int, Seen]
    """By offset of BEGIN."""


class JournalScan:
    """Follows one journal partition's entries. Feed in order."""

    def __init__(self, partition: int, epochs: EpochFilter, *, at_snapshot: bool = False) -> None:
        """Begin.

        Args:
            partition: of the journal.
            epochs: as they stand at the first entry.
            at_snapshot: the first entry is the first chunk of a snapshot that counts.
        """
        self._partition = partition
        self._epochs = epochs
        self._loading = at_snapshot
        self._between: list[tuple[int, Entry]] = []
        """Entries between the chunks: they are about transactions that a later chunk may name."""
        self.transactions: dict[int, Seen] = {}

    def feed(self, offset: int, entry: Entry) -> list[Seen]:
        """Take the next entry; returns the transactions that were decided."""
        if not self._epochs.accept(offset, entry):
            return []
        record = entry.record
        if self._loading:
            if not isinstance(record, Snapshot):
                self._between.append((offset, entry))
                return []
            self._from_snapshot(entry.incarnation, record)
            if not record.last:
                return []
            self._loading = False
            between, self._between = self._between, []
            return [seen for o, e in between if (seen := self._take(o, e)) is not None]
        decided = self._take(offset, entry)
        return [] if decided is None else [decided]

    def _take(self, offset: int, entry: Entry) -> Seen | None:
        record = entry.record
        match record:
            case Begin():
                txid = TxId(self._partition, entry.incarnation, offset)
                self.transactions[offset] = Seen(
                    txid=txid,
                    producer_id=record.producer_id,
                    started_ms=record.started_ms,
                    timeout_ms=record.timeout_ms,
                    partitions={p.key for p in record.partitions},
                )
            case AddPartitions() | AddOffsets() | Committed() | Aborted():
                self._apply(record)
            case PrepareCommit() | PrepareAbort():
                return self._decide(offset, record)
        return None

    def _apply(self, record: AddPartitions | AddOffsets | Committed | Aborted) -> None:
        seen = self.transactions.get(record.begin)
        if seen is None:
            return
        match record:
            case AddPartitions():
                if seen.state is State.OPEN:
                    seen.partitions.update(p.key for p in record.partitions)
            case AddOffsets():
                if seen.state is State.OPEN:
                    seen.offsets += [(record.group, step) for step in record.steps]
            case Committed() | Aborted():
                state = State.COMMITTED if isinstance(record, Committed) else State.ABORTED
                if seen.state in VALID_PREVIOUS[state]:
                    seen.state, seen.gone = state, record.gone

    def _decide(self, offset: int, record: PrepareCommit | PrepareAbort) -> Seen | None:
        seen = self.transactions.get(record.begin)
        commits = isinstance(record, PrepareCommit)
        state = State.COMMITTING if commits else State.ABORTING
        if seen is None or seen.state not in VALID_PREVIOUS[state]:
            return None
        seen.state = state
        seen.commit_sequence, seen.decided_ms = offset, record.decided_ms
        if isinstance(record, PrepareCommit):
            seen.writes = record.writes
            seen.partitions.update(w.partition.key for w in record.writes)
        else:
            seen.reason = record.reason
        return seen

    def _from_snapshot(self, incarnation: int, record: Snapshot) -> None:
        for row in record.transactions:
            seen = self.transactions.get(row.begin)
            if seen is None:
                seen = self.transactions[row.begin] = Seen(
                    txid=TxId(self._partition, incarnation, row.begin),
                    state=row.state,
                    producer_id=row.producer_id,
                    started_ms=row.started_ms,
                    timeout_ms=row.timeout_ms,
                    commit_sequence=row.commit_sequence,
                    reason=row.reason,
                )
            # A large one's lists are spread over several rows.
            seen.partitions.update(p.key for p in row.partitions)
            seen.partitions.update(w.partition.key for w in row.writes)
            seen.writes += row.writes
            seen.offsets += [(s.group, step) for s in row.steps for step in s.steps]


class Journal:
    """All journal partitions, read from their first certain places, and then on and on."""

    def __init__(self, log: Log) -> None:
        """Find where reading begins.

        Raises:
            UnknownTopicError: there is no journal.
            JournalError, BrokerError: it can't be read.
        """
        self._log = log
        self._next: list[int] = []
        self._scans: list[JournalScan] = []
        self.parts: list[JournalPart] = []
        for partition in range(log.topic_info(JOURNAL_TOPIC).partition_count):
            first, epochs = _begin(log, partition)
            scan = JournalScan(partition, epochs, at_snapshot=first > 0)
            self._next.append(first)
            self._scans.append(scan)
            self.parts.append(JournalPart(partition, first, scan.transactions))

    def read_on(self) -> list[Seen]:
        """Read up to the ends as they are now; returns what was decided, by journal partition in
        commit order."""
        decided: list[Seen] = []
        for partition, scan in enumerate(self._scans):
            start, end = self._next[partition], self._log.end_offset(JOURNAL_TOPIC, partition)
            entries = read_entries(self._log, partition, start, end, timeout_s=READ_TIMEOUT_S)
            with closing(entries):
                for offset, entry in entries:
                    decided += scan.feed(offset, entry)
            self._next[partition] = max(start, end)
        return decided

    def __iter__(self) -> Iterator[Seen]:
        """All transactions that were read."""
        for part in self.parts:
            yield from part.transactions.values()


def _begin(log: Log, partition: int) -> tuple[int, EpochFilter]:
    start = log.start_offset(JOURNAL_TOPIC, partition)
    if start == 0:
        return 0, EpochFilter()
    found = find_snapshot(log, partition, timeout_s=READ_TIMEOUT_S)
    if found is None:
        raise JournalError(
            f"{JOURNAL_TOPIC}-{partition} begins at {start} and holds no snapshot: it was not "
            "trimmed by its owner, so what its records mean is not certain"
        )
    return found.first, found.epochs()
