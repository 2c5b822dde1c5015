"""One end of a connection between a client and a coordinator: bytes in, events out. Pure.

`Endpoint` opens no socket and reads no clock: a shell gives it what was received and what time it
is, and writes what it returns. Both ends run this machine. On the wire, integers are big-endian:

| | |
|---|---|
| hello | magic (8), version (2), window in bytes (4). Magic and version stay for ever |
| frame | kind (1), length (3), payload |
| MESSAGE | payload: a protobuf message of the layer above, of at most `MESSAGE_MAX_BYTES` |
| PING, PONG | empty. A PING is answered by a PONG; one may come unasked, and says as much |
| WINDOW | bytes that may be sent in addition (4) |
| CLOSE | code of an error (2), its text (UTF-8): the last frame of its direction |

The client says hello first, for a coordinator must know whom it answers. Two versions refuse each
other: each end reads the other's version, and says by itself which one is the older.

States: `State` has them, in this order; none is entered twice.

    HELLO ──► OPEN ──► LINGERING ──► CLOSED        and from each to any later one

F1. *No message is lost, doubled or reordered.* `send` returns a whole frame, to be written at once
    and in order; TCP keeps bytes in order; `receive` takes each frame once, from the front of one
    buffer. Nothing is repeated, so what arrives is a prefix of what was sent. If the connection
    ends by CLOSE, it is everything that was sent before: CLOSE goes the same way, behind it.
F2. *Memory is bounded.* A frame is refused by its header, before its payload is kept: so the buffer
    holds less than one frame and what was read at once. A message is sent only while the window is
    above zero, and costs its bytes and `MESSAGE_COST_BYTES` (trap 209). So unreleased messages cost
    at most the window and one message. What the machine itself has to say are flags and sums, made
    into bytes when a shell takes them: at most one PONG, PING, WINDOW and CLOSE, whatever the peer
    did (trap 211). A shell must take them only when the network took what it was given before.
F3. *A sender never waits for room that is free.* window = room of the sender + released, not
    granted yet (due) + unreleased. A grant goes out once due reaches the room that the sender has
    left, so at the latest when it has none (trap 212), and each doubles that room at least: few
    grants for many messages. Grants, pings and CLOSE need no room, so a full window stops messages
    alone; a shell never stops reading (trap 210).
F4. *Each wait is bounded.* HELLO ends by `hello_ms`. A peer that says nothing for `ping_after_ms`
    is asked, and dead `pong_ms` later. It must end a frame within `frame_ms` of its begin, so bytes
    that trickle keep nothing alive. LINGERING ends by `linger_ms`. One exception: an end that comes
    late to look at its clock stood still itself, and the peer's bytes may lie unread (trap 213). So
    it waits `late_ms` more, once until it hears something.
F5. *The layer above is told of the end once*, by `Ended`, when HELLO or OPEN is left for LINGERING
    or CLOSED; each does that but once. No message comes behind it. The peer is told by CLOSE, or by
    the end of the stream, or it finds this end dead (F4). An end that speaks last reads on, and
    throws away, until the peer has ended its side: to close a socket with bytes unread resets the
    connection, and the peer may lose the CLOSE which it was sent (trap 214).
F6. *Who is no logtx is told so*, in its own words if there are any (`strangers`), by its first 8
    bytes or by what came of them. A client tells a stranger nothing but its hello.

The window counts bytes, not messages: memory is what it is for, and a message has 2 bytes or 4 MiB.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ...journal.errors import FrameError, LogtxError, SessionClosedError, error_from_code
from ...journal.value import value
from .room import Room
from .strangers import FIRST_BYTES, Role, stranger_of

FRAMES_VERSION: Final = 1
"""Version of the frames, which the hello carries. What messages say has versions of its own."""
MAGIC: Final = b"\x8dLOGTX\r\n"
"""First bytes of each direction. To a Kafka broker they are a negative length, to TLS and HTTP/2 a
wrong first byte, to an HTTP server a bad line: each ends the connection at once."""
MESSAGE_MAX_BYTES: Final = 4 * 1024 * 1024
"""Largest message: several times the largest journal record."""
MESSAGE_COST_BYTES: Final = 256
"""What a message costs in the window beside its bytes: about the objects that an empty one takes.
With 0 the window would not bound the number of empty messages."""
WINDOW_MAX_BYTES: Final = 2**31 - 1
CLOSE_TEXT_MAX_BYTES: Final = 2_000
"""Longest text of a CLOSE; a longer one is cut."""

_HELLO: Final = struct.Struct(">8sHI")
_VERSIONED: Final = 10
"""Bytes of a hello that every version has: magic and version."""
_HEADER_BYTES: Final = 4
_BUG: Final = (
    ": that is a bug of one of the two, or something between them changes bytes; report it with"
    " both versions of logtx"
)


class State(IntEnum):
    """How far a connection is. It never goes back."""

    HELLO = 0
    """The peer's hello has not come."""
    OPEN = 1
    LINGERING = 2
    """Over, and the layer above knows; the last bytes go out, and what comes in is thrown away."""
    CLOSED = 3
    """Close the socket."""


