"""Coordinators: `Tenure` and `Shard` as they are, in processes that crash, pause and compete.

A `Seat` is one coordinator's part in one journal partition: it loads, bids, serves one tenure after
the other, and takes snapshots and trims, as `coordinator/runtime` does with a broker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final, Protocol, cast

from logtx.coordinator.core import floors
from logtx.coordinator.core.answers import answer_fate
from logtx.coordinator.core.decision import (
    ClearOffsets,
    Effect,
    EndSidecars,
    Instant,
    PublishMode,
    Ref,
    TopicFacts,
    WriteLateMarkers,
    WriteMarkers,
    WriteModeRecords,
    WriteOffsets,
)
from logtx.coordinator.core.handing import Known, exchange
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.sidecars import sidecars_among
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.core.topic_homes import TopicHomes, unwritten
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.checkpoint import Checkpoint
from logtx.coordinator.runtime import loading
from logtx.coordinator.runtime.loading import load, lost_tail
from logtx.journal.control import TopicPartition
from logtx.journal.errors import (
    CoordinatorBusyError,
    CoordinatorLoadingError,
    JournalTruncatedError,
    LogtxError,
    NotCoordinatorError,
    RetriableError,
    UnknownRecordError,
)
from logtx.journal.logs.interface import Log
from logtx.journal.places import GONE, PartitionId
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.fate import NO_EPOCH, UNKNOWN_FATE, FateScan
from logtx.journal.records.types import Entry, Owner
from logtx.journal.sidecar import main_partition
from logtx.journal.txid import TxId

from .history import Told
from .lanes import Markers, Offsets
from .logs import APPEND_TIMEOUT_MS, LogView, Pipe
from .placing import Modes, Placing
from .queue_ends import QueueEnds
from .schedule import Party
from .setting import WALL_MS, Setting
from .trimming import Trimmer

# A history's log tells its end truthfully, and virtual time is not the clock's: no confirmation.
loading.CONFIRM_S = 0.0

SWEEP_MS: Final = 90
"""Time between two sweeps of idle lanes."""
TICK_MS: Final = 40
"""Time between two ticks."""
PURGE_MS: Final = (20, APPEND_TIMEOUT_MS)
"""Least and most time until a producer that broke tells which records it did not send."""
LOAD_MS: Final = (1, 12)
"""Least and most time to read the journal, before a bid and behind it."""
PAUSE_MS: Final = 30
"""Longest pause before the first bid; it doubles with every lost bid."""
FAILED_PAUSE_MS: Final = 150
"""Time after which a journal that can't be read is tried again."""
DOUBT_MS: Final = 500
"""How often an owner that appends nothing asks whether it is still the owner."""
NEWS_MS: Final = (10, 25)
"""Least and most time between two news of which topics had names."""
EXCHANGE_MS: Final = (3, 40)
"""Least and most time between two looks at what other journals hand over or answer."""
READ_SHARE: Final = 0.7
"""Share of these looks before which a standby reads the journal on."""
DRAIN_MS: Final = 60
"""How long a command waits for markers where something is to be handed over."""
DRAIN_LOOK_MS: Final = 3
"""Pause between two looks whether they are written."""
ENDS_FAIL_SHARE: Final = 0.05
"""Share of the questions for ends of main partitions, before a commit, that nobody answers."""
GIVE_MS: Final = 200
"""How long a giving owner waits for its appends, and then for the receiver."""


@dataclass(slots=True, eq=False)
class Asked:
    """A request that a tenure has; serves as the `Ref` of its reply."""

    command: commands.Command
    answer: Callable[[commands.Reply], None]
    asked_at: int
    asked_ms: int


class Link(Protocol):
    """A producer's stream, as its coordinator sees it."""

    def end(self, error: LogtxError) -> None:
        """Tell the client why, and break the stream."""

    def peer_gone(self) -> None:
        """Notes that the coordinator is dead, or has not answered for long."""

    def close_here(self) -> None:
        """Notes that the client is gone."""

    def of(self, party: Party) -> bool:
        """Whether this party is the client."""


