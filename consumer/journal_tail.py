"""Reads the journal for serializable delivery, from a place that it can trust, and follows it.

This is a thin shell around `EpochFilter` and `SerialOrder`. It needs the log and no coordinator.

Where reading begins, the epoch must be certain, or void decisions of a replaced owner would count.
It is certain in three places, tried in this order:

1. Behind a decision that was delivered: it was valid, so its epoch was current there. Everything
   before it is delivered, so this is the quickest; but its journal record may be trimmed.
2. At the journal's first record, offset 0.
3. At a snapshot that counts (`find_snapshot`). It may lie above decisions that are due. It names
   those of them whose markers were not all written; markers give the order of the others
   (`serial_order.Floor`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

from ..journal.control import Marker, TopicPartition
from ..journal.errors import BrokerError, HandedOverError, JournalError
from ..journal.follower import JournalFollower
from ..journal.logs.interface import Log
from ..journal.places import PartitionId, Placed, Unplaced
from ..journal.position import Journal
from ..journal.reader import JOURNAL_TOPIC, RecordsTrimmedError, find_snapshot, read_entries
from ..journal.records.fate import NO_EPOCH, EpochFilter
from ..journal.records.snapshots import FoundSnapshot, SnapshotScan
from ..journal.records.types import (
    Committed,
    DataPartition,
    Entry,
    PartitionWrites,
    PrepareCommit,
    joined,
)
from ..journal.sidecar import is_sidecar, main_partition
from ..journal.txid import TxId
from .core.home_journal import asides_of
from .core.home_view import NO_ASIDE
from .core.looks import OFFSET_TIMEOUT_S
from .core.pending import RawTxId
from .core.serial_buffer import SerialBuffer
from .core.serial_order import NO_TIMESTAMP, CommitDecision, Floor, SerialOrder
from .home_starts import HomeStarts

_LOG = logging.getLogger(__name__)
Found = TypeVar("Found")

DECISIONS_MAX: Final = 10_000
"""With this many waiting decisions no further ones are taken. More cost memory. With fewer, more of
the journal is read twice while a partition lags."""
TRIES: Final = 3
"""How often the journal is asked before it counts as trimmed faster than it can be read. More let
the application's call take longer, fewer let it fail more often."""
READ_TIMEOUT_S: Final = 30.0
"""Time-out of a search for the place to begin, which reads a part of the journal. A shorter one
fails on a long journal, a longer one blocks the application's call for longer."""


@dataclass(frozen=True, slots=True)
class _Start:
    """A place in the journal where the epoch is certain."""

    offset: int
    epochs: EpochFilter
    snapshot: FoundSnapshot | None = None
    """The snapshot, if reading begins at one."""


_GO_ON: Final = "Read on with isolation.level=read_committed, or begin at the partitions' ends"


def _with_records(writes: Sequence[PartitionWrites]) -> tuple[TopicPartition, ...]:
    # The branches of one partition may be spread over several rows of a snapshot. What lies in a
    # sidecar is delivered in its main partition.
    written = {w.partition.key for w in writes if w.branches}
    return tuple(sorted(set(map(main_partition, written))))


def _sidecars_in(writes: Sequence[PartitionWrites]) -> list[TopicPartition]:
    return [w.partition.key for w in writes if w.branches and is_sidecar(w.partition.topic)]


def _id_of(partition: DataPartition) -> PartitionId:
    return partition.identity


