"""What nobody used for long is forgotten, and nothing else; what comes back is never the newer one.

Finding 22 of the coordinator; traps 8, 28 and 32.
"""

from __future__ import annotations

from typing import Any

import pytest

from logtx.coordinator.core.ages import NAMES_BYTES_MAX, NAMES_MAX
from logtx.coordinator.core.decision import ClearOffsets, ShardConfig, WriteOffsets
from logtx.coordinator.protocol import commands
from logtx.journal.errors import NotAllowedError, ProducerFencedError
from logtx.journal.modes import binding_of
from logtx.journal.producer_ids import producer_id_of
from logtx.journal.records.types import Bind, Forget, ProducerRecord

from ..harness import Coordinator, Emitted, Event, Journal, dump, step
from .test_snapshot import known, replica, take_snapshot

CONFIG = ShardConfig(session_grace_ms=300, producer_retention_hours=3, group_retention_hours=5)
Names = tuple[str, ...]
STEPS = (step(("a", 0), None, 1),)


class World:
    """One coordinator, and what its effects ask for."""

    def __init__(self) -> None:
        """Begins to serve."""
        self.events: list[Event] = []
        self.journal = Journal()
        self.asked = 0
        self.coordinator = self.take_over()

    def take_over(self) -> Coordinator:
        """Another coordinator loads the journal and serves."""
        self.coordinator = Coordinator(
            self.journal, config=CONFIG, listen=lambda _, event: self.events.append(event)
        )
        self.coordinator.take_over()
        return self.coordinator

    def ask(self, command: commands.Command) -> Any:
        """Returns the answer to a command, once it is durable."""
        self.asked += 1
        self.coordinator.submit(command, self.asked)
        self.coordinator.ack()
        return self.coordinator.replies[self.asked]

    def connect(
        self, name: str, nonce: int = 1, generation: int | None = None
    ) -> commands.SessionId:
        """Returns the session of a producer whose stream breaks at once."""
        reply = self.ask(commands.Connect(producer_id=name, nonce=nonce, generation=generation))
        assert isinstance(reply, commands.Connected), reply
        return commands.SessionId(name, reply.generation, nonce)

    def begin(self, session: commands.SessionId, request_id: int = 1) -> Any:
        """Returns the TxId of a transaction."""
        command = commands.Begin(
            session=session, request_id=request_id, answered_below=0, timeout_ms=900_000
        )
        return self.ask(command).txid

    def end(self, session: commands.SessionId, txid: Any) -> None:
        """Commits it; its markers stay unwritten."""
        command = commands.End(session=session, txid=txid, action=commands.Action.COMMIT, writes={})
        assert isinstance(self.ask(command), commands.Outcome)

    def commit(self, session: commands.SessionId, group: str, request_id: int = 1) -> None:
        """Commits a transaction that moves a group's offsets, and finishes it."""
        txid = self.begin(session, request_id)
        offsets = commands.AddOffsets(session=session, txid=txid, group=group, steps=STEPS)
        assert isinstance(self.ask(offsets), commands.Done)
        self.end(session, txid)
        self.coordinator.finish(txid.offset)
        self.coordinator.ack()

    def hours(
        self, count: int, groups: tuple[str, ...] = (), bindings: tuple[str, ...] = ()
    ) -> None:
        """Ends hours of service."""
        for _ in range(count):
            self.coordinator.end_hour(groups, bindings)
            self.coordinator.ack()

    @property
    def known(self) -> set[str]:
        """Producers that are known."""
        return set(self.coordinator.shard.producers)


@pytest.fixture
def world() -> World:
    """A coordinator that serves."""
    return World()


def test_finding_22_a_producer_that_nobody_uses_is_forgotten(world: World) -> None:
    world.connect("p")
    world.hours(CONFIG.producer_retention_hours)
    assert world.known == {"p"}, "not before full hours have passed"
    world.hours(1)
    assert world.known == set()
    assert dump(world.journal.load(CONFIG)) == dump(world.coordinator.shard)


def test_a_begin_is_a_use(world: World) -> None:
    session = world.connect("p")
    world.hours(2)
    world.end(session, world.begin(session))
    world.hours(3)
    assert world.known == {"p"}
    world.hours(1)
    assert world.known == set()


