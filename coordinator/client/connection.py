"""A session with a coordinator, and calls to one. Each attempt makes a new stream."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from dataclasses import replace
from typing import Final, Generic, TypeVar

from google.protobuf.message import DecodeError

from ...journal.errors import (
    FrameError,
    LogtxError,
    RequestTimedOutError,
    SessionClosedError,
)
from ..protocol import coordinator_pb2 as pb
from ..protocol.frames import CLIENT_DEADLINES, Deadlines, Ended
from ..protocol.open_pb2 import Open, OpenCalls, OpenSession
from ..transport.streams_in_thread import ClientStream
from ..transport.tls import Tls

_LOG = logging.getLogger(__name__)

FRAME_MAX: Final = 256
"""Most requests in one stream message; a smaller number makes more messages of a burst."""
FRAME_MAX_BYTES: Final = 1024 * 1024
"""A message of this size takes no further request."""
REQUEST_MAX_BYTES: Final = 2 * 1024 * 1024
"""Largest request: more than twice a journal record. With the other requests of its message it must
stay below `MESSAGE_MAX_BYTES`; a larger message breaks the stream."""
CALL_DEADLINES: Final = replace(CLIENT_DEADLINES, hello_ms=1_000)
"""Of who asks one coordinator after the other, and tries no two at one time: longer, and a stopped
one keeps it from the next for longer; shorter, and one that is held up is passed over."""

T = TypeVar("T")


class Connection(Generic[T]):
    """A stream to one address that begins with the request `connect`.

    `send`, `flush` and `close` may be called from any thread. An item is encoded when it leaves, so
    that it says how things are at that time. An item that encodes to None is not sent. One that
    can't be encoded ends the stream: whoever calls `flush` may be sending for another one.
    """

    def __init__(
        self,
        address: str,
        connect: pb.Request,
        encode: Callable[[T], pb.Request | None],
        *,
        deadlines: Deadlines = CLIENT_DEADLINES,
        tls: Tls | None = None,
    ) -> None:
        """Begins to connect; does not wait for that.

        Raises:
            ConfigError: that is no address.
        """
        self.address: Final = address
        self.ended = "the coordinator ended the stream"
        """Why the stream ended; valid once `receive` has returned None, or `hand_to` told of it."""
        self.failure: LogtxError | None = None
        """The error that ended it; None: it did not end, or by what is no message."""
        self._encode = encode
        self._begin = deque(
            message.SerializeToString()
            for message in (Open(session=OpenSession()), pb.ClientFrame(requests=[connect]))
        )
        self._outbox: deque[T] = deque()
        self._connection = ClientStream(address, self._next, deadlines=deadlines, tls=tls)

    def send(self, item: T) -> None:
        """Queues a request behind the earlier ones; `flush` sends it. It is lost if the stream
        breaks."""
        self._outbox.append(item)

    def flush(self) -> None:
        """Sends what is queued, without waiting for the coordinator. Call it without a lock that
        `encode` needs."""
        self._connection.flush()

    def flush_soon(self) -> None:
        """Has the connection's thread send what is queued, many requests in one message."""
        self._connection.flush_soon()

    def receive(self) -> pb.ServerFrame | None:
        """Blocks for the next message. Returns None when the stream has ended. One thread only, and
        not after `hand_to`."""
        try:
            return self._read(self._connection.receive())
        except LogtxError as error:
            return self._read(Ended(error))

    def hand_to(self, take: Callable[[pb.ServerFrame | None], None]) -> None:
        """Has `take` called with each message that was not received, and with None at the end.

        See `ClientStream.hand_to`.
        """
        self._connection.hand_to(lambda event: take(self._read(event)))

    def _read(self, event: bytes | Ended) -> pb.ServerFrame | None:
        if isinstance(event, Ended):
            self.ended, self.failure = str(event.error), event.error
            return None
        try:
            return pb.ServerFrame.FromString(event)
        except DecodeError as error:
            self.ended = f"the coordinator sent what is no ServerFrame: {error}"
            self._connection.close(FrameError(self.ended))
            return None

    def close(self) -> None:
        """Ends the stream, which ends `receive`. Takes no lock."""
        self._connection.close()

    def _next(self) -> bytes | None:
        if self._begin:
            return self._begin.popleft()
        try:
            return self._frame()
        except Exception as error:  # noqa: BLE001 - it ends this stream, and the log has it
            _LOG.exception("not_encoded address=%s", self.address)
            self._connection.close(SessionClosedError(f"a request can't be encoded: {error!r}"))
            return None

    def _frame(self) -> bytes | None:
        requests: list[pb.Request] = []
        size = 0
        while self._outbox and len(requests) < FRAME_MAX and size < FRAME_MAX_BYTES:
            request = self._encode(self._outbox.popleft())
            if request is not None:
                requests.append(request)
                size += request.ByteSize()
        return pb.ClientFrame(requests=requests).SerializeToString() if requests else None


