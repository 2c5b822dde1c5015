"""TCP proxies on the loopback: every client reaches brokers and coordinators through them.

A *link* is a port that clients connect to, and the address behind it. A *rule* says what is done to
connections: those of one link or of all, and of one client process or of all.

    cut     connections are closed, and new ones are closed as they come
    stall   connections stay and carry nothing, like a network that drops everything
    delay   what connections carry arrives later by a time, in order

The proxies run on an event loop in a thread of their own. The public methods are for other threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import uvloop

from ..integration.local.ports import HOST, pick_ports
from .sockets import socket_inode, socket_inodes

_LOG = logging.getLogger(__name__)
_CALL_TIMEOUT_S: Final = 10.0
"""Bounds each call into the event loop's thread, and the wait for its end."""
_QUEUE_MAX_BYTES: Final = 1024 * 1024
"""For one direction of a connection: beyond it nothing more is read. A larger value takes memory
during stalls, a smaller one slows delayed connections down."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is done to some connections."""

    cut: bool = False
    stall: bool = False
    delay_s: float = 0.0
    link: str | None = None
    """Only connections of this link; None: of all links."""
    pid: int | None = None
    """Only connections of this client process; None: of all processes."""


@dataclass(slots=True)
class _Link:
    """A port that clients connect to, and the address behind it."""

    name: str
    port: int
    upstream: tuple[str, int] | None
    server: asyncio.AbstractServer | None = None
    misled_to: _Link | None = None
    """The link in whose place it stands."""


