"""Streams that share connections to coordinators. Clients run these.

A `ClientStream` is used as a `ThreadConnection` of its own would be. Those of a process to one
address, with the same deadlines and the same settings of TLS, lie on one connection.

- *Writing.* Whoever flushes one stream sends what all of them have, in one message: many producers
  that commit at one time cost the coordinator one read, and this process one call of the system.
- *Reading.* The connection's thread lays what came into the streams, and does nothing else with it.
  Threads of `answers` hand it out from there. So who takes nothing of a stream holds up no other.
- *Ends.* The connection ends when its last stream has. If it ends before, all streams do, for the
  reason that it had.
- *Locks.* None is held that the main thread could keep when Ctrl-C comes in the middle of a call:
  what several threads change are single calls of deques and dictionaries. A flush that does not
  come to its end breaks the connection, as everywhere; the others make a new one.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Hashable
from copy import copy
from typing import Final

from ...journal.errors import FrameError, LogtxError, RequestTimedOutError, SessionClosedError
from ...journal.fork import keep_from_children, refuse
from ..protocol.frames import CLIENT_DEADLINES, Deadlines, Ended, Message
from ..protocol.multiplex import (
    PARTS_MAX,
    PARTS_MAX_BYTES,
    STREAMS_MAX,
    ClientStreams,
    StreamEnded,
    StreamMessage,
    StreamRoom,
    check_size,
    end_part,
    message_part,
    read_for_client,
    take_parts,
)
from ..protocol.open_pb2 import Open, OpenStreams, Part, Parts
from .answers import ANSWERS
from .in_thread import Source, ThreadConnection, do_nothing
from .tls import Tls

_LOG = logging.getLogger(__name__)

TOGETHER_FROM: Final = 8
"""Streams that wait for an answer from which on the connection's thread sends for all. From fewer
on, one transaction after another takes longer; from more, threads that commit at one time each cost
the coordinator a read."""
_TURN: Final = 64
"""Most messages of one stream that are handed out before those of others."""

Take = Callable[[bytes | Ended], None]
"""Takes a message, or the end of a stream."""


class ClientStream:
    """One stream to a coordinator. Thread-safe, but only one thread may call `receive`.

    What comes is fetched by `receive`, or handed out once `hand_to` says whom to.
    """

    def __init__(
        self,
        address: str,
        source: Source,
        *,
        deadlines: Deadlines = CLIENT_DEADLINES,
        tls: Tls | None = None,
    ) -> None:
        """Begins, on a connection that there is or that is made now. Does not wait for that.

        Args:
            address: host:port of the coordinator.
            source: returns the next message to send, or None: see `ThreadConnection`. It may be
                called by a thread that flushes another stream.
            deadlines: how long the connection waits for the coordinator.
            tls: what it is protected with; None: nothing.

        Raises:
            ConfigError: that is no address.
        """
        self.address: Final = address
        self._source = source
        self._inbox: deque[bytes | Ended] = deque()
        self._arrivals: queue.SimpleQueue[None] = queue.SimpleQueue()
        """An item for each message that is there for `receive`."""
        self._take: Take | None = None
        self._handing = threading.Lock()
        """Held by the thread that hands out. It is never waited for."""
        self._number = 0
        """0: nothing of it was sent yet."""
        self._is_ready = False
        """Whether the connection is to ask its source."""
        self._is_over = False
        keep_from_children(self)
        try:
            self._connection = CONNECTIONS.join(self, deadlines, tls)
            self.flush_soon()  # The source has something from the beginning, or says so itself.
        except BaseException:
            CONNECTIONS.drop(self)
            raise

    # ---- what any thread calls ------------------------------------------------------------------

    def flush(self) -> None:
        """Sends what the source has, as far as there is room; the rest goes when there is.

        See `ThreadConnection.flush`.
        """
        self._connection.flush(self)

    def flush_soon(self) -> None:
        """Has the connection's thread send what the source has.

        See `ThreadConnection.flush_soon`.
        """
        self._connection.flush_soon(self)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Returns the next message. Not to be called after `hand_to`.

        Args:
            timeout_s: how long to wait, in seconds; None: as long as the coordinator lives.

        Raises:
            RequestTimedOutError: none came in time.
            LogtxError: the stream is over, and all that came was returned.
        """
        assert self._take is None, "it is handed out"
        try:
            self._arrivals.get(timeout=timeout_s)
        except queue.Empty:
            raise RequestTimedOutError(f"{self.address} did not answer in time") from None
        event = self._inbox.popleft()
        if isinstance(event, bytes):
            return event
        self._came(event)  # for who asks again
        raise copy(event.error)  # The traceback of one that is kept would make a circle.

    def hand_to(self, take: Take) -> None:
        """Has `take` called with each message that was not received, and with the end.

        Here with what is there already, then on threads of `answers`; one after the other. The end
        may come twice. If `take` raises, the stream ends.
        """
        self._take = take
        # Behind that: whoever did not see it had put its message there before. Who finds it held
        # leaves that to the holder.
        while self._inbox and self._handing.acquire(blocking=False):
            self._hand_out_some()

    def close(self, error: LogtxError | None = None) -> None:
        """Ends the stream, and tells the coordinator why. Does not wait, and takes no lock.

        What the source still has is not sent. `receive` ends soon, with the error.
        """
        error = error or SessionClosedError("the client has closed the connection")
        try:
            self._end(error)
            self._connection.leave(self, error)
        except BaseException:
            self._connection.give_up()  # Whoever waits for this stream would wait for ever.
            raise

    @property
    def is_over(self) -> bool:
        """Returns whether nothing can be sent any more."""
        return self._is_over

    def after_fork(self) -> None:
        """Leaves the parent's stream alone, in a child."""
        refuse(self)
        vars(self)["close"] = do_nothing

    def hand_out(self) -> None:
        """Hands out what came; see `Receiver`."""
        # Who finds it held has put something there. The holder looks for that once it has given it
        # back: so nothing is left behind between the two.
        if self._inbox and self._handing.acquire(blocking=False):
            self._hand_out_some()
            if self._inbox:
                ANSWERS.came(self)  # The others' turn.

    def _hand_out_some(self) -> None:
        """Hands out some, and gives back `_handing`."""
        assert self._take is not None, "it is handed out"
        try:
            for _ in range(_TURN):
                if not self._inbox:
                    return
                self._hand_out_one(self._take, self._inbox.popleft())
        finally:
            self._handing.release()

    def _hand_out_one(self, take: Take, event: bytes | Ended) -> None:
        try:
            take(event)
        except BaseException as error:  # noqa: BLE001 - the others' answers wait for this one
            _LOG.exception("answer_not_taken address=%s", self.address)
            if isinstance(event, bytes):
                self.close(SessionClosedError(f"an answer could not be taken: {error!r}"))

    # ---- what the connection calls --------------------------------------------------------------

    def _came(self, event: bytes | Ended) -> None:
        self._inbox.append(event)  # First: see `hand_to`.
        if self._take is None:
            self._arrivals.put(None)
        else:
            ANSWERS.came(self)

    def _end(self, error: LogtxError) -> None:
        self._is_over = True
        self._came(Ended(error))