class Kind(IntEnum):
    """Kinds of frames. Not 0: a run of zeros is no frame."""

    MESSAGE = 1
    PING = 2
    PONG = 3
    WINDOW = 4
    CLOSE = 5


_LENGTHS: Final[Mapping[int, tuple[int, int]]] = {
    Kind.MESSAGE: (0, MESSAGE_MAX_BYTES),
    Kind.PING: (0, 0),
    Kind.PONG: (0, 0),
    Kind.WINDOW: (4, 4),
    Kind.CLOSE: (2, 2 + CLOSE_TEXT_MAX_BYTES),
}
"""Kind → shortest and longest payload in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long an end waits for its peer, in milliseconds."""

    hello_ms: int
    """For the peer's hello. A stopped process takes connections and never says it."""
    ping_after_ms: int
    """Without a byte received, before the peer is asked whether it is there."""
    pong_ms: int
    """For any byte after that. A frame that is under way in front of the PING takes of this."""
    frame_ms: int = 30_000
    """For the rest of a frame whose first byte has come: 4 MiB at 140 kB/s."""
    linger_ms: int = 1_000
    """For the peer to end its side after CLOSE."""
    late_ms: int = 100
    """Lateness from which on this end takes itself for the one that stood still."""


CLIENT_DEADLINES: Final = Deadlines(hello_ms=5_000, ping_after_ms=200, pong_ms=300)
"""A coordinator that was stopped is noticed after half a second.

The hello may take as long as a client waits for an attempt at most (`PATIENCE_MAX_S` of a pursuit,
which gives up its first one after half a second). With less, that longer patience would be cut off
here, and a coordinator that a flood of clients keeps busy would be asked again and again before it
could answer (trap 236)."""
COORDINATOR_DEADLINES: Final = Deadlines(hello_ms=10_000, ping_after_ms=1_000, pong_ms=2_000)


@value(frozen=True, slots=True)
class Message:
    """A message has come. It takes room of the window until `Endpoint.release`."""

    payload: bytes

    @property
    def cost(self) -> int:
        """Returns what it takes of the window, in bytes."""
        return len(self.payload) + MESSAGE_COST_BYTES


@value(frozen=True, slots=True)
class Ended:
    """The connection is over. Nothing comes behind it."""

    error: LogtxError
    """Why: `FrameError` if the ends can't speak to each other; what the peer or this end closed it
    with; else `SessionClosedError`."""


Event = Message | Ended


