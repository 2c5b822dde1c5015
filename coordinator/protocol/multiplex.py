"""Many streams on one connection: parts in, events out. Pure.

The sessions of a process with one coordinator share a connection, each by a *stream* of it. This
lies on top of `frames`: what that calls a message has the parts (`open.proto`) of several streams.
To the layer above, a stream is what a connection of its own was: messages in order, and one end.

A client begins streams: the first part with a number that is higher than all before. A coordinator
says how much it may send on each (`room`), and either end ends one (`StreamEnd`).

S1. *No message of a stream is lost, doubled or reordered, and none is taken for another stream's.*
    Parts go the way of the connection's messages, which has that (F1). A number is never given
    again: what comes for a stream that has ended was under way meanwhile, and is thrown away.
S2. *A stream that nobody reads holds up itself alone.* A coordinator takes what comes at once, into
    the stream's room, so the connection's own window is never full for long. The client sends no
    more than the room; else the connection ends.
S3. *Memory is bounded*: by the room of a stream and one message, and by `STREAMS_MAX` streams.
    Those beyond are ended as they begin. What one message asks for is bounded, too, by `PARTS_MAX`.
    A client takes answers without a bound of its own: there are as many as it has questions.
S4. *A sender never waits for room that is free*, as in F3 of `frames`: a grant goes out once it is
    as large as what the sender has left.
S5. *Each end of a stream is told once*: by the peer, or by the connection's end. Who ends a stream
    itself forgets it. So no end is answered, and two that cross do no harm.

Times are the connection's: a peer is dead for all streams at once (F4).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from google.protobuf.message import DecodeError

from ...journal.errors import (
    CoordinatorBusyError,
    FrameError,
    LogtxError,
)
from ...journal.value import value
from .frames import MESSAGE_COST_BYTES, MESSAGE_MAX_BYTES, code_and_text, error_told
from .open_pb2 import Part, Parts, StreamEnd
from .room import Room

ROOM_BYTES: Final = 256 * 1024
"""What messages of one stream that nobody has taken yet may cost. More let each stream hold more
memory; with less, a client far away waits for room more often than for the network."""
STREAMS_MAX: Final = 1_000
"""Streams of one connection at one time. More would make the loss of a connection dearer than
connections are."""
PART_MAX_BYTES: Final = MESSAGE_MAX_BYTES - 64
"""Largest message of a stream: with its number it fits into one of the connection."""
PARTS_MAX_BYTES: Final = 1024 * 1024
"""Largest message with several parts. With more, those behind it would wait for longer."""
PARTS_MAX: Final = 256
"""Most parts in one message: it bounds what one message makes the other end do, and say. Fewer make
more messages of a burst."""
_BUG: Final = ": that is a bug of one of the two; report it with both versions of logtx"


@value(frozen=True, slots=True)
class StreamBegan:
    """The client has begun a stream."""

    stream: int


@value(frozen=True, slots=True)
class StreamMessage:
    """A message of a stream has come. At a coordinator it takes room until `release`."""

    stream: int
    payload: bytes

    @property
    def cost(self) -> int:
        """Returns what it takes of the room, in bytes."""
        return cost_of(self.payload)


@value(frozen=True, slots=True)
class StreamRoom:
    """The coordinator takes so many bytes more."""

    stream: int
    granted: int


@value(frozen=True, slots=True)
class StreamEnded:
    """The peer has ended a stream. Nothing comes behind it."""

    stream: int
    error: LogtxError


Event = StreamBegan | StreamMessage | StreamRoom | StreamEnded


def cost_of(payload: bytes) -> int:
    """Returns what a message takes of a stream's room, in bytes."""
    return len(payload) + MESSAGE_COST_BYTES


def end_part(stream: int, error: LogtxError) -> Part:
    """Returns what tells the peer that a stream is over, and why."""
    code, text = code_and_text(error)
    return Part(stream=stream, end=StreamEnd(code=code, text=text.decode("utf-8", "ignore")))


def check_size(payload: bytes) -> None:
    """Refuses a message that fits into no part.

    Raises:
        ValueError: it is larger than `PART_MAX_BYTES`.
    """
    if len(payload) > PART_MAX_BYTES:
        raise ValueError(f"a message has {len(payload)} bytes, of {PART_MAX_BYTES} at most")


def message_part(stream: int, payload: bytes) -> Part:
    """Returns what carries a message of a stream.

    Raises:
        ValueError: it is larger than `PART_MAX_BYTES`.
    """
    check_size(payload)
    return Part(stream=stream, message=payload)


def take_parts(parts: deque[Part]) -> list[Part]:
    """Takes from the front what one message carries, which is one part at least."""
    first = parts.popleft()
    taken, size = [first], first.ByteSize()
    while parts and len(taken) < PARTS_MAX:
        size += parts[0].ByteSize()
        if size > PARTS_MAX_BYTES:
            break
        taken.append(parts.popleft())
    return taken


def read_for_client(payload: bytes) -> list[Event]:
    """Returns what a message of the coordinator says. It may be of streams that are over.

    Raises:
        FrameError: it says nothing that a coordinator may say.
    """
    events: list[Event] = []
    for part in _parts(payload, "the coordinator"):
        match part.WhichOneof("what"):
            case "message":
                events.append(StreamMessage(part.stream, part.message))
            case "room":
                events.append(StreamRoom(part.stream, part.room))
            case "end":
                events.append(
                    StreamEnded(
                        part.stream, error_told(part.end.code, part.end.text, "the coordinator")
                    )
                )
            case _:
                raise _violated("the coordinator", "sent a part that says nothing")
    return events


