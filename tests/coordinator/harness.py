"""Plays the runtime of a shard without I/O: a journal in memory whose appends land when told.

A `Coordinator` follows the rules of `runtime.py`: handle, replay at the predicted offset, append,
park the reply until everything before it is acknowledged. The caller decides when an append
lands (`ack`), which are lost (`lose`), what arrives late (`land_late`) and what somebody else
writes (`Journal.append`). Several coordinators may share one journal; those that were replaced
don't know it until an append or the journal's end tells them.

What they tell is checked by `test_shard_checkers.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logtx.coordinator import commands as c
from logtx.coordinator.decision import (
    Decision,
    Effect,
    Instant,
    ShardConfig,
    TopicFacts,
    WriteMarkers,
)
from logtx.coordinator.shard import Shard
from logtx.journal.control import TopicPartition
from logtx.journal.errors import LogtxError
from logtx.journal.fate import NO_EPOCH, FateScan
from logtx.journal.position import Place, Position
from logtx.journal.record_codec import decode_entry, encode_entry
from logtx.journal.records import (
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
        self.meant: list[Begin | None] = []
        """For each record, the BEGIN of the transaction that its writer had in mind."""

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        return len(self.entries)

    def append(self, entry: Entry, meant: Begin | None = None) -> int:
        """A record lands; returns its offset."""
        self.entries.append(decode_entry(encode_entry(entry)))
        self.meant.append(meant)
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


@dataclass(frozen=True, slots=True)
class Flying:
    """A record on its way to the journal."""

    predicted: int
    entry: Entry
    meant: Begin | None


class Coordinator:
    """One coordinator of the journal partition: `runtime.PartitionRuntime` without I/O."""

    # For the proof that checkers bite, each of the runtime's rules can be dropped:
    parks_replies = True
    """Replies wait for their own records."""
    parks_bare_replies = True
    """Replies that need no record wait for those before."""
    checks_offsets = True
    """An append acknowledged at another offset than predicted is a surprise."""
    asks_for_the_end = True
    """An answer that could be stale waits until the journal's end is known."""
    wins_new_epochs = True
    """After a surprise it serves only under a new OWNER."""

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
        self.in_flight: deque[Flying] = deque()
        """Appended and neither acknowledged nor lost."""
        self.late: deque[Flying] = deque()
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
        if not self.wins_new_epochs and shard.owner and shard.owner.address == self.name:
            self._serve(shard)
            return
        incarnation = INCARNATION if shard.epoch == NO_EPOCH else shard.incarnation
        owner = Owner(replaces=shard.epoch, address=self.name, process_nonce=1)
        offset = self.journal.append(Entry(shard.epoch, incarnation, owner))
        shard.replay(offset, self.journal.entries[offset])
        assert shard.epoch == offset, "nobody bids in between"
        self._serve(shard)

    def _serve(self, shard: Shard) -> None:
        self.shard, self.acknowledged_end, self.serving = shard, shard.next_offset, True
        self._listen(self, Owned(shard.epoch))
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
            flying = self.in_flight.popleft()
            offset = self.journal.append(flying.entry, flying.meant)
            if not self.serving:
                continue
            if offset != flying.predicted and self.checks_offsets:
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
                or which ones, for an append may be lost and those behind it land.
            late: the others land later, by `land_late`; else they are lost.
        """
        keep = set(range(landed)) if isinstance(landed, int) else set(landed)
        if self.serving:
            self._surprise()
        in_flight, self.in_flight = self.in_flight, deque()
        for index, flying in enumerate(in_flight):
            if index in keep:
                self.journal.append(flying.entry, flying.meant)
            elif late:
                self.late.append(flying)
        self.take_over()

    def land_late(self, count: int | None = None) -> None:
        """Appends that were given up land after all."""
        for _ in range(len(self.late) if count is None else count):
            if self.late:
                flying = self.late.popleft()
                self.journal.append(flying.entry, flying.meant)

    def finish(self, begin: int, gone: tuple[TopicPartition, ...] = ()) -> None:
        """All markers of a decided transaction are written, or their partitions gone."""
        del self.markers[begin]
        self._apply(self.shard.finish(begin, gone))

    def pass_time(self, milliseconds: int) -> None:
        """Time goes by, and what becomes due is done."""
        now = self.now
        self.now = Instant(now.monotonic_ms + milliseconds, now.wall_ms + milliseconds)
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
            decision = self.shard.due(self.now) if self.serving else None
            if decision is None:
                return
            self._apply(decision)
        raise AssertionError("due() never comes to its end")

    def _apply(self, decision: Decision) -> None:
        shard = self.shard
        for record in decision.records:
            offset, entry = shard.next_offset, shard.entry(record)
            shard.replay(offset, entry)
            self.in_flight.append(Flying(offset, entry, self._meant(record)))
            self._listen(self, Appended(offset, record))
        for ref, reply in decision.replies:
            parks = self.parks_replies if decision.records else self.parks_bare_replies
            parked = Parked(ref, reply, shard.next_offset if parks else 0)
            if decision.fresh and self.asks_for_the_end:
                self._ask(parked)
            else:
                self._park(parked)
        for producer_id, nonce, error in decision.close:
            self._listen(self, Closed(producer_id, nonce, error))

    def _meant(self, record: JournalRecord) -> Begin | None:
        begin: int | None = getattr(record, "begin", None)
        if begin is None:
            return None
        flying = (f.entry for f in self.in_flight if f.predicted == begin)
        found = next(flying, None) or self.journal.entries[begin]
        assert isinstance(found.record, Begin), f"{record} is about no BEGIN"
        return found.record

    def _ask(self, parked: Parked) -> None:
        end = self.journal.end
        if end > self.shard.next_offset and self.serving:
            self._surprise()
        self._park(Parked(parked.ref, parked.reply, max(parked.behind, end)))

    def _park(self, parked: Parked) -> None:
        if not self.serving:
            self._listen(self, Failed(parked.ref))
            return
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
                {place: sorted(begins) for place, begins in g.to_come.items()},
            )
            for name, g in groups.items()
        },
        "bindings": dict(shard.bindings),
    }