class SharedConnection:
    """A connection with the streams that lie on it."""

    def __init__(self, address: str, deadlines: Deadlines, tls: Tls | None) -> None:
        """Begins to connect. Does not wait for that.

        Raises:
            ConfigError: that is no address.
        """
        self._machine = ClientStreams()
        self._streams: dict[ClientStream, None] = {}
        self._numbered: dict[int, ClientStream] = {}
        self._waiting: dict[int, None] = {}
        """Numbers of streams that have sent something, and got nothing since."""
        self._ready: deque[ClientStream] = deque()
        self._parts: deque[Part] = deque()
        """What is to be sent next."""
        self._begin = deque([Open(streams=OpenStreams()).SerializeToString()])
        self._was_used = False
        self.retired = False
        """Whether no further stream may begin on it."""
        self.error: LogtxError = SessionClosedError("the connection is over")
        """Why it is over, once it is."""
        self._connection = ThreadConnection(
            address,
            self._next,
            deadlines=deadlines,
            tls=tls,
            deliver=self._deliver,
            look=ANSWERS.look_after,
        )

    def join(self, stream: ClientStream) -> bool:
        """Lets a stream begin on it. Returns False if it can't."""
        if len(self._streams) >= STREAMS_MAX:
            return False
        self._streams[stream] = None
        self._was_used = True
        # Behind that: whoever retires it looks again whether somebody came.
        if self.retired or self._connection.is_over:
            self._streams.pop(stream, None)
            self._connection.flush_soon()  # It may have waited for this one.
            return False
        return True

    def leave(self, stream: ClientStream, error: LogtxError) -> None:
        """Ends a stream, which has said that it is over."""
        self._tell_end(stream, error)
        self._streams.pop(stream, None)
        if not self._connection.is_greeted:
            # An attempt was given up. The next one may find what this connection does not.
            self.retired = True
        if self._streams:
            self._connection.flush_soon()
        else:
            self._retire()  # At once: it may be one that waits for a hello.

    def flush(self, stream: ClientStream) -> None:
        """Sends what a stream has, and the others."""
        self._mark(stream)
        if len(self._streams) < 2:
            self._connection.flush()
        elif len(self._waiting) > TOGETHER_FROM or not self._connection.flush_once():
            self._connection.flush_soon()
        elif self._ready or self._parts:
            # Others write as fast as it sends: it would never come to an end.
            self._connection.flush_soon()

    def flush_soon(self, stream: ClientStream) -> None:
        """Has the connection's thread do that."""
        self._mark(stream)
        self._connection.flush_soon()

    def _mark(self, stream: ClientStream) -> None:
        try:
            if not stream._is_ready:
                stream._is_ready = True
                self._ready.append(stream)
        except BaseException:
            self.give_up()  # Between the two: nobody would ask it any more.
            raise

    def give_up(self) -> None:
        """Ends the connection behind a call that did not come to its end."""
        self._connection.close(SessionClosedError("a call was interrupted that used it"))

    def _tell_end(self, stream: ClientStream, error: LogtxError) -> None:
        number = stream._number
        if number and self._numbered.pop(number, None) is not None:
            self._parts.append(end_part(number, error))
            self._forget(number)

    # ---- what one thread at a time calls --------------------------------------------------------

    def _next(self) -> bytes | None:
        """Returns the next message of the connection: what is ready, of each stream in turn."""
        if self._begin:
            return self._begin.popleft()
        parts, size = self._parts, 0
        while self._ready and len(parts) < PARTS_MAX and size < PARTS_MAX_BYTES:
            stream = self._ready.popleft()
            stream._is_ready = False  # Before its source is asked: what it gets later marks it.
            payload = self._next_of(stream)
            if payload is not None:
                parts.append(message_part(stream._number, payload))
                size += len(payload)
                self._mark(stream)  # It may have more.
                if stream._is_over:
                    # It was ended meanwhile, maybe in front of this. To end it twice does no harm.
                    parts.append(end_part(stream._number, SessionClosedError("it was ended")))
                    self._numbered.pop(stream._number, None)
                    self._forget(stream._number)
        if parts:
            return Parts(parts=take_parts(parts)).SerializeToString()
        if self._was_used and not self._streams:
            self._retire()
        return None

    def _next_of(self, stream: ClientStream) -> bytes | None:
        number = stream._number
        if stream._is_over or (number and not self._machine.may_send(number)):
            return None  # A grant marks it again.
        try:
            payload = stream._source()
            if payload is not None:
                check_size(payload)
        except Exception as error:  # noqa: BLE001 - it ends this stream, and the log has it
            _LOG.exception("source_failed address=%s", stream.address)
            stream.close(SessionClosedError(f"what the stream has can't be sent: {error!r}"))
            return None
        if payload is not None:
            if not number:
                number = self._machine.begin()
                self._numbered[number] = stream
                stream._number = number
            self._machine.sent(number, payload)
            self._waiting[number] = None
        return payload

    def _retire(self) -> None:
        self.retired = True
        # Behind that: who joins looks whether it is retired, and has joined before.
        if not self._streams:
            self._connection.close()

    # ---- what the connection's thread calls -----------------------------------------------------

    def _deliver(self, event: Message | Ended) -> None:
        if isinstance(event, Ended):
            self.error = event.error
            self.retired = True
            CONNECTIONS.forget(self)
            for stream in list(self._streams):
                stream._end(event.error)
            return
        try:
            for each in read_for_client(event.payload):
                self._hand_on(each)
        except FrameError as error:
            self._connection.close(error)

    def _hand_on(self, event: object) -> None:
        match event:
            case StreamMessage(number, payload):
                stream = self._numbered.get(number)
                self._waiting.pop(number, None)
                if stream is not None:
                    stream._came(payload)
            case StreamRoom(number, _):
                self._machine.granted(event)
                stream = self._numbered.get(number)
                if stream is not None:
                    self._mark(stream)
                else:
                    self._forget(number)  # It was ended, maybe just now.
            case StreamEnded(number, error):
                stream = self._numbered.pop(number, None)
                if stream is not None:
                    stream._end(error)  # First: who sends looks behind that whether it is over.
                    self._forget(number)
                    self._streams.pop(stream, None)

    def _forget(self, number: int) -> None:
        self._machine.end(number)
        self._waiting.pop(number, None)


