"""A connection with a thread of its own. Clients run these.

The thread connects, reads, and keeps the time of the machine of `frames`. It does nothing else, so
a coordinator is answered, and a dead one noticed, whatever the application does meanwhile. Whoever
has a message writes it: a thread that did that for others would cost each request a change of
threads. Where many have some at one time, it costs less if the connection's thread writes all of
them at once (`flush_soon`).

- *Writing* never waits. What the system does not take is kept, and written by the connection's
  thread; until then no further message is taken from its source (F2). So a caller may hold a lock
  of its own over `close`, and be stopped by nothing but another caller that writes.
- *Reading* never stops (F3): messages that nobody takes fill the window, and then no more come.
- *Waits* end with the connection, and that ends when the coordinator is dead (F4). The look-up of
  the host's name alone is bounded by the system's resolver.
- *Ctrl-C* may come at any step of the main thread, also between half of a frame and the rest. A
  call that does not come to its end breaks the connection, for nobody can know what it had done.
- *A fork* copies the socket and no thread. The child closes its copy, which says nothing to the
  coordinator, and its calls raise ForkedError. The parent shuts its socket down before it closes
  it, for that reaches the coordinator even if a child could not close its copy.
"""

from __future__ import annotations

import logging
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Final

from ...journal.errors import FrameError, LogtxError, RequestTimedOutError, SessionClosedError
from ...journal.fork import keep_from_children, refuse
from ..protocol.frames import (
    CLIENT_DEADLINES,
    Deadlines,
    Ended,
    Endpoint,
    Event,
    Message,
    State,
)
from ..protocol.strangers import Role
from .address import now_ms, split
from .reach import Race, send_at_once
from .tls import Tls, TlsFilter

_LOG = logging.getLogger(__name__)

WINDOW_BYTES: Final = 1024 * 1024
"""What answers that nobody has taken yet may cost. More let a slow application hold more memory;
with less, a coordinator far away waits for room more often than for the network."""
READ_BYTES: Final = 64 * 1024
"""Most bytes read at once. More are taken from the system anew each time, and given back to it."""

Source = Callable[[], bytes | None]
"""Returns the next message; None if there is none."""
Deliver = Callable[[Message | Ended], None]
"""Takes a message, or the end, on the connection's thread, and with locks of it: it waits for
nothing, and sends nothing."""
Look = Callable[[], int | None]
"""Is called before the connection's thread waits, and before it ends. Returns for how many ms it is
to wait at most; None: as long as it likes."""


