"""Finds the owner of a journal partition and connects to it: runs a `Pursuit`.

Looking up the hint and connecting are blocking calls, each in a thread of its own. `find` waits for
the first coordinator that takes the session, and drops the other attempts.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ...journal.errors import (
    CoordinatorNotAvailableError,
    LogtxError,
    NotCoordinatorError,
    TlsError,
)
from ..protocol import coordinator_pb2 as pb
from ..protocol.checkpoint import Checkpoint
from ..protocol.commands import Attached, Connected
from ..protocol.replies import decode_reply
from .pursuit import Pursuit, may_be_elsewhere


class Stream(Protocol):
    """The part of a `Connection` that tells whether the owner is at its other end."""

    @property
    def address(self) -> str: ...
    @property
    def ended(self) -> str: ...
    @property
    def failure(self) -> LogtxError | None: ...
    def receive(self) -> pb.ServerFrame | None: ...
    def close(self) -> None: ...


S = TypeVar("S", bound=Stream)
W = TypeVar("W", Connected, Attached)
"""What an owner answers to the first request of a stream."""


@dataclass(frozen=True, slots=True)
class Found(Generic[S, W]):
    """A stream that the owner has taken."""

    stream: S
    connected: W
    rest: Sequence[pb.Reply]
    """Replies that came in the same message as `connected`."""
    decided: Sequence[pb.Decided] = ()
    """Decisions that came in it."""


class Finder(Generic[S, W]):
    """Finds the owner for one client. One thread calls `find` and `lost` in turn."""

    def __init__(
        self, look_up: Callable[[], Checkpoint], connect: Callable[[str], S], welcome: type[W]
    ) -> None:
        """Does nothing before `find`.

        Args:
            look_up: reads the hint in Kafka. Blocks for a bounded time; raises
                CoordinatorNotAvailableError.
            connect: opens a stream to an address and sends the first request. Does not block.
            welcome: type of the answer by which an owner takes the stream.
        """
        self._look_up = look_up
        self._connect = connect
        self._welcome: type[W] = welcome
        self._events: queue.SimpleQueue[Callable[[float], Found[S, W] | None] | None]
        self._events = queue.SimpleQueue()
        self._pursuit: Pursuit | None = None
        self._attempts: dict[str, S] = {}
        self._met: W | None = None
        self._closed = False
        self.why = "nobody was asked yet"
        """The latest reason why the owner is not found."""

    def find(self) -> Found[S, W] | None:
        """Returns the owner, however long that takes; None once `close` was called.

        Raises:
            TlsError: a coordinator can't be spoken to, and none ever was: the settings are wrong.
            LogtxError: a coordinator refused the session for good.
        """
        if self._pursuit is None:
            self._pursuit = Pursuit(time.monotonic(), random.random)
        found = None
        try:
            while found is None and not self._closed:
                self._start_what_is_due(self._pursuit)
                found = self._await_event(self._pursuit)
        finally:
            for stream in self._attempts.values():
                if found is None or stream is not found.stream:
                    stream.close()
                    # Else the search, if it goes on, would later give up an attempt that is gone.
                    self._pursuit.failed(stream.address, time.monotonic())
            self._attempts.clear()
        if found is not None:
            self._met = found.connected
        return found

    def lost(self, found: Found[S, W], hint: str, *, served: bool) -> None:
        """Prepares the next search after a stream ended.

        Args:
            found: what `find` returned.
            hint: address that the coordinator sent us to; "" if it named none.
            served: whether the stream was of use. If not, the old search continues: a coordinator
                that takes sessions but serves none must not be asked without a pause.
        """
        now_s, address = time.monotonic(), found.stream.address
        if self._pursuit is None or served:
            self._pursuit = Pursuit(now_s, random.random)
            self._pursuit.named(hint or address, now_s)
        else:
            self._pursuit.named(hint, now_s)
            self._pursuit.failed(address, now_s)

    def close(self) -> None:
        """Ends `find`, now or when it is called next. May be called from any thread."""
        self._closed = True
        self._events.put(None)

    def _await_event(self, pursuit: Pursuit) -> Found[S, W] | None:
        try:
            event = self._events.get(timeout=pursuit.wait_s(time.monotonic()))
        except queue.Empty:
            return None
        return event(time.monotonic()) if event is not None else None

    def _start_what_is_due(self, pursuit: Pursuit) -> None:
        now_s = time.monotonic()
        for address in pursuit.overdue(now_s):
            self._attempts[address].close()
        if pursuit.looking(now_s):
            threading.Thread(
                target=self._run_look_up, args=(pursuit,), name="coordinator-hint", daemon=True
            ).start()
        for address in pursuit.attempts(now_s):
            stream = self._attempts[address] = self._connect(address)
            threading.Thread(
                target=self._run_attempt,
                args=(pursuit, stream),
                name="coordinator-connect",
                daemon=True,
            ).start()

    # ---- the blocking calls in their threads, and their results in the finder's -----------------

    def _run_look_up(self, pursuit: Pursuit) -> None:
        hint: Checkpoint | None = None
        try:
            hint = self._look_up()
        except CoordinatorNotAvailableError as error:
            self.why = str(error)
        self._events.put(lambda now_s: self._looked_up(pursuit, hint, now_s))

    def _looked_up(self, pursuit: Pursuit, hint: Checkpoint | None, now_s: float) -> None:
        pursuit.looked_up(None if hint is None else (hint.address, hint.epoch), now_s)

    def _run_attempt(self, pursuit: Pursuit, stream: S) -> None:
        frame = stream.receive()
        self._events.put(lambda now_s: self._attempted(pursuit, stream, frame, now_s))

    def _attempted(
        self, pursuit: Pursuit, stream: S, frame: pb.ServerFrame | None, now_s: float
    ) -> Found[S, W] | None:
        if self._attempts.get(stream.address) is not stream:
            return None  # The stream is of an earlier search, and closed.
        if frame is None or not frame.replies:
            self.why = f"{stream.address}: {stream.ended}"
            if isinstance(stream.failure, TlsError) and self._met is None:
                raise TlsError(self.why)
        else:
            reply = decode_reply(frame.replies[0])
            if isinstance(reply, self._welcome) and not self._outdated(reply):
                return Found(stream, reply, frame.replies[1:], frame.decided)
            self._refused(pursuit, stream.address, reply, now_s)
        del self._attempts[stream.address]
        stream.close()
        pursuit.failed(stream.address, now_s)
        return None

    def _refused(self, pursuit: Pursuit, address: str, reply: object, now_s: float) -> None:
        self.why = f"{address}: {reply}"
        if isinstance(reply, NotCoordinatorError):
            pursuit.named(reply.hint, now_s)
        elif isinstance(reply, LogtxError) and not may_be_elsewhere(reply):
            raise reply

    def _outdated(self, connected: W) -> bool:
        """Returns whether this is a former owner that slept while another took over and served us.

        Its first append would tell it so, and it would send us away; this check is only quicker.
        An answer to Attach needs none: it is told behind the proof that its owner was not replaced.
        """
        met = self._met
        return (
            isinstance(met, Connected)
            and isinstance(connected, Connected)
            and met.incarnation == connected.incarnation
            and met.epoch > connected.epoch
        )
