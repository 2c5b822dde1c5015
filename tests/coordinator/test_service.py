"""Producers' sessions with a coordinator, on each transport: fencing, re-attach, restart."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from logtx.coordinator.client.queries import CoordinatorQueries
from logtx.coordinator.client.session import CoordinatorClient, SessionOptions
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol.commands import Action, Began, Connected, Done, Outcome
from logtx.coordinator.protocol.fields import PROTOCOL_VERSION
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.control import BranchRange
from logtx.journal.errors import (
    ClaimFencedError,
    ConfigError,
    CoordinatorNotAvailableError,
    DoubleStartError,
    GroupBoundError,
    JournalTopicError,
    LogtxError,
    NotSupportedError,
    OffsetsPendingError,
    ProducerFencedError,
    RequestTimedOutError,
    RequestTooLargeError,
    SessionClosedError,
    TransactionAbortedError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.types import OffsetStep
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .streams import Frames, calls_to

TIMEOUT_S = 15.0
MakeTopic = Callable[..., str]


def config(log: Log, **settings: Any) -> CoordinatorConfig:
    """Returns the settings of a coordinator of four journal partitions at a free port."""
    return CoordinatorConfig(
        bootstrap_servers=log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=4,
        **settings,
    )


@pytest.fixture
def coordinator(log: Log) -> Iterator[EmbeddedCoordinator]:
    """A coordinator on the transport of the test."""
    with EmbeddedCoordinator(config(log)) as running:
        yield running


@pytest.fixture
def client(log: Log, unique: Callable[[str], str]) -> Iterator[Callable[..., CoordinatorClient]]:
    """`client(producer_id=…)` makes a client that is closed with the test."""
    made: list[CoordinatorClient] = []

    def make(
        producer_id: str | None = None, *, on_closed: Any = None, **settings: Any
    ) -> CoordinatorClient:
        settings.setdefault("timeout_s", TIMEOUT_S)
        made.append(
            CoordinatorClient(
                log,
                SessionOptions(producer_id=producer_id or unique("producer"), **settings),
                on_closed=on_closed,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def ask(method: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
    """Calls a method of a client and waits for its reply."""
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    method(*args, on_reply=replies.put, **kwargs)
    return replies.get(timeout=TIMEOUT_S + 5)


def begun(client: CoordinatorClient, timeout_ms: int = 60_000) -> TxId:
    """Begins; returns the open transaction."""
    reply = ask(client.begin, timeout_ms=timeout_ms)
    assert isinstance(reply, Began), reply
    return reply.txid


def commit(client: CoordinatorClient, txid: TxId, *topics: str) -> Any:
    """Commits with one record in partition 0 of each topic."""
    writes = {(t, 0): (BranchRange(0, 0, 0, 1),) for t in topics}
    return ask(client.end, txid, Action.COMMIT, writes)


def finished(queries: CoordinatorQueries, txid: TxId, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Waits until the transaction is finished; returns its outcome."""
    deadline = time.monotonic() + timeout_s
    while True:
        outcome = queries.outcome(txid)
        if outcome.state.finished:
            return outcome
        assert time.monotonic() < deadline, outcome
        time.sleep(0.01)


@pytest.mark.usefixtures("coordinator")
def test_begin_add_partitions_commit(
    log: Log, client: Callable[..., CoordinatorClient], make_topic: MakeTopic
) -> None:
    topic, one = make_topic(2), client()
    connected = one.connect()
    assert isinstance(connected, Connected)
    assert connected.generation == 0
    txid = begun(one)
    assert txid.incarnation == connected.incarnation
    assert ask(one.add_partitions, txid, {(topic, 1): -1}) == Done()
    outcome = commit(one, txid, topic)
    assert isinstance(outcome, Outcome)
    assert outcome.state is State.COMMITTING
    queries = CoordinatorQueries(log, timeout_s=TIMEOUT_S)
    assert finished(queries, txid).state is State.COMMITTED
    assert log.end_offset(topic, 0) == log.end_offset(topic, 1) == 1, "a marker in each"
    assert isinstance(commit(one, txid, topic), Outcome), "a repeat is a success"
    queries.close()


