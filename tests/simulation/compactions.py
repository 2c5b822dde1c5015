"""Compaction of sidecars in a simulated world: `logtx sidecar compact`, run at any time.

What runs is the real shell and the real core: `look_at`, `plan_partitions` and `Copier`. It blocks,
so each run has a thread. One thread runs at a time: each question to the log and each wait hands
over to the scheduler, which hands back when the answer comes. So a run can be killed between any
two steps, others work on meanwhile, and a seed still gives the same history.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from random import Random
from types import ModuleType
from typing import Any, Final, cast

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.coordinator.server import compacting, trimming
from logtx.journal.control import TopicPartition
from logtx.journal.errors import LogtxError, UnknownTopicError
from logtx.journal.logs.interface import Log, TopicInfo
from logtx.journal.relocation import RELOCATIONS_TOPIC

from .logs import LogView, Pipe
from .schedule import Party
from .setting import READERS_MS, Setting
from .sidecars import FETCH_MAX, Fetched
from .topology import SIDECAR

GRACE_S: Final = 5.0
"""Time on the readers' clocks between the last relocation and the trim. As in a real cluster, it is
longer than a former leader tells an end of the past (`setting.RELOCATIONS_PAST_MS`)."""
COPIERS: Final = (1, 2, 2)
"""How many there are."""
SHARES: Final = (0.5, 1.0)
"""Share of the head that a run copies at most."""
APART_MS: Final = (20, 300)
"""Least and most time between two runs of a copier."""
STEP_MS: Final = (1, 4)
"""Least and most time that a question takes."""
STANDS_SHARE: Final = 0.01
"""Share of the steps behind which a run stands still for a while."""
STANDS_MS: Final = (50, 700)
"""Least and most time for which it does."""
KILLED: Final = (0.0, 0.0, 0.005, 0.02, 0.05)
"""Share of the steps behind which a run is killed, drawn for each run."""


class _KilledError(BaseException):
    """The process of a run was killed; no code of it may go on."""


class _Thread(threading.Thread):
    """A run that hands over to the scheduler where it waits."""

    def __init__(self, work: Callable[[], None]) -> None:
        """Begins nothing before `resume`."""
        super().__init__(daemon=True)
        self.wait_ms = 0
        """For how long it waits now."""
        self.is_over = False
        self.error: BaseException | None = None
        self._work, self._killed = work, False
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self.start()

    def run(self) -> None:
        """Works, once it is its turn."""
        self._go.acquire()
        try:
            if not self._killed:
                self._work()
        except _KilledError:
            pass  # What it had in its memory is gone.
        except BaseException as error:  # noqa: BLE001  # the scheduler's thread raises it
            self.error = error
        self.is_over = True
        self._back.release()

    def resume(self) -> None:
        """Lets it run up to its next wait, or its end."""
        self._go.release()
        self._back.acquire()
        if self.is_over:
            self.join()

    def wait(self, for_ms: int) -> None:
        """Hands over for so long. Called by the run itself."""
        if not self._killed:
            self.wait_ms = for_ms
            self._back.release()
            self._go.acquire()
        if self._killed:
            raise _KilledError

    def kill(self) -> None:
        """Ends it where it stands."""
        self._killed = True
        if not self.is_over:
            self.resume()


class _Clock:
    """The module `time` of the shell."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def monotonic(self) -> float:
        """Returns the time on the readers' clocks."""
        return self._setting.readers_s

    def sleep(self, seconds: float) -> None:
        """Lets the others go on for so long."""
        cast(_Thread, threading.current_thread()).wait(round(seconds * READERS_MS))