class Coordinator(Party):
    """One coordinator process, and those started after it at its address."""

    def __init__(self, setting: Setting, name: str, peers: Callable[[], list[Coordinator]]) -> None:
        """Begins alive, and owns nothing.

        Args:
            setting: of the world.
            name: its name and its address.
            peers: the coordinators that answer.
        """
        super().__init__(setting.scheduler, name)
        self.peers = peers
        self.setting = setting
        self.seats: list[Seat] = []
        self.links: dict[tuple[int, str, int], Link] = {}
        """Streams of connected producers, by journal partition, producer id and nonce."""
        self.reads = True
        """Whether it understands all records; not if it is of an older version than the others."""
        self._told_of_topics: dict[int, int] = {}
        """Nonce of a process → up to which change it is told which topics had names."""
        self._wall_offset_ms = 0
        self._clock_offset_ms = 0

    def start(self) -> None:
        """Begins a life."""
        chance = self.setting.chance
        self.alive = True
        self.links = {}
        self.held_back_ms = 0
        self._clock_offset_ms = chance.randrange(10**6)
        self.process_nonce = chance.getrandbits(62)
        self.markers = Markers(self.setting, self, self.now)
        self.later(SWEEP_MS, self._sweep)
        self.homes = TopicHomes()
        self.seats = [Seat(self, p) for p in range(self.setting.journals)]
        for seat in self.seats:
            self.later(chance.randint(1, 10), seat.tick)
        if self.setting.modes is not None and self.setting.journals > 1:
            draw = Random(self.process_nonce)  # Not of the others', which other histories share.
            self.later(EXCHANGE_MS[0], lambda: self._exchange(draw))
        self._told_of_topics = {}
        draw = Random(self.process_nonce)
        self.later(draw.randint(*NEWS_MS), lambda: self._tell_of_topics(draw))
        if self.setting.retains_sidecars:
            draw = Random(self.process_nonce)
            Trimmer(self.setting, self, draw, self._served, lambda: self.reads)

    def _served(self, partition: int) -> Shard | None:
        tenure = self.seats[partition].tenure
        return None if tenure is None else tenure.shard

    def _exchange(self, draw: Random) -> None:
        """Lets its journals hand transactions over, and adopt, as `runtime/handing.py` does."""
        self.later(draw.randint(*EXCHANGE_MS), lambda: self._exchange(draw))
        known = [seat.known(reads=draw.random() < READ_SHARE) for seat in self.seats]
        exchange([each for each in known if each is not None], self.homes)

    def _tell_of_topics(self, draw: Random) -> None:
        """Tells the others which topics had names, as `membership/peers.py` does."""
        self.later(draw.randint(*NEWS_MS), lambda: self._tell_of_topics(draw))
        now_ms = self.now().monotonic_ms
        for other in self.peers():
            if other is self or not other.seats:
                continue
            told = self._told_of_topics.get(other.process_nonce, 0)
            ages, told = self.markers.known.tell(told, now_ms)
            self._told_of_topics[other.process_nonce] = told
            if ages:
                other.later(draw.randint(1, 8), partial(other.markers.hear, ages))

    def wake(self) -> None:
        """Goes on as it was; may notice first that it stood still: `Serving._notice_time`."""
        if self.alive and self.paused:
            self.stand_still()
        super().wake()

    def stand_still(self) -> None:
        """Pauses what it serves, if it notices that it stood still: another may own it by now."""
        if self.setting.faults.tries("coordinator notices that it stood still", 0.7):
            for seat in self.seats:
                if seat.tenure is not None:
                    seat.tenure.pause()

    def _sweep(self) -> None:
        self.markers.sweep()
        self.later(SWEEP_MS, self._sweep)

    def known_end(self, partition: int) -> int:
        """Returns the furthest end of a journal partition that the answering others know."""
        return max((c.seats[partition].known_end for c in self.peers() if c.seats), default=0)

    def jump_clock(self, by_ms: int) -> None:
        """Sets the wall clock forward or back."""
        self._wall_offset_ms += by_ms

    def now(self) -> Instant:
        """Returns the time as this process sees it."""
        now_ms = self.setting.now_ms
        wall_ms = max(0, WALL_MS + now_ms + self._wall_offset_ms)
        return Instant(self._clock_offset_ms + now_ms, wall_ms)


