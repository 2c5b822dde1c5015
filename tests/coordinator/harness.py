"""Tenures of a shard without I/O: a journal in memory whose appends land when told.

A `Coordinator` is the shell of one `Tenure` after the other. The caller decides which appends land
(`ack`), which are lost (`lose`), which arrive late (`land_late`) and what another writer appends
(`Journal.append`). Several coordinators may share one journal; those that were replaced don't know
it until an append or the journal's end tells them.

`test_shard_checkers.py` checks what they tell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from logtx.coordinator.core.answers import answer_fate
from logtx.coordinator.core.data_partitions import Topics
from logtx.coordinator.core.decision import (
    ClearOffsets,
    Decision,
    Effect,
    EndSidecars,
    Instant,
    PublishMode,
    ShardConfig,
    TopicFacts,
    WriteLateMarkers,
    WriteMarkers,
    WriteModeRecords,
    WriteOffsets,
)
from logtx.coordinator.core.floors import WrittenBeside
from logtx.coordinator.core.placing import Question
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.core.transactions import TransactionMetadata
from logtx.coordinator.protocol import commands
from logtx.journal.control import TopicPartition
from logtx.journal.errors import CoordinatorLoadingError, LogtxError
from logtx.journal.places import PartitionId
from logtx.journal.position import Place, Position
from logtx.journal.records.codec import decode_entry, encode_entry
from logtx.journal.records.fate import NO_EPOCH, FateScan
from logtx.journal.records.types import (
    Begin,
    Entry,
    JournalRecord,
    OffsetStep,
    Owner,
)
from logtx.journal.txid import TxId

PARTITION: Final = 0
INCARNATION: Final = 0x1A7E
TOPICS: Final = {
    name: TopicFacts(topic_id=f"id-{name}", partition_count=4, record_max_bytes=1_000_000)
    for name in ("a", "b")
}
WALL_MS: Final = 1_700_000_000_000

Ref = Any


def txid(begin: int, incarnation: int = INCARNATION) -> TxId:
    """Returns the TxId of a BEGIN at this journal offset."""
    return TxId(PARTITION, incarnation, begin)


def step(
    partition: TopicPartition, start: int | None, to: int, claim: int | None = None
) -> OffsetStep:
    """Returns a step from `start` (None: nothing was committed) to `to`."""
    place = None if start is None else Place(start)
    return OffsetStep(*partition, place, Position.at(to), claim)


# ---- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Appended:
    """A record was decided, and is on its way to the offset it should get."""

    offset: int
    record: JournalRecord


@dataclass(frozen=True, slots=True)
class Parked:
    """A reply waits for its records, or for those before it."""

    ref: Ref
    behind: int


@dataclass(frozen=True, slots=True)
class Replied:
    """A client got a reply."""

    ref: Ref
    reply: commands.Reply


@dataclass(frozen=True, slots=True)
class Failed:
    """A client was told to try again, and nothing else."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Waits:
    """A commit waits for an earlier transaction."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Closed:
    """A session is closed."""

    producer_id: str
    nonce: int
    error: LogtxError


@dataclass(frozen=True, slots=True)
class Emitted:
    """An effect may be carried out, and a marker written now states this HW."""

    effect: Effect
    hw: int


@dataclass(frozen=True, slots=True)
class Surprised:
    """The coordinator lost its place in the journal."""


@dataclass(frozen=True, slots=True)
class Owned:
    """The coordinator won an epoch and serves."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Given:
    """Places became durable: markers that waited for them may go out."""


Event = Appended | Parked | Replied | Failed | Waits | Closed | Emitted | Surprised | Owned | Given


# ---- the journal and its coordinators -----------------------------------------------------------


