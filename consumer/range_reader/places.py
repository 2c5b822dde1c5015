"""Reads the homes of a source's partitions, ahead of their records: in the driver's planner.

The planner does not read records. It runs the consumer's own input (`PlacedInput`) over each
partition as if that held none, and so learns what is placed up to an offset, by the same rules as
every consumer (decision 0024):

1. It asks for the ends of the data.
2. It learns which topics have homes. A switch that is published later began behind those ends, or
   the task that comes to the mode record waits until it is published (`reading`).
3. It asks for the ends of the homes' journals, after the ends of the data (R7).
4. It reads the journals up to there, and waits until what is decided below is placed.

A topic that was ever switched is followed where it has markers, too: the decisions say how each
transaction ends, so this is right between any two switches, and costs questions.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ...journal.control import TopicPartition
from ...journal.errors import (
    BrokerError,
    RequestTimedOutError,
    TornTransactionError,
)
from ...journal.logs.interface import Log
from ...journal.mode_registry import TopicModeRecord
from ...journal.modes import Phase
from ...journal.reader import JOURNAL_TOPIC, RecordsTrimmedError
from ..core.home_view import Due, HomeView, Start
from ..core.known_modes import FROM_THE_START, Follows
from ..core.pending import PendingTransactionMap
from ..core.placed_buffer import PlacedBuffer
from ..core.placed_input import PlacedInput
from ..followed import Followed
from ..homes import Homes
from ..malformed import malformed_event
from ..registry import Registry
from ..spill.store import RocksSpillStore
from ..topic_ids import TopicIds
from .due import PlacedDue, Reach, is_behind
from .errors import DataLossError
from .spot import Spot, Vector

_LOG = logging.getLogger(__name__)
WAIT_S: Final = 5.0
"""Longest wait of a micro-batch until what is decided is placed. Then a partition's records behind
that are left to the next one. A smaller value makes more and smaller micro-batches while a
coordinator is away, a larger one delays other partitions."""
PLACE_S: Final = 60.0
"""Longest wait of a batch until what is decided is placed. A smaller value fails jobs while a
coordinator moves, a larger one reports missing coordinators later."""
AHEAD_MAX: Final = 10_000
"""Transactions of one partition that a query with a limit keeps ahead of its records: about 5 MB.
Fewer make smaller micro-batches."""
ANSWER_S: Final = 10.0
"""Time-out of a question for the ends of homes: a smaller value fails on slow brokers, a larger one
reports dead ones later."""
_NO_RECORDS: Final = 1
"""Bytes of records to keep: none is read."""
_POLL_S: Final = 0.005
"""Pause between two looks at the journals. A larger one delays plans, a smaller one costs CPU."""
PUBLISHED_POLL_S: Final = 0.1
"""Pause between two looks whether a switch is published. A larger one delays what is read behind
it, a smaller one asks the brokers more."""


class _Recorder(PlacedBuffer):
    """Takes no records, and notes what is placed."""

    dues: deque[PlacedDue]

    def end_at(self, due: Due, place: int, rest_at: int | None = None) -> bool:
        del rest_at
        self.dues.append(PlacedDue(place, due))
        return place >= self.next_offset


class _Input(PlacedInput):
    """An input whose gates are asked by `PlacesAhead`."""

    def frontier(self) -> int | None:
        return None


class _Ahead(Followed):
    """A partition whose home is read ahead of its records."""

    input: _Input | None
    buffer: _Recorder

    def __init__(
        self, key: TopicPartition, follows: Follows, spot: Spot, pending: PendingTransactionMap
    ) -> None:
        passed = follows.passed
        start = Start(spot.o2, None if passed is None else passed.sequence, spot.o2)
        super().__init__(key, follows, start)
        position = replace(spot.position, o1=spot.o2, o3=0, passed=passed)
        self.buffer = _Recorder(
            key,
            position,
            pending,
            home=follows.home,
            has_ended=self.has_ended,
            malformed=malformed_event,
        )
        self.dues: deque[PlacedDue] = deque()
        self.buffer.dues = self.dues
        self.dropped: PlacedDue | None = None
        """The last of those that were delivered, and forgotten here."""
        self.most: int | None = None
        """See `AHEAD_MAX`; None: no limit."""
        self._asked: tuple[int, int] | None = None

    def attach(self, view: HomeView) -> None:
        self._view = view
        self.input = _Input(self.partition, view, self.buffer, None)
        self._ask()

    @property
    def is_full(self) -> bool:
        return self.most is not None and len(self.dues) >= self.most

    def ask(self, frontier: int, end: int) -> None:
        """Takes the home's end, asked for after everything below `frontier` was known to exist."""
        self._asked = frontier, end
        self._ask()

    def _ask(self) -> None:
        if self.input is not None and self._asked is not None:
            frontier, end = self._asked
            self._asked = None
            self.input.skip_unseen(frontier)
            self.input.gate(frontier, end)

    def is_reached(self, end: Spot) -> bool:
        """Returns whether all is known that is delivered up to an end."""
        if self.input is None or self._view is None:
            return False
        if end.passed is not None and end.passed.home == self.home:
            return self._view.is_settled(self.partition, end.passed.sequence + 1)
        return self._asked is None and not self.input.has_gate

    def knows(self, end: Spot) -> bool:
        """Returns whether no question is needed for an end that was told before.

        What does not say what was passed needs the home's end each time.
        """
        has_come = self.input is not None and self.input.next_offset >= end.o2
        return end.passed is not None and has_come and self.is_reached(end)

    def covers(self, spot: Spot) -> bool:
        """Returns whether it knows all that comes behind a spot."""
        if spot.o2 < self.start.x:
            return False
        passed, begun = spot.passed, self.buffer.begun_behind
        if passed is None or passed.home != self.home:
            is_known = self.start.passed is None
        else:
            # What it counts as delivered may not be, to who says it.
            is_known = begun is not None and begun <= passed.sequence
        return is_known and (self.dropped is None or not is_behind(spot, self.home, self.dropped))

    def drop(self, spot: Spot) -> None:
        """Forgets what is delivered before a spot."""
        while self.dues and not is_behind(spot, self.home, self.dues[0]):
            self.dropped = self.dues.popleft()

    def reach(self, spot: Spot, end: Spot) -> Reach:
        """Returns how far it can be read from a spot on; it was asked for up to an end."""
        given, waiting = self.input, self.placing()
        return Reach(
            self.home,
            spot.o2 if given is None else given.horizon,
            self.buffer.begun_behind,
            tuple(d for d in self.dues if is_behind(spot, self.home, d)),
            self.is_reached(end),
            None if waiting is None else waiting.sequence,
        )


