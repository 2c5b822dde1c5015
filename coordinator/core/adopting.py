"""Hands transactions over to the home of a topic in which another journal places.

A topic in metadata mode has one home, which alone places there (R1). A transaction of another
journal would need a marker, which a partition that takes no writes never gets. So the journal that
decides it hands it over, and the home adopts it:

    deciding journal: PREPARE_COMMIT, "handed to this home" ──▶ ... ──▶ COMMITTED
                             │                                   ▲
    home:                    └▶ ADOPT ──▶ PLACED ────────────────┘

Each owner follows the other's journal anyway, as a standby. There is no request between them: each
decides by the valid, durable records of the other, and one that is behind only waits.

In the home, the offset of ADOPT is the transaction's commit sequence *and* stands for its BEGIN. No
other record has that offset. So `Places`, `Placer` and everything that reads places take it as a
decision of the home like any other.

`handing` brings the journals together. The rules, each of which the search dropped:

- A1. A decision is adopted once, by the decisions' order in their journal. The home's state says up
  to which sequence of each journal it has adopted. It is adopted from what is *unfinished* in the
  deciding journal, so an owner that begins with nothing finds it again.
- A2. The deciding journal says of each partition to which home it is handed. That home answers in
  any case: it places, or it refuses. So nobody waits for one that does not know of the topic.
- A3. The home places only while the topic is in metadata mode when ADOPT is written. Else it
  refuses, and the deciding journal marks. A place behind the mode record would be missed.
- A4. In a partition, the deciding journal's order is kept, by three waits, each for lower
  sequences alone. It hands a partition over only if no marker of it is unfinished there
  (`may_hand`). A marker waits for what was handed over earlier (`may_mark`). And while something
  that was refused is not finished, the home refuses there what follows: else the topic could be
  switched again meanwhile, and a later transaction be placed before the earlier one's marker.
- A5. The deciding journal finishes a transaction when all its partitions are placed, durably, or
  marked. So its HW, its snapshots and its trimming keep what is not adopted, and a marker whose HW
  lies above a transaction stands behind its place.
- A6. An abort is adopted too: readers of the topic learn it there, and need no marker.
- A7. What does not fit one record is adopted in several, which share out the partitions in their
  order. It counts as adopted, for A1 and A2, with the last one. The state says how far it has come,
  so a new owner goes on behind that: no partition is adopted twice, and none is left out.

Why a reader needs nothing but the home. It gates on the home's end. What is adopted below that
end and not placed is waited for (R7). What is adopted later is placed at an end that was asked for
later still (R2). When it was *decided* plays no part.

What the home keeps is small: a sequence for each journal, what waits for a place, and what was
refused and is not finished. Everything else that was handed over and lies at or below that sequence
is placed.

Pure. `replay` alone changes what comes from a journal.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, NamedTuple

from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import CorruptRecordError
from ...journal.places import AdoptedWrites, Adoption, PartitionId
from ...journal.position import Journal
from ...journal.txid import TxId
from ...journal.value import value
from .modes import TopicModes
from .places import Places
from .ranges import PackedRanges, last_offset_of

ANSWERS_MAX: Final = 2_000
"""Answers taken in one turn: some milliseconds. More hold an event loop for longer."""
ADOPT_BYTES: Final = 800_000
"""Bytes that one ADOPT record may take by `_bytes_of`, which is too much rather than too little:
what does not fit goes on in the next one. Larger comes too near to what a journal record may have;
smaller adopts in several what older programs read in one."""
_RANGE_BYTES: Final = 20
"""Of a range, with offsets below 2^41. Too low would refuse a share, which is marked then."""
_NAME_BYTES: Final = 40
"""Of a partition beside its names."""
_PACKED_FROM: Final = 64
"""Ranges in one partition from which on they are packed until they are placed: a transaction may
have a million of them."""


class Answer(Enum):
    """What a home has said of a transaction that was handed over, in one partition."""

    NONE = auto()
    """Nothing yet, or it is adopted and has no place yet."""
    PLACED = auto()
    """It has a place."""
    REFUSED = auto()
    """It is to be marked. So it is, too, if its topic is gone: another may have the name."""


@value(frozen=True, slots=True)
class HandedWrites:
    """What is handed over in one partition."""

    partition: PartitionId
    branches: Sequence[BranchRange]
    """What the decision accepts there; none of an aborted transaction."""
    home: int
    """The journal partition that is to place it."""


@value(frozen=True, slots=True)
class Handed:
    """A decided, unfinished transaction with writes in topics of other homes."""

    txid: TxId
    sequence: int
    committed: bool
    writes: tuple[HandedWrites, ...]

    @property
    def ends(self) -> dict[PartitionId, int]:
        """Partition → the offset behind the last record that the commit accepts there."""
        accepted = (w for w in self.writes if w.branches)
        return {w.partition: last_offset_of(w.branches) + 1 for w in accepted}


# ---- the journal that decides -------------------------------------------------------------------


class HandedOver:
    """What a journal partition decided and did not finish: replayed state."""

    def __init__(self) -> None:
        self._handed: dict[int, Handed] = {}
        """Commit sequence → what is handed over, in this order."""
        self._sequences: dict[int, int] = {}
        """BEGIN of what is handed over → its commit sequence."""
        self._marked: dict[int, frozenset[TopicPartition]] = {}
        """BEGIN of an unfinished transaction → where it is marked."""
        self._marks: dict[TopicPartition, int] = {}
        """Data partition → number of unfinished transactions that are marked there."""
        self.watches = False
        """Whether it is told of every decision, as one that decides by it must be: see `watch`."""

    def __len__(self) -> int:
        """Returns the number of transactions that are handed over and unfinished."""
        return len(self._handed)

    def watch(self, decided: Iterable[tuple[int, Iterable[TopicPartition]]]) -> None:
        """Begins to count markers, from what is decided and unfinished: BEGINs, and where.

        Before, nothing need be counted: most journals never hand anything over.
        """
        self.watches = True
        for begin, marked in decided:
            self._mark(begin, marked)

    def replay_decided(self, handed: Handed, marked: Iterable[TopicPartition]) -> None:
        """Applies a decision. Must be called in the order of commit sequences.

        Args:
            handed: the transaction, with what is handed over; it may be nothing.
            marked: where it is marked. Of no use before `watch`.
        """
        begin = handed.txid.offset
        self._mark(begin, marked)
        if handed.writes:
            self._sequences[begin] = handed.sequence
            self._handed[handed.sequence] = handed

    def _mark(self, begin: int, marked: Iterable[TopicPartition]) -> None:
        keys = frozenset(marked)
        if keys:
            self._marked[begin] = keys
        for key in keys:
            self._marks[key] = self._marks.get(key, 0) + 1

    def replay_finished(self, begin: int) -> Handed | None:
        """Forgets a finished transaction. Returns it if something of it was handed over."""
        for key in self._marked.pop(begin, ()):
            self._marks[key] -= 1
            if not self._marks[key]:
                del self._marks[key]
        sequence = self._sequences.pop(begin, None)
        return None if sequence is None else self._handed.pop(sequence)

    @property
    def marks_any(self) -> bool:
        """Whether any partition may still get a marker, as far as markers are counted."""
        return bool(self._marks)

    def may_hand(self, partition: TopicPartition) -> bool:
        """Returns whether a decision that is made now may hand a partition over (A4).

        Not while the partition may still get a marker of an earlier decision: a home knows nothing
        of those, and might place the later one before it.
        """
        return partition not in self._marks

    def to(self, home: int, above: int = -1) -> Iterator[Handed]:
        """Yields what is handed over to a home and unfinished, by commit sequence."""
        for sequence, handed in self._handed.items():
            if sequence > above and any(w.home == home for w in handed.writes):
                yield handed

    def get(self, begin: int) -> Handed | None:
        """Returns an unfinished transaction that is handed over; None if it is not."""
        sequence = self._sequences.get(begin)
        return None if sequence is None else self._handed[sequence]

    def is_finished(self, sequence: int) -> bool:
        """Returns whether a decision that was read, and handed something over, is finished."""
        return sequence not in self._handed

    def all(self) -> list[Handed]:
        """Returns all that is handed over and unfinished, by commit sequence."""
        return list(self._handed.values())

    def forget_marks(self) -> None:
        """Stops counting markers: this coordinator decides no more."""
        self.watches = False
        self._marked.clear()
        self._marks.clear()


@value(frozen=True, slots=True)
class Answered:
    """What a home said of a transaction in one partition."""

    begin: int
    sequence: int
    partition: PartitionId
    is_refused: bool
    """Whether its marker is to be written; else it has its place."""


class Answers:
    """What the homes answered, as one tenure of the deciding journal knows it. Volatile.

    It asks about durable decisions only: its owner calls `wait` as it would hand markers to lanes.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Handed, set[PartitionId]]] = {}
        """BEGIN → the partitions without an answer."""
        self._left: dict[TopicPartition, list[int]] = {}
        """Data partition → commit sequences of what has no answer there."""

    def __len__(self) -> int:
        """Returns the number of transactions that lack an answer."""
        return len(self._waiting)

    def wait(self, handed: Handed) -> None:
        """Takes a durable decision that hands something over."""
        self._waiting[handed.txid.offset] = handed, {w.partition for w in handed.writes}
        for each in handed.writes:
            insort(self._left.setdefault(each.partition.key, []), handed.sequence)

    def homes(self) -> set[int]:
        """Returns the homes that have something to answer."""
        return {
            w.home
            for handed, left in self._waiting.values()
            for w in handed.writes
            if w.partition in left
        }

    def ask(self, home: Adopted) -> list[Answered]:
        """Returns what a home's valid records say of what waits, by commit sequence.

        Nothing is taken: if they are not durable yet, `take` it when they are.
        """
        found: list[Answered] = []
        for begin, (handed, left) in self._waiting.items():
            if handed.sequence > home.upto(handed.txid.journal):
                continue
            for each in handed.writes:
                if each.home != home.home or each.partition not in left:
                    continue
                answer = home.answer(handed.txid, handed.sequence, each.partition)
                if answer is not Answer.NONE:
                    refused = answer is Answer.REFUSED
                    found.append(Answered(begin, handed.sequence, each.partition, refused))
                    if len(found) >= ANSWERS_MAX:
                        return found
        return found

    def take(self, answers: Iterable[Answered]) -> tuple[list[Answered], list[int]]:
        """Takes what homes said, by durable records.

        Returns:
            What they refused, by commit sequence, once for each transaction and partition; and the
            BEGINs of what has all its answers now.
        """
        refused: list[Answered] = []
        whole: list[int] = []
        for each in answers:
            known = self._waiting.get(each.begin)
            if known is None or each.partition not in known[1]:
                continue  # It was answered before.
            known[1].discard(each.partition)
            self._forget(each.partition.key, each.sequence)
            if each.is_refused:
                refused.append(each)
            if not known[1]:
                del self._waiting[each.begin]
                whole.append(each.begin)
        return sorted(refused, key=lambda each: each.sequence), whole

    def _forget(self, key: TopicPartition, sequence: int) -> None:
        left = self._left[key]
        left.remove(sequence)
        if not left:
            del self._left[key]

    def may_mark(self, partition: PartitionId, sequence: int) -> bool:
        """Returns whether a marker of this sequence may go out there now (A4)."""
        # Under whatever id: a broker of the past may have told another one of the same topic.
        left = self._left.get(partition.key)
        return left is None or left[0] >= sequence

    def is_waiting(self, begin: int) -> bool:
        """Returns whether a home has not answered for a transaction everywhere (A5)."""
        return begin in self._waiting