@pytest.mark.usefixtures("coordinator")
def test_a_second_producer_of_the_name_fences_the_first(
    client: Callable[..., CoordinatorClient], make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    topic, name = make_topic(), unique("worker")
    closed: queue.SimpleQueue[LogtxError] = queue.SimpleQueue()
    old, new = client(name, on_closed=closed.put), client(name)
    old.connect()
    txid = begun(old)
    assert new.connect().generation == 1
    assert isinstance(closed.get(timeout=TIMEOUT_S), ProducerFencedError)
    assert isinstance(commit(old, txid, topic), ProducerFencedError)
    assert ask(new.outcome, txid).state.aborts


@pytest.mark.usefixtures("coordinator")
def test_a_double_start_closes_both(
    client: Callable[..., CoordinatorClient], unique: Callable[[str], str]
) -> None:
    name = unique("worker")
    closed: queue.SimpleQueue[LogtxError] = queue.SimpleQueue()
    one = client(name, generation=5, on_closed=closed.put)
    two, three = client(name, generation=5), client(name, generation=6)
    assert one.connect().generation == 5
    txid = begun(one)
    with pytest.raises(DoubleStartError):
        two.connect()
    assert isinstance(closed.get(timeout=TIMEOUT_S), DoubleStartError)
    assert three.connect().generation == 6
    assert ask(three.outcome, txid).state.aborts
    with pytest.raises(ProducerFencedError):
        client(name, generation=4).connect()


def test_clients_go_on_with_open_transactions_after_a_restart(
    coordinator: EmbeddedCoordinator,
    client: Callable[..., CoordinatorClient],
    make_topic: MakeTopic,
) -> None:
    topic, one = make_topic(), client()
    one.connect()
    txids = [begun(one) for _ in range(3)]
    assert isinstance(commit(one, txids[0], topic), Outcome)
    coordinator.stop()
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    writes = {(topic, 0): (BranchRange(0, 0, 0, 1),)}
    one.end(txids[1], Action.COMMIT, writes, replies.put)  # while no coordinator runs
    coordinator.start()
    outcome = replies.get(timeout=TIMEOUT_S)
    assert isinstance(outcome, Outcome), outcome
    assert isinstance(commit(one, txids[2], topic), Outcome)
    assert ask(one.outcome, txids[0]).state.commits


def test_a_coordinator_at_another_address_is_found_through_the_log(
    log: Log,
    client: Callable[..., CoordinatorClient],
    make_topic: MakeTopic,
) -> None:
    topic, one = make_topic(), client()
    with EmbeddedCoordinator(config(log)) as first:
        one.connect()
        txid = begun(one)
        former = first.address
    with EmbeddedCoordinator(config(log)) as second:
        assert second.address != former
        assert isinstance(commit(one, txid, topic), Outcome)


@pytest.mark.usefixtures("coordinator")
def test_refused_topics(client: Callable[..., CoordinatorClient], make_topic: MakeTopic) -> None:
    topic, one = make_topic(1), client()
    one.connect()
    txid = begun(one)
    reply = ask(one.add_partitions, txid, {(JOURNAL_TOPIC, 0): 0})
    assert isinstance(reply, UnsupportedTopicError)
    assert isinstance(ask(one.add_partitions, txid, {(topic, 7): 0}), UnknownTopicError)
    assert isinstance(commit(one, txid, topic), Outcome)


@pytest.mark.usefixtures("coordinator")
def test_a_compacted_topic_is_refused_before_anything_is_decided(
    transport: str, log: Log, client: Callable[..., CoordinatorClient], make_topic: MakeTopic
) -> None:
    if transport == "mock":
        pytest.skip("librdkafka's mock cluster does not tell topic settings")
    topic, one = make_topic(1, {"cleanup.policy": "compact"}), client()
    one.connect()
    txid = begun(one)
    assert isinstance(commit(one, txid, topic), UnsupportedTopicError)
    assert isinstance(ask(one.end, txid, Action.ABORT, {(topic, 0): ()}), Outcome)
    # Else its marker is tried for ever, and nothing behind it in the journal can be trimmed.
    log.delete_topic(topic)
    queries = CoordinatorQueries(log, timeout_s=TIMEOUT_S)
    finished(queries, txid, 60)
    queries.close()


@pytest.mark.usefixtures("coordinator")
def test_offsets_take_effect_with_the_commit_and_pending_ones_are_refused(
    log: Log,
    client: Callable[..., CoordinatorClient],
    make_topic: MakeTopic,
    unique: Callable[[str], str],
) -> None:
    topic, group, one = make_topic(), unique("group"), client()
    one.connect()
    queries = CoordinatorQueries(log, timeout_s=TIMEOUT_S)
    assert queries.bind_group(group, None).transaction_group is None
    assert queries.bind_group(group, "default").transaction_group == "default"
    other = CoordinatorQueries(log, timeout_s=TIMEOUT_S)
    assert other.bind_group(group, "elsewhere").transaction_group == "default", "bound for ever"
    txid = begun(one)
    position = Position(o1=3, o2=5, o3=1, met={(1, 2): 3})
    step = OffsetStep(topic, 0, None, position)
    assert ask(one.add_offsets, txid, group, [step]) == Done()
    with pytest.raises(OffsetsPendingError):
        queries.fetch_offsets(group)
    commit(one, txid, topic)
    found = queries.fetch_offsets(group)
    assert found.offsets == {(topic, 0): position}
    assert found.last_commit == txid
    queries.close()
    other.close()


@pytest.mark.usefixtures("coordinator")
def test_expiry(client: Callable[..., CoordinatorClient]) -> None:
    one = client()
    one.connect()
    txid = begun(one, timeout_ms=100)
    time.sleep(0.3)
    assert isinstance(ask(one.end, txid, Action.COMMIT, {}), TransactionAbortedError)


@pytest.mark.usefixtures("coordinator")
def test_a_timeout_beyond_the_coordinators_is_refused(
    client: Callable[..., CoordinatorClient],
) -> None:
    one = client()
    one.connect()
    assert isinstance(ask(one.begin, timeout_ms=10**9), NotSupportedError)


def test_no_coordinator_is_a_bounded_wait(memory_log: MemoryLog) -> None:
    one = CoordinatorClient(memory_log, SessionOptions(producer_id="p", timeout_s=0.5))
    started = time.monotonic()
    with pytest.raises(CoordinatorNotAvailableError, match="no journal"):
        one.connect()
    assert time.monotonic() - started < 3
    with EmbeddedCoordinator(config(memory_log)) as running:
        two = CoordinatorClient(memory_log, SessionOptions(producer_id="p", timeout_s=1))
        two.connect()
        running.stop()
        # Which one comes depends on whether the time passed before or after the stream broke.
        late = CoordinatorNotAvailableError | RequestTimedOutError
        assert isinstance(ask(two.begin, timeout_ms=1), late)
        two.close()


def test_malformed_requests_are_answered(memory_log: MemoryLog) -> None:
    with EmbeddedCoordinator(config(memory_log)) as running:
        with calls_to(running.address) as calls:
            for request in (
                pb.Request(),
                pb.Request(begin=pb.Begin()),
                pb.Request(get_outcome=pb.GetOutcome(txid=b"short")),
                pb.Request(connect=pb.Connect(version=PROTOCOL_VERSION, producer_id="p")),
            ):
                reply = calls.call(pb.CallRequest(partition=0, request=request), 5)
                assert reply.error.code == NotSupportedError.code
            assert calls.call(pb.CallRequest(partition=99), 5).error.code == 11
        for first in (
            pb.Request(request_id=1, begin=pb.Begin()),
            pb.Request(request_id=1, connect=pb.Connect(version=9, producer_id="p")),
        ):
            frames = Frames(running.address)
            frames.send(pb.ClientFrame(requests=[first]))
            answer = frames.receive()
            assert answer is not None
            assert answer.replies[0].error.code in {
                NotSupportedError.code,
                SessionClosedError.code,
            }
            frames.close()


def test_a_journal_topic_with_wrong_settings_is_refused_with_the_mend(
    memory_log: MemoryLog,
) -> None:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1, settings={"retention.ms": "1000"})
    with pytest.raises(JournalTopicError, match=r"retention\.ms=-1"):
        EmbeddedCoordinator(config(memory_log)).start()


