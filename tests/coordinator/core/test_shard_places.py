"""Random histories in which topics are switched to places and back, at every record of which a new
owner may go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import pytest

from logtx.coordinator.core import snapshot as snapshots
from logtx.coordinator.core.decision import Decision
from logtx.coordinator.core.modes import TopicModes
from logtx.coordinator.core.places import Places
from logtx.coordinator.core.placing import Placer, PlaceWrites
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.shard_state import ShardState
from logtx.coordinator.core.snapshot import SnapshotTaker
from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.errors import CorruptRecordError
from logtx.journal.modes import Mode, ModeChange, Phase
from logtx.journal.places import GONE, PartitionId, Placed
from logtx.journal.records.types import PrepareCommit, Snapshot

from ...parameters import slow
from ..harness import Coordinator, Journal
from .test_shard_checkers import Checker
from .test_shard_stateful import CONFIG, WEIGHTS, World, pick, run_seed
from .test_snapshot import counting, known, replica

PLACED_WEIGHTS: Final = {
    **WEIGHTS,
    "commit": 16,
    "part": 3,
    "switch": 6,
    "carry_out": 4,
    "place": 16,
    "settle_places": 3,
    "chunk": 6,
}


class PlacedWorld(World):
    """A `World` with data partitions that have an end, and topics that are switched."""

    def __init__(self) -> None:
        self.ends: dict[TopicPartition, int] = {}
        self._takers: dict[int, tuple[Shard, SnapshotTaker]] = {}
        super().__init__()
        self.switch(0, 0, 0)  # topic b; topic a begins with markers
        self.settle_places(0)

    def cut(self, end: int) -> PlacedWorld:
        """Returns a world whose journal ends here, and whose data partitions are as they are."""
        world = PlacedWorld()
        world.journal = Journal()
        for entry, meant in zip(self.journal.entries[:end], self.journal.meant, strict=False):
            world.journal.append(entry, meant)
        world.checker = Checker(world.journal)
        world.ends = dict(self.ends)
        world.coordinators = [
            Coordinator(world.journal, name="c9", config=CONFIG, listen=world.checker.listen)
        ]
        world.coordinators[0].take_over()
        return world

    def write(self, key: TopicPartition, branch: int = 0) -> tuple[BranchRange, ...]:
        """Lets a record land in a data partition."""
        offset = self.ends.get(key, 0)
        self.ends[key] = offset + 1
        return (BranchRange(branch, offset, offset, 1),)

    def end(self, who: int, which: int, action: commands.Action, where: int) -> None:
        """Commits or aborts one of a client's transactions, which wrote to two topics."""
        client = pick(self.clients, who)
        if client.session is None or not client.transactions:
            return
        told = client.transactions[-1 - which % len(client.transactions)]
        found = self.checker.reference.transactions.get(told.offset)
        keys = [("b", which % 4), ("a", 2 + which % 2)][: 1 + which % 2]
        command = commands.End(
            session=client.session,
            txid=told,
            action=action,
            writes={key: self.write(key) for key in keys} | ({("b", 3): ()} if who else {}),
            parts=0 if found is None else found.parts,
        )
        self.ask(client, command, where)

    def part(self, who: int, which: int, where: int) -> None:
        """Names a part of what branches wrote."""
        client = pick(self.clients, who)
        if client.session is None or not client.transactions:
            return
        told = client.transactions[-1]
        found = self.checker.reference.transactions.get(told.offset)
        parts = 0 if found is None else found.parts
        key = ("b", which % 4)
        writes = {key: self.write(key, branch=parts + 1)}
        command = commands.AddWrites(session=client.session, txid=told, part=parts, writes=writes)
        self.ask(client, command, where)

    def switch(self, who: int, which: int, where: int) -> None:
        """Asks for a switch of one topic; with or without mode records."""
        mode = (Mode.METADATA, Mode.MARKERS)[which % 2]
        command = commands.SetTopicMode(
            topic="ba"[which // 8 % 2], mode=mode, without_records=which // 2 % 4 == 3
        )
        self.ask(pick(self.clients, who), command, where)

    def carry_out(self, where: int) -> bool:
        """Writes mode records, ends switches without them, and publishes; where that may be."""
        coordinator, done = self.at(where), False
        if not coordinator.serving:
            return False
        for topic, effect in list(coordinator.mode_records.items()):
            ends = {p: self.ends.get((topic, p), 0) for p in range(4)}
            if not effect.with_records:
                done |= coordinator.end_mode(topic, ends)
            elif coordinator.may_record(topic):
                coordinator.record_mode(topic, max(ends.values()))
                done = True
        for topic in list(coordinator.to_publish):
            coordinator.publish(topic)
            done = True
        return done

    def place(self, which: int, where: int) -> None:
        """Asks for ends, or answers: some may be missing, late, or gone."""
        coordinator = self.at(where)
        if not coordinator.serving:
            return
        if coordinator.question is None:
            coordinator.ask_ends()
            return
        ends: dict[PartitionId, int] = {}
        for index, partition in enumerate(coordinator.question.partitions):
            told = self.ends.get(partition.key, 0) - (which % 3 == 1)
            if (index + which) % 4 != 3:
                ends[partition] = GONE if which % 4 == 2 else max(told, 0)
        coordinator.tell_ends(ends)

    def settle_places(self, where: int) -> None:
        """Goes on until nothing more can be placed, recorded or published."""
        coordinator = self.at(where)
        coordinator.ack()
        while coordinator.serving:
            moved = self.carry_out(where)
            if coordinator.question is not None or coordinator.ask_ends():
                question = coordinator.question
                assert question is not None
                coordinator.tell_ends({p: self.ends.get(p.key, 0) for p in question.partitions})
                moved = True
            if not moved and not coordinator.in_flight:
                return
            coordinator.ack()
            coordinator.pass_time(1_000)

    def finish(self, which: int, where: int) -> None:
        """Reports all markers of a transaction as written, if they may go out."""
        coordinator = self.at(where)
        if coordinator.serving:
            free = [begin for begin in coordinator.markers if coordinator.may_mark(begin)]
            if free:
                coordinator.finish(pick(free, which))

    def append_chunks(self, count: int, where: int) -> None:
        """Appends the next chunks of the coordinator's snapshot, or of another one."""
        for _ in range(count):
            self._append_chunk(where)

    def _append_chunk(self, where: int) -> None:
        coordinator = self.at(where)
        if not coordinator.serving:
            return
        shard, taker = self._takers.get(id(coordinator), (None, None))
        if taker is None or taker.done or shard is not coordinator.shard:
            shard, taker = coordinator.shard, SnapshotTaker(coordinator.shard)
            self._takers[id(coordinator)] = shard, taker
        coordinator.apply(Decision(records=(taker.chunk(),)))

    def settle(self) -> None:
        """Goes on without faults until everything has ended: nothing waits for ever (R4)."""
        owner = self.at(0)
        owner.lose()
        owner.pass_time(100_000)
        for _ in range(1_000):
            self.settle_places(0)
            if not owner.markers:
                break
            self.finish(0, 0)
        self.check()
        waits = [t for t in self.checker.reference.transactions.values() if not t.state.finished]
        assert not waits, f"{waits} wait for ever"
        assert not owner.mode_records, "a switch never ends"
        assert all(phase in tuple(Mode) for _, phase in self.checker.reference.modes.values())
        assert len(owner.shard.places.unplaced) == 0

    def acts(self, a: int, b: int, where: int) -> dict[str, Callable[[], None]]:
        """Returns what can be done."""
        return {
            **super().acts(a, b, where),
            "part": lambda: self.part(a, b, where),
            "switch": lambda: self.switch(a, b, where),
            "carry_out": lambda: void(self.carry_out(where)),
            "place": lambda: self.place(b, where),
            "settle_places": lambda: self.settle_places(where),
            "chunk": lambda: self.append_chunks(4 + b, where),
        }


def void(_: object) -> None:
    """Drops a result."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", 300)


def played(seed: int, steps: int = 80) -> PlacedWorld:
    """Plays a history without going on to its end."""
    chance = Random(seed)
    world = PlacedWorld()
    for who in (0, 2):
        world.connect(who, 0, 0)
    world.ack(9, 0)
    names, weights = list(PLACED_WEIGHTS), list(PLACED_WEIGHTS.values())
    for _ in range(steps):
        [action] = chance.choices(names, weights)
        a, b = chance.choice((0, 0, 0, 2, 2, 1, 3)), chance.randrange(16)
        world.act(action, a, b, int(chance.random() < 0.1))
    world.ack(99, 0)
    return world


@pytest.mark.parametrize("seed", [*range(20), *slow(range(20, 30))])
def test_history_of_seed(seed: int) -> None:
    run_seed(seed, make=PlacedWorld, weights_of=PLACED_WEIGHTS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_histories_of_many_seeds() -> None:
    for seed in range(1_000, 2_000):
        run_seed(seed, 120, make=PlacedWorld, weights_of=PLACED_WEIGHTS)


@pytest.mark.parametrize("seed", [*range(20), *slow(range(20, 40))])
def test_a_load_from_a_snapshot_equals_one_from_the_start(seed: int) -> None:
    entries = played(seed).journal.entries
    truth = known(replica(entries).shard)
    found = counting(entries)
    for start in found:
        assert known(replica(entries, start, certain=True).shard) == truth
    for start in range(1, max(found, default=0) + 1):
        assert known(replica(entries, start).shard) == truth


@pytest.mark.parametrize("seed", [*range(100, 105), *slow(range(105, 116))])
def test_every_prefix_of_the_journal_is_a_safe_state(seed: int) -> None:
    world = played(seed, steps=50)
    for cut in range(1, world.journal.end + 1):
        world.cut(cut).settle()


def drawn(seeds: range) -> Mapping[str, int]:
    """Returns how often each thing that the histories are for happens in them."""
    counts: dict[str, int] = dict.fromkeys(
        ("placed", "gone", "to-markers", "mixed", "without", "snapshots"), 0
    )
    for seed in seeds:
        entries = played(seed).journal.entries
        counted = counting(entries)
        for entry in entries:
            match entry.record:
                case Placed(ends=ends):
                    counts["placed"] += 1
                    counts["gone"] += GONE in ends.values()
                case ModeChange(phase=phase, with_records=with_records):
                    counts["to-markers"] += phase is Phase.TO_MARKERS
                    counts["without"] += not with_records
                case PrepareCommit(placed=placed, writes=writes) if placed:
                    counts["mixed"] += len(placed) < len(writes)
                case Snapshot(first=first, places=rows) if rows and first in counted:
                    counts["snapshots"] += 1
                case _:
                    pass
    return counts


@pytest.mark.parametrize(
    ("histories", "least"), [(25, 3), pytest.param(60, 5, marks=pytest.mark.slow)]
)
def test_the_histories_have_what_they_are_for(histories: int, least: int) -> None:
    counts = drawn(range(histories))
    assert min(counts.values()) >= least, sorted(counts.items(), key=lambda c: c[1])


# ---- rules that are left out --------------------------------------------------------------------


def places_fall(patch: pytest.MonkeyPatch) -> None:
    """A place is whatever end a broker told (R3)."""

    def place(self: Places, upto: int, ends: Mapping[PartitionId, int]) -> Placed | None:
        waits = {p: end for p, end in ends.items() if len(self.unplaced.of(p))}
        return Placed(upto, waits) if waits else None

    patch.setattr(Places, "place", place)


def finished_at_the_first_place(patch: pytest.MonkeyPatch) -> None:
    """A transaction is finished as soon as one of its partitions is placed."""
    placed = Placer.placed

    def mutant(self: Placer, record: Placed) -> list[int]:
        before = dict(self._left)
        whole = placed(self, record)
        begun = [b for b, left in self._left.items() if left < before[b]]
        for begin in begun:
            self._left[begin] = 99
        return [*whole, *begun]

    patch.setattr(Placer, "placed", mutant)


def switching_counts_as_switched(patch: pytest.MonkeyPatch) -> None:
    """Decisions are placed before the mode records are written (R15)."""

    def is_placed(self: TopicModes, partition: PartitionId) -> bool:
        phase = self.phase(partition.topic, partition.topic_id)
        return phase in (Phase.TO_METADATA, Phase.METADATA)

    patch.setattr(TopicModes, "is_placed", is_placed)
    patch.setattr(TopicModes, "places_any", True)


def a_new_owner_forgets_what_is_not_placed(patch: pytest.MonkeyPatch) -> None:
    """A new owner does not place what was decided before it."""
    ends = ShardState._ends
    patch.setattr(
        ShardState,
        "_ends",
        lambda self: [e for e in ends(self) if not isinstance(e, PlaceWrites)],
    )


RULES: Final = (
    places_fall,
    finished_at_the_first_place,
    switching_counts_as_switched,
    a_new_owner_forgets_what_is_not_placed,
)


@pytest.mark.parametrize("leave_out", RULES)
def test_a_rule_that_is_left_out_is_noticed(
    leave_out: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        run_seeds(range(10, 60))  # The first ten do not show two of the rules.


def run_seeds(seeds: range) -> None:
    for seed in seeds:
        run_seed(seed, make=PlacedWorld, weights_of=PLACED_WEIGHTS)


def snapshots_forget_places(patch: pytest.MonkeyPatch) -> None:
    """A snapshot lists nothing of what is unfinished (R13)."""
    rows = snapshots._rows
    patch.setattr(snapshots, "_rows", lambda shard: (*rows(shard)[:8], [], *rows(shard)[9:]))


def snapshots_forget_last_places(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is no fence (R14)."""
    rows = snapshots._rows
    patch.setattr(snapshots, "_rows", lambda shard: (*rows(shard)[:7], [], *rows(shard)[8:]))


def snapshots_forget_modes(patch: pytest.MonkeyPatch) -> None:
    """A snapshot forgets the modes of topics."""
    rows = snapshots._rows
    patch.setattr(snapshots, "_rows", lambda shard: (*rows(shard)[:6], [], *rows(shard)[7:]))


@pytest.mark.parametrize(
    "forget", [snapshots_forget_places, snapshots_forget_last_places, snapshots_forget_modes]
)
def test_a_snapshot_that_leaves_something_out_is_noticed(
    forget: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(monkeypatch)
    with pytest.raises((AssertionError, CorruptRecordError)):
        load_from_snapshots(range(40))


def load_from_snapshots(seeds: range) -> None:
    for seed in seeds:
        test_a_load_from_a_snapshot_equals_one_from_the_start(seed)