class _Chance:
    """The module `secrets` of the shell."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw

    def token_bytes(self, count: int) -> bytes:
        """Returns bytes that nobody else has."""
        return self._draw.randbytes(count)


class Copier(Party):
    """Who runs the command, again and again, in a process of its own each time."""

    def __init__(self, setting: Setting, name: str) -> None:
        """Begins its first run some time later."""
        super().__init__(setting.scheduler, name)
        assert setting.compactions is not None
        self.draw = setting.compactions
        self._setting = setting
        self._run: _Thread | None = None
        self._killed_share = 0.0
        self._is_last = False
        """Whether its present run is the last: it began when all late appends had landed."""
        self.done = False
        self._plan_next()

    def settle(self) -> None:
        """Lets the present run come to its end."""
        self._killed_share = 0.0

    def close(self) -> None:
        """Ends the thread of a run that is not over."""
        if self._run is not None:
            self._run.kill()

    def step(self) -> None:
        """Hands over, as a question or a wait of a run does. Called by the run itself."""
        draw = self.draw
        stands = self._setting.faults.on and draw.random() < STANDS_SHARE
        self.wait(draw.randint(*(STANDS_MS if stands else STEP_MS)))

    def wait(self, for_ms: int) -> None:
        """Hands over for so long. Called by the run itself."""
        assert self._run is not None
        self._run.wait(for_ms)

    def _plan_next(self) -> None:
        self._run = None
        self.later(self.draw.randint(*APART_MS), self._begin)

    def _begin(self) -> None:
        setting = self._setting
        setting.note(self.name, "begins to compact")
        setting.history.counts["compactions begun"] += 1
        self._killed_share = self.draw.choice(KILLED) if setting.faults.on else 0.0
        self._is_last = setting.history.settled_ms is not None
        self._run = _Thread(self._compact)
        self._go_on()

    def _go_on(self) -> None:
        run, counts = self._run, self._setting.history.counts
        assert run is not None
        if self.draw.random() < self._killed_share:
            self._setting.note(self.name, "is killed")
            counts["compactions killed"] += 1
            self.die()
            run.kill()
            self.alive = True
        else:
            run.resume()
        if not run.is_over:
            self.later(run.wait_ms, self._go_on)
            return
        if isinstance(run.error, LogtxError):
            self._setting.note(self.name, "fails:", run.error)
            counts["compactions that failed"] += 1
        elif run.error is not None:
            raise run.error
        self.done = self._is_last
        if not self.done:
            self._plan_next()

    def _compact(self) -> None:
        # As `logtx sidecar compact` does.
        setting = self._setting
        log = cast(Log, _CopierLog(setting, self))
        seen = trimming.look_at(log, [SIDECAR], lambda warned: setting.note(self.name, warned))
        share = self.draw.choice(SHARES)
        planned = compacting.plan_partitions(log, seen, share=share, grace_s=GRACE_S)
        for each in planned:
            setting.note(self.name, "will compact", each.key, each.plan)
        if not any(each.plan.bound > each.plan.start for each in planned):
            return
        with closing(compacting.Copier(log, lambda told: setting.note(self.name, told))) as copier:
            copier.run(planned)
        setting.note(self.name, "has compacted")
        setting.history.counts["compactions to their end"] += 1
        setting.history.counts["ranges copied"] += sum(len(each.plan.copies) for each in planned)


class _CopierLog(LogView):
    """The log that a run asks. A former leader may tell its ends."""

    principal = ""

    def __init__(self, setting: Setting, copier: Copier) -> None:
        super().__init__(setting.broker)
        self._setting, self._copier = setting, copier

    def start_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the start of a partition."""
        self._copier.step()
        return super().start_offset(topic, partition, timeout_s=timeout_s)

    def end_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the end of a partition, as a broker tells it."""
        del timeout_s
        self._copier.step()
        error = self._unknown((topic, partition))
        if error is not None:
            raise error
        return self._setting.told_end(topic, partition)

    def each_start_offset(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | LogtxError]:
        """Returns the start of each partition, or why it is not told."""
        self._copier.step()
        start = super().start_offset
        return {key: self._unknown(key) or start(*key, timeout_s=timeout_s) for key in partitions}

    def each_end_offset(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | LogtxError]:
        """Returns the end of each partition as a broker tells it, or why it is not told."""
        del timeout_s
        self._copier.step()
        told = self._setting.told_end
        return {key: self._unknown(key) or told(*key) for key in partitions}

    def topic_info(self, topic: str, *, timeout_s: float = 10) -> TopicInfo:
        """Returns which topic has a name now."""
        self._copier.step()
        return super().topic_info(topic, timeout_s=timeout_s)

    def topic_infos(
        self, topics: Sequence[str], *, timeout_s: float = 10
    ) -> dict[str, TopicInfo | LogtxError]:
        """Returns which topics have these names now, with the partitions that a history uses."""
        self._copier.step()
        found: dict[str, TopicInfo | LogtxError] = {}
        for topic in topics:
            found[topic] = UnknownTopicError(f"topic {topic!r} does not exist")
            if topic in self._broker.topics:
                info = LogView.topic_info(self, topic, timeout_s=timeout_s)
                count = min(info.partition_count, self._setting.partition_max)
                found[topic] = replace(info, partition_count=count)
        return found

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float = 10) -> dict[str, str]:
        """Returns the ids of those topics that exist."""
        self._copier.step()
        return super().topic_ids(topics, timeout_s=timeout_s)

    def create_topic(
        self, topic: str, *, partitions: int, replication_factor: int, settings: Mapping[str, str]
    ) -> None:
        """Creates a topic if it is missing."""
        del replication_factor, settings
        self._copier.step()
        self._setting.topology.create(topic, partitions)

    def delete_records(
        self, topic: str, partition: int, before_offset: int, *, timeout_s: float = 10
    ) -> None:
        """Trims a partition. Who asked may be killed before it hears of it."""
        del timeout_s
        self._copier.step()
        self._setting.broker.trim_data((topic, partition), before_offset)
        self._setting.history.counts["sidecars trimmed by compactions"] += 1
        self._copier.step()

    def consumer(self, config: object) -> Any:
        """Returns a reader of one partition."""
        del config
        return _Reader(self._setting, self._copier)

    def producer(self, config: object) -> Any:
        """Returns a producer."""
        del config
        return _Producer(self._setting, self._copier)


class _Reader:
    """The part of a `LogConsumer` that `read_batches` calls. Each poll is a step."""

    def __init__(self, setting: Setting, copier: Copier) -> None:
        self._setting, self._copier = setting, copier
        self._key, self._next = ("", 0), 0

    def assign(self, partitions: Collection[KafkaPartition]) -> None:
        """Reads this partition from this offset on."""
        [assigned] = partitions
        self._key, self._next = (assigned.topic, assigned.partition), assigned.offset

    def poll(self, timeout: float = -1) -> Any:
        """Returns the next record, or that it is trimmed."""
        del timeout
        self._copier.step()
        broker = self._setting.broker
        if self._next < broker.data_starts.get(self._key, 0):
            return Fetched(self._key, None, KafkaError._AUTO_OFFSET_RESET)
        [found] = self.consume(1)  # All up to an end that was told is there.
        return found

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Returns the next records that are there, a few at a time."""
        del timeout
        log = self._setting.broker.log_of(self._key)
        records = log[self._next : self._next + min(num_messages, FETCH_MAX)]
        self._next += len(records)
        return [Fetched(self._key, record) for record in records]

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