class Endpoint:
    """One end of a connection. The module says what it promises.

    After each call the shell writes what `to_send` returns, and closes the socket once `state` is
    CLOSED. It calls `tick` at `next_due_ms`, and reads what lies there between two such calls. In
    LINGERING it shuts down writing when all is written. Times are milliseconds of one clock that
    never goes back. Not thread-safe.
    """

    __slots__ = (
        *("_buffer", "_deadlines", "_excused_ms", "_granted", "_hello_due", "_last"),
        *("_ping_at_ms", "_ping_due", "_pong_by_ms", "_pong_due", "_role", "_room"),
        *("_wait_by_ms", "_whole_by_ms", "_window", "_window_bytes", "state"),
    )

    def __init__(self, role: Role, *, window_bytes: int, deadlines: Deadlines, now_ms: int) -> None:
        """Begins with a connection that was just made.

        Args:
            role: which end this is.
            window_bytes: what unreleased messages of the peer may cost; one is always let in.
            deadlines: how long to wait for the peer.
            now_ms: the time.

        Raises:
            ValueError: `window_bytes` is not between 1 and `WINDOW_MAX_BYTES`.
        """
        if not 0 < window_bytes <= WINDOW_MAX_BYTES:
            raise ValueError(f"window_bytes is {window_bytes}: give 1 to {WINDOW_MAX_BYTES}")
        self.state = State.HELLO
        self._role = role
        self._deadlines = deadlines
        self._window_bytes = window_bytes
        self._buffer = bytearray()
        # What this end lets the peer send, and what the peer lets this end send.
        self._room = Room(window_bytes)
        self._window = self._granted = 0
        # What is to be said.
        self._hello_due = role is Role.CLIENT
        self._ping_due = self._pong_due = False
        self._last = b""
        # What is waited for, until when.
        self._wait_by_ms: int | None = now_ms + deadlines.hello_ms
        self._pong_by_ms: int | None = None
        self._whole_by_ms: int | None = None
        self._ping_at_ms = now_ms
        self._excused_ms: int | None = None

    # ---- sending --------------------------------------------------------------------------------

    @property
    def may_send(self) -> bool:
        """Returns whether a message may be sent now."""
        return self.state is State.OPEN and self._window > 0

    def send(self, payload: bytes) -> bytes:
        """Returns the bytes that carry a message, with what else is to be said, to write at once.

        Raises:
            SessionClosedError: the connection is over, or did not begin yet.
            ValueError: there is no room (`may_send`), or the message is larger than
                `MESSAGE_MAX_BYTES`.
        """
        if self.state is not State.OPEN:
            raise SessionClosedError(f"the connection to {self._role.peer} is {self.state.name}")
        if self._window <= 0:
            raise ValueError(f"{self._role.peer} has no room: wait until may_send is true")
        if len(payload) > MESSAGE_MAX_BYTES:
            raise ValueError(f"a message has {len(payload)} bytes, of {MESSAGE_MAX_BYTES} at most")
        self._window -= len(payload) + MESSAGE_COST_BYTES
        return self.to_send() + _frame(Kind.MESSAGE, payload)

    def to_send(self) -> bytes:
        """Returns what this end has to say by itself, once; mostly nothing."""
        said = b""
        if self._hello_due and self.state is not State.CLOSED:
            self._hello_due = False
            said = self._hello()
        if self.state is State.OPEN:
            if self._pong_due:
                self._pong_due = False
                said += _frame(Kind.PONG)
            if self._ping_due:
                self._ping_due = False
                said += _frame(Kind.PING)
            if granted := self._room.grant():
                said += _frame(Kind.WINDOW, granted.to_bytes(4, "big"))
        elif self.state is State.LINGERING:
            said += self._last
            self._last = b""
        return said

    def release(self, cost: int) -> None:
        """Frees room that messages took, for the peer to send more.

        Raises:
            ValueError: the messages that came and were not released cost less.
        """
        self._room.release(cost)

    def close(self, error: LogtxError, now_ms: int) -> list[Event]:
        """Ends the connection and tells the peer why; nothing happens if it is over already.

        What comes behind this is thrown away. An error without a code comes as
        `SessionClosedError`.
        """
        if self.state is State.OPEN:
            return [self._linger(error, _close_frame(error), now_ms)]
        return [self._closed(error)] if self.state is State.HELLO else []

    # ---- receiving ------------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
        """Takes bytes that were received, cut anywhere, and returns what they say."""
        if self.state > State.OPEN or not data:
            return []
        events: list[Event] = []
        self._buffer += data
        if self.state is State.HELLO:
            events = self._greet(now_ms)
        if self.state is not State.OPEN:
            return events
        self._ping_at_ms = now_ms + self._deadlines.ping_after_ms
        self._pong_by_ms = self._excused_ms = None
        buffer, at = self._buffer, 0
        while self.state is State.OPEN and len(buffer) - at >= _HEADER_BYTES:
            kind, length = buffer[at], int.from_bytes(buffer[at + 1 : at + _HEADER_BYTES], "big")
            problem = self._problem(kind, length)
            if problem is not None:
                events.append(self._violated(problem, now_ms))
                break
            end = at + _HEADER_BYTES + length
            if end > len(buffer):
                break
            events += self._take(kind, bytes(buffer[at + _HEADER_BYTES : end]), now_ms)
            at = end
        if self.state is State.OPEN:
            del buffer[:at]
            if not buffer:
                self._whole_by_ms = None
            elif at or self._whole_by_ms is None:
                self._whole_by_ms = now_ms + self._deadlines.frame_ms
        return events

    def receive_end(self) -> list[Event]:
        """Takes the end of the stream: the peer closed or lost the connection."""
        if self.state > State.OPEN:
            self.state = State.CLOSED
            self._wait_by_ms = None
            return []
        if self.state is State.HELLO and self._buffer:
            return [self._closed(self._stranger())]
        why = "before it said hello" if self.state is State.HELLO else "without a word"
        return [self._closed(SessionClosedError(f"{self._role.peer} ended the connection {why}"))]

    # ---- time -----------------------------------------------------------------------------------

    @property
    def next_due_ms(self) -> int | None:
        """Returns when to call `tick`; None: never."""
        by = self._by_ms()
        if self.state is State.OPEN and self._pong_by_ms is None:
            return self._ping_at_ms if by is None else min(by, self._ping_at_ms)
        return by

    def tick(self, now_ms: int) -> list[Event]:
        """Does what is due. Calling it too often does no harm."""
        by = self._by_ms()
        if by is not None and now_ms >= by:
            if self.state is State.LINGERING:
                self._closed(SessionClosedError())
                return []
            if now_ms <= by + self._deadlines.late_ms or self._excused_ms is not None:
                return [self._overdue(now_ms)]
            self._excused_ms = now_ms + self._deadlines.late_ms
        if self.state is State.OPEN and self._pong_by_ms is None and now_ms >= self._ping_at_ms:
            self._ping_due = True
            self._pong_by_ms = now_ms + self._deadlines.pong_ms
        return []

    def _by_ms(self) -> int | None:
        """Returns until when the peer must do the next thing that is waited for, if any is."""
        waits = (self._wait_by_ms, self._pong_by_ms, self._whole_by_ms)
        by = min((each for each in waits if each is not None), default=None)
        if by is None or self._excused_ms is None:
            return by
        return max(by, self._excused_ms)

    def _overdue(self, now_ms: int) -> Ended:
        deadlines, peer = self._deadlines, self._role.peer
        if self.state is State.HELLO:
            if self._buffer:
                return self._refused(now_ms)
            why = f"said no hello in {deadlines.hello_ms} ms: see that it runs and is reachable"
        elif self._pong_by_ms is not None and now_ms >= self._pong_by_ms:
            why = f"said nothing for {deadlines.ping_after_ms + deadlines.pong_ms} ms"
        else:
            why = f"did not end a frame in {deadlines.frame_ms} ms"
        return self._closed(SessionClosedError(f"{peer} {why}"))

    # ---- what came ------------------------------------------------------------------------------

    def _greet(self, now_ms: int) -> list[Event]:
        buffer = self._buffer
        if len(buffer) >= FIRST_BYTES and not buffer.startswith(MAGIC):
            return [self._refused(now_ms)]
        if len(buffer) >= _VERSIONED and _version(buffer) != FRAMES_VERSION:
            return [self._refused(now_ms)]
        if len(buffer) < _HELLO.size:
            return []
        _, _, window = _HELLO.unpack_from(buffer)
        self.state = State.OPEN
        self._wait_by_ms = None
        self._hello_due = self._hello_due or self._role is Role.COORDINATOR
        self._window = self._granted = window
        del buffer[: _HELLO.size]
        if not 0 < window <= WINDOW_MAX_BYTES:
            return [self._violated(f"has a window of {window} bytes", now_ms)]
        return []

    def _problem(self, kind: int, length: int) -> str | None:
        """Returns what is wrong with a frame, by its header."""
        shortest, longest = _LENGTHS.get(kind, (0, -1))
        if longest < 0:
            return f"sent a frame of kind {kind}, which there is not"
        if not shortest <= length <= longest:
            return f"sent a frame {Kind(kind).name} of {length} bytes, and {longest} are allowed"
        if kind == Kind.MESSAGE and not self._room.is_left:
            return f"sent more than its window of {self._window_bytes} bytes"
        return None

    def _take(self, kind: int, payload: bytes, now_ms: int) -> list[Event]:
        match kind:
            case Kind.MESSAGE:
                message = Message(payload)
                self._room.take(message.cost)
                return [message]
            case Kind.PING:
                self._pong_due = True
            case Kind.WINDOW:
                self._window += int.from_bytes(payload, "big")
                if self._window > self._granted:
                    return [self._violated("gave more room than its window has", now_ms)]
            case Kind.CLOSE:
                code, text = (
                    int.from_bytes(payload[:2], "big"),
                    payload[2:].decode("utf-8", "replace"),
                )
                return [self._closed(error_told(code, text, self._role.peer))]
        return []

    # ---- ends -----------------------------------------------------------------------------------

    def _refused(self, now_ms: int) -> Ended:
        """Ends with a peer that is no logtx of this version, in HELLO."""
        error = self._stranger()
        if self._role is Role.CLIENT or isinstance(error, SessionClosedError):
            return self._closed(error)
        first = bytes(self._buffer)
        is_logtx = first.startswith(MAGIC)
        # Another version finds the difference itself: it may word it better than this one.
        answer = self._hello() if is_logtx else stranger_of(first, self._role).answer
        return self._linger(error, answer, now_ms)

    def _stranger(self) -> LogtxError:
        """Returns who the peer is, by the bytes that came of its hello."""
        first, peer = bytes(self._buffer), self._role.peer
        if not first.startswith(MAGIC[: len(first)]):
            stranger = stranger_of(first, self._role)
            return stranger.kind(stranger.sentence)
        if len(first) < _VERSIONED or (version := _version(first)) == FRAMES_VERSION:
            return SessionClosedError(f"{peer} stopped in the middle of its hello")
        which = peer if version < FRAMES_VERSION else "the logtx here"
        return FrameError(
            f"{peer} speaks version {version} of the frames of sessions, and this end version"
            f" {FRAMES_VERSION}: upgrade {which}"
        )

    def _violated(self, what: str, now_ms: int) -> Ended:
        error = FrameError(f"{self._role.peer} {what}{_BUG}")
        return self._linger(error, _close_frame(error), now_ms)

    def _linger(self, error: LogtxError, last: bytes, now_ms: int) -> Ended:
        ended = self._closed(error)
        self.state = State.LINGERING
        self._last = last
        self._wait_by_ms = now_ms + self._deadlines.linger_ms
        return ended

    def _closed(self, error: LogtxError) -> Ended:
        self.state = State.CLOSED
        self._buffer.clear()
        self._wait_by_ms = self._pong_by_ms = self._whole_by_ms = self._excused_ms = None
        return Ended(error)

    def _hello(self) -> bytes:
        return _HELLO.pack(MAGIC, FRAMES_VERSION, self._window_bytes)


def _version(hello: bytes | bytearray) -> int:
    return int.from_bytes(hello[len(MAGIC) : _VERSIONED], "big")


def _frame(kind: Kind, payload: bytes = b"") -> bytes:
    return bytes((kind,)) + len(payload).to_bytes(3, "big") + payload


PONG: Final = _frame(Kind.PONG)
"""What shows that this end lives. A shell may write it by itself, between two frames, behind its
hello and in front of CLOSE."""


def error_told(code: int, text: str, peer: str) -> LogtxError:
    """Returns the error that a peer named when it ended something. Its text may be anything."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return error_from_code(code, text or f"{peer} gave no reason")


def code_and_text(error: LogtxError) -> tuple[int, bytes]:
    """Returns what a peer is told of an error: a code that it knows, and the text in UTF-8."""
    code = type(error).code or SessionClosedError.code
    return code, str(error).encode()[:CLOSE_TEXT_MAX_BYTES]


def _close_frame(error: LogtxError) -> bytes:
    code, text = code_and_text(error)
    return _frame(Kind.CLOSE, code.to_bytes(2, "big") + text)
