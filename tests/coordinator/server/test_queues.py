"""Consumers of queues over real connections: what is looked up, ends, lost streams, new owners.

The rules of leases and acknowledgements are in `tests/coordinator/core/test_queues.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import pytest

from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.client.queries import CoordinatorQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType, AckResult, Lease
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.acks import Acks
from logtx.journal.errors import (
    AckConflictError,
    AckOutOfRangeError,
    CoordinatorBusyError,
    GroupBoundError,
    LogtxError,
    NotAllowedError,
    NotAttachedError,
    NotSupportedError,
    SessionClosedError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.places import PartitionId
from logtx.journal.reader import journal_partition_of
from logtx.journal.records.codec import WITH_ERAS, WITH_QUEUES
from logtx.journal.spans import AT_OFFSET, MessageId, Span
from logtx.journal.state import State
from logtx.producer.producer import Producer

from ...waiting import eventually
from ..clusters import PARTITIONS, Cluster, Node, cluster_of, until
from ..streams import TIMEOUT_S, RawStream, begin, connect

GROUP: Final = "invoicing"
HOME: Final = journal_partition_of("default", PARTITIONS)
GONE_S: Final = 1.0


@pytest.fixture
def coordinator(memory_log: MemoryLog) -> Iterator[EmbeddedCoordinator]:
    """A coordinator, a topic `orders` with two records, and a subscription's binding."""
    memory_log.create_topic("orders", partitions=1)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=PARTITIONS,
    )
    with EmbeddedCoordinator(config) as running:
        produce(memory_log, 2)
        bind(memory_log)
        yield running


def bind(log: MemoryLog, group: str = GROUP) -> None:
    with closing(CoordinatorQueries(log, timeout_s=TIMEOUT_S)) as queries:
        queries.bind_group(group, "default")


def produce(log: MemoryLog, count: int) -> None:
    with Producer({}, log=log) as producer:
        for number in range(count):
            producer.produce("orders", b"%d" % number)


def orders(log: MemoryLog) -> PartitionId:
    return PartitionId("orders", 0, log.topic_ids(["orders"])["orders"])


def message(offset: int) -> Span:
    return Span(MessageId(offset), MessageId(offset, AT_OFFSET).behind)


class Worker:
    """One consumer of the queue, by a stream of its own."""

    def __init__(self, log: MemoryLog, address: str, number: int = 1) -> None:
        self.log, self.number = log, number
        self.stream = RawStream(address, HOME)

    def attach(self, *held: Lease, topics: tuple[str, ...] = ("orders",), **more: Any) -> Any:
        """Returns the leases that it has again, or the error."""
        parts = tuple(Acks(lease.partition, (lease.span,)) for lease in held)
        command = commands.Attach(
            group=GROUP, consumer=self.number, topics=topics, held=parts, **more
        )
        # An owner that has just begun may not know the ends yet, nor that it is the owner.
        while isinstance(reply := self.stream.ask(command), CoordinatorBusyError):
            time.sleep(0.01)
        return reply.leases if isinstance(reply, commands.Attached) else reply

    def acquiring(self, most: int = 100) -> None:
        """Asks, and does not wait."""
        ask = commands.Acquire(group=GROUP, consumer=self.number, max_offsets=most)
        self.stream.send(ask)

    def acquire(self, most: int = 100) -> Lease:
        """Returns the next lease."""
        while True:
            ask = commands.Acquire(group=GROUP, consumer=self.number, max_offsets=most)
            reply = self.stream.ask(ask)
            assert isinstance(reply, commands.Leases), reply
            if reply.leases:
                return reply.leases[0]

    def may_have(self, partition: PartitionId) -> bool:
        """Whether its subscription has a partition: then it may say what became of messages."""
        acks = (Acks(partition, (message(0),)),)
        reply = self.stream.ask(
            commands.Acknowledge(
                group=GROUP, consumer=self.number, type=AcknowledgeType.ACCEPT, acks=acks
            )
        )
        return isinstance(reply, commands.AckResults)

    def acknowledge(
        self, *spans: Span, type_: AcknowledgeType = AcknowledgeType.ACCEPT, delay_ms: int = 0
    ) -> Any:
        """Returns the results, or the error."""
        command = commands.Acknowledge(
            group=GROUP,
            consumer=self.number,
            type=type_,
            acks=(Acks(orders(self.log), spans),),
            delay_ms=delay_ms,
        )
        while isinstance(reply := self.stream.ask(command), CoordinatorBusyError):
            time.sleep(0.01)
        if isinstance(reply, commands.AckResults):
            return tuple(reply.of(orders(self.log), span) for span in spans)
        return reply

    def close(self) -> None:
        """Breaks the connection, as a process does that is killed."""
        self.stream.close()


