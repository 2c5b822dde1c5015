"""Sessions and calls against a real coordinator on a log in memory, message by message."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from logtx.coordinator.client.connection import Calls, Connection
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol.commands import Action, SessionId
from logtx.coordinator.protocol.metadata_pb2 import MetadataEntry, MetadataHeader, MetadataPage
from logtx.coordinator.protocol.open_pb2 import (
    Open,
    OpenCalls,
    OpenMetadata,
    OpenPeers,
    OpenSession,
    OpenStreams,
    Parts,
)
from logtx.coordinator.protocol.replies import decode_reply
from logtx.coordinator.protocol.requests import encode_request
from logtx.coordinator.server import opened
from logtx.coordinator.service import Coordinator, CoordinatorConfig
from logtx.journal.control import BranchRange
from logtx.journal.errors import (
    LogtxError,
    NotSupportedError,
    RequestTimedOutError,
    SessionClosedError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ...waiting import eventually
from ..transport.served import HELLO, PATIENT, Client, message, raw_coordinator, read_bytes

TIMEOUT_S: Final = 30.0


class Inside(EmbeddedCoordinator):
    """A coordinator into which a test can look."""

    def _ready(self, coordinator: Coordinator, unserved: Mapping[int, LogtxError]) -> None:
        self.streams = coordinator._streams
        assert coordinator._listener is not None
        self.listener = coordinator._listener
        super()._ready(coordinator, unserved)

    def do(self, work: Any) -> Any:
        """Runs something on its event loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)


@pytest.fixture
def coordinator(memory_log: MemoryLog) -> Iterator[Inside]:
    """A coordinator of one journal partition."""
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=1
    )
    with Inside(config) as running:
        yield running


Connect = Callable[..., Connection[pb.Request]]


@pytest.fixture
def connect(coordinator: Inside) -> Iterator[Connect]:
    """Returns what connects a producer."""
    made: list[Connection[pb.Request]] = []

    def connect(producer_id: str = "p", nonce: int = 1) -> Connection[pb.Request]:
        command = commands.Connect(producer_id=producer_id, nonce=nonce, generation=None)
        request = encode_request(0, command)
        made.append(Connection(coordinator.address, request, lambda r: r, deadlines=PATIENT))
        return made[-1]

    yield connect
    for each in made:
        each.close()


def replies(connection: Connection[pb.Request], count: int) -> list[commands.Reply]:
    """Returns so many replies."""
    found: list[pb.Reply] = []
    while len(found) < count:
        frame = connection.receive()
        assert frame is not None, connection.ended
        found += frame.replies
    return [decode_reply(each) for each in found]


def test_a_transaction(connect: Connect, coordinator: Inside) -> None:
    connection = connect()
    (connected,) = replies(connection, 1)
    assert isinstance(connected, commands.Connected)
    session = SessionId("p", connected.generation, 1)
    begins = [
        commands.Begin(session=session, request_id=n, answered_below=1, timeout_ms=60_000)
        for n in range(1, 4)
    ]
    for number, each in enumerate(begins, 1):
        connection.send(encode_request(number, each))
    connection.flush()
    begun = replies(connection, 3)
    txids = [each.txid for each in begun if isinstance(each, commands.Began)]
    assert len(set(txids)) == 3
    end = commands.End(session=session, txid=txids[0], action=Action.COMMIT, writes={})
    connection.send(encode_request(4, end))
    connection.flush()
    (outcome,) = replies(connection, 1)
    assert isinstance(outcome, commands.Outcome)
    assert outcome.state is State.COMMITTING
    calls = Calls(coordinator.address, deadlines=PATIENT)
    try:
        assert ask(calls, commands.GetOutcome(txid=txids[1])).state is State.OPEN
        assert ask(calls, commands.GetOutcome(txid=txids[0])).commit_sequence
    finally:
        calls.close()


