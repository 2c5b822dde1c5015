"""Consumers: `Following` and its buffers as they are, with the real look-ups and side reads.

Each reads one data partition at its own pace, from its own start. It commits positions now and
then, crashes, and goes on from the last commit, as `consumer/reading.py` does with librdkafka. In
some histories in which topics are switched, several are the partitions of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

from logtx.consumer import lookup
from logtx.consumer.assigned import Assigned, StartedAt
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.home_journal import RECENT_MAX
from logtx.consumer.core.pending import Record as CoreRecord
from logtx.consumer.homes import AHEAD_MAX
from logtx.consumer.lookup import Question
from logtx.consumer.side_read import SideReader
from logtx.journal.control import TopicPartition
from logtx.journal.errors import MalformedHeaderError
from logtx.journal.logs.interface import Log
from logtx.journal.position import Position
from logtx.journal.txid import TxId

from .followers import PlayedFollowing
from .history import Consumed, Delivered, Rest, Resumed
from .logs import LogView, NotYetError
from .reference import Reading
from .schedule import Party
from .setting import Setting
from .sidecars import reader_of

STEP_MS: Final = (5, 60)
"""Least and most virtual time between two steps."""
IDLE_MS: Final = (20, 100)
"""The same once it has read everything."""
LOOK_UP_AGE_MS: Final = 350
"""How long a transaction is pending before it is looked up."""
LOOK_UP_EVERY_MS: Final = 150
"""Time between look-ups."""
TOGETHER_SHARE: Final = 0.6
"""Share of the lives of a consumer that begin in the process of another one, if there is one."""
KEPT: Final = ((2, AHEAD_MAX), (12, 6), (RECENT_MAX, 0))
"""Records that a process keeps of homes' journals, at most, and transactions of partitions that
have not come there."""
HOME_LATER_SHARE: Final = 0.6
"""Share of the steps of a reader of uncommitted records in which it reads its home no further."""
CRASHES_BEHIND_SHARE: Final = 0.06
"""Share of those in which it crashes: few are hit between a record and a place before it else."""
LATE_SHARE: Final = 0.2
"""Share of the lives of a consumer that learn late which topics are switched."""
LATE_MS: Final = (20, 300)
"""Least and most time until they have learnt it."""


class Consumer(Party):
    """One consumer of one data partition."""

    def __init__(
        self,
        setting: Setting,
        name: str,
        partition: TopicPartition,
        start: int,
        *,
        steady: bool,
        committed: bool = True,
    ) -> None:
        """Begins to read at `start`.

        Args:
            setting: of the world.
            name: of the consumer.
            partition: data partition.
            start: offset at which it begins.
            steady: whether it never stops, and reads all there is in each step.
            committed: whether it reads committed records, or all.
        """
        super().__init__(setting.scheduler, name)
        self.partition = partition
        self._setting = setting
        self._steady = steady
        chance = setting.chance
        self._memory_max_bytes = chance.choice((1_500, 10**9))
        self._reads_committed = committed
        self._seen = Consumed(partition, start)
        (setting.history.consumed if committed else setting.history.shown)[name] = self._seen
        self._committed = Position.at(start)
        self._committed_count = 0
        self._count = 0
        """Number of records delivered, as the application counts them."""
        self.high = -1
        """Up to where its partition reached when it was fetched last."""
        self._begin()

    def _process(self) -> PlayedFollowing:
        """Returns the process that it is part of from now on."""
        setting, draw = self._setting, self._setting.together
        processes: list[PlayedFollowing] = setting.processes
        with_room = [p for p in processes if p.members and self.partition not in p.members]
        found = PlayedFollowing(
            setting, self.name, self._memory_max_bytes, committed=self._reads_committed
        )
        if draw is None or self._steady or not self._reads_committed:
            return found
        if with_room and draw.random() < TOGETHER_SHARE:
            setting.history.counts["consumers of several partitions"] += 1
            return draw.choice(with_room)
        homes = found.homes
        homes._recent_max, homes._ahead_max = draw.choice(KEPT)
        processes.append(found)
        return found

    def _begin(self) -> None:
        setting = self._setting
        self._following = self._process()
        self._following.join(self)
        pending_map = self._map = self._following.pending_map
        self.high = -1
        start = Position.from_metadata(self._committed.o1, self._committed.to_metadata())
        self.assigned: Assigned | None = None
        """None until it has learnt which home its topic has."""
        self._side_reader = SideReader(cast(Log, LogView(setting.broker)), {}, pending_map)
        self._sidecar_reader = reader_of(setting)
        self._looking = False
        self._resting = -1
        if setting.modes is None:
            self._learn(start)
            return
        late = setting.faults.on and setting.modes.random() < LATE_SHARE
        setting.history.counts["modes read late"] += late
        self.later(
            setting.modes.randint(*(LATE_MS if late else (0, 5))), partial(self._learn, start)
        )

    def _learn(self, start: Position) -> None:
        self._following.learn([self.partition])
        self.put(Assigned(self.partition, start, None, StartedAt.ELSEWHERE))
        self.later(self._setting.chance.randint(*STEP_MS), self.step)
        self.later(LOOK_UP_EVERY_MS, self._look_up)

    def put(self, assigned: Assigned) -> None:
        """Begins the partition, or begins it anew, as `Reading` does."""
        former, self.assigned = self.assigned, assigned
        assigned.buffer = self._following.make_buffer(assigned)
        self._following.begin(assigned)
        if former is not None:
            self._setting.note(self.name, "begins anew", assigned.start)
            self._side_reader.forget(former.buffer)
            self._sidecar_reader.forget(former.buffer)
            self._following.forget(former)
            former.buffer.close()

    @property
    def buffer(self) -> PartitionBuffer:
        """The buffer that it has now."""
        assert self.assigned is not None
        return self.assigned.buffer

    def needs(self, key: TopicPartition) -> int:
        """Returns the offset from which on it may read a data partition."""
        if key != self.partition:
            return 2**63
        # One that is told too late that its topic was switched goes back to where it began.
        misled = self._setting.faults.ends is not None and self._reads_committed
        return min(self._seen.start, self._committed.o1) if misled else self._needs_places()

    def _needs_places(self) -> int:
        """Returns the same of what it committed, and of places that it has passed and not heard
        of."""
        passed, o1 = self._committed.passed, self._committed.o1
        if self._reads_committed or passed is None:
            return o1
        ends = Reading(self._setting.history).partitions[self.partition].ends
        return min([o1, *(end.place for end in ends if end.sequence > passed.sequence)])

    @property
    def stands_in_sidecar(self) -> bool:
        """Whether it would go on in the middle of a pointer."""
        return self._committed.side is not None

    def crash(self) -> None:
        """Lose what was not committed."""
        self._following.leave(self)
        self.die()

    def restart(self) -> None:
        """Go on from the committed position."""
        self.alive = True
        unaware_below = self._committed.o1 if self._committed.passed is None else 0
        self._seen.events.append(Resumed(self._committed_count, unaware_below))
        self._count = self._committed_count
        where = f"o1={self._committed.o1} o2={self._committed.o2} o3={self._committed.o3}"
        self._setting.note(self.name, "resumes at", where)
        self._begin()

    def _back(self) -> None:
        if not self.alive:
            self.restart()

    @property
    def done(self) -> bool:
        """Whether it has read all there is and holds nothing, or stopped."""
        if self._seen.failure:
            return True
        if self.assigned is None:
            return False
        end, home = len(self._setting.broker.data(self.partition)), self.assigned.home
        return (
            self.buffer.next_offset == end
            and self.buffer.mode_met is None
            and (home is None or self._following.is_settled(home))
            and not (self.assigned.before and self._following.misses_sidecar(self.assigned.before))
            and not self.buffer.ready
            and not self.buffer.blocked
            and not any(True for _ in self.buffer.pending())
        )

    def step(self) -> None:
        """Read a little, deliver a little."""
        setting, chance = self._setting, self._setting.chance
        log, assigned = setting.broker.data(self.partition), self.assigned
        assert assigned is not None
        fed, buffer = assigned.input, assigned.buffer
        follows = assigned.front is not None or buffer.mode_met is not None
        resting = buffer.next_offset == len(log) == self._resting and not follows
        self.later(chance.randint(*(IDLE_MS if resting else STEP_MS)), self.step)
        if resting:
            return
        self._map.enforce()
        limit = 1_000 if self._steady else chance.randint(1, 12)
        end = self.high = setting.told_end(*self.partition)
        batch = log[fed.next_offset : min(fed.next_offset + limit, end)]
        if batch:
            fed.feed(cast(Sequence[CoreRecord], batch))
        behind = self._is_behind_home()
        if (follows or buffer.mode_met is not None) and not behind:
            buffer = self._follow()
        if buffer.blocked:
            if buffer.failure is not None:
                self._seen.failure = str(buffer.failure)
                return
            if buffer.stream_wanted() is None:
                self._side_reader.step(buffer, 0)
            self._sidecar_reader.step([buffer], 0)
        if buffer.ready:
            self._take(1_000 if self._steady else chance.choice((1, 2, 3, 50)))
        if behind and self._setting.modes and self._setting.modes.random() < CRASHES_BEHIND_SHARE:
            setting.history.counts["consumers crashed behind their home"] += 1
            self.crash()
            setting.scheduler.after(chance.randint(10, 100), self._back)
            return
        if not buffer.ready and not buffer.blocked and buffer.next_offset != self._resting:
            self._resting = buffer.next_offset
            at, now_ms = setting.history.tick(), setting.now_ms
            self._seen.events.append(Rest(self._resting, at, now_ms))

    def _is_behind_home(self) -> bool:
        """Draws whether the home is not read in this step, though data is: no uncommitted record
        waits for it."""
        setting = self._setting
        if self._reads_committed or not setting.faults.on:
            return False
        assert setting.modes is not None
        return setting.modes.random() < HOME_LATER_SHARE

    def _follow(self) -> PartitionBuffer:
        """Reads the home on, and turns at a mode record; returns the buffer of now."""
        following, setting = self._following, self._setting
        following.try_again()
        setting.history.counts["turns at mode records"] += following.poll_all()
        failure = following.homes.failure
        if failure is not None and not setting.faults.on:
            self._seen.failure = str(failure)
        return self.buffer

    def _take(self, limit: int) -> None:
        setting, chance = self._setting, self._setting.chance
        taken = self.buffer.take(limit)
        for record in taken:
            at, now_ms = setting.history.tick(), setting.now_ms
            self._seen.events.append(Delivered(record.offset(), at, now_ms))
            setting.note(self.name, f"delivers {self.partition} offset", record.offset())
        if self._steady:
            return
        drawn = chance.random()
        if taken and drawn < 0.3:
            # The application commits what it is done with, which may be a part.
            index = chance.randrange(len(taken))
            position = self.buffer.position_after(taken[index].offset())
            assert position is not None
            self._commit(position, self._count + index + 1)
        self._count += len(taken)
        if drawn > 0.7:
            self._commit(self.buffer.position(), self._count)

    def _commit(self, position: Position, count: int) -> None:
        self._committed, self._committed_count = position, count
        if position.o3:
            self._setting.history.counts["positions within a transaction"] += 1

    def _look_up(self) -> None:
        setting, buffer, assigned = self._setting, self.buffer, self.assigned
        self.later(LOOK_UP_EVERY_MS, self._look_up)
        due: list[Question] = []
        settled, home = buffer.looked_up, assigned and assigned.home
        for pending in buffer.pending():
            if home is not None and home.is_known(pending.txid):
                pending.since = pending.since or setting.now_ms
            elif pending.since is None:
                pending.since = setting.now_ms
            elif setting.now_ms - pending.since >= LOOK_UP_AGE_MS and pending.txid not in settled:
                due.append((self.partition, pending.txid))
        if not due or self._looking:
            return
        setting.counters.look_ups += len(due)
        self._looking = True
        self._ask(due, [], setting.readers_s)

    def _ask(self, due: list[Question], known: list[int], asked_s: float) -> None:
        """Looks up with these answers of the log; waits for more while the other parties go on."""
        setting = self._setting
        try:
            log = cast(Log, LogView(setting.broker, known))
            answers = lookup.answer(log, due, timeout_s=30, clock=lambda: asked_s)
        except NotYetError as question:
            topic, partition = question.topic, question.partition

            def ask() -> None:
                end = setting.told_end(topic, partition)
                failed = setting.faults.happens("look-up failed", 0.03)
                self.later(setting.chance.randint(0, 30), lambda: told(end, failed=failed))

            def told(end: int, *, failed: bool) -> None:
                if failed:
                    self._looking = False
                else:
                    known.append(end)
                    self._ask(due, known, asked_s)

            self.later(setting.chance.randint(0, 30), ask)
            return
        self._looking = False
        for found in answers:
            what = f"{TxId.from_bytes(found.txid)} ended={found.ended} end={found.end_offset}"
            setting.note(self.name, "looked up", what)
            self._told(found)

    def _told(self, found: lookup.LookedUp) -> None:
        assigned = self.assigned
        assert assigned is not None
        again = self._following.looked_up(assigned, found, self._setting.readers_s)
        if again is not None:
            self._setting.history.counts["homes found by look-ups"] += 1
            self.put(again)


def malformed(record: CoreRecord, error: MalformedHeaderError) -> Any:
    """Fails: no party here writes such headers."""
    del record
    raise error
