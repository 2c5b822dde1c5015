"""Coordinators that follow a test's script, and addresses without any."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol.checkpoint import Checkpoint
from logtx.coordinator.protocol.open_pb2 import Open
from logtx.coordinator.protocol.replies import encode_reply
from logtx.coordinator.transport.on_loop import LoopConnection
from logtx.coordinator.transport.streams_on_loop import LoopStreams
from logtx.coordinator.transport.streams_on_loop import Served as Stream
from logtx.journal.errors import LogtxError, SessionClosedError
from logtx.journal.logs.interface import Log
from logtx.journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC

from .transport.served import TIMEOUT_S, Served

Script = Callable[[pb.Request], list[pb.Reply] | None]
"""Returns the replies to a request; None cuts the stream."""


class ScriptedCoordinator:
    """Answers every request by a script, which the test may change at any time."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.script: Script = lambda request: [encode_reply(request.request_id, commands.Done())]
        self.refusal: Any = None
        """Error that answers Connect and calls, if any."""
        self.received: list[list[int]] = []
        """Request ids of each stream in order, without Connect."""
        self.calls = 0
        self._served: Served | None = Served(self._serve)
        self.address = self._served.address

    def _call(self, request: pb.CallRequest) -> pb.Reply:
        """Answers a request without a session."""
        self.calls += 1
        if self.refusal is not None:
            return encode_reply(request.request.request_id, self.refusal)
        replies = self.script(request.request)
        if not replies:
            raise SessionClosedError("cut")
        return replies[0]

    def _session(self, frames: Iterator[pb.ClientFrame]) -> Iterator[pb.ServerFrame]:
        """Serves a stream."""
        received: list[int] = []
        self.received.append(received)
        for frame in frames:
            for request in frame.requests:
                if request.HasField("connect"):
                    answer = self.refusal or commands.Connected(
                        generation=0, partition=0, incarnation=1, epoch=self.epoch
                    )
                    yield pb.ServerFrame(replies=[encode_reply(request.request_id, answer)])
                    if self.refusal is not None:
                        return
                    continue
                received.append(request.request_id)
                replies = self.script(request)
                if replies is None:
                    return
                if replies:
                    yield pb.ServerFrame(replies=replies)

    async def _serve(self, connection: LoopConnection) -> None:
        opening = Open.FromString(await connection.receive())
        assert opening.HasField("streams"), opening
        await LoopStreams(connection, self._serve_stream, set()).run()

    async def _serve_stream(self, connection: Stream) -> None:
        """Serves a stream, or calls. The script has a thread, and may wait."""
        loop = asyncio.get_running_loop()
        if Open.FromString(await connection.receive()).HasField("calls"):
            while True:
                request = pb.CallRequest.FromString(await connection.receive())
                reply = await asyncio.to_thread(self._call, request)
                await connection.send(reply.SerializeToString())
        frames: queue.SimpleQueue[pb.ClientFrame | None] = queue.SimpleQueue()

        def answer() -> None:
            # The client may end it first, and the test all of them.
            with suppress(LogtxError, RuntimeError):
                for each in self._session(iter(frames.get, None)):  # type: ignore[arg-type]
                    sending = connection.send(each.SerializeToString())
                    asyncio.run_coroutine_threadsafe(sending, loop).result(TIMEOUT_S)
                loop.call_soon_threadsafe(connection.close, SessionClosedError("cut"))

        threading.Thread(target=answer, daemon=True).start()
        try:
            while True:
                frames.put(pb.ClientFrame.FromString(await connection.receive()))
        finally:
            frames.put(None)

    def stop(self) -> None:
        """Stops as a killed process does."""
        if self._served is not None:
            self._served.kill()
            self._served = None


@contextmanager
def scripted(epoch: int = 0) -> Iterator[ScriptedCoordinator]:
    """Yields a coordinator; stops it at the end."""
    coordinator = ScriptedCoordinator(epoch)
    try:
        yield coordinator
    finally:
        coordinator.stop()


@contextmanager
def silent_address() -> Iterator[str]:
    """Yields an address where TCP connects and nothing answers, as at a stopped process."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def dead_address() -> str:
    """Returns an address where nothing listens, as after a killed process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def publish(log: Log, address: str, epoch: int = 0) -> None:
    """Sets the hint in the log."""
    checkpoint = Checkpoint(offset=0, epoch=epoch, address=address)
    log.commit_group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, 0, checkpoint.to_group_offset())


def later(delay_s: float, do: Callable[[], object]) -> None:
    """Calls `do` after a while, on another thread."""
    timer = threading.Timer(delay_s, do)
    timer.daemon = True
    timer.start()
