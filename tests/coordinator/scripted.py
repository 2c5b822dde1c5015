"""Coordinators that follow a test's script, behind real gRPC, and addresses without any."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol import coordinator_pb2_grpc as pb_grpc
from logtx.coordinator.protocol.checkpoint import Checkpoint
from logtx.coordinator.protocol.replies import encode_reply
from logtx.journal.logs.interface import Log
from logtx.journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC

Script = Callable[[pb.Request], list[pb.Reply] | None]
"""Returns the replies to a request; None cuts the stream."""


class ScriptedCoordinator(pb_grpc.CoordinatorServicer):
    """Answers every request by a script, which the test may change at any time."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.script: Script = lambda request: [encode_reply(request.request_id, commands.Done())]
        self.refusal: Any = None
        """Error that answers Connect and calls, if any."""
        self.received: list[list[int]] = []
        """Request ids of each stream in order, without Connect."""
        self.calls = 0
        self._server = grpc.server(
            futures.ThreadPoolExecutor(32), options=(("grpc.so_reuseport", 0),)
        )
        pb_grpc.add_CoordinatorServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Call(self, request: pb.CallRequest, context: Any) -> pb.Reply:  # noqa: N802
        """Answers a request without a session."""
        self.calls += 1
        if self.refusal is not None:
            return encode_reply(request.request.request_id, self.refusal)
        replies = self.script(request.request)
        if not replies:
            context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            raise AssertionError
        return replies[0]

    def Session(  # noqa: N802
        self,
        frames: Iterator[pb.ClientFrame],
        context: Any,  # noqa: ARG002
    ) -> Iterator[pb.ServerFrame]:
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

    def stop(self) -> None:
        """Stops as a killed process does."""
        self._server.stop(0).wait(5)


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
