"""Streams that share a connection, on real sockets of this machine."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logtx.coordinator.protocol.frames import MESSAGE_COST_BYTES, Message
from logtx.coordinator.protocol.multiplex import (
    PART_MAX_BYTES,
    ROOM_BYTES,
    STREAMS_MAX,
    CoordinatorStreams,
    StreamEnded,
    StreamMessage,
    StreamRoom,
    read_for_client,
)
from logtx.coordinator.protocol.open_pb2 import Open, OpenStreams, Part, Parts, StreamEnd
from logtx.coordinator.protocol.strangers import Role
from logtx.coordinator.transport import in_thread, streams_in_thread, streams_on_loop
from logtx.coordinator.transport.on_loop import WINDOW_BYTES, LoopConnection
from logtx.coordinator.transport.streams_in_thread import CONNECTIONS, ClientStream
from logtx.coordinator.transport.streams_on_loop import LoopStream, LoopStreams
from logtx.coordinator.transport.streams_on_loop import Served as Stream
from logtx.journal.errors import (
    CoordinatorBusyError,
    FrameError,
    NotCoordinatorError,
    SessionClosedError,
)

from ...children import in_child
from ...waiting import eventually
from . import served
from .served import (
    HELLO,
    LOOPS,
    PATIENT,
    TIMEOUT_S,
    Served,
    dead_port,
    echo,
    message,
    payloads,
    raw_client,
    raw_coordinator,
    read_all,
    read_bytes,
    tls,
)
from .test_interrupted import STEPS_MAX, interrupted

STREAMS: Final = Open(streams=OpenStreams()).SerializeToString()


class ServedStreams(Served):
    """A listener whose connections have streams."""

    def __init__(
        self, serve: Callable[[Stream], Coroutine[Any, Any, None]], **options: Any
    ) -> None:
        self.streams: list[Stream] = []
        """Each stream that began."""
        self.over = 0
        """Streams that are over."""
        self.admitted: set[LoopStream] = set()
        self.machines: list[CoordinatorStreams] = []
        """Of each connection."""

        async def counted(stream: Stream) -> None:
            self.streams.append(stream)
            try:
                await serve(stream)
            finally:
                self.over += 1

        async def all_streams(connection: LoopConnection) -> None:
            assert await connection.receive() == STREAMS
            streams = LoopStreams(connection, counted, self.admitted)
            self.machines.append(streams._machine)
            await streams.run()

        super().__init__(all_streams, **options)


class Client(served.Client):
    """A stream that sends what a test tells it."""

    def __init__(self, address: str, **options: Any) -> None:
        self.asked = 0
        super().__init__(address, **options)

    def _connect(self, address: str, **options: Any) -> ClientStream:
        return ClientStream(address, self._next, **options)

    def _next(self) -> bytes | None:
        self.asked += 1
        return super()._next()

    @property
    def stream(self) -> Any:
        """Returns the stream."""
        return self.connection

    @property
    def shared(self) -> Any:
        """Returns the connection that it lies on."""
        return self.connection._connection

    def __exit__(self, *_exception: object) -> None:
        self.connection.close()


@contextmanager
def clients(address: str, count: int, **options: Any) -> Iterator[list[Client]]:
    """Yields streams to an address."""
    with ExitStack() as stack:
        yield [stack.enter_context(Client(address, **options)) for _ in range(count)]


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    """Which event loop."""
    return str(request.param)


# ---- messages ------------------------------------------------------------------------------------


def test_streams_to_one_address_share_a_connection_and_nothing_else(loop: str) -> None:
    sent = payloads([0, 1, 255, 70_000, *range(40), PART_MAX_BYTES, 3])
    with ServedStreams(echo, loop=loop) as served, clients(served.address, 5) as all_:
        for n, each in enumerate(all_):
            each.send(*(bytes([n]) + payload[1:] for payload in sent))
        for n, each in enumerate(all_):
            for payload in sent:
                assert each.receive() == bytes([n]) + payload[1:]
        assert len(served.seen) == 1
        assert len(served.streams) == 5
    eventually(lambda: served.listener.connections == 0)


def test_threads_that_send_at_once_lose_nothing() -> None:
    with ServedStreams(echo) as served, clients(served.address, 24) as all_:

        def work(n: int) -> None:
            for k in range(200):
                assert all_[n].ask(bytes([n, k])) == bytes([n, k])
            done.append(n)

        done: list[int] = []
        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(24)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(TIMEOUT_S)
        assert sorted(done) == list(range(24))


def test_trap_222_what_is_left_to_another_thread_is_sent() -> None:
    """One thread has found nothing more; another stream gets something, and its thread finds it
    sending; so does the connection's own."""
    found_nothing, may_go_on = threading.Event(), threading.Event()
    gated: list[threading.Thread] = []

    def source() -> bytes | None:
        if threading.current_thread() in gated:
            gated.clear()
            found_nothing.set()
            may_go_on.wait(TIMEOUT_S)
        return None

    with ServedStreams(echo) as served, Client(served.address) as other:
        assert other.ask(b"1") == b"1"
        gate = ClientStream(served.address, source, deadlines=PATIENT)
        time.sleep(0.1)  # the connection's own thread waits
        try:
            sending = threading.Thread(target=gate.flush, daemon=True)
            gated.append(sending)
            sending.start()
            assert found_nothing.wait(TIMEOUT_S)
            other.send(b"late")
            time.sleep(0.2)  # the connection's own thread has found it sending, too
            may_go_on.set()
            assert other.stream.receive(5.0) == b"late"
        finally:
            may_go_on.set()
            gate.close()


