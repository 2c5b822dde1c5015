"""Plays the runtime of a shard without I/O: a journal in memory whose appends land when told.

A `Coordinator` follows the rules of `runtime.py`: handle, replay at the predicted offset, append,
park the reply until everything before it is acknowledged. The caller decides when an append
lands (`ack`), which are lost (`lose`), what arrives late (`land_late`) and what somebody else
writes (`Journal.append`). Several coordinators may share one journal; those that were replaced
don't know it until an append or the journal's end tells them.

`Reference` reads a journal in the slow and obvious way, and `Checker` holds everything that
coordinators tell against it: the invariants of the design, by their numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from logtx.coordinator import commands as c
from logtx.coordinator.decision import (
    Decision,
    Effect,
    Instant,
    ShardConfig,
    TopicFacts,
    WriteMarkers,
    WriteOffsets,
)
from logtx.coordinator.shard import NO_EPOCH, Shard
from logtx.journal.control import TopicPartition
from logtx.journal.errors import LogtxError, TransactionAbortedError, TransactionCommittedError
from logtx.journal.fate import EpochFilter, FateScan
from logtx.journal.position import Place, Position
from logtx.journal.record_codec import decode_entry, encode_entry
from logtx.journal.records import (
    Aborted,
    AddOffsets,
    Begin,
    Bind,
    Committed,
    Entry,
    JournalRecord,
    OffsetStep,
    Owner,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
)
from logtx.journal.state import State
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
    """The TxId of a BEGIN at this journal offset."""
    return TxId(PARTITION, incarnation, begin)


def step(partition: TopicPartition, start: int | None, to: int) -> OffsetStep:
    """An input offset that goes from `start` (None: nothing was committed) to `to`."""
    return OffsetStep(*partition, None if start is None else Place(start), Position.at(to))


# ---- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Appended:
    """A record was decided, and is on its way to the offset it should get."""

    offset: int
    record: JournalRecord


@dataclass(frozen=True, slots=True)
class Parked:
    """A reply waits for its records, or for those before it."""

    ref: Ref
    reply: c.Reply | None
    """None: the journal must be looked up when it is due."""
    behind: int


@dataclass(frozen=True, slots=True)
class Replied:
    """A client was told."""

    ref: Ref
    reply: c.Reply


@dataclass(frozen=True, slots=True)
class Failed:
    """A client was told nothing but to try again."""

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


Event = Appended | Parked | Replied | Failed | Waits | Closed | Emitted | Surprised | Owned


# ---- the journal and its coordinators --------------------------------------------------------


class Journal:
    """What has landed in a journal partition, as it reads back."""

    def __init__(self) -> None:
        """Start empty."""
        self.entries: list[Entry] = []

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        return len(self.entries)

    def append(self, entry: Entry) -> int:
        """A record lands; returns its offset."""
        self.entries.append(decode_entry(encode_entry(entry)))
        return len(self.entries) - 1

    def load(self, config: ShardConfig | None = None) -> Shard:
        """A shard that has replayed all of it."""
        return load(self.entries, config)


def load(entries: Iterable[Entry], config: ShardConfig | None = None) -> Shard:
    """A shard that has replayed these records from offset 0."""
    shard = Shard(PARTITION, config)
    shard.topics = dict(TOPICS)
    for offset, entry in enumerate(entries):
        shard.replay(offset, entry)
    return shard


class Coordinator:
    """One coordinator of the journal partition: `runtime.PartitionRuntime` without I/O."""

    parks: bool = True
    """False tells replies before their records are durable; for the proof that checkers bite."""

    def __init__(
        self,
        journal: Journal,
        *,
        name: str = "c1",
        config: ShardConfig | None = None,
        listen: Callable[[Coordinator, Event], None] = lambda _coordinator, _event: None,
    ) -> None:
        """Nothing is owned before `take_over`.

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
        self.serving = False
        self.shard = Shard(PARTITION, self.config)
        self.acknowledged_end = 0
        self.in_flight: deque[tuple[int, Entry]] = deque()
        """Appended and neither acknowledged nor lost, each with its predicted offset."""
        self.late: deque[Entry] = deque()
        """Given up by `lose`, and yet to land."""
        self.parked: deque[Parked] = deque()
        self.commands: dict[Ref, c.Command] = {}
        self.replies: dict[Ref, c.Reply] = {}
        self.markers: dict[int, WriteMarkers] = {}
        """Effects to be carried out, by BEGIN: `finish` says that one was."""
        self._listen = listen

    # What the world does.

    def take_over(self) -> None:
        """Load the journal, win the next epoch and serve."""
        shard = self.journal.load(self.config)
        incarnation = INCARNATION if shard.epoch == NO_EPOCH else shard.incarnation
        owner = Owner(replaces=shard.epoch, address=self.name, process_nonce=1)
        offset = self.journal.append(Entry(shard.epoch, incarnation, owner))
        shard.replay(offset, self.journal.entries[offset])
        assert shard.epoch == offset, "nobody bids in between"
        self.shard, self.acknowledged_end, self.serving = shard, offset + 1, True
        self._listen(self, Owned(offset))
        self._emit(shard.loaded(self.now))
        self.catch_up()

    def submit(self, command: c.Command, ref: Ref) -> None:
        """A client asks; the reply comes by `replies` when it may be told."""
        if not self.serving:
            self._listen(self, Failed(ref))
            return
        self.commands[ref] = command
        before = dump(self.shard)
        decision = self.shard.handle(command, ref, self.now)
        assert dump(self.shard) == before, f"handle() changed the state: {command}"
        self._apply(decision)
        if decision.look_up is not None:
            self._ask(Parked(ref, None, self.shard.next_offset))
        elif not decision.replies:
            self._listen(self, Waits(ref))
        self.catch_up()

    def ack(self, count: int | None = None) -> None:
        """The next appends in flight land; each is acknowledged if it lies where predicted."""
        for _ in range(len(self.in_flight) if count is None else count):
            if not self.in_flight:
                return
            predicted, entry = self.in_flight.popleft()
            offset = self.journal.append(entry)
            if not self.serving:
                continue
            if offset != predicted:
                self._surprise()
                continue
            self.acknowledged_end = offset + 1
            effects = self.shard.acknowledge(offset)
            self._release()
            self._emit(effects)

    def lose(self, landed: int | Sequence[int] = 0, *, late: bool = False) -> None:
        """An append times out, and the journal is loaded again under a new epoch.

        Args:
            landed: how many of those in flight lie in the journal all the same, unacknowledged;
                or which ones.
            late: the others land later, by `land_late`; else they are lost.
        """
        keep = set(range(landed)) if isinstance(landed, int) else set(landed)
        entries = [entry for _, entry in self.in_flight]
        if self.serving:
            self._surprise()
        self.in_flight.clear()
        for index, entry in enumerate(entries):
            if index in keep:
                self.journal.append(entry)
            elif late:
                self.late.append(entry)
        self.take_over()

    def land_late(self, count: int | None = None) -> None:
        """Appends that were given up land after all."""
        for _ in range(len(self.late) if count is None else count):
            if self.late:
                self.journal.append(self.late.popleft())

    def finish(self, begin: int, gone: tuple[TopicPartition, ...] = ()) -> None:
        """All markers of a decided transaction are written, or their partitions gone."""
        del self.markers[begin]
        self._apply(self.shard.finish(begin, gone))

    def pass_time(self, milliseconds: int) -> None:
        """Time goes by, and what becomes due is done."""
        now = self.now
        self.now = Instant(now.monotonic_ms + milliseconds, now.wall_ms + milliseconds)
        if self.serving:
            self.catch_up()

    def attach(self, producer_id: str) -> None:
        """A producer's stream is connected."""
        self.shard.attach(producer_id)

    def detach(self, producer_id: str, nonce: int) -> None:
        """A producer's stream broke."""
        self.shard.detach(producer_id, nonce, self.now)

    # What the runtime does.

    def catch_up(self) -> None:
        """Do what is due without any command."""
        for _ in range(10_000):
            decision = self.shard.due(self.now)
            if decision is None:
                return
            self._apply(decision)
        raise AssertionError("due() never comes to its end")

    def _apply(self, decision: Decision) -> None:
        shard = self.shard
        for record in decision.records:
            offset = shard.next_offset
            entry = Entry(shard.epoch, shard.incarnation, record)
            shard.replay(offset, entry)
            self.in_flight.append((offset, entry))
            self._listen(self, Appended(offset, record))
        for ref, reply in decision.replies:
            parked = Parked(ref, reply, shard.next_offset if self.parks else 0)
            if decision.fresh:
                self._ask(parked)
            else:
                self._park(parked)
        for producer_id, nonce, error in decision.close:
            self._listen(self, Closed(producer_id, nonce, error))

    def _ask(self, parked: Parked) -> None:
        end = self.journal.end
        if end > self.shard.next_offset and self.serving:
            self._surprise()
        if not self.serving:
            self._listen(self, Failed(parked.ref))
            return
        self._park(Parked(parked.ref, parked.reply, max(parked.behind, end)))

    def _park(self, parked: Parked) -> None:
        self.parked.append(parked)
        if parked.behind > self.acknowledged_end:
            self._listen(self, parked)
        self._release()

    def _release(self) -> None:
        while self.parked and self.parked[0].behind <= self.acknowledged_end:
            parked = self.parked.popleft()
            reply = parked.reply if parked.reply is not None else self._look_up(parked.ref)
            assert parked.ref not in self.replies, f"{parked.ref} is answered twice"
            self.replies[parked.ref] = reply
            self._listen(self, Replied(parked.ref, reply))

    def _look_up(self, ref: Ref) -> c.Reply:
        command = self.commands[ref]
        asked: TxId = command.txid  # type: ignore[union-attr]
        fate = fates(self.journal.entries, [asked])[asked]
        return Shard.answer_fate(command, c.Outcome(asked, fate.state, fate.commit_sequence))

    def _emit(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, WriteMarkers):
                self.markers[effect.transaction.begin] = effect
            self._listen(self, Emitted(effect, self.shard.hw))

    def _surprise(self) -> None:
        self.serving = False
        self._listen(self, Surprised())
        for parked in self.parked:
            self._listen(self, Failed(parked.ref))
        self.parked.clear()
        self.markers.clear()


