"""Lets the journal partitions of one coordinator hand transactions over, and adopt.

`core.handing` does it. Here is when: at the end of each turn of the event loop in which a journal
was read or an append acknowledged, as long as a topic is in metadata mode or something is handed
over; else with each tick alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from ..core.handing import Known, exchange, is_under_way
from ..core.shard import Shard
from ..core.topic_homes import TopicHomes


class Handing:
    """Calls `exchange` when it has something to do; lives on the event loop."""

    def __init__(self) -> None:
        """Does nothing before `soon` or `tick`."""
        self.homes: Final = TopicHomes()
        self.known: Callable[[], Iterable[Known]] = tuple
        """Returns the journal partitions of which something is known."""
        self.all_read: Callable[[], bool] = lambda: True
        """Returns whether all other coordinators that answer read what is handed over. One of an
        older version could follow neither journal any more, nor take it over."""
        self._scheduled = False
        self._under_way = False

    def soon(self) -> None:
        """Does at the end of this turn of the loop what there is to do."""
        if self._under_way and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        self.tick()

    def tick(self) -> None:
        """Does what there is to do; called now and then."""
        known = list(self.known())
        self._under_way = is_under_way(known)
        if not (self._under_way or self.homes):
            return
        if exchange(known, self.homes, hands_over=self.all_read()):
            self.soon()

    def begin(self, shard: Shard) -> None:
        """Lets a shard that is about to be served hand over, if that may be."""
        if self.homes and self.all_read():
            shard.watch_homes(self.homes)