def ask(calls: Calls, command: commands.Command) -> Any:
    """Asks, and returns the reply."""
    request = pb.CallRequest(partition=0, request=encode_request(1, command))
    return decode_reply(calls.call(request, TIMEOUT_S))


def test_the_end_of_a_connection_is_that_of_its_session(
    connect: Connect, coordinator: Inside
) -> None:
    def connected() -> int:
        return sum(coordinator.do(_value(coordinator.streams.sessions)).values())

    connection = connect()
    replies(connection, 1)
    assert connected() == 1
    connection.close()
    assert connection.receive() is None
    assert "the client has closed" in connection.ended
    eventually(lambda: connected() == 0)
    eventually(lambda: coordinator.listener.connections == 0)


async def _value(of: Callable[[], Any]) -> Any:
    return of()


def test_another_session_of_the_producer_ends_the_first(connect: Connect) -> None:
    first = connect("p", 1)
    replies(first, 1)
    second = connect("p", 2)
    replies(second, 1)
    (reply,) = replies(first, 1)
    assert isinstance(reply, LogtxError), reply
    assert first.receive() is None
    assert "the coordinator ended the stream" in first.ended


def test_a_request_that_can_not_be_encoded_ends_its_stream_alone(
    coordinator: Inside, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever flushes may be sending for another one, and is told nothing."""

    def encode(item: str) -> pb.Request:
        raise KeyError(item)

    command = commands.Connect(producer_id="p", nonce=1, generation=None)
    request = encode_request(0, command)
    connection = Connection(coordinator.address, request, encode, deadlines=PATIENT)
    try:
        frame = connection.receive()
        assert frame is not None
        connection.send("x")
        connection.flush()
        assert connection.receive() is None
        assert "can't be encoded" in connection.ended
    finally:
        connection.close()
    assert "not_encoded" in caplog.text


# ---- calls ---------------------------------------------------------------------------------------


async def _set(gate: asyncio.Event) -> None:
    gate.set()


class Gated:
    """What answers calls in a coordinator's place: those below a number at once, the others when
    the gate opens."""

    def __init__(self, coordinator: Inside, first_slow: int, answer_bytes: int = 0) -> None:
        self.begun: list[int] = []
        self.under_way: set[int] = set()
        self._coordinator = coordinator
        self._first_slow, self._answer_bytes = first_slow, answer_bytes
        self._gate = asyncio.Event()

    async def call(self, request: pb.CallRequest) -> pb.Reply:
        number = request.request.request_id
        self.begun.append(number)
        self.under_way.add(number)
        try:
            if number >= self._first_slow:
                await self._gate.wait()
        finally:
            self.under_way.discard(number)
        reply = pb.Reply(request_id=number)
        reply.error.message = "x" * self._answer_bytes
        return reply

    def open(self) -> None:
        self._coordinator.do(_set(self._gate))


Answering = Callable[..., Gated]


@pytest.fixture
def answering(coordinator: Inside, monkeypatch: pytest.MonkeyPatch) -> Answering:
    """Returns what answers the coordinator's calls from now on."""

    def make(first_slow: int, answer_bytes: int = 0) -> Gated:
        gated = Gated(coordinator, first_slow, answer_bytes)
        monkeypatch.setattr(coordinator.streams, "call", gated.call)
        return gated

    return make


def call_of(number: int, timeout_ms: int = 0, **command: Any) -> bytes:
    """Returns the message of a call."""
    request = pb.Request(request_id=number, **command)
    return pb.CallRequest(request=request, timeout_ms=timeout_ms).SerializeToString()


def test_calls_wait_for_each_other_only_for_want_of_room(
    coordinator: Inside, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "CALLS_MAX", 3)
    gated = answering(first_slow=3)
    with Client(coordinator.address) as client:
        client.send(CALLS, *(call_of(number) for number in range(1, 9)))
        assert [pb.Reply.FromString(client.receive()).request_id for _ in range(2)] == [1, 2]
        eventually(lambda: gated.under_way == {3, 4, 5})
        gated.open()
        rest = [pb.Reply.FromString(client.receive()).request_id for _ in range(6)]
        assert sorted(rest) == [3, 4, 5, 6, 7, 8]


def test_calls_after_the_end_fail(coordinator: Inside) -> None:
    calls = Calls(coordinator.address, deadlines=PATIENT)
    calls.close()
    eventually(lambda: calls._failure is not None)
    with pytest.raises(SessionClosedError, match="the client has closed"):
        calls.call(pb.CallRequest(), TIMEOUT_S)


def test_trap_256_calls_that_were_given_up_hold_no_others_up(
    coordinator: Inside, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "CALLS_MAX", 3)
    gated = answering(first_slow=1)
    calls = Calls(coordinator.address, deadlines=PATIENT)
    try:
        for _ in range(5):
            with pytest.raises(RequestTimedOutError):
                calls.call(pb.CallRequest(), 0.2)
        eventually(lambda: not gated.under_way)
        gated._first_slow = 100
        assert calls.call(pb.CallRequest(), TIMEOUT_S).request_id == 6
    finally:
        calls.close()


def test_a_call_is_stopped_though_its_client_says_nothing_of_it(
    coordinator: Inside, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not say how long it waits."""
    monkeypatch.setattr(opened, "CALL_MS", 200)
    gated = answering(first_slow=1)
    with Client(coordinator.address) as client:
        client.send(CALLS, call_of(1))
        eventually(lambda: gated.begun == [1] and not gated.under_way)


def test_trap_256_a_call_that_waits_for_room_beyond_its_time_is_not_begun(
    coordinator: Inside, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those which wait behind a slow one would each take its time anew."""
    monkeypatch.setattr(opened, "CALLS_MAX", 1)
    gated = answering(first_slow=1)
    with Client(coordinator.address) as client:
        late = (call_of(number, timeout_ms=100) for number in (2, 3))  # taken, and not taken yet
        client.send(CALLS, call_of(1), *late, call_of(4))
        eventually(lambda: gated.under_way == {1})
        time.sleep(0.3)
        gated.open()
        answered = [pb.Reply.FromString(client.receive()).request_id for _ in range(2)]
        assert answered == gated.begun == [1, 4]


def test_trap_256_a_call_that_is_given_up_before_it_leaves_is_not_sent() -> None:
    with raw_coordinator() as (address, accept):
        calls = Calls(address, deadlines=PATIENT)
        try:
            raw = accept()
            with pytest.raises(RequestTimedOutError):
                calls.call(pb.CallRequest(partition=1), 0.1)
            threading.Timer(0.2, raw.sendall, (HELLO,)).start()
            with pytest.raises(RequestTimedOutError):
                calls.call(pb.CallRequest(partition=2), 1.0)
            assert read_bytes(raw, len(message(STREAMS))) == message(STREAMS)
            header = read_bytes(raw, 4)
            _, request = Parts.FromString(read_bytes(raw, int.from_bytes(header[1:], "big"))).parts
            sent = pb.CallRequest.FromString(request.message)
        finally:
            calls.close()
    assert sent.partition == 2
    assert 0 < sent.timeout_ms < 900, "what is left when it leaves"


def begin_one(
    connection: Connection[pb.Request],
) -> tuple[Connection[pb.Request], SessionId, commands.Began]:
    """Begins a transaction; returns the connection, its session, and what it was told."""
    (connected,) = replies(connection, 1)
    assert isinstance(connected, commands.Connected)
    session = SessionId("p", connected.generation, 1)
    begin = commands.Begin(session=session, request_id=1, answered_below=1, timeout_ms=60_000)
    connection.send(encode_request(1, begin))
    connection.flush()
    (begun,) = replies(connection, 1)
    assert isinstance(begun, commands.Began)
    return connection, session, begun


def test_trap_256_what_a_call_has_decided_takes_effect_though_it_is_given_up(
    connect: Connect, coordinator: Inside, memory_log: MemoryLog
) -> None:
    """Its record is on its way: it can't be stopped any more."""
    _, _, begun = begin_one(connect())
    calls = Calls(coordinator.address, deadlines=PATIENT)
    abort = commands.AbortTransaction(txid=begun.txid)
    try:
        memory_log.hold_appends(JOURNAL_TOPIC, 0)
        with pytest.raises(RequestTimedOutError):
            calls.call(pb.CallRequest(partition=0, request=encode_request(1, abort)), 0.3)
        eventually(lambda: coordinator.streams._calls == 0)
        memory_log.release_appends(JOURNAL_TOPIC, 0)
        for _ in range(2):  # the same for who asks again
            assert ask(calls, abort).state in (State.ABORTING, State.ABORTED)
        assert ask(calls, commands.GetOutcome(txid=begun.txid)).state is not State.OPEN
    finally:
        calls.close()


def test_trap_256_who_gave_up_does_not_wait_in_the_shard(
    connect: Connect, coordinator: Inside, memory_log: MemoryLog
) -> None:
    """It asked to be told when the transaction is finished, and its marker is held."""
    memory_log.create_topic("t", partitions=1)
    memory_log.hold_appends("t", 0)
    connection, session, begun = begin_one(connect())
    writes = {("t", 0): (BranchRange(0, 0, 0, 1),)}
    end = commands.End(session=session, txid=begun.txid, action=Action.COMMIT, writes=writes)
    connection.send(encode_request(2, end))
    connection.flush()
    (outcome,) = replies(connection, 1)
    assert isinstance(outcome, commands.Outcome), outcome
    calls = Calls(coordinator.address, deadlines=PATIENT)
    question = commands.GetOutcome(txid=begun.txid, until_finished=True)
    try:
        with pytest.raises(RequestTimedOutError):
            calls.call(pb.CallRequest(partition=0, request=encode_request(1, question)), 0.5)
        eventually(lambda: coordinator.streams._calls == 0)
        serving = coordinator.streams._runtimes[0]._live
        assert serving is not None
        assert not serving.tenure.shard._finishing._asked
    finally:
        calls.close()
        memory_log.release_appends("t", 0)


def test_trap_257_answers_that_nobody_reads_are_bounded_by_their_bytes(
    coordinator: Inside, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "CALLS_MAX_BYTES", 10_000_000)
    count = 40
    gated = answering(first_slow=count + 1, answer_bytes=1_500_000)
    listings = [call_of(n + 1, list_transactions=pb.ListTransactions()) for n in range(count)]
    with Client(coordinator.address, window_bytes=1) as client:  # The first answer fills it.
        client.send(CALLS, *listings)
        # Four wait, and there is no room for a largest answer beside them.
        eventually(lambda: len(gated.begun) == 1 + 4)
        time.sleep(0.3)
        assert len(gated.begun) == 1 + 4
        answered = [pb.Reply.FromString(client.receive()).request_id for _ in range(count)]
    assert sorted(answered) == list(range(1, count + 1))


def test_trap_257_an_answer_that_is_larger_than_its_kind_counts_as_what_it_is(
    coordinator: Inside, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "CALLS_MAX_BYTES", 5_000_000)
    gated = answering(first_slow=100, answer_bytes=2_000_000)
    with Client(coordinator.address, window_bytes=1) as client:
        client.send(CALLS, *(call_of(number) for number in range(1, 5)))
        eventually(lambda: gated.begun == [1, 2, 3, 4] and not gated.under_way)
        client.send(call_of(5))
        time.sleep(0.3)
        assert gated.begun == [1, 2, 3, 4]
        answered = [pb.Reply.FromString(client.receive()).request_id for _ in range(5)]
    assert sorted(answered) == [1, 2, 3, 4, 5]


def test_an_answer_that_is_too_large_is_an_error(
    coordinator: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(request: pb.CallRequest) -> pb.Reply:
        reply = pb.Reply(request_id=request.request.request_id)
        reply.error.message = "x" * 5_000_000
        return reply

    monkeypatch.setattr(coordinator.streams, "call", call)
    calls = Calls(coordinator.address, deadlines=PATIENT)
    try:
        error = ask(calls, commands.GetOutcome(txid=TxId(0, 1, 1)))
    finally:
        calls.close()
    assert isinstance(error, NotSupportedError)
    assert "ask for less" in str(error)


def test_calls_under_way_fail_when_the_connection_breaks(
    coordinator: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(_request: pb.CallRequest) -> pb.Reply:
        (connection,) = coordinator.listener._connections
        connection.close(SessionClosedError("it went"))
        return pb.Reply()

    monkeypatch.setattr(coordinator.streams, "call", call)
    calls = Calls(coordinator.address, deadlines=PATIENT)
    try:
        with pytest.raises(SessionClosedError, match="it went"):
            calls.call(pb.CallRequest(), TIMEOUT_S)
        assert calls.is_over
    finally:
        calls.close()


def test_a_bug_in_a_call_is_told_to_its_client(
    coordinator: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def call(_request: pb.CallRequest) -> pb.Reply:
        raise KeyError("bug")

    monkeypatch.setattr(coordinator.streams, "call", call)
    calls = Calls(coordinator.address, deadlines=PATIENT)
    try:
        with pytest.raises(SessionClosedError, match="its log says how"):
            calls.call(pb.CallRequest(), TIMEOUT_S)
    finally:
        calls.close()
    assert "call_failed" in caplog.text


# ---- what a connection is for --------------------------------------------------------------------

SESSION: Final = Open(session=OpenSession()).SerializeToString()
STREAMS: Final = Open(streams=OpenStreams()).SerializeToString()
CALLS: Final = Open(calls=OpenCalls()).SerializeToString()
METADATA: Final = Open(metadata=OpenMetadata()).SerializeToString()
PEERS: Final = Open(peers=OpenPeers()).SerializeToString()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ((b"",), "upgrade the coordinator"),
        ((b"\x7a\x00",), "upgrade the coordinator"),
        ((b"\xff",), "a message is no Open"),
        ((SESSION, b"\xff"), "a message is no ClientFrame"),
        ((CALLS, b"\xff"), "a message is no CallRequest"),
        ((METADATA, b"\xff"), "a message is no MetadataRequest"),
        ((METADATA, b"\x7a\x00"), "upgrade the coordinator"),
        ((PEERS, b"\xff"), "a message is no PeerFrame"),
        ((PEERS, b"\x7a\x00"), "upgrade this one"),
    ],
)
def test_what_is_not_understood_ends_the_connection(
    coordinator: Inside, said: tuple[bytes, ...], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(coordinator.address) as client:
        client.send(*said)
        error = client.end()
        assert isinstance(error, NotSupportedError), error
        assert why in str(error)
    assert "connection_failed" not in caplog.text


def test_a_connection_that_is_for_nothing_ends(
    coordinator: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "CONNECT_TIMEOUT_S", 0.1)
    with Client(coordinator.address) as client:
        assert "said nothing for 0 s" in str(client.end())


def test_pages_of_the_store_that_are_too_large_are_split() -> None:
    entries = [
        MetadataEntry(header=MetadataHeader(producer_id="x" * size, version=number))
        for number, size in enumerate([2_000_000, 1, 3_000_000, 1_500_000, 1_500_000])
    ]
    whole = MetadataPage(entries=entries, ready=True)
    pages = opened._fitting(whole)
    assert [entry for page in pages for entry in page.entries] == entries
    assert max(page.ByteSize() for page in pages) < 4_194_304
    assert [page.ready for page in pages] == [False] * (len(pages) - 1) + [True]
    assert len(pages) == 3
    assert opened._fitting(MetadataPage(entries=entries[:1])) == [MetadataPage(entries=entries[:1])]
    assert opened._fitting(MetadataPage()) == [MetadataPage()]