def test_a_taken_port_is_one_clear_error(memory_log: MemoryLog) -> None:
    with EmbeddedCoordinator(config(memory_log)) as running:
        taken = CoordinatorConfig(bootstrap_servers="memory://", listen=running.address)
        with pytest.raises(ConfigError, match="another coordinator"):
            EmbeddedCoordinator(taken, memory_log).start()


@pytest.mark.usefixtures("coordinator")
def test_a_claim_takes_input_over_from_a_pending_transaction(
    log: Log, client: Callable[..., CoordinatorClient], unique: Callable[[str], str]
) -> None:
    group, first, second = unique("group"), client(), client()
    first.connect()
    second.connect()
    queries = CoordinatorQueries(log, timeout_s=TIMEOUT_S)
    fares = [("fares", 0), ("fares", 1)]
    claimed = queries.claim_offsets(group, "default", fares, claimant=1)
    assert claimed.offsets.offsets == {}
    old = begun(first)
    offsets = [OffsetStep("fares", 0, None, Position.at(5), claimed.number)]
    assert ask(first.add_offsets, old, group, offsets) == Done()
    with pytest.raises(OffsetsPendingError):
        queries.fetch_offsets(group, [("fares", 0)])

    taken = queries.claim_offsets(group, "default", fares[:1], claimant=2)
    assert taken.number > claimed.number
    again = queries.claim_offsets(group, "default", fares[:1], claimant=2)
    assert again == taken, "a retry"
    assert finished(queries, old).state is State.ABORTED
    assert isinstance(commit(first, old), TransactionAbortedError)
    zombie = begun(first)
    assert isinstance(ask(first.add_offsets, zombie, group, offsets), ClaimFencedError)
    back = dict.fromkeys(fares, claimed.number)
    with pytest.raises(ClaimFencedError):
        queries.claim_offsets(group, "default", fares, claimant=3, expected=back)
    with pytest.raises(GroupBoundError, match="default"):
        queries.claim_offsets(group, "another", fares, claimant=4)

    new = begun(second)
    offsets = [OffsetStep("fares", 0, None, Position.at(7), taken.number)]
    assert ask(second.add_offsets, new, group, offsets) == Done()
    outcome = commit(second, new)
    assert outcome.state is State.COMMITTING
    assert finished(queries, new).state is State.COMMITTED
    back = {("fares", 0): taken.number}
    went_back = queries.claim_offsets(group, "default", fares[:1], claimant=5, expected=back)
    assert went_back.offsets.offsets == {("fares", 0): Position.at(7)}
    assert went_back.offsets.last_commit == new
    queries.close()