class Journal:
    """The landed records of a journal partition, as they read back."""

    def __init__(self, partition: int = PARTITION) -> None:
        """Begins empty."""
        self.partition = partition
        self.entries: list[Entry] = []
        self.meant: list[Begin | None] = []
        """BEGIN of the transaction that each record's writer had in mind."""

    @property
    def end(self) -> int:
        """Offset that the next record gets."""
        return len(self.entries)

    def append(self, entry: Entry, meant: Begin | None = None) -> int:
        """Lets a record land; returns its offset."""
        self.entries.append(decode_entry(encode_entry(entry)))
        self.meant.append(meant)
        return len(self.entries) - 1

    def load(self, config: ShardConfig | None = None) -> Shard:
        """Returns a shard that has replayed all of it."""
        return load(self.entries, config, self.partition)


def load(
    entries: Iterable[Entry], config: ShardConfig | None = None, partition: int = PARTITION
) -> Shard:
    """Returns a shard that has replayed these records from offset 0."""
    shard = Shard(partition, config)
    for offset, entry in enumerate(entries):
        shard.replay(offset, entry)
    return shard


def feed_lazily(replica: Replica, entries: Iterable[Entry], start: int = 0) -> None:
    """Feeds records from an offset on to a replica, as a coordinator does that loads a journal:
    what a decision names is left undecoded."""
    for offset, entry in enumerate(entries):
        if offset >= start:
            replica.feed(offset, decode_entry(encode_entry(entry), lazily=True))


@dataclass(frozen=True, slots=True)
class Flying:
    """A record on its way to the journal."""

    predicted: int
    entry: Entry
    meant: Begin | None


class _Tenure(Tenure):
    """A tenure that reports what it parks, and checks that `handle` changes nothing."""

    def __init__(self, shard: Shard, coordinator: Coordinator) -> None:
        super().__init__(shard, coordinator)
        self._coordinator = coordinator
        self._handle = shard.handle
        shard.handle = self._handle_purely  # type: ignore[method-assign]
        self._waits: Ref | None = None

    def _handle_purely(
        self,
        command: commands.Command,
        ref: Ref,
        now: Instant,
        topics: Topics,
        doubt: LogtxError | None = None,
    ) -> Decision:
        before = dump(self.shard)
        decision = self._handle(command, ref, now, topics, doubt)
        assert dump(self.shard) == before, f"handle() changed the state: {command}"
        self._waits = None if decision.replies or decision.look_up else ref
        return decision

    def _decide(self, kept: Any, now: Instant, topics: Topics) -> None:
        super()._decide(kept, now, topics)
        if self._waits is not None:
            self._coordinator.listen(Waits(self._waits))

    def _park(self, parked: Any) -> None:
        ref = getattr(parked.item, "ref", None)
        if ref is not None and parked.behind > self.acknowledged_end:
            self._coordinator.listen(Parked(ref, parked.behind))
        super()._park(parked)