def test_trap_286_who_flushes_does_not_send_for_ever_what_others_write() -> None:
    with ServedStreams(echo) as served, clients(served.address, 2) as (quiet, busy):
        assert quiet.ask(b"1") == b"1"
        assert busy.ask(b"1") == b"1"
        busy._next = lambda: b"more"  # type: ignore[method-assign]
        busy.stream._source = busy._next
        before = quiet.asked
        quiet.queue.append(b"2")
        with busy.shared._connection._lock:  # the connection's own thread waits
            thread = threading.Thread(target=busy.stream.flush_soon, daemon=True)
            thread.start()
            thread.join(TIMEOUT_S)
        quiet.stream.flush()
        assert quiet.receive() == b"2"
        assert quiet.asked > before
        busy.stream._source = lambda: None


def test_a_stream_that_ends_while_it_sends_ends_alone() -> None:
    """Another thread ends it, or the coordinator, between its source and its room."""
    with ServedStreams(echo) as served, clients(served.address, 2) as (one, other):
        assert one.ask(b"1") == b"1"
        assert other.ask(b"1") == b"1"
        one.queue.append(b"2")
        machine, closing = one.shared._machine, one.stream.close
        sent = machine.sent

        def ended(stream: int, payload: bytes) -> None:
            closing()
            sent(stream, payload)

        machine.sent = ended
        one.stream.flush()
        machine.sent = sent
        assert other.ask(b"2") == b"2"
        assert other.shared is CONNECTIONS._connections[other.stream.address, PATIENT, None]
        assert list(other.shared._numbered) == list(machine._sent) == list(machine._granted)
        assert len(machine._sent) == 1
        eventually(lambda: served.over == 1)


def test_trap_285_the_next_attempt_at_an_address_that_says_no_hello_makes_a_new_connection() -> (
    None
):
    """The first may have been lost on the way, or lie at a host that is gone."""
    with raw_coordinator() as (address, accept), Client(address) as stays:
        accept()
        with Client(address) as attempt:
            assert attempt.shared is stays.shared
        with Client(address) as another:
            another.send(b"connect")
            raw = accept()
            raw.sendall(HELLO)
            assert read_bytes(raw, len(message(STREAMS))) == message(STREAMS)
            assert another.shared is not stays.shared
            assert not stays.stream.is_over


def test_many_answers_of_one_turn_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    go = asyncio.Event()

    async def wait(stream: Stream) -> None:
        await stream.receive()
        await go.wait()
        await stream.send(b"now")
        await stream.receive()

    sent: list[int] = []
    with ServedStreams(wait) as served, clients(served.address, 20) as all_:
        for each in all_:
            each.send(b"?")
        eventually(lambda: len(served.streams) == 20)
        served.look(lambda: None)
        send_now = LoopConnection.send_now

        def counted(self: LoopConnection, payload: bytes) -> None:
            sent.append(len(Parts.FromString(payload).parts))
            send_now(self, payload)

        monkeypatch.setattr(LoopConnection, "send_now", counted)
        served.look(go.set)
        for each in all_:
            assert each.receive() == b"now"
    assert sent == [20]


