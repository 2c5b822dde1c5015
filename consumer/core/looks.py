"""How long a partition's end is doubted before a committed transaction is passed over for it.

The broker that leads a partition tells its end, or one that led it and does not know yet that
another does now. A broker that stood still (a long pause of its JVM, a frozen machine) answers what
waited for it with the end of before. That end may lie below markers that the new leader took
meanwhile. A reader that believes it passes over a transaction whose marker is still to come.

So the commit sequences decide where they can: ends stand in commit-sequence order, and what is
higher than the last one met lies ahead, whatever end is told. Where nothing was met yet, an end is
believed when a second look, `LOOKS_APART_S` after the first one was answered, told it too: by then
the former leader has heard of its successor.

What would go wrong otherwise: trap 63.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from ...journal.control import TopicPartition
from ...journal.txid import TxId

LOOKS_APART_S: Final = 5.0
"""Shortest time between the answer to a first look and the question of the second, which is
believed. A former leader that runs again hears of its successor within a second or two. A longer
time holds up, for as long, a serializable reader that begins in a partition without markers."""
CONTRADICTED_APART_S: Final = 60.0
"""The same where what was read contradicts the end: a marker should lie ahead, or a TxId lies
behind the journal's end. A longer time keeps stray records in memory for longer. A shorter one
loses a commit if a broker is cut off from the others, and not from its readers, for as long."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Ends of partitions, as they were told at one time."""

    answered_s: float
    finished: frozenset[TxId]
    """What the journal had called finished before they were asked for."""
    ends: Mapping[TopicPartition, int]


class Looks:
    """Looks at partitions' ends, each with what was finished before it."""

    def __init__(self) -> None:
        """Begins without any."""
        self.clear()

    def clear(self) -> None:
        """Forgets everything: what was finished is to be learnt anew."""
        self._last: _Look | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._covered: frozenset[TxId] = frozenset()
        self._contradicted: tuple[TxId, float] | None = None
        self._given_up: TxId | None = None

    def is_early(self, now_s: float) -> bool:
        """Returns whether the last look was just now."""
        return self._last is not None and now_s - self._last.answered_s < LOOKS_APART_S

    def covers(self, keys: Collection[TopicPartition], txid: TxId | None) -> bool:
        """Returns whether the last look was at these ends, with a transaction finished before it.

        Args:
            keys: the partitions.
            txid: the transaction; None if any look will do.
        """
        look = self._last
        return (
            look is not None
            and look.ends.keys() >= set(keys)
            and (txid is None or txid in look.finished)
        )

    def add(
        self,
        ends: Mapping[TopicPartition, int],
        finished: Collection[TxId],
        first: TxId | None,
        now_s: float,
    ) -> None:
        """Takes the answer to a look.

        Args:
            ends: as they were told.
            finished: what the journal called finished before.
            first: the transaction whose turn it is.
            now_s: the time of the answer.
        """
        former = self._last
        self._last = _Look(now_s, frozenset(finished), dict(ends))
        if former is not None and now_s - former.answered_s >= LOOKS_APART_S:
            told = ends.keys() & former.ends.keys()
            self._ends = {key: max(ends[key], former.ends[key]) for key in told}
            self._covered = former.finished
        if first is None or self._contradicted is None or self._contradicted[0] != first:
            self._contradicted = None if first is None else (first, now_s)
        elif now_s - self._contradicted[1] >= CONTRADICTED_APART_S:
            self._given_up = first

    def is_read(self, key: TopicPartition, next_offset: int) -> bool:
        """Returns whether a partition was read up to an end that two looks told."""
        end = self._ends.get(key)
        return end is not None and next_offset >= end

    def is_below(self, txid: TxId, key: TopicPartition, next_offset: int) -> bool:
        """Returns whether a finished transaction's marker lies below what was read, if anywhere.

        For a partition in which nothing was met that says more.
        """
        return txid in self._covered and self.is_read(key, next_offset)

    def is_given_up(self, txid: TxId, key: TopicPartition, next_offset: int) -> bool:
        """Returns whether no end told, for very long, that the marker of `first` lies ahead."""
        end = None if self._last is None else self._last.ends.get(key)
        return txid == self._given_up and end is not None and next_offset >= end