@pytest.fixture
def worker(memory_log: MemoryLog, coordinator: EmbeddedCoordinator) -> Iterator[Worker]:
    """An attached consumer."""
    with closing(Worker(memory_log, coordinator.address)) as made:
        assert made.attach() == ()
        yield made


def another(worker: Worker, coordinator: EmbeddedCoordinator, number: int = 2) -> Worker:
    made = Worker(worker.log, coordinator.address, number)
    assert made.attach() == ()
    return made


# ---- messages, and what is looked up ------------------------------------------------------------


def test_messages_are_leased_as_they_come(worker: Worker) -> None:
    lease = worker.acquire()
    assert lease.span == Span(MessageId(0), MessageId(2))
    assert lease.partition == orders(worker.log)
    worker.acquiring()
    time.sleep(0.2)  # It is idle for a while: the pause between questions is the longest.
    began_s = time.monotonic()
    produce(worker.log, 1)
    told = worker.stream.receive()
    assert told is not None
    assert isinstance(told[1], commands.Leases), told
    assert told[1].leases[0].span == Span(MessageId(2), MessageId(3))
    assert time.monotonic() - began_s < 2.0
    assert worker.acknowledge(lease.span, message(2)) == (AckResult.DONE, AckResult.DONE)
    assert worker.acknowledge(message(1)) == (AckResult.DELETED,)
    assert isinstance(worker.acknowledge(message(7)), AckOutOfRangeError)


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ("nowhere", UnknownTopicError),
        ("no/name", UnknownTopicError),
        ("orders._txnlog", UnsupportedTopicError),
        ("__transaction_control", UnsupportedTopicError),
    ],
)
def test_a_topic_that_can_be_no_queue_is_refused(
    topic: str, error: type[LogtxError], memory_log: MemoryLog, coordinator: EmbeddedCoordinator
) -> None:
    memory_log.create_topic("orders._txnlog", partitions=1)
    with closing(Worker(memory_log, coordinator.address)) as worker:
        refused = worker.attach(topics=("orders", topic))
        assert isinstance(refused, error), refused
        assert worker.attach() == (), "the stream lives on, and nothing was made"


def test_a_subscription_is_bound_first(coordinator: EmbeddedCoordinator) -> None:
    with RawStream(coordinator.address, HOME) as stream:
        refused = stream.ask(commands.Attach(group="unbound", consumer=1, topics=("orders",)))
        assert isinstance(refused, GroupBoundError)
    elsewhere = next(p for p in range(PARTITIONS) if p != HOME)
    with RawStream(coordinator.address, elsewhere) as stream:
        refused = stream.ask(commands.Attach(group=GROUP, consumer=1, topics=("orders",)))
        assert isinstance(refused, GroupBoundError)


def test_who_has_no_stream_of_its_own_is_refused(
    worker: Worker, coordinator: EmbeddedCoordinator
) -> None:
    acquire = commands.Acquire(group=GROUP, consumer=2, max_offsets=1)
    assert isinstance(worker.stream.ask(acquire), NotAttachedError), "another consumer's"
    connecting = commands.Connect(producer_id="p", nonce=1)
    assert isinstance(worker.stream.ask(connecting), NotSupportedError)
    listing = commands.ListTransactions()
    assert isinstance(worker.stream.ask(listing), NotSupportedError)
    with RawStream(coordinator.address, HOME) as stream:
        connect(stream, "p", nonce=1)
        assert isinstance(stream.ask(acquire), NotSupportedError), "a producer's"
    with (
        closing(AdminQueries(worker.log, timeout_s=TIMEOUT_S)) as admin,
        pytest.raises(NotSupportedError, match="attaches by a stream"),
    ):
        admin._ask(HOME, acquire, commands.Leases)


def test_messages_of_a_topic_that_was_created_anew_are_others(
    worker: Worker, coordinator: EmbeddedCoordinator
) -> None:
    """An end of the new one says nothing of the former one (trap 102)."""
    worker.acquire()
    worker.acquiring()
    worker.log.delete_topic("orders")
    worker.log.create_topic("orders", partitions=1)
    produce(worker.log, 5)
    told = worker.stream.receive()
    assert told is not None
    assert told[1] == commands.Leases(), "the end of another topic says nothing of this one"
    with closing(Worker(worker.log, coordinator.address, 2)) as other:
        # It may take a while until a coordinator looks the topic up again.
        eventually(lambda: other.attach() == () and other.may_have(orders(worker.log)))


