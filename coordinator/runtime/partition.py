"""One journal partition of a coordinator: a hot standby, until it is its turn to own it.

    LOADING → STANDBY ⇄ BIDDING → SERVING → (GIVING) → STANDBY

`Tenure` has the rules of serving; here are the log, the clock and the tasks. One task alone moves
the partition from state to state; what others want of it (another owner that gives it away, a
planned move, a surprise) are requests to that task. How the partition is won: `candidate.py`.

Source: seed 001, "Transaction coordinator"; seed 000, "TC Startup".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException

from ..journal.control import TopicPartition
from ..journal.errors import (
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    JournalError,
    JournalTopicError,
    LogtxError,
    NotCoordinatorError,
)
from ..journal.reader import JOURNAL_TOPIC
from ..journal.records import Owner
from . import commands as c
from .appender import Appender
from .balance import Member
from .candidate import LOOK_S, Candidate
from .decision import Instant, ShardConfig
from .housekeeping import Housekeeping
from .loading import load, lost_tail
from .offsets_log import OffsetsKey
from .replica import Replica
from .shard import Shard
from .shell import Answer, LogShell, Services
from .tail import Batch
from .tenure import Tenure
from .vital import vital

_LOG = logging.getLogger(__name__)

LOAD_TIMEOUT_S: Final = 300.0
SETTLE_TIMEOUT_S: Final = 2.0
"""How long a planned move waits for what is in flight; past it the journal is not well."""
PUBLISH_BEFORE_S: Final = 0.1
"""How long a receiver makes the giver wait until clients can find it."""
TICK_S: Final = 0.05
STILL_S: Final = 0.4
"""Between two looks at the clock, so much more than `TICK_S` is a pause in which others may have
given this process up."""
CLEARED_MAX: Final = 500
"""Offsets records of former owners that are removed at a stretch."""
DOUBT_S: Final = 2.0
LASTING_S: Final = 5.0
"""A tenure that lasted so long was not one of a duel."""


class Serving(Enum):
    """What a coordinator is to a journal partition."""

    LOADING = auto()
    """It does not know the journal yet."""
    STANDBY = auto()
    """It follows the journal closely, and could serve at once."""
    BIDDING = auto()
    SERVING = auto()
    GIVING = auto()
    """It decides nothing any more, and another is about to take over."""
    FAILED = auto()
    """The journal can't be read; see `PartitionRuntime.failure`."""
    STOPPED = auto()


@dataclass(slots=True)
class _Serving:
    """One tenure and what belongs to it."""

    tenure: Tenure
    shell: LogShell
    housekeeping: Housekeeping
    began_s: float
    over: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    seen_s: float = field(default_factory=time.monotonic)
    """When this process was known not to stand still."""
    doubt_s: float = 0.0
    """When to look whether it still is the owner, if it appended nothing since."""
    looked_at: int = -1
    """The next offset at the last look."""
    kept: list[Answer] = field(default_factory=list)
    """Whoever asked while the partition was being given away."""