def fates(entries: Sequence[Entry], txids: Iterable[TxId]) -> Any:
    """What a reader without a coordinator learns of transactions."""
    scan = FateScan(txids)
    for offset in range(scan.start, len(entries)):
        scan.feed(offset, entries[offset])
    return scan.fates()


def dump(shard: Shard) -> dict[str, Any]:
    """All that the journal made of a shard, and nothing volatile, to be compared."""
    store, groups = shard.transactions, shard.offsets._groups
    return {
        "owner": (shard.epoch, shard.incarnation, shard.owner, tuple(shard.past_epochs)),
        "next_offset": shard.next_offset,
        "unfinished": [
            (
                *(t.txid, t.producer_id, t.generation, t.timeout_ms, t.started_ms, t.state),
                *(dict(t.partitions), dict(t.branches), t.commit_sequence, t.reason),
                {group: dict(steps) for group, steps in t.offsets.items()},
                {group: set(steps) for group, steps in t.steps.items()},
            )
            for t in store
        ],
        "outcomes": dict(store._outcomes),
        "producers": {
            name: (
                *(p.generation, p.nonce, p.owner, p.voided),
                *(dict(p.begins), p.answered_below, sorted(p.open)),
            )
            for name, p in shard.producers.items()
        },
        "groups": {
            name: (
                *(dict(g.offsets), g.last_commit, g.commit_sequence),
                {partition: sorted(begins) for partition, begins in g.held.items()},
            )
            for name, g in groups.items()
        },
        "bindings": dict(shard.bindings),
    }