class Proxies:
    """All links of one run: a context manager that ends its thread."""

    def __init__(self) -> None:
        """Starts the event loop's thread; links listen from `add` on.

        Raises:
            OSError: this machine's kernel does not tell which sockets there are.
        """
        socket_inode((HOST, 1), (HOST, 1))  # here, and not at a connection while the load runs
        self._links: dict[str, _Link] = {}
        self._rules: dict[str, Rule] = {}
        self._connections: set[_Connection] = set()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="chaos-proxies", daemon=True)
        self._thread.start()

    # ---- for any thread -------------------------------------------------------------------------

    def add(self, name: str, upstream: tuple[str, int] | None = None, *, port: int = 0) -> int:
        """Starts to listen for a link.

        Args:
            name: of the link.
            upstream: host and port behind the link; None: unknown yet, connections are closed.
            port: to listen at; 0 takes a free one.

        Returns:
            The port.

        Raises:
            PortInUseError, OSError: the port can't be listened at.
        """
        chosen = port or pick_ports(1)[0]
        return self._call(self._add(_Link(name, chosen, upstream)))

    def lead(self, name: str, upstream: tuple[str, int]) -> None:
        """Sets the address behind a link, for new connections."""
        self._call(self._lead(name, upstream))

    def mislead(self, name: str, other: str) -> None:
        """Lets a link lead where another one leads, until `heal_lead`; closes its connections."""
        self._call(self._mislead(name, other))

    def heal_lead(self, name: str) -> None:
        """Lets a link lead where it should again; closes its connections."""
        self._call(self._mislead(name, None))

    def hurt(self, key: str, rule: Rule) -> None:
        """Applies a rule until `heal(key)`."""
        self._call(self._set_rule(key, rule))

    def heal(self, key: str) -> None:
        """Ends the rule of this key, if there is one."""
        self._call(self._set_rule(key, None))

    def close(self) -> None:
        """Closes everything. May be repeated."""
        if self._thread.is_alive():
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CALL_TIMEOUT_S)

    def __enter__(self) -> Self:
        """Returns the proxies."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes everything."""
        self.close()

    def _call(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(_CALL_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    # ---- on the loop ----------------------------------------------------------------------------

    async def _add(self, link: _Link) -> int:
        link.server = await self._loop.create_server(
            lambda: _Connection(self._loop, link, self._opened, self._closed).client,
            HOST,
            link.port,
            reuse_address=True,
        )
        self._links[link.name] = link
        return link.port

    async def _lead(self, name: str, upstream: tuple[str, int]) -> None:
        self._links[name].upstream = upstream

    async def _mislead(self, name: str, other: str | None) -> None:
        self._links[name].misled_to = None if other is None else self._links[other]
        for connection in [c for c in self._connections if c.link.name == name]:
            connection.abort()

    async def _set_rule(self, key: str, rule: Rule | None) -> None:
        self._rules.pop(key, None)
        if rule is not None:
            self._rules[key] = rule
        inodes = self._inodes()
        for connection in list(self._connections):
            self._apply(connection, inodes)

    def _inodes(self) -> dict[int, set[int]]:
        """Returns the sockets of each client process that has a rule of its own."""
        return {r.pid: socket_inodes(r.pid) for r in self._rules.values() if r.pid is not None}

    def _opened(self, connection: _Connection) -> None:
        self._connections.add(connection)
        self._apply(connection, self._inodes())

    def _closed(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def _apply(self, connection: _Connection, inodes: dict[int, set[int]]) -> None:
        rules = [
            rule
            for rule in self._rules.values()
            if rule.link in (None, connection.link.name)
            and (rule.pid is None or connection.client_inode in inodes[rule.pid])
        ]
        if any(rule.cut for rule in rules):
            connection.abort()
        else:
            connection.set_flow(
                stalled=any(rule.stall for rule in rules),
                delay_s=max((rule.delay_s for rule in rules), default=0.0),
            )

    async def _close(self) -> None:
        for link in self._links.values():
            if link.server is not None:
                link.server.close()
        for connection in list(self._connections):
            connection.abort()


class _Connection:
    """A connection: the client's socket, the one to the upstream, and the data between them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        link: _Link,
        opened: Callable[[_Connection], None],
        closed: Callable[[_Connection], None],
    ) -> None:
        self.loop: Final = loop
        self.link: Final = link
        self.client: Final = _Side(self)
        self.upstream: Final = _Side(self)
        self.client_inode: int | None = None
        """Of the client's socket, by which its process is found; None: it has closed."""
        self.stalled = False
        self.delay_s = 0.0
        self._opened = opened
        self._closed = closed
        self._over = False
        self._connecting: asyncio.Task[None] | None = None

    def other(self, side: _Side) -> _Side:
        """Returns the other side."""
        return self.upstream if side is self.client else self.client

    def made(self, side: _Side) -> None:
        """Takes a connected side: connects the upstream, or sends on what has waited for it."""
        if side is self.client:
            transport = side.transport
            assert transport is not None
            peer = transport.get_extra_info("peername")  # None: it has closed already
            self.client_inode = socket_inode(peer, (HOST, self.link.port)) if peer else None
            self._connecting = self.loop.create_task(self._connect())
            self._opened(self)
        elif self._over:
            self.abort()
        else:
            self.client.flush()

    async def _connect(self) -> None:
        upstream = (self.link.misled_to or self.link).upstream
        if upstream is None:
            self.abort()
            return
        host, port = upstream
        try:
            await self.loop.create_connection(lambda: self.upstream, host, port)
        except OSError as error:
            _LOG.debug("upstream_unreachable link=%s error=%s", self.link.name, error)
            self.abort()

    def set_flow(self, *, stalled: bool, delay_s: float) -> None:
        """Sets how data is carried from now on."""
        self.stalled, self.delay_s = stalled, delay_s
        for side in (self.client, self.upstream):
            side.flush()

    def lost(self, side: _Side) -> None:
        """Takes a closed side: sends on what it had sent if possible, and closes the other side."""
        if not self._over:
            side.hand_over()
            other = self.other(side)
            self._end()
            if other.transport is not None:
                other.transport.close()

    def abort(self) -> None:
        """Closes both sides at once; data on its way is lost."""
        self._end()
        for side in (self.client, self.upstream):
            side.drop()
            if side.transport is not None:
                side.transport.abort()

    def _end(self) -> None:
        self._over = True
        if self._connecting is not None and self.upstream.transport is None:
            self._connecting.cancel()
        self._closed(self)


class _Side(asyncio.Protocol):
    """One socket of a connection, and the data read from it that the other has not got yet."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.transport: asyncio.Transport | None = None
        self._queue: deque[tuple[float, bytes]] = deque()
        """(loop time in seconds from which it may be written, data)"""
        self._queued_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._choked = False
        """Whether more was written to this socket than it takes."""
        self._reads = True

    @property
    def open(self) -> asyncio.Transport | None:
        """The transport, if it takes data: connected, and not closing."""
        found = self.transport
        return None if found is None or found.is_closing() else found

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self.transport = cast(asyncio.Transport, transport)
        self._connection.made(self)

    def connection_lost(self, _: Exception | None) -> None:
        """Called by asyncio."""
        self._connection.lost(self)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        connection = self._connection
        other = connection.other(self)
        if not (self._queue or connection.stalled or connection.delay_s) and other.open:
            other.open.write(data)
            return
        self._queue.append((connection.loop.time() + connection.delay_s, data))
        self._queued_bytes += len(data)
        self.flush()

    def pause_writing(self) -> None:
        """Called by asyncio."""
        self._choked = True
        self._connection.other(self).regulate()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._choked = False
        self._connection.other(self).regulate()

    def flush(self) -> None:
        """Writes what is due to the other side."""
        connection = self._connection
        other = connection.other(self).open
        if other is not None and not connection.stalled:
            now_s = connection.loop.time()
            while self._queue and self._queue[0][0] <= now_s:
                self._write_next(other)
            if self._queue and self._timer is None:
                self._timer = connection.loop.call_at(self._queue[0][0], self._due)
        self.regulate()

    def hand_over(self) -> None:
        """Writes everything to the other side, unless stalled, because this side is closed."""
        other = self._connection.other(self).open
        while self._queue and other is not None and not self._connection.stalled:
            self._write_next(other)
        self.drop()

    def drop(self) -> None:
        """Drops the data on its way."""
        self._queue.clear()
        self._queued_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def regulate(self) -> None:
        """Reads on, or stops reading, so that TCP tells the sender to wait."""
        if self.open is None:
            return
        reads = (
            not self._connection.stalled
            and not self._connection.other(self)._choked
            and self._queued_bytes < _QUEUE_MAX_BYTES
        )
        if reads != self._reads:
            self._reads = reads
            (self.open.resume_reading if reads else self.open.pause_reading)()

    def _due(self) -> None:
        self._timer = None
        self.flush()

    def _write_next(self, other: asyncio.Transport) -> None:
        _, data = self._queue.popleft()
        self._queued_bytes -= len(data)
        other.write(data)
