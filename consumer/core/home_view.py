"""What one consumer knows of a home: the journal partition that places what its partitions hold.

The shell reads the home's journal through `EpochFilter`, so that records of a replaced owner count
for no reader (R6), and tells the view what the valid ones say. The view keeps

- the BEGINs of transactions that are undecided, as numbers;
- for each partition of the consumer, what is decided with writes there and not passed yet.

Everything else of the home has ended: so late data is told from open data by what is *not* kept,
and the view does not grow with what was.

Where reading may begin (`where_to_begin`, R12), and why that is enough. A reader at offset *x* must
learn of every transaction whose place is *x* or above. Behind its own sequence it finds the
decisions of all that it has not delivered. At a fence whose last place lies below *x* it finds in
the snapshot all that is not placed, and what is placed later lies behind the fence. What is placed
exactly *at* x is due, so a fence whose last place is *x* is not enough, unless the log itself
begins at *x*: then all records of what is placed there are gone.

A reader that reads data from below *x* again, for what was pending there, meets records of what it
has delivered, too. To tell them from those of open transactions, it begins at a fence whose last
place is at or below that, if there is one: then it reads of all these decisions. Else look-ups
tell.

A reader that knows its sequence may stand above places that are still to come: a broker told too
low an end, or the reader was told late of the topic's switch, and has delivered plain records. It
goes on behind its own sequence. If that was trimmed, it begins at the first fence that will do: a
later one may not list what was placed so, and is finished.

What a new reader counts as delivered (R11): everything that is placed below *x*, but for what was
pending there. It may not know yet which that is. So `passed` is None until the first transaction
with a place at or above *x* is known, or one that was pending, or until a gate proves that all that
is decided is placed below; and before that nothing is delivered (`placed_input`). After a gate,
`passed` is the highest sequence known to be delivered: all that was decided before the fence is,
and a fence may list an older decision, for another partition's sake (trap 173).

What is placed where the log starts counts as delivered, too: no record of it is left. Were it due,
a reader would be given what the fence lists, in its next life also what is finished, and stop at
either (trap 174). But what lies in the sidecar alone has no record below its place. In a log that
is empty all of it is placed where the log starts, so it is due (trap 166), unless a later
transaction counts as delivered there: a position says one sequence. Which it is, is known no sooner
than what else is due, so it waits until then. A fence behind it may not list it, and be the first
that is left. So a fence's last place counts as one more where something in the sidecar is placed
there (`snapshots.last_needed`, trap 167).

Pending at *x* was what has no record below *o1*, the position's lowest one. A reader held it that
had not heard of the switch, and was replaced. It had delivered nothing that was placed in that
stretch, or `passed` would say so. So what is placed from *o1* on is due, too, though its records
lie below: that reader read past its place, and did not know (trap 279).

A reader with a backlog reads the journal far ahead of its data. So where a topic goes over to
places, what is decided from there on is kept *ahead* for its other partitions (`collect`), and for
one that goes back to markers (`leave`): else each of them would read the journal again when it
comes to its mode record. It may `resume` behind a sequence if the view was told all that lies
behind: then it knows what one does that is attached there.

Left out are decisions that markers end, of transactions that began when all mode records of a
switch back were written. Their records lie behind these, where no home is followed, and a reader
that has read far ahead would keep them all. To who follows it there all the same, they are unknown.

Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from enum import Enum, auto
from typing import Final

from ...journal.control import BranchRange
from ...journal.modes import ModeChange, Phase
from ...journal.places import GONE, Adoption, PartitionId, Placed, Unplaced
from ...journal.position import Journal
from ...journal.txid import TxId
from ...journal.value import value

KEPT_MAX: Final = 10_000
"""Transactions that a view keeps of one partition before reading the journal should pause until the
partition's data is read on: about 5 MB. Fewer make a reader with a backlog stop and go."""
_ALWAYS: Final = 2**63
"""Stands for the decision of an aborted transaction: nothing of it is due at any partition."""


