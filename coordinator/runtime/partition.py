"""One journal partition of a coordinator: a hot standby until it is its turn to own it.

    LOADING → STANDBY ⇄ BIDDING → SERVING → (GIVING) → STANDBY

`Tenure` has the rules of serving, `Serving` connects a tenure to the world, and `candidate.py` says
how the partition is won. A single task moves it from role to role. Others (an owner that gives the
partition to this coordinator, a planned move) send requests to that task.

Source: Transactional Messaging in Kafka, "Transaction coordinator"; PIP-31, "TC Startup".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Final

from confluent_kafka import KafkaException

from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import (
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    JournalError,
    JournalTopicError,
    LogtxError,
    NotCoordinatorError,
)
from ...journal.places import PartitionId
from ...journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC
from ...journal.records.types import Owner
from ..core.decision import ShardConfig
from ..core.handing import Known
from ..core.offsets_lanes import OffsetsKey
from ..core.replica import Replica
from ..core.shard import Shard
from ..core.sidecars import sidecars_among
from ..core.tenure import Tenure
from ..core.topic_homes import unwritten
from ..membership.balance import Member
from ..protocol import commands
from ..tasks import essential_task
from .candidate import LOOK_S, Candidate, Refusal, Won
from .loading import load, lost_tail
from .services import Services
from .serving import Answer, Serving
from .tail import Batch

_LOG = logging.getLogger(__name__)

LOAD_TIMEOUT_S: Final = 300.0
"""Bound of loading a journal partition, however long it is; past it loading starts again. A
smaller one could never load a long journal."""
PUBLISH_BEFORE_S: Final = 0.1
"""How long a receiver waits until clients can find it, before it tells the giver that it serves.
The giver's clients wait meanwhile; with a shorter one, clients may still look up the giver."""
FAILED_PAUSE_S: Final = 60.0
"""Pause before a journal partition that could not be read is loaded again: a leader that slept, or
a copy that was restored, is noticed without a restart. A shorter one reads a long journal again and
again."""
DRAIN_S: Final = 1.0
"""How long commits wait, once, until markers are written in a partition that is to be handed over.
With a shorter time a busy partition may never be: some marker is always on its way there."""
DRAIN_LOOK_S: Final = 0.005
"""Pause between two looks whether they are."""
DRAIN_AGAIN_S: Final = 30.0
"""How long commits don't wait again where they waited in vain: its markers may wait for ever. A
shorter time delays such commits more often."""
TICK_S: Final = 0.05
"""Pause between two calls of `PartitionRuntime.tick`: a timeout is noticed up to this much late."""


class Role(Enum):
    """What a coordinator is to a journal partition."""

    LOADING = auto()
    """It does not know the journal yet."""
    STANDBY = auto()
    """It follows the journal, so that it can serve at once."""
    BIDDING = auto()
    SERVING = auto()
    GIVING = auto()
    """It no longer decides anything, and another coordinator is about to take over."""
    FAILED = auto()
    """The journal can't be read; see `PartitionRuntime.failure`."""
    STOPPED = auto()


