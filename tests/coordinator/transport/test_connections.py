"""Both shells on real sockets of this machine: what comes, what waits, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from logtx.coordinator.client.connection import CALL_DEADLINES
from logtx.coordinator.protocol.frames import (
    CLIENT_DEADLINES,
    MESSAGE_COST_BYTES,
    MESSAGE_MAX_BYTES,
    Deadlines,
)
from logtx.coordinator.protocol.strangers import Role
from logtx.coordinator.transport import address as addresses
from logtx.coordinator.transport import on_loop
from logtx.coordinator.transport.in_thread import ThreadConnection
from logtx.coordinator.transport.on_loop import LoopConnection, dial
from logtx.journal.errors import (
    ConfigError,
    LogtxError,
    NotSupportedError,
    ProducerFencedError,
    RequestTimedOutError,
    SessionClosedError,
)

from ...waiting import eventually
from .served import (
    HELLO,
    LOOPS,
    PATIENT,
    PING,
    TIMEOUT_S,
    Client,
    Served,
    dropping,
    echo,
    idle,
    message,
    payloads,
    raw_client,
    raw_coordinator,
    read,
    read_all,
    read_bytes,
)

QUICK = Deadlines(hello_ms=2_000, ping_after_ms=100, pong_ms=400, frame_ms=700, linger_ms=300)
ALIVE = Deadlines(hello_ms=20_000, ping_after_ms=200, pong_ms=2_000)
"""For peers that are alive, on a machine that may be busy."""


# ---- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("window_bytes", [1, 100_000, 8_000_000])
def test_messages_of_every_size_come_in_order(
    variant: tuple[dict[str, Any], dict[str, Any]], window_bytes: int
) -> None:
    sent = payloads([0, 1, 255, 65_536, *range(30), MESSAGE_MAX_BYTES, 0])
    server, client = variant
    with (
        Served(echo, window_bytes=window_bytes, **server) as served,
        Client(served.address, window_bytes=window_bytes, **client) as asking,
    ):
        asking.send(*sent)
        for each in sent:
            assert asking.receive() == each


def test_coordinators_speak_to_each_other() -> None:
    sent = payloads([0, 70_000, MESSAGE_MAX_BYTES, 5])

    async def ask(address: str) -> list[bytes]:
        connection = await dial(address, deadlines=PATIENT)
        try:
            sending = asyncio.gather(*map(connection.send, sent))
            got = [await connection.receive() for _ in sent]
            await sending
        finally:
            connection.close(SessionClosedError("done"))
        return got

    with Served(echo) as served:
        assert asyncio.run(ask(served.address)) == sent
        eventually(lambda: served.listener.connections == 0)
        assert str(served.seen[0].error) == "done"


def test_bytes_may_come_one_by_one() -> None:
    with Served(echo) as served, raw_client(served.address, hello=b"") as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for each in HELLO + message(b"abc") + PING + message(b"de"):
            raw.sendall(bytes([each]))
        read_bytes(raw, len(HELLO))
        got = read_bytes(raw, len(message(b"abc") + PING + message(b"de")))
        assert got.replace(b"\x03\0\0\0", b"", 1) == message(b"abc") + message(b"de")
    with raw_coordinator() as (address, accept), Client(address) as client:
        raw = accept()
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for each in HELLO + message(b"abc"):
            raw.sendall(bytes([each]))
        assert client.receive() == b"abc"


def test_a_message_is_made_when_there_is_room_for_it() -> None:
    """A request says how things are when it leaves; so a burst can become one message, too."""
    made: list[int] = []

    def source() -> bytes | None:
        if len(made) == 100:
            return None
        made.append(len(made))
        return b"x" * 1_000

    with Served(idle, window_bytes=5 * (1_000 + MESSAGE_COST_BYTES)) as served:
        connection = ThreadConnection(served.address, source, deadlines=PATIENT)
        try:
            connection.flush()
            eventually(lambda: len(made) == 5)
            time.sleep(0.1)
            assert len(made) == 5
        finally:
            connection.close()


def test_a_message_that_is_too_large_is_refused_at_its_sender() -> None:
    async def too_large(connection: LoopConnection) -> None:
        await connection.receive()
        with pytest.raises(ValueError, match="of 4194304 at most"):
            await connection.send(bytes(MESSAGE_MAX_BYTES + 1))
        await connection.send(b"still there")

    with Served(too_large) as served:
        with Client(served.address) as client:
            assert client.ask(b"") == b"still there"
        with Client(served.address) as client:
            client.queue.append(bytes(MESSAGE_MAX_BYTES + 1))  # its own thread takes it
            assert "4194305 bytes, of 4194304 at most" in str(client.end())


# ---- who takes nothing ---------------------------------------------------------------------------


def test_messages_wait_for_a_coordinator_that_takes_none_and_pings_do_not() -> None:
    takes = asyncio.Event()

    async def serve(connection: LoopConnection) -> None:
        await takes.wait()
        await echo(connection)

    sent = payloads([10_000] * 200)
    with (
        Served(serve, deadlines=ALIVE, window_bytes=50_000) as served,
        Client(served.address, deadlines=ALIVE) as client,
    ):
        client.send(*sent)
        eventually(lambda: len(client.queue) < 200)
        time.sleep(3.0)  # more than it takes to find a peer dead
        assert 180 < len(client.queue) < 200
        served.look(takes.set)
        for each in sent:
            assert client.receive() == each


def test_messages_wait_for_a_client_that_takes_none_and_pings_do_not() -> None:
    sent = 0

    async def serve(connection: LoopConnection) -> None:
        nonlocal sent
        while sent < 200:
            await connection.send(b"x" * 10_000)
            sent += 1
        await read(connection)

    with (
        Served(serve, deadlines=ALIVE) as served,
        Client(served.address, deadlines=ALIVE, window_bytes=50_000) as client,
    ):
        eventually(lambda: sent > 0)
        time.sleep(3.0)
        assert 0 < sent < 20
        for _ in range(200):
            assert client.receive() == b"x" * 10_000
        assert not client.connection.is_over


def test_trap_221_who_writes_does_not_wait_for_who_reads_nothing() -> None:
    """The coordinator has stopped, with room for everything."""
    with raw_coordinator() as (address, accept), Client(address, deadlines=QUICK) as client:
        raw = accept()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.sendall(HELLO)
        client.queue.extend([b"x" * 1_000_000] * 200)
        began_s = time.monotonic()
        thread = threading.Thread(target=client.connection.flush, daemon=True)
        thread.start()
        error = client.end()
        waited_s = time.monotonic() - began_s
        thread.join(TIMEOUT_S)
        assert "said nothing for 500 ms" in str(error)
        assert waited_s < 10
        assert len(client.queue) > 150, "more was taken than the system and one message hold"


def test_a_peer_that_has_room_for_all_and_reads_nothing_fills_no_memory() -> None:
    sent = 0

    async def serve(connection: LoopConnection) -> None:
        nonlocal sent
        while True:
            await connection.send(b"x" * 10_000)
            sent += 1

    with Served(serve) as served, raw_client(served.address) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        before = -1
        while before < sent or not sent:
            before = sent
            raw.sendall(PING * 100)  # to be answered by one PONG, once it can be
            time.sleep(0.3)
        transport = served.seen[0]._transport
        assert transport is not None
        kept = served.look(transport.get_write_buffer_size)
        assert 0 < kept <= 10_004


def test_who_asks_for_a_message_can_bound_the_wait() -> None:
    with Served(idle) as served, Client(served.address) as client:
        with pytest.raises(RequestTimedOutError):
            client.connection.receive(0.05)
        assert not client.connection.is_over


# ---- ends ----------------------------------------------------------------------------------------


def test_an_end_comes_with_its_reason_behind_all_messages(
    variant: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    async def serve(connection: LoopConnection) -> None:
        for number in range(50):
            await connection.send(bytes([number]) * 10_000)
        raise ProducerFencedError("a newer producer is there")

    server, client = variant
    with Served(serve, **server) as served, Client(served.address, **client) as asking:
        for number in range(50):
            assert asking.receive() == bytes([number]) * 10_000
        for _ in range(2):
            with pytest.raises(ProducerFencedError, match="a newer producer is there"):
                asking.receive()
        assert asking.connection.is_over
        eventually(lambda: served.listener.connections == 0)


def test_an_end_is_heard_while_requests_lie_unread(
    variant: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """Trap 214, with a system that resets connections."""

    async def refuse(connection: LoopConnection) -> None:
        await connection.receive()
        raise NotSupportedError("not that")

    server, client = variant
    window_bytes = 64_000_000
    with Served(refuse, window_bytes=window_bytes, **server) as served:
        for _ in range(2):
            with Client(served.address, **client) as asking:
                asking.send(*[b"x" * 1_000_000] * 5)
                assert str(asking.end()) == "not that"


@pytest.mark.parametrize("loop", LOOPS)
def test_who_is_refused_while_it_sends_is_not_reset(loop: str) -> None:
    """Trap 214: a system may throw away what it had for the peer when that resets."""

    async def refuse(connection: LoopConnection) -> None:
        await connection.receive()
        raise NotSupportedError("not that")

    with Served(refuse, loop=loop) as served, raw_client(served.address) as raw:
        for _ in range(20):
            raw.sendall(message(bytes(1_000)))
            time.sleep(0.005)
        assert read_all(raw).endswith(b"not that")


def test_a_client_that_closes_tells_it_and_its_task_is_cancelled(
    variant: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    server, client = variant
    with Served(echo, **server) as served:
        with Client(served.address, **client) as asking:
            assert asking.ask(b"x") == b"x"
            asking.connection.close(NotSupportedError("no longer"))
            assert str(asking.end()) == "no longer"
        eventually(lambda: served.cancelled == 1)
        eventually(lambda: served.listener.connections == 0)
        (connection,) = served.seen
        assert isinstance(connection.error, NotSupportedError)


def test_a_bug_in_a_task_ends_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(connection: LoopConnection) -> None:
        if await connection.receive() == b"bad":
            raise KeyError
        await connection.send(b"good")
        await read(connection)

    with Served(serve) as served, Client(served.address) as good, Client(served.address) as bad:
        bad.send(b"bad")
        assert "its log says how" in str(bad.end())
        assert good.ask(b"good") == b"good"
    assert "connection_failed" in caplog.text


def reset(raw: socket.socket) -> None:
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


def half_close(raw: socket.socket) -> None:
    raw.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("end", [reset, half_close, socket.socket.close])
def test_a_connection_that_breaks_is_over_at_once_at_both_shells(
    end: Callable[[socket.socket], None],
) -> None:
    with Served(idle) as served, raw_client(served.address) as raw:
        raw.sendall(message(b"abc"))
        eventually(lambda: len(served.seen) == 1)
        end(raw)
        eventually(lambda: served.cancelled == 1)
        eventually(lambda: served.listener.connections == 0)
        assert isinstance(served.seen[0].error, SessionClosedError)
    with raw_coordinator() as (address, accept), Client(address) as client:
        raw = accept()
        raw.sendall(HELLO)
        client.queue.append(b"abc")
        eventually(lambda: client.connection.flush() or not client.queue)  # type: ignore[func-returns-value]
        end(raw)
        error = client.end()
        assert isinstance(error, SessionClosedError)
        assert "without a word" in str(error)
        client.send(b"lost")  # says nothing: who asks for the answer is told


def test_who_is_told_of_an_end_may_be_gone_already() -> None:
    """It reset the connection in the moment between CLOSE and the end of the stream."""

    class Gone:
        def __getattr__(self, _name: str) -> Callable[..., Any]:
            return lambda *_: socket.socket()

        def is_closing(self) -> bool:
            return False

        def write_eof(self) -> None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    async def close() -> LogtxError | None:
        connection = LoopConnection(Role.COORDINATOR, deadlines=PATIENT)
        connection.connection_made(Gone())  # type: ignore[arg-type]
        connection.data_received(HELLO)
        connection.close(SessionClosedError("done"))
        return connection.error

    assert str(asyncio.run(close())) == "done"


def test_who_connected_may_have_reset_the_connection_already() -> None:
    """macOS refuses options of such a socket."""

    class Reset:
        family = socket.AF_INET

        def setsockopt(self, *_: Any) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

        def fileno(self) -> int:
            return -1

    class Made:
        def __getattr__(self, _name: str) -> Callable[..., Any]:
            return lambda *_: Reset()

    async def begin() -> LogtxError | None:
        connection = LoopConnection(Role.COORDINATOR, deadlines=PATIENT)
        connection.connection_made(Made())  # type: ignore[arg-type]
        connection.connection_lost(None)
        return connection.error

    assert "before it said hello" in str(asyncio.run(begin()))


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    with Client(address) as client:
        error = client.end()
        assert isinstance(error, SessionClosedError)
        assert f"can't connect to {address}" in str(error)
    with pytest.raises(SessionClosedError, match="can't connect to"):
        asyncio.run(dial(address, deadlines=PATIENT))
    for bad in ("nothing", "host:port", "host:-1", "host:70000", ":1"):
        with pytest.raises(ConfigError, match="give host:port"):
            Client(bad)


def test_an_attempt_that_is_given_up_ends_at_once() -> None:
    """The host is cut off: nothing answers. Whoever gave it up tries elsewhere meanwhile."""
    with dropping() as (host, port):
        address = f"{host}:{port}"
        with Client(address) as client:
            with pytest.raises(RequestTimedOutError):
                client.connection.receive(0.5)
            began_s = time.monotonic()
            client.connection.close()
            assert "the client has closed" in str(client.end())
            assert time.monotonic() - began_s < 5
        hurried = Deadlines(hello_ms=300, ping_after_ms=10_000, pong_ms=10_000)
        with Client(address, deadlines=hurried) as client:
            assert "took no connection in 300 ms" in str(client.end())


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The host `two.example` has two addresses: one that drops packets, and this machine's."""
    with dropping() as dead:
        look_up = socket.getaddrinfo

        def found(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
            if host != "two.example":
                return look_up(host, port, *arguments, **options)
            tcp = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
            return [(*tcp, dead), (*tcp, ("127.0.0.1", port))]

        async def found_by_loop(_: Any, host: Any, port: Any, **options: Any) -> Any:
            return found(host, port, **options)

        monkeypatch.setattr(socket, "getaddrinfo", found)
        monkeypatch.setattr(uvloop.Loop, "getaddrinfo", found_by_loop)  # It asks the system itself.
        yield


@pytest.mark.usefixtures("two_addresses")
@pytest.mark.parametrize("deadlines", [CLIENT_DEADLINES, CALL_DEADLINES])
def test_trap_258_the_next_address_is_tried_while_the_first_drops_packets(
    deadlines: Deadlines,
) -> None:
    with Served(echo) as served:
        _, port = served.address.split(":")
        began_s = time.monotonic()
        with Client(f"two.example:{port}", deadlines=deadlines) as client:
            assert client.ask(b"x") == b"x"
            assert time.monotonic() - began_s < 1.0


@pytest.mark.usefixtures("two_addresses")
@pytest.mark.parametrize("loop", LOOPS)
def test_trap_258_so_do_coordinators(loop: str) -> None:
    async def ask(address: str) -> bytes:
        connection = await dial(address, deadlines=CLIENT_DEADLINES)
        await connection.send(b"x")
        got = await connection.receive()
        connection.close(SessionClosedError("done"))
        return got

    with Served(echo) as served, asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        _, port = served.address.split(":")
        began_s = time.monotonic()
        assert runner.run(ask(f"two.example:{port}")) == b"x"
        assert time.monotonic() - began_s < 2.0


@pytest.mark.parametrize("loop", LOOPS)
def test_who_dials_gives_up_in_time(loop: str) -> None:
    hurried = Deadlines(hello_ms=300, ping_after_ms=10_000, pong_ms=10_000)
    with (
        dropping() as (host, port),
        asyncio.Runner(loop_factory=LOOPS[loop]) as runner,
        pytest.raises(SessionClosedError, match="took no connection in 300 ms"),
    ):
        runner.run(dial(f"{host}:{port}", deadlines=hurried))


def test_a_stopped_process_takes_connections_and_never_says_hello() -> None:
    with raw_coordinator() as (address, _), Client(address, deadlines=QUICK) as client:
        assert "said no hello in 2000 ms" in str(client.end())


def test_a_client_that_says_nothing_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    hurried = Deadlines(hello_ms=200, ping_after_ms=10_000, pong_ms=10_000)
    with Served(idle, deadlines=hurried) as served, raw_client(served.address, hello=b"") as raw:
        assert read_all(raw) == b""
        assert not served.seen
    assert not caplog.text, "that may happen all the time"


@pytest.mark.parametrize(
    ("each", "why"), [(b"", "said nothing for 500 ms"), (b"x", "did not end a frame in 700 ms")]
)
def test_a_frame_that_does_not_end_ends_the_connection(each: bytes, why: str) -> None:
    """Bytes that trickle keep nothing alive, and neither does silence."""
    with Served(idle, deadlines=QUICK) as served, raw_client(served.address) as raw:
        raw.sendall(message(bytes(1_000))[:4])
        eventually(lambda: len(served.seen) == 1)
        while not served.cancelled:
            with suppress(OSError):
                raw.sendall(each)
            time.sleep(0.05)
        assert why in str(served.seen[0].error)
        eventually(lambda: served.listener.connections == 0)


def test_a_listener_that_stops_tells_its_clients(
    variant: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    server, client = variant
    with Served(echo, **server) as served, Client(served.address, **client) as asking:
        assert asking.ask(b"x") == b"x"
        served.do(served.listener.stop())
        assert str(asking.end()) == "the coordinator stops"
        assert (served.listener.connections, served.cancelled) == (0, 1)


def test_a_listener_that_stops_does_not_wait_for_clients_that_do_not_hear() -> None:
    with Served(idle, deadlines=QUICK) as served, raw_client(served.address):
        eventually(lambda: len(served.seen) == 1)
        began_s = time.monotonic()
        served.do(served.listener.stop())
        assert served.listener.connections == 0
        assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("loop", LOOPS)
def test_a_listener_stops_in_time_whatever_its_tasks_and_peers_do(loop: str) -> None:
    async def stubborn(connection: LoopConnection) -> None:
        sending = connection.send
        while True:
            with suppress(asyncio.CancelledError, LogtxError):
                await sending(b"x" * 1_000_000)  # which nobody reads
            await asyncio.sleep(0.01)

    with (
        Served(stubborn, loop=loop, deadlines=QUICK) as served,
        raw_client(served.address),
        raw_client(served.address, hello=b""),
    ):
        eventually(lambda: served.listener.connections == 2 and len(served.seen) == 1)
        began_s = time.monotonic()
        served.do(served.listener.stop())
        assert time.monotonic() - began_s < 2 * QUICK.linger_ms / 1_000 + 1
        assert served.listener.connections == 0
        for each in served.listener._tasks:
            served.look(each.cancel)


def test_a_connection_that_was_accepted_when_its_listener_stopped_is_closed() -> None:
    """In the same turn of the loop: what asks for it comes behind."""
    with Served(echo) as served:
        served.do(served.listener.stop())
        late = served.look(served.listener._accept)
        assert str(late.error) == "the coordinator stops"
        assert served.listener.connections == 0


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("has_started", [True, False])
def test_trap_259_a_port_is_free_whoever_has_a_copy_of_its_socket(
    loop: str, has_started: bool
) -> None:
    """As a child has one that Python did not fork."""

    async def stop() -> None:
        listener = on_loop.Listener(deadlines=QUICK)
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = "{}:{}".format(*free.getsockname())
        listener.bind(address)
        assert listener._listening is not None
        copy = os.dup(listener._listening.socket.fileno())
        try:
            if has_started:
                await listener.start(idle)
            await listener.stop()
            with pytest.raises(SessionClosedError, match="can't connect"):
                await dial(address, deadlines=QUICK)
            other = on_loop.Listener(deadlines=QUICK)
            other.bind(address)
            await other.start(echo)
            connection = await dial(address, deadlines=PATIENT)
            await connection.send(b"x")
            assert await connection.receive() == b"x"
            connection.close(SessionClosedError("done"))
            await other.stop()
        finally:
            os.close(copy)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(stop())


def test_a_listener_takes_so_many_connections_and_more_once_there_is_room() -> None:
    with Served(echo, connections_max=2) as served, Client(served.address) as first:
        with Client(served.address) as second:
            assert [first.ask(b"1"), second.ask(b"2")] == [b"1", b"2"]
            with Client(served.address) as third:
                assert isinstance(third.end(), SessionClosedError)
            assert served.listener.refused == 1
            assert first.ask(b"1") == b"1"
        eventually(lambda: served.listener.connections == 1)
        with Client(served.address) as fourth:
            assert fourth.ask(b"4") == b"4"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_answer_does_not_wait_for_the_one_before(loop: str) -> None:
    with Served(echo, loop=loop) as served, Client(served.address) as client:
        client.ask(b"x")
        (connection,) = served.seen
        transport = connection._transport
        assert transport is not None
        made = transport.get_extra_info("socket")
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_is_taken() -> None:
    with Served(echo) as served, pytest.raises(ConfigError, match="another coordinator"):
        on_loop.Listener().bind(served.address)


@pytest.mark.parametrize("address", ["localhost:0", "[::]:0", "0.0.0.0:0"])
def test_a_listener_of_all_addresses_has_one_port(address: str) -> None:
    async def listen() -> bytes:
        listener = on_loop.Listener(deadlines=PATIENT)
        port = listener.bind(address)
        await listener.start(echo)
        name = "localhost" if "localhost" in address else "127.0.0.1"
        connection = await dial(f"{name}:{port}", deadlines=PATIENT)
        await connection.send(b"x")
        got = await connection.receive()
        connection.close(SessionClosedError("done"))
        await listener.stop()
        return got

    assert asyncio.run(listen()) == b"x"


# ---- processes that stand still ------------------------------------------------------------------

PEER = """
import socket, sys
hello = bytes.fromhex("8d4c4f4754580d0a 0001 7fffffff")
if sys.argv[1] == "listen":
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    connected, _ = listening.accept()
else:
    connected = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
connected.sendall(hello)
data = b""
while received := connected.recv(65536):
    data += received
    if b"LOGTX" in data:
        data = data[14:]
    while len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[1:4], "big"):
        if data[0] == 2:
            connected.sendall(b"\\x03\\0\\0\\0")
        data = data[4 + int.from_bytes(data[1:4], "big"):]
"""
"""A peer that answers pings, in few lines, so that it starts at once."""


@pytest.fixture
def peer() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Returns what starts a peer in a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-S", "-c", PEER, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_a_coordinator_that_is_stopped_is_noticed(
    peer: Callable[..., subprocess.Popen[str]],
) -> None:
    process = peer("listen")
    assert process.stdout is not None
    port = int(process.stdout.readline())
    with Client(f"127.0.0.1:{port}", deadlines=QUICK) as client:
        with pytest.raises(RequestTimedOutError):
            client.connection.receive(1.2)  # it answers pings
        process.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        assert "said nothing for 500 ms" in str(client.end())
        assert 0.2 < time.monotonic() - began_s < 5


def test_a_client_that_is_stopped_is_noticed(peer: Callable[..., subprocess.Popen[str]]) -> None:
    with Served(idle, deadlines=QUICK) as served:
        process = peer("connect", served.address.rsplit(":")[1])
        eventually(lambda: len(served.seen) == 1)
        time.sleep(1.2)
        assert served.listener.connections == 1
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: served.listener.connections == 0 and served.cancelled == 1)
        assert "said nothing for 500 ms" in str(served.seen[0].error)


