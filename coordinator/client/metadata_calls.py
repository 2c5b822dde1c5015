"""Questions to the metadata store of one coordinator."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from ...journal.errors import (
    CoordinatorNotAvailableError,
    ForkedError,
    FrameError,
    LogtxError,
    MetadataNotServedError,
    NotSupportedError,
    RequestTimedOutError,
    SessionClosedError,
    TlsError,
)
from ..protocol import metadata_pb2 as pb
from ..protocol.frames import Deadlines
from ..protocol.open_pb2 import Open, OpenMetadata
from ..transport.in_thread import ThreadConnection
from ..transport.tls import Tls
from .connection import CALL_DEADLINES

OLDER: Final = "this coordinator is of an older version, without a metadata store"
IDLE_MAX: Final = 4
"""Connections that are kept for later questions. More threads that ask at one time make new
ones."""


class MetadataCalls:
    """The store of one coordinator. Thread-safe. Calls raise what `Pages` does.

    A connection has one question under way. So an answer that nobody takes holds up no other one,
    and to give one up is to end its connection.
    """

    def __init__(
        self, address: str, *, deadlines: Deadlines = CALL_DEADLINES, tls: Tls | None = None
    ) -> None:
        """Connects when it is first used."""
        self._address, self._deadlines, self._tls = address, deadlines, tls
        self._lock = threading.Lock()
        self._idle: list[_Line] = []
        self._busy: set[_Line] = set()
        self._closed = False

    def query(self, question: pb.MetadataQuery, timeout_s: float) -> Pages:
        """Asks what is there. Each page may take that long."""
        return Pages(self._ask(pb.MetadataRequest(query=question), timeout_s))

    def watch(self, question: pb.MetadataQuery) -> Pages:
        """Begins to ask what is there and what changes, from now on."""
        return Pages(self._ask(pb.MetadataRequest(watch=question), None))

    def horizon(self, request: pb.HorizonRequest, timeout_s: float) -> pb.HorizonReply:
        """Asks up to where a data partition is settled."""
        return self._ask(pb.MetadataRequest(horizon=request), timeout_s).single().horizon

    def status(self, timeout_s: float) -> pb.StatusReply:
        """Asks how far the store has the journal."""
        request = pb.MetadataRequest(status=pb.StatusRequest())
        return self._ask(request, timeout_s).single().status

    def close(self) -> None:
        """Ends all answers, and the connections."""
        with self._lock:
            self._closed = True
            lines, self._idle = [*self._idle, *self._busy], []
        for line in lines:
            line.connection.close()

    def _ask(self, request: pb.MetadataRequest, timeout_s: float | None) -> _Answers:
        line = self._line()
        line.outbox.append(request.SerializeToString())
        line.connection.flush()
        return _Answers(line, timeout_s, self._give_back)

    def _line(self) -> _Line:
        with self._lock:
            if self._closed:
                raise SessionClosedError("the client was closed")
            while self._idle:
                line = self._idle.pop()
                if not line.connection.is_over:
                    self._busy.add(line)
                    return line
            line = _Line(self._address, self._deadlines, self._tls)
            self._busy.add(line)
            return line

    def _give_back(self, line: _Line, *, is_free: bool) -> None:
        with self._lock:
            self._busy.discard(line)
            if is_free and not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(line)
                return
        line.connection.close()


class _Line:
    """One connection, which says what it is for before it asks."""

    def __init__(self, address: str, deadlines: Deadlines, tls: Tls | None) -> None:
        self.outbox = deque([Open(metadata=OpenMetadata()).SerializeToString()])
        self.connection = ThreadConnection(address, self._next, deadlines=deadlines, tls=tls)

    def _next(self) -> bytes | None:
        return self.outbox.popleft() if self.outbox else None


class _Answers:
    """The answers to one question."""

    def __init__(
        self, line: _Line, timeout_s: float | None, give_back: Callable[..., None]
    ) -> None:
        self._line, self._timeout_s, self._give_back = line, timeout_s, give_back
        self._is_over = False

    def single(self) -> pb.MetadataAnswer:
        """Returns the only one."""
        try:
            answer = self.next()
            if answer is None:
                raise CoordinatorNotAvailableError("the coordinator's answer says nothing")
            return answer
        finally:
            self.close()

    def next(self) -> pb.MetadataAnswer | None:
        """Returns the next one; None at the end."""
        if self._is_over:
            return None
        try:
            answer = pb.MetadataAnswer.FromString(self._line.connection.receive(self._timeout_s))
        except BaseException as error:
            self.close()
            if isinstance(error, DecodeError):
                error = FrameError(f"the coordinator sent what is no MetadataAnswer: {error}")
            if isinstance(error, NotSupportedError):
                raise MetadataNotServedError(OLDER) from error
            if not isinstance(error, LogtxError) or isinstance(
                error, RequestTimedOutError | ForkedError | TlsError
            ):
                raise
            raise CoordinatorNotAvailableError(
                f"the coordinator can't be reached: {error}"
            ) from error
        if answer.last:
            self._end(is_free=True)
        return answer if answer.WhichOneof("what") is not None else None

    def close(self) -> None:
        """Gives the rest up."""
        self._end(is_free=False)

    def _end(self, *, is_free: bool) -> None:
        if not self._is_over:
            self._is_over = True
            self._give_back(self._line, is_free=is_free)


class Pages:
    """The pages of an answer, as they come.

    Raises, while it is read:
        CoordinatorNotAvailableError: the coordinator is gone.
        RequestTimedOutError: the next page did not come in time.
        MetadataNotServedError: the coordinator does not know the question.
        TlsError: the settings of TLS are not those that the coordinator needs.
    """

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers

    def __iter__(self) -> Pages:
        """Returns itself."""
        return self

    def __next__(self) -> pb.MetadataPage:
        """Returns the next page."""
        answer = self._answers.next()
        if answer is None:
            self.close()
            raise StopIteration
        return answer.page

    def close(self) -> None:
        """Ends the answer, if it has not ended."""
        self._answers.close()
