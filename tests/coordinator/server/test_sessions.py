"""Who may speak for a producer, over real connections: re-attach and double start, grace, failover.

Traps 31 and 33; the shard's own part is in the transcripts.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from logtx.coordinator.client.queries import CoordinatorQueries
from logtx.coordinator.client.session import CoordinatorClient, SessionOptions
from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.commands import Action, Began, Outcome
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.errors import (
    ConfigError,
    DoubleStartError,
    LogtxError,
    ProducerFencedError,
    SessionClosedError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import journal_partition_of
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..streams import TIMEOUT_S, RawStream, begin, connect

GRACE_S = 0.4
PARTITIONS = 2
HOME = journal_partition_of("default", PARTITIONS)

Clients = Callable[..., CoordinatorClient]


@pytest.fixture
def coordinator(memory_log: MemoryLog) -> Iterator[EmbeddedCoordinator]:
    """A coordinator with a short grace."""
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=PARTITIONS,
        limits=ShardConfig(session_grace_ms=round(GRACE_S * 1000), reload_grace_ms=5_000),
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.fixture
def queries(memory_log: MemoryLog) -> Iterator[CoordinatorQueries]:
    """Questions without a session."""
    asking = CoordinatorQueries(memory_log, timeout_s=TIMEOUT_S)
    yield asking
    asking.close()


@pytest.fixture
def clients(memory_log: MemoryLog) -> Iterator[Clients]:
    """`clients(producer_id, …)` makes a client that is closed with the test."""
    made: list[CoordinatorClient] = []

    def make(producer_id: str, *, on_closed: Any = None, **settings: Any) -> CoordinatorClient:
        made.append(
            CoordinatorClient(
                memory_log,
                SessionOptions(producer_id=producer_id, timeout_s=TIMEOUT_S, **settings),
                on_closed=on_closed,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def opened(client: CoordinatorClient) -> TxId:
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.begin(replies.put, timeout_ms=60_000)
    reply = replies.get(timeout=TIMEOUT_S)
    assert isinstance(reply, Began), reply
    return reply.txid


def committed(client: CoordinatorClient, txid: TxId) -> Any:
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.end(txid, Action.COMMIT, {}, replies.put)
    return replies.get(timeout=TIMEOUT_S)


def state_of(queries: CoordinatorQueries, txid: TxId, wanted: State) -> State:
    """Waits until the transaction's state is `wanted`, or time is up; returns the state."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while (state := queries.outcome(txid).state) is not wanted and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return state


# ---- re-attach and double start (trap 31) -------------------------------------------------------


def test_an_honest_reattach_over_a_half_open_socket(
    coordinator: EmbeddedCoordinator, queries: CoordinatorQueries
) -> None:
    with RawStream(coordinator.address, HOME) as former:
        session, _ = connect(former, "p", nonce=7)
        txid = begin(former, session, 10)
        with RawStream(coordinator.address, HOME) as anew:
            again, reply = connect(anew, "p", nonce=7, generation=0)
            assert again == session, reply
            told = former.receive()
            assert told is not None
            assert isinstance(told[1], SessionClosedError), "retriable: nobody was fenced"
            assert former.receive() is None
            former.close()
            time.sleep(GRACE_S * 2)
            assert queries.outcome(txid).state is State.OPEN, "its end is no end of the session"
            end = commands.End(session=again, txid=txid, action=Action.COMMIT, writes={})
            assert isinstance(anew.ask(end), Outcome)


@pytest.mark.parametrize("first", ["connected", "within its grace", "of a former coordinator"])
def test_a_double_start_closes_both(
    coordinator: EmbeddedCoordinator, queries: CoordinatorQueries, first: str
) -> None:
    with RawStream(coordinator.address, HOME) as one:
        session, _ = connect(one, "p", nonce=1, generation=5)
        txid = begin(one, session, 10)
        if first != "connected":
            one.close()
        if first == "of a former coordinator":
            coordinator.stop()
            coordinator.start()
        with RawStream(coordinator.address, HOME) as two:
            _, refused = connect(two, "p", nonce=2, generation=5)
            assert isinstance(refused, DoubleStartError)
            assert two.receive() is None
        if first == "connected":
            told = one.receive()
            assert told is not None
            assert isinstance(told[1], DoubleStartError)
            assert one.receive() is None
        assert state_of(queries, txid, State.ABORTED) is State.ABORTED
    for nonce in (1, 2):
        with RawStream(coordinator.address, HOME) as back:
            _, refused = connect(back, "p", nonce=nonce, generation=5)
            assert isinstance(refused, DoubleStartError), "neither of them goes on"
    with RawStream(coordinator.address, HOME) as newer:
        session, _ = connect(newer, "p", nonce=3, generation=6)
        begin(newer, session, 10)


