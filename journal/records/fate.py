"""Finds what became of transactions, from the journal alone. Pure: entries in, fates out.

`EpochFilter` says which entries count: what a replaced coordinator appends late is void for every
reader alike.

Source: Transactional Messaging in Kafka, "Transactional consumer" (a consumer looks an old
transaction up).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..control import TopicPartition
from ..places import PartitionId, Placed, Unplaced
from ..state import VALID_PREVIOUS, State
from ..txid import TxId
from .types import (
    Aborted,
    AbortReason,
    AddPartitions,
    AddWrites,
    Begin,
    Committed,
    DataPartition,
    Entry,
    JournalRecord,
    Owner,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
    joined,
)

NO_EPOCH: Final = -1
"""The epoch that the first OWNER of a journal partition replaces."""


class EpochFilter:
    """Tells valid journal entries from void ones, as their writer itself would.

    An OWNER record is valid if and only if it replaces the current epoch. The entries of its epoch
    that follow are valid up to the epoch's first *surprise*: an entry of another writer, or one
    that does not lie at the offset its writer predicted. A writer decides each record on top of
    those before it. So when one is lost and a later one lands in its place, or a foreign record
    lands in between, everything behind it was decided on a state that never came to be. (Example: a
    producer pipelines T0 with input 0→1 and T1 with 1→2. The append that commits T0 times out, the
    one that commits T1 lands. If T1 were committed, input 0 would be lost.) The owner tells no
    client of a record behind a surprise, and goes on only under a new epoch, so nothing that was
    ever acknowledged to a client is void.

    Args:
        epoch: the epoch that is current where reading begins; `NO_EPOCH` at the very start.
        incarnation: that of the journal partition; None at the very start.
        surprised: whether that epoch has met its surprise before.
    """

    def __init__(
        self, epoch: int = NO_EPOCH, incarnation: int | None = None, *, surprised: bool = False
    ) -> None:
        self.epoch = epoch
        """Offset of the last valid OWNER record; `NO_EPOCH` before the first."""
        self.incarnation = incarnation
        self._surprised = surprised

    @property
    def surprised(self) -> bool:
        """Whether the current epoch has met its surprise: only an OWNER record can be valid."""
        return self._surprised

    def accept(self, offset: int, entry: Entry) -> bool:
        """Returns whether the entry counts. Feed entries in journal order.

        A valid OWNER record begins its epoch.
        """
        record = entry.record
        if isinstance(record, Owner) and record.replaces == self.epoch:
            # If two candidates bid for one epoch, the journal picked the first.
            if self.epoch == NO_EPOCH:
                self.incarnation = entry.incarnation
            if entry.incarnation == self.incarnation:
                self.epoch = offset
                self._surprised = False
                return True
        if (
            entry.epoch != self.epoch
            or entry.predicted != offset
            or entry.incarnation != self.incarnation
        ):
            self._surprised = True
        return not self._surprised


@dataclass(frozen=True, slots=True)
class Fate:
    """What the journal says about one transaction."""

    state: State
    """`State.UNKNOWN` if its BEGIN is no longer at its offset, or never was."""
    commit_sequence: int | None = None
    """Journal offset of the decision to commit or abort; None before there is one."""
    reason: AbortReason | None = None
    """Why it was aborted; None if it was not."""
    writes: tuple[PartitionWrites, ...] = ()
    """What the accepted branches wrote; empty if it does not commit, or was not asked for."""
    partitions: tuple[DataPartition, ...] = ()
    """Data partitions registered or named by the commit: all those that get a marker, but for
    those in `placed`."""
    gone: frozenset[tuple[str, int]] = frozenset()
    """Those of them that were deleted before they took it; known once the state is finished."""
    placed: frozenset[TopicPartition] = frozenset()
    """Those of them in which the commit is placed. Nothing says it of an abort: readers drop the
    records when they read the decision."""
    places: Mapping[PartitionId, int | None] = field(default_factory=dict)
    """Where it is placed and has records that count → the place, `GONE`, or None before there is
    one."""
    handed: frozenset[TopicPartition] = frozenset()
    """Those of its partitions in which the home of another journal places it, or refuses. Then it
    gets a marker; this journal does not say which. Of an abort, too."""
    ahead: bool = False
    """Whether the TxId lies behind the journal's end as it was told: the end is of the past, or the
    TxId was made up. The state is `State.UNKNOWN` then."""


UNKNOWN_FATE: Final = Fate(State.UNKNOWN)


@dataclass(slots=True)
class _Progress:
    """What a scan knows of one transaction so far."""

    state: State = State.OPEN
    commit_sequence: int | None = None
    reason: AbortReason | None = None
    keeps_writes: bool = True
    writes: list[PartitionWrites] = field(default_factory=list)
    partitions: dict[tuple[str, int], DataPartition] = field(default_factory=dict)
    gone: frozenset[tuple[str, int]] = frozenset()
    placed: frozenset[TopicPartition] = frozenset()
    places: dict[PartitionId, int | None] = field(default_factory=dict)
    handed: frozenset[TopicPartition] = frozenset()

    def enter(self, state: State) -> bool:
        """Enters `state`. Returns False if that is forbidden, as for a second decision."""
        if self.state not in VALID_PREVIOUS[state]:
            return False
        self.state = state
        return True

    def register(self, partitions: Iterable[DataPartition]) -> None:
        """Adds data partitions; the first registration of each one stays."""
        for partition in partitions:
            self.partitions.setdefault(partition.key, partition)

    def apply(self, offset: int, record: JournalRecord) -> None:
        """Applies a valid record of this transaction."""
        match record:
            case AddPartitions():
                if self.state is State.OPEN:
                    self.register(record.partitions)
            case AddWrites():
                if self.state is State.OPEN:
                    self._write(record.writes)
            case PrepareCommit():
                if self.enter(State.COMMITTING):
                    self.commit_sequence = offset
                    self._write(record.writes)
                    self.handed = frozenset(key for key, _ in record.handed)
                    if record.placed:
                        self._place(record)
            case PrepareAbort():
                if self.enter(State.ABORTING):
                    self.commit_sequence = offset
                    self.reason = record.reason
                    self.handed = frozenset(key for key, _ in record.handed)
                    self.writes.clear()
            case Committed():
                self._finish(State.COMMITTED, record)
            case Aborted():
                self._finish(State.ABORTED, record)

    def _place(self, record: PrepareCommit) -> None:
        self.placed = frozenset(record.placed)
        for key in self.placed.intersection(record.delivered_in):
            self.places[self.partitions[key].identity] = None

    def _finish(self, state: State, record: Committed | Aborted) -> None:
        if self.enter(state):
            self.gone = frozenset(record.gone)

    def _write(self, writes: Iterable[PartitionWrites]) -> None:
        self.register(w.partition for w in writes)
        if self.keeps_writes:
            self.writes += writes

    def fate(self) -> Fate:
        """Returns the fate as of the records applied so far."""
        return Fate(
            self.state,
            self.commit_sequence,
            self.reason,
            joined(self.writes) if self.commit_sequence is not None else (),
            tuple(self.partitions.values()),
            self.gone,
            self.placed,
            dict(self.places),
            self.handed,
        )


@dataclass(slots=True)
class _Lineage:
    """What follows from one epoch that was current at a BEGIN."""

    epochs: EpochFilter
    transactions: dict[int, _Progress] = field(default_factory=dict)
    """By offset of BEGIN."""
    unplaced: Unplaced[_Progress] = field(default_factory=Unplaced)

    def apply(self, offset: int, record: JournalRecord) -> None:
        """Applies a valid record."""
        if isinstance(record, Placed):
            for partition, place, waiting in self.unplaced.cover(record):
                waiting.what.places[partition] = place
            return
        begin = getattr(record, "begin", None)
        if begin is None or (found := self.transactions.get(begin)) is None:
            return
        found.apply(offset, record)
        if found.commit_sequence == offset:
            for partition in found.places:
                self.unplaced.add(partition, offset, found)


class FateScan:
    """Finds the fates of some transactions of one journal partition, in one pass over its entries.

    Feed the entries from `start` on, in order. A TxId that was found in data, or that a coordinator
    returned, proves that its BEGIN was acknowledged and so is valid. The epoch of that BEGIN is
    therefore the current one at its offset, which is all that a scan from the middle needs to know.
    For a made-up TxId that hits the void BEGIN of a replaced coordinator the answer means nothing.
    It harms no other TxId: each epoch found at a BEGIN is followed separately.

    Args:
        txids: TxIds of one journal partition.
        writes: whether the fates are to say what branches wrote, which takes much memory for a
            transaction of very many branches.
    """

    def __init__(self, txids: Iterable[TxId], *, writes: bool = True) -> None:
        self._keeps_writes = writes
        self._wanted: dict[int, list[TxId]] = {}
        # Two incarnations may both have used an offset.
        for txid in set(txids):
            self._wanted.setdefault(txid.offset, []).append(txid)
        every = [t for group in self._wanted.values() for t in group]
        assert every, "a scan for nothing"
        assert len({t.partition for t in every}) == 1, "a scan reads one journal partition"
        self._txids: Final = tuple(every)
        self.start: Final = min(self._wanted)
        """Journal offset to read from."""
        self.last_begin: Final = max(self._wanted)
        self._found: dict[TxId, _Progress] = {}
        self._lineages: list[_Lineage] = []
        # One lineage per epoch that was current at a BEGIN and that no earlier lineage leads to.
        # There is more than one only if a TxId was made up.
        self._next = 0

    def feed(self, offset: int, entry: Entry) -> None:
        """Takes the next journal entry."""
        self._next = offset + 1
        accepting = [each for each in self._lineages if each.epochs.accept(offset, entry)]
        wanted = self._wanted.get(offset)
        if wanted is not None and isinstance(entry.record, Begin):
            self._begin(wanted, entry, entry.record, accepting)
            return
        for lineage in accepting:
            lineage.apply(offset, entry.record)

    def _begin(
        self,
        wanted: Iterable[TxId],
        entry: Entry,
        record: Begin,
        accepting: list[_Lineage],
    ) -> None:
        for txid in wanted:
            if txid.incarnation != entry.incarnation:
                continue
            found = self._found[txid] = _Progress(keeps_writes=self._keeps_writes)
            found.register(record.partitions)
            if not accepting:
                accepting = [_Lineage(EpochFilter(entry.epoch, entry.incarnation))]
                self._lineages += accepting
            accepting[0].transactions[txid.offset] = found

    @property
    def is_final(self) -> bool:
        """Whether nothing that follows in the journal can change a fate any more."""
        return self._next > self.last_begin and all(p.state.finished for p in self._found.values())

    def fates(self) -> dict[TxId, Fate]:
        """Returns the fate of each TxId as of the entries fed."""
        found = self._found
        return {t: found[t].fate() if t in found else UNKNOWN_FATE for t in self._txids}