class PartitionRuntime:
    """One coordinator's part in one journal partition; lives on its event loop."""

    def __init__(self, partition: int, services: Services, config: ShardConfig) -> None:
        """Nothing happens before `start`."""
        self.partition = partition
        self.status = Serving.LOADING
        self.failure: LogtxError | None = None
        self._services = services
        self._config = config
        self._candidate = Candidate(partition, services, serve=self._serve, ask=self._ask)
        self._serving: _Serving | None = None
        self._acknowledged_end = 0
        """Of earlier tenures."""
        self._truncated: int | None = None
        """End of the journal before the broker lost its tail, once that was seen."""
        self._run_task: asyncio.Task[None] | None = None
        self._questions: set[asyncio.Task[None]] = set()

    # ---- what clients ask ------------------------------------------------------------------

    @property
    def shard(self) -> Shard:
        """What is known of the partition; empty while nothing is."""
        if self._serving is not None:
            return self._serving.tenure.shard
        return self._candidate.shard or Shard(self.partition, self._config)

    @property
    def tenure(self) -> Tenure | None:
        """By which this coordinator serves the partition; None while it does not."""
        return self._serving.tenure if self._serving is not None else None

    def submit(self, command: c.Command, answer: Answer) -> None:
        """Decide a command now; `answer` gets the reply when it may be told."""
        serving = self._serving
        if serving is None:
            answer(self._refusal())
        elif serving.tenure.settling:
            # Told only when another serves: sent away at once, it would find nobody.
            serving.kept.append(answer)
        else:
            self._notice_time()
            serving.tenure.submit(command, answer, _now())

    def marker_backlog(self, partition: TopicPartition) -> int:
        """Markers of this journal partition that a data partition has not taken."""
        return self._services.markers.backlog(self.partition, partition)

    def offsets_backlog(self, group: str) -> int:
        """Commits of a consumer group whose IOV is not written yet."""
        shard = self.shard
        key = OffsetsKey(group, self.partition, shard.incarnation, shard.epoch)
        return self._services.offsets.backlog(key)

    async def room(self) -> None:
        """Wait while the journal has more to acknowledge than a client may add to."""
        if self._serving is not None:
            await self._serving.shell.pressure.room()

    def attach(self, producer_id: str) -> None:
        """A producer's stream is connected."""
        if self._serving is not None:
            self._serving.tenure.attach(producer_id)

    def detach(self, producer_id: str, nonce: int) -> None:
        """A producer's stream broke."""
        if self._serving is not None:
            self._serving.tenure.detach(producer_id, nonce, _now())

    def forget(self, answers: list[Answer]) -> None:
        """Nobody waits for these answers any more."""
        if self._serving is not None:
            self._serving.tenure.forget(answers)

    def tick(self) -> None:
        """Do what time has made due; called every `TICK_S`."""
        serving = self._serving
        if serving is None:
            return
        self._notice_time()
        serving.tenure.tick(_now())
        now_s = time.monotonic()
        if now_s >= serving.doubt_s:
            # Whoever appends learns of a successor from that; an idle owner would never.
            serving.doubt_s = now_s + DOUBT_S
            if serving.looked_at == self.shard.next_offset:
                self.doubt()
            serving.looked_at = self.shard.next_offset

    def _notice_time(self) -> None:
        """See to it that a process that stood still does not go on as if it were the owner."""
        now_s, serving = time.monotonic(), self._serving
        if serving is None:
            return
        if now_s - serving.seen_s > STILL_S:
            _LOG.info("stood_still partition=%d", self.partition)
            serving.tenure.pause()
        serving.seen_s = now_s

    def _refusal(self) -> LogtxError:
        if self.failure is not None:
            return self.failure
        owner = self.owner
        if owner is None or self._candidate.is_gone(time.monotonic()):
            return CoordinatorLoadingError(f"journal partition {self.partition} is being loaded")
        return NotCoordinatorError(
            f"journal partition {self.partition} is served by {owner.address}", hint=owner.address
        )

    # ---- what the coordinator asks ---------------------------------------------------------

    @property
    def owner(self) -> Owner | None:
        """Whose OWNER record is the current one, as far as is known here."""
        return self.shard.owner

    @property
    def epoch(self) -> int:
        """The current epoch, as far as is known here."""
        return self.shard.epoch

    @property
    def known_end(self) -> int:
        """Offset below which everything was seen to be durable, by this coordinator itself."""
        tenure = self.tenure
        now = tenure.acknowledged_end if tenure is not None else 0
        return max(now, self._acknowledged_end, self._candidate.read_end)

    @property
    def is_ready(self) -> bool:
        """Whether it could serve at once, though another does."""
        candidate = self._candidate
        return self.status is Serving.STANDBY and candidate.is_current and candidate.journal.is_warm

    def start(self) -> None:
        """Follow the journal, and serve when it is this coordinator's turn."""
        self._run_task = vital(self._run(), f"partition-{self.partition}")

    async def stop(self) -> None:
        """Stop serving. What is open lives on in the journal, for the next owner."""
        self._end_tenure(NotCoordinatorError("this coordinator is shutting down"))
        self._candidate.refuse("the coordinator is shutting down")
        self.status = Serving.STOPPED
        tasks = [t for t in (self._run_task, *self._questions) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._candidate.close()

    def leave(self) -> None:
        """Bid for nothing any more; what is served is still to be given away."""
        self._candidate.leaving = True

    def wake(self) -> None:
        """What is known of other coordinators has changed."""
        self._candidate.wake()

    def doubt(self) -> None:
        """Another coordinator says that it owns the partition: ask the journal."""
        if self._serving is not None and not self._serving.tenure.settling:
            self._serving.tenure.doubt()

    def feed(self, batch: Batch) -> None:
        """What the tail has read."""
        self._candidate.feed(batch)

    async def take_over(self, epoch: int, end: int) -> str:
        """The owner gives the partition to this coordinator; why it is not served, or ""."""
        if self.status is not Serving.STANDBY:
            return f"it is {self.status.name.lower()} here"
        reason = await self._candidate.take_over(epoch, end)
        if not reason and self._serving is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(PUBLISH_BEFORE_S):
                    await self._serving.housekeeping.published.wait()
        return reason

    async def give(self, receiver: Member, ask: Callable[[int, int], Awaitable[None]]) -> bool:
        """Give the partition to another coordinator; False if it could not be.

        Args:
            receiver: to whom.
            ask: asks it to replace an epoch at the journal's end; returns when it serves, or
                raises `CoordinatorNotAvailableError`.
        """
        serving = self._serving
        if serving is None or serving.tenure.settling:
            return False
        self.status = Serving.GIVING
        serving.tenure.settle()
        try:
            return await self._give(serving, receiver, ask)
        except BaseException:
            # Cancelled, or a bug. A tenure left settled would let its clients wait for ever.
            if self._serving is serving:
                self._end_given("")
            raise

    async def _give(
        self,
        serving: _Serving,
        receiver: Member,
        ask: Callable[[int, int], Awaitable[None]],
    ) -> bool:
        started_s, tenure = time.monotonic(), serving.tenure
        if tenure.in_flight:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_TIMEOUT_S):
                    await serving.settled.wait()
        if tenure.over or self._serving is not serving:
            return False
        if tenure.in_flight:
            self._surprised(tenure, f"nothing was acknowledged for {SETTLE_TIMEOUT_S} s")
            return False
        hint = ""
        try:
            await ask(tenure.shard.epoch, tenure.shard.next_offset)
            hint = receiver.address
            # Its OWNER record is still to be read here; until then the partition seems orphaned.
            self._candidate.hold_back(seconds=LOOK_S)
        except CoordinatorNotAvailableError as error:
            _LOG.warning("give_failed partition=%d error=%s", self.partition, error)
        if self._serving is not serving:
            return False
        if hint:
            _LOG.info(
                "partition_given partition=%d epoch=%d to=%s stalled_ms=%d",
                self.partition, tenure.shard.epoch, hint, (time.monotonic() - started_s) * 1000,
            )  # fmt: skip
        self._end_given(hint)
        return bool(hint)

    def _end_given(self, hint: str) -> None:
        """End a settled tenure, and follow whoever goes on; `hint` is its address, if known."""
        assert self._serving is not None
        tenure = self._serving.tenure
        if tenure.in_flight:
            # The shard is ahead of the journal, and may stay so: it can't be followed from there.
            self._surprised(tenure, "it was not given away in time")
            return
        self._end_tenure(
            NotCoordinatorError(
                f"journal partition {self.partition} was given to another coordinator", hint=hint
            )
        )
        self._follow(Replica.of(tenure.shard))

    # ---- from state to state ---------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                if self._candidate.shard is None:
                    await self._load()
                self.status = Serving.STANDBY
                await self._candidate.turn()
                self.status = Serving.BIDDING
                if await self._candidate.bid():
                    assert self._serving is not None
                    housekeeping = vital(self._serving.housekeeping.run(), "housekeeping")
                    try:
                        await self._serving.over.wait()
                    finally:
                        housekeeping.cancel()
            except (JournalError, JournalTopicError) as error:
                _LOG.error("partition_failed partition=%d error=%s", self.partition, error)
                self._candidate.let_go()
                self.status, self.failure = Serving.FAILED, error
                self._services.changed()
                return
            except (LogtxError, KafkaException) as error:
                # An unknown topic too: brokers say so for a moment while their metadata changes.
                # And what librdkafka raises by itself, such as for want of file handles.
                _LOG.warning("not_served partition=%d error=%s", self.partition, error)
                await asyncio.sleep(self._candidate.hold_back())

    async def _load(self) -> None:
        self.status = Serving.LOADING
        started_s, loop = time.monotonic(), asyncio.get_running_loop()
        replica = await loop.run_in_executor(self._services.loading, self._read_journal)
        loaded_s = time.monotonic() - started_s
        self._services.counters.loaded(self.partition, loaded_s)
        _LOG.info(
            "partition_loaded partition=%d next_offset=%d loaded_ms=%d",
            self.partition, replica.next_offset, loaded_s * 1000,
        )  # fmt: skip
        self._follow(replica)

    def _read_journal(self) -> Replica:
        """Everything up to the journal's end; runs in a thread."""
        if self._truncated is not None:
            raise lost_tail(self.partition, self._truncated)
        replica = load(
            self._services.log,
            self.partition,
            self._config,
            timeout_s=LOAD_TIMEOUT_S,
            acknowledged_end=max(self.known_end, self._services.members.known_end(self.partition)),
        )
        self._check_partition_count(replica.shard.owner)
        return replica

    def _check_partition_count(self, owner: Owner | None) -> None:
        # Names are hashed to partitions by their count: with another, every transaction group
        # would have a new home that knows nothing of it.
        count = self._services.partition_count
        if owner is not None and owner.partition_count not in (0, count):
            raise JournalTopicError(
                f"topic {JOURNAL_TOPIC} has {count} partitions, but was served with"
                f" {owner.partition_count}, and their number must never change; nothing was"
                f" written. Copy the first {owner.partition_count} into a topic of that many"
                f" (kafka-topics.sh can't remove partitions) and start again"
            )

    def _follow(self, replica: Replica) -> None:
        self.status = Serving.STANDBY
        self._candidate.follow(replica)

    # ---- serving ---------------------------------------------------------------------------

    def _serve(self, shard: Shard) -> None:
        shard.topics = self._services.topics
        shell = LogShell(
            self.partition,
            self._services,
            self._candidate.journal,
            ask=self._ask,
            acknowledged=partial(self._acknowledged, self._candidate.journal),
            surprised=self._surprised,
        )
        tenure = shell.tenure = Tenure(shard, shell)
        services = self._services
        housekeeping = Housekeeping(
            services.log,
            tenure,
            services.address,
            services.housekeeping,
            reading=services.reading,
            questions=services.questions,
        )
        self._serving = _Serving(tenure, shell, housekeeping, time.monotonic())
        self.status = Serving.SERVING
        tenure.begin(_now())
        self._services.changed()
        self._ask(self._clear_offsets(tenure))

    async def _clear_offsets(self, tenure: Tenure) -> None:
        """Remove what earlier owners wrote of the offsets, by and by."""
        shard, cleared = tenure.shard, 0
        for group in shard.offsets.groups():
            for epoch in shard.past_epochs:
                if tenure.over:
                    return
                key = OffsetsKey(group, self.partition, shard.incarnation, epoch)
                self._services.offsets.clear(key)
                cleared += 1
                if cleared % CLEARED_MAX == 0:
                    await asyncio.sleep(TICK_S)

    def _acknowledged(self, journal: Appender, durable: bool) -> None:
        if not durable:
            self._candidate.doubt_journal(journal)
        serving = self._serving
        if serving is not None and serving.tenure.settling and not serving.tenure.in_flight:
            serving.settled.set()

    def _surprised(self, tenure: Tenure, why: str) -> None:
        """A tenure ended by itself: load again, and win a new epoch if nobody else did."""
        _LOG.warning("surprise partition=%d epoch=%d: %s", self.partition, tenure.shard.epoch, why)
        self._services.counters.surprises[self.partition] += 1
        if tenure.truncated_at is not None:
            self._truncated = tenure.truncated_at
        serving = self._serving
        lasted = serving is not None and time.monotonic() - serving.began_s > LASTING_S
        self._candidate.hold_back(anew=lasted)
        self.status = Serving.LOADING
        self._end_tenure(
            CoordinatorLoadingError(f"journal partition {self.partition} is loaded again")
        )
        self._services.changed()

    def _end_tenure(self, error: LogtxError) -> None:
        serving, self._serving = self._serving, None
        if serving is None:
            return
        self._acknowledged_end = max(self._acknowledged_end, serving.tenure.acknowledged_end)
        serving.tenure.end(error)
        serving.shell.pressure.end()
        for answer in serving.kept:
            answer(error)
        self._services.markers.forget(self.partition)
        self._services.offsets.forget(self.partition)
        self._services.close_sessions(self.partition, error)
        serving.over.set()
        serving.settled.set()

    def _ask(self, question: Coroutine[Any, Any, None]) -> None:
        """Let a question to the log be asked, until the partition is stopped."""
        task = vital(question, f"question-{self.partition}")
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)


def _now() -> Instant:
    return Instant(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)