class JournalTail:
    """Follows one journal partition, and passes its valid decisions on to `SerialOrder`."""

    def __init__(
        self,
        log: Log,
        partition: int,
        settings: Mapping[str, Any],
        order: SerialOrder,
        homes_of: Callable[[Collection[str]], Mapping[str, tuple[int, str]]] = lambda _topics: {},
    ) -> None:
        """Reads nothing: `begin` does.

        Args:
            log: the log that holds the journal.
            partition: the journal partition.
            settings: librdkafka's settings, from the main consumer.
            order: where decisions go.
            homes_of: returns topic → (journal partition of its home, topic id), of the topics that
                were ever switched.
        """
        self._homes_of = homes_of
        self.partition = partition
        self._log = log
        self._settings = dict(settings)
        self._order = order
        self._follower: JournalFollower | None = None
        self._epochs = EpochFilter()
        self._starts = HomeStarts(log)
        self._buffers: Mapping[TopicPartition, SerialBuffer] = {}
        self._refusal: JournalError | None = None
        """Why the journal can't be followed any further, from a decision on."""
        self._unplaced: Unplaced[tuple[RawTxId, Marker]] = Unplaced()
        """What is decided and not placed, of our partitions."""
        self._waiting: dict[int, CommitDecision] = {}
        """Decisions passed on that are not finished, by the offset of their BEGIN."""
        self._began_at: int | None = None
        """End of the journal when reading began, while partitions were read that have not passed
        all that was decided below it. A broker may tell one of the past. Then what was decided
        above it counts as due: a reader that began in the middle may be told of what lies in the
        sidecar alone, and is placed below its start (trap 202). It can't ask again later: that end
        lies above what was decided meanwhile, which is due."""
        self._resume: _Start | None = None
        """Where the first decision lies that was not taken, because enough of them wait. The
        journal behind it is read for what is finished, and then once more from here."""

    # ---- where to begin -------------------------------------------------------------------------

    def begin(
        self,
        delivered: Mapping[TopicPartition, Mapping[Journal, int]],
        buffers: Mapping[TopicPartition, SerialBuffer] = MappingProxyType({}),
    ) -> None:
        """Reads the journal from a place before which nothing is due, or else from a floor.

        Args:
            delivered: for each data partition, {journal: last commit sequence up to which nothing
                is due there}.
            buffers: their buffers, which are told what is placed there.

        Raises:
            BrokerError: no answer in time, or the journal is trimmed again and again meanwhile.
            JournalError: a record on the way does not decode.
        """
        lowest = min((self._last(d) for d in delivered.values()), default=(-1, -1))
        found, end = self._untrimmed(lambda: self._find_start(*lowest))
        self._epochs = found.epochs
        self._waiting.clear()
        self._resume, self._refusal = None, None
        self._buffers, self._unplaced = buffers, Unplaced()
        is_told = all(b.all_due and b.delivered for b in buffers.values())
        self._began_at = None if is_told else end
        self._begin_order(found, lowest[0])
        place = {self.partition: found.offset}
        if self._follower is None:
            self._follower = JournalFollower(self._log, place, self._settings)
        else:
            self._follower.move(place)
        _LOG.info(
            "journal_read_from partition=%d offset=%d snapshot=%s",
            *(self.partition, found.offset, found.snapshot is not None),
        )

    def _untrimmed(self, ask: Callable[[], Found]) -> Found:
        # Between two answers the owner may trim what the first one named (trap 305).
        for _ in range(TRIES):
            try:
                return ask()
            except RecordsTrimmedError as error:
                _LOG.warning("journal_asked_again reason=%s", error)
                trimmed = error
        raise BrokerError(
            f"{JOURNAL_TOPIC}[{self.partition}] is trimmed faster than it can be read: try again"
        ) from trimmed

    def _find_start(self, sequence: int, incarnation: int) -> tuple[_Start, int]:
        """Returns where to begin, and the journal's end."""
        start = self._log.start_offset(JOURNAL_TOPIC, self.partition, timeout_s=OFFSET_TIMEOUT_S)
        end = self._log.end_offset(JOURNAL_TOPIC, self.partition, timeout_s=OFFSET_TIMEOUT_S)
        found = self._behind_decision(sequence, incarnation, start, end)
        if found is None:
            found = _Start(0, EpochFilter()) if start == 0 else self._at_snapshot(start)
            if found.snapshot is not None and (found.snapshot.modes or found.snapshot.last_places):
                found = self._at_fence(found, start)
        return found, end

    def _last(self, delivered: Mapping[Journal, int]) -> tuple[int, int]:
        # Returns (commit sequence, incarnation).
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

    def _at_fence(self, found: _Start, start: int) -> _Start:
        # What is placed below the snapshot, or handed over, has no marker that tells of it. The
        # journal is kept up to where data may still hold such transactions.
        assert found.snapshot is not None
        home = self.partition, found.snapshot.incarnation
        first = self._starts.earliest(home, start)
        if first is None or first >= found.offset:
            return found
        # The broker is not asked for an end: one of the past may lie below the snapshot (trap 250).
        scan, end = SnapshotScan(first), found.offset
        entries = read_entries(self._log, self.partition, first, end, timeout_s=READ_TIMEOUT_S)
        with closing(entries):
            for offset, entry in entries:
                scan.feed(offset, entry)
                if scan.found is not None:
                    return _Start(scan.found.first, scan.found.epochs(), scan.found)
        return found

    def _begin_order(self, found: _Start, delivered: int) -> None:
        snapshot = found.snapshot
        if snapshot is None or delivered >= snapshot.first - 1:
            self._order.begin()
            return
        journal = self.partition, snapshot.incarnation
        self._order.begin(Floor(journal, snapshot.first))
        unfinished = {u.begin: u for u in snapshot.unfinished}
        self._check_handed(snapshot)
        for c in snapshot.committing:
            txid = TxId(self.partition, snapshot.incarnation, c.begin)
            partitions = _with_records(c.writes)
            told = unfinished.get(c.begin)
            handed = frozenset() if told is None else told.handed
            placed = handed if told is None else told.placed | handed
            self._check_order(txid, c.commit_sequence, handed & set(partitions))
            if self._refusal is not None:
                return
            decision = CommitDecision(
                c.commit_sequence, txid, NO_TIMESTAMP, partitions, placed=placed, handed=handed
            )
            self._decide(decision)
            if told is not None:
                self._await_places(decision, c.writes, told.placed_ids, told.places)

    def _decide(self, decision: CommitDecision) -> None:
        self._waiting[decision.txid.offset] = decision
        self._order.decide(decision)

    def _await_places(
        self,
        decision: CommitDecision,
        writes: Sequence[PartitionWrites],
        placed: Iterable[PartitionId] = (),
        places: Mapping[PartitionId, int] = MappingProxyType({}),
    ) -> None:
        """Tells buffers where a transaction is placed, or keeps it until that is read.

        What is handed over ends behind its last record: the order needs no more.

        Args:
            decision: the decision.
            writes: what it says, or a snapshot's rows of it.
            placed: partitions in which it is placed, of a snapshot: its rows don't name those of
                which all records lie in the sidecar.
            places: where it has its place.
        """
        raw, sequence = decision.txid.to_bytes(), decision.sequence
        whole = joined(writes)
        asides = {} if decision.handed else asides_of(whole, _sidecars_in(whole))
        mains = {p.key: p for p in placed}
        mains |= {w.partition.key: _id_of(w.partition) for w in whole}
        written = {w.partition.key: w.branches for w in whole if w.branches}
        for key in dict.fromkeys((*written, *asides)):
            aside = asides.get(key, NO_ASIDE)
            if key not in decision.placed or key not in self._buffers:
                continue
            partition = mains[key]
            end = Marker(
                committed=True,
                commit_sequence=sequence,
                hw=0,
                epoch=0,
                branches=written.get(key, ()),
                topic_id=partition.topic_id,
                sidecar=aside.branches,
                sidecar_id=aside.topic_id,
            )
            place = places.get(partition)
            if partition.key in decision.handed:
                self._buffers[partition.key].end_behind_last(raw, end)
            elif place is None:
                self._unplaced.add(partition, sequence, (raw, end))
            else:
                self._buffers[partition.key].place(raw, end, place)

    def _check_order(self, txid: TxId, sequence: int, handed: Collection[TopicPartition]) -> None:
        """Stops before what is handed over, in partitions that were read in the home's order: what
        of it was delivered then, only the home's journal says."""
        for key in sorted(handed):
            buffer = self._buffers.get(key)
            if buffer is None or not buffer.begun_by_home or self._refusal is not None:
                continue
            if sequence > buffer.delivered.get(txid.journal, -1):
                self._refusal = HandedOverError(
                    f"{JOURNAL_TOPIC}[{self.partition}] at offset {sequence}: transaction {txid} is"
                    f" handed over to the home of topic {key[0]}, and this consumer group read"
                    f" {key[0]}[{key[1]}] with isolation.level=read_committed before: whether it"
                    f" was delivered, only the home knows. {_GO_ON}"
                )

    def _check_handed(self, snapshot: FoundSnapshot) -> None:
        """Stops a reader that begins above decisions which no marker here tells of.

        The journal is kept as long as the data of what it hands over. So that is not to be met,
        unless somebody else trimmed it.
        """
        ends = {p: end for p, end in snapshot.last_places.items() if p.key in self._buffers}
        homes = self._homes_of({p.topic for p in ends}) if ends else {}
        for partition, end in ends.items():
            topic, number = partition.key
            home, topic_id = homes.get(topic, (self.partition, ""))
            is_handed = home != self.partition and partition.topic_id in ("", topic_id)
            if not is_handed or end <= self._buffers[partition.key].position().o1:
                continue
            if end > self._log.start_offset(topic, number, timeout_s=OFFSET_TIMEOUT_S):
                self._refusal = HandedOverError(
                    f"{JOURNAL_TOPIC}[{self.partition}] was trimmed to {snapshot.first}, and handed"
                    f" over transactions in {topic}[{number}] below offset {end} before: what they"
                    f" are can't be told any more. {_GO_ON}"
                )

    def _decided(self, offset: int, txid: TxId, record: PrepareCommit) -> None:
        handed = frozenset(key for key, _ in record.handed)
        self._check_order(txid, offset, handed & set(record.delivered_in))
        if self._refusal is not None:
            return
        placed = frozenset(record.placed) | handed
        partitions = tuple(sorted(record.delivered_in))
        decision = CommitDecision(
            offset, txid, record.decided_ms, partitions, placed=placed, handed=handed
        )
        self._decide(decision)
        if placed.isdisjoint(self._buffers):
            return
        writes: Sequence[PartitionWrites] = record.writes
        if any(p.key in placed for p in record.added):
            writes = self._starts.writes(txid.journal, record.begin, offset)
        self._await_places(decision, writes)

    def last_decision(self) -> tuple[Journal, int] | None:
        """Returns the journal and its last commit sequence as of now; None if nothing was decided.

        `begin` can trust that place: it is a valid decision, or lies just below a snapshot.

        Raises:
            BrokerError, JournalError: as `begin`.
        """
        return self._untrimmed(self._last_decision)

    def _last_decision(self) -> tuple[Journal, int] | None:
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
        """Offset of the next entry to take; 0 before `begin`."""
        if self._resume is not None:
            return self._resume.offset
        return self._follower.next_offsets[self.partition] if self._follower is not None else 0

    def poll(self) -> bool:
        """Reads the entries that are there, without waiting. Returns True if there were any.

        Raises:
            RecordsTrimmedError: the records to read next were trimmed: begin again.
            CorruptRecordError, UnknownRecordError: a record does not decode; the text names its
                offset.
        """
        follower = self._follower
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if follower is None:
            return False
        self._pass_beginning()
        if self._resume is None and len(self._order) >= DECISIONS_MAX:
            self._resume = _Start(self.next_offset, copy(self._epochs))
        elif self._resume is not None and len(self._order) <= DECISIONS_MAX // 2:
            start, self._resume = self._resume, None
            self._epochs = start.epochs
            follower.move({self.partition: start.offset})
        # The first decision may wait for nothing but its COMMITTED, however far behind it stands.
        if self._resume is not None and not self._order.waits_for_finish:
            return False
        entries = follower.poll()
        for _, offset, entry in entries:
            self._take(offset, entry)
            if self._refusal is not None:
                break  # The next call raises it. What was decided before can be delivered.
        return bool(entries)

    def _pass_beginning(self) -> None:
        # What is decided from here on ends behind where reading began.
        incarnation = self._epochs.incarnation
        end = self._began_at
        if end is None or incarnation is None or self.next_offset < end:
            return
        if self._order.has_passed(end):
            self._began_at = None
            for buffer in self._buffers.values():
                buffer.skip_to((self.partition, incarnation), 0)

    def _take(self, offset: int, entry: Entry) -> None:
        if not self._epochs.accept(offset, entry):
            return
        record = entry.record
        if isinstance(record, PrepareCommit):
            if record.begin in self._waiting or self._resume is not None:
                return  # only the first decision counts; or it will be taken later
            self._decided(offset, TxId(self.partition, entry.incarnation, record.begin), record)
        elif isinstance(record, Placed):
            for partition, place, waiting in self._unplaced.cover(record):
                if partition.key in self._buffers:
                    self._buffers[partition.key].place(*waiting.what, place)
        elif isinstance(record, Committed):
            done = self._waiting.pop(record.begin, None)
            if done is not None:
                self._order.finish(done, offset, record.gone)

    def close(self) -> None:
        """Closes the journal's consumer."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()