def test_many_requests_that_wait_leave_as_one_message() -> None:
    with raw_coordinator() as (address, accept), clients(address, 20) as all_:
        for n, each in enumerate(all_):
            each.send(bytes([n]))
        raw = accept()
        raw.sendall(HELLO)
        assert read_bytes(raw, len(message(STREAMS))) == message(STREAMS)
        header = read_bytes(raw, 4)
        parts = Parts.FromString(read_bytes(raw, int.from_bytes(header[1:], "big"))).parts
        assert [part.message for part in parts] == [bytes([n]) for n in range(20)]
        assert [part.stream for part in parts] == list(range(1, 21))


# ---- who takes nothing ---------------------------------------------------------------------------


def test_trap_282_a_stream_that_nobody_reads_holds_up_itself_alone(loop: str) -> None:
    """As that of a producer whose commits wait for another one's commit, by the same connection."""
    takes = asyncio.Event()

    async def serve(stream: Stream) -> None:
        if await stream.receive() == b"stuck":
            await takes.wait()
        await echo(stream)

    sent = payloads([10_000] * 200)
    with ServedStreams(serve, loop=loop) as served, clients(served.address, 2) as (stuck, other):
        stuck.send(b"stuck", *sent)
        other.send(b"")
        for each in payloads([10_000] * 400):
            assert other.ask(each) == each
        taken = 200 - len(stuck.queue)
        assert ROOM_BYTES // 10_500 <= taken <= ROOM_BYTES // 10_000 + 1
        served.look(takes.set)
        for each in sent:
            assert stuck.receive() == each


def test_who_does_not_take_its_answers_holds_up_no_other_stream() -> None:
    sent = payloads([50_000] * 100)  # more than any window
    with ServedStreams(echo) as served, clients(served.address, 2) as (silent, other):
        silent.send(*sent)
        for each in payloads([10_000] * 50):
            assert other.ask(each) == each
        for each in sent:
            assert silent.receive() == each


class Full:
    """A connection whose client takes nothing."""

    error, may_send, released = None, False, 0

    def release(self, cost: int) -> None:
        self.released += cost


def test_a_client_that_takes_no_answers_and_begins_streams_fills_no_memory() -> None:
    """What it is refused is said by itself, without a task that waits."""

    async def idle(_: Stream) -> None:
        await asyncio.Event().wait()

    async def flood(connection: Full) -> None:
        streams = LoopStreams(connection, idle, set())  # type: ignore[arg-type]
        for n in range(10_000):
            begun = Parts(parts=[Part(stream=n + 1, message=b"")])
            streams.took(Message(begun.SerializeToString()))
        assert len(streams._tasks) == STREAMS_MAX

    connection = Full()
    asyncio.run(flood(connection))
    kept = 10_000 * (MESSAGE_COST_BYTES + 6) - connection.released
    assert kept > WINDOW_BYTES, "it gets room on and on, and does not take what it is told"


# ---- ends ----------------------------------------------------------------------------------------


def test_the_coordinator_ends_one_stream_with_its_error(loop: str) -> None:
    async def serve(stream: Stream) -> None:
        match await stream.receive():
            case b"refuse":
                raise CoordinatorBusyError("not now")
            case b"fail":
                raise KeyError("bug")
            case b"close":
                stream.close(NotCoordinatorError("elsewhere"))
                await asyncio.Event().wait()
            case b"end":
                await stream.send(b"last")
                return
        await echo(stream)

    with ServedStreams(serve, loop=loop) as served, clients(served.address, 5) as all_:
        refused, failed, closed, ended, other = all_
        other.send(b"go")
        for each, said in ((refused, b"refuse"), (failed, b"fail"), (closed, b"close")):
            each.send(said)
        assert ended.ask(b"end") == b"last"
        assert isinstance(refused.end(), CoordinatorBusyError)
        assert str(refused.end()) == "not now"
        assert "its log says how" in str(failed.end())
        assert isinstance(closed.end(), NotCoordinatorError)
        assert "ended the stream" in str(ended.end())
        assert other.ask(b"1") == b"1"
        assert len(served.seen) == 1
        eventually(lambda: served.over == 4)
        assert len(served.admitted) == 1


