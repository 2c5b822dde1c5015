"""Transactions of other transaction groups and of keys in a topic in metadata mode: from client to
client, on a log in memory. Nothing but their own records is written to the topic."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing

import pytest

from logtx.consumer.consumer import Consumer
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.core.adopting import ADOPT_BYTES
from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.commands import Outcome
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.inspect.audit import run_audit
from logtx.integration.inspect.groups import Group, Span
from logtx.integration.inspect.sums import sum_up
from logtx.journal.control import TopicPartition
from logtx.journal.errors import HandedOverError
from logtx.journal.logs.interface import GroupOffset
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode
from logtx.journal.places import Adoption
from logtx.journal.position import Passed, Position
from logtx.journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from logtx.journal.reader import find_fates, journal_partition_of, read_entries
from logtx.producer.core.accepted import AcceptedWrites
from logtx.producer.producer import Producer
from logtx.producer.transaction import Transaction

from .integration.spark.test_places import Reading, batch
from .waiting import eventually

JOURNALS = 2
HOME = journal_partition_of(DEFAULT_TRANSACTION_GROUP, JOURNALS)
OTHER_GROUP = next(
    name for name in ("g", "h", "i", "j") if journal_partition_of(name, JOURNALS) != HOME
)


DEFAULT_LIMITS = ShardConfig()


class World:
    """A log, coordinators, and a topic whose home is not the journal partition of every group."""

    def __init__(
        self, log: MemoryLog, coordinators: int, limits: ShardConfig = DEFAULT_LIMITS
    ) -> None:
        self.log = log
        log.create_topic("t", partitions=2)
        log.create_topic("m", partitions=1)
        self.servers = {"bootstrap.servers": log.bootstrap_servers}
        config = CoordinatorConfig(
            bootstrap_servers=log.bootstrap_servers,
            listen="127.0.0.1:0",
            journal_partitions=JOURNALS,
            limits=limits,
        )
        self.coordinators = [EmbeddedCoordinator(config, log) for _ in range(coordinators)]
        for each in self.coordinators:
            each.start()
        self.clients: list[Producer | Consumer] = []
        self.producers = {
            "own": self.producer(**{"transactional.id": "own"}),
            "group": self.producer(
                **{"transactional.id": "other", "transaction.group": OTHER_GROUP}
            ),
        }

    def producer(self, **settings: str) -> Producer:
        made = Producer({**self.servers, **settings})
        self.clients.append(made)
        return made

    def consumer(self, **settings: object) -> Consumer:
        made = Consumer(
            {**self.servers, "group.id": "g", "auto.offset.reset": "earliest", **settings}
        )
        self.clients.append(made)
        made.subscribe(["t"])
        return made

    def switch(self, mode: Mode) -> None:
        with closing(AdminQueries(self.log, timeout_s=20)) as admin:
            admin.set_topic_mode(
                "t", mode, transaction_group=DEFAULT_TRANSACTION_GROUP, timeout_s=60
            )

    def begin(self, who: str, *values: bytes, partition: int = 0) -> Transaction:
        transaction = self.producers[who].begin_transaction()
        for value in values:
            transaction.produce("t", value=value, partition=partition)
        assert self.producers[who].flush(10) == 0
        return transaction

    def commit(self, who: str, *values: bytes, partition: int = 0) -> Transaction:
        transaction = self.begin(who, *values, partition=partition)
        assert transaction.commit().state.commits
        return transaction

    def ends(self) -> tuple[int, int]:
        return self.log.end_offset("t", 0), self.log.end_offset("t", 1)

    def await_finished(self) -> None:
        with closing(AdminQueries(self.log, timeout_s=20)) as admin:
            eventually(
                lambda: not any(list(admin.list_transactions(j)) for j in range(JOURNALS)),
                timeout_s=30,
            )

    def adoptions(self) -> list[Adoption]:
        end = self.log.end_offset("__transaction_control", HOME)
        with closing(read_entries(self.log, HOME, 0, end, timeout_s=10)) as entries:
            return [e.record for _, e in entries if isinstance(e.record, Adoption)]

    def sums(self, spans: Mapping[TopicPartition, Span]) -> Iterator[Group]:
        for key, span in spans.items():
            yield from sum_up(self.log, key, span)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for each in self.coordinators:
            each.stop()


@pytest.fixture(params=[1, 2], ids=["together", "apart"])
def world(memory_log: MemoryLog, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(memory_log, request.param)
    yield made
    made.close()


def read(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.consume(100, 20)
        assert messages, found
        for message in messages:
            assert message.error() is None, message.error()
            value = message.value()
            assert isinstance(value, bytes)
            found.append(value)
    assert consumer.consume(1, 0.3) == []
    return found


def stopping_after_each(world: World, count: int, group: str) -> list[bytes]:
    """Reads so many records, each with a reader that goes on where the one before stopped."""
    found: list[bytes] = []
    while len(found) < count:
        consumer = world.consumer(**{"group.id": group, "enable.auto.commit": False})
        message = consumer.poll(20)
        assert message is not None
        value = message.value()
        assert isinstance(value, bytes)
        found.append(value)
        consumer.commit(asynchronous=False)
        consumer.close()
    return found


def test_those_of_other_groups_are_delivered_and_nothing_is_written_for_them(
    world: World,
) -> None:
    world.commit("group", b"g0")
    world.switch(Mode.METADATA)
    running = world.consumer(**{"group.id": "running"})
    first, second = world.begin("own", b"o1"), world.begin("group", b"g1", b"g2")
    aborted = world.begin("group", b"never")
    before = world.ends()
    assert second.commit().state.commits
    assert first.commit().state.commits
    aborted.abort()
    world.await_finished()
    assert world.ends() == before, "nothing was written there"
    [adopted, dropped] = world.adoptions()
    assert (adopted.txid, adopted.committed) == (second.txid, True)
    assert (dropped.txid, dropped.committed) == (aborted.txid, False)
    wanted = read(running, 4)
    assert sorted(wanted) == [b"g0", b"g1", b"g2", b"o1"]
    assert running.counters.look_ups == 0
    late = world.consumer(**{"group.id": "late"})
    assert read(late, 4) == wanted, "every reader has the same order"
    world.switch(Mode.MARKERS)
    world.commit("group", b"g3")
    assert read(running, 1) == read(late, 1) == [b"g3"]
    world.await_finished()
    report = run_audit(world.log, ["t"], world.sums)
    assert report.clean, report
    assert report.records == 6, "that of the aborted one is there too"


def test_a_reader_that_stops_in_between_goes_on_exactly(world: World) -> None:
    world.switch(Mode.METADATA)
    for number in range(3):
        world.commit("group", b"g%da" % number, b"g%db" % number)
        world.commit("own", b"o%d" % number)
    wanted = read(world.consumer(**{"group.id": "whole"}), 9)
    assert stopping_after_each(world, len(wanted), "stops") == wanted


def test_a_key_hands_over_too(world: World) -> None:
    world.switch(Mode.METADATA)
    before = world.ends()
    keys = [f"k{n}" for n in range(8)]
    for key in keys:
        producer = world.producer(**{"transaction.key": key})
        with producer.begin_transaction() as txn:
            txn.produce("t", value=key.encode(), partition=1)
    world.await_finished()
    assert world.ends() == (before[0], before[1] + len(keys))
    consumer = world.consumer()
    assert sorted(read(consumer, len(keys))) == sorted(key.encode() for key in keys)
    assert 0 < len(world.adoptions()) < len(keys), "some keys belong to the home itself"


SERIAL = {"isolation.level": "serializable", "transaction.group": OTHER_GROUP}


def test_a_reader_in_serial_order_gets_what_is_handed_over(world: World) -> None:
    world.commit("group", b"g0")
    world.switch(Mode.METADATA)
    running = world.consumer(**SERIAL)
    world.commit("own", b"o1")
    world.commit("group", b"g1a", b"g1b")
    world.begin("group", b"never").abort()
    with world.producers["group"].begin_transaction() as txn:
        txn.produce("t", value=b"g2", partition=1)
        txn.produce("m", value=b"not read")
    wanted = [b"g0", b"g1a", b"g1b", b"g2"]
    assert read(running, 4) == wanted
    world.switch(Mode.MARKERS)
    world.commit("group", b"g3")
    assert read(running, 1) == [b"g3"]
    assert read(world.consumer(**{**SERIAL, "group.id": "late"}), 5) == [*wanted, b"g3"]
    assert world.adoptions()


def test_a_group_may_change_from_serial_order_to_that_of_the_home(world: World) -> None:
    """What it got ahead of its place is not delivered again there, also after a restart."""
    world.switch(Mode.METADATA)
    left = world.begin("own", b"o1")
    world.commit("group", b"g1", b"g2")
    serial = world.consumer(**SERIAL)
    assert read(serial, 2) == [b"g1", b"g2"]
    serial.commit(asynchronous=False)
    serial.close()
    assert left.commit().state.commits
    world.commit("group", b"g3")
    assert sorted(stopping_after_each(world, 2, "g")) == [b"g3", b"o1"]
    assert read(world.consumer(), 0) == []


def test_a_group_that_stopped_within_a_transaction_can_not_change(world: World) -> None:
    world.switch(Mode.METADATA)
    world.commit("group", b"g1", b"g2")
    serial = world.consumer(**SERIAL, **{"enable.auto.commit": False})
    message = serial.poll(20)
    assert message is not None
    assert message.value() == b"g1"
    serial.commit(asynchronous=False)
    serial.close()
    refused = world.consumer(**{"enable.auto.commit": False})
    with pytest.raises(HandedOverError, match="until that is delivered"):
        read(refused, 1)
    refused.close()
    again = world.consumer(**SERIAL)
    assert read(again, 1) == [b"g2"]
    again.commit(asynchronous=False)
    again.close()
    world.commit("group", b"g3")
    assert read(world.consumer(), 1) == [b"g3"]


def test_one_that_has_changed_may_stop_within_a_transaction_that_is_marked(world: World) -> None:
    """Its position keeps for good what it had delivered in serial order."""
    world.switch(Mode.METADATA)
    world.commit("own", b"o1")
    home = world.commit("own", b"o2").txid.journal
    other = world.commit("group", b"g1").txid.journal
    position = Position(o1=0, o2=0, o3=1, passed=Passed(home, 1), delivered={other: 0})
    world.log.commit_group_offset("g", "t", 0, GroupOffset(0, position.to_metadata()))
    assert sorted(read(world.consumer(), 3)) == [b"g1", b"o1", b"o2"]


def test_a_group_that_read_in_the_homes_order_can_not_change_to_serial(world: World) -> None:
    world.switch(Mode.METADATA)
    world.commit("group", b"g1")
    world.commit("own", b"o1")
    committed = world.consumer()
    assert sorted(read(committed, 2)) == [b"g1", b"o1"]
    committed.commit(asynchronous=False)
    committed.close()
    world.commit("group", b"g2")
    with pytest.raises(HandedOverError, match="only the home knows"):
        read(world.consumer(**SERIAL), 1)


def test_a_partition_that_is_never_without_markers_is_handed_over_all_the_same(
    world: World,
) -> None:
    """Commits overlap without a pause, before and after the switch."""
    producer, stop = world.producers["group"], threading.Event()
    last: list[Transaction] = []

    def write() -> None:
        flying: deque[tuple[Transaction, Future[Outcome]]] = deque()
        while not stop.is_set() or flying:
            if not stop.is_set():
                transaction = producer.begin_transaction()
                transaction.produce("t", value=b"x", partition=0)
                flying.append((transaction, transaction.commit_async()))
            if len(flying) > 16 or stop.is_set():
                transaction, outcome = flying.popleft()
                assert outcome.result(30).state.commits
                last[:] = [transaction]

    writer = threading.Thread(target=write)
    writer.start()
    try:
        world.switch(Mode.METADATA)
        eventually(lambda: len(world.adoptions()) > 20, timeout_s=30)
    finally:
        stop.set()
        writer.join(60)
    world.await_finished()
    [fate] = find_fates(world.log, [last[0].txid], timeout_s=10).values()
    assert fate.handed == {("t", 0)}


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets producers name in parts what branches wrote, of one range each."""
    made = AcceptedWrites.__init__
    monkeypatch.setattr(AcceptedWrites, "__init__", lambda self: made(self, 0, 1))


