"""Serves a connection by the service that its first message names.

Sessions and calls are those of `streams`, questions those of the metadata store, and news those of
`Peers`. None of them knows how its messages come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from ...journal.errors import LogtxError, NotSupportedError, SessionClosedError
from ..membership import peers_pb2
from ..membership.peers import Peers
from ..protocol import coordinator_pb2 as pb
from ..protocol import metadata_pb2
from ..protocol.multiplex import PART_MAX_BYTES
from ..protocol.open_pb2 import Open
from ..protocol.replies import encode_reply
from ..store.service import MetadataService
from ..transport.address import now_ms
from ..transport.on_loop import LoopConnection
from ..transport.streams_on_loop import LoopStream, LoopStreams, Served
from .streams import CONNECT_TIMEOUT_S, SMALL_ANSWER_BYTES, Streams, room_of
from .window import Window

_LOG = logging.getLogger(__name__)

CALLS_MAX: Final = 256
"""Calls of one connection at one time, with those whose answers were not taken; it is not read
while there are as many. With fewer, a client with many threads waits."""
CALLS_MAX_BYTES: Final = 256 * 1024 * 1024
"""What they and their answers may take in memory; it is not read while that is used up. With more,
a client that takes no answers costs more; with less, fewer questions about many things are under
way: 63 of them, each with room for the largest answer, hold up all other calls."""
CALL_MS: Final = 30_000
"""How long a call may take that does not say how long its client waits."""
_ANSWER_BYTES: Final = 64
"""More than a MetadataAnswer adds to its page."""
_FAILED: Final = "the coordinator failed; its log says how"

M = TypeVar("M", bound=Message)


class Opened:
    """What the connections of a coordinator are served by; lives on its event loop."""

    def __init__(self, streams: Streams, metadata: MetadataService, peers: Peers) -> None:
        """Serves sessions and calls, the metadata store, and other coordinators."""
        self._streams, self._metadata, self._peers = streams, metadata, peers
        self._of_streams: set[LoopStream] = set()

    async def serve(self, connection: Served) -> None:
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
            case "streams" if isinstance(connection, LoopConnection):
                await LoopStreams(connection, self.serve, self._of_streams).run()
            case "streams":
                raise NotSupportedError("a stream has no streams of its own")
            case _:
                raise NotSupportedError(
                    "the client asks for a service that this coordinator does not have: upgrade"
                    " the coordinator"
                )

    async def _session(self, connection: Served) -> None:
        async with aclosing(
            self._streams.session(_client_frames(connection))  # type: ignore[type-var]
        ) as frames:
            async for frame in frames:
                await connection.send(frame.SerializeToString())

    async def _calls(self, connection: Served) -> None:
        calls = _Calls(connection)
        try:
            while True:
                request = decode(pb.CallRequest, await connection.receive())
                until_ms = connection.came_ms + (request.timeout_ms or CALL_MS)
                # What its answer takes is not known before it is there.
                size = room_of(request.request, PART_MAX_BYTES)
                await calls.start(partial(self._call, connection, request), size, until_ms)
        finally:
            calls.cancel()

    async def _call(self, connection: Served, request: pb.CallRequest) -> bytes:
        try:
            reply = await self._streams.call(request)
        except Exception as error:  # one client's call, and the log has it
            _LOG.exception("call_failed address=%s", connection.remote)
            failure = SessionClosedError(_FAILED)
            connection.close(failure)
            raise failure from error
        if reply.ByteSize() > PART_MAX_BYTES:
            refusal = NotSupportedError(
                f"the answer takes {reply.ByteSize()} bytes, and {PART_MAX_BYTES} are allowed:"
                " ask for less at a time"
            )
            reply = encode_reply(request.request.request_id, refusal)
        return reply.SerializeToString()

    # ---- the metadata store ---------------------------------------------------------------------

    async def _questions(self, connection: Served) -> None:
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

    async def _news(self, connection: Served) -> None:
        calls = _Calls(connection)
        try:
            incoming = self._incoming(connection, calls)
            async with aclosing(self._peers.watch(incoming)) as news:  # type: ignore[type-var]
                async for each in news:
                    await connection.send(peers_pb2.PeerFrame(news=each).SerializeToString())
        finally:
            calls.cancel()

    async def _incoming(self, connection: Served, calls: _Calls) -> AsyncIterator[peers_pb2.News]:
        """Yields the news of another coordinator, and has what else it asks for done."""
        while True:
            try:
                payload = await connection.receive()
            except LogtxError:
                return  # It is over.
            frame = decode(peers_pb2.PeerFrame, payload)
            match frame.WhichOneof("what"):
                case "news":
                    yield frame.news
                case "take_over":
                    size = len(payload) + SMALL_ANSWER_BYTES
                    await calls.start(partial(self._take_over, connection, frame), size)
                case _:
                    raise NotSupportedError(
                        "another coordinator asks for what this one does not know: upgrade this one"
                    )

    async def _take_over(self, connection: Served, frame: peers_pb2.PeerFrame) -> bytes:
        try:
            reply = await self._peers.take_over(frame.take_over)
        except Exception:  # noqa: BLE001 - one call, and the log has it
            _LOG.exception("take_over_failed address=%s", connection.remote)
            reply = peers_pb2.TakeOverReply(served=False, reason=_FAILED)
        return peers_pb2.PeerFrame(taken_over=reply, id=frame.id).SerializeToString()


class _Calls:
    """The calls of one connection that are under way, or whose answers were not taken.

    They are bounded by `CALLS_MAX` and `CALLS_MAX_BYTES`.
    """

    def __init__(self, connection: Served) -> None:
        self._connection = connection
        self._tasks: set[asyncio.Task[None]] = set()
        self._window = Window(CALLS_MAX, CALLS_MAX_BYTES)

    async def start(
        self, answer: Callable[[], Awaitable[bytes]], size: int, until_ms: int | None = None
    ) -> None:
        """Begins one once there is room.

        Args:
            answer: does what was asked for, and returns what to send.
            size: what it and its answer may take in memory, in bytes.
            until_ms: when to stop it, by `now_ms`; None: when the connection ends.
        """
        await self._window.enter(size)
        task = asyncio.create_task(self._run(answer, size, until_ms))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self, answer: Callable[[], Awaitable[bytes]], size: int, until_ms: int | None
    ) -> None:
        left_s = None if until_ms is None else (until_ms - now_ms()) / 1_000
        try:
            # One whose client gave it up while it waited for room must not take the time of others.
            if left_s is None or left_s > 0:
                # If the time is over, or the connection, nobody waits for the answer any more.
                with suppress(TimeoutError, LogtxError):
                    async with asyncio.timeout(left_s):
                        payload = await answer()
                        del answer  # The request goes with it.
                        size = self._window.answered(size, len(payload))
                        await self._connection.send(payload)
        finally:
            self._window.leave(size)

    def cancel(self) -> None:
        """Ends all."""
        for task in self._tasks:
            task.cancel()


def _fitting(page: metadata_pb2.MetadataPage) -> list[metadata_pb2.MetadataPage]:
    """Returns pages that fit into messages and say the same."""
    count = len(page.entries)
    if page.ByteSize() < PART_MAX_BYTES - _ANSWER_BYTES or count < 2:
        return [page]
    rest = metadata_pb2.MetadataPage()
    rest.CopyFrom(page)
    del rest.entries[: count // 2]
    first = metadata_pb2.MetadataPage(entries=page.entries[: count // 2])
    return _fitting(first) + _fitting(rest)


async def _client_frames(connection: Served) -> AsyncIterator[pb.ClientFrame]:
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