def test_both_are_closed_also_when_they_connect_in_one_moment(
    coordinator: EmbeddedCoordinator,
) -> None:
    # Both answers may become durable in one turn of the coordinator. The first session must be
    # known when the second closes it, or its client would stay connected and never be told.
    for attempt in range(20):
        name = f"p{attempt}"
        with (
            RawStream(coordinator.address, HOME) as one,
            RawStream(coordinator.address, HOME) as two,
        ):
            for nonce, stream in enumerate((one, two)):
                stream.send(commands.Connect(producer_id=name, nonce=nonce, generation=0))
            for stream in (one, two):
                last = None
                while (told := stream.receive()) is not None:
                    last = told[1]
                assert isinstance(last, DoubleStartError), last


# ---- grace --------------------------------------------------------------------------------------


def test_a_broken_socket_leaves_a_grace(
    coordinator: EmbeddedCoordinator, queries: CoordinatorQueries
) -> None:
    with RawStream(coordinator.address, HOME) as stream:
        session, _ = connect(stream, "p", nonce=7)
        txid = begin(stream, session, 10)
    time.sleep(GRACE_S / 4)
    with RawStream(coordinator.address, HOME) as stream:
        session, _ = connect(stream, "p", nonce=7, generation=0)
        time.sleep(GRACE_S * 2)
        assert queries.outcome(txid).state is State.OPEN, "it came back in time"
    assert queries.outcome(txid).state is State.OPEN, "the grace runs anew"
    assert state_of(queries, txid, State.ABORTED) is State.ABORTED
    with RawStream(coordinator.address, HOME) as stream:
        session, _ = connect(stream, "p", nonce=7, generation=0)
        begin(stream, session, 11)  # too late for that transaction, not for the next


def test_a_key_has_one_home(coordinator: EmbeddedCoordinator) -> None:
    name = "&default&k"
    home = journal_partition_of(name, PARTITIONS)
    for partition in range(PARTITIONS):
        with RawStream(coordinator.address, partition) as stream:
            _, reply = connect(stream, name, nonce=1, generation=-1)
            assert isinstance(reply, commands.Connected if partition == home else ConfigError), (
                reply
            )


# ---- failover (trap 33) -------------------------------------------------------------------------


def test_failover_while_two_of_one_name_reconnect(
    coordinator: EmbeddedCoordinator, clients: Clients, queries: CoordinatorQueries
) -> None:
    closed: queue.SimpleQueue[LogtxError] = queue.SimpleQueue()
    older = clients("p", on_closed=closed.put)
    assert older.connect().generation == 0
    txid = opened(older)
    coordinator.stop()
    newer = clients("p")
    coordinator.start()
    # The older client reconnects too: it re-attaches and is closed, or is refused.
    assert newer.connect().generation == 1
    assert isinstance(closed.get(timeout=TIMEOUT_S), ProducerFencedError)
    assert isinstance(committed(older, txid), ProducerFencedError)
    assert state_of(queries, txid, State.ABORTED) is State.ABORTED
    assert isinstance(committed(newer, opened(newer)), Outcome)


def test_failover_while_two_of_one_generation_reconnect(
    coordinator: EmbeddedCoordinator, clients: Clients, queries: CoordinatorQueries
) -> None:
    closed: queue.SimpleQueue[LogtxError] = queue.SimpleQueue()
    one = clients("p", generation=5, on_closed=closed.put)
    one.connect()
    txid = opened(one)
    coordinator.stop()
    two = clients("p", generation=5)
    coordinator.start()
    with pytest.raises(DoubleStartError):
        two.connect()
    assert isinstance(closed.get(timeout=TIMEOUT_S), DoubleStartError)
    assert state_of(queries, txid, State.ABORTED) is State.ABORTED
