"""Serves a connection by the service that its first message names.

Sessions and calls are those of `streams`, questions those of the metadata store, and news those of
`Peers`. None of them knows how its messages come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from ...journal.errors import LogtxError, NotSupportedError, SessionClosedError
from ..membership import peers_pb2
from ..membership.peers import Peers
from ..protocol import coordinator_pb2 as pb
from ..protocol import metadata_pb2
from ..protocol.frames import MESSAGE_MAX_BYTES
from ..protocol.open_pb2 import Open
from ..protocol.replies import encode_reply
from ..store.service import MetadataService
from ..transport.on_loop import LoopConnection
from .streams import CONNECT_TIMEOUT_S, Streams

_LOG = logging.getLogger(__name__)

CALLS_MAX: Final = 256
"""Calls of one connection at one time; it is not read while there are as many. More hold more
answers for a client that takes none."""
_ANSWER_BYTES: Final = 64
"""More than a MetadataAnswer adds to its page."""
_FAILED: Final = "the coordinator failed; its log says how"

M = TypeVar("M", bound=Message)


class Opened:
    """What the connections of a coordinator are served by; lives on its event loop."""

    def __init__(self, streams: Streams, metadata: MetadataService, peers: Peers) -> None:
        """Serves sessions and calls, the metadata store, and other coordinators."""
        self._streams, self._metadata, self._peers = streams, metadata, peers

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
        service = opening.WhichOneof("service")
        if connection.peer and service in ("session", "peers"):
            _LOG.info(
                "certificate_shown address=%s name=%s service=%s",
                *(connection.remote, connection.peer, service),
            )
        match service:
            case "session":
                await self._session(connection)
            case "calls":
                await self._calls(connection)
            case "metadata":
                await self._questions(connection)
            case "peers":
                await self._news(connection)
            case _:
                raise NotSupportedError(
                    "the client asks for a service that this coordinator does not have: upgrade"
                    " the coordinator"
                )

    async def _session(self, connection: LoopConnection) -> None:
        async with aclosing(
            self._streams.session(_client_frames(connection))  # type: ignore[type-var]
        ) as frames:
            async for frame in frames:
                await connection.send(frame.SerializeToString())

    async def _calls(self, connection: LoopConnection) -> None:
        calls = _Calls()
        try:
            while True:
                await calls.room()
                request = decode(pb.CallRequest, await connection.receive())
                calls.start(self._call(connection, request))
        finally:
            calls.cancel()

    async def _call(self, connection: LoopConnection, request: pb.CallRequest) -> None:
        try:
            reply = await self._streams.call(request)
        except Exception:  # noqa: BLE001 - one client's call, and the log has it
            _LOG.exception("call_failed address=%s", connection.remote)
            connection.close(SessionClosedError(_FAILED))
            return
        if reply.ByteSize() > MESSAGE_MAX_BYTES:
            refusal = NotSupportedError(
                f"the answer takes {reply.ByteSize()} bytes, and {MESSAGE_MAX_BYTES} are allowed:"
                " ask for less at a time"
            )
            reply = encode_reply(request.request.request_id, refusal)
        with suppress(LogtxError):  # The connection is over, and nobody waits any more.
            await connection.send(reply.SerializeToString())

    # ---- the metadata store ---------------------------------------------------------------------

    async def _questions(self, connection: LoopConnection) -> None:
        while True:
            request = decode(metadata_pb2.MetadataRequest, await connection.receive())
            async with aclosing(self._answers(request)) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    await connection.send(answer.SerializeToString())

    async def _answers(
        self, request: metadata_pb2.MetadataRequest
    ) -> AsyncIterator[metadata_pb2.MetadataAnswer]:
        """Yields the answers to a question, to the last one."""
        service, kind = self._metadata, request.WhichOneof("what")
        match kind:
            case "horizon":
                horizon = await service.horizon(request.horizon)
                yield metadata_pb2.MetadataAnswer(horizon=horizon, last=True)
                return
            case "status":
                status = await service.status()
                yield metadata_pb2.MetadataAnswer(status=status, last=True)
                return
            case "query":
                pages = service.query(request.query)
            case "watch":
                pages = service.watch(request.watch)
            case _:
                raise NotSupportedError(
                    "the client asks what this coordinator does not know: upgrade the coordinator"
                )
        async with aclosing(pages):  # type: ignore[type-var]
            async for page in pages:
                for each in _fitting(page):
                    yield metadata_pb2.MetadataAnswer(page=each)
        yield metadata_pb2.MetadataAnswer(last=True)

    # ---- other coordinators ---------------------------------------------------------------------

    async def _news(self, connection: LoopConnection) -> None:
        calls = _Calls()
        try:
            incoming = self._incoming(connection, calls)
            async with aclosing(self._peers.watch(incoming)) as news:  # type: ignore[type-var]
                async for each in news:
                    await connection.send(peers_pb2.PeerFrame(news=each).SerializeToString())
        finally:
            calls.cancel()

    async def _incoming(
        self, connection: LoopConnection, calls: _Calls
    ) -> AsyncIterator[peers_pb2.News]:
        """Yields the news of another coordinator, and has what else it asks for done."""
        while True:
            await calls.room()
            try:
                payload = await connection.receive()
            except LogtxError:
                return  # It is over.
            frame = decode(peers_pb2.PeerFrame, payload)
            match frame.WhichOneof("what"):
                case "news":
                    yield frame.news
                case "take_over":
                    calls.start(self._take_over(connection, frame))
                case _:
                    raise NotSupportedError(
                        "another coordinator asks for what this one does not know: upgrade this one"
                    )

    async def _take_over(self, connection: LoopConnection, frame: peers_pb2.PeerFrame) -> None:
        try:
            reply = await self._peers.take_over(frame.take_over)
        except Exception:  # noqa: BLE001 - one call, and the log has it
            _LOG.exception("take_over_failed address=%s", connection.remote)
            reply = peers_pb2.TakeOverReply(served=False, reason=_FAILED)
        with suppress(LogtxError):  # The connection is over, and nobody waits any more.
            answer = peers_pb2.PeerFrame(taken_over=reply, id=frame.id)
            await connection.send(answer.SerializeToString())


class _Calls:
    """The calls of one connection that are under way, at most `CALLS_MAX`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_less = asyncio.Event()

    async def room(self) -> None:
        """Waits for room for one more."""
        while len(self._tasks) >= CALLS_MAX:
            self._one_less.clear()
            await self._one_less.wait()

    def start(self, call: Coroutine[Any, Any, None]) -> None:
        """Begins one, for which there is room."""
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def cancel(self) -> None:
        """Ends all."""
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._one_less.set()


def _fitting(page: metadata_pb2.MetadataPage) -> list[metadata_pb2.MetadataPage]:
    """Returns pages that fit into messages and say the same."""
    count = len(page.entries)
    if page.ByteSize() < MESSAGE_MAX_BYTES - _ANSWER_BYTES or count < 2:
        return [page]
    rest = metadata_pb2.MetadataPage()
    rest.CopyFrom(page)
    del rest.entries[: count // 2]
    first = metadata_pb2.MetadataPage(entries=page.entries[: count // 2])
    return _fitting(first) + _fitting(rest)


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