def test_group_bound_error_keeps_its_code() -> None:
    assert GroupBoundError.code == 26


@pytest.mark.parametrize("transport", ["memory"], indirect=True)
@pytest.mark.usefixtures("coordinator")
def test_large_requests_share_no_message_and_one_too_large_fails_alone(
    client: Callable[..., CoordinatorClient], make_topic: MakeTopic
) -> None:
    topic, one = make_topic(), client()
    one.connect()
    txids = [begun(one) for _ in range(8)]
    branches = {(topic, 0): tuple(BranchRange(n, n, n, 1) for n in range(1, 15_001))}
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # 8 requests of 0.4 MB: together more than a coordinator takes in one message.
    for txid in txids[:-1]:
        one.end(txid, Action.COMMIT, branches, replies.put)
    huge = {(topic, 0): tuple(BranchRange(n, n, n, 1) for n in range(1, 120_001))}
    one.end(txids[-1], Action.COMMIT, huge, replies.put)
    found = [replies.get(timeout=TIMEOUT_S) for _ in txids]
    refused = [reply for reply in found if isinstance(reply, RequestTooLargeError)]
    assert len(refused) == 1
    assert sum(isinstance(reply, Outcome) for reply in found) == 7
    assert isinstance(commit(one, txids[-1], topic), Outcome)