def test_a_client_that_ends_its_stream_ends_the_task_and_no_other(loop: str) -> None:
    with ServedStreams(echo, loop=loop) as served, clients(served.address, 2) as (one, two):
        assert one.ask(b"1") == b"1"
        assert two.ask(b"2") == b"2"
        one.stream.close()
        with pytest.raises(SessionClosedError):
            one.receive()
        eventually(lambda: served.over == 1)
        assert two.ask(b"2") == b"2"
        two.stream.close()
        eventually(lambda: served.listener.connections == 0)
        with Client(served.address) as three:
            assert three.ask(b"3") == b"3"
        assert len(served.seen) == 2


def test_streams_that_began_and_ended_unseen_cost_nothing() -> None:
    """Attempts of a search that was won elsewhere, before the coordinator said hello."""
    with raw_coordinator() as (address, accept), Client(address) as stays:
        raw = accept()
        for _ in range(50):
            with Client(address) as attempt:
                attempt.send(b"connect")
        stays.send(b"stays")
        raw.sendall(HELLO)
        assert read_bytes(raw, len(message(STREAMS))) == message(STREAMS)
        header = read_bytes(raw, 4)
        (part,) = Parts.FromString(read_bytes(raw, int.from_bytes(header[1:], "big"))).parts
        assert (part.stream, part.message) == (1, b"stays")


def test_an_attempt_that_is_given_up_ends_its_connection_at_once() -> None:
    """Not when the time for a hello is over."""
    with raw_coordinator() as (address, accept), clients(address, 2) as (one, two):
        raw = accept()
        for each in (one, two):
            each.send(b"connect")
            each.stream.close()
        assert read_all(raw) == b""


def test_trap_284_a_stream_that_ends_while_it_gets_its_number_is_ended_at_both_ends() -> None:
    made: list[ClientStream] = []

    def source() -> bytes | None:
        if made and not made[0].is_over:
            made[0].close()  # As another thread may, just now.
            return b"first"
        return None

    with ServedStreams(echo) as served, Client(served.address) as other:
        assert other.ask(b"1") == b"1"
        made.append(ClientStream(served.address, source, deadlines=PATIENT))
        made[0].flush()
        assert other.ask(b"2") == b"2"
        (machine,) = served.machines
        assert machine._last == 2
        assert list(machine._rooms) == [1]
        assert len(served.admitted) == 1


def test_when_the_connection_breaks_each_stream_is_told_and_a_new_one_is_made() -> None:
    with ServedStreams(echo) as served, clients(served.address, 3) as all_:
        for each in all_:
            assert each.ask(b"1") == b"1"
        served.look(served.seen[0]._transport.abort)  # type: ignore[union-attr]
        for each in all_:
            assert isinstance(each.end(), SessionClosedError)
        eventually(lambda: served.over == 3)
        with clients(served.address, 3) as again:
            for each in again:
                assert each.ask(b"2") == b"2"
        assert len(served.seen) == 2


def test_an_address_that_refuses_is_told_to_each_stream() -> None:
    address = f"127.0.0.1:{dead_port()}"
    for _ in range(20):  # It may end before the stream has joined, or while it does.
        with clients(address, 3) as all_:
            for each in all_:
                assert "can't connect" in str(each.end())


def test_a_stream_that_the_coordinator_ends_while_it_sends_leaves_nothing_behind() -> None:
    """Between its source and its room; and room that comes to it just then ends nothing else."""
    with ServedStreams(echo) as served, clients(served.address, 2) as (one, other):
        assert one.ask(b"1") == b"1"
        assert other.ask(b"1") == b"1"
        shared, machine = one.shared, one.shared._machine
        number, sent = one.stream._number, machine.sent

        def ended(stream: int, payload: bytes) -> None:
            shared._hand_on(StreamEnded(stream, SessionClosedError("ended")))
            sent(stream, payload)

        machine.sent = ended
        one.send(b"2")
        machine.sent = sent
        assert str(one.end()) == "ended"
        machine.granted(StreamRoom(number, ROOM_BYTES))
        left = [shared._numbered, shared._waiting, machine._sent, machine._granted]
        assert other.ask(b"2") == b"2"
        assert [number in each for each in left] == [False] * 4