def in_branches(producer: Producer, *values: bytes) -> Transaction:
    """Returns a transaction whose branches each write a value to both partitions."""
    transaction = producer.begin_transaction()
    for value in values:
        branch = transaction.branch()
        for partition in (0, 1):
            branch.produce("t", value=value, partition=partition)
        transaction.accept(branch.finish())
    return transaction


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("adopt_bytes", [ADOPT_BYTES, 1])
@pytest.mark.parametrize("coordinators", [1, 2])
def test_a_commit_in_parts_is_handed_over(
    memory_log: MemoryLog, coordinators: int, adopt_bytes: int
) -> None:
    with closing(World(memory_log, coordinators, ShardConfig(adopt_bytes=adopt_bytes))) as world:
        hand_over_in_parts(world)
        in_shares = [a.txid for a in world.adoptions() if a.more]
    assert len(in_shares) == (2 if adopt_bytes == 1 else 0)


def hand_over_in_parts(world: World) -> None:
    streaming = Reading(world.log, minPartitions="3")
    streaming.trigger()
    world.switch(Mode.METADATA)
    running, serial = world.consumer(), world.consumer(**{**SERIAL, "group.id": "serial"})
    large = in_branches(world.producers["group"], b"g1", b"g2", b"g3")
    aborted = in_branches(world.producers["group"], b"never")
    before = world.ends()
    assert large.commit().state.commits
    aborted.abort()
    world.commit("own", b"o1")
    world.await_finished()
    assert world.ends() == (before[0] + 1, before[1]), "nothing was written but that record"
    assert {a.txid for a in world.adoptions()} == {large.txid, aborted.txid}
    wanted = sorted([b"g1", b"g2", b"g3"] * 2 + [b"o1"])
    assert sorted(read(running, 7)) == wanted
    assert sorted(read(serial, 6)) == sorted([b"g1", b"g2", b"g3"] * 2)
    assert sorted(stopping_after_each(world, 7, "stops")) == wanted
    for tasks in ("1", "2", "5"):
        assert sorted(filter(None, batch(world.log, minPartitions=tasks))) == wanted
    assert sorted(filter(None, streaming.on())) == wanted
    report = run_audit(world.log, ["t"], world.sums)
    assert report.clean, report
