"""Which topics had a name, one after the other, as far as this coordinator heard. Pure.

A marker states the id of the topic that has its records, so that a reader which misses them knows
whether they went with a former topic of the name (decision 0016). Who decides a transaction may be
another coordinator than the one that served when it wrote, and may have been started since the
topic was created anew. So coordinators tell each other which ids they heard of, and when.

What others tell only goes before what this coordinator heard by itself:

1. *Of the time since its first answer it knows better.* What others heard meanwhile may be older
   answers, in another order.
2. *So the first entry only becomes older*, by `CLOCKS_MS` at least, and the news among all come to
   an end.
3. *An id that is too old is harmless.* A reader that finds the records delivers them, whatever the
   marker states. One that is too new stops readers. So the first entry stays where others are
   dropped, and a transaction of unknown age gets that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from ..protocol.topic_news import TopicAges

IDS_MAX: Final = 4
"""Entries of one name that are remembered: the first, and the latest of the others. With fewer, a
marker more often states an older topic than the one that has its records."""
KEPT_MS: Final = 3_600_000
"""How long an id is remembered that another one followed. Longer than transactions are open. With a
longer time, readers more often pass over records that are lost in the topic of today."""
CLOCKS_MS: Final = 1_000
"""How much older an entry must be to go before the first. Of less, two hosts would tell each other
without end: their clocks count milliseconds that begin at different moments. With more, an id is
lost that another one followed sooner."""
TELL_MAX: Final = 1_000
"""Names that are told at a time: some 100 KB. More would hold up what else is told."""

Ids: TypeAlias = tuple[tuple[int, str], ...]
"""(when it was told first in monotonic ms, id) of the topics that had a name, the latest last."""


class TopicIds:
    """The ids of the topics that had each name."""

    def __init__(self) -> None:
        """Begins without any."""
        self._ids: dict[str, Ids] = {}
        self._changed: dict[str, int] = {}
        """Topic → number of the latest change of its entries, in this order."""
        self._changes = 0

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, topic: str) -> Ids:
        """Returns the topics that had the name."""
        return self._ids.get(topic, ())

    def note(self, topic: str, topic_id: str, now_ms: int) -> Ids:
        """Notes which topic an answer told of; "" if the log has no ids. Returns all that had the
        name, or nothing if there is one only."""
        ids = self.of(topic)
        if topic_id and (not ids or ids[-1][1] != topic_id):
            ids = self._set(topic, (*ids, (now_ms, topic_id)), now_ms)
        return ids if len(ids) > 1 else ()

    def hear(self, ages: TopicAges, now_ms: int) -> set[str]:
        """Takes what another coordinator heard. Returns the topics of which it is news."""
        changed = set()
        for topic, aged in ages.items():
            ids = self.of(topic)
            before = _before(ids, [(now_ms - age_ms, topic_id) for age_ms, topic_id in aged])
            if before != ids and self._set(topic, before, now_ms) != ids:
                changed.add(topic)
        return changed

    def since(self, change: int, now_ms: int) -> tuple[TopicAges, int]:
        """Returns what changed after a change of this number, and the number up to which that is.

        There may be more, unless nothing is returned.

        Args:
            change: 0 for all.
            now_ms: monotonic time in milliseconds.
        """
        due: list[str] = []
        for topic in reversed(self._changed):
            if self._changed[topic] <= change:
                break
            due.append(topic)
        told = due[: -TELL_MAX - 1 : -1]
        upto = self._changes if len(told) == len(due) else self._changed[told[-1]]
        return {t: tuple((now_ms - at_ms, i) for at_ms, i in self._ids[t]) for t in told}, upto

    def forget(self, topics: Iterable[str]) -> None:
        """Forgets topics."""
        for topic in topics:
            self._ids.pop(topic, None)
            self._changed.pop(topic, None)

    def _set(self, topic: str, ids: Ids, now_ms: int) -> Ids:
        followed = (at_ms for at_ms, _ in ids[1:])
        outdated = sum(at_ms < now_ms - KEPT_MS for at_ms in followed)
        ids = ids[outdated:]
        if len(ids) > IDS_MAX:
            ids = (ids[0], *ids[1 - IDS_MAX :])
        if ids != self._ids.get(topic):
            self._changes += 1
            self._changed.pop(topic, None)
            self._ids[topic], self._changed[topic] = ids, self._changes
        return ids


def _before(ids: Ids, heard: Iterable[tuple[int, str]]) -> Ids:
    """Returns the entries, and before them those that are older."""
    for at_ms, topic_id in sorted(heard, reverse=True):
        if not ids:
            ids = ((at_ms, topic_id),)
        elif at_ms < ids[0][0] - CLOCKS_MS:
            ids = ((at_ms, topic_id), *(ids[1:] if ids[0][1] == topic_id else ids))
    return ids
