"""A coordinator whose event loop is held up is not left; one whose loop is dead, is."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from logtx.coordinator.client.pursuit import PATIENCE_MAX_S
from logtx.coordinator.membership.peers import SILENCE_S
from logtx.coordinator.protocol.frames import CLIENT_DEADLINES, PONG, Deadlines
from logtx.coordinator.protocol.strangers import Role
from logtx.coordinator.transport import alive, on_loop
from logtx.coordinator.transport.alive import BEAT_S, HELD_UP_MAX_S, HELD_UP_S, SHOWN_S, Alive
from logtx.coordinator.transport.on_loop import LoopConnection, dial
from logtx.journal.errors import LogtxError, SessionClosedError

from ...waiting import eventually
from .served import (
    HELLO,
    LOOPS,
    PATIENT,
    TIMEOUT_S,
    Client,
    Served,
    echo,
    message,
    payloads,
    raw_client,
    read,
    read_bytes,
)

IMPATIENT = Deadlines(hello_ms=20_000, ping_after_ms=200, pong_ms=1_800)
"""More than clients have, as the machine may be busy."""


def compute(seconds: float) -> None:
    """Holds the interpreter for as long as that may be held."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def hold(served: Served, seconds: float, how: Callable[[float], None] = time.sleep) -> None:
    """Holds its event loop up."""
    served._loop.call_soon_threadsafe(how, seconds)


# ---- who is held up ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [time.sleep, compute])
def test_trap_237_a_coordinator_whose_loop_is_held_up_is_not_left(
    variant: tuple[dict[str, Any], dict[str, Any]], how: Callable[[float], None]
) -> None:
    server, client = variant
    with (
        Served(echo, **server) as served,
        Client(served.address, deadlines=IMPATIENT, **client) as asking,
    ):
        assert asking.ask(b"1") == b"1"
        hold(served, 3.0, how)
        assert asking.ask(b"2") == b"2"
        assert served.listener.alive.rounds > 0
        assert not asking.connection.is_over


def test_trap_237_without_the_thread_all_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alive, "start", lambda _: None)
    with Served(echo) as served, Client(served.address, deadlines=IMPATIENT) as asking:
        assert asking.ask(b"1") == b"1"
        hold(served, 3.0)
        assert "said nothing for 2000 ms" in str(asking.end())


