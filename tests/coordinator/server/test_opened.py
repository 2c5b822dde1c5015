"""Sessions and calls against a real coordinator on a log in memory, message by message."""

from __future__ import annotations

import asyncio
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
)
from logtx.coordinator.protocol.replies import decode_reply
from logtx.coordinator.protocol.requests import encode_request
from logtx.coordinator.server import opened
from logtx.coordinator.service import Coordinator, CoordinatorConfig
from logtx.journal.errors import (
    LogtxError,
    NotSupportedError,
    RequestTimedOutError,
    SessionClosedError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ...waiting import eventually
from ..transport.served import PATIENT, Client

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
    assert "the coordinator ended the connection" in first.ended


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


def test_calls_wait_for_each_other_only_for_want_of_room(
    coordinator: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "CALLS_MAX", 3)
    gate = asyncio.Event()
    under_way: list[int] = []

    async def call(request: pb.CallRequest) -> pb.Reply:
        number = request.request.request_id
        under_way.append(number)
        if number > 2:
            await gate.wait()
        under_way.remove(number)
        return pb.Reply(request_id=number)

    monkeypatch.setattr(coordinator.streams, "call", call)
    calls = Calls(coordinator.address, deadlines=PATIENT)
    try:
        assert [calls.call(pb.CallRequest(), TIMEOUT_S).request_id for _ in range(2)] == [1, 2]
        for _ in range(5):
            with pytest.raises(RequestTimedOutError):
                calls.call(pb.CallRequest(), 0.05)
        eventually(lambda: len(under_way) == 3)
        coordinator.do(_set(gate))
        assert calls.call(pb.CallRequest(), TIMEOUT_S).request_id == 8
        calls.close()
        eventually(lambda: calls._failure is not None)
        with pytest.raises(SessionClosedError, match="the client has closed"):
            calls.call(pb.CallRequest(), TIMEOUT_S)
    finally:
        calls.close()


async def _set(gate: asyncio.Event) -> None:
    gate.set()


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