@pytest.mark.parametrize("why", ["stream", "grace", "open", "key"])
def test_what_may_come_back_is_kept(why: str, world: World) -> None:
    name = "&default&k" if why == "key" else "p"
    session = world.connect(name)
    if why in ("stream", "grace"):
        world.coordinator.attach(name)
    if why == "grace":
        world.coordinator.detach(name, 1)
    if why == "open":
        world.begin(session)
    world.hours(9)
    assert world.known == {name}


def test_a_connection_is_a_use(world: World) -> None:
    """Else one whose stream broke for a moment, as an hour ended, would be fenced."""
    session = world.connect("p")
    world.coordinator.attach("p")
    world.hours(10)
    world.coordinator.detach("p", session.nonce)
    world.coordinator.pass_time(CONFIG.session_grace_ms + 1)
    world.hours(2)
    assert "p" in world.known
    world.hours(2)
    assert "p" not in world.known


def test_a_generation_far_above_the_floor_is_kept(world: World) -> None:
    """Forgotten, it would leave no generation to any name that is new."""
    record = ProducerRecord(
        producer_id="far", generation=2**63 - 1, session_nonce=1, owner="default", connected_ms=0
    )
    world.coordinator.tenure._append((record,))
    world.coordinator.ack()
    world.connect("near")
    world.hours(10)
    assert world.known == {"far"}
    assert world.connect("new").generation == 1, "above near only"


def test_those_behind_many_that_stay_have_their_turn(world: World) -> None:
    ages = world.coordinator.shard.ages
    for number in range(1_200):
        world.coordinator.tenure._append((Bind(group=f"g{number}", transaction_group="t"),))
    world.coordinator.ack()
    world.hours(CONFIG.group_retention_hours)
    met: set[str] = set()
    for _ in range(4):
        met.update(ages.idle_bindings()[:500])
        world.hours(1, bindings=())
    assert len(met) == 1_200


def test_trap_32_a_forgotten_generation_never_comes_back(world: World) -> None:
    for nonce in range(1, 8):
        zombie = world.connect("p", nonce)
    assert zombie.generation == 6
    world.hours(4)
    # Before the new client, behind a reload, and after it.
    again = commands.Connect(producer_id="p", nonce=7, generation=6)
    assert isinstance(world.ask(again), ProducerFencedError)
    world.take_over()
    refusal = world.ask(again)
    assert isinstance(refusal, ProducerFencedError)
    assert "above generation 6" in str(refusal)
    assert world.connect("p", 9).generation == 7
    assert isinstance(world.ask(again), ProducerFencedError)
    begin = commands.Begin(session=zombie, request_id=9, answered_below=0, timeout_ms=1_000)
    assert isinstance(world.ask(begin), ProducerFencedError)


def test_the_floor_holds_for_names_that_are_new(world: World) -> None:
    world.connect("p", generation=40)
    world.hours(4)
    assert world.connect("q").generation == 41
    assert isinstance(
        world.ask(commands.Connect(producer_id="r", nonce=1, generation=40)), ProducerFencedError
    )
    assert world.connect("r", generation=41).generation == 41


def test_the_floor_is_in_a_snapshot(world: World) -> None:
    world.connect("p", generation=40)
    world.connect("q")
    world.ask(commands.BindGroup(group="g", transaction_group="default"))
    world.hours(4)
    session = world.connect("q")
    world.commit(session, "g")
    first = take_snapshot(world.coordinator)
    world.coordinator.ack()
    found = replica(world.journal.entries, first, certain=True).shard
    assert known(found) == known(world.journal.load(CONFIG))
    assert found.producers.floor == 40
    assert found.ages.groups == {"g": 4}


def test_finding_22_a_producer_without_an_id_leaves_nothing_behind(world: World) -> None:
    name = producer_id_of("default", None)
    world.connect("p", generation=0)
    for number in range(100):
        world.connect(producer_id_of("default", None), number)
    session = world.connect(name, 7)
    world.hours(2)
    assert world.known == {"p"}
    # It raised no floor, and its client may come back: nobody else can have its name.
    assert world.coordinator.shard.producers.floor == -1
    assert world.connect(name, 7, session.generation) == session


def test_so_many_names_at_once_only(world: World) -> None:
    for number in range(NAMES_MAX + 5):
        world.coordinator.shard.producers.replay(_producer(f"p{number}"), 0)
    for name in ("x" * NAMES_BYTES_MAX, "y"):
        world.coordinator.shard.producers.replay(_producer(name), 0)
    world.hours(4)
    assert len(world.known) == 7
    world.hours(1)
    assert len(world.known) == 2, "the long name waits for a record of its own"


