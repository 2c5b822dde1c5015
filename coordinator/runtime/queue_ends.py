"""Asks the brokers where partitions end, as long as consumers of queues wait for messages of them.

`Dispatch` leases what lies below an end that it was told. While nobody waits, nothing is asked.
While somebody does, the pause between two questions doubles as long as no end moves: an idle queue
costs a few questions a second, and a busy one is looked at every few milliseconds.

An end may be told too low, by a broker that leads no more: then messages come a little later. It
must not be that of another topic, which got the name: its messages would be taken for those of the
former one. So an end that moved counts only if the topic still has its id, by an answer that is
asked for behind it: an id never comes back.

Lives as long as one tenure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException

from ...journal.errors import LogtxError
from ...journal.logs.interface import Log
from ...journal.places import PartitionId
from ..core.decision import Instant
from ..core.tenure import Tenure
from .questions import Questions

PAUSE_MIN_S: Final = 0.005
"""Pause between two questions while messages come. A longer one delays each message, a shorter one
asks the brokers more."""
PAUSE_MAX_S: Final = 0.05
"""Pause between two questions after a while without messages. A longer one delays the first message
of a queue that was idle."""
TIMEOUT_S: Final = 1.0
"""Bound of a question. A longer one holds up all queues when a broker dies without a word."""


class QueueEnds:
    """Asks for ends, for the queues of one tenure; lives on the event loop."""

    def __init__(
        self,
        log: Log,
        tenure: Tenure,
        *,
        questions: Questions,
        ask: Callable[[Coroutine[Any, Any, None]], None],
        now: Callable[[], Instant],
    ) -> None:
        """Asks nothing before `soon`.

        Args:
            log: the log that holds the data partitions.
            tenure: the tenure.
            questions: runs the questions outside of the event loop.
            ask: runs a coroutine in the background; the partition's `stop` cancels it.
            now: returns the time.
        """
        self._log, self._tenure = log, tenure
        self._questions, self._ask, self._now = questions, ask, now
        self._purpose: Final = f"queues-{tenure.shard.partition}"
        self._asking = False
        self._pause_s = PAUSE_MIN_S

    def soon(self) -> None:
        """Begins to ask if somebody waits, and nothing is asked yet."""
        if not self._asking and self._tenure.shard.queues.dispatch.wants_ends:
            self._asking = True
            self._ask(self._run())

    async def _run(self) -> None:
        try:
            while not (self._tenure.over or self._tenure.quiescing):
                wanted = self._tenure.shard.queues.dispatch.wanted()
                if not wanted and not self._tenure.shard.queues.dispatch.wants_ends:
                    return
                ends = await self._ends(wanted) if wanted else {}
                known = self._tenure.shard.queues.dispatch.end_of
                moves = any(known(partition) != end for partition, end in ends.items())
                self._pause_s = PAUSE_MIN_S if moves else min(self._pause_s * 2, PAUSE_MAX_S)
                self._tenure.queue_ends_told(ends, self._now())
                await asyncio.sleep(self._pause_s)
        finally:
            self._asking = False

    async def _ends(self, wanted: Collection[PartitionId]) -> Mapping[PartitionId, int]:
        """Returns the ends, none lower than what is known; what has no answer is missing."""
        dispatch = self._tenure.shard.queues.dispatch
        keys = {partition.key for partition in wanted}
        ends = partial(self._log.each_end_offset, keys, timeout_s=TIMEOUT_S)
        try:
            told = await self._questions.ask(self._purpose, ends)
            moved: dict[PartitionId, int] = {}
            stands: dict[PartitionId, int] = {}
            for partition in wanted:
                end, known = told.get(partition.key), dispatch.end_of(partition)
                if isinstance(end, int) and known is not None and end <= known:
                    stands[partition] = known  # One that is lower is of a broker behind.
                elif isinstance(end, int):
                    moved[partition] = end
            if not moved:
                return stands
            topics = sorted({partition.topic for partition in moved})
            ids = partial(self._log.topic_ids, topics, timeout_s=TIMEOUT_S)
            found = await self._questions.ask(self._purpose, ids)
        except (LogtxError, KafkaException):
            return {}  # They are asked again after the pause, which bounds how often.
        # A log that tells no ids has one topic for each name.
        own = {p: end for p, end in moved.items() if found.get(p.topic, "") == p.topic_id}
        return {**stands, **own}