# ---- transactions -------------------------------------------------------------------------------


def test_a_transaction_acknowledges_on_its_producers_session(
    worker: Worker, coordinator: EmbeddedCoordinator
) -> None:
    worker.acquire()
    acks = (Acks(orders(worker.log), (message(0),)),)
    with (
        RawStream(coordinator.address, HOME) as one,
        RawStream(coordinator.address, HOME) as two,
        closing(CoordinatorQueries(worker.log, timeout_s=TIMEOUT_S)) as queries,
    ):
        first, second = (connect(s, n, 1)[0] for s, n in ((one, "p"), (two, "q")))
        t0, t1 = begin(one, first, 10), begin(two, second, 10)
        add = commands.AddAcks(session=first, txid=t0, group=GROUP, acks=acks)
        assert one.ask(add) == commands.Done()
        assert one.ask(add) == commands.Done(), "a request may come twice"
        assert isinstance(two.ask(replace(add, session=second, txid=t1)), AckConflictError)
        assert worker.acknowledge(message(0)) == (AckResult.PENDING,)
        end = commands.End(session=first, txid=t0, action=commands.Action.COMMIT, writes={})
        assert isinstance(one.ask(end), commands.Outcome)
        eventually(lambda: queries.outcome(t0).state is State.COMMITTED, timeout_s=TIMEOUT_S)
        assert worker.acknowledge(message(0)) == (AckResult.DELETED,)


# ---- consumers that go away ---------------------------------------------------------------------


def test_what_a_dead_consumer_had_goes_to_another_one(
    worker: Worker, coordinator: EmbeddedCoordinator
) -> None:
    had = worker.acquire()
    with closing(another(worker, coordinator)) as other:
        began_s = time.monotonic()
        worker.close()
        got = other.acquire()
        waited_s = time.monotonic() - began_s
        assert (got.span, got.delivery_count) == (had.span, 2)
        assert GONE_S * 0.9 <= waited_s < GONE_S + 2.0


def test_an_answer_that_is_lost_with_its_stream_is_given_again(
    worker: Worker, coordinator: EmbeddedCoordinator
) -> None:
    worker.acquiring()
    worker.close()  # Whether the answer was on its way or not.
    with closing(Worker(worker.log, coordinator.address)) as again:
        began_s = time.monotonic()
        assert again.attach() == (), "it names nothing, so it has nothing"
        assert again.acquire().span == Span(MessageId(0), MessageId(2))
        assert time.monotonic() - began_s < GONE_S


def test_a_consumer_that_comes_back_keeps_what_it_had(
    worker: Worker, coordinator: EmbeddedCoordinator
) -> None:
    had = worker.acquire()
    with (
        closing(another(worker, coordinator)) as other,
        closing(Worker(worker.log, coordinator.address)) as again,
    ):
        other.acquiring()
        (kept,) = again.attach(had)
        assert kept.span == had.span
        told = worker.stream.receive()
        assert told is not None
        assert isinstance(told[1], SessionClosedError)
        worker.close()
        time.sleep(GONE_S * 1.5)
        assert again.acknowledge(had.span) == (AckResult.DONE,), "its former stream's end is none"
        again.acquiring()
        produce(worker.log, 1)
        told = other.stream.receive()
        assert told is not None
        assert isinstance(told[1], commands.Leases)
        assert all(lease.span.lo >= had.span.hi for lease in told[1].leases)


def test_delays_and_times_run_out_without_a_request(
    worker: Worker, coordinator: EmbeddedCoordinator
) -> None:
    had = worker.acquire(1)
    began_s = time.monotonic()
    released = worker.acknowledge(had.span, type_=AcknowledgeType.RELEASE, delay_ms=400)
    assert released == (AckResult.DONE,)
    rest = worker.acquire()
    assert rest.span.lo == had.span.hi, "the delayed one is passed over"
    assert worker.acquire().span == had.span
    assert 0.35 < time.monotonic() - began_s < 3.0
    hasty = Worker(worker.log, coordinator.address, 3)
    with closing(hasty):
        assert hasty.attach(ack_timeout_ms=300) == ()
        produce(worker.log, 1)
        late = hasty.acquire()
        again = worker.acquire()
        assert (again.span, again.delivery_count) == (late.span, 2)


# ---- owners that change -------------------------------------------------------------------------


