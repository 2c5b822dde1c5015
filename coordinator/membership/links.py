"""The stream of news to one other coordinator, and gRPC's way to have one.

`framed_link` has it over frames. Both say the same.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import grpc

from ...journal.errors import CoordinatorNotAvailableError
from . import peers_pb2 as pb
from . import peers_pb2_grpc as pb_grpc

PING_S: Final = 0.2
"""Silence after which a stream is pinged. Pings are answered beside the other's event loop, by its
gRPC library or by `transport.alive`, so a busy process is not taken for a dead one."""
PONG_S: Final = 0.3
"""How long the answer to a ping may take. With a longer time a stopped process is noticed later."""


class Link(Protocol):
    """One attempt to speak to a coordinator. It connects by itself, when it is first used.

    Each call raises CoordinatorNotAvailableError once the link is broken.
    """

    async def read(self) -> pb.News | None:
        """Returns the next news; None at the end. One task only."""

    async def write(self, news: pb.News) -> None:
        """Tells news."""

    async def take_over(self, request: pb.TakeOverRequest, timeout_s: float) -> pb.TakeOverReply:
        """Asks the other to take over a partition, while `read` is waited for by another task."""

    async def close(self) -> None:
        """Ends it, and calls under way."""


class GrpcLink:
    """A `Link` over gRPC."""

    def __init__(self, address: str, more_s: float = 0.0) -> None:
        """Does not connect yet; `more_s`: how much longer than usual a ping may take."""
        options = (
            ("grpc.keepalive_time_ms", round(PING_S * 1000)),
            ("grpc.http2.ping_timeout_ms", round((PONG_S + more_s) * 1000)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.use_local_subchannel_pool", 1),
        )
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._stub: Any = pb_grpc.PeersStub(self._channel)  # type: ignore[no-untyped-call]
        self._stream: Any = self._stub.Watch()

    async def read(self) -> pb.News | None:
        """Returns the next news; None at the end."""
        try:
            news = await self._stream.read()
        except (grpc.RpcError, asyncio.CancelledError) as error:
            raise _told(error) from error
        return None if news is grpc.aio.EOF else news

    async def write(self, news: pb.News) -> None:
        """Tells news."""
        try:
            await self._stream.write(news)
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise _told(error) from error

    async def take_over(self, request: pb.TakeOverRequest, timeout_s: float) -> pb.TakeOverReply:
        """Asks the other to take over a partition."""
        try:
            reply: pb.TakeOverReply = await self._stub.TakeOver(request, timeout=timeout_s)
        except (grpc.RpcError, asyncio.CancelledError) as error:
            # grpc cancels a call whose channel is closed, as it is when the receiver has died.
            raise _told(error) from error
        return reply

    async def close(self) -> None:
        """Ends it, and calls under way."""
        self._stream.cancel()
        await self._channel.close()


def _told(error: BaseException) -> CoordinatorNotAvailableError:
    """Returns an error of grpc as one of logtx; raises it again if this task is cancelled.

    grpc raises a CancelledError too when it ends a call by itself; the caller goes on after that.
    """
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
    # The full text of grpc's errors takes several lines.
    details = getattr(error, "details", None)
    return CoordinatorNotAvailableError(str(details()) if details is not None else repr(error))