class PlacesAhead:
    """Follows the homes of a source's partitions. One thread at a time may use it."""

    def __init__(self, log: Log, kafka: Mapping[str, Any]) -> None:
        """Opens nothing: the first partition with a home opens the journal's consumer.

        Args:
            log: the log of journal and data; the caller closes it.
            kafka: librdkafka's settings for the journal's consumer.
        """
        self._log, self._settings = log, kafka
        self._registry = Registry(log, TopicIds(log))
        self._store = RocksSpillStore(None)
        self._pending = PendingTransactionMap(_NO_RECORDS, self._store)
        self._homes = Homes(log, kafka, _no_fetch)
        self._followed: dict[TopicPartition, _Ahead] = {}

    def reach(
        self,
        starts: Vector,
        ends: Vector,
        topic_ids: Mapping[str, str],
        *,
        wait_s: float,
        is_bounded: bool = False,
    ) -> dict[TopicPartition, Reach]:
        """Returns how far the partitions can be read that have a home; others are left out.

        Args:
            starts: where reading stands. What was delivered before is forgotten.
            ends: up to where it is asked for. Their offsets must have been told before this call.
            topic_ids: topic → its id.
            wait_s: how long to wait at most until what is decided is placed.
            is_bounded: whether to keep no more than `AHEAD_MAX` of each partition.

        Raises:
            DataLossError: retention took what is needed of a home's journal.
            BrokerError, JournalError: a journal can't be read.
        """
        try:
            return self._reach(starts, ends, topic_ids, wait_s=wait_s, is_bounded=is_bounded)
        except RecordsTrimmedError as error:
            # It was trimmed where reading stood while nothing was asked for. What is needed now may
            # all be there (trap 245).
            self.close()
            _LOG.info("homes_read_again reason=%s", error)
        try:
            return self._reach(starts, ends, topic_ids, wait_s=wait_s, is_bounded=is_bounded)
        except RecordsTrimmedError as error:
            self.close()
            raise DataLossError(
                f"{error}: what was decided there can't be told any more; start anew"
            ) from error

    def _reach(
        self,
        starts: Vector,
        ends: Vector,
        topic_ids: Mapping[str, str],
        *,
        wait_s: float,
        is_bounded: bool,
    ) -> dict[TopicPartition, Reach]:
        published = self._registry.published()
        asked: dict[TopicPartition, _Ahead] = {}
        for key in ends:
            spot = starts.get(key, Spot(0, fresh=True))
            follows = _follows(published.get(key[0]), key, spot, topic_ids)
            if follows is not None:
                asked[key] = self._follow(key, follows, spot)
                asked[key].most = AHEAD_MAX if is_bounded else None
        self._forget(key for key in self._followed.keys() & ends.keys() if key not in asked)
        if asked:
            self._read(asked, ends, wait_s)
        return {key: each.reach(starts.get(key, Spot(0)), ends[key]) for key, each in asked.items()}

    def _follow(self, key: TopicPartition, follows: Follows, spot: Spot) -> _Ahead:
        known = self._followed.get(key)
        same = known is not None and (known.home, known.partition.topic_id) == (
            follows.home,
            follows.topic_id,
        )
        if known is not None and same and known.covers(spot):
            known.drop(spot)
            return known
        self._forget([key])
        new = self._followed[key] = _Ahead(key, follows, spot, self._pending)
        self._homes.begin(new)
        return new

    def _forget(self, keys: Iterable[TopicPartition]) -> None:
        for key in list(keys):
            gone = self._followed.pop(key, None)
            if gone is not None:
                self._homes.forget(gone)
                gone.buffer.close()

    def _read(self, asked: Mapping[TopicPartition, _Ahead], ends: Vector, wait_s: float) -> None:
        deadline_s = time.monotonic() + wait_s
        new = {key: each for key, each in asked.items() if not each.knows(ends[key])}
        for key, end in self._ends(new.values()).items():
            new[key].ask(ends[key].o2, end)
        while True:
            self._homes.poll()
            if isinstance(self._homes.failure, TornTransactionError):
                raise DataLossError(
                    f"{self._homes.failure}; a query starts anew with another checkpoint or group"
                ) from self._homes.failure
            if self._homes.failure is not None:
                raise self._homes.failure
            if all(each.is_reached(ends[key]) for key, each in asked.items()):
                return
            if time.monotonic() > deadline_s or any(each.is_full for each in asked.values()):
                return
            time.sleep(_POLL_S)

    def _ends(self, asked: Iterable[_Ahead]) -> dict[TopicPartition, int]:
        """Returns partition → the end of its home's journal."""
        homes = {each.key: each.home[0] for each in asked}
        keys = [(JOURNAL_TOPIC, number) for number in sorted(set(homes.values()))]
        told = self._log.each_end_offset(keys, timeout_s=ANSWER_S)
        found = {}
        for key, number in homes.items():
            end = told[JOURNAL_TOPIC, number]
            if not isinstance(end, int):
                raise BrokerError(f"the end of {JOURNAL_TOPIC}[{number}] is not told: {end}")
            found[key] = end
        return found

    def published(self, topic: str) -> TopicModeRecord | None:
        """Returns what is published of a topic's mode."""
        return self._registry.published().get(topic)

    def await_published(
        self, topic: str, topic_id: str, mode_offset: int, *, wait_s: float
    ) -> bool:
        """Waits until a switch of a topic is published, or a later one.

        Args:
            topic: name of the topic.
            topic_id: its id.
            mode_offset: journal offset of the MODE record with which the switch began.
            wait_s: how long to wait at most.

        Returns:
            Whether it is published by then.

        Raises:
            BrokerError: what is published may not be read, or no answer came in time.
        """
        deadline_s = time.monotonic() + wait_s
        while True:
            told = self.published(topic)
            if told is not None and told.topic_id == topic_id and told.mode_offset >= mode_offset:
                return True
            self._registry.check_allowed()
            if time.monotonic() > deadline_s:
                return False
            time.sleep(PUBLISHED_POLL_S)

    def close(self) -> None:
        """Stops following. It may be used again."""
        self._forget(self._followed)
        self._homes.close()
        self._homes = Homes(self._log, self._settings, _no_fetch)
        self._store.close()
        self._store = RocksSpillStore(None)
        self._pending = PendingTransactionMap(_NO_RECORDS, self._store)


def _follows(
    published: TopicModeRecord | None,
    key: TopicPartition,
    spot: Spot,
    topic_ids: Mapping[str, str],
) -> Follows | None:
    """Returns the home to be followed from a spot on, if there is one."""
    topic, partition = key
    if published is None or topic_ids.get(topic, "") not in ("", published.topic_id):
        return None
    if published.phase is Phase.MARKERS and spot.o2 > published.since.get(partition, 0):
        return None
    passed = spot.passed if spot.passed and spot.passed.home == published.home else None
    return Follows(published.home, published.topic_id, FROM_THE_START, passed)


def require_complete(reach: Mapping[TopicPartition, Reach]) -> None:
    """Checks that all is placed that is to be read.

    Raises:
        RequestTimedOutError: it is not.
    """
    for (topic, partition), found in reach.items():
        if not found.is_complete:
            raise RequestTimedOutError(
                f"what is committed in {topic}[{partition}] is not placed within {PLACE_S:g} s"
                f" (the first is commit {found.holds}): is a coordinator running?"
            )


def _no_fetch(_: TopicPartition) -> int:
    # A planner fetches no records, so no fetch tells where a partition ends.
    return 0