def refusing(adoption: Adoption) -> Adoption:
    """Returns the ADOPT record that leaves it all to the deciding journal, and is small."""
    writes = tuple(AdoptedWrites(w.partition, (), placed=False) for w in adoption.writes)
    return replace(adoption, writes=writes)


def _bytes_of(writes: HandedWrites) -> int:
    """Returns how many bytes an ADOPT record needs for one partition: rather too many."""
    topic, _, topic_id = writes.partition
    names = 3 * (len(topic) + len(topic_id))
    return _NAME_BYTES + names + _RANGE_BYTES * len(writes.branches)


def _share_of(writes: Sequence[HandedWrites], bytes_max: int) -> Sequence[HandedWrites]:
    """Returns what goes into the next record: one partition at least."""
    count, size = 1, _bytes_of(writes[0])
    while count < len(writes) and (size := size + _bytes_of(writes[count])) <= bytes_max:
        count += 1
    return writes[:count]


def _packed(adoption: Adoption) -> Adoption:
    if all(len(w.branches) < _PACKED_FROM for w in adoption.writes):
        return adoption
    return replace(
        adoption,
        writes=tuple(
            replace(w, branches=PackedRanges(w.branches)) if len(w.branches) >= _PACKED_FROM else w
            for w in adoption.writes
        ),
    )