def test_a_source_that_fails_ends_its_stream_alone(caplog: pytest.LogCaptureFixture) -> None:
    def source() -> bytes | None:
        raise KeyError("bug")

    with ServedStreams(echo) as served, Client(served.address) as other:
        assert other.ask(b"1") == b"1"
        failing = ClientStream(served.address, source, deadlines=PATIENT)
        with pytest.raises(SessionClosedError, match="can't be sent: KeyError"):
            failing.receive(TIMEOUT_S)
        assert other.ask(b"2") == b"2"
        assert len(served.seen) == 1
    assert "source_failed" in caplog.text


def test_a_message_that_is_too_large_ends_its_stream_alone() -> None:
    with ServedStreams(echo) as served, clients(served.address, 2) as (one, other):
        assert other.ask(b"1") == b"1"
        one.send(bytes(PART_MAX_BYTES + 1))
        assert f"of {PART_MAX_BYTES} at most" in str(one.end())
        assert other.ask(b"2") == b"2"


# ---- how many ------------------------------------------------------------------------------------


def test_more_streams_than_one_connection_takes_have_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams_in_thread, "STREAMS_MAX", 3)
    with ServedStreams(echo) as served, clients(served.address, 7) as all_:
        for each in all_:
            assert each.ask(b"1") == b"1"
        assert len(served.seen) == 3


def test_a_coordinator_has_a_bound_for_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_on_loop, "STREAMS_MAX", 2)
    with ServedStreams(echo) as served, clients(served.address, 2) as all_:
        for each in all_:
            assert each.ask(b"1") == b"1"
        with Client(served.address) as one_more:
            one_more.send(b"1", b"2")
            assert isinstance(one_more.end(), CoordinatorBusyError)
        all_[0].stream.close()
        eventually(lambda: len(served.admitted) == 1)
        with Client(served.address) as one_more:
            assert one_more.ask(b"1") == b"1"


def test_other_settings_have_another_connection() -> None:
    with ServedStreams(echo, tls=tls(Role.COORDINATOR, "coordinator", None)) as served:
        config = [tls(Role.CLIENT, None), tls(Role.CLIENT, None), tls(Role.CLIENT, "client")]
        with ExitStack() as stack:
            for each in config:
                client = stack.enter_context(Client(served.address, tls=each))
                assert client.ask(b"1") == b"1"
            assert len(served.seen) == 2, "who has the same settings shares, and no other"


# ---- strangers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"\xff", "sent what are no Parts"),
        (Parts(parts=[Part(stream=1)]).SerializeToString(), "neither message nor end"),
        (Parts(parts=[Part(stream=1, room=5)]).SerializeToString(), "neither message nor end"),
        (Parts(parts=[Part(message=b"1")]).SerializeToString(), "of stream 0"),
        (
            Parts(parts=[Part(stream=n, message=b"") for n in range(1, 1_000)]).SerializeToString(),
            "999 parts in one message, of 256 at most",
        ),
    ],
)
def test_trap_287_what_no_client_says_ends_the_connection(said: bytes, why: str) -> None:
    with (
        ServedStreams(echo) as served,
        Client(served.address) as other,
        raw_client(served.address) as raw,
    ):
        assert other.ask(b"1") == b"1"
        raw.sendall(message(STREAMS) + message(said))
        assert why.encode() in read_all(raw)
        assert other.ask(b"2") == b"2"


def test_more_than_the_room_of_a_stream_ends_the_connection() -> None:
    async def idle(_: Stream) -> None:
        await asyncio.Event().wait()

    part = Parts(parts=[Part(stream=1, message=bytes(ROOM_BYTES))]).SerializeToString()
    with ServedStreams(idle) as served, raw_client(served.address) as raw:
        raw.sendall(message(STREAMS) + message(part))
        read_bytes(raw, len(HELLO) + 8)  # and the room that the connection has again
        raw.sendall(message(part))
        assert b"bytes of a stream" in read_all(raw)


def greeted(client: Client, accept: Callable[[], socket.socket]) -> socket.socket:
    """Returns the coordinator's end of a stream whose first message came."""
    client.send(b"1")
    raw = accept()
    raw.sendall(HELLO)
    assert read_bytes(raw, len(message(STREAMS))) == message(STREAMS)
    header = read_bytes(raw, 4)
    read_bytes(raw, int.from_bytes(header[1:], "big"))
    return raw


