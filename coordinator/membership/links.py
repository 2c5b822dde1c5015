"""The stream of news to one other coordinator."""

from __future__ import annotations

import asyncio
from typing import Final

from google.protobuf.message import DecodeError

from ...journal.errors import CoordinatorNotAvailableError, FrameError, LogtxError
from ..protocol.frames import Deadlines
from ..protocol.open_pb2 import Open, OpenPeers
from ..transport.alive import Alive
from ..transport.on_loop import LoopConnection, dial
from ..transport.tls import Tls
from . import peers_pb2 as pb

PING_S: Final = 0.2
"""Silence after which a stream is pinged. Pings are answered beside the other's event loop, by
`transport.alive`, so a busy process is not taken for a dead one."""
PONG_S: Final = 0.3
"""How long the answer to a ping may take. With a longer time a stopped process is noticed later."""
HELLO_S: Final = 5.0
"""How long the other may take to say hello; who calls it waits for less."""


class Link:
    """One attempt to speak to a coordinator. It connects by itself, when it is first read.

    Each call raises CoordinatorNotAvailableError once the link is broken.
    """

    def __init__(
        self,
        address: str,
        more_s: float = 0.0,
        *,
        alive: Alive | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Does not connect yet.

        Args:
            address: host:port of the other coordinator.
            more_s: how much longer than usual a ping may take, in seconds.
            alive: speaks for this event loop while it is held up.
            tls: what the connection is protected with; None: nothing.
        """
        self._address, self._alive, self._tls = address, alive, tls
        self._deadlines = Deadlines(
            hello_ms=round((HELLO_S + more_s) * 1000),
            ping_after_ms=round(PING_S * 1000),
            pong_ms=round((PONG_S + more_s) * 1000),
        )
        self._connection: LoopConnection | None = None
        self._connected = asyncio.Event()
        self._closed = False
        self._asked: dict[int, asyncio.Future[pb.TakeOverReply]] = {}
        self._next_id = 1

    async def read(self) -> pb.News:
        """Returns the next news. One task only."""
        try:
            connection = self._connection or await self._connect()
            while True:
                frame = pb.PeerFrame.FromString(await connection.receive())
                match frame.WhichOneof("what"):
                    case "news":
                        return frame.news
                    case "taken_over":
                        self._answered(frame)
        except (LogtxError, DecodeError) as error:
            if isinstance(error, DecodeError):
                error = FrameError(f"{self._address} sent what is no PeerFrame: {error}")
            self._end(error)
            raise CoordinatorNotAvailableError(str(error)) from error

    async def write(self, news: pb.News) -> None:
        """Tells news, once it is connected."""
        await self._send(pb.PeerFrame(news=news))

    async def take_over(self, request: pb.TakeOverRequest, timeout_s: float) -> pb.TakeOverReply:
        """Asks the other to take over a partition, while another task waits in `read`."""
        number, self._next_id = self._next_id, self._next_id + 1
        future: asyncio.Future[pb.TakeOverReply] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(pb.PeerFrame(take_over=request, id=number))
                return await future
        except TimeoutError:
            raise CoordinatorNotAvailableError(
                f"{self._address} did not answer in {timeout_s:g} s"
            ) from None
        finally:
            self._asked.pop(number, None)

    async def close(self) -> None:
        """Ends it, and calls under way."""
        self._end(CoordinatorNotAvailableError("the link was closed"))

    async def _connect(self) -> LoopConnection:
        connection = self._connection = await dial(
            self._address, deadlines=self._deadlines, alive=self._alive, tls=self._tls
        )
        if self._closed:
            connection.close(CoordinatorNotAvailableError("the link was closed"))
        await connection.send(Open(peers=OpenPeers()).SerializeToString())
        self._connected.set()
        return connection

    async def _send(self, frame: pb.PeerFrame) -> None:
        await self._connected.wait()
        if self._connection is None:
            raise CoordinatorNotAvailableError("the link was closed")
        try:
            await self._connection.send(frame.SerializeToString())
        except LogtxError as error:
            raise CoordinatorNotAvailableError(str(error)) from error

    def _answered(self, frame: pb.PeerFrame) -> None:
        future = self._asked.get(frame.id)
        if future is not None and not future.done():
            future.set_result(frame.taken_over)

    def _end(self, error: LogtxError) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close(error)
        self._connected.set()  # Whoever waits for that is told.
        for future in self._asked.values():
            if not future.done():
                future.set_exception(CoordinatorNotAvailableError(str(error)))