class Fate(Enum):
    """What a view knows of a TxId of its home, as seen from one partition."""

    AHEAD = auto()
    """Its BEGIN was not read yet."""
    OPEN = auto()
    """Undecided."""
    DECIDED = auto()
    """Committed with writes to be placed here, and not placed yet."""
    PLACED = auto()
    """Its place is known, and the partition is not delivered so far."""
    MARKED = auto()
    """Committed with writes here that a marker ends."""
    UNKNOWN = auto()
    """It began before reading did, and nothing was read of it. A marker or a look-up tells."""
    ENDED = auto()
    """Nothing of it is to be delivered here from now on."""


SOME_RECORDS: Final = (BranchRange(0, 0, 0, 1),)
"""Stands for what a decision accepts where a marker will name it."""


@value(frozen=True, slots=True)
class Aside:
    """What a decision accepts in the sidecar of a data partition in which it is placed."""

    branches: tuple[BranchRange, ...]
    topic_id: str = ""
    """Id of the sidecar's topic, as of the decision."""


NO_ASIDE: Final = Aside(())
"""Stands for nothing in the sidecar, where a marker is made of what was decided."""


@value(frozen=True, slots=True)
class HomeWrites:
    """What a decision accepts in one data partition."""

    partition: PartitionId
    branches: tuple[BranchRange, ...]
    placed: bool
    """Whether it is to be placed there, rather than marked."""
    aside: Aside | None = None
    """What of it lies in the partition's sidecar: its place stands for a pointer. None: nothing,
    or it is not placed."""


@value(frozen=True, slots=True)
class Due:
    """A committed transaction, as one partition is to deliver it."""

    begin: int
    """Offset of its BEGIN; of one that the home adopted, that of ADOPT."""
    sequence: int
    branches: tuple[BranchRange, ...]
    txid: TxId | None = None
    """The TxId, if another journal decided it."""
    there: int = -1
    """Its commit sequence in that journal."""
    aside: Aside | None = None
    """See `HomeWrites`."""


@value(frozen=True, slots=True)
class Listed:
    """An unfinished transaction that a snapshot lists."""

    begin: int
    """See `Due`."""
    sequence: int | None = None
    """Commit sequence; None if it is undecided or aborted."""
    aborted: bool = False
    writes: tuple[HomeWrites, ...] = ()
    places: Mapping[PartitionId, int] = field(default_factory=dict)
    txid: TxId | None = None
    """See `Due`."""
    there: int = -1
    """See `Due`."""


@value(frozen=True, slots=True)
class Candidate:
    """A snapshot at which reading may begin."""

    offset: int
    last: Mapping[PartitionId, int]
    """Partition → its last place at that moment."""


@value(frozen=True, slots=True)
class Start:
    """Where one partition's reader stands when it begins to follow its home."""

    x: int
    """Its o2: it has delivered every plain record below."""
    passed: int | None
    """It has delivered every placed transaction up to this sequence; None: see the module."""
    o1: int
    """It reads the partition from here on; below `x` for what is pending."""
    log_start: int = 0
    """First offset of the partition's log."""
    mode_offset: int = -1
    """Journal offset of the MODE record from which on the home places there; -1: from its start."""


def where_to_begin(
    partition: PartitionId, start: Start, journal_start: int, candidates: Iterable[Candidate]
) -> tuple[int, bool] | None:
    """Returns where to read the home's journal from, for one partition (R12).

    Args:
        partition: the data partition.
        start: where its reader stands.
        journal_start: first offset that can still be read.
        candidates: the snapshots that are known.

    Returns:
        (offset, whether it is a snapshot's: then its unfinished transactions are taken in first);
        None if retention took what the reader needs.
    """
    behind = max(start.mode_offset, -1 if start.passed is None else start.passed) + 1
    is_known = start.passed is not None and behind >= journal_start
    if is_known and start.o1 >= start.x:
        return behind, False
    x = max(start.x, start.log_start)
    if start.passed is None and start.o1 < start.x:
        x = max(start.o1, start.log_start)  # What is placed there is due, too (trap 279).
    fit = [
        c
        for c in candidates
        if c.offset >= max(journal_start, start.mode_offset)
        and (c.last.get(partition, -1) < x or c.last[partition] <= start.log_start)
        and (not is_known or c.last.get(partition, -1) <= start.o1)
    ]
    if fit and is_known:
        # What was decided behind the reader's sequence may be placed below `x`, if a broker told
        # too low an end. It is still to come, and a later fence may not list it.
        early = [c.offset for c in fit if c.offset <= behind]
        return (max(early), True) if early else (behind, False)
    if fit and start.passed is not None:
        # So it may be where the sequence is trimmed (trap 175), or if the reader was told late: it
        # has delivered what lies above places that are still to come (trap 88). Its sequence is
        # that of the MODE record then, which is trimmed soon.
        return min(c.offset for c in fit), True
    if fit:
        return max(c.offset for c in fit), True
    if start.mode_offset + 1 >= journal_start:
        return start.mode_offset + 1, False
    return (behind, False) if is_known else None


