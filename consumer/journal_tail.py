"""The journal as a serializable consumer reads it: from a place it can trust, on and on.

A thin shell around `EpochFilter` and `SerialOrder`. Needs no coordinator, only the log.

Where reading begins, the epoch must be certain, or void decisions of a replaced owner would count:

1. at a decision that was delivered: it was valid, so its epoch was current there. Everything
   before it is delivered, so this is the quickest; but its journal record may be trimmed;
2. at the journal's first record, offset 0;
3. at a snapshot that counts (`find_snapshot`). It may lie above decisions that are due, of which
   it names those whose markers were not all written; the others are ordered by their markers
   (`whole.Floor`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from ..journal.control import TopicPartition
from ..journal.errors import BrokerError
from ..journal.follower import JournalFollower
from ..journal.logs.interface import Log
from ..journal.position import Journal
from ..journal.reader import JOURNAL_TOPIC, RecordsTrimmedError, find_snapshot, read_entries
from ..journal.records.fate import NO_EPOCH, EpochFilter
from ..journal.records.snapshots import FoundSnapshot
from ..journal.records.types import Committed, Entry, PartitionWrites, PrepareCommit
from ..journal.txid import TxId
from .core.serial_order import NO_TIMESTAMP, CommitDecision, Floor, SerialOrder
from .reading import OFFSET_TIMEOUT_S

_LOG = logging.getLogger(__name__)
DECISIONS_MAX: Final = 10_000
"""Decisions read ahead of the first that waits."""
READ_TIMEOUT_S: Final = 30.0
"""Bound of a search for the place to begin; it reads a part of the journal."""


@dataclass(frozen=True, slots=True)
class _Start:
    """A place in the journal where the epoch is certain."""

    offset: int
    epochs: EpochFilter
    snapshot: FoundSnapshot | None = None
    """If it begins there."""


def _with_records(writes: Sequence[PartitionWrites]) -> tuple[TopicPartition, ...]:
    return tuple(sorted([w.partition.key for w in writes if w.branches]))


class JournalTail:
    """Reads one journal partition on and on, and tells `SerialOrder` what is valid of it."""

    def __init__(
        self, log: Log, partition: int, settings: Mapping[str, Any], order: SerialOrder
    ) -> None:
        """Nothing is read before `begin`.

        Args:
            log: where the journal lies.
            partition: journal partition.
            settings: librdkafka's, of the main consumer.
            order: where decisions go.
        """
        self.partition = partition
        self._log = log
        self._settings = dict(settings)
        self._order = order
        self._follower: JournalFollower | None = None
        self._epochs = EpochFilter()
        self._waiting: dict[int, TxId] = {}
        """Decisions told that are not finished, by BEGIN."""

    # ---- where to begin -------------------------------------------------------------------------

    def begin(
        self,
        delivered: Mapping[TopicPartition, Mapping[Journal, int]],
    ) -> None:
        """Read the journal from where nothing before it is due, or from a floor.

        Args:
            delivered: of each partition, the last commit sequence, by journal, up to which
                nothing is due.

        Raises:
            BrokerError: no answer in time.
            JournalError: a record on the way does not decode.
        """
        start = self._log.start_offset(JOURNAL_TOPIC, self.partition, timeout_s=OFFSET_TIMEOUT_S)
        end = self._log.end_offset(JOURNAL_TOPIC, self.partition, timeout_s=OFFSET_TIMEOUT_S)
        lowest = min((self._last(d) for d in delivered.values()), default=(-1, -1))
        found = self._behind_decision(*lowest, start, end)
        if found is None:
            found = _Start(0, EpochFilter()) if start == 0 else self._at_snapshot(start)
        self._epochs = found.epochs
        self._waiting.clear()
        self._begin_order(found, lowest[0], list(delivered))
        place = {self.partition: found.offset}
        if self._follower is None:
            self._follower = JournalFollower(self._log, place, self._settings)
        else:
            self._follower.move(place)
        _LOG.info(
            "journal_read_from partition=%d offset=%d snapshot=%s",
            *(self.partition, found.offset, found.snapshot is not None),
        )

    def _last(self, delivered: Mapping[Journal, int]) -> tuple[int, int]:
        # (commit sequence, incarnation)
        own = [(s, incarnation) for (p, incarnation), s in delivered.items() if p == self.partition]
        return max(own, default=(-1, -1))

    def _behind_decision(
        self, sequence: int, incarnation: int, start: int, end: int
    ) -> _Start | None:
        if not start <= sequence < end:
            return None
        entry = self._entry(sequence)
        if (
            entry is None
            or not isinstance(entry.record, PrepareCommit)
            or entry.incarnation != incarnation
        ):
            return None
        return _Start(sequence + 1, EpochFilter(entry.epoch, entry.incarnation))

    def _entry(self, offset: int) -> Entry | None:
        entries = read_entries(
            self._log, self.partition, offset, offset + 1, timeout_s=OFFSET_TIMEOUT_S
        )
        try:
            with closing(entries):
                return next((entry for _, entry in entries), None)
        except RecordsTrimmedError:
            return None

    def _at_snapshot(self, start: int) -> _Start:
        found = find_snapshot(self._log, self.partition, timeout_s=READ_TIMEOUT_S)
        if found is None:
            raise BrokerError(
                f"{JOURNAL_TOPIC}[{self.partition}] begins at {start} and has no snapshot behind: "
                "somebody else than its owner trimmed it, and its decisions can't be told"
            )
        return _Start(found.first, found.epochs(), found)

    def _begin_order(self, found: _Start, delivered: int, keys: list[TopicPartition]) -> None:
        snapshot = found.snapshot
        if snapshot is None or delivered >= snapshot.first - 1:
            self._order.begin()
            return
        # The snapshot is known: of what it calls finished, the markers lie below these ends.
        ends = {key: self._log.end_offset(*key, timeout_s=OFFSET_TIMEOUT_S) for key in keys}
        journal = self.partition, snapshot.incarnation
        self._order.begin(Floor(journal, snapshot.first, ends))
        for c in snapshot.committing:
            txid = TxId(self.partition, snapshot.incarnation, c.begin)
            self._waiting[c.begin] = txid
            partitions = _with_records(c.writes)
            self._order.decide(CommitDecision(c.commit_sequence, txid, NO_TIMESTAMP, partitions))

    def last_decision(self) -> tuple[Journal, int] | None:
        """The last commit sequence as of now, None while nothing was decided.

        It is one that `begin` can trust, or of a place just below a snapshot.

        Raises:
            RecordsTrimmedError: what comes next was trimmed: begin anew, from a snapshot.
            BrokerError, JournalError: as `begin`.
        """
        snapshot = find_snapshot(self._log, self.partition, timeout_s=READ_TIMEOUT_S)
        epochs = snapshot.epochs() if snapshot is not None else EpochFilter()
        first = snapshot.first if snapshot is not None else 0
        last = first - 1
        end = self._log.end_offset(JOURNAL_TOPIC, self.partition, timeout_s=OFFSET_TIMEOUT_S)
        entries = read_entries(self._log, self.partition, first, end, timeout_s=READ_TIMEOUT_S)
        with closing(entries):
            for offset, entry in entries:
                if epochs.accept(offset, entry) and isinstance(entry.record, PrepareCommit):
                    last = offset
        if last < 0 or epochs.epoch == NO_EPOCH or epochs.incarnation is None:
            return None
        return (self.partition, epochs.incarnation), last

    # ---- reading on -----------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """Of the entry to come next; 0 before `begin`."""
        return self._follower.next_offsets[self.partition] if self._follower is not None else 0

    def poll(self) -> bool:
        """Read what is there, without waiting; True if anything was.

        Raises:
            RecordsTrimmedError: what comes next was trimmed: begin anew.
            CorruptRecordError, UnknownRecordError: with the offset.
        """
        if self._follower is None or len(self._order) >= DECISIONS_MAX:
            return False
        entries = self._follower.poll()
        for _, offset, entry in entries:
            self._take(offset, entry)
        return bool(entries)

    def _take(self, offset: int, entry: Entry) -> None:
        if not self._epochs.accept(offset, entry):
            return
        record = entry.record
        if isinstance(record, PrepareCommit):
            if record.begin in self._waiting:
                return  # only the first decision counts
            txid = TxId(self.partition, entry.incarnation, record.begin)
            self._waiting[record.begin] = txid
            partitions = _with_records(record.writes)
            self._order.decide(CommitDecision(offset, txid, record.decided_ms, partitions))
        elif isinstance(record, Committed):
            done = self._waiting.pop(record.begin, None)
            if done is not None:
                self._order.finish(done)

    def close(self) -> None:
        """Close its consumer."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()