class SharedConnections:
    """The connections of this process; safe from any thread."""

    def __init__(self) -> None:
        """Has none."""
        self._guard = threading.Lock()
        self._connections: dict[Hashable, SharedConnection] = {}

    def join(self, stream: ClientStream, deadlines: Deadlines, tls: Tls | None) -> SharedConnection:
        """Returns the connection that a new stream lies on.

        Raises:
            ConfigError: its address is none.
        """
        # Who comes after a certificate was renewed must not get the former one.
        protection = None if tls is None else (tls.config, tls.stamps())
        key = stream.address, deadlines, protection
        with self._guard:
            known = self._connections.get(key)
            if known is not None and known.join(stream):
                return known
            made = SharedConnection(stream.address, deadlines, tls)
            try:
                if not made.join(stream):
                    stream._end(made.error)  # It ended at once, and was told to nobody.
                if not made.retired:
                    self._connections[key] = made
            except BaseException:
                made.leave(stream, SessionClosedError("it was interrupted"))
                raise
        return made

    def drop(self, stream: ClientStream) -> None:
        """Ends a stream whose making was interrupted."""
        for each in list(self._connections.values()):
            if stream in each._streams:
                each.leave(stream, SessionClosedError("it was interrupted"))

    def forget(self, connection: SharedConnection) -> None:
        """Forgets a connection that is over, and settings that may have a password."""
        with self._guard:
            self._connections = {k: c for k, c in self._connections.items() if c is not connection}

    def after_fork(self) -> None:
        """Forgets the parent's connections, in a child."""
        self._guard = threading.Lock()
        self._connections = {}


CONNECTIONS: Final = SharedConnections()
os.register_at_fork(after_in_child=CONNECTIONS.after_fork)
