"""One gRPC stream between a client and a coordinator: made anew for every attempt."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import grpc

from ..protocol import coordinator_pb2 as pb
from ..protocol import coordinator_pb2_grpc as pb_grpc

CHANNEL_OPTIONS: Final = (
    # A coordinator that was stopped, not killed, is noticed by these pings alone.
    ("grpc.keepalive_time_ms", 200),
    ("grpc.http2.ping_timeout_ms", 300),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # The last is also how long a connection may take until the peer speaks HTTP/2, which one that
    # is stopped never does though TCP connects; gRPC's default is 20 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
)
FRAME_MAX: Final = 256
"""Requests in one stream message."""
FRAME_MAX_BYTES: Final = 1024 * 1024
"""A message that has as much takes no further request."""
REQUEST_MAX_BYTES: Final = 2 * 1024 * 1024
"""More than twice a journal record; with what else is in its message it stays below the 4 MiB
that a coordinator takes, which breaks the stream over a larger one."""

T = TypeVar("T")


def open_channel(address: str) -> Any:
    """A channel to a coordinator; connects when first used."""
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


def stub_of(channel: Any) -> Any:
    """The service's methods over a channel."""
    return pb_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]


class Connection(Generic[T]):
    """A stream to one address, begun with `connect`. `send` and `close` are safe from any thread.

    What is sent is encoded as it leaves, so that it says how things are then; what encodes to None
    is not sent.
    """

    def __init__(self, address: str, connect: pb.Request, encode: Callable[[T], pb.Request | None]):
        self.address: Final = address
        self.ended = "the coordinator ended the stream"
        """Why, once `receive` has said that it did."""
        self._connect = connect
        self._encode = encode
        self._outbox: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._channel = open_channel(address)
        self._stream = stub_of(self._channel).Session(self._frames())

    def send(self, item: T) -> None:
        """Send a request after those before it; lost if the stream breaks."""
        self._outbox.put(item)

    def receive(self) -> pb.ServerFrame | None:
        """What the coordinator says next; None when the stream has ended. Blocks; one thread."""
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
        """Break the stream, and whatever waits for it."""
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