class ClientStreams:
    """What a client may send on each stream. The module says what is promised.

    One thread at a time calls `begin` and `sent`, and one `granted`; others may look, and end
    streams. Who finds behind `sent` or `granted` that the stream is over ends it again.
    """

    def __init__(self) -> None:
        """Has no stream."""
        self._last = 0
        self._granted: dict[int, int] = {}
        self._sent: dict[int, int] = {}

    def begin(self) -> int:
        """Returns the number of a new stream. Its first message has to go before another begins."""
        self._last += 1
        self._granted[self._last] = ROOM_BYTES
        self._sent[self._last] = 0
        return self._last

    def may_send(self, stream: int) -> bool:
        """Returns whether a message may be sent on a stream now."""
        # Two sums, each by one writer: a difference that two threads change would lose some.
        return self._granted.get(stream, 0) > self._sent.get(stream, 0)

    def sent(self, stream: int, payload: bytes) -> None:
        """Takes the room of a message that is sent now."""
        # Another thread may just have ended it, or end it between the two: then it is ended again.
        # Not from 0, which would look to `granted` like room that was never given.
        sent = self._sent.get(stream)
        if sent is not None:
            self._sent[stream] = sent + cost_of(payload)

    def granted(self, event: StreamRoom) -> None:
        """Takes what the coordinator gave.

        Raises:
            FrameError: it gave more than it ever had to give.
        """
        granted = self._granted.get(event.stream)
        if granted is not None:
            granted += event.granted
            if granted - self._sent.get(event.stream, granted) > ROOM_BYTES:
                raise _violated("the coordinator", "gave more room than a stream has")
            self._granted[event.stream] = granted

    def end(self, stream: int) -> None:
        """Forgets a stream. May be repeated."""
        self._granted.pop(stream, None)
        self._sent.pop(stream, None)


class CoordinatorStreams:
    """The streams of one connection, at the coordinator. The module says what is promised."""

    def __init__(self, streams_max: int = STREAMS_MAX) -> None:
        """Has no stream.

        Args:
            streams_max: most streams at one time.
        """
        self._rooms: dict[int, Room] = {}
        self._streams_max = streams_max
        self._last = 0
        self._refused: list[Part] = []

    def receive(self, payload: bytes) -> list[Event]:
        """Takes a message of the connection, and returns what it says.

        Raises:
            FrameError: it says what no client may say. The connection is to be ended by that.
        """
        events: list[Event] = []
        for part in _parts(payload, "the client"):
            match part.WhichOneof("what"):
                case "message":
                    self._take(part, events)
                case "end":
                    if self._rooms.pop(part.stream, None) is not None:
                        error = error_told(part.end.code, part.end.text, "the client")
                        events.append(StreamEnded(part.stream, error))
                case _:
                    raise _violated("the client", "sent a part that is neither message nor end")
        return events

    def release(self, stream: int, cost: int) -> None:
        """Frees room that messages of a stream took, for the client to send more."""
        room = self._rooms.get(stream)
        if room is not None:
            room.release(cost)

    def to_send(self, stream: int) -> list[Part]:
        """Returns what is to be said by itself, of this stream and of those that were refused."""
        said, self._refused = self._refused, []
        room = self._rooms.get(stream)
        if room is not None and (granted := room.grant()):
            said.append(Part(stream=stream, room=granted))
        return said

    def end(self, stream: int, error: LogtxError) -> list[Part]:
        """Forgets a stream, and returns what tells the client why; nothing if it is over."""
        return [end_part(stream, error)] if self._rooms.pop(stream, None) is not None else []

    def _take(self, part: Part, events: list[Event]) -> None:
        stream = part.stream
        room = self._rooms.get(stream)
        if room is None:
            if stream <= self._last:
                if stream == 0:
                    raise _violated("the client", "sent a message of stream 0")
                return  # It has ended, and this was under way.
            self._last = stream
            if len(self._rooms) >= self._streams_max:
                busy = CoordinatorBusyError(f"the connection has {self._streams_max} streams")
                self._refused.append(end_part(stream, busy))
                return
            room = self._rooms[stream] = Room(ROOM_BYTES)
            events.append(StreamBegan(stream))
        if not room.is_left:
            raise _violated("the client", f"sent more than the {ROOM_BYTES} bytes of a stream")
        message = StreamMessage(stream, part.message)
        room.take(message.cost)
        events.append(message)


def _parts(payload: bytes, peer: str) -> list[Part]:
    try:
        parts = Parts.FromString(payload).parts
    except DecodeError as error:
        raise _violated(peer, f"sent what are no Parts ({error})") from error
    # A message of 4 MiB may have half a million, and each would be answered (trap 287).
    if len(parts) > PARTS_MAX:
        raise _violated(peer, f"sent {len(parts)} parts in one message, of {PARTS_MAX} at most")
    return list(parts)


def _violated(peer: str, what: str) -> FrameError:
    return FrameError(f"{peer} {what}{_BUG}")