# ---- the home -----------------------------------------------------------------------------------


class Begun(NamedTuple):
    """How far a home has adopted a transaction that takes several ADOPT records."""

    sequence: int
    """Its commit sequence in its own journal."""
    last: PartitionId
    """The last partition that was adopted; those behind it are still to come."""


@dataclass(slots=True)
class _Of:
    """What a home has adopted of one journal."""

    upto: int = -1
    """Everything handed over to this home up to this commit sequence is adopted."""
    refused: dict[int, frozenset[PartitionId]] = field(default_factory=dict)
    """Commit sequence → where it is to be marked; until it is known as finished."""
    begun: Begun | None = None
    """What is adopted in part (A7)."""
    waiting: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Commit sequence → offsets of the ADOPT records that have not all their places."""

    def check_follows(self, offset: int, adoption: Adoption) -> None:
        """Checks that no partition is adopted a second time.

        Raises:
            CorruptRecordError: it was adopted before. A reader that begins between two such records
                could not tell, and would deliver it twice; so no owner may write the second.
        """
        begun, writes = self.begun, adoption.writes
        if adoption.sequence <= self.upto:
            whole = f"all up to {self.upto}"
        elif begun is not None and adoption.sequence != begun.sequence:
            whole = f"a part of {begun.sequence}, whose rest must come first,"
        elif begun is not None and any(w.partition <= begun.last for w in writes):
            whole = f"its part up to {begun.last}"
        else:
            return
        raise CorruptRecordError(
            f"the ADOPT record at {offset} takes over {adoption.txid} (sequence"
            f" {adoption.sequence}), and {whole} was taken over before"
        )

    def wait(self, sequence: int, offset: int) -> None:
        """Notes an ADOPT record that has not all its places."""
        self.waiting[sequence] = (*self.waiting.get(sequence, ()), offset)

    def placed(self, sequence: int, offset: int) -> None:
        """Notes that an ADOPT record has all its places."""
        left = tuple(o for o in self.waiting.pop(sequence) if o != offset)
        if left:
            self.waiting[sequence] = left


class AdoptedRow(NamedTuple):
    """What a home has adopted of one journal, as a snapshot keeps it."""

    journal: Journal
    upto: int
    """Everything handed over to this home up to this commit sequence is adopted."""
    refused: Mapping[int, frozenset[PartitionId]]
    """Commit sequence → where it is to be marked; until it is known as finished."""
    begun: Begun | None = None
    """What is adopted in part (A7)."""


class Adopted:
    """What a home adopted: the part of its replayed state that ADOPT records change."""

    def __init__(self, home: int, places: Places, modes: TopicModes) -> None:
        """Begins without any.

        Args:
            home: number of this journal partition.
            places: its places, which it tells of what is adopted.
            modes: the modes of its topics.
        """
        self.home = home
        self._places, self._modes = places, modes
        self._of: dict[Journal, _Of] = {}
        self._waiting: dict[int, Adoption] = {}
        """Offset of ADOPT → what has not all its places: a reader that begins at a snapshot needs
        it whole."""

    # ---- what the journal says ------------------------------------------------------------------

    def replay(self, offset: int, adoption: Adoption) -> tuple[PartitionId, ...]:
        """Applies a valid ADOPT record.

        Returns:
            Where it is to be placed now.

        Raises:
            CorruptRecordError: it was adopted before: see `_Of.check_follows`.
        """
        of, adoption = self._of.setdefault(adoption.txid.journal, _Of()), _packed(adoption)
        of.check_follows(offset, adoption)
        if adoption.more:
            last = max(w.partition for w in adoption.writes)
            of.begun = Begun(adoption.sequence, last)
        else:
            of.upto, of.begun = adoption.sequence, None
        for sequence in adoption.settled:
            of.refused.pop(sequence, None)
        refused = frozenset(w.partition for w in adoption.writes if not w.placed)
        if refused:
            before = of.refused.get(adoption.sequence, frozenset())
            of.refused[adoption.sequence] = before | refused
        ends = {
            w.partition: last_offset_of(w.branches) + 1
            for w in adoption.writes
            if w.placed and w.branches
        }
        if ends:
            of.wait(adoption.sequence, offset)
            self._waiting[offset] = adoption
            self._places.replay_commit(offset, offset, ends)
        return tuple(ends)

    def replay_gone(self, offset: int, keys: Collection[TopicPartition]) -> None:
        """Leaves to the deciding journal what is placed nowhere, as the topic is gone: its records
        may be in another topic that has the name, and then a marker must say so (trap 80).

        Args:
            offset: of the ADOPT record.
            keys: where its topic is gone.
        """
        adoption = self._waiting[offset]
        refused = self._of[adoption.txid.journal].refused
        gone = {w.partition for w in adoption.writes if w.placed and w.partition.key in keys}
        refused[adoption.sequence] = refused.get(adoption.sequence, frozenset()) | gone

    def replay_placed(self, whole: Iterable[int]) -> None:
        """Takes what `Places.replay_placed` returned: what is adopted has no COMMITTED here."""
        for offset in whole:
            adoption = self._waiting.pop(offset, None)
            if adoption is not None:
                self._of[adoption.txid.journal].placed(adoption.sequence, offset)
                self._places.replay_finished(offset)

    # ---- what others ask ------------------------------------------------------------------------

    def answer(self, txid: TxId, sequence: int, partition: PartitionId) -> Answer:
        """Returns what this home said of a transaction that was handed over to it."""
        of = self._of.get(txid.journal)
        if of is None or sequence > of.upto:
            return Answer.NONE
        if partition in of.refused.get(sequence, ()):
            return Answer.REFUSED
        for offset in of.waiting.get(sequence, ()):
            row = self._places.of(offset)
            if row is not None and partition in row.ends and partition not in row.places:
                return Answer.NONE
        return Answer.PLACED

    def upto(self, journal: Journal) -> int:
        """Returns up to which commit sequence a journal's transactions are adopted; -1: none."""
        of = self._of.get(journal)
        return -1 if of is None else of.upto

    # ---- what an owner decides ------------------------------------------------------------------

    def adopt(
        self, journal: Journal, handed: HandedOver, bytes_max: int = ADOPT_BYTES
    ) -> Adoption | None:
        """Returns the next ADOPT record for a journal; None if nothing is to be adopted.

        What does not fit one record gives its next share (A7).

        Args:
            journal: the journal that decides.
            handed: what its valid, durable records say, up to any of them.
            bytes_max: what one record may take, about; one partition goes into one, at least.
        """
        of = self._of.get(journal, _Of())
        each = next(handed.to(self.home, of.upto), None)
        if each is None:
            return None
        if of.begun is not None and each.sequence != of.begun.sequence:
            # What it has begun is finished: another owner has adopted the rest, and this one has
            # not heard of it yet (trap 273).
            return None
        # Refusals are of lower sequences, so those decisions were read too.
        settled = tuple(s for s in of.refused if handed.is_finished(s))
        locked = self._locked(of.refused, settled)
        left, share = self._left(each, of.begun, bytes_max)
        writes = tuple(
            AdoptedWrites(
                w.partition,
                w.branches,
                placed=self._modes.is_placed(w.partition) and w.partition not in locked,
            )
            for w in share
        )
        more = len(share) < len(left)
        return Adoption(each.txid, each.sequence, each.committed, writes, settled, more)

    def _left(
        self, handed: Handed, begun: Begun | None, bytes_max: int
    ) -> tuple[Sequence[HandedWrites], Sequence[HandedWrites]]:
        """Returns what is not adopted of a transaction, and what of that goes into one record."""
        here = [w for w in handed.writes if w.home == self.home]
        if begun is None:
            share = _share_of(here, bytes_max)
            if len(share) == len(here):
                return here, share
        left = sorted(here, key=lambda w: w.partition)
        if begun is not None:
            left = [w for w in left if w.partition > begun.last]
        return left, _share_of(left, bytes_max)

    @staticmethod
    def _locked(
        refused: Mapping[int, frozenset[PartitionId]], settled: Collection[int]
    ) -> frozenset[PartitionId]:
        """Returns the partitions in which something refused is not finished (A4)."""
        return frozenset(p for s, where in refused.items() if s not in settled for p in where)

    # ---- snapshots ------------------------------------------------------------------------------

    def unplaced(self) -> list[tuple[int, Adoption]]:
        """Returns what has not all its places, by offset of ADOPT: rows of a snapshot."""
        return sorted(self._waiting.items())

    def rows(self) -> list[AdoptedRow]:
        """Returns what was adopted, by journal."""
        rows = (AdoptedRow(j, of.upto, dict(of.refused), of.begun) for j, of in self._of.items())
        return sorted(rows, key=lambda row: row.journal)

    @classmethod
    def restore(
        cls,
        home: int,
        places: Places,
        modes: TopicModes,
        rows: Iterable[AdoptedRow],
        unplaced: Iterable[tuple[int, Adoption]],
    ) -> Adopted:
        """Returns the state as it was when `rows` and `unplaced` gave it.

        Args:
            home: see the class.
            places: the restored places, which have what waits already.
            modes: see the class.
            rows: what `rows` gave.
            unplaced: what `unplaced` gave.
        """
        adopted = cls(home, places, modes)
        for row in rows:
            adopted._of[row.journal] = _Of(row.upto, dict(row.refused), row.begun)
        for offset, adoption in unplaced:
            adopted._of[adoption.txid.journal].wait(adoption.sequence, offset)
            adopted._waiting[offset] = _packed(adoption)
        return adopted
