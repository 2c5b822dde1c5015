"""Streams that share a connection, at a coordinator.

A `LoopStream` is served as a connection of its own would be (`Served`): by a task, which is
cancelled when the stream is over, or its connection. What several streams have to say in one turn
of the event loop goes out as one message.

A stream that nobody reads holds up itself alone, by its room. One whose client takes no answers
holds up all of its connection, for it is the connection that takes none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Final, Protocol

from ...journal.errors import CoordinatorBusyError, FrameError, LogtxError, SessionClosedError
from ..protocol.frames import Message
from ..protocol.multiplex import (
    CoordinatorStreams,
    StreamBegan,
    StreamEnded,
    StreamMessage,
    message_part,
    take_parts,
)
from ..protocol.open_pb2 import Part, Parts
from .inbox import Inbox
from .on_loop import CONNECTIONS_MAX, Closable, LoopConnection, serve_to_the_end

OUT_MAX_BYTES: Final = 256 * 1024
"""What the streams of a connection may have said that it did not send yet: who has more to say
waits. More takes more memory; with less, fewer answers go out as one message."""
STREAMS_MAX: Final = CONNECTIONS_MAX
"""Streams of all connections at one time; a further one is ended as it begins."""


class Served(Closable, Protocol):
    """What a service sees of a connection, or of a stream."""

    @property
    def peer(self) -> str: ...
    @property
    def came_ms(self) -> int: ...
    async def receive(self) -> bytes: ...
    async def send(self, payload: bytes) -> None: ...


Serve = Callable[[Served], Awaitable[None]]


class LoopStream(Inbox[StreamMessage]):
    """One stream. Only one task may call `receive`; any may call `send`."""

    def __init__(self, streams: LoopStreams, number: int) -> None:
        """Is begun by its client."""
        super().__init__()
        self._streams, self._number = streams, number
        self.task: asyncio.Task[None] | None = None

    @property
    def peer(self) -> str:
        """Returns the name in the peer's certificate; "" if it showed none."""
        return self._streams.connection.peer

    @property
    def remote(self) -> str:
        """Returns the peer's address, for people."""
        return self._streams.connection.remote

    async def send(self, payload: bytes) -> None:
        """Sends a message once there is room for it. Messages of one task keep their order.

        Raises:
            LogtxError: the stream is over. Nobody knows what the peer got of earlier ones.
            ValueError: the message is larger than `PART_MAX_BYTES`.
        """
        await self._streams.room()
        if self.error is not None:
            raise copy(self.error)
        self._streams.say(message_part(self._number, payload))

    def close(self, error: LogtxError) -> None:
        """Ends the stream, and tells the peer why. Does not wait for it."""
        self._streams.end(self._number, error)

    # ---- what its connection calls --------------------------------------------------------------

    def came(self, message: StreamMessage) -> None:
        """Takes a message."""
        self._keep(message)

    def over(self, error: LogtxError) -> None:
        """Takes the end."""
        self._end(error)
        if self.task is not None:
            self.task.cancel()

    def _free(self, cost: int) -> None:
        self._streams.release(self._number, cost)


class LoopStreams:
    """The streams of one connection."""

    def __init__(self, connection: LoopConnection, serve: Serve, admitted: set[LoopStream]) -> None:
        """Does nothing before `run`.

        Args:
            connection: what they lie on.
            serve: serves one. It is cancelled when that is over. A `LogtxError` that it raises, and
                the end of it, end the stream.
            admitted: the streams of all connections.
        """
        self.connection: Final = connection
        self._serve, self._admitted = serve, admitted
        self._machine = CoordinatorStreams()
        self._streams: dict[int, LoopStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._out: deque[Part] = deque()
        self._out_bytes = 0
        self._sends_soon = False
        self._has_room = asyncio.Event()
        self._held = 0
        """What messages cost that were taken while too much was said."""

    async def run(self) -> None:
        """Serves them until the connection is over.

        Raises:
            LogtxError: it is over.
        """
        try:
            self.connection.hand_to(self)
            await self.connection.receive()
        finally:
            error = self.connection.error or SessionClosedError("the connection is over")
            for number in list(self._streams):
                self._over(number, error)
            # Each sees to what it leaves behind, such as a session without a stream.
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- what the connection calls --------------------------------------------------------------

    def took(self, message: Message) -> None:
        """Takes a message of the connection."""
        try:
            for event in self._machine.receive(message.payload):
                self._take(event)
        except FrameError as error:
            self.connection.close(error)
            return
        self._say_all(self._machine.to_send(0))
        # A client that takes no answers may say what is answered at once, again and again.
        self._held += message.cost
        self._release_held()

    def goes_on(self) -> None:
        """Sends what was said, as far as there is room."""
        while self._out and self.connection.may_send:
            parts = take_parts(self._out)
            self._out_bytes -= sum(map(Part.ByteSize, parts))
            self.connection.send_now(Parts(parts=parts).SerializeToString())
        self._has_room.set()
        self._release_held()

    # ---- what streams call ----------------------------------------------------------------------

    async def room(self) -> None:
        """Waits until the connection has sent most of what was said.

        Raises:
            LogtxError: the connection is over.
        """
        while self._out_bytes > OUT_MAX_BYTES:
            if self.connection.error is not None:
                raise copy(self.connection.error)
            self._has_room.clear()
            await self._has_room.wait()

    def say(self, part: Part) -> None:
        """Sends a part soon, behind the others."""
        self._out.append(part)
        self._out_bytes += part.ByteSize()
        if len(self._streams) < 2:
            self.goes_on()
        elif not self._sends_soon:
            # Behind what the other streams have to say in this turn of the loop.
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self._send)

    def release(self, number: int, cost: int) -> None:
        """Frees what a message of a stream took."""
        self._machine.release(number, cost)
        self._say_all(self._machine.to_send(number))

    def end(self, number: int, error: LogtxError) -> None:
        """Ends a stream, and tells the client why."""
        self._say_all(self._machine.end(number, error))
        self._over(number, error)

    # ---- between the machine and the connection -------------------------------------------------

    def _say_all(self, parts: list[Part]) -> None:
        for part in parts:
            self.say(part)

    def _take(self, event: object) -> None:
        match event:
            case StreamBegan(number):
                self._begin(number)
            case StreamMessage(number, _):
                stream = self._streams.get(number)
                if stream is not None:
                    stream.came(event)
            case StreamEnded(number, error):
                self._over(number, error)

    def _over(self, number: int, error: LogtxError) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._admitted.discard(stream)
            stream.over(error)

    def _begin(self, number: int) -> None:
        if len(self._admitted) >= STREAMS_MAX:
            self._say_all(
                self._machine.end(number, CoordinatorBusyError("there are too many streams"))
            )
            return
        stream = self._streams[number] = LoopStream(self, number)
        self._admitted.add(stream)
        task = stream.task = asyncio.create_task(serve_to_the_end(self._serve, stream, "stream"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self) -> None:
        self._sends_soon = False
        self.goes_on()

    def _release_held(self) -> None:
        if self._held and self._out_bytes <= OUT_MAX_BYTES:
            held, self._held = self._held, 0
            self.connection.release(held)
