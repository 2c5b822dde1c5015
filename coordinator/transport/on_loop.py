"""A connection on an event loop, and who listens for connections. Coordinators run these.

`LoopConnection` puts sockets and a clock to the machine of `frames`, and tasks wait for what it
says. So F1 to F6 are the machine's; what is added here:

- *Memory.* asyncio keeps what the network does not take. While it has anything, nothing is added,
  neither messages nor what the machine says by itself (F2).
- *Waits.* `receive` and `send` end with the connection, which ends when the peer is dead (F4). A
  peer that lives may send nothing, or take nothing, for as long as it likes: who can't wait for
  that gives its own bound.
- *Ends.* A task that serves a connection is cancelled when that is over: it may be in the middle of
  a request, and nobody waits for the answer. A socket is closed without waiting for bytes that the
  peer does not take; what it was to be told was waited for in LINGERING, if it could be.
- *Life.* While the event loop is held up, another thread says PONGs (`alive`). It does so under the
  lock of all writing, and only while asyncio has nothing: so a PONG lies between two frames. Bytes
  of it that the system did not take go out in front of the next frame.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from typing import Final, Protocol, TypeVar, cast

from ...journal.errors import ConfigError, FrameError, LogtxError, SessionClosedError
from ..protocol.frames import (
    COORDINATOR_DEADLINES,
    PONG,
    Deadlines,
    Ended,
    Endpoint,
    Event,
    Message,
    State,
)
from ..protocol.strangers import Role
from .address import now_ms, split
from .alive import Alive, send_now
from .inbox import Inbox
from .listening import BACKLOG, Listening, listen
from .reach import Race, send_at_once
from .tls import Tls, TlsFilter

_LOG = logging.getLogger(__name__)

WINDOW_BYTES: Final = 256 * 1024
"""What messages of a peer that nobody has taken yet may cost. More let each connection hold more
memory; with less, a peer far away waits for room more often than for the network."""
CONNECTIONS_MAX: Final = 20_000
"""Connections of a listener at one time; a further one is closed at once."""
STRANGER_S: Final = 60.0
"""How often one host is told of that says the same wrong thing. More often fills the log."""
STRANGERS_MAX: Final = 1_000
"""Of how many it is known when they were told of; bounds memory."""


class Layer(Protocol):
    """What takes the messages of a connection as they come, in place of a task."""

    def took(self, message: Message) -> None:
        """Takes a message, whose room it frees by `LoopConnection.release`."""

    def goes_on(self) -> None:
        """Is told that there may be room for messages."""


class LoopConnection(Inbox[Message], asyncio.Protocol):
    """One connection. Only one task may call `receive`; any may call `send`."""

    def __init__(
        self,
        role: Role,
        *,
        deadlines: Deadlines,
        window_bytes: int = WINDOW_BYTES,
        tls: TlsFilter | None = None,
        on_open: Callable[[LoopConnection], None] | None = None,
        on_closed: Callable[[LoopConnection], None] | None = None,
    ) -> None:
        """Begins when the event loop has connected it.

        Args:
            role: which end this is.
            deadlines: how long to wait for the peer.
            window_bytes: what messages that nobody has taken yet may cost.
            tls: the connection's TLS; None: none.
            on_open: called once when the peer has said hello.
            on_closed: called once when the socket is closed.
        """
        super().__init__()
        self._endpoint = Endpoint(
            role, window_bytes=window_bytes, deadlines=deadlines, now_ms=now_ms()
        )
        self._tls = tls
        self._on_open, self._on_closed = on_open, on_closed
        self._transport: asyncio.Transport | None = None
        self._lock = threading.Lock()
        """Of TLS, of what is written, and of `_rest`."""
        self._descriptor = -1
        self._is_greeted = False
        """Whether the hello was written."""
        self._rest = b""
        """Of a PONG that another thread said: what the system did not take."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_full = False
        """Whether asyncio has bytes that the network did not take (F2)."""
        self._is_shut = False
        self._room = asyncio.Event()
        self._layer: Layer | None = None
        self.task: asyncio.Task[None] | None = None
        """Who serves it: cancelled when the connection is over."""
        self.remote = ""
        """The peer's address, for people."""

    # ---- what tasks call ------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """Returns the name in the peer's certificate; "" if it showed none."""
        return self._tls.peer if self._tls is not None else ""

    async def send(self, payload: bytes) -> None:
        """Sends a message once there is room for it. Messages of one task keep their order.

        Raises:
            LogtxError: the connection is over. Nobody knows what the peer got of earlier ones.
            ValueError: the message is larger than `MESSAGE_MAX_BYTES`.
        """
        while not self.may_send:
            if self.error is not None:
                raise copy(self.error)  # The traceback of one that is kept would make a circle.
            self._room.clear()
            await self._room.wait()
        self.send_now(payload)

    @property
    def may_send(self) -> bool:
        """Returns whether there is room for a message."""
        return not self._is_full and self._endpoint.may_send

    def send_now(self, payload: bytes) -> None:
        """Sends a message, for which there must be room (`may_send`).

        Raises:
            ValueError: the message is larger than `MESSAGE_MAX_BYTES`.
        """
        self._write(self._endpoint.send(payload))

    def hand_to(self, layer: Layer) -> None:
        """Hands all messages to a layer as they come, from now on. `receive` waits for the end."""
        self._free_given()
        self._layer = layer
        while self._inbox:
            layer.took(self._inbox.popleft()[0])

    def release(self, cost: int) -> None:
        """Frees the room of messages that a layer took."""
        if self.error is None:
            self._free(cost)

    def close(self, error: LogtxError) -> None:
        """Ends the connection, and tells the peer why. Does not wait for it."""
        self._take(self._endpoint.close(error, now_ms()))

    # ---- what another thread calls --------------------------------------------------------------

    def show_alive(self) -> None:
        """Says a PONG that nobody asked for, if that fits between two frames. Never waits."""
        with self._lock:
            # CLOSE is the last frame of its direction, and the hello the first.
            if (
                self._descriptor < 0
                or self._is_full
                or not self._is_greeted
                or self._endpoint.state is not State.OPEN
            ):
                return
            data = self._rest or (PONG if self._tls is None else self._tls.wrap(PONG))
            self._rest = data[send_now(self._descriptor, data) :]
            if self._rest and self._loop is not None:
                with suppress(RuntimeError):  # It was closed meanwhile, and so is the socket.
                    self._loop.call_soon_threadsafe(self._go_on)

    # ---- what the event loop calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins."""
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", transport)
        # So `_is_full` says whether asyncio has anything: `pause_writing` comes within `write`.
        self._transport.set_write_buffer_limits(0)
        connected = transport.get_extra_info("socket")
        # asyncio does so only for sockets that name TCP, which accepted ones don't.
        if connected.family != socket.AF_UNIX:  # Whoever has a pair of sockets has no TCP.
            send_at_once(connected)
        self._descriptor = connected.fileno()
        self.remote = _shown(transport.get_extra_info("peername"))
        if self.error is not None:  # closed before it was connected
            self._transport.abort()
            return
        self._go_on()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the peer."""
        is_new = self._endpoint.state is State.HELLO
        try:
            plain = data if self._tls is None else self._unwrap(self._tls, data)
        except FrameError as error:
            self._fail(error)
            return
        self._take(self._endpoint.receive(plain, now_ms()))
        if is_new and self._endpoint.state is State.OPEN and self._on_open is not None:
            self._on_open(self)

    def eof_received(self) -> None:
        """Takes the end of the peer's direction."""
        self._take(self._endpoint.receive_end())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - said by `error`
        """Takes the end of both directions."""
        with self._lock:
            # The event loop closes it behind this, and the number may be another socket's then.
            self._transport, self._descriptor = None, -1
        self._take(self._endpoint.receive_end())
        if self._on_closed is not None:
            self._on_closed(self)

    def pause_writing(self) -> None:
        """Notes that the network is behind."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Says what could not be said before."""
        self._is_full = False
        self._go_on()

    # ---- between the machine and the event loop -------------------------------------------------

    def _free(self, cost: int) -> None:
        self._endpoint.release(cost)
        self._go_on()

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Ended):
                self._end(event.error)
                if self.task is not None:
                    self.task.cancel()
            elif self._layer is None:
                self._keep(event)
            else:
                self._layer.took(event)
        self._go_on()

    def _go_on(self) -> None:
        """Does what the machine wants; called after each call that may have changed it."""
        endpoint, transport = self._endpoint, self._transport
        if transport is not None:
            if not self._is_full:
                self._write(endpoint.to_send())
                self._is_greeted = self._is_greeted or endpoint.state is State.OPEN
            if endpoint.state is State.CLOSED and not transport.is_closing():
                transport.abort()
            elif endpoint.state is State.LINGERING and not (self._is_shut or self._is_full):
                self._is_shut = True
                with suppress(OSError):  # The peer was quicker.
                    transport.write_eof()  # behind what is written; reading goes on
        self._set_timer()
        if self.error is not None or self.may_send:
            self._room.set()
            if self._layer is not None:
                self._layer.goes_on()

    def _write(self, data: bytes) -> None:
        if not data and not self._rest and self._tls is None:
            return
        with self._lock:
            if self._tls is not None:
                data = self._tls.wrap(data)
            # Behind the end of the stream TLS may still have to say something, of itself.
            if self._transport is not None and not self._is_shut:
                self._put(self._transport, data)

    def _put(self, transport: asyncio.Transport, data: bytes) -> None:
        """Writes behind what is left of a PONG. With the lock."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        if data:
            transport.write(data)

    def _unwrap(self, tls: TlsFilter, data: bytes) -> bytes:
        with self._lock:
            return tls.unwrap(data)

    def _fail(self, error: FrameError) -> None:
        """Ends a connection whose TLS failed."""
        assert self._tls is not None, "it has raised this"
        transport, words = self._transport, self._tls.last_words()
        if transport is not None and not self._is_full:
            with self._lock:
                self._put(transport, words)
            if self._endpoint.state is State.HELLO:
                # Nothing else was written: so the system takes these few bytes at once, and to
                # close the socket behind them does not wait.
                transport.close()
        self.close(error)

    def _set_timer(self) -> None:
        """Wakes the machine when something is due. Most often the timer is early enough as it is,
        for each byte of the peer puts the PING off: it is set again when it has fired."""
        due_ms = self._endpoint.next_due_ms if self._transport is not None else None
        if self._timer is not None:
            if due_ms is not None and self._timer_ms <= due_ms:
                return
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            wait_s = max(due_ms - now_ms(), 1) / 1_000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)
            self._timer_ms = due_ms

    def _tick(self) -> None:
        self._timer = None
        self._take(self._endpoint.tick(now_ms()))


async def dial(
    address: str,
    *,
    deadlines: Deadlines,
    window_bytes: int = WINDOW_BYTES,
    tls: Tls | None = None,
    alive: Alive | None = None,
) -> LoopConnection:
    """Connects to an address. Does not wait for the hello; `deadlines.hello_ms` is for both.

    `alive` speaks for the event loop on the connection, too.

    Raises:
        SessionClosedError: nobody takes the connection.
        ConfigError: that is no address.
    """
    host, port = split(address)

    def connection() -> LoopConnection:
        return LoopConnection(
            Role.CLIENT,
            deadlines=deadlines,
            window_bytes=window_bytes,
            tls=None if tls is None else tls.filter(host),
            on_closed=None if alive is None else alive.discard,
        )

    try:
        async with asyncio.timeout(deadlines.hello_ms / 1_000):
            connected = await _reach(host, port, now_ms() + deadlines.hello_ms)
            loop = asyncio.get_running_loop()
            _, made = await loop.create_connection(connection, sock=connected)
    except TimeoutError:
        raise SessionClosedError(
            f"{address} took no connection in {deadlines.hello_ms} ms"
        ) from None
    except OSError as error:
        raise SessionClosedError(f"can't connect to {address}: {error}") from error
    if alive is not None and made._transport is not None:  # else it was lost already
        alive.add(made)
    return made


async def _reach(host: str, port: int, by_ms: int) -> socket.socket:
    """Returns a socket that is connected to the host. The caller bounds the wait by `by_ms`.

    Raises:
        OSError: none of its addresses takes the connection.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    race = Race(found, now_ms=now_ms(), by_ms=by_ms)
    try:
        while (made := race.step(now_ms())) is None:
            await _goes_on(race)
        return made
    finally:
        race.close()


