"""A client's connection beside Ctrl-C, forks and other threads."""

from __future__ import annotations

import dis
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

import pytest

from logtx.coordinator.transport import in_thread
from logtx.coordinator.transport.in_thread import ThreadConnection
from logtx.journal.errors import SessionClosedError

from ...children import in_child
from ...signals import traced
from ...waiting import eventually
from .served import PATIENT, TIMEOUT_S, Client, Served, echo, idle

STEPS_MAX = 400
"""More steps of the interpreter than `flush` or `receive` takes."""


CHECKING = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "RESUME")
"""Names of the steps after which CPython looks for signals."""


class _Interrupt:
    """Raises KeyboardInterrupt in this thread, at the n-th moment in these modules at which CPython
    looks for signals."""

    def __init__(self, at: int, modules: Iterable[ModuleType]) -> None:
        self._left = at
        self._files = {module.__file__ for module in modules}
        self._former: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        del arg
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "opcode":
            former = self._former.get(frame, "")
            self._former[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._left -= former.startswith(CHECKING)
            if self._left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        frame.f_trace_opcodes = True
        return self


def interrupted(
    work: Callable[[], object], at: int, modules: Iterable[ModuleType] = (in_thread,)
) -> bool:
    """Runs `work`, and interrupts it before step `at`; returns whether it came that far."""
    try:
        with traced(_Interrupt(at, modules)):
            work()
    except KeyboardInterrupt:
        return True
    return False


def test_trap_218_an_interrupted_call_loses_nothing_behind_what_it_sent() -> None:
    """Ctrl-C at each step of `flush`, and at each of `receive`."""
    with Served(echo) as served:
        for call in ("flush", "receive"):
            reached = broken = 0
            for at in range(STEPS_MAX):
                with Client(served.address) as client:
                    assert client.ask(b"0") == b"0"
                    client.queue.extend((b"1", b"2"))
                    if call == "flush":
                        hit = interrupted(client.connection.flush, at)
                    else:
                        client.connection.flush()
                        hit = interrupted(client.receive, at)
                    if not hit:
                        break
                    reached += 1
                    broken += _goes_on_or_ends(client)
            assert reached > 5
            assert broken == reached, "nobody knows what such a call had done"
            assert reached < STEPS_MAX


def _goes_on_or_ends(client: Client) -> bool:
    """Checks what comes behind an interrupted call; returns whether the connection is over."""
    client.queue.append(b"3")
    client.connection.flush()
    came: list[bytes] = []
    while b"3" not in came:
        try:
            came.append(client.receive())
        except SessionClosedError:
            assert came in ([], [b"1"], [b"2"], [b"1", b"2"])
            return True
    return False


def is_open(descriptor: int) -> bool:
    """Returns whether this process has a file open."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_trap_219_a_child_of_a_fork_holds_no_connection_open() -> None:
    """It closes its copy, and the parent's end shows although a child may keep one."""
    with Served(echo) as served, Client(served.address) as client:
        assert client.ask(b"1") == b"1"
        connection = client.connection
        # Not `connection.flush`: that would be looked up before the fork.
        assert in_child(lambda: connection.receive(0)) == "ForkedError"
        assert in_child(lambda: connection.flush()) == "ForkedError"  # noqa: PLW0108
        assert in_child(lambda: connection.close()) == "None"  # noqa: PLW0108
        assert client.ask(b"2") == b"2", "the child's end disturbed it"
        descriptor = connection._socket.fileno()  # type: ignore[union-attr]
        assert is_open(descriptor)
        assert in_child(lambda: is_open(descriptor)) == "False"


def test_the_parents_end_shows_though_a_copy_of_its_socket_is_open() -> None:
    """As one is in a child of another library, or for a moment between fork and exec."""
    with Served(idle) as served, Client(served.address) as client:
        eventually(lambda: len(served.seen) == 1)
        copy = os.dup(client.connection._socket.fileno())  # type: ignore[union-attr]
        try:
            client.connection._break()  # without CLOSE: as after an error
            eventually(lambda: served.listener.connections == 0)
        finally:
            os.close(copy)


def test_trap_259_a_child_of_a_fork_holds_no_port() -> None:
    """Also while its parent goes on, and might be killed."""
    with Served(echo) as served, Client(served.address) as client:
        listening = served.listener._listening
        assert listening is not None
        descriptor = listening.socket.fileno()
        assert is_open(descriptor)
        assert in_child(lambda: is_open(descriptor)) == "False"
        assert client.ask(b"1") == b"1"
        with Client(served.address) as another:
            assert another.ask(b"2") == b"2", "the child's end disturbed it"


def test_a_child_makes_connections_of_its_own() -> None:
    with Served(echo) as served, Client(served.address) as client:
        assert client.ask(b"1") == b"1"

        def ask() -> bytes:
            with Client(served.address) as own:
                return own.ask(b"child")

        assert in_child(ask) == "b'child'"


def test_trap_222_what_is_left_to_another_thread_is_sent() -> None:
    """A thread finds another one sending, just when that has found nothing more to send."""
    queue: list[bytes] = []
    found_nothing, may_go_on = threading.Event(), threading.Event()
    gated: list[threading.Thread] = []

    def source() -> bytes | None:
        if queue:
            return queue.pop(0)
        if threading.current_thread() in gated:
            gated.clear()
            found_nothing.set()
            may_go_on.wait(TIMEOUT_S)
        return None

    with Served(echo) as served:
        connection = ThreadConnection(served.address, source, deadlines=PATIENT)
        try:
            eventually(connection._may_send)
            time.sleep(0.1)  # the connection's own thread waits
            sending = threading.Thread(target=connection.flush, daemon=True)
            gated.append(sending)
            sending.start()
            assert found_nothing.wait(TIMEOUT_S)
            queue.append(b"late")
            connection.flush()
            may_go_on.set()
            assert connection.receive(5.0) == b"late"
        finally:
            may_go_on.set()
            connection.close()


@pytest.mark.parametrize("soon", [False, True])
def test_threads_that_send_at_once_lose_nothing(soon: bool) -> None:
    sent = {bytes([thread, number]) for thread in range(4) for number in range(250)}
    with Served(echo, window_bytes=10_000) as served, Client(served.address) as client:

        def send(thread: int) -> None:
            for number in range(250):
                client.queue.append(bytes([thread, number]))
                (client.connection.flush_soon if soon else client.connection.flush)()

        threads = [threading.Thread(target=send, args=(n,), daemon=True) for n in range(4)]
        for each in threads:
            each.start()
        got = [client.receive() for _ in range(1_000)]
        for each in threads:
            each.join(TIMEOUT_S)
        assert set(got) == sent
        for thread in range(4):
            of_one = [m[1] for m in got if m[0] == thread]
            assert of_one == sorted(of_one)


def test_a_source_that_sends_while_it_is_asked() -> None:
    """It may answer its caller's caller, who asks for more: nothing overtakes what is made."""
    queue = [b"1", b"2", b"3"]
    served_by: list[ThreadConnection] = []

    def source() -> bytes | None:
        if not queue or not served_by:
            return None
        payload = queue.pop(0)
        served_by[0].flush()
        return payload

    with Served(echo) as served:
        connection = ThreadConnection(served.address, source, deadlines=PATIENT)
        served_by.append(connection)
        try:
            connection.flush()
            assert [connection.receive(TIMEOUT_S) for _ in range(3)] == [b"1", b"2", b"3"]
        finally:
            connection.close()


def test_close_takes_no_lock() -> None:
    """Clients call it with theirs, which the source may need."""
    with Served(idle) as served, Client(served.address) as client:
        with client.connection._lock:
            client.connection.close()
        assert isinstance(client.end(), SessionClosedError)


def test_a_bug_of_the_source_is_told_to_who_waits() -> None:
    def source() -> bytes | None:
        raise KeyError("bug")

    with Served(idle) as served:
        connection = ThreadConnection(served.address, source, deadlines=PATIENT)
        with pytest.raises(SessionClosedError, match="by a bug of logtx: KeyError"):
            connection.receive(TIMEOUT_S)
        assert connection.is_over


def test_what_is_left_to_the_connections_thread_is_sent_whatever_interrupts_who_asked() -> None:
    with Served(echo) as served:
        for at in range(STEPS_MAX):
            with Client(served.address) as client:
                assert client.ask(b"0") == b"0"
                client.queue.append(b"1")
                hit = interrupted(client.connection.flush_soon, at)
                # Who comes later need not wake the thread, for it was told already; or wakes it.
                client.queue.append(b"2")
                client.connection.flush_soon()
                assert [client.receive(), client.receive()] == [b"1", b"2"]
                if not hit:
                    break
        assert 2 < at < STEPS_MAX


def test_many_requests_are_left_to_the_thread_with_one_call_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken = []
    wake = ThreadConnection._wake
    with Served(echo) as served, Client(served.address) as client:
        assert client.ask(b"0") == b"0"

        def count(self: ThreadConnection) -> None:
            if self is client.connection:
                woken.append(len(client.queue))
                wake(self)

        monkeypatch.setattr(ThreadConnection, "_wake", count)
        with client.connection._lock:  # Its thread waits, as if another one had Python's lock.
            for number in range(100):
                client.queue.append(bytes([number]))
                client.connection.flush_soon()
        assert woken == [1]
        assert [client.receive() for _ in range(100)] == [bytes([n]) for n in range(100)]