class Seat:
    """One coordinator at one journal partition."""

    def __init__(self, coordinator: Coordinator, partition: int) -> None:
        """Begins without owning the partition."""
        self.coordinator = coordinator
        self.partition = partition
        self.name = coordinator.name
        self.tenure: Tenure | None = None
        self._hour_began_ms = 0
        self._setting = coordinator.setting
        self.pipe = self._setting.pipe(coordinator, "journal append")
        self.offsets = Offsets(self._setting, coordinator)
        self.modes = Modes(self._setting, coordinator, coordinator.markers.lanes.resume)
        self._placing: Placing | None = None
        """Asks for the latest tenure."""
        self._queue_ends: QueueEnds | None = None
        """The same, where there are queues."""
        self._replica: Replica | None = None
        """Follows the journal while this coordinator does not serve it."""
        self._kept: list[Callable[[commands.Reply], None]] = []
        """Callbacks of requests that arrived while the partition was being given away."""
        self._acknowledged_end = 0
        self.truncated = False
        """Whether the journal lost acknowledged records: then it is not served any more."""
        self.failure: LogtxError | None = None
        """Why the journal can't be read, until it is tried again."""
        self._bidding = False
        self._is_promised = False
        """Whether another coordinator is about to give it the partition."""
        self._pause_ms = PAUSE_MS
        self._doubt_ms = 0
        self._looked_at = -1
        self._doubts = Random(partition)
        self.draw = coordinator.setting.chance
        """What says how long a question for the end takes; doubts have their own, for their number
        changes with any fault."""

    # ---- owning ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Lets the tenure do what is due, or bids if the partition has no living owner."""
        setting = self._setting
        self.coordinator.later(TICK_MS, self.tick)
        if self.tenure is not None:
            self._tick_tenure(self.tenure)
            return
        owner = setting.owner(self.partition)
        orphaned = owner is None or owner == self.name or setting.is_dead(owner)
        orphaned = orphaned or self._has_failed(owner)
        if self._bidding or self.truncated or self.failure is not None:
            return
        if self.coordinator.held_back_ms > setting.now_ms:
            return
        if orphaned or setting.faults.happens("coordinator usurped", 0.01):
            self._bidding = True
            self._later((1, self._pause_ms), lambda: self._bid(lambda _: None))

    def _tick_tenure(self, tenure: Tenure) -> None:
        if tenure is not self.tenure:
            return
        tenure.tick(self.coordinator.now(), self._facts)
        if self._placing is not None:
            self._placing.soon()
        self._ask_queue_ends(tenure)
        self._doubt_if_idle(tenure)
        if tenure.more_due:
            self.coordinator.later(1, lambda: self._tick_tenure(tenure))

    def _doubt_if_idle(self, tenure: Tenure) -> None:
        # As `Serving.tick` does: one that appends nothing hears of its successor in no other way.
        if self._setting.now_ms < self._doubt_ms:
            return
        self._doubt_ms = self._setting.now_ms + DOUBT_MS
        is_idle = self._looked_at == tenure.shard.next_offset
        self._looked_at = tenure.shard.next_offset
        if is_idle and not (tenure.over or tenure.quiescing):
            self.draw = self._doubts
            tenure.doubt()
            self.draw = self._setting.chance

    def _has_failed(self, owner: str | None) -> bool:
        # As a peer tells it that can't read the journal.
        peers = [c for c in self.coordinator.peers() if c.name == owner and c.seats]
        return any(c.seats[self.partition].failure is not None for c in peers)

    def known(self, *, reads: bool) -> Known | None:
        """Returns what this coordinator knows of the journal; None if nothing.

        Args:
            reads: whether a standby reads it on before that.
        """
        if self.tenure is not None:
            return Known(self.tenure.shard, self.tenure)
        if self._bidding or self.truncated or self.failure is not None:
            return None
        replica = self._try_to_follow() if reads else self._replica
        return None if replica is None else Known(replica.shard, None)

    def _try_again(self) -> None:
        self.failure = None

    def _later(self, range_ms: tuple[int, int], act: Callable[[], None]) -> None:
        self.coordinator.later(self._setting.chance.randint(*range_ms), act)

    def _follow(self) -> Replica:
        """Reads the journal to its end; returns the replica."""
        broker, replica = self._setting.broker, self._replica
        if replica is None or replica.next_offset < broker.starts[self.partition]:
            if replica is None and broker.starts[self.partition] > 0:
                self._setting.history.counts["loads of a trimmed journal"] += 1
            replica = load(
                cast(Log, LogView(broker)),
                self.partition,
                self._setting.shard_config,
                timeout_s=60,
                acknowledged_end=self._acknowledged_end,
            )
            if replica.shard.snapshot_offset is not None:
                self._setting.history.counts["loads from a snapshot"] += 1
        for record in broker.journal(self.partition)[replica.next_offset :]:
            replica.feed(record.offset, record.entry)
        self._replica = replica
        return replica

    @property
    def known_end(self) -> int:
        """Everything below this offset was read here, or is known here to be acknowledged."""
        read = 0 if self._replica is None else self._replica.next_offset
        now = 0 if self.tenure is None else self.tenure.acknowledged_end
        return max(read, now, self._acknowledged_end)

    def _try_to_follow(self) -> Replica | None:
        if not self.coordinator.reads:
            self.failure = UnknownRecordError("a record of a newer version")
            self._setting.note(self.name, "can't read journal", self.partition)
            self.coordinator.later(FAILED_PAUSE_MS, self._try_again)
            return None
        lost = self._setting.broker.losses.get(self.partition)
        try:
            # The broker tells a reader beyond the lost tail's place; and no peer may know more.
            known = self.coordinator.known_end(self.partition)
            self._acknowledged_end = max(self._acknowledged_end, known)
            if lost is not None and self.known_end > lost:
                raise lost_tail(self.partition, self.known_end)
            return self._follow()
        except JournalTruncatedError as error:
            self._setting.note(self.name, "refuses:", error)
            self.truncated = True
            return None

    def _bid(self, done: Callable[[bool], None]) -> None:
        setting, replica = self._setting, self._try_to_follow()
        if replica is None:
            self._bidding = False
            done(False)
            return
        shard = replica.shard
        first = shard.epoch == NO_EPOCH
        incarnation = setting.chance.getrandbits(48) if first else shard.incarnation
        owner = Owner(
            replaces=shard.epoch,
            address=self.name,
            process_nonce=self.coordinator.process_nonce,
            partition_count=setting.journals,
        )
        value = encode_entry(Entry(shard.epoch, incarnation, owner))
        writer = self.coordinator.name_in_life

        def bid() -> None:
            at = setting.history.tick()
            self.pipe.append(
                lambda: setting.broker.append_journal(self.partition, value, writer, None, at),
                lambda offset: self._later(LOAD_MS, lambda: self._won(offset, done)),
            )

        self._later(LOAD_MS, bid)

    def _won(self, offset: int | None, done: Callable[[bool], None]) -> None:
        self._bidding = False
        if offset is not None and self.tenure is None:
            replica = self._try_to_follow()
            # A stranger's record behind OWNER makes the epoch void for every reader.
            won = replica is not None and replica.next_offset == offset + 1
            if replica is not None and won and replica.shard.epoch == offset:
                self._serve(replica.shard)
                done(True)
                return
        self._hold_back()
        done(False)

    def _hold_back(self) -> None:
        self._pause_ms = min(self._pause_ms * 2, 500)
        pause_ms = self._setting.chance.randint(0, self._pause_ms)
        self.coordinator.held_back_ms = self._setting.now_ms + pause_ms

    def _serve(self, shard: Shard) -> None:
        setting = self._setting
        self._replica = None
        self._pause_ms = PAUSE_MS
        setting.history.counts["tenures"] += 1
        setting.history.counts["failovers"] += len(shard.past_epochs) > 0
        setting.note(self.name, f"serves journal {self.partition} in epoch", shard.epoch)
        shell = _Shell(self, self.pipe)
        tenure = shell.tenure = self.tenure = Tenure(shard, shell)
        coordinator = self.coordinator
        self._placing = shell.placing = Placing(
            setting, coordinator, tenure, coordinator.markers, coordinator.now
        )
        if setting.queues is not None:
            self._queue_ends = QueueEnds(setting, coordinator, tenure, coordinator.now)
        self._hour_began_ms = setting.now_ms
        self._behind_chunks = 0
        """Offset behind the last snapshot that had more chunks than records lie between two."""
        self._keep_house(self.tenure, self.tenure.snapshot_offset or 0, None)
        if coordinator.homes:
            shard.watch_homes(coordinator.homes)
        self.tenure.begin(self.coordinator.now(), self._facts)

    # ---- snapshots, checkpoint, trimming --------------------------------------------------------

    def _keep_house(self, tenure: Tenure, since: int, checkpoint: int | None) -> None:
        """Takes a snapshot, then commits the checkpoint, then trims, as `housekeeping.py` does."""
        if tenure is not self.tenure or tenure.over or tenure.quiescing:
            return
        since = max(since, self._behind_chunks)
        if tenure.shard.next_offset - since >= self._setting.snapshot_every:
            since = tenure.shard.next_offset
            self._setting.history.counts["snapshots begun"] += 1
            self._take_snapshot(tenure, since)
        if self._setting.now_ms - self._hour_began_ms >= self._setting.hour_ms:
            self._hour_began_ms = self._setting.now_ms
            known = len(tenure.shard.producers)
            tenure.end_hour((), ())
            self._setting.history.counts["hours of service"] += 1
            forgotten = known - len(tenure.shard.producers)
            self._setting.history.counts["producers forgotten"] += forgotten
        snapshot = tenure.snapshot_offset or 0
        # Repeated now and then: a former owner's late commit may have overwritten it.
        if snapshot != checkpoint or self._setting.chance.random() < 0.2:
            self._publish(tenure, snapshot)
            checkpoint = snapshot
        self.coordinator.later(TICK_MS, lambda: self._keep_house(tenure, since, checkpoint))

    def _take_snapshot(self, tenure: Tenure, first: int) -> None:
        if tenure is not self.tenure:
            return
        if tenure.snapshot():
            self.coordinator.later(2, lambda: self._take_snapshot(tenure, first))
        elif tenure.shard.next_offset - first >= self._setting.snapshot_every:
            # One would follow the other for ever, and outpace who reads the journal.
            self._behind_chunks = tenure.shard.next_offset

    def _publish(self, tenure: Tenure, snapshot: int) -> None:
        setting, shard = self._setting, tenure.shard
        checkpoint = Checkpoint(offset=snapshot, epoch=shard.epoch, address=self.name)
        late = setting.faults.happens("checkpoint delayed", 0.1)
        delay_ms = setting.chance.randint(100, 900) if late else setting.chance.randint(1, 10)

        def commit() -> None:
            setting.broker.checkpoints[self.partition] = checkpoint
            self.coordinator.later(3, committed)

        def committed() -> None:
            if snapshot and not tenure.quiescing:
                self._trim(tenure, snapshot)

        # Not by `later`: a crash or a pause of the coordinator must not hold up what is on its way.
        setting.scheduler.after(delay_ms, commit)

    def _trim(self, tenure: Tenure, snapshot: int) -> None:
        setting, journal = self._setting, self._setting.broker.journal(self.partition)
        kept_ms = setting.now_ms - setting.outcome_retention_ms
        times = [record.time_ms for record in journal]
        fences = tenure.shard.fences
        fences.advance({p: self._log_start(p) for p in fences.partitions()})
        bounds = snapshot, tenure.shard.hw, bisect_left(times, kept_ms), fences.trim_to
        setting.broker.trim(self.partition, min(bounds))

    def _log_start(self, partition: PartitionId) -> int:
        facts = self._setting.topology.truth.get(partition.topic)
        if facts is None or facts.topic_id != partition.topic_id:
            return GONE
        return self._setting.broker.data_starts.get(partition.key, 0)

    # ---- giving it away -------------------------------------------------------------------------

    def give(self, receiver: Seat) -> None:
        """Lets another coordinator take over, once nothing is in flight."""
        tenure = self.tenure
        if tenure is None or tenure.quiescing or receiver.tenure is not None or receiver._bidding:
            return
        self._setting.note(self.name, f"gives journal {self.partition} to", receiver.name)
        self._setting.history.counts["partitions given"] += 1
        tenure.quiesce()
        receiver._bidding = receiver._is_promised = True
        # The giver may die before it gives.
        receiver.coordinator.later(3 * GIVE_MS, receiver._forget_promise)
        self._wait_settled(tenure, receiver, self._setting.now_ms + GIVE_MS)

    def _wait_settled(self, tenure: Tenure, receiver: Seat, until_ms: int) -> None:
        if tenure is not self.tenure:
            receiver._bidding = False
        elif not tenure.in_flight:
            epoch, end = tenure.shard.epoch, tenure.shard.next_offset
            receiver.coordinator.later(3, lambda: receiver._receive(epoch, end, given))
            self.coordinator.later(GIVE_MS, lambda: self._given(tenure, receiver))

            def given(_served: bool) -> None:
                self.coordinator.later(3, lambda: self._given(tenure, receiver))

        elif self._setting.now_ms < until_ms:
            self.coordinator.later(3, lambda: self._wait_settled(tenure, receiver, until_ms))
        else:
            receiver._bidding = False
            self.surprised(tenure, "nothing was acknowledged")

    def _forget_promise(self) -> None:
        if self._is_promised:
            self._bidding = self._is_promised = False

    def _receive(self, epoch: int, end: int, given: Callable[[bool], None]) -> None:
        self._is_promised = False
        replica = self._try_to_follow()
        if replica is not None and (replica.shard.epoch, replica.next_offset) == (epoch, end):
            self._bid(given)
        else:
            self._bidding = False
            given(False)

    def _given(self, tenure: Tenure, receiver: Seat) -> None:
        if tenure is self.tenure:
            self.end_tenure(NotCoordinatorError(f"served by {receiver.name}"))
            self._replica = Replica.of(tenure.shard)

    def end_tenure(self, why: LogtxError) -> None:
        """Stop serving."""
        tenure, self.tenure = self.tenure, None
        if tenure is None:
            return
        self._acknowledged_end = max(self._acknowledged_end, tenure.acknowledged_end)
        tenure.end(why)
        kept, self._kept = self._kept, []
        for answer in kept:
            answer(why)
        self.coordinator.markers.lanes.forget(self.partition)
        self.offsets.lanes.forget(self.partition)
        self.modes.lanes.forget(self.partition)
        links = self.coordinator.links
        for key in [key for key in links if key[0] == self.partition]:
            links.pop(key).end(why)

    def surprised(self, tenure: Tenure, why: str) -> None:
        """Takes note that a tenure ended by a surprise."""
        self._setting.history.counts["surprises"] += 1
        self.truncated |= tenure.truncated_at is not None
        self._setting.note(self.name, "surprised:", why)
        if tenure is self.tenure:
            self.end_tenure(CoordinatorLoadingError("loaded again"))
            # A new pipe: OWNER must not wait behind appends without an answer.
            self.pipe = self._setting.pipe(self.coordinator, "journal append")
            self._hold_back()

    # ---- requests -------------------------------------------------------------------------------

    @property
    def _facts(self) -> Mapping[str, TopicFacts]:
        return self.coordinator.markers.known.facts

    def submit(
        self,
        command: commands.Command,
        answer: Callable[[commands.Reply], None],
        began: Callable[[Asked], None] = lambda _: None,
        *,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Takes a request that arrives.

        Args:
            command: what is asked.
            answer: called with the reply, at most once.
            began: called when the tenure has it; what it is given is the `Ref` of the reply.
            is_over: returns whether its stream has ended, so that it must not be decided.
        """
        match command:
            case commands.Attach():
                self._submit_attach(command, answer, began, is_over)
                return
            case commands.Begin() | commands.AddPartitions():
                named: Collection[TopicPartition] = command.partitions
            case commands.End(action=commands.Action.COMMIT):
                named = [*command.writes, *map(main_partition, self._sidecars(command))]
            case commands.AddWrites() | commands.End():
                named = command.writes
            case commands.SetTopicMode():
                named = ((command.topic, 0),)
            case _:
                named = ()
        # As in `Streams._prepare`: what the topics say is looked up before, whoever serves then.
        self.coordinator.markers.learn(
            named,
            lambda doubt: self._learn_ends(
                command,
                doubt,
                lambda told, why: self._drain(
                    named, lambda: is_over() or self._ask(told, answer, began, why)
                ),
            ),
            self._unwritten(named),
        )

    def _submit_attach(
        self,
        command: commands.Attach,
        answer: Callable[[commands.Reply], None],
        began: Callable[[Asked], None],
        is_over: Callable[[], bool],
    ) -> None:
        """Takes a consumer of a queue, as `Streams._prepare_attach` does: nothing is written for
        it to its topics."""
        learn, left = self.coordinator.markers.learn, command.left_topics

        def learnt(refusal: LogtxError | None) -> None:
            def learnt_of_left(doubt: LogtxError | None) -> None:
                why = doubt if isinstance(doubt, RetriableError) else refusal
                if not is_over():
                    self._ask(command, answer, began, why)

            learn([(topic, 0) for topic in left], learnt_of_left, left)

        learn([(topic, 0) for topic in command.topics], learnt, command.topics)

    def _sidecars(self, command: commands.End) -> Collection[TopicPartition]:
        # As `PartitionRuntime.sidecars`.
        found = self.tenure and self.tenure.shard.transactions.get(command.txid.offset)
        return sidecars_among(command.writes, *((found.branches,) if found else ()))

    def _learn_ends(
        self,
        command: commands.Command,
        doubt: LogtxError | None,
        then: Callable[[commands.Command, LogtxError | None], None],
    ) -> None:
        """Tells a commit where main partitions end, as `Streams._with_main_ends` does."""
        setting, draw = self._setting, self._setting.sidecars
        is_commit = isinstance(command, commands.End) and command.action is commands.Action.COMMIT
        mains = list(map(main_partition, self._sidecars(command))) if is_commit else []
        if not mains or doubt is not None or draw is None:
            then(command, doubt)
            return
        told: dict[TopicPartition, int] = {}
        first_ms, second_ms = draw.randint(0, 8), draw.randint(1, 8)
        fails = setting.faults.on and draw.random() < ENDS_FAIL_SHARE

        def answered() -> None:
            told.update({key: setting.told_end(*key) for key in mains})

        def go_on() -> None:
            setting.history.counts["commits that asked for main ends"] += 1
            if fails:
                then(command, CoordinatorBusyError("the ends of main partitions: no answer"))
            else:
                then(replace(command, main_ends=told), None)

        setting.scheduler.after(first_ms, answered)
        self.coordinator.later(first_ms + second_ms, go_on)

    def _unwritten(self, named: Collection[TopicPartition]) -> Collection[str]:
        # As `PartitionRuntime.unwritten`.
        if self.tenure is None:
            return ()
        modes, known = self.tenure.shard.modes, self.coordinator.markers.known
        return unwritten(named, self.partition, modes, self.coordinator.homes, known)

    def _drain(
        self, named: Collection[TopicPartition], ask: Callable[[], None], waited_ms: int = 0
    ) -> None:
        """Lets a command wait for markers, as `PartitionRuntime.drain` does."""
        tenure = self.tenure
        waits = waited_ms < DRAIN_MS and tenure is not None
        if waits and tenure is not None and tenure.shard.is_beside_markers(named, self._facts):
            later = partial(self._drain, named, ask, waited_ms + DRAIN_LOOK_MS)
            self.coordinator.later(DRAIN_LOOK_MS, later)
        else:
            ask()

    def _ask(
        self,
        command: commands.Command,
        answer: Callable[[commands.Reply], None],
        began: Callable[[Asked], None],
        doubt: LogtxError | None,
    ) -> None:
        setting = self._setting
        if isinstance(command, commands.SetTopicMode) and not self._is_certain(command.topic):
            answer(CoordinatorBusyError("brokers do not agree on the topic"))
            return
        if self.tenure is None:
            elsewhere = f"journal partition {self.partition} is not served here"
            answer(self.failure or NotCoordinatorError(elsewhere))
            return
        if self.tenure.quiescing:
            # Answered only when another serves: told at once, the client would find no owner.
            self._kept.append(answer)
            return
        asked = Asked(command, answer, setting.history.tick(), setting.now_ms)
        setting.note(self.name, "asked", command)
        began(asked)
        tenure = self.tenure
        tenure.submit(command, asked, self.coordinator.now(), self._facts, doubt)
        if isinstance(command, commands.End) and command.action is commands.Action.COMMIT:
            assert self._placing is not None
            self._placing.deciding(command.txid.offset)
        self._ask_queue_ends(tenure)

    def _ask_queue_ends(self, tenure: Tenure) -> None:
        if self._queue_ends is not None and tenure is self.tenure:
            self._queue_ends.soon()

    def _is_certain(self, topic: str) -> bool:
        # A topic is switched only when look-ups told of the same one for long enough: a mode that
        # has the id of its predecessor would be no news to its readers.
        facts, truth = self._facts.get(topic), self._setting.topology.truth.get(topic)
        return facts is not None and truth is not None and facts.topic_id == truth.topic_id


class _Shell:
    """The shell that one tenure acts through."""

    tenure: Tenure
    placing: Placing

    def __init__(self, seat: Seat, pipe: Pipe) -> None:
        self._seat = seat
        self._pipe = pipe
        self._breaks = False
        self._setting = seat.coordinator.setting

    def append(self, predicted: int, value: bytes) -> None:
        seat, setting = self._seat, self._setting
        meant, writer = self._meant(predicted), seat.coordinator.name_in_life
        at = setting.history.tick()
        if self._breaks:
            self._renew(predicted)
            return
        # Its producer sends this one again, and then breaks.
        self._breaks = setting.faults.on and setting.faults.tries("journal producer renewed", 0.01)
        self._pipe.append(
            lambda: setting.broker.append_journal(seat.partition, value, writer, meant, at),
            lambda offset: self._acknowledged(predicted, offset),
            twice=self._breaks,
        )

    def _acknowledged(self, predicted: int, offset: int | None) -> None:
        self.tenure.acknowledged(predicted, offset, self._now_ms)
        self.placing.soon()

    def _renew(self, lost: int) -> None:
        # The former producer tells the loss when it is closed; meanwhile the next one is used.
        seat, setting = self._seat, self._setting
        self._breaks = False
        self._pipe = seat.pipe = setting.pipe(seat.coordinator, "journal append")
        told_ms = setting.faults.trials.randint(*PURGE_MS)
        seat.coordinator.later(told_ms, lambda: self.tenure.acknowledged(lost, None, self._now_ms))

    def _meant(self, predicted: int) -> tuple[str, int, int] | None:
        # For a decision, the transaction that it is about, as its writer has it.
        for transaction in self.tenure.shard.transactions:
            if transaction.commit_sequence == predicted:
                return transaction.producer_id, transaction.generation, transaction.started_ms
        return None

    @property
    def _now_ms(self) -> int:
        return self._seat.coordinator.now().monotonic_ms

    def ask_end(self) -> None:
        seat, setting = self._seat, self._setting
        journal = setting.broker.journal(seat.partition)
        ends: list[int] = []
        first_ms, second_ms = seat.draw.randint(0, 8), seat.draw.randint(1, 8)
        setting.scheduler.after(first_ms, lambda: ends.append(len(journal)))
        seat.coordinator.later(
            first_ms + second_ms, lambda: self.tenure.end_told(ends[0], self._now_ms)
        )

    def answer(self, ref: Ref, reply: commands.Reply) -> None:
        assert isinstance(ref, Asked)
        self._tell(ref, reply)

    def _tell(self, asked: Asked, reply: commands.Reply) -> None:
        name, setting = self._seat.coordinator.name, self._setting
        told = Told(
            coordinator=name,
            partition=self._seat.partition,
            command=asked.command,
            reply=reply,
            asked_at=asked.asked_at,
            asked_ms=asked.asked_ms,
            at=setting.history.tick(),
            time_ms=setting.now_ms,
        )
        setting.history.told.append(told)
        setting.note(name, "answers", reply)
        asked.answer(reply)

    def look_up(self, ref: Ref, command: commands.Command, txid: TxId) -> None:
        assert isinstance(ref, Asked)
        asked = ref

        def find() -> None:
            broker, partition = self._setting.broker, self._seat.partition
            fate = UNKNOWN_FATE
            if broker.starts[partition] <= txid.offset < len(broker.journal(partition)):
                scan = FateScan([txid])
                for record in broker.journal(partition)[scan.start :]:
                    scan.feed(record.offset, record.entry)
                fate = scan.fates()[txid]
            outcome = commands.Outcome(txid, fate.state, fate.commit_sequence)
            self._tell(asked, answer_fate(command, outcome))

        self._setting.history.counts["look-ups of coordinators"] += 1
        self._seat.coordinator.later(self._setting.chance.randint(1, 10), find)

    def execute(self, effect: Effect) -> None:
        match effect:
            case WriteMarkers(transaction):
                self._seat.coordinator.markers.write(self.tenure, transaction)
            case WriteLateMarkers(transaction, keys):
                self._seat.coordinator.markers.write_late(self.tenure, transaction, keys)
            case EndSidecars(transaction, places):
                self._seat.coordinator.markers.end_sidecars(self.tenure, transaction, places)
            case WriteOffsets():
                self._seat.offsets.write(self.tenure, effect)
            case ClearOffsets():
                raise AssertionError("groups are not forgotten here")
            case WriteModeRecords(with_records=False):
                self._seat.modes.publish(self.tenure, effect.topic)
                lanes = self._seat.coordinator.markers.lanes
                written = lanes.stop_mode(self._seat.partition, effect.topic)
                self.placing.end_switch(effect, written)
            case WriteModeRecords():
                modes = self._seat.modes
                modes.publish(self.tenure, effect.topic)
                self._seat.coordinator.markers.write_mode(self.tenure, effect, modes.is_told)
            case PublishMode(topic):
                self._seat.modes.publish(self.tenure, topic)
            case _:
                raise AssertionError("the tenure keeps the others to itself")

    def first_marker(self, key: TopicPartition) -> int | None:
        return self._seat.coordinator.markers.lanes.first(self._seat.partition, key)

    def written_to(self, partition: PartitionId) -> int | None:
        return self._seat.coordinator.markers.lanes.reached(self._seat.partition, partition)

    def written_beside(self, partition: PartitionId) -> floors.WrittenBeside | None:
        return self._seat.coordinator.markers.lanes.reached_beside(self._seat.partition, partition)

    def had_others(self, partition: PartitionId) -> bool:
        known = self._seat.coordinator.markers.known
        return known.had_others(partition.topic, partition.topic_id)

    def looks_apart_ms(self, topic: str) -> int:
        del topic
        return floors.LOOKS_APART_MS

    def places_given(self) -> None:
        self._seat.coordinator.markers.lanes.resume(self._seat.partition)
        self.placing.soon()

    def answers_given(self) -> None:
        self._seat.coordinator.markers.lanes.resume(self._seat.partition)

    def close_session(self, producer_id: str, nonce: int, error: LogtxError) -> None:
        links, key = self._seat.coordinator.links, (self._seat.partition, producer_id, nonce)
        if key in links:
            links.pop(key).end(error)

    def surprised(self, why: str) -> None:
        self._seat.surprised(self.tenure, why)