class Coordinator:
    """One coordinator of the journal partition: the shell of its tenures."""

    def __init__(
        self,
        journal: Journal,
        *,
        name: str = "c1",
        config: ShardConfig | None = None,
        listen: Callable[[Coordinator, Event], None] = lambda _coordinator, _event: None,
    ) -> None:
        """Begins without owning anything; see `take_over`.

        Args:
            journal: shared by all coordinators.
            name: the address in its OWNER records.
            config: limits of the shard.
            listen: called with everything that happens, as it happens.
        """
        self.journal = journal
        self.name = name
        self.config = config or ShardConfig()
        self.now = Instant(0, WALL_MS)
        self.topics = dict(TOPICS)
        """What the coordinator knows of data topics."""
        self.shard = Shard(journal.partition, self.config)
        self.in_flight: deque[Flying] = deque()
        """Appends that are neither acknowledged nor lost."""
        self.late: deque[Flying] = deque()
        """Appends that `lose` gave up, and that may still land."""
        self.commands: dict[Ref, commands.Command] = {}
        self.replies: dict[Ref, commands.Reply] = {}
        self.markers: dict[int, WriteMarkers] = {}
        """Effects to be carried out, by BEGIN; `finish` reports one as done."""
        self.mode_records: dict[str, WriteModeRecords] = {}
        self.late_markers: dict[int, WriteLateMarkers] = {}
        """Late markers that are not reported, by BEGIN."""
        self.ended_sidecars: list[tuple[int, dict[TopicPartition, int]]] = []
        """(BEGIN, sidecar partition → place) of sidecars' markers that are not reported."""
        self.keeps_late = False
        """Whether late markers wait for `finish_late`. Else no topic has the name."""
        """Topics whose partitions get mode records; `record_mode` and `end_mode` report them."""
        self.to_publish: list[str] = []
        """Topics of whose mode readers are to be told; `publish` reports one as done."""
        self.question: Question | None = None
        self.written: dict[PartitionId, int] = {}
        """Partition → the offset behind what this tenure has written to it."""
        self.beside: dict[PartitionId, WrittenBeside] = {}
        """Partition → what this tenure has written to it under other topic ids."""
        self.apart_ms = 0
        """The question for ends that is on its way; `tell_ends` answers it."""
        self._tenure: Tenure | None = None
        self._iovs: dict[str, dict[TopicPartition, Position]] = {}
        """The IOVs that the tenure has written."""
        self._asked = False
        self._listen = listen

    @property
    def tenure(self) -> Tenure:
        """The tenure that serves, or served last."""
        assert self._tenure is not None, "nothing was owned yet"
        return self._tenure

    @property
    def serving(self) -> bool:
        """Whether it believes that it owns the partition."""
        return self._tenure is not None and not self._tenure.over

    @property
    def acknowledged_end(self) -> int:
        """Everything below this offset is durable."""
        return 0 if self._tenure is None else self._tenure.acknowledged_end

    def listen(self, event: Event) -> None:
        """Passes an event on."""
        self._listen(self, event)

    # What the world does.

    def take_over(self) -> None:
        """Loads the journal, wins the next epoch and serves."""
        shard = self.journal.load(self.config)
        incarnation = INCARNATION if shard.epoch == NO_EPOCH else shard.incarnation
        owner = Owner(replaces=shard.epoch, address=self.name, process_nonce=1)
        offset = self.journal.append(Entry(shard.epoch, incarnation, owner))
        shard.replay(offset, self.journal.entries[offset])
        assert shard.epoch == offset, "nobody bids in between"
        self.shard, self._tenure, self._iovs = shard, _Tenure(shard, self), {}
        self.listen(Owned(shard.epoch))
        self.tenure.begin(self.now, self.topics)
        self._tell_end()

    def submit(self, command: commands.Command, ref: Ref) -> None:
        """Submits a client's command; the reply is in `replies` once the client may have it."""
        if not self.serving:
            self.listen(Failed(ref))
            return
        self.commands[ref] = command
        self.tenure.submit(command, ref, self.now, self.topics)
        self._tell_end()

    def end_hour(self, groups: Collection[str], bindings: Collection[str]) -> None:
        """Ends an hour of service."""
        if self.serving:
            self.tenure.end_hour(groups, bindings)
            self._tell_end()

    def forget_rest(self) -> bool:
        """Forgets some of those that the hour's record had no room for."""
        more = self.tenure.forget_rest()
        self._tell_end()
        return more

    def ack(self, count: int | None = None) -> None:
        """Lets the next appends in flight land; acknowledges each that lands where predicted."""
        for _ in range(len(self.in_flight) if count is None else count):
            if not self.in_flight:
                return
            flying = self.in_flight.popleft()
            offset = self.journal.append(flying.entry, flying.meant)
            if self.serving:
                self.tenure.acknowledged(flying.predicted, offset, self.now.monotonic_ms)
                self._tell_end()

    def lose(self, landed: int | Sequence[int] = 0, *, late: bool = False) -> None:
        """Lets an append time out, and loads the journal again under a new epoch.

        Args:
            landed: number of appends in flight that landed all the same, unacknowledged; or which
                ones, for an append may be lost and those behind it land.
            late: whether the others may land later, by `land_late`; if not, they are lost.
        """
        keep = set(range(landed)) if isinstance(landed, int) else set(landed)
        if self.serving and self.in_flight:
            predicted, now_ms = self.in_flight[0].predicted, self.now.monotonic_ms
            self.tenure.acknowledged(predicted, None, now_ms, "it timed out")
        if self.serving:
            self.surprised("loaded again")
        in_flight, self.in_flight = self.in_flight, deque()
        for index, flying in enumerate(in_flight):
            if index in keep:
                self.journal.append(flying.entry, flying.meant)
            elif late:
                self.late.append(flying)
        self.take_over()

    def land_late(self, count: int | None = None) -> None:
        """Lets appends land that were given up."""
        for _ in range(len(self.late) if count is None else count):
            if self.late:
                flying = self.late.popleft()
                self.journal.append(flying.entry, flying.meant)

    def finish(
        self,
        begin: int,
        gone: tuple[TopicPartition, ...] = (),
        pointers: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Reports the markers of a decided transaction as written, or their partitions as gone, and
        where its pointers are."""
        del self.markers[begin]
        self.tenure.written(begin, gone, pointers)

    def finish_late(self, begin: int, *, gone: bool) -> None:
        """Reports the late markers of a transaction as written, or that no topic has the name."""
        effect = self.late_markers.pop(begin)
        self.tenure.written(begin, effect.partitions if gone else ())

    def finish_sidecars(self) -> None:
        """Reports the markers of sidecars as written whose main partitions have a place."""
        ended, self.ended_sidecars = self.ended_sidecars, []
        for begin, places in ended:
            self.tenure.written(begin, (), places)

    def ask_ends(self) -> bool:
        """Asks for the ends of partitions in which something is to be placed, if that is due."""
        question = self.tenure.place_question(self.now.monotonic_ms)
        if question is not None:
            self.question = question
        return question is not None

    def tell_ends(self, ends: Mapping[PartitionId, int]) -> None:
        """Answers the question that is on its way."""
        assert self.question is not None, "nothing was asked"
        question, self.question = self.question, None
        self.tenure.ends_told(question, ends, self.now)

    def may_mark(self, begin: int) -> bool:
        """Returns whether all markers of a transaction may go out: nothing is to be placed first.

        Markers go out in commit-sequence order here.
        """
        transaction = self.markers[begin].transaction
        sequence = transaction.commit_sequence
        assert sequence is not None
        firsts = {key: self.first_marker(key) for key in _marked(transaction)}
        return all(
            first == sequence
            and self.tenure.may_mark(
                PartitionId(*key, transaction.partitions[key].topic_id), sequence
            )
            for key, first in firsts.items()
        )

    def may_record(self, topic: str) -> bool:
        """Returns whether a topic's mode records may go out."""
        effect = self.mode_records[topic]
        keys = [(topic, p) for p in range(self.topics[topic].partition_count)]
        return all(
            self.first_marker(key) == effect.offset
            and self.tenure.may_mark(PartitionId(*key, effect.topic_id), effect.offset)
            for key in keys
        )

    def record_mode(self, topic: str, offset: int) -> None:
        """Reports the mode records of a topic as written, each at this offset."""
        effect = self.mode_records.pop(topic)
        partitions = range(self.topics[topic].partition_count)
        for partition in partitions:
            where = PartitionId(topic, partition, effect.topic_id)
            self.tenure.mode_recorded(where, offset, partitions)

    def end_mode(self, topic: str, ends: Mapping[int, int]) -> bool:
        """Tells the ends of a topic's partitions that get no mode records."""
        effect = self.mode_records[topic]
        now_ms = self.now.monotonic_ms
        ended = self.tenure.mode_ends(topic, effect.topic_id, ends, now_ms, now_ms)
        if ended:
            del self.mode_records[topic]
        return ended

    def publish(self, topic: str) -> None:
        """Reports a topic's mode as published."""
        self.to_publish.remove(topic)
        self.tenure.mode_published(topic)

    def apply(self, decision: Decision) -> None:
        """Appends what no client asked for."""
        self.tenure._apply(decision)

    def pass_time(self, milliseconds: int) -> None:
        """Lets time pass, and does what becomes due."""
        now = self.now
        self.now = Instant(now.monotonic_ms + milliseconds, now.wall_ms + milliseconds)
        self.catch_up()

    def catch_up(self) -> None:
        """Does what is due without any command."""
        if self.serving:
            self.tenure.tick(self.now, self.topics)
            self._tell_end()

    def attach(self, producer_id: str) -> None:
        """Connects a producer's stream."""
        self.shard.attach(producer_id)

    def detach(self, producer_id: str, nonce: int) -> None:
        """Breaks a producer's stream."""
        self.shard.detach(producer_id, nonce, self.now)

    def _tell_end(self) -> None:
        while self._asked:
            self._asked = False
            self.tenure.end_told(self.journal.end, self.now.monotonic_ms)

    # What a tenure needs of its shell.

    def append(self, predicted: int, value: bytes) -> None:
        """Puts a record on its way."""
        entry = decode_entry(value)
        self.in_flight.append(Flying(predicted, entry, self._meant(entry.record)))
        self.listen(Appended(predicted, entry.record))

    def _meant(self, record: JournalRecord) -> Begin | None:
        begin: int | None = getattr(record, "begin", None)
        if begin is None:
            return None
        flying = (f.entry for f in self.in_flight if f.predicted == begin)
        found = next(flying, None) or self.journal.entries[begin]
        assert isinstance(found.record, Begin), f"{record} is about no BEGIN"
        return found.record

    def ask_end(self) -> None:
        """Asks for the journal's end; the answer comes as soon as the tenure's own call is over."""
        self._asked = True

    def answer(self, ref: Ref, reply: commands.Reply) -> None:
        """Gives a client its reply."""
        if not self.serving and isinstance(reply, CoordinatorLoadingError):
            self.listen(Failed(ref))
            return
        assert ref not in self.replies, f"{ref} is answered twice"
        self.replies[ref] = reply
        self.listen(Replied(ref, reply))

    def look_up(self, ref: Ref, command: commands.Command, txid: TxId) -> None:
        """Answers from a transaction's fate in the journal."""
        fate = fates(self.journal.entries, [txid])[txid]
        outcome = commands.Outcome(txid, fate.state, fate.commit_sequence)
        self.answer(ref, answer_fate(command, outcome))

    def execute(self, effect: Effect) -> None:
        """Keeps markers until `finish`; writes offsets at once, as whole IOVs."""
        if isinstance(effect, WriteMarkers):
            self.markers[effect.transaction.begin] = effect
        elif isinstance(effect, WriteLateMarkers):
            self.late_markers[effect.transaction.begin] = effect
        elif isinstance(effect, EndSidecars):
            self.ended_sidecars.append((effect.transaction.begin, dict(effect.places)))
        elif isinstance(effect, WriteModeRecords):
            self.mode_records[effect.topic] = effect
        elif isinstance(effect, PublishMode):
            self.to_publish.append(effect.topic)
        elif isinstance(effect, ClearOffsets):
            self._iovs.pop(effect.group, None)
        else:
            assert isinstance(effect, WriteOffsets), "the tenure keeps the others to itself"
            iov = self._iovs.setdefault(effect.group, {})
            iov.update(effect.offsets.offsets)
            effect = replace(effect, offsets=replace(effect.offsets, offsets=dict(iov)))
        self.listen(Emitted(effect, self.shard.hw))
        if isinstance(effect, WriteOffsets):
            self.tenure.written(effect.begin)
        elif isinstance(effect, WriteLateMarkers) and not self.keeps_late:
            self.finish_late(effect.transaction.begin, gone=True)

    def first_marker(self, key: TopicPartition) -> int | None:
        """Returns the commit sequence of the first marker, or mode record, of a data partition."""
        transactions = (effect.transaction for effect in self.markers.values())
        found = [t.commit_sequence for t in transactions if key in _marked(t)]
        found += [e.offset for e in self.mode_records.values() if e.topic == key[0]]
        return min((sequence for sequence in found if sequence is not None), default=None)

    def written_to(self, partition: PartitionId) -> int | None:
        """Returns the offset behind what this tenure has written to a partition."""
        return self.written.get(partition)

    def written_beside(self, partition: PartitionId) -> WrittenBeside | None:
        """Returns what this tenure has written there under other topic ids."""
        return self.beside.get(partition)

    def had_others(self, partition: PartitionId) -> bool:
        """Returns that each name has had one topic."""
        del partition
        return False

    def looks_apart_ms(self, topic: str) -> int:
        """Returns that one look is enough, but where a test says otherwise."""
        del topic
        return self.apart_ms

    def places_given(self) -> None:
        """Learns that places became durable."""
        self.listen(Given())

    def answers_given(self) -> None:
        """Learns that other homes answered."""
        self.listen(Given())

    def close_session(self, producer_id: str, nonce: int, error: LogtxError) -> None:
        """Ends a producer's session for good."""
        self.listen(Closed(producer_id, nonce, error))

    def surprised(self, why: str) -> None:
        """Ends the tenure."""
        self.listen(Surprised())
        self.markers.clear()
        self.mode_records.clear()
        self.late_markers.clear()
        self.ended_sidecars.clear()
        self.to_publish.clear()
        self._asked, self.question = False, None
        self.tenure.end(CoordinatorLoadingError(why))


def _marked(transaction: TransactionMetadata) -> set[TopicPartition]:
    return set(transaction.partitions) - transaction.placed


def fates(entries: Sequence[Entry], txids: Iterable[TxId]) -> Any:
    """Returns what a reader without a coordinator learns of transactions."""
    scan = FateScan(txids)
    for offset in range(scan.start, len(entries)):
        scan.feed(offset, entries[offset])
    return scan.fates()


def dump(shard: Shard) -> dict[str, Any]:
    """Returns what the journal made of a shard, without volatile parts, for comparison."""
    store, groups = shard.transactions, shard.offsets._groups
    return {
        "owner": (shard.epoch, shard.incarnation, shard.owner, tuple(shard.past_epochs)),
        "next_offset": shard.next_offset,
        "ages": (shard.ages.hour, dict(shard.ages.groups), shard.producers.floor),
        "unfinished": [
            (
                *(t.txid, t.producer_id, t.generation, t.timeout_ms, t.started_ms, t.state),
                *(dict(t.partitions), dict(t.branches), t.commit_sequence, t.reason, t.doomed),
                t.placed,
                {group: dict(steps) for group, steps in t.offsets.items()},
                {group: set(steps) for group, steps in t.steps.items()},
            )
            for t in store
        ],
        "outcomes": dict(store._outcomes),
        "producers": {
            name: (
                *(p.generation, p.nonce, p.owner, p.voided, p.connected_ms),
                *(dict(p.begins), p.answered_below, sorted(p.open), p.used_hour),
            )
            for name, p in shard.producers.items()
        },
        "groups": {
            name: (
                *(dict(g.offsets), g.size_bytes, g.last_commit, g.commit_sequence),
                {partition: sorted(begins) for partition, begins in g.held.items()},
                {place: sorted(begins) for place, begins in g.to_come.items()},
            )
            for name, g in groups.items()
        },
        "claims": [*shard.claims.rows()],
        "bindings": dict(shard.bindings),
        "subscriptions": list(shard.queues.subscriptions.rows()),
        "last_era": shard.queues.subscriptions.last_era,
        "staircases": list(shard.staircases.rows()),
        "modes": shard.modes.rows(),
        "places": (dict(shard.places.last), shard.places.rows(), len(shard.places.unplaced)),
    }