async def _goes_on(race: Race) -> None:
    """Waits until the race goes on."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    waiting, due_ms = list(race.connecting), race.next_due_ms
    for each in waiting:
        loop.add_writer(each, ready.set)
    try:
        with suppress(TimeoutError):
            wait_s = None if due_ms is None else max(due_ms - now_ms(), 0) / 1_000
            async with asyncio.timeout(wait_s):
                await ready.wait()
    finally:
        for each in waiting:
            loop.remove_writer(each)


Serve = Callable[[LoopConnection], Awaitable[None]]
"""Serves one connection. It is cancelled when that is over. A `LogtxError` that it raises, and the
end of it, end the connection."""


class Closable(Protocol):
    """A connection, or a stream of one."""

    @property
    def remote(self) -> str: ...
    def close(self, error: LogtxError) -> None: ...


S = TypeVar("S", bound=Closable)


async def serve_to_the_end(serve: Callable[[S], Awaitable[None]], served: S, what: str) -> None:
    """Serves a connection or a stream, and closes it with what that ends with.

    Args:
        serve: serves it; cancelled, it closes nothing.
        served: the connection or stream.
        what: "connection" or "stream", for the log and the client.
    """
    try:
        await serve(served)
    except LogtxError as error:
        served.close(error)
    except Exception:  # noqa: BLE001 - it is one client's, and the log has it
        _LOG.exception("%s_failed address=%s", what, served.remote)
        served.close(SessionClosedError("the coordinator failed; its log says how"))
    else:
        served.close(SessionClosedError(f"the coordinator ended the {what}"))


class Listener:
    """Takes connections at one address, and has each served by a task."""

    def __init__(
        self,
        *,
        tls: Tls | None = None,
        deadlines: Deadlines = COORDINATOR_DEADLINES,
        window_bytes: int = WINDOW_BYTES,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """Does nothing before `bind`.

        Args:
            tls: what connections are protected with; None: nothing.
            deadlines: how long to wait for a peer.
            window_bytes: what messages of one peer that nobody has taken yet may cost.
            connections_max: most connections at one time.
        """
        self._tls, self._deadlines, self._window_bytes = tls, deadlines, window_bytes
        self._connections_max = connections_max
        self._listening: Listening | None = None
        self._server: asyncio.Server | None = None
        self._stopped: LogtxError | None = None
        """What connections are ended with since `stop`."""
        self._serve: Serve | None = None
        self._connections: set[LoopConnection] = set()
        """Those whose sockets are open."""
        self.alive: Final = Alive()
        """Speaks for the event loop on these connections; others may be added."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_less = asyncio.Event()
        self._told_s: dict[tuple[str, str], float] = {}
        """(host, sentence) of strangers → when the log said so last."""
        self.refused = 0
        """Connections that were closed at once, for there were too many."""

    @property
    def connections(self) -> int:
        """Returns how many connections there are."""
        return len(self._connections)

    def bind(self, address: str) -> int:
        """Takes host:port for itself; port 0 takes a free one. Returns the port.

        Clients can connect from now on, and wait until `start`.

        Raises:
            ConfigError: it can't listen there.
        """
        try:
            self._listening = listen(*split(address))
        except OSError as error:
            asked = ""
            if error.errno == errno.EADDRINUSE:
                asked = "is another coordinator, or another program, running there? "
            raise ConfigError(f"can't listen at {address}: {asked}({error})") from error
        return self._listening.port

    async def start(self, serve: Serve) -> None:
        """Has each connection served from its peer's hello on."""
        assert self._listening is not None, "bind() first"
        self._serve = serve
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, sock=self._listening.socket, backlog=BACKLOG
        )
        self.alive.start()

    async def stop(self, error: LogtxError | None = None) -> None:
        """Takes no more connections, and ends those that there are, each with the error.

        Waits until they are closed and their tasks have ended, for twice as long as peers may take
        to end their side, and no longer: for 2 s.
        """
        self._stopped = error = error or SessionClosedError("the coordinator stops")
        with suppress(TimeoutError):
            # Each closes by its own deadline; the rest is for a loop that is late.
            async with asyncio.timeout(2 * self._deadlines.linger_ms / 1_000):
                self._give_port_back()
                for connection in list(self._connections):
                    connection.close(error)
                while self._connections or self._tasks:
                    self._one_less.clear()
                    await self._one_less.wait()
        self.alive.stop()

    def _give_port_back(self) -> None:
        if self._listening is not None:
            self._listening.give_back()
            if self._server is not None:
                self._server.close()
            else:
                self._listening.socket.close()

    def _accept(self) -> LoopConnection:
        connection = LoopConnection(
            Role.COORDINATOR,
            deadlines=self._deadlines,
            window_bytes=self._window_bytes,
            tls=None if self._tls is None else self._tls.filter(),
            on_open=self._opened,
            on_closed=self._closed,
        )
        if self._stopped is not None:
            connection.close(self._stopped)  # It was accepted before, in this turn of the loop.
        elif len(self._connections) >= self._connections_max:
            self.refused += 1
            connection.close(SessionClosedError("there are too many connections"))
        else:
            self._connections.add(connection)
            self.alive.add(connection)
        return connection

    def _opened(self, connection: LoopConnection) -> None:
        assert self._serve is not None, "it listens"
        task = connection.task = asyncio.create_task(
            serve_to_the_end(self._serve, connection, "connection")
        )
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._one_less.set()

    def _closed(self, connection: LoopConnection) -> None:
        self._connections.discard(connection)
        self.alive.discard(connection)
        self._one_less.set()
        if isinstance(connection.error, FrameError):
            self._tell_of_stranger(connection.remote, connection.error)

    def _tell_of_stranger(self, remote: str, error: FrameError) -> None:
        # One that connects again and again would fill the log.
        who, now_s = (remote.rpartition(":")[0], str(error)), time.monotonic()
        if now_s < self._told_s.get(who, -STRANGER_S) + STRANGER_S:
            return
        if len(self._told_s) >= STRANGERS_MAX:
            self._told_s.clear()
        self._told_s[who] = now_s
        _LOG.warning("stranger address=%s error=%s", remote, error)


def _shown(peername: object) -> str:
    match peername:
        case (str(host), int(port), *_):
            return f"{host}:{port}"
    return str(peername or "")