class _Part:
    """What is decided with writes in one partition, and not passed there."""

    def __init__(self, start: Start, begins: int, *, is_whole: bool) -> None:
        self.x, self.o1, self.log_start = start.x, start.o1, start.log_start
        self.passed = start.passed
        self.begins = begins
        """Journal offset from which on it was followed."""
        self.is_whole = is_whole
        """Whether everything that was unfinished there is known."""
        self.placed: deque[tuple[int, Due]] = deque()
        """(place, transaction), in commit-sequence order, in which places rise. While `passed` is
        None: what lies in the sidecar alone and is placed where the log starts."""
        self.last = -1
        """The highest place read."""
        self.below = max(0, begins - 1, start.passed or 0)
        """The last decision that was passed, or is known to be placed below the start, or what lies
        just below where reading began: a journal offset at which, or behind which, the epoch is
        certain, and all that was decided is known. At 0 lies the first OWNER record."""
        self.kept: dict[int, Fate] = {}
        """BEGINs of what waits for its place, and of what is placed and not passed."""
        self.marked: dict[int, int] = {}
        """BEGIN → commit sequence of what a marker ends."""
        self.aborted: list[TxId] = []
        """What the home adopted as aborted, and the partition was not told of."""
        self.is_ahead = False
        """Whether no reader of the partition follows the home."""
        self.is_back_from = _ALWAYS
        """Journal offset from which on the topic has markers, and no mode record is to come."""
        self.left_out: dict[int, int] = {}
        """Where decisions were left out: first BEGIN → behind the last."""

    @property
    def count(self) -> int:
        """Number of transactions that are kept."""
        return len(self.kept) + len(self.marked) + len(self.aborted)

    def is_behind(self, place: int, due: Due) -> bool:
        """Returns whether what is placed somewhere counts as delivered to a new reader: see the
        module."""
        # Who stands behind o1 without a sequence had not heard of the switch (trap 279).
        is_below = place < min(self.x, self.o1)
        if not due.branches:
            return is_below
        was_pending = self.o1 <= min(r.first_offset for r in due.branches)
        return not was_pending and (is_below or place <= self.log_start)


