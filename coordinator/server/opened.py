"""Serves a connection on frames by the service that its first message names.

Sessions and calls are those of `streams`, message by message as gRPC brings them; nothing of a
service depends on which of the two carries it. No coordinator listens with this yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from ...journal.errors import LogtxError, NotSupportedError, SessionClosedError
from ..protocol import coordinator_pb2 as pb
from ..protocol.frames import MESSAGE_MAX_BYTES
from ..protocol.open_pb2 import Open
from ..protocol.replies import encode_reply
from ..transport.on_loop import LoopConnection
from .streams import CONNECT_TIMEOUT_S, Streams

_LOG = logging.getLogger(__name__)

CALLS_MAX: Final = 256
"""Calls of one connection at one time; it is not read while there are as many. More hold more
answers for a client that takes none."""

M = TypeVar("M", bound=Message)


class Opened:
    """What the connections of a coordinator are served by; lives on its event loop."""

    def __init__(self, streams: Streams) -> None:
        """Serves sessions and calls by `streams`."""
        self._streams = streams

    async def serve(self, connection: LoopConnection) -> None:
        """Serves one connection to its end.

        Raises:
            SessionClosedError: it did not say in time what it is for.
            NotSupportedError: there is no such service here, or a message does not decode.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                opening = decode(Open, await connection.receive())
        except TimeoutError:
            raise SessionClosedError(
                f"the connection said nothing for {CONNECT_TIMEOUT_S:.0f} s"
            ) from None
        match opening.WhichOneof("service"):
            case "session":
                await self._session(connection)
            case "calls":
                await self._calls(connection)
            case _:
                raise NotSupportedError(
                    "the client asks for a service that this coordinator does not have: upgrade"
                    " the coordinator"
                )

    async def _session(self, connection: LoopConnection) -> None:
        async with aclosing(
            self._streams.Session(_client_frames(connection), None)  # type: ignore[type-var]
        ) as frames:
            async for frame in frames:
                await connection.send(frame.SerializeToString())

    async def _calls(self, connection: LoopConnection) -> None:
        places = asyncio.Semaphore(CALLS_MAX)
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                await places.acquire()
                request = decode(pb.CallRequest, await connection.receive())
                task = asyncio.create_task(self._call(connection, request))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _: places.release())
        finally:
            for task in tasks:
                task.cancel()

    async def _call(self, connection: LoopConnection, request: pb.CallRequest) -> None:
        try:
            reply = await self._streams.Call(request, None)
        except Exception:  # noqa: BLE001 - one client's call, and the log has it
            _LOG.exception("call_failed address=%s", connection.remote)
            connection.close(SessionClosedError("the coordinator failed; its log says how"))
            return
        if reply.ByteSize() > MESSAGE_MAX_BYTES:
            refusal = NotSupportedError(
                f"the answer takes {reply.ByteSize()} bytes, and {MESSAGE_MAX_BYTES} are allowed:"
                " ask for less at a time"
            )
            reply = encode_reply(request.request.request_id, refusal)
        with suppress(LogtxError):  # The connection is over, and nobody waits any more.
            await connection.send(reply.SerializeToString())


async def _client_frames(connection: LoopConnection) -> AsyncIterator[pb.ClientFrame]:
    while True:
        yield decode(pb.ClientFrame, await connection.receive())


def decode(kind: type[M], payload: bytes) -> M:
    """Returns a message of this kind.

    Raises:
        NotSupportedError: these bytes are none.
    """
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise NotSupportedError(f"a message is no {kind.__name__}: {error}") from error