class _Acknowledged:
    """A record as a delivery report names it."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        """Where it lies."""
        return self._offset


class _Producer:
    """The part of a `LogProducer` that a run calls. Its appends have the faults of all others."""

    def __init__(self, setting: Setting, copier: Copier) -> None:
        self._setting, self._copier = setting, copier
        self._pipes: dict[TopicPartition, Pipe] = {}
        self._left = 0
        self._told: list[Callable[[], None]] = []

    def __len__(self) -> int:
        """Returns the number of records without a report."""
        return self._left

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        *,
        on_delivery: Callable[[KafkaError | None, Any], None],
        timestamp: int = 0,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
    ) -> None:
        """Sends a record."""
        del timestamp
        setting, place = self._setting, (topic, partition)
        self._copier.step()
        writer, handed_at = self._copier.name_in_life, setting.history.tick()

        def land() -> int | None:
            if topic == RELOCATIONS_TOPIC:
                assert key is not None
                return setting.broker.append_relocation(key, value, writer, handed_at)
            return setting.broker.append_data(place, list(headers or ()), value, writer, handed_at)

        def acknowledged(offset: int | None) -> None:
            self._told.append(lambda: report(offset))

        def report(offset: int | None) -> None:
            self._left -= 1
            if offset is None:
                on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), None)
            else:
                on_delivery(None, _Acknowledged(offset))

        self._left += 1
        if place not in self._pipes:
            self._pipes[place] = setting.pipe(self._copier, "data append")
        self._pipes[place].append(land, acknowledged)

    def poll(self, timeout: float = -1) -> int:
        """Serves reports that came."""
        del timeout
        told, self._told = self._told, []
        for report in told:
            report()
        return len(told)

    def flush(self, timeout: float = -1) -> int:
        """Waits until all is acknowledged, or given up."""
        del timeout
        while self._left:
            self._copier.step()
            self.poll()
        return 0

    def purge(self) -> None:
        """Does nothing: what is on its way is on its way."""

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


def begin(setting: Setting) -> list[Copier]:
    """Returns the copiers of a history, each with its first run planned."""
    if setting.compactions is None:
        return []
    return [Copier(setting, f"copier{n}") for n in range(setting.compactions.choice(COPIERS))]


def modules(setting: Setting) -> tuple[tuple[ModuleType, str, Any], ...]:
    """Returns what stands in the shell for modules that a history must not use."""
    if setting.compactions is None:
        return ()
    draw = setting.compactions
    return (compacting, "time", _Clock(setting)), (compacting, "secrets", _Chance(draw))
