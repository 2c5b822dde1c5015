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
from ..core.topic_homes import TopicHomes


class Handing:
    """Calls `exchange` when it has something to do; lives on the event loop."""

    def __init__(self, known: Callable[[], Iterable[Known]] = tuple) -> None:
        """Does nothing before `soon` or `tick`.

        Args:
            known: returns the journal partitions of which something is known.
        """
        self.homes: Final = TopicHomes()
        self.known = known
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
        if (self._under_way or self.homes) and exchange(known, self.homes):
            self.soon()