def test_a_new_owner_leaves_the_living_what_they_hold(
    worker: Worker, coordinator: EmbeddedCoordinator
) -> None:
    done = worker.acquire(1)
    assert worker.acknowledge(done.span) == (AckResult.DONE,)
    had = worker.acquire(1)
    coordinator.stop()
    coordinator.start()
    with (
        closing(Worker(worker.log, coordinator.address, 2)) as other,
        closing(Worker(worker.log, coordinator.address)) as again,
    ):
        assert other.attach() == ()
        other.acquiring()
        (kept,) = again.attach(had)
        assert (kept.span, kept.delivery_count) == (had.span, 1), "counts are forgotten"
        produce(worker.log, 1)
        told = other.stream.receive()
        assert told is not None
        assert isinstance(told[1], commands.Leases), told
        spans = [lease.span for lease in told[1].leases]
        assert spans == [Span(MessageId(2), MessageId(3))], "neither what is held, nor done"


def attached(cluster: Cluster, log: MemoryLog, number: int = 1) -> tuple[Node, Worker]:
    """Returns the owner, and a worker that it serves. On a busy machine another one may have taken
    the partition since it was asked who owns it."""
    found: list[tuple[Node, Worker]] = []

    def is_attached() -> bool:
        owner = cluster.owner(HOME)
        worker = Worker(log, owner.address, number)
        found[:] = [(owner, worker)]
        if worker.attach() == ():
            return True
        worker.close()
        return False

    eventually(is_attached, timeout_s=TIMEOUT_S)
    return found[0]


def test_another_coordinator_goes_on(memory_log: MemoryLog) -> None:
    memory_log.create_topic("orders", partitions=1)
    with cluster_of(memory_log) as cluster:
        cluster.joined(2)
        bind(memory_log)
        produce(memory_log, 3)
        owner, worker = attached(cluster, memory_log)
        assert worker.acknowledge(worker.acquire(1).span) == (AckResult.DONE,)
        worker.acquire(1)
        owner.kill()
        worker.close()
        _, other = attached(cluster, memory_log, 2)
        with closing(other):
            lease = other.acquire()
            assert lease.span == Span(MessageId(1), MessageId(3)), "what was done stays done"


def with_an_older_build(cluster: Cluster, log: MemoryLog, reads: int) -> Node:
    """Returns the owner, beside which is a coordinator that reads journals up to a version."""
    cluster.joined(2)
    bind(log)
    owner = cluster.owner(HOME)
    other = next(node for node in cluster.nodes if node is not owner)
    ownership = other.coordinator._ownership
    assert ownership is not None
    ownership.peers._me = lambda: replace(ownership.me(), journal_format=reads)
    other.loop.call_soon_threadsafe(ownership.peers.tell)
    members = owner.coordinator._consumers.members
    assert members is not None
    until(lambda: [m.journal_format for m in members.reached(time.monotonic())] == [reads])
    return owner


def test_a_queue_waits_for_builds_that_read_it(cluster: Cluster, memory_log: MemoryLog) -> None:
    owner = with_an_older_build(cluster, memory_log, WITH_QUEUES - 1)
    with closing(Worker(memory_log, owner.address)) as worker:
        refused = worker.attach()
        assert isinstance(refused, NotSupportedError), refused
        assert "upgrade it" in str(refused)


def test_a_reset_waits_for_builds_that_read_it(cluster: Cluster, memory_log: MemoryLog) -> None:
    owner = with_an_older_build(cluster, memory_log, WITH_ERAS - 1)
    with closing(Worker(memory_log, owner.address)) as worker:
        assert worker.attach() == ()
    with closing(AdminQueries(memory_log, timeout_s=10.0)) as admin:
        bound, info = admin.subscription(GROUP)
        for asked in (
            lambda: admin.reset_subscription(bound, info, {orders(memory_log): 0}),
            lambda: admin.delete_subscription(bound, info),
        ):
            with pytest.raises(NotSupportedError, match="are reset or deleted: upgrade it"):
                asked()
        _, after = admin.subscription(GROUP)
        assert after.era == info.era == 0


@pytest.fixture
def cluster(memory_log: MemoryLog) -> Iterator[Cluster]:
    """Coordinators over a log with the topic `orders`."""
    memory_log.create_topic("orders", partitions=1)
    with cluster_of(memory_log) as made:
        yield made


# ---- names --------------------------------------------------------------------------------------


def test_a_subscription_is_no_group_whose_binding_may_end(worker: Worker) -> None:
    with closing(AdminQueries(worker.log, timeout_s=TIMEOUT_S)) as admin:
        with pytest.raises(NotAllowedError, match="subscription"):
            admin._ask(GROUP, commands.UnbindGroup(group=GROUP), commands.Done)
        with pytest.raises(GroupBoundError, match="is a subscription"):
            admin._ask(
                HOME, commands.FetchOffsets(group=GROUP, partitions=None), commands.GroupOffsets
            )