# ---- the naive reading -----------------------------------------------------------------------


@dataclass(slots=True)
class NaiveTransaction:
    """One transaction as the journal has it."""

    producer_id: str
    generation: int
    nonce: int
    request_id: int
    state: State = State.OPEN
    sequence: int | None = None
    steps: dict[tuple[str, TopicPartition], list[OffsetStep]] = field(default_factory=dict)


Places = dict[TopicPartition, Place]


class Reference:
    """The state of a journal in the slow and obvious way, and what must hold of any journal.

    Raises:
        AssertionError: a transaction of a fenced generation was committed (invariant 6), or one
            whose input leaves a gap or overlaps (invariant 8).
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Read a journal from offset 0."""
        self.transactions: dict[int, NaiveTransaction] = {}
        self.generations: dict[str, tuple[int, bool]] = {}
        self.bindings: dict[str, str] = {}
        self.iovs: dict[str, list[tuple[int, Places]]] = {}
        """Group → its IOV after each commit, with the commit sequence."""
        self.end = 0
        epochs = EpochFilter()
        for offset, entry in enumerate(entries):
            self.end = offset + 1
            if epochs.accept(offset, entry):
                self._apply(offset, entry.record)

    @property
    def hw(self) -> int:
        """The oldest unfinished BEGIN, else the end."""
        unfinished = (b for b, t in self.transactions.items() if not t.state.finished)
        return min(unfinished, default=self.end)

    def iov(self, group: str, sequence: int | None = None) -> Places:
        """A group's IOV now, or as of a commit sequence."""
        history = self.iovs.get(group, [])
        return next((p for s, p in reversed(history) if sequence in (None, s)), {})

    def _apply(self, offset: int, record: JournalRecord) -> None:
        match record:
            case ProducerRecord():
                self.generations[record.producer_id] = record.generation, record.voided
            case Begin():
                self.transactions[offset] = NaiveTransaction(
                    record.producer_id, record.generation, record.session_nonce, record.request_id
                )
            case Bind():
                self.bindings.setdefault(record.group, record.transaction_group)
            case AddOffsets() | PrepareCommit() | PrepareAbort() | Committed() | Aborted():
                transaction = self.transactions.get(record.begin)
                if transaction is not None:
                    self._move(offset, transaction, record)
            case _:
                pass

    def _move(
        self,
        offset: int,
        told: NaiveTransaction,
        record: AddOffsets | PrepareCommit | PrepareAbort | Committed | Aborted,
    ) -> None:
        match record:
            case AddOffsets() if told.state is State.OPEN:
                self._add(told, record)
            case PrepareCommit() if told.state is State.OPEN:
                told.state, told.sequence = State.COMMITTING, offset
                assert self.generations[told.producer_id] == (told.generation, False), (
                    f"a fenced transaction was committed at {offset}"
                )
                self._commit(offset, told)
            case PrepareAbort() if told.state is State.OPEN:
                told.state, told.sequence = State.ABORTING, offset
            case Committed() if told.state is State.COMMITTING:
                told.state = State.COMMITTED
            case Aborted() if told.state is State.ABORTING:
                told.state = State.ABORTED
            case _:
                pass

    @staticmethod
    def _add(told: NaiveTransaction, record: AddOffsets) -> None:
        chains = {key: list(steps) for key, steps in told.steps.items()}
        for each in record.steps:
            chain = chains.setdefault((record.group, (each.topic, each.partition)), [])
            if each in chain:
                continue
            if chain and chain[-1].to.place != each.from_place:
                return  # What it continues was lost.
            chain.append(each)
        told.steps = chains

    def _commit(self, offset: int, told: NaiveTransaction) -> None:
        moved: dict[str, Places] = {}
        for (group, partition), steps in told.steps.items():
            places = moved.setdefault(group, dict(self.iov(group)))
            for each in steps:
                assert places.get(partition) == each.from_place, (
                    f"the input of {group} in {partition} stood at {places.get(partition)}, and the"
                    f" commit at {offset} goes on from {each.from_place}"
                )
                places[partition] = each.to.place
        for group, places in moved.items():
            self.iovs.setdefault(group, []).append((offset, places))