def test_those_that_had_no_room_get_records_of_their_own_in_the_same_hour(world: World) -> None:
    for number in range(2 * NAMES_MAX + 5):
        world.coordinator.shard.producers.replay(_producer(f"p{number}"), 0)
    world.hours(4)
    assert len(world.known) == NAMES_MAX + 5
    hour = world.coordinator.shard.ages.hour
    assert [world.coordinator.forget_rest() for _ in range(3)] == [True, True, False]
    assert not world.known
    world.coordinator.ack()
    assert world.coordinator.shard.ages.hour == hour


def _producer(name: str) -> ProducerRecord:
    return ProducerRecord(producer_id=name, generation=0, session_nonce=0, owner="default")


# ---- consumer groups -----------------------------------------------------------------------------


def test_finding_22_offsets_of_a_group_that_nobody_uses_are_forgotten(world: World) -> None:
    session = world.connect("p")
    world.commit(session, "g")
    claim = commands.ClaimOffsets(group="g", claimant=1, partitions=(("a", 0),))
    assert isinstance(world.ask(claim), commands.Claimed)
    world.hours(CONFIG.group_retention_hours, groups=("g",))
    assert world.coordinator.shard.ages.knows("g"), "not before full hours have passed"
    world.hours(1)
    assert world.coordinator.shard.ages.knows("g"), "it has a member"
    world.hours(1, groups=("g",))
    assert not world.coordinator.shard.ages.knows("g")
    assert world.coordinator.shard.ages.groups == {}
    assert world.ask(commands.FetchOffsets(group="g")) == commands.GroupOffsets({})
    cleared = [e.effect for e in world.events if isinstance(e, Emitted)]
    assert ClearOffsets("g") in cleared


def test_a_new_owner_removes_the_copy_of_offsets_that_were_forgotten_before(world: World) -> None:
    session = world.connect("p")
    for number, group in enumerate(("g", "h")):
        world.commit(session, group, number + 1)
        assert world.ask(commands.ForgetGroup(group=group)) == commands.Done()
    world.commit(session, "h", 3)
    before = len(world.events)
    world.take_over()
    effects = [e.effect for e in world.events[before:] if isinstance(e, Emitted)]
    assert [e for e in effects if isinstance(e, ClearOffsets)] == [ClearOffsets("g")]
    assert [e.group for e in effects if isinstance(e, WriteOffsets)] == ["h"]


def test_finding_22_offsets_in_a_deleted_topic_can_be_taken_out(world: World) -> None:
    session = world.connect("p")
    world.commit(session, "g")
    txid = world.begin(session, 2)
    steps = (step(("old", 0), None, 3), step(("old", 7), None, 9))
    world.ask(commands.AddOffsets(session=session, txid=txid, group="g", steps=steps))
    world.end(session, txid)
    claim = commands.ClaimOffsets(group="g", claimant=1, partitions=(("a", 0), ("old", 0)))
    world.ask(claim)
    forget = commands.ForgetGroup(group="g", topics=("old",))
    assert isinstance(world.ask(forget), NotAllowedError), "not finished"
    world.coordinator.finish(txid.offset)
    world.coordinator.ack()
    size = world.coordinator.shard.offsets._groups["g"].size_bytes
    for _ in range(2):
        assert world.ask(forget) == commands.Done()
    assert set(world.ask(commands.FetchOffsets(group="g")).offsets) == {("a", 0)}
    assert [row.partitions for row in world.coordinator.shard.claims.rows()] == [(("a", 0),)]
    assert world.coordinator.shard.offsets._groups["g"].size_bytes < size / 2
    *_, last = (e.effect for e in world.events if isinstance(e, Emitted))
    assert isinstance(last, WriteOffsets)
    assert set(last.offsets.offsets) == {("a", 0)}
    assert dump(world.journal.load(CONFIG)) == dump(world.coordinator.shard)