class HomeView:
    """What is known of one home journal."""

    def __init__(self, journal: Journal, offset: int) -> None:
        """Begins without partitions; reads on from a journal offset."""
        self.journal = journal
        self.next_offset = offset
        """Everything below was read."""
        self._open: set[int] = set()
        self._ended: dict[int, int] = {}
        """BEGIN → decision, of transactions that began below where a partition was attached, or may
        resume."""
        self._begins = 0
        """The highest such journal offset."""
        self._parts: dict[PartitionId, _Part] = {}
        self._unplaced: Unplaced[Due] = Unplaced()

    # ---- partitions -----------------------------------------------------------------------------

    def attach(
        self, partition: PartitionId, start: Start, listed: Collection[Listed] | None = None
    ) -> None:
        """Adds a partition of the consumer, to be followed from `next_offset` on.

        That must be the offset that `where_to_begin` returns for it. If partitions have different
        ones, reading begins at the lowest, and each is attached when reading comes to its own.

        Args:
            partition: the partition.
            start: where its reader stands.
            listed: all that the snapshot there lists as unfinished; None without a snapshot.
        """
        is_whole = listed is not None or self.next_offset == 0
        self.detach(partition)
        self._parts[partition] = _Part(start, self.next_offset, is_whole=is_whole)
        self._begins = self.next_offset
        for each in sorted(listed or (), key=lambda t: t.sequence or 0):
            if each.sequence is not None:
                writes = [w for w in each.writes if w.partition == partition]
                due = Due(each.begin, each.sequence, (), each.txid, each.there)
                self._decide(due, writes, each.places)
            elif not each.aborted:
                self._open.add(each.begin)

    def detach(self, partition: PartitionId) -> None:
        """Drops a partition."""
        self._parts.pop(partition, None)
        self._unplaced.drop(partition)

    def collect(self, partition: PartitionId) -> None:
        """Keeps ahead what is decided from `next_offset` on, for a partition that is to come there.

        It lies behind a MODE record by which the partition's topic goes over to places.
        """
        if partition not in self._parts:
            self.attach(partition, Start(0, self.next_offset - 1, 0))
            self._parts[partition].is_ahead = True

    def leave(self, partition: PartitionId) -> None:
        """Keeps ahead what is decided and not passed: the partition is followed no more for now."""
        part = self._parts[partition]
        part.is_ahead = True
        if part.passed is None:
            self.detach(partition)

    def may_resume(self, partition: PartitionId, passed: int) -> bool:
        """Returns whether a partition that is kept ahead may be followed behind a sequence."""
        part = self._parts.get(partition)
        if part is None or not part.is_ahead:
            return False
        return part.below <= passed < self.next_offset

    def resume(self, partition: PartitionId, passed: int) -> None:
        """Follows a partition that is kept ahead: everything up to a sequence is delivered there.

        `may_resume` must say so.
        """
        part = self._parts[partition]
        part.is_ahead, part.is_whole = False, False
        part.passed = part.below = passed
        part.begins = passed + 1
        # What waits for its place was decided later: places rise, and a switch waits for them.
        while part.placed and part.placed[0][1].sequence <= passed:
            del part.kept[part.placed.popleft()[1].begin]
        part.marked = {b: sequence for b, sequence in part.marked.items() if sequence > passed}

    @property
    def ahead(self) -> int:
        """Number of transactions that are kept ahead."""
        return sum(part.count for part in self._parts.values() if part.is_ahead)

    @property
    def keeps_ahead(self) -> bool:
        """Whether partitions are kept ahead."""
        return any(part.is_ahead for part in self._parts.values())

    def forget_ahead(self) -> None:
        """Drops all partitions that are kept ahead."""
        for partition in [p for p, part in self._parts.items() if part.is_ahead]:
            self.detach(partition)

    def drop_ahead(self, most: int, ours: Callable[[PartitionId], bool]) -> None:
        """Drops partitions that are kept ahead, until no more than `most` transactions are kept so:
        all that are not `ours`, and those that have most first."""
        for partition in [p for p, part in self._parts.items() if part.is_ahead and not ours(p)]:
            self.detach(partition)
        ahead = [(part.count, key) for key, part in self._parts.items() if part.is_ahead]
        count = sum(c for c, _ in ahead)
        for each, partition in sorted(ahead, reverse=True):
            if count <= most:
                return
            count -= each
            self.detach(partition)

    def absorb(self, other: HomeView) -> None:
        """Takes over the partitions of another view of the same journal, read up to here too.

        Both know what is open by the same records, as far as they read them. So what either knows
        is true for the partitions of the other.
        """
        assert (self.journal, self.next_offset) == (other.journal, other.next_offset)
        for partition, part in other._parts.items():
            if self._has_better(partition, part):
                continue
            self.detach(partition)
            self._parts[partition] = part
            for sequence, due in other._unplaced.of(partition):
                self._unplaced.add(partition, sequence, due)
        self._open |= other._open
        self._ended |= other._ended
        self._begins = max(self._begins, other._begins)

    def _has_better(self, partition: PartitionId, part: _Part) -> bool:
        # One that is followed is in one view alone. Of those that are kept ahead, that which leaves
        # out less serves at more places.
        own = self._parts.get(partition)
        if own is None or not own.is_ahead:
            return own is not None
        return part.is_ahead and own.below <= part.below

    @property
    def partitions(self) -> list[PartitionId]:
        """The partitions that are attached."""
        return [partition for partition, part in self._parts.items() if not part.is_ahead]

    def follows(self, partition: PartitionId) -> bool:
        """Returns whether a partition is attached."""
        part = self._parts.get(partition)
        return part is not None and not part.is_ahead

    def has_ahead(self, partition: PartitionId) -> bool:
        """Returns whether a partition is kept ahead."""
        part = self._parts.get(partition)
        return part is not None and part.is_ahead

    # ---- what the journal says ------------------------------------------------------------------

    def begun(self, begin: int) -> None:
        """Takes a BEGIN."""
        self._open.add(begin)

    def switched(self, offset: int, change: ModeChange) -> None:
        """Takes a MODE record. All up to it is read then: what lies behind may be collected."""
        self.read_to(offset + 1)
        if change.phase is Phase.TO_METADATA:
            self._begins = offset + 1  # Partitions may be followed from there on.
        is_back = change.phase is Phase.MARKERS and change.with_records
        for partition, part in self._parts.items():
            if partition.topic == change.topic:
                if part.is_back_from in part.left_out:
                    part.left_out[part.is_back_from] = offset
                part.is_back_from = offset if is_back else _ALWAYS

    def committed(self, begin: int, sequence: int, writes: Iterable[HomeWrites]) -> None:
        """Takes a decision to commit."""
        self._end(begin, sequence)
        self._decide(Due(begin, sequence, ()), writes, {})

    def aborted(self, begin: int) -> None:
        """Takes a decision to abort: nothing of it is delivered anywhere."""
        self._end(begin, _ALWAYS)

    def adopted(self, offset: int, adoption: Adoption) -> None:
        """Takes an ADOPT record: a decision of another journal, as of its own offset.

        What the home refuses ends by a marker of that journal, which needs nothing here.
        """
        writes = [
            HomeWrites(w.partition, tuple(w.branches), True) for w in adoption.writes if w.placed
        ]
        if adoption.committed:
            due = Due(offset, offset, (), adoption.txid, adoption.sequence)
            self._decide(due, writes, {})
            return
        for each in writes:
            part = self._parts.get(each.partition)
            if part is not None:
                part.aborted.append(adoption.txid)

    def take_aborted(self, partition: PartitionId) -> list[TxId]:
        """Returns, once, what the home adopted as aborted: nothing of it is delivered."""
        part = self._parts[partition]
        found, part.aborted = part.aborted, []
        return found

    def _end(self, begin: int, decision: int) -> None:
        is_known = begin in self._open
        self._open.discard(begin)
        if not is_known or begin < self._begins:
            self._ended[begin] = decision

    def _decide(
        self, decided: Due, writes: Iterable[HomeWrites], places: Mapping[PartitionId, int]
    ) -> None:
        begin, sequence = decided.begin, decided.sequence
        for each in writes:
            part = self._parts.get(each.partition)
            if part is None or not (each.branches or each.aside):
                continue
            due = Due(begin, sequence, each.branches, decided.txid, decided.there, each.aside)
            place = places.get(each.partition)
            if not each.placed:
                if begin >= part.is_back_from:
                    part.left_out[part.is_back_from] = _ALWAYS
                else:
                    part.marked[begin] = sequence
            elif part.passed is not None and sequence <= part.passed:
                pass  # Delivered by an earlier life of the reader.
            elif place is None:
                part.kept[begin] = Fate.DECIDED
                self._unplaced.add(each.partition, sequence, due)
            else:
                self._place(part, place, due)

    def placed(self, record: Placed) -> None:
        """Takes a PLACED record."""
        for partition, place, (_, due) in self._unplaced.cover(record):
            part = self._parts.get(partition)
            if part is not None:
                self._place(part, place, due)

    def _place(self, part: _Part, place: int, due: Due) -> None:
        part.kept.pop(due.begin, None)
        part.last = max(part.last, place)
        if place == GONE:
            return
        if part.passed is None and part.is_behind(place, due):
            part.below = max(part.below, due.sequence)
            for _, before in part.placed:
                del part.kept[before.begin]
            part.placed.clear()
            return
        part.kept[due.begin] = Fate.PLACED
        part.placed.append((place, due))
        if part.passed is None and (due.branches or place > part.log_start):
            part.passed = part.placed[0][1].sequence - 1

    def read_to(self, offset: int) -> None:
        """Notes that everything below a journal offset was read, and taken in if it counts."""
        self.next_offset = max(self.next_offset, offset)

    # ---- what a partition asks ------------------------------------------------------------------

    def next_place(self, partition: PartitionId) -> tuple[int, Due] | None:
        """Returns the next transaction to deliver in a partition, and its place (R8)."""
        part = self._parts[partition]
        return part.placed[0] if part.placed and part.passed is not None else None

    def last_place(self, partition: PartitionId) -> int:
        """Returns the highest place read of a partition, below which nothing will be placed; -1
        before the first."""
        return self._parts[partition].last

    def is_settled(self, partition: PartitionId, end: int) -> bool:
        """Returns whether the journal is read up to `end`, and all that is decided below it with
        writes to be placed in the partition is placed (R7)."""
        if self.next_offset < end:
            return False
        waiting = self._unplaced.of(partition)
        return not waiting or waiting[0].sequence >= end

    def settle_start(self, partition: PartitionId, end: int) -> None:
        """Notes that a gate was passed: what is decided below `end` and not known as due was placed
        below where the partition's reader began (R11).

        The sequence is not `end` - 1. That may be a record of a replaced owner, and a reader that
        goes on behind it would take the epoch of that owner for the current one.
        """
        part = self._parts[partition]
        if part.passed is None and self.next_offset >= end:
            first = part.placed[0][1] if part.placed else None
            part.passed = part.below if first is None else first.sequence - 1

    def passed(self, partition: PartitionId) -> int | None:
        """Returns the sequence up to which nothing is due that is not known; None: see `Start`."""
        return self._parts[partition].passed

    def pass_over(self, partition: PartitionId) -> None:
        """Removes the transaction that `next_place` returns: it is on its way to delivery."""
        part = self._parts[partition]
        _, due = part.placed.popleft()
        part.passed = part.below = due.sequence
        del part.kept[due.begin]

    def fate(self, partition: PartitionId, begin: int) -> Fate:
        """Returns what is known of a TxId of this home, by the offset of its BEGIN."""
        part = self._parts[partition]
        if begin in part.kept:
            return part.kept[begin]
        if begin in part.marked:
            return Fate.MARKED
        if begin in self._open:
            return Fate.OPEN
        if begin >= self.next_offset:
            return Fate.AHEAD
        is_below = begin < part.begins and not part.is_whole
        is_left_out = any(first <= begin < end for first, end in part.left_out.items())
        if (is_below or is_left_out) and self._ended.get(begin, -1) < part.begins:
            return Fate.UNKNOWN
        return Fate.ENDED

    def end_marked(self, partition: PartitionId, begin: int) -> None:
        """Notes that a marker of a TxId of this home was read: it is not waited for any more."""
        self._parts[partition].marked.pop(begin, None)

    def first_waiting(self, partition: PartitionId) -> Due | None:
        """Returns the first transaction that is decided and not placed in a partition, if any."""
        waiting = self._unplaced.of(partition)
        return waiting[0].what if waiting else None

    def kept(self, partition: PartitionId) -> int:
        """Returns how many transactions are kept of a partition."""
        return self._parts[partition].count

    def is_full(self, partition: PartitionId) -> bool:
        """Returns whether so many places wait for the partition's data that reading the journal
        should pause: see `KEPT_MAX`."""
        return len(self._parts[partition].placed) >= KEPT_MAX