class PartitionRuntime:
    """One coordinator's part in one journal partition; lives on its event loop."""

    def __init__(self, partition: int, services: Services, config: ShardConfig) -> None:
        """Does nothing before `start`.

        Args:
            partition: number of the journal partition.
            services: what the coordinator's partitions share.
            config: limits of the shard.
        """
        self.partition = partition
        self.role = Role.LOADING
        self.failure: LogtxError | None = None
        """Why the journal can't be read, while the role is FAILED."""
        self._services = services
        self._config = config
        self._candidate = Candidate(partition, services, ask=self._ask)
        self._serving: Serving | None = None
        """The latest serving; `_live` is None once its tenure is over."""
        self._acknowledged_end = 0
        """Everything below this offset was durable when the latest tenure began."""
        self._truncated: int | None = None
        """End of the journal before the broker lost its tail; None: no loss was seen."""
        self._undrained: dict[TopicPartition, float] = {}
        """Data partition → monotonic time until which commits there wait for no markers."""
        self._run_task: asyncio.Task[None] | None = None
        self._questions: set[asyncio.Task[None]] = set()

    # ---- what clients ask -----------------------------------------------------------------------

    @property
    def _live(self) -> Serving | None:
        serving = self._serving
        return serving if serving is not None and not serving.tenure.over else None

    @property
    def shard(self) -> Shard:
        """What this coordinator knows about the partition; empty while it knows nothing."""
        if (serving := self._live) is not None:
            return serving.tenure.shard
        return self._candidate.shard or Shard(self.partition, self._config)

    @property
    def known(self) -> Known | None:
        """What the other journal partitions may know of this one; None while nothing is known."""
        if (serving := self._live) is not None:
            return Known(serving.tenure.shard, serving.tenure)
        shard = self._candidate.shard
        return None if shard is None or self._candidate.failure is not None else Known(shard, None)

    @property
    def tenure(self) -> Tenure | None:
        """The current tenure; None while this coordinator does not serve the partition."""
        return serving.tenure if (serving := self._live) is not None else None

    def submit(
        self, command: commands.Command, answer: Answer, doubt: LogtxError | None = None
    ) -> None:
        """Decides a command now. Calls `answer` with the reply when the client may be told.

        `doubt` says why a command can't be decided that names its data topics; None if it can.
        """
        serving = self._live
        if serving is None:
            answer(self._refusal())
        else:
            serving.submit(command, answer, doubt)

    @property
    def marks_any(self) -> bool:
        """Whether any data partition lacks markers; False is certain."""
        return self._services.markers.lanes.has_lanes

    def marker_backlog(self, partition: TopicPartition) -> int:
        """Returns the number of this journal partition's markers that a data partition lacks."""
        return self._services.markers.lanes.backlog(self.partition, partition)

    def unwritten(self, partitions: Iterable[TopicPartition]) -> Collection[str]:
        """Returns the topics among some partitions' to which a commit here writes no markers, or
        would not if it was certain which topic has the name."""
        serving = self._live
        homes = self._services.handing.homes
        if serving is None or not (homes or serving.tenure.shard.modes.places_any):
            return ()
        modes, known = serving.tenure.shard.modes, self._services.look_ups.known
        return unwritten(partitions, self.partition, modes, homes, known)

    def sidecars(self, command: commands.End) -> Collection[TopicPartition]:
        """Returns the sidecar partitions with records that a commit names, itself or in parts."""
        return sidecars_among(command.writes, self._parts(command))

    def _parts(self, command: commands.End) -> Mapping[TopicPartition, Sequence[BranchRange]]:
        """Returns what the parts of a commit have named."""
        serving = self._live
        if serving is None:
            return {}
        transaction = serving.tenure.shard.transactions.get(command.txid.offset)
        return {} if transaction is None else transaction.branches

    @property
    def placing_count(self) -> int:
        """Number of transactions that are decided and not finished, and placed somewhere: no data
        partition has a longer backlog of places."""
        serving = self._live
        return 0 if serving is None else serving.tenure.shard.places.unfinished_count

    async def drain(self, command: commands.End) -> None:
        """Waits, for a bounded time, until a commit may be handed over wherever that is done.

        Nothing is handed over beside a marker on its way (A4). In a busy partition there always is
        one, until commits wait for a moment.
        """
        if not self._services.handing.homes:
            return  # Asked for each commit, and in most clusters nothing is handed over.
        until_s = time.monotonic() + DRAIN_S
        partitions = [*command.writes, *self._parts(command)]
        while (serving := self._live) is not None:
            now_s = time.monotonic()
            asked = partitions
            if self._undrained:
                asked = [key for key in partitions if self._undrained.get(key, 0.0) <= now_s]
            if not serving.tenure.shard.is_beside_markers(asked, self._services.topics):
                return
            if now_s >= until_s:
                left = {k: at for k, at in self._undrained.items() if at > now_s}
                self._undrained = left | dict.fromkeys(asked, now_s + DRAIN_AGAIN_S)
                return
            await asyncio.sleep(DRAIN_LOOK_S)

    def places_backlog(self, partition: TopicPartition) -> int:
        """Returns the number of decided transactions that have no place in a data partition."""
        serving, facts = self._live, self._services.topics.get(partition[0])
        if serving is None or facts is None:
            return 0
        unplaced = serving.tenure.shard.places.unplaced
        return len(unplaced.of(PartitionId(*partition, facts.topic_id)))

    def places_waited_s(self, now_s: float) -> float:
        """Returns how long the first decision without all its places has waited, in seconds."""
        serving = self._live
        return 0.0 if serving is None else serving.place_clock.longest_s(now_s)

    def offsets_backlog(self, group: str) -> int:
        """Returns the number of commits of a consumer group whose IOV is not durable yet."""
        shard = self.shard
        key = OffsetsKey(group, self.partition, shard.incarnation, shard.epoch)
        return self._services.offsets.backlog(key)

    async def room(self) -> None:
        """Waits while too many appends to the journal lack their acknowledgement."""
        if (serving := self._live) is not None:
            await serving.pressure.room()

    def attach(self, producer_id: str) -> None:
        """Tells the tenure that a producer's stream is connected."""
        if (serving := self._live) is not None:
            serving.tenure.attach(producer_id)

    def has_offsets(self, group: str) -> bool:
        """Returns whether offsets of a consumer group are kept here."""
        return (serving := self._live) is not None and serving.tenure.shard.offsets.knows(group)

    def detach(self, producer_id: str, nonce: int) -> None:
        """Tells the tenure that a producer's stream broke."""
        if (serving := self._live) is not None:
            serving.detach(producer_id, nonce)

    def has_subscription(self, group: str) -> bool:
        """Returns whether a subscription of this name is kept here."""
        return (serving := self._live) is not None and group in (
            serving.tenure.shard.queues.subscriptions
        )

    def consumer_gone(self, group: str, consumer: int) -> None:
        """Tells the tenure that the stream of a queue's consumer broke."""
        if (serving := self._live) is not None:
            serving.consumer_gone(group, consumer)

    def forget(self, answers: list[Answer]) -> None:
        """Drops replies whose client has gone."""
        if (serving := self._live) is not None:
            serving.tenure.forget(answers)

    def tick(self) -> None:
        """Does what has become due with time; called every `TICK_S`."""
        if (serving := self._live) is not None:
            serving.tick()

    def _refusal(self) -> LogtxError:
        if self.failure is not None:
            return self.failure
        owner = self.owner
        if owner is None or self._candidate.is_gone(time.monotonic()):
            return CoordinatorLoadingError(f"journal partition {self.partition} is being loaded")
        return NotCoordinatorError(
            f"journal partition {self.partition} is served by {owner.address}", hint=owner.address
        )

    # ---- what the coordinator asks --------------------------------------------------------------

    @property
    def owner(self) -> Owner | None:
        """The current OWNER record, as far as this coordinator knows."""
        return self.shard.owner

    @property
    def epoch(self) -> int:
        """The current epoch, as far as this coordinator knows."""
        return self.shard.epoch

    @property
    def known_end(self) -> int:
        """Everything below this offset is durable, as far as this coordinator has seen."""
        latest = self._serving.tenure.acknowledged_end if self._serving is not None else 0
        return max(latest, self._acknowledged_end, self._candidate.read_end)

    @property
    def is_ready(self) -> bool:
        """Whether this coordinator could serve at once, though another one does."""
        candidate = self._candidate
        return self.role is Role.STANDBY and candidate.is_current and candidate.journal.is_warm

    def start(self) -> None:
        """Starts to follow the journal, and to serve when it is this coordinator's turn."""
        self._run_task = essential_task(self._run(), f"partition-{self.partition}")

    async def stop(self) -> None:
        """Stops serving. Open transactions live on in the journal, for the next owner."""
        if (serving := self._live) is not None:
            serving.end(NotCoordinatorError("this coordinator is shutting down"))
        self._candidate.refuse("the coordinator is shutting down")
        self.role = Role.STOPPED
        tasks = [t for t in (self._run_task, *self._questions) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._candidate.close()

    def leave(self) -> None:
        """Stops bidding. If the partition is served, it is still to be given away."""
        self._candidate.leaving = True

    def wake(self) -> None:
        """Makes the candidate look again, as what is known about other coordinators changed."""
        self._candidate.wake()

    def doubt(self) -> None:
        """Asks the journal who owns the partition, as another coordinator says that it does."""
        if (serving := self._live) is not None:
            serving.doubt()

    def feed(self, batch: Batch) -> None:
        """Takes what the tail has read."""
        self._candidate.feed(batch)
        self._services.handing.soon()

    # ---- planned moves --------------------------------------------------------------------------

    async def take_over(self, epoch: int, end: int) -> Refusal | None:
        """Accepts the partition from its owner.

        Args:
            epoch: epoch of the owner.
            end: the journal's end, at which the owner stopped deciding.

        Returns:
            The reason for refusing; None once the partition is served here.
        """
        if self.role is not Role.STANDBY:
            return f"it is {self.role.name.lower()} here"
        refusal = await self._candidate.take_over(epoch, end)
        if refusal is None and (serving := self._live) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(PUBLISH_BEFORE_S):
                    await serving.housekeeping.published.wait()
        return refusal

    async def give(self, receiver: Member, ask: Callable[[int, int], Awaitable[None]]) -> bool:
        """Gives the partition to another coordinator. Returns whether that coordinator serves it.

        Args:
            receiver: the other coordinator.
            ask: asks the receiver to take over, with the epoch to replace and the journal's end.
                Returns when the receiver serves, or raises `CoordinatorNotAvailableError`.
        """
        serving = self._live
        if serving is None or serving.tenure.quiescing:
            return False
        self.role = Role.GIVING
        try:
            return await serving.quiesce() and await self._give(serving, receiver, ask)
        except BaseException:
            # Cancelled, or a bug. If the tenure were left quiescing, its clients would wait for
            # ever.
            if not serving.tenure.over:
                self._end_given(serving, "")
            raise

    async def _give(
        self, serving: Serving, receiver: Member, ask: Callable[[int, int], Awaitable[None]]
    ) -> bool:
        started_s, tenure = time.monotonic(), serving.tenure
        hint = ""
        try:
            await ask(tenure.shard.epoch, tenure.shard.next_offset)
            hint = receiver.address
            # The receiver's OWNER record is not read here yet; until then the partition seems
            # orphaned.
            self._candidate.pause_bids(seconds=LOOK_S)
        except CoordinatorNotAvailableError as error:
            _LOG.warning("give_failed partition=%d error=%s", self.partition, error)
        if tenure.over:
            return False
        if hint:
            _LOG.info(
                "partition_given partition=%d epoch=%d to=%s stalled_ms=%d",
                self.partition, tenure.shard.epoch, hint, (time.monotonic() - started_s) * 1000,
            )  # fmt: skip
        self._end_given(serving, hint)
        return bool(hint)

    def _end_given(self, serving: Serving, hint: str) -> None:
        """Ends a quiet tenure and follows the next owner; `hint` is its address, or ""."""
        tenure = serving.tenure
        if tenure.in_flight:
            # The shard is ahead of the journal, perhaps for good: a replica can't start from it.
            serving.fail("it was not given away in time")
            return
        serving.end(
            NotCoordinatorError(
                f"journal partition {self.partition} was given to another coordinator", hint=hint
            )
        )
        self._follow(Replica.of(tenure.shard))

    # ---- from role to role ----------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                if self._candidate.shard is None:
                    await self._load()
                self.role = Role.STANDBY
                await self._candidate.turn()
                self.role = Role.BIDDING
                won = await self._candidate.bid()
                if won is not None:
                    await self._serve(won)
            except (JournalError, JournalTopicError) as error:
                _LOG.error("partition_failed partition=%d error=%s", self.partition, error)
                self._candidate.unfollow()
                self.role, self.failure = Role.FAILED, error
                self._services.membership_changed()
                if isinstance(error, JournalTopicError):
                    return
                await asyncio.sleep(FAILED_PAUSE_S)
            except (LogtxError, KafkaException) as error:
                # This includes an unknown topic: brokers report one for a moment while their
                # metadata changes. It also includes what librdkafka itself raises, for example
                # when there are no file handles left.
                _LOG.warning("not_served partition=%d error=%s", self.partition, error)
                await asyncio.sleep(self._candidate.pause_bids())

    async def _load(self) -> None:
        self.role = Role.LOADING
        started_s, loop = time.monotonic(), asyncio.get_running_loop()
        # Both are asked on the partition's own thread first, and again by `load`: a broker that
        # does not answer must not hold the threads that all partitions load in.
        log, ask, own = self._services.log, self._services.questions.ask, f"end-{self.partition}"
        await ask(own, log.start_offset, JOURNAL_TOPIC, self.partition)
        await ask(own, log.group_offset, COORDINATORS_GROUP, JOURNAL_TOPIC, self.partition)
        # Asked here: what is known of other coordinators belongs to the event loop.
        known_end = self._services.members.known_end(self.partition, self.known_end)
        replica = await loop.run_in_executor(self._services.loading, self._read_journal, known_end)
        loaded_s = time.monotonic() - started_s
        self._services.counters.loaded(self.partition, loaded_s)
        _LOG.info(
            "partition_loaded partition=%d next_offset=%d loaded_ms=%d",
            self.partition, replica.next_offset, loaded_s * 1000,
        )  # fmt: skip
        self._follow(replica)

    def _read_journal(self, known_end: int) -> Replica:
        """Loads the journal up to its end; runs in a thread. It ends at `known_end` or later."""
        if self._truncated is not None:
            raise lost_tail(self.partition, self._truncated)
        replica = load(
            self._services.log,
            self.partition,
            self._config,
            timeout_s=LOAD_TIMEOUT_S,
            acknowledged_end=known_end,
        )
        self._check_partition_count(replica.shard.owner)
        return replica

    def _check_partition_count(self, owner: Owner | None) -> None:
        # Names are hashed to partitions by the partition count. With another count, transaction
        # groups would have new homes that know nothing about them.
        count = self._services.partition_count
        if owner is not None and owner.partition_count not in (0, count):
            raise JournalTopicError(
                f"topic {JOURNAL_TOPIC} has {count} partitions, but was served with"
                f" {owner.partition_count}, and their number must never change; nothing was"
                f" written. Copy the first {owner.partition_count} into a topic of that many"
                f" (kafka-topics.sh can't remove partitions) and start again"
            )

    def _follow(self, replica: Replica) -> None:
        self.role, self.failure = Role.STANDBY, None
        # Before clients are answered: what is decided here may be handed over.
        self._services.handing.homes.learn(self.partition, replica.shard.modes)
        self._candidate.follow(replica)

    async def _serve(self, won: Won) -> None:
        """Serves what was won until the tenure is over."""
        self._acknowledged_end = self.known_end
        serving = self._serving = Serving(
            self.partition,
            self._services,
            self._candidate.journal,
            won.shard,
            ask=self._ask,
            doubt_journal=self._candidate.doubt_journal,
            surprised=self._surprised,
        )
        self.role = Role.SERVING
        try:
            serving.begin()
        except BaseException:
            won.tell("it could not begin")
            raise
        self._services.membership_changed()
        won.tell()
        housekeeping = essential_task(serving.housekeeping.run(), "housekeeping")
        try:
            await serving.over.wait()
        finally:
            housekeeping.cancel()
        if serving.surprise is not None:
            # `_run` loads the journal again, and bids for a new epoch if nobody else has won one.
            if serving.tenure.truncated_at is not None:
                self._truncated = serving.tenure.truncated_at
            self._candidate.pause_bids(anew=serving.lasted)

    def _surprised(self) -> None:
        # At once: the others would take an owner that serves without an epoch for an idle one, and
        # give it a partition that it can't take.
        self.role = Role.LOADING
        self._services.membership_changed()

    def _ask(self, question: Coroutine[Any, Any, None]) -> None:
        """Runs a query of the log in the background; `stop` cancels it."""
        task = essential_task(question, f"question-{self.partition}")
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)
