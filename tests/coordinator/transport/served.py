"""Listeners that run beside a test, on an event loop in a thread, and peers byte by byte.

`certificates` was made once by OpenSSL, to be valid for a hundred years: `ca.pem` has signed all of
them but `stranger.pem`. Each file has a certificate and its key. `coordinator` and `renewed` are
for localhost and 127.0.0.1, `elsewhere` is for another host. The key of `locked` has the password
`secret`. `expired` and `server-only` have signed themselves: the one was valid up to 2021, and the
other has the extended key usage serverAuth alone.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import uvloop

from logtx.coordinator.protocol.frames import Deadlines
from logtx.coordinator.protocol.strangers import Role
from logtx.coordinator.transport.in_thread import ThreadConnection
from logtx.coordinator.transport.on_loop import Listener, LoopConnection
from logtx.coordinator.transport.streams_on_loop import Served as Stream
from logtx.coordinator.transport.tls import Tls
from logtx.journal.errors import LogtxError
from logtx.journal.tls import TlsConfig

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
PATIENT: Final = Deadlines(hello_ms=20_000, ping_after_ms=20_000, pong_ms=20_000)
"""For tests of something else than time: a machine may be busy."""
CERTIFICATES: Final = Path(__file__).parent / "certificates"
HELLO: Final = bytes.fromhex("8d4c4f4754580d0a 0001 7fffffff")
"""Of a window without an end."""
PING: Final = bytes.fromhex("02000000")
LOOPS: Final = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def message(payload: bytes) -> bytes:
    """Returns a frame MESSAGE."""
    return b"\x01" + len(payload).to_bytes(3, "big") + payload


def tls(role: Role, certificate: str | None, ca: str | None = "ca") -> Tls:
    """Returns the TLS of one end, with these files."""
    files = {"certificate": certificate, "ca": ca}
    named: Any = {name: CERTIFICATES / f"{file}.pem" for name, file in files.items() if file}
    asks = role is Role.COORDINATOR and ca is not None
    client_auth = "required" if asks else "none"
    return Tls(
        role, TlsConfig(**named, client_auth=client_auth, of_coordinator=role is Role.COORDINATOR)
    )


class Served:
    """A listener in a thread of its own."""

    def __init__(
        self,
        serve: Callable[[LoopConnection], Coroutine[Any, Any, None]],
        *,
        loop: str = "uvloop",
        **options: Any,
    ) -> None:
        self.seen: list[LoopConnection] = []
        """Each connection whose peer said hello."""
        self.cancelled = 0
        """Tasks that were cancelled."""

        async def counted(connection: LoopConnection) -> None:
            self.seen.append(connection)
            try:
                await serve(connection)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise

        options.setdefault("deadlines", PATIENT)
        self.listener = Listener(**options)
        self._loop = LOOPS[loop]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self.listener.bind('127.0.0.1:0')}"
        self.do(self.listener.start(counted))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs something on the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def look(self, what: Callable[[], T]) -> T:
        """Looks at something there."""

        async def look() -> T:
            return what()

        return self.do(look())

    def stop(self) -> None:
        """Stops it."""
        self.do(self.listener.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def kill(self) -> None:
        """Ends it as a process that is killed: nobody is told."""

        def abort() -> None:
            for each in self.listener._connections:
                if each._transport is not None:
                    each._transport.abort()

        self.look(abort)
        self.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()


async def echo(connection: Stream) -> None:
    """Sends each message back."""
    while True:
        await connection.send(await connection.receive())


async def read(connection: LoopConnection) -> None:
    """Takes all messages, and throws them away."""
    while True:
        await connection.receive()


async def idle(connection: LoopConnection) -> None:  # noqa: ARG001
    """Takes nothing."""
    await asyncio.Event().wait()


class Client:
    """A client that sends what a test tells it."""

    def __init__(self, address: str, **options: Any) -> None:
        self.queue: deque[bytes] = deque()
        options.setdefault("deadlines", PATIENT)
        self.connection = self._connect(address, **options)

    def _connect(self, address: str, **options: Any) -> Any:
        return ThreadConnection(address, self._next, **options)

    def _next(self) -> bytes | None:
        return self.queue.popleft() if self.queue else None

    def send(self, *payloads: bytes) -> None:
        """Sends messages."""
        self.queue.extend(payloads)
        self.connection.flush()

    def receive(self) -> bytes:
        """Returns the next message."""
        return self.connection.receive(TIMEOUT_S)

    def ask(self, payload: bytes) -> bytes:
        """Sends a message, and returns the next that comes."""
        self.send(payload)
        return self.receive()

    def end(self) -> LogtxError:
        """Returns why the connection is over, once it is."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                self.receive()
            except LogtxError as error:
                return error
        raise AssertionError("it did not end")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.connection.close()
        self.connection.join(TIMEOUT_S)


@contextmanager
def raw_client(address: str, *, hello: bytes = HELLO) -> Iterator[socket.socket]:
    """Yields a socket that is connected to a listener."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connected:
        connected.sendall(hello)
        yield connected


@contextmanager
def raw_coordinator() -> Iterator[tuple[str, Callable[[], socket.socket]]]:
    """Yields an address, and what accepts the next client there, whose hello is read."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT_S)
        accepted = []

        def accept() -> socket.socket:
            connected, _ = listening.accept()
            accepted.append(connected)
            connected.settimeout(TIMEOUT_S)
            read_bytes(connected, len(HELLO))
            return connected

        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}", accept
        finally:
            for each in accepted:
                each.close()


@contextmanager
def dropping(host: str = "127.0.0.1") -> Iterator[tuple[str, int]]:
    """Yields host and port at which nothing answers, as behind a firewall that drops packets."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket(family))
        listening.bind((host, 0))
        listening.listen(0)
        for _ in range(4):  # The system takes no more of them, and says nothing to the next.
            waiting = stack.enter_context(socket.socket(family))
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()[:2]


def dead_port() -> int:
    """Returns a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def read_bytes(connected: socket.socket, count: int) -> bytes:
    """Reads so many bytes."""
    found = b""
    while len(found) < count:
        data = connected.recv(count - len(found))
        assert data, f"the stream ended behind {found!r}"
        found += data
    return found


def read_all(connected: socket.socket) -> bytes:
    """Reads to the end of the stream."""
    connected.settimeout(TIMEOUT_S)
    return b"".join(iter(lambda: connected.recv(65_536), b""))


def payloads(sizes: Iterable[int]) -> list[bytes]:
    """Returns messages of these sizes, each with other bytes."""
    return [bytes([number % 251]) * size for number, size in enumerate(sizes)]