def test_what_a_transaction_holds_is_kept(world: World) -> None:
    session = world.connect("p")
    world.commit(session, "g")
    txid = world.begin(session, 2)
    steps = (step(("a", 0), 1, 2),)
    world.ask(commands.AddOffsets(session=session, txid=txid, group="g", steps=steps))
    world.hours(9, groups=("g",))
    assert world.coordinator.shard.ages.knows("g")
    refused = world.ask(commands.ForgetGroup(group="g"))
    assert isinstance(refused, NotAllowedError)
    # Decided, but not finished: its offsets may still be on their way.
    world.end(session, txid)
    world.hours(9, groups=("g",))
    assert world.coordinator.shard.ages.knows("g")
    world.coordinator.finish(txid.offset)
    world.coordinator.ack()
    world.hours(1, groups=("g",))
    assert not world.coordinator.shard.ages.knows("g")


def test_a_binding_is_bound_again_by_those_who_use_it(world: World) -> None:
    bind = commands.BindGroup(group="g", transaction_group="t")
    other = commands.BindGroup(group="g", transaction_group="other")
    for _ in range(4):
        assert world.ask(other if world.asked else bind) == commands.Binding("t")
        world.hours(2, bindings=("g",))
    assert world.coordinator.shard.bindings == {"g": "t"}
    assert sum(isinstance(e.record, Bind) for e in world.journal.entries) == 4
    world.hours(4, bindings=("g",))
    assert world.coordinator.shard.bindings == {}


def test_a_topic_that_nobody_uses_keeps_its_home(world: World) -> None:
    # Bound to another transaction group after years, it would have two homes that place there.
    name = binding_of("orders")
    bind = commands.BindGroup(group=name, transaction_group="t")
    assert world.ask(bind) == commands.Binding("t")
    world.hours(40, bindings=(name,))
    assert world.coordinator.shard.ages.idle_bindings() == []
    other = commands.BindGroup(group=name, transaction_group="other")
    assert world.ask(other) == commands.Binding("t")
    refused = world.ask(commands.UnbindGroup(group=name))
    assert isinstance(refused, NotAllowedError)
    assert "bound for ever" in str(refused)
    assert world.coordinator.shard.bindings == {name: "t"}
    assert sum(isinstance(e.record, Bind) for e in world.journal.entries) == 1


def test_a_group_that_was_named_once_leaves_no_age(world: World) -> None:
    session = world.connect("p")
    txid = world.begin(session)
    world.ask(commands.AddOffsets(session=session, txid=txid, group="g", steps=STEPS))
    abort = commands.End(session=session, txid=txid, action=commands.Action.ABORT, writes={})
    assert isinstance(world.ask(abort), commands.Outcome)
    world.coordinator.finish(txid.offset)
    world.coordinator.ack()
    world.hours(1)
    assert world.coordinator.shard.ages.groups == {}


def test_an_hour_without_uses_costs_one_small_record(world: World) -> None:
    world.hours(1)
    assert world.journal.entries[-1].record == Forget(hours=1)


# ---- operators -----------------------------------------------------------------------------------


def test_an_operator_forgets_a_producer(world: World) -> None:
    session = world.connect("p", generation=9)
    txid = world.begin(session)
    forget = commands.ForgetProducer(producer_id="p")
    assert isinstance(world.ask(forget), NotAllowedError), "it has a transaction open"
    world.end(session, txid)
    world.coordinator.attach("p")
    assert isinstance(world.ask(forget), NotAllowedError), "it is connected"
    world.coordinator.detach("p", 1)
    assert isinstance(world.ask(forget), NotAllowedError), "it may come back"
    world.coordinator.pass_time(300)
    assert world.ask(forget) == commands.Done()
    assert world.ask(forget) == commands.Done(), "a repeat"
    assert world.connect("p", 2).generation == 10
    assert isinstance(
        world.ask(commands.ForgetProducer(producer_id="&default&k")), commands.Done
    ), "there is none"
    world.connect("&default&k", 3)
    refused = world.ask(commands.ForgetProducer(producer_id="&default&k"))
    assert "delete the key" in str(refused)


def test_an_operator_forgets_a_group(world: World) -> None:
    world.ask(commands.BindGroup(group="g", transaction_group="t"))
    world.commit(world.connect("p"), "g")
    for _ in range(2):
        assert world.ask(commands.ForgetGroup(group="g")) == commands.Done()
    assert world.coordinator.shard.bindings == {"g": "t"}
    for _ in range(2):
        assert world.ask(commands.UnbindGroup(group="g")) == commands.Done()
    assert world.ask(commands.BindGroup(group="g", transaction_group="u")) == commands.Binding("u")
    assert dump(world.journal.load(CONFIG)) == dump(world.coordinator.shard)
