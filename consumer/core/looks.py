"""How long a partition's end is doubted before a committed transaction is passed over for it.

The broker that leads a partition tells its end, or one that led it and does not know yet that
another does now. A broker that stood still (a long pause of its JVM, a frozen machine) answers what
waited for it with the end of before. That end may lie below markers that the new leader took
meanwhile. A reader that believes it passes over a transaction whose marker is still to come.

So a partition is *looked* at several times. A former leader that runs again hears of its successor
within a second or two. So of two looks, the second `LOOKS_APART_S` after the first was answered,
one at least is true, whichever it is. No look tells more than the true end. So the highest end that
they told lies at or above the markers of everything that was finished before the first of them.
That is known by the journal's end, asked for before each look: what has its COMMITTED below it was
finished. If that end is of the past, it is lower, and merely proves less. One pair of looks so
serves all that the journal holds, however long it is.

The commit sequences say more where a marker was met: ends stand in commit-sequence order, and what
is higher than the last one met lies ahead. Only looks through all of `CONTRADICTED_APART_S`
overrule that.

What would go wrong otherwise: trap 63.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...journal.control import TopicPartition

LOOKS_APART_S: Final = 5.0
"""Shortest time between the answer to a first look and the question of the second, which is
believed. A former leader that runs again hears of its successor within a second or two. A longer
time holds up, for as long, a serializable reader that begins in a partition without markers. It is
also the pause between looks."""
LOOK_TIMEOUT_S: Final = 2.0
"""Longest wait for partitions' ends. A partition whose leader is away is asked again later, and a
longer wait would hold up the others meanwhile; a shorter one fails on a slow broker."""
OFFSET_TIMEOUT_S: Final = 10.0
"""Time-out of each request for a partition's start or end. A longer one blocks `Consumer.poll` for
longer while a broker is away, a shorter one fails on a slow broker."""
CONTRADICTED_APART_S: Final = 60.0
"""The same where what was read contradicts the end: a marker should lie ahead, or a TxId lies
behind the journal's end. A longer time keeps stray records in memory for longer. A shorter one
loses a commit if a broker is cut off from the others, and not from its readers, for as long."""


@dataclass(frozen=True, slots=True)
class _Look:
    """A partition's end, as it was told at one time."""

    asked_s: float
    answered_s: float
    journal_end: int
    """A place up to which the journal reached before the question."""
    end: int


class Looks:
    """Looks at the ends of a reader's partitions."""

    def __init__(self) -> None:
        """Begins without any."""
        self._looks: dict[TopicPartition, deque[_Look]] = {}
        """Oldest first; none is older than `CONTRADICTED_APART_S` needs."""
        self._failed_s: dict[TopicPartition, float] = {}
        """Partition → when its end was asked for and not told."""

    def clear(self) -> None:
        """Forgets everything: the journal may be another one."""
        self._looks.clear()
        self._failed_s.clear()

    def wants(self, key: TopicPartition, next_offset: int, now_s: float) -> bool:
        """Returns whether it is time to look at a partition that was read up to `next_offset`."""
        if now_s - self._failed_s.get(key, -LOOKS_APART_S) < LOOKS_APART_S:
            return False
        looks = self._looks.get(key)
        if not looks:
            return True
        # What lies below the end that was told last is to be read first.
        return next_offset >= looks[-1].end and now_s - looks[-1].answered_s >= LOOKS_APART_S

    def add(
        self,
        ends: Mapping[TopicPartition, int | None],
        journal_end: int,
        asked_s: float,
        answered_s: float,
    ) -> None:
        """Takes the answer to a look.

        Args:
            ends: as they were told; None where none was.
            journal_end: a place up to which the journal reached before the question.
            asked_s: the time of the question.
            answered_s: the time of the answer.
        """
        for key, end in ends.items():
            if end is None:
                self._failed_s[key] = asked_s
                continue
            self._failed_s.pop(key, None)
            looks = self._looks.setdefault(key, deque())
            looks.append(_Look(asked_s, answered_s, journal_end, end))
            while len(looks) > 1 and asked_s - looks[1].answered_s >= CONTRADICTED_APART_S:
                looks.popleft()

    def is_read(
        self, key: TopicPartition, next_offset: int, finished: int, apart_s: float | None = None
    ) -> bool:
        """Returns whether a partition was read beyond all markers of what is finished.

        Args:
            key: the partition.
            next_offset: up to where it was read.
            finished: journal offset of the record that says so.
            apart_s: how far apart two of the looks must be; None: `LOOKS_APART_S`.
        """
        apart_s = LOOKS_APART_S if apart_s is None else apart_s
        looks = self._looks.get(key)
        if not looks:
            return False
        newest, end = looks[-1], 0
        for look in reversed(looks):
            end = max(end, look.end)
            if end > next_offset:
                return False
            if newest.asked_s - look.answered_s >= apart_s:
                return finished < look.journal_end
        return False
