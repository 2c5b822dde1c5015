"""One gRPC stream between a client and a coordinator. Each attempt makes a new one."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import grpc

from ...journal.errors import (
    CoordinatorNotAvailableError,
    ForkedError,
    RequestTimedOutError,
)
from ..protocol import coordinator_pb2 as pb
from ..protocol import coordinator_pb2_grpc as pb_grpc

CHANNEL_OPTIONS: Final = (
    # Only these pings notice a coordinator that was stopped, not killed.
    ("grpc.keepalive_time_ms", 200),
    ("grpc.http2.ping_timeout_ms", 300),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # min_reconnect_backoff_ms also bounds how long a connection may take until the peer speaks
    # HTTP/2. gRPC's default is 20 s. A stopped peer never speaks it, though TCP connects.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
)
FRAME_MAX: Final = 256
"""Most requests in one stream message; a smaller number makes more messages of a burst."""
FRAME_MAX_BYTES: Final = 1024 * 1024
"""A message of this size takes no further request."""
REQUEST_MAX_BYTES: Final = 2 * 1024 * 1024
"""Largest request: more than twice a journal record. With the other requests of its message it must
stay below the 4 MiB that a coordinator takes; a larger message breaks the stream."""

T = TypeVar("T")


class _Grpc:
    """Whether gRPC can be used: a child whose parent started it would wait for its threads."""

    started = False
    lost = False

    def after_fork(self) -> None:
        """Notes, in a child, whether the parent had started it."""
        self.lost = self.lost or self.started


_GRPC: Final = _Grpc()
os.register_at_fork(after_in_child=_GRPC.after_fork)


def start_grpc() -> None:
    """Notes that this process uses gRPC from now on.

    Raises:
        ForkedError: its parent did before it forked this one.
    """
    if _GRPC.lost:
        raise ForkedError(
            "this process was forked from one that uses coordinators, so it can't reach them: make"
            ' clients after the fork alone, or start processes by "spawn" or "forkserver"'
        )
    _GRPC.started = True


def open_channel(address: str) -> Any:
    """Returns a channel to a coordinator. It connects when it is first used.

    Raises:
        ForkedError: as `start_grpc`.
    """
    start_grpc()
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


def stub_of(channel: Any) -> Any:
    """Returns the methods of the coordinator's service over a channel."""
    return pb_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]


class GrpcCalls:
    """Requests to one coordinator that need no session. Thread-safe; many may be under way."""

    def __init__(self, address: str) -> None:
        """Connects when it is first used.

        Raises:
            ForkedError: as `start_grpc`.
        """
        self._channel = open_channel(address)
        # Made here and kept: gRPC crashes the process if a stub is made while another thread closes
        # its channel. Calling a stub whose channel is closed only raises an error.
        self._stub = stub_of(self._channel)

    def call(self, request: pb.CallRequest, timeout_s: float) -> pb.Reply:
        """Sends a request, and returns its answer.

        Raises:
            RequestTimedOutError: the answer did not come in time.
            CoordinatorNotAvailableError: the connection is over, and another one is needed.
        """
        try:
            reply: pb.Reply = self._stub.Call(request, timeout=timeout_s)
        except (grpc.RpcError, ValueError) as error:
            code = getattr(error, "code", lambda: None)()
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise RequestTimedOutError("the coordinator did not answer in time") from error
            # ValueError: another thread also found the channel broken, and closed it.
            raise CoordinatorNotAvailableError(str(code)) from error
        return reply

    def close(self) -> None:
        """Ends the connection. Calls under way fail."""
        self._channel.close()


class Connection(Generic[T]):
    """A stream to one address that begins with the request `connect`.

    `send`, `flush` and `close` may be called from any thread. An item is encoded when it leaves, so
    that it says how things are at that time. An item that encodes to None is not sent.
    """

    def __init__(self, address: str, connect: pb.Request, encode: Callable[[T], pb.Request | None]):
        self.address: Final = address
        self.ended = "the coordinator ended the stream"
        """Why the stream ended; valid once `receive` has returned None."""
        self._connect = connect
        self._encode = encode
        self._outbox: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._channel = open_channel(address)
        self._stream = stub_of(self._channel).Session(self._frames())

    def send(self, item: T) -> None:
        """Queues a request behind the earlier ones. It is lost if the stream breaks."""
        self._outbox.put(item)

    def flush(self) -> None:
        """Does nothing: a thread of gRPC encodes and sends what is queued. A stream on frames needs
        it, so whoever has called `send` calls it, without a lock that `encode` needs."""

    def receive(self) -> pb.ServerFrame | None:
        """Blocks for the next message. Returns None when the stream has ended. One thread only."""
        try:
            frame: pb.ServerFrame = next(self._stream)
        except StopIteration:
            return None
        except grpc.RpcError as error:
            code, details = getattr(error, "code", None), getattr(error, "details", None)
            if code is not None and details is not None:
                self.ended = f"{code().name}: {details()}"
            return None
        return frame

    def close(self) -> None:
        """Breaks the stream, which ends `receive`."""
        self._outbox.put(None)
        self._stream.cancel()
        self._channel.close()

    def _frames(self) -> Iterator[pb.ClientFrame]:
        yield pb.ClientFrame(requests=[self._connect])
        while True:
            item = self._outbox.get()
            requests: list[pb.Request] = []
            size = 0
            while item is not None:
                request = self._encode(item)
                if request is not None:
                    requests.append(request)
                    size += request.ByteSize()
                if len(requests) >= FRAME_MAX or size >= FRAME_MAX_BYTES or self._outbox.empty():
                    break
                item = self._outbox.get()
            if requests:
                yield pb.ClientFrame(requests=requests)
            if item is None:
                return