class ThreadConnection:
    """One connection to a coordinator. Thread-safe, but only one thread may call `receive`."""

    def __init__(
        self,
        address: str,
        source: Source,
        *,
        deadlines: Deadlines = CLIENT_DEADLINES,
        window_bytes: int = WINDOW_BYTES,
        tls: Tls | None = None,
        deliver: Deliver | None = None,
        look: Look | None = None,
    ) -> None:
        """Begins to connect. Does not wait for that.

        Args:
            address: host:port of the coordinator.
            source: returns the next message to send, or None. It is called by one thread at a time,
                by any that calls `flush` and by the connection's own, once there is room for a
                message. Then the message is sent: it may be made as things are then.
            deadlines: how long to wait for the coordinator; `hello_ms` is for all from here to its
                hello.
            window_bytes: what messages that nobody has taken yet may cost.
            tls: what the connection is protected with; None: nothing.
            deliver: takes each message and the end, instead of `receive`; what the source has by
                then is sent behind it.
            look: may keep the connection's thread from waiting for long, and from ending.

        Raises:
            ConfigError: that is no address.
        """
        self.address: Final = address
        self._to_layer = deliver
        self._look = look or do_nothing
        self._host, self._port = split(address)
        self._source = source
        self._deadlines = deadlines
        self._tls = tls
        self._filter: TlsFilter | None = None
        self._endpoint = Endpoint(
            Role.CLIENT, window_bytes=window_bytes, deadlines=deadlines, now_ms=now_ms()
        )
        self._lock = threading.Lock()
        """Of the machine, of TLS, and of what is written."""
        self._sending = threading.Lock()
        """Held by who takes messages from the source. It is never waited for."""
        self._has_more = False
        """Whether somebody wants the source to be asked again."""
        self._is_asked = False
        """Whether the connection's thread was woken to ask the source."""
        self._socket: socket.socket | None = None
        self._unwritten = bytearray()
        """What the system has not taken yet."""
        self._polls_writing = False
        self._is_shut = False
        self._is_broken = False
        """Whether nobody knows how far the machine and the bytes have come."""
        self._closing: LogtxError | None = None
        self._inbox: queue.SimpleQueue[Message | Ended] = queue.SimpleQueue()
        self._given = 0
        """What the message costs that `receive` returned last."""
        self._is_over = False
        # Two ends of one pipe: a byte wakes the thread.
        self._awake, self._waking = socket.socketpair()
        for each in (self._awake, self._waking):
            each.setblocking(False)
        self._polling = select.poll()
        self._polling.register(self._awake, select.POLLIN)
        keep_from_children(self)
        self._thread = threading.Thread(target=self._run, name=f"logtx-{address}", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.close()  # Nobody else would.
            raise

    # ---- what any thread calls ------------------------------------------------------------------

    def flush(self) -> None:
        """Sends what the source has, as far as there is room; the rest goes when there is.

        Call it when the source has got something, and without a lock that the source needs. Never
        waits for the coordinator. If it is called while another thread is in it, that thread sends
        for both.
        """
        try:
            self._has_more = True
            # Whoever finds it held has said that there is more. The holder asks for that once it
            # has given it back: so nothing is left behind between the two (trap 222).
            while self._has_more and self._may_send() and self._sending.acquire(blocking=False):
                self._has_more = False
                while self._may_send() and (payload := self._source()) is not None:
                    self._send(payload)
                self._sending.release()
        except BaseException:
            # It may hold `_sending` still: nobody needs that any more.
            self._break()
            raise

    def flush_once(self) -> bool:
        """Sends one message of the source, if there is one and room for it, and leaves the rest.

        Returns:
            False: another thread is sending, and may have asked the source before.
        """
        try:
            if not self._may_send():
                return True  # The connection's thread does once there is room.
            if not self._sending.acquire(blocking=False):
                return False
            payload = self._source()
            if payload is not None:
                self._send(payload)
            self._sending.release()
            if self._has_more:
                self._wake()  # The connection's thread found it held, and left that to this one.
        except BaseException:
            # It may hold `_sending` still: nobody needs that any more.
            self._break()
            raise
        return True

    def flush_soon(self) -> None:
        """Has the connection's thread send what the source has.

        That takes longer than `flush`. But of many who call it meanwhile only the first one costs a
        call of the system, and the source may give all that they have as one message.
        """
        try:
            if not self._is_asked:
                self._is_asked = True
                self._wake()
        except BaseException:
            self._wake()  # Others trust in it.
            raise

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Returns the next message. To ask for it frees the room of the one before.

        Args:
            timeout_s: how long to wait, in seconds; None: as long as the coordinator lives.

        Raises:
            RequestTimedOutError: none came in time.
            LogtxError: the connection is over, and all that came was returned.
        """
        try:
            if self._given:
                given, self._given = self._given, 0
                self._release(given)
            event = self._inbox.get(timeout=timeout_s)
            if isinstance(event, Message):
                self._given = event.cost
                return event.payload
            self._inbox.put(event)  # for who asks again
        except queue.Empty:
            raise RequestTimedOutError(f"{self.address} did not answer in time") from None
        except BaseException:
            self._break()
            raise
        raise copy(event.error)  # The traceback of one that is kept would make a circle.

    def close(self, error: LogtxError | None = None) -> None:
        """Ends the connection, and tells the coordinator why. Does not wait, and takes no lock.

        What the source still has is not sent. `receive` ends soon, with the error.
        """
        if self._closing is None:
            self._closing = error or SessionClosedError("the client has closed the connection")
        self._wake()

    def join(self, timeout_s: float) -> None:
        """Waits until the connection's thread has ended, which it does soon after `close`."""
        self._thread.join(timeout_s)

    @property
    def is_over(self) -> bool:
        """Returns whether nothing can be sent any more."""
        return self._is_over or self._closing is not None or self._is_broken

    @property
    def is_greeted(self) -> bool:
        """Returns whether the coordinator has said hello."""
        return self._endpoint.state is not State.HELLO

    @property
    def peer(self) -> str:
        """Returns the name in the coordinator's certificate, once it has said hello; "": none."""
        return self._filter.peer if self._filter is not None else ""

    def after_fork(self) -> None:
        """Closes the child's copies of the sockets: see the module."""
        refuse(self)
        for each in (self._socket, self._awake, self._waking):
            if each is not None:
                each.close()
        vars(self)["close"] = do_nothing

    # ---- writing --------------------------------------------------------------------------------

    def _may_send(self) -> bool:
        return self._endpoint.may_send and not self._unwritten and not self.is_over

    def _send(self, payload: bytes) -> None:
        with self._lock:
            # It may have ended since; there is room still, for only who holds `_sending` takes it.
            if self._endpoint.state is State.OPEN:
                self._write(self._endpoint.send(payload))

    def _release(self, cost: int) -> None:
        with self._lock:
            if self._endpoint.state is State.OPEN:
                self._endpoint.release(cost)
                self._say()

    def _say(self) -> None:
        """Writes what the machine has to say by itself. Call it with the lock."""
        if not self._unwritten:
            self._write(self._endpoint.to_send())

    def _write(self, data: bytes) -> None:
        """Hands bytes to the system, and keeps those that it does not take. With the lock."""
        if self._filter is not None:
            data = self._filter.wrap(data)
        if not data or self._socket is None:
            return
        if self._unwritten:
            self._unwritten += data
            return
        taken = _taken(self._socket, data)
        if taken < len(data):
            self._unwritten += data[taken:]
            self._wake()  # The thread waits until the system takes more.

    def _break(self) -> None:
        """Ends the connection where it stands. Takes no lock: this thread may hold it."""
        self._is_broken = True
        self._wake()

    def _wake(self) -> None:
        # If there are bytes enough to wake it, or it has ended, that is as good.
        with suppress(OSError):
            self._waking.send(b"\0")

    # ---- the connection's thread ----------------------------------------------------------------

    def _run(self) -> None:
        error: LogtxError = SessionClosedError("a call was interrupted that used the connection")
        try:
            self._connect()
            while self._step():
                pass
        except LogtxError as raised:
            error = raised
        except OSError as raised:
            error = SessionClosedError(f"the connection to {self.address} broke: {raised}")
        except Exception as raised:  # noqa: BLE001 - whoever waits for messages gets it
            _LOG.exception("connection_failed address=%s", self.address)
            error = SessionClosedError(f"the connection failed, by a bug of logtx: {raised!r}")
        finally:
            self._end(error)
            while (left_ms := self._look()) is not None:
                time.sleep(left_ms / 1_000)

    def _connect(self) -> None:
        """Connects, and begins with TLS.

        Raises:
            LogtxError: nobody takes the connection, or the files of TLS can't be used.
        """
        made = self._reach(now_ms() + self._deadlines.hello_ms)
        send_at_once(made)
        self._polling.register(made, select.POLLIN)
        with self._lock:
            self._socket = made
            if self._tls is not None:
                self._filter = self._tls.filter(self._host)

    def _reach(self, by_ms: int) -> socket.socket:
        """Returns a socket that is connected to the host.

        Raises:
            SessionClosedError: none of its addresses takes the connection, or `close` was called.
        """
        race: Race | None = None
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            race = Race(found, now_ms=now_ms(), by_ms=by_ms)
            while (made := race.step(now_ms())) is None:
                self._await_connected(race, by_ms)
            return made
        except OSError as error:
            raise SessionClosedError(f"can't connect to {self.address}: {error}") from error
        finally:
            if race is not None:
                race.close()

    def _await_connected(self, race: Race, by_ms: int) -> None:
        """Waits until the race goes on."""
        # A host that is cut off answers nothing. Who gives such an attempt up tries elsewhere, and
        # must not wait for this one's end.
        polling = select.poll()
        polling.register(self._awake, select.POLLIN)
        for each in race.connecting:
            polling.register(each, select.POLLOUT)
        due_ms = by_ms if race.next_due_ms is None else min(race.next_due_ms, by_ms)
        ready = dict(polling.poll(max(due_ms - now_ms(), 0)))
        if self._closing is not None or self._is_broken:
            raise SessionClosedError(f"the connection to {self.address} was given up")
        if self._awake.fileno() in ready:
            self._slept()
        elif not ready and now_ms() >= by_ms:
            raise SessionClosedError(
                f"{self.address} took no connection in {self._deadlines.hello_ms} ms"
            )

    def _slept(self) -> None:
        """Takes the bytes that woke this thread."""
        with suppress(BlockingIOError):
            self._awake.recv(READ_BYTES)

    def _step(self) -> bool:
        """Says what is to be said, waits until something happens, and takes it.

        Returns:
            False: the connection is over.
        """
        if self._is_broken:
            return False
        with self._lock:
            if self._closing is not None:
                self._deliver(self._endpoint.close(self._closing, now_ms()))
            self._say()
            state, due_ms = self._endpoint.state, self._endpoint.next_due_ms
            wants_to_write = bool(self._unwritten)
        if state is State.CLOSED:
            return False
        assert self._socket is not None, "it is connected"
        if state is State.LINGERING and not wants_to_write and not self._is_shut:
            self._is_shut = True
            with suppress(OSError):  # The peer was quicker.
                self._socket.shutdown(socket.SHUT_WR)
        may_read, may_write = self._wait(self._socket, due_ms, wants_to_write)
        data = _read(self._socket) if may_read else None
        with self._lock:
            if may_write:
                del self._unwritten[: _taken(self._socket, self._unwritten)]
            now = now_ms()
            events = [] if data is None else self._receive(data, now)
            self._deliver([*events, *self._endpoint.tick(now)])
            self._say()
        self._is_asked = False  # Before: what comes from here on wakes this thread again.
        self.flush()
        return True

    def _wait(
        self, connected: socket.socket, due_ms: int | None, wants_to_write: bool
    ) -> tuple[bool, bool]:
        """Waits until something happens; returns whether the socket may be read, and written."""
        if wants_to_write != self._polls_writing:
            self._polls_writing = wants_to_write
            events = select.POLLIN | (select.POLLOUT if wants_to_write else 0)
            self._polling.modify(connected, events)
        waits = (self._look(), None if due_ms is None else max(due_ms - now_ms(), 0))
        found = dict(self._polling.poll(min((w for w in waits if w is not None), default=None)))
        if self._awake.fileno() in found:
            self._slept()
        happened = found.get(connected.fileno(), 0)
        # An error of the socket is told by reading it.
        return bool(happened & ~select.POLLOUT), bool(happened & select.POLLOUT)

    def _receive(self, data: bytes, now: int) -> list[Event]:
        """Takes what was read. With the lock."""
        if not data:
            return self._endpoint.receive_end()
        try:
            plain = data if self._filter is None else self._filter.unwrap(data)
        except FrameError as error:
            assert self._filter is not None, "it has raised this"
            if self._socket is not None and not self._unwritten:
                _taken(self._socket, self._filter.last_words())
            return self._endpoint.close(error, now)
        return self._endpoint.receive(plain, now)

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Ended):
                self._is_over = True
            self._hand_on(event)

    def _hand_on(self, event: Event) -> None:
        if self._to_layer is None:
            self._inbox.put(event)
            return
        self._to_layer(event)
        if isinstance(event, Message) and self._endpoint.state is State.OPEN:
            self._endpoint.release(event.cost)

    def _end(self, error: LogtxError) -> None:
        """Closes the socket. Whoever waits for messages is told why, if that has not happened."""
        if not self._is_over:
            self._is_over = True
            self._hand_on(Ended(self._closing or error))
        with self._lock:
            closing, self._socket = self._socket, None
        if closing is not None:
            with suppress(OSError):  # It is broken anyway.
                closing.shutdown(socket.SHUT_RDWR)
            closing.close()
        self._awake.close()
        self._waking.close()


def _taken(connected: socket.socket, data: bytes | bytearray) -> int:
    """Writes bytes; returns how many the system took. A broken connection takes all: the thread
    finds out by reading, and may find there why."""
    try:
        return connected.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)


def _read(connected: socket.socket) -> bytes | None:
    """Reads what there is; empty at the end, None if there is nothing after all."""
    try:
        return connected.recv(READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def do_nothing() -> None:
    """Is the `close` of a child, and the `look` of who has nothing to look for."""
