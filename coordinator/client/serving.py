"""What a client takes from one stream, from when it was found to its end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from ...journal.errors import LogtxError, NotCoordinatorError
from ..protocol import coordinator_pb2 as pb
from ..protocol.commands import Reply
from ..protocol.replies import decode_reply
from .connection import Connection

SERVED_S: Final = 1.0
"""A stream that lived longer than this was of use, whether or not anything was asked on it."""
JOIN_S: Final = 2.0
"""Longest wait of `await_end`. A longer one lets a callback that blocks hold up `close` for longer,
a shorter one lets `close` return while a slow one runs."""


class Serving:
    """Takes the answers of a stream, on threads of `transport.answers`, until it is over."""

    def __init__(
        self,
        stream: Connection[Any],
        *,
        elsewhere: tuple[type[LogtxError], ...],
        take: Callable[[int, Reply], bool],
        tell: Callable[[Iterable[pb.Decided]], None],
    ) -> None:
        """Takes nothing before `run`.

        Args:
            stream: the one that was found.
            elsewhere: errors that end it: what is asked is asked on the next one.
            take: takes the reply to the request of an id, and returns whether it answers one. What
                it raises ends the stream, too.
            tell: takes decisions that were not asked for.
        """
        self._stream = stream
        self._elsewhere, self._take, self._tell = elsewhere, take, tell
        self._began_s = time.monotonic()
        self._has_answered = False
        self._is_over = False
        self._failure: Exception | None = None
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._taking = threading.Lock()
        self._taker: threading.Thread | None = None
        """The thread that takes answers now."""
        self.hint = ""
        """Address that the coordinator has named; "": none."""

    @property
    def served(self) -> bool:
        """Whether the stream was of use."""
        return self._has_answered or time.monotonic() - self._began_s > SERVED_S

    def run(self, replies: Iterable[pb.Reply], decided: Iterable[pb.Decided]) -> None:
        """Takes what came already, and then what comes, until the stream is over, or `end`.

        Returns when no answer is being taken any more.

        Raises:
            Exception: what `take` has raised.
        """
        self._take_all(replies, decided)
        self._stream.hand_to(self._take_frame)
        self._ended.get()
        with self._taking:
            pass
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Takes nothing more, and ends `run`. From any thread."""
        self._is_over = True
        self._ended.put(None)

    def is_current(self) -> bool:
        """Returns whether the caller takes an answer."""
        return self._taker is threading.current_thread()

    def _take_frame(self, frame: pb.ServerFrame | None) -> None:
        if frame is None:
            self.end()
        else:
            self._take_all(frame.replies, frame.decided)

    def _take_all(self, replies: Iterable[pb.Reply], decided: Iterable[pb.Decided]) -> None:
        with self._taking:
            self._taker = threading.current_thread()
            try:
                for wire in replies:
                    if self._is_over:
                        return
                    self._take_one(wire.request_id, decode_reply(wire))
                # Behind the replies: the BEGIN of such a transaction was answered before.
                if decided and not self._is_over:
                    self._tell(decided)
            except Exception as error:  # noqa: BLE001 - who waits in `run` gets it
                self._failure = error
                self.end()
            finally:
                self._taker = None

    def _take_one(self, request_id: int, reply: Reply) -> None:
        if isinstance(reply, self._elsewhere):
            # The request is kept, for the next stream.
            self.hint = reply.hint if isinstance(reply, NotCoordinatorError) else ""
            self.end()
        elif self._take(request_id, reply):
            self._has_answered = True


def await_end(thread: threading.Thread | None, serving: Serving | None) -> None:
    """Waits until a client's own thread, which calls `run`, has ended; for a bounded time.

    It waits for whoever takes an answer. If that is who calls this, nobody waits.
    """
    is_taking = serving is not None and serving.is_current()
    if thread not in (None, threading.current_thread()) and not is_taking:
        thread.join(JOIN_S)