def test_trap_239_a_coordinator_whose_loop_is_dead_is_left(
    variant: tuple[dict[str, Any], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alive, "HELD_UP_MAX_S", 1.0)
    server, client = variant
    with (
        Served(echo, **server) as served,
        Client(served.address, deadlines=IMPATIENT, **client) as asking,
    ):
        assert asking.ask(b"1") == b"1"
        gate = threading.Event()
        served._loop.call_soon_threadsafe(gate.wait, TIMEOUT_S)
        try:
            assert "said nothing for 2000 ms" in str(asking.end())
            assert served.listener.alive.rounds > 0
        finally:
            gate.set()


def test_who_dialled_is_not_left_either() -> None:
    """A coordinator that calls another one, whose side pings it."""

    async def call(speaking: Alive | None, until: Callable[[], bool]) -> LogtxError | None:
        if speaking is not None:
            speaking.start()
        connection = await dial(served.address, deadlines=PATIENT, alive=speaking)
        await connection.send(b"x")
        await connection.receive()
        deadline_s = time.monotonic() + TIMEOUT_S
        while not until() and time.monotonic() < deadline_s:
            compute(0.05)  # holds its loop up
        error = served.seen[-1].error
        if speaking is not None:
            speaking.stop()
        connection.close(SessionClosedError("done"))
        return error

    with Served(echo, deadlines=IMPATIENT) as served:
        until_s = time.monotonic() + 3.0
        assert asyncio.run(call(Alive(), lambda: time.monotonic() > until_s)) is None
        error = asyncio.run(call(None, lambda: served.seen[-1].error is not None))
        assert "said nothing for 2000 ms" in str(error)


def test_trap_236_who_connects_to_a_loop_that_is_held_up_waits_for_it() -> None:
    with Served(echo) as served:
        hold(served, 1.5)
        with Client(served.address, deadlines=CLIENT_DEADLINES) as asking:
            assert asking.ask(b"1") == b"1"


def test_times_fit_each_other() -> None:
    """A test would need a machine that is never late."""
    assert CLIENT_DEADLINES.hello_ms >= PATIENCE_MAX_S * 1_000
    assert HELD_UP_MAX_S == SILENCE_S
    noticed_ms = (HELD_UP_S + BEAT_S) * 1_000
    assert noticed_ms + 100 <= CLIENT_DEADLINES.pong_ms
    assert CLIENT_DEADLINES.ping_after_ms + CLIENT_DEADLINES.pong_ms >= SHOWN_S * 1_000 + 200


def test_a_loop_that_has_ended_is_not_spoken_for() -> None:
    class Counted:
        shown = 0

        def show_alive(self) -> None:
            self.shown += 1

    speaking, counted = Alive(), Counted()
    speaking.add(counted)
    loop = asyncio.new_event_loop()

    async def start() -> None:
        speaking.start()
        compute(1.0)

    try:
        loop.run_until_complete(start())
        assert counted.shown > 0
        before = counted.shown
        time.sleep(0.5)
        assert counted.shown == before
    finally:
        speaking.stop()
        loop.close()


# ---- where a PONG may lie ------------------------------------------------------------------------


@contextmanager
def shown_all_the_time(served: Served) -> Iterator[None]:
    """Speaks for a loop that runs: at each moment of its writing, if that lasts long enough."""
    stopping = threading.Event()

    def show() -> None:
        while not stopping.is_set():
            for each in served.seen:
                each.show_alive()
            time.sleep(0)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(TIMEOUT_S)


def torn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the system take less of a PONG than all, mostly."""
    draw, send_now = random.Random(1), on_loop.send_now

    def some(descriptor: int, data: bytes) -> int:
        return send_now(descriptor, data[: draw.randrange(len(data) + 1)])

    monkeypatch.setattr(on_loop, "send_now", some)


@pytest.mark.parametrize("is_torn", [False, True])
def test_trap_238_a_pong_lies_between_two_frames(
    variant: tuple[dict[str, Any], dict[str, Any]],
    is_torn: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages are larger than what the system takes at once, so each is written in pieces."""
    if is_torn:
        torn(monkeypatch)
    sent = payloads([3_000_000, 0, 1, 900_000] * 3)
    server, client = variant
    with (
        Served(echo, **server) as served,
        Client(served.address, **client) as asking,
        shown_all_the_time(served),
    ):
        asking.send(*sent)
        for each in sent:
            assert asking.receive() == each


def test_trap_238_what_the_system_did_not_take_of_a_pong_goes_in_front(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Served(echo) as served, raw_client(served.address) as raw:
        read_bytes(raw, len(HELLO))
        eventually(lambda: len(served.seen) == 1)
        (connection,) = served.seen
        send_now = on_loop.send_now
        monkeypatch.setattr(on_loop, "send_now", lambda d, data: send_now(d, data[:3]))
        connection.show_alive()
        # The loop is told of the rest, and does not wait for the next message.
        assert read_bytes(raw, len(PONG)) == PONG
        raw.sendall(message(b"abc"))
        assert read_bytes(raw, 7) == message(b"abc")


def test_trap_238_no_pong_comes_within_a_frame_before_the_hello_or_behind_close() -> None:
    """The states that another thread may find the connection in."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)

        class Transport:
            def get_extra_info(self, name: str) -> Any:
                return ours if name == "socket" else None

            def set_write_buffer_limits(self, _high: int) -> None:
                """Has no buffer."""

            def write(self, data: bytes) -> None:
                ours.sendall(data)

            def write_eof(self) -> None:
                """Leaves the socket open: what came behind CLOSE would be seen."""

            def is_closing(self) -> bool:
                return False

        async def check() -> None:
            connection = LoopConnection(Role.COORDINATOR, deadlines=PATIENT)
            connection.connection_made(Transport())  # type: ignore[arg-type]
            connection.show_alive()
            connection._endpoint.receive(HELLO, on_loop.now_ms())
            connection.show_alive()
            with pytest.raises(BlockingIOError):
                theirs.recv(1)
            connection._go_on()
            connection.show_alive()
            assert theirs.recv(100)[-len(PONG) :] == PONG
            connection.pause_writing()  # A message is half written.
            connection.show_alive()
            with pytest.raises(BlockingIOError):
                theirs.recv(1)
            connection.resume_writing()
            connection._endpoint.close(SessionClosedError("done"), on_loop.now_ms())
            connection.show_alive()
            with pytest.raises(BlockingIOError):
                theirs.recv(1)
            connection._go_on()
            connection.show_alive()
            assert theirs.recv(100).endswith(b"done")
            connection.connection_lost(None)
            connection.show_alive()  # and the number of the socket may be another one's
            with pytest.raises(BlockingIOError):
                theirs.recv(1)

        asyncio.run(check())


@pytest.mark.parametrize("loop", LOOPS)
def test_trap_238_an_event_loop_says_at_once_that_it_keeps_bytes(loop: str) -> None:
    """And not in its next turn: another thread would take the frame for written meanwhile."""

    async def write() -> tuple[bool, bool, int]:
        (connection,) = served.seen
        before = connection._is_full
        await connection.send(bytes(4_000_000))
        assert connection._transport is not None
        return before, connection._is_full, connection._transport.get_write_buffer_size()

    with Served(read, loop=loop) as served, raw_client(served.address) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        eventually(lambda: len(served.seen) == 1)
        for _ in range(3):
            before, is_full, kept = served.do(write())
            assert not before
            assert is_full == (kept > 0)
            if kept:
                return
            read_bytes(raw, 4_000_000)
        pytest.skip("this system takes 4 MB at once")