def test_a_peer_that_is_stopped_for_less_than_its_time_goes_on(
    peer: Callable[..., subprocess.Popen[str]],
) -> None:
    patient = Deadlines(hello_ms=20_000, ping_after_ms=100, pong_ms=20_000)
    with Served(idle, deadlines=patient) as served:
        coordinator, client = peer("listen"), peer("connect", served.address.rsplit(":")[1])
        assert coordinator.stdout is not None
        with Client(
            f"127.0.0.1:{int(coordinator.stdout.readline())}", deadlines=patient
        ) as connected:
            eventually(lambda: len(served.seen) == 1 and connected.connection._may_send())
            for _ in range(2):
                for each in (coordinator, client):
                    each.send_signal(signal.SIGSTOP)
                connected.send(*[b"x" * 1_000_000] * 20)  # more than the system takes
                time.sleep(0.5)
                assert connected.queue
                for each in (coordinator, client):
                    each.send_signal(signal.SIGCONT)
                eventually(lambda: not connected.queue)
            assert not connected.connection.is_over
        assert served.listener.connections == 1


class Still:
    """A clock that jumps once: as a process sees it that stood still."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.lost_ms = 0

    def __call__(self) -> int:
        return self._now_ms() + self.lost_ms


@pytest.mark.parametrize("module", ["in_thread", "on_loop"])
def test_who_stood_still_itself_does_not_take_its_peer_for_dead(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock jumps by a minute, over each of its deadlines. `tests/search/test_frames.py` has
    every moment at which that can be."""
    clock = Still(addresses.now_ms)
    monkeypatch.setattr(f"logtx.coordinator.transport.{module}.now_ms", clock)
    times = Deadlines(hello_ms=20_000, ping_after_ms=200, pong_ms=20_000, late_ms=2_000)
    ours = {"deadlines": times if module == "on_loop" else PATIENT}
    theirs = {"deadlines": times if module == "in_thread" else PATIENT}
    with Served(echo, **ours) as served, Client(served.address, **theirs) as client:
        assert client.ask(b"1") == b"1"
        time.sleep(0.4)  # a PING was sent and answered
        for _ in range(3):
            clock.lost_ms += 60_000
            assert client.ask(b"2") == b"2"
            time.sleep(0.4)


def test_a_peer_that_breaks_the_rules_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with Served(idle) as served, raw_client(served.address) as raw:
        raw.sendall(b"\x09\0\0\0")
        read_bytes(raw, len(HELLO))
        frame = read_all(raw)
        assert frame[0] == 5
        assert b"kind 9" in frame
        eventually(lambda: served.listener.connections == 0)
    assert "kind 9" in caplog.text


def test_no_error_is_raised_twice_with_the_same_traceback() -> None:
    with Served(idle) as served, Client(served.address) as client:
        client.connection.close()
        errors: list[LogtxError] = [client.end(), client.end()]
        assert errors[0] is not errors[1]