@pytest.mark.parametrize(
    "said",
    [
        b"\xff",
        Parts(parts=[Part(stream=1)]).SerializeToString(),
        Parts(parts=[Part(stream=1, room=300)]).SerializeToString(),
    ],
)
def test_what_no_coordinator_says_ends_the_connection(said: bytes) -> None:
    with raw_coordinator() as (address, accept), Client(address) as client:
        raw = greeted(client, accept)
        raw.sendall(message(said))
        assert isinstance(client.end(), FrameError)


def test_what_is_of_no_stream_here_is_thrown_away() -> None:
    late = [Part(stream=9, message=b"?"), Part(stream=9, room=9), Part(stream=9, end=StreamEnd())]
    with raw_coordinator() as (address, accept), Client(address) as client:
        raw = greeted(client, accept)
        both = Parts(parts=[*late, Part(stream=1, message=b"2")])
        raw.sendall(message(both.SerializeToString()))
        assert client.receive() == b"2"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(
                lambda parts: Parts(parts=parts).SerializeToString(),
                st.lists(
                    st.builds(
                        lambda n, what: Part(stream=n, **what),
                        st.integers(0, 4),
                        st.sampled_from(
                            [
                                {"message": b"m"},
                                {"room": 1},
                                {"end": StreamEnd(code=5, text="\x1b[2J")},
                                {},
                            ]
                        ),
                    ),
                    max_size=6,
                ),
            ),
        ),
        max_size=8,
    )
)
def test_any_bytes_end_in_events_or_one_kind_of_error(messages: list[bytes]) -> None:
    machine, came = CoordinatorStreams(streams_max=2), 0
    for payload in messages:
        for read in (machine.receive, read_for_client):
            try:
                events = read(payload)
            except FrameError:
                continue
            came += sum(isinstance(event, StreamMessage) for event in events)
            for event in events:
                assert str(getattr(event, "error", "")).isprintable()
    assert len(machine._rooms) <= 2


# ---- beside Ctrl-C and forks ---------------------------------------------------------------------


@pytest.mark.parametrize("call", ["flush", "flush_soon", "close", "receive"])
def test_trap_283_an_interrupted_call_leaves_no_stream_behind_and_none_hanging(call: str) -> None:
    """Ctrl-C at each step of a call of one stream, beside another one on the same connection."""
    reached = 0
    with ServedStreams(echo) as served:
        for at in range(STEPS_MAX):
            with clients(served.address, 2) as (one, other):
                assert other.ask(b"0") == b"0"
                assert one.ask(b"0") == b"0"
                if call != "close":
                    one.queue.append(b"1")
                if call == "receive":
                    one.stream.flush()
                work = one.receive if call == "receive" else getattr(one.stream, call)
                hit = interrupted(work, at, (streams_in_thread, in_thread))
                _goes_on_or_ends(other)
                one.stream.close()
                one.stream.close()  # What an application does when it ends.
            eventually(lambda: not served.admitted, TIMEOUT_S)
            if not hit:
                break
            reached += 1
    assert 1 < reached < STEPS_MAX


def _goes_on_or_ends(client: Client) -> None:
    try:
        assert client.ask(b"2") == b"2"
    except SessionClosedError:
        assert client.stream.is_over


def test_a_child_of_a_fork_has_a_connection_of_its_own() -> None:
    with ServedStreams(echo) as served, Client(served.address) as client:
        assert client.ask(b"1") == b"1"
        stream = client.stream
        assert in_child(lambda: stream.receive(0)) == "ForkedError"
        assert in_child(lambda: stream.flush()) == "ForkedError"  # noqa: PLW0108
        assert in_child(lambda: stream.close()) == "None"  # noqa: PLW0108

        def ask() -> bytes:
            with Client(served.address) as own:
                return own.ask(b"child")

        assert in_child(ask) == "b'child'"
        assert client.ask(b"2") == b"2", "the child's end disturbed it"


def test_nothing_is_kept_of_connections_that_are_over() -> None:
    addresses = []
    for _ in range(3):
        with ServedStreams(echo) as served, Client(served.address) as client:
            assert client.ask(b"1") == b"1"
            addresses.append(served.address)
            assert served.address in known_addresses()
    eventually(lambda: known_addresses().isdisjoint(addresses))


def known_addresses() -> set[str]:
    """Returns where this process has connections that may be shared."""
    return {address for address, *_ in CONNECTIONS._connections}  # type: ignore[misc]