# ---- the checkers ----------------------------------------------------------------------------


class Checker:
    """Holds what coordinators tell against the journal; `listen` is for `Coordinator`."""

    def __init__(self, journal: Journal) -> None:
        """Check coordinators of this journal."""
        self.journal = journal
        self.hw = 0
        """The highest that any marker could have stated."""
        self.begun: dict[TxId, tuple[str, int, int]] = {}
        """TxIds that clients were told, with producer, nonce and request id."""
        self._floors: dict[Ref, int] = {}
        self._known: dict[Ref, bool] = {}
        self._reference: Reference | None = None

    @property
    def reference(self) -> Reference:
        """The naive reading of the journal as it stands."""
        if self._reference is None or self._reference.end != self.journal.end:
            self._reference = Reference(self.journal.entries)
        return self._reference

    def asked(self, ref: Ref, command: c.Command) -> None:
        """Call before a command is submitted: what its answer must know already."""
        if isinstance(command, c.FetchOffsets):
            self._floors[ref] = max(
                (sequence for sequence, _ in self.reference.iovs.get(command.group, [])), default=-1
            )
        self._known[ref] = getattr(command, "txid", None) in self.begun

    def listen(self, coordinator: Coordinator, event: Event) -> None:
        """Check one event."""
        match event:
            case Replied():
                self._replied(event.ref, coordinator.commands[event.ref], event.reply)
            case Emitted(WriteMarkers(transaction), hw):
                self._decided(transaction.txid, transaction.state, transaction.commit_sequence)
                self.published(hw)
            case Emitted(WriteOffsets(group, _, offsets), hw):
                self._iov(group, offsets, None)
                self.published(hw)
            case _:
                pass

    def published(self, hw: int) -> None:
        """A marker may state this HW: no transaction that could still commit lies below it."""
        self.hw = max(self.hw, hw)
        assert self.hw <= self.reference.hw, (
            f"HW {self.hw} is above the unfinished BEGIN or end at {self.reference.hw}"
        )

    def after_step(self, coordinators: Iterable[Coordinator]) -> None:
        """Call when something happened: live states, replayed ones and the naive agree."""
        reference, entries = self.reference, self.journal.entries
        shard = load(entries)
        self._agree(shard, reference)
        assert self.hw <= reference.hw, "HW went back"
        for coordinator in coordinators:
            if not coordinator.serving:
                continue
            self.published(coordinator.shard.hw)
            if coordinator.acknowledged_end == self.journal.end:
                flying = [entry for _, entry in coordinator.in_flight]
                again = load([*entries, *flying])
                assert dump(again) == dump(coordinator.shard), "replay differs from the live state"

    @staticmethod
    def _agree(shard: Shard, reference: Reference) -> None:
        for begin, told in reference.transactions.items():
            outcome = shard.transactions.outcome(begin)
            if outcome is None and told.state.finished and not shard.transactions._outcomes:
                continue  # The test lets it forget what is finished.
            assert outcome is not None, f"the shard lost the transaction at {begin}"
            assert (outcome.state, outcome.commit_sequence) == (told.state, told.sequence)
        unfinished = {b for b, t in reference.transactions.items() if not t.state.finished}
        assert {t.begin for t in shard.transactions} == unfinished
        for group in {*reference.iovs, *shard.offsets.groups()}:
            offsets = shard.offsets.committed(group).offsets
            assert {p: o.place for p, o in offsets.items()} == reference.iov(group)
        held = {n: (p.generation, p.voided) for n, p in shard.producers.items()}
        assert held == reference.generations
        assert shard.bindings == reference.bindings

    def _replied(self, ref: Ref, command: c.Command, reply: c.Reply) -> None:
        match reply:
            case c.Began():
                assert isinstance(command, c.Begin)
                self._began(command, reply.txid)
            case c.Outcome() if reply.state.commits or reply.state.aborts:
                self._decided(reply.txid, reply.state, reply.commit_sequence)
            case TransactionCommittedError():
                self._decided(command.txid, State.COMMITTING, None)  # type: ignore[union-attr]
            case TransactionAbortedError():
                self._decided(command.txid, State.ABORTING, None)  # type: ignore[union-attr]
            case c.Outcome(state=State.UNKNOWN):
                assert not self._known[ref], f"{reply.txid} was begun, and is denied"
            case c.GroupOffsets():
                assert isinstance(command, c.FetchOffsets)
                sequence = reply.commit_sequence
                assert (-1 if sequence is None else sequence) >= self._floors[ref], (
                    "a stale IOV was told"
                )
                self._iov(command.group, reply, command.partitions)
            case _:
                pass

    def _began(self, command: c.Begin, told: TxId) -> None:
        session = command.session
        request = session.producer_id, session.nonce, command.request_id
        assert self.begun.setdefault(told, request) == request, f"{told} was given out twice"
        found = self.reference.transactions.get(told.offset)
        assert found is not None, f"{told} was told before it was durable"
        assert (found.producer_id, found.nonce, found.request_id) == request

    def _decided(self, told: TxId, state: State, sequence: int | None) -> None:
        found = self.reference.transactions.get(told.offset)
        assert found is not None, f"{told} was said to be {state}, and is not in the journal"
        assert (found.state.commits, found.state.aborts) == (state.commits, state.aborts), (
            f"{told} was said to be {state}; the journal has it {found.state}"
        )
        assert sequence in (None, found.sequence)
        fate = fates(self.journal.entries, [told])[told]
        assert (fate.state, fate.commit_sequence) == (found.state, found.sequence)

    def _iov(
        self, group: str, offsets: c.GroupOffsets, asked: Iterable[TopicPartition] | None
    ) -> None:
        expected = self.reference.iov(group, offsets.commit_sequence)
        if offsets.commit_sequence is None:
            expected = {}
        elif asked is not None:
            wanted = set(asked)
            expected = {p: place for p, place in expected.items() if p in wanted}
        assert {p: o.place for p, o in offsets.offsets.items()} == expected, (
            f"an IOV of {group} that no commit made was told"
        )
