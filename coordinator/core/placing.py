"""Places what is decided: which partitions to ask for their end, when, and what to make of it.

One `Placer` belongs to a tenure. A round asks for the ends of the partitions in which something
waits, hands them to `Places.place`, and ends when the PLACED record is acknowledged:

    PlaceWrites (effect) → `place` → `ask` → ends → `answered` → PLACED → acknowledged → `placed`

What is decided meanwhile is the next round's. So a record serves all transactions that were decided
in the time of one question and one append.

A transaction for which nothing but these places was left is finished with the record: its COMMITTED
follows in the same batch (`whole_by`). One append after another would take twice as long.

Two rules of order are kept here:

- The end that becomes a place was asked for after the decision was acknowledged (R2). `place` gets
  decisions that are durable, and a round covers those that came before its question. A reader that
  asked for the journal's end before the decision so knows that nothing will be placed below what it
  had read by then.
- In a partition, what one journal ends (by marker or place) keeps the commit-sequence order (R4). A
  transaction is not placed while a marker of a lower sequence is on its way there, and a marker
  does not go out while a transaction of a lower sequence has no durable place there (`may_mark`).
  Each waits for lower sequences alone, so they never wait for each other. A mode record takes part
  with the offset of its MODE record.

A new owner's lanes write the markers of all unfinished transactions again, and hold it to the same:
`first_marker` is asked when a round begins, after the effects of loading were carried out.

Volatile: a tenure that pauses or ends calls `drop`, and whoever goes on asks again. The first
PLACED that is valid counts, and each end that was asked for is above what readers had passed on.

Pure: the caller asks the brokers, and has the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ...journal.control import TopicPartition
from ...journal.places import PartitionId, Placed
from ...journal.value import value
from .unplaced import UnplacedTransactions

RETRY_MIN_MS: Final = 50
"""First pause after a partition's end could not be asked for."""
RETRY_MAX_MS: Final = 1_000
"""Longest pause: bounds how late a partition goes on once it has a leader again."""


class Round(Enum):
    """What the current round waits for."""

    NONE = auto()
    """Nothing: there is no round."""
    ENDS = auto()
    """Ends of partitions."""
    RECORD = auto()
    """The acknowledgement of its PLACED record."""


VALID_PREVIOUS: Final[Mapping[Round, frozenset[Round]]] = {
    Round.NONE: frozenset({Round.ENDS, Round.RECORD}),
    Round.ENDS: frozenset({Round.NONE}),
    Round.RECORD: frozenset({Round.ENDS}),
}
"""State → states that may precede it; a placer starts with NONE."""


@value(frozen=True, slots=True)
class PlaceWrites:
    """Effect: the decision is durable; place its writes."""

    begin: int
    sequence: int
    partitions: tuple[PartitionId, ...]
    """Where it is to be placed."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Asks for the ends of partitions. Compared by identity: an old answer is not taken."""

    upto: int
    """Sequence of the last decision that the answer may place."""
    partitions: tuple[PartitionId, ...]
    asked_ms: int
    """Monotonic time."""


@dataclass(slots=True)
class _Pause:
    pause_ms: int = 0
    until_ms: int = 0