class Calls:
    """Requests to one coordinator that need no session. Thread-safe; many may be under way."""

    def __init__(
        self, address: str, *, deadlines: Deadlines = CALL_DEADLINES, tls: Tls | None = None
    ) -> None:
        """Begins to connect; does not wait for that.

        Raises:
            ConfigError: that is no address.
        """
        self.address: Final = address
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[pb.Reply]] = {}
        self._next_id = 1
        self._failure: LogtxError | None = None
        self._begin = deque([Open(calls=OpenCalls()).SerializeToString()])
        self._outbox: deque[tuple[int, bytes, float]] = deque()
        """Numbers of requests, these, and until when somebody waits for each, by the monotonic
        clock in seconds. As bytes: a caller may ask the same again, of several threads or later."""
        self._connection = ClientStream(address, self._next, deadlines=deadlines, tls=tls)
        try:
            self._connection.hand_to(self._take)
        except BaseException:
            self._connection.close()  # Nobody else would.
            raise

    def call(self, request: pb.CallRequest, timeout_s: float) -> pb.Reply:
        """Sends a request, and returns its answer. Sets its request id.

        The coordinator stops a call whose time is over: what it has decided then takes effect, and
        the rest does not.

        Raises:
            RequestTimedOutError: the answer did not come in time.
            LogtxError: the connection is over; whether the request arrived is not known.
        """
        future: Future[pb.Reply] = Future()
        with self._lock:
            if self._failure is not None:
                raise copy(self._failure)
            request_id, self._next_id = self._next_id, self._next_id + 1
            self._waiting[request_id] = future
            request.request.request_id = request_id
            until_s = time.monotonic() + timeout_s
            self._outbox.append((request_id, request.SerializeToString(), until_s))
        try:
            self._connection.flush()
            return future.result(timeout_s)
        except TimeoutError:
            raise RequestTimedOutError(
                f"{self.address} did not answer in {timeout_s:g} s"
            ) from None
        finally:
            with self._lock:
                self._waiting.pop(request_id, None)

    def close(self) -> None:
        """Ends the connection. Calls under way fail."""
        self._connection.close()

    @property
    def is_over(self) -> bool:
        """Returns whether another connection is needed."""
        return self._connection.is_over

    def _next(self) -> bytes | None:
        if self._begin:
            return self._begin.popleft()
        while self._outbox:
            request_id, request, until_s = self._outbox.popleft()
            left_ms = int((until_s - time.monotonic()) * 1_000)
            # Nobody waits for the others any more, and they would take the time of the next ones.
            if left_ms > 0 and request_id in self._waiting:
                # Fields that follow are merged into the message.
                return request + pb.CallRequest(timeout_ms=left_ms).SerializeToString()
        return None

    def _take(self, event: bytes | Ended) -> None:
        """Hands an answer to who waits for it, or the end to all."""
        if isinstance(event, Ended):
            self._fail(event.error)
            return
        try:
            reply = pb.Reply.FromString(event)
        except DecodeError as error:
            self._connection.close(FrameError(f"{self.address} sent what is no Reply: {error}"))
            return
        with self._lock:
            future = self._waiting.pop(reply.request_id, None)
        if future is not None:  # else it gave up
            future.set_result(reply)

    def _fail(self, failure: LogtxError) -> None:
        with self._lock:
            self._failure = self._failure or failure
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(copy(failure))