class Placer:
    """The rounds of one tenure."""

    def __init__(self, first_marker: Callable[[TopicPartition], int | None]) -> None:
        """Begins without anything to place.

        Args:
            first_marker: tells the commit sequence of the first marker of this journal partition
                that a data partition lacks, or None. A mode record counts as one. Markers in flight
                count too, those of an earlier tenure among them.
        """
        self._first_marker = first_marker
        self._unplaced = UnplacedTransactions()
        """What is durably decided and not durably placed."""
        self._ids: dict[str, dict[str, None]] = {}
        """Topic → under which ids something waited there since nothing did: one, nearly always."""
        self._left: dict[int, int] = {}
        """BEGIN → number of partitions in which it has no durable place yet."""
        self._question: Question | None = None
        self._pauses: dict[PartitionId, _Pause] = {}
        self.round = Round.NONE
        self.given = 0
        """Number of (transaction, partition) that this tenure has durably placed."""
        self.whole: list[int] = []
        """BEGINs of the transactions whose last place the latest durable PLACED record gave."""

    def __len__(self) -> int:
        """Returns the number of (transaction, partition) that wait."""
        return len(self._unplaced)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits."""
        return not self._left

    @property
    def waiting_begins(self) -> Set[int]:
        """BEGINs of the transactions that lack a durable place."""
        return self._left.keys()

    def place(self, effect: PlaceWrites) -> None:
        """Takes a durable decision. Effects must come in journal order, those for lanes too."""
        partitions = dict.fromkeys(effect.partitions)
        self._left[effect.begin] = len(partitions)
        self._unplaced.add(effect.sequence, effect.begin, partitions)
        for topic, topic_id in dict.fromkeys([(p.topic, p.topic_id) for p in partitions]):
            self._ids.setdefault(topic, {})[topic_id] = None

    def is_waiting(self, begin: int) -> bool:
        """Returns whether a transaction lacks a durable place."""
        return begin in self._left

    def may_mark(self, partition: PartitionId, sequence: int) -> bool:
        """Returns whether a marker (or mode record) of this sequence may go out there now (R4)."""
        # Under whatever id: a broker of the past may have told another one of the same topic.
        ids = self._ids.get(partition.topic)
        if not ids:
            return True  # Asked for each marker, and most topics have nothing else.
        firsts = (self._unplaced.first(partition._replace(topic_id=each)) for each in ids)
        return all(first is None or first > sequence for first in firsts)

    def ask(self, now_ms: int) -> Question | None:
        """Begins a round, if something can be placed and no round is under way.

        Returns:
            The question to ask from now on; the answer goes to `answered`.
        """
        if self.round is not Round.NONE:
            return None
        firsts, lasts = self._unplaced.firsts(), self._unplaced.lasts()
        ready = [p for p in lasts if self._is_ready(p, now_ms)]
        upto = max(map(lasts.__getitem__, ready), default=-1)
        free: list[PartitionId] = []
        for partition in ready:
            ended = self._first_end(partition)
            if ended is None or firsts[partition] < ended:
                free.append(partition)
                upto = upto if ended is None else min(upto, ended - 1)
        asked = tuple(p for p in free if firsts[p] <= upto)
        if not asked:
            return None
        self._turn(Round.ENDS)
        self._question = Question(upto, asked, now_ms)
        return self._question

    def _is_ready(self, partition: PartitionId, now_ms: int) -> bool:
        pause = self._pauses.get(partition)
        return pause is None or pause.until_ms <= now_ms

    def _first_end(self, partition: PartitionId) -> int | None:
        """Returns the sequence of the first marker, or first place under another id, that a
        partition lacks; None if it lacks none."""
        marker = self._first_marker(partition.key)
        ids = self._ids[partition.topic]
        if len(ids) == 1:
            return marker
        others = (partition._replace(topic_id=i) for i in ids if i != partition.topic_id)
        firsts = [first for p in others if (first := self._unplaced.first(p)) is not None]
        return min((*firsts, marker) if marker is not None else firsts, default=None)

    def answered(
        self, question: Question, ends: Mapping[PartitionId, int], now_ms: int
    ) -> Mapping[PartitionId, int] | None:
        """Takes the ends of partitions.

        Args:
            question: the question. An answer to one that was dropped is ignored.
            ends: partition → its end as its leader told it, or `GONE`. Those that are missing could
                not be asked; a later round asks them again.
            now_ms: monotonic time.

        Returns:
            The ends to hand to `Places.place` with `question.upto`; None if there is nothing to do.
            If no record comes of them, call `drop`.
        """
        if question is not self._question:
            return None
        self._question = None
        for partition in question.partitions:
            if partition in ends:
                self._pauses.pop(partition, None)
            else:
                pause = self._pauses.setdefault(partition, _Pause())
                pause.pause_ms = min(max(pause.pause_ms * 2, RETRY_MIN_MS), RETRY_MAX_MS)
                pause.until_ms = now_ms + pause.pause_ms
        found = {p: ends[p] for p in question.partitions if p in ends}
        self._turn(Round.RECORD if found else Round.NONE)
        return found or None

    def placed(self, placed: Placed) -> list[int]:
        """Takes a PLACED record of this tenure that is acknowledged, and ends its round.

        One whose round was dropped counts as well, for it is durable.

        Returns:
            BEGINs of the transactions that have all their places now, by commit sequence: as far as
            places go, they are finished.
        """
        if self.round is Round.RECORD:
            self._turn(Round.NONE)
        whole: list[tuple[int, int]] = []
        for sequence, begin, partitions in self._unplaced.cover(placed):
            self.given += len(partitions)
            self._left[begin] -= len(partitions)
            if not self._left[begin]:
                del self._left[begin]
                whole.append((sequence, begin))
        if self.is_idle:
            self._ids.clear()
        self.whole = [begin for _, begin in sorted(whole)]
        return self.whole

    def whole_by(self, placed: Placed) -> list[int]:
        """Returns BEGINs of transactions to which a record that is not durable yet gives all their
        places, by commit sequence; not of those that an earlier record left in parts."""
        return self._unplaced.whole_by(placed)

    def drop(self) -> None:
        """Drops the current round: the tenure pauses, or its PLACED record will not be appended.

        What waits stays, and the next round asks again.
        """
        self._question = None
        if self.round is not Round.NONE:
            self._turn(Round.NONE)

    @property
    def wake_ms(self) -> int | None:
        """When a partition that could not be asked is to be asked again; None if there is none."""
        return min((p.until_ms for p in self._pauses.values()), default=None)

    def waiting(self) -> dict[PartitionId, int]:
        """Returns partition → sequence of the first decision that has no durable place there."""
        return self._unplaced.firsts()

    def _turn(self, state: Round) -> None:
        assert self.round in VALID_PREVIOUS[state], f"{self.round} → {state}"
        self.round = state
