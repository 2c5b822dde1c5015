"""A connection between two `Endpoint`s: every interleaving of messages, pieces of bytes, and ends.

Real: both machines. Modelled: the network, which hands bytes on one by one or all at once, and may
end, reset or swallow the connection at any byte; the layers above, which send numbered messages,
release what came one by one, and close; the clock; and a process that stands still.

A shell writes what its machine says after each call. It closes its socket when the machine is
CLOSED. As TCP does, a socket that is closed with bytes unread resets the connection: the peer loses
what it has not read yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from logtx.coordinator.protocol.frames import (
    MESSAGE_COST_BYTES,
    PONG,
    Deadlines,
    Ended,
    Endpoint,
    Event,
    Message,
    State,
)
from logtx.coordinator.protocol.strangers import Role
from logtx.journal.errors import FrameError, SessionClosedError

from . import explore

DEADLINES: Final = Deadlines(
    hello_ms=50, ping_after_ms=20, pong_ms=30, frame_ms=90, linger_ms=40, late_ms=5
)
TIMES: Final = ("_excused_ms", "_ping_at_ms", "_pong_by_ms", "_wait_by_ms", "_whole_by_ms")
CONSTANT: Final = ("_deadlines", "_role", "_window_bytes")
KEPT: Final = tuple(
    n for n in Endpoint.__slots__ if n not in {*TIMES, *CONSTANT, "_buffer", "_room", "state"}
)
ROLES: Final = (Role.CLIENT, Role.COORDINATOR)
STEPS_MAX: Final = 40
"""More steps of time than any end takes."""


class Pipe(NamedTuple):
    """One direction of the connection."""

    data: bytes = b""
    ends: bool = False
    """Whether the end of the stream comes behind the bytes."""
    is_read: bool = False
    """Whether that end was taken."""


class Layer(NamedTuple):
    """The layer above one machine."""

    to_send: int = 0
    """Messages that it still sends."""
    sent: int = 0
    got: int = 0
    told: str = ""
    """How it was told of the end."""
    closes: int = 0
    """Times that it may close."""
    closed: bool = False
    """Whether it closed an open connection itself."""


class Left(NamedTuple):
    """What may still happen."""

    cuts: int = 0
    """Times that both directions lose what is under way, and end."""
    vanishes: int = 0
    """Times that the network goes silent for ever, without an end."""
    times: int = 0
    """Steps to the next moment at which something is due."""
    stills: int = 0
    """Times that one process stands still for longer than its deadlines."""
    shows: int = 0
    """PONGs that the coordinator's shell says by itself, unasked."""
    broken: bool = False
    """Whether it was cut, or is silent."""
    stood: int = -1
    """Who stood still."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What the layers do, and what may happen."""

    name: str
    messages: tuple[int, int] = (1, 1)
    closes: tuple[int, int] = (0, 0)
    left: Left = Left()  # noqa: RUF009
    window_bytes: int = 1
    is_open: bool = True
    """Whether both hellos have come at the beginning."""
    releases: bool = True
    prompt: bool = False
    """Whether time passes only while nothing is under way: then nobody may be taken for dead."""
    deadlines: Deadlines = DEADLINES


class World(NamedTuple):
    """A state, unpacked."""

    ends: tuple[Endpoint, Endpoint]
    pipes: tuple[Pipe, Pipe]
    """Each by who reads it."""
    layers: tuple[Layer, Layer]
    left: Left


class _Broken(Exception):  # noqa: N818
    """An invariant is broken."""


class FramesWorld:
    """See the module."""

    def __init__(self, scenario: Scenario) -> None:
        self.name, self._scenario = scenario.name, scenario
        self.ends_told = self.delivered = 0
        """Steps in which a layer was told of an end, and in which it got a message."""

    # ---- states -------------------------------------------------------------------------------

    def _make(self, which: int) -> Endpoint:
        scenario = self._scenario
        return Endpoint(
            ROLES[which],
            window_bytes=scenario.window_bytes,
            # As in the product, the client asks first: so a PING is no answer to a PING.
            deadlines=replace(scenario.deadlines, ping_after_ms=60)
            if which
            else scenario.deadlines,
            now_ms=0,
        )

    def initial(self) -> explore.State:
        """Returns both machines, the pipes to them, the layers, and what is left."""
        scenario = self._scenario
        layers = tuple(
            Layer(to_send=scenario.messages[n], closes=scenario.closes[n]) for n in (0, 1)
        )
        world = World((self._make(0), self._make(1)), (Pipe(), Pipe()), layers, scenario.left)  # type: ignore[arg-type]
        world = self._pump(world, 0)
        if scenario.is_open:
            for which in (1, 0, 1):
                world = self._receive(world, which, len(world.pipes[which].data))
        return self._pack(world)

    def _pack(self, world: World) -> explore.State:
        machines = []
        for end in world.ends:
            room = end._room.room, end._room.due, end._room.unreleased
            state = (int(end.state), bytes(end._buffer), room, *(getattr(end, n) for n in KEPT))
            machines.append((*state, *(getattr(end, n) for n in TIMES)))
        layers, pipes = map(tuple, world.layers), map(tuple, world.pipes)
        return (tuple(machines), tuple(pipes), tuple(layers), tuple(world.left))

    def _unpack(self, state: explore.State) -> World:
        machines, pipes, layers, left = state
        ends = []
        for which, (number, buffer, room, *values) in enumerate(machines):
            end = self._make(which)
            end.state, end._buffer = State(number), bytearray(buffer)
            end._room.room, end._room.due, end._room.unreleased = room
            for name, value in zip((*KEPT, *TIMES), values, strict=True):
                setattr(end, name, value)
            ends.append(end)
        return World(
            (ends[0], ends[1]),
            (Pipe(*pipes[0]), Pipe(*pipes[1])),
            (Layer(*layers[0]), Layer(*layers[1])),
            Left(*left),
        )

    # ---- steps --------------------------------------------------------------------------------

    def moves(self, state: explore.State) -> list[tuple[explore.Move, explore.State | str]]:
        """Returns every step. The clock stands at 0 in each state."""
        found: list[tuple[explore.Move, explore.State | str]] = []
        for line, step in self._steps(self._unpack(state)):
            after: explore.State | str
            try:
                after = self._pack(step(self._unpack(state)))
            except _Broken as broken:
                after = str(broken)
            found.append(((line, False), after))
        return found

    def _steps(self, world: World) -> Iterator[tuple[str, Any]]:
        left = world.left
        for which, role in enumerate(ROLES):
            end, pipe, layer = world.ends[which], world.pipes[which], world.layers[which]
            name = role.value
            for size in sorted({min(1, len(pipe.data)), len(pipe.data)} - {0}):
                yield f"{name} gets {size} bytes", lambda w, n=which, s=size: self._receive(w, n, s)
            if pipe.ends and not pipe.data and not pipe.is_read:
                yield f"{name} gets the end", lambda w, n=which: self._receive_end(w, n)
            if layer.to_send and end.may_send:
                yield f"{name} sends", lambda w, n=which: self._send(w, n)
            if end._room.unreleased and self._scenario.releases:
                yield f"{name} releases", lambda w, n=which: self._release(w, n)
            if layer.closes and not layer.told:
                yield f"{name} closes", lambda w, n=which: self._close(w, n)
            # A shell reads between two ticks: it does not stand still twice before it has read.
            has_read = left.stood != which or not pipe.data
            if left.stills and has_read and self._may_wait(world, who_stands=which):
                yield f"{name} stands still", lambda w, n=which: self._stand_still(w, n)
        if left.shows and world.ends[1].state is State.OPEN:
            yield "coordinator is shown to be alive", self._show
        if left.times and self._may_wait(world) and self._next(world) is not None:
            yield "time passes", lambda w: self._pass(w, -1)
        if left.cuts and not left.broken:
            yield "the connection is cut", lambda w: self._cut(w, ends=True)
        if left.vanishes and not left.broken:
            yield "the network falls silent", lambda w: self._cut(w, ends=False)

    def _may_wait(self, world: World, who_stands: int = -1) -> bool:
        return not self._scenario.prompt or not any(
            p.data or (p.ends and not p.is_read)
            for which, p in enumerate(world.pipes)
            if which != who_stands
        )

    def _receive(self, world: World, which: int, size: int) -> World:
        pipe = world.pipes[which]
        world = _with_pipe(world, which, pipe._replace(data=pipe.data[size:]))
        events = world.ends[which].receive(pipe.data[:size], 0)
        return self._pump(self._told(world, which, events), which)

    def _receive_end(self, world: World, which: int) -> World:
        world = _with_pipe(world, which, world.pipes[which]._replace(is_read=True))
        return self._pump(self._told(world, which, world.ends[which].receive_end()), which)

    def _send(self, world: World, which: int) -> World:
        layer = world.layers[which]
        data = world.ends[which].send(bytes([layer.sent]))
        layer = layer._replace(to_send=layer.to_send - 1, sent=layer.sent + 1)
        return self._pump(_write(_with_layer(world, which, layer), which, data), which)

    def _release(self, world: World, which: int) -> World:
        world.ends[which].release(1 + MESSAGE_COST_BYTES)
        return self._pump(world, which)

    def _close(self, world: World, which: int) -> World:
        layer, end = world.layers[which], world.ends[which]
        layer = layer._replace(closes=layer.closes - 1, closed=end.state is State.OPEN)
        events = end.close(SessionClosedError(_reason(which)), 0)
        world = self._told(_with_layer(world, which, layer), which, events)
        return self._pump(world, which)

    def _cut(self, world: World, *, ends: bool) -> World:
        left = world.left
        left = left._replace(
            broken=True, cuts=left.cuts - ends, vanishes=left.vanishes - (not ends)
        )
        first, second = (p._replace(data=b"", ends=p.ends or ends) for p in world.pipes)
        return world._replace(pipes=(first, second), left=left)

    def _stand_still(self, world: World, which: int) -> World:
        """Lets one process look at its clock late, while the other one runs on."""
        world = world._replace(left=world.left._replace(stills=world.left.stills - 1, stood=which))
        _shift(world, 55)
        other = 1 - which
        end = world.ends[other]
        # What it would have said on time; it can't be late itself.
        due = end.next_due_ms
        if due is not None and due <= 0:
            world = self._pump(self._told(world, other, end.tick(due)), other)
        events = world.ends[which].tick(0)
        return self._pump(self._told(world, which, events), which)

    def _show(self, world: World) -> World:
        world = world._replace(left=world.left._replace(shows=world.left.shows - 1))
        return _write(world, 1, PONG)

    def _next(self, world: World) -> int | None:
        due = [end.next_due_ms for end in world.ends]
        return min((max(each, 0) for each in due if each is not None), default=None)

    def _pass(self, world: World, times: int) -> World:
        world = world._replace(left=world.left._replace(times=max(world.left.times + times, 0)))
        due = self._next(world)
        assert due is not None
        _shift(world, due)
        for which in (0, 1):
            events = world.ends[which].tick(0)
            world = self._pump(self._told(world, which, events), which)
        return world

    def _pump(self, world: World, which: int) -> World:
        """Does what a shell does after each call."""
        end, other = world.ends[which], 1 - which
        world = _write(world, which, end.to_send())
        if end.state >= State.LINGERING and not world.left.broken:
            pipe = world.pipes[other]
            if end.state is State.CLOSED and world.pipes[which].data and not pipe.is_read:
                pipe = pipe._replace(data=b"")
            world = _with_pipe(world, other, pipe._replace(ends=True))
        if end.state is State.CLOSED:
            world = _with_pipe(world, which, Pipe(ends=True, is_read=True))
        return world

    # ---- what must hold -------------------------------------------------------------------------

    def _told(self, world: World, which: int, events: list[Event]) -> World:
        layer, peer = world.layers[which], world.layers[1 - which]
        for event in events:
            if layer.told:
                raise _Broken(f"{ROLES[which].value} was told more behind the end: {event}")
            if isinstance(event, Message):
                self.delivered += 1
                if event.payload != bytes([layer.got]) or layer.got >= peer.sent:
                    raise _Broken(f"message {layer.got} was expected, and {event} came")
                layer = layer._replace(got=layer.got + 1)
                continue
            assert isinstance(event, Ended)
            self.ends_told += 1
            layer = layer._replace(told=str(event.error) or "?")
            self._check_end(world, which, layer, event)
        return _with_layer(world, which, layer)

    def _check_end(self, world: World, which: int, layer: Layer, ended: Ended) -> None:
        peer, text = world.layers[1 - which], layer.told
        if world.left.broken or text == _reason(which):
            return
        if isinstance(ended.error, FrameError):
            raise _Broken(f"an honest peer was refused: {text}")
        if text == _reason(1 - which):
            if layer.got != peer.sent:
                raise _Broken(f"{peer.sent} messages were sent before CLOSE, and {layer.got} came")
        elif peer.closed:
            # A peer that closed behind its deadline may be lost: it can't wait for ever.
            if world.left.times == self._scenario.left.times:
                raise _Broken(f"the reason of the peer's end was lost: {text}")
        elif self._scenario.prompt and "said nothing" in text and world.left.stood != 1 - which:
            raise _Broken(f"a living peer was taken for dead: {text}")

    def check(self, state: explore.State) -> str | None:
        """Returns what is wrong with a state."""
        world = self._unpack(state)
        most = self._scenario.window_bytes + 1 + MESSAGE_COST_BYTES
        for end in world.ends:
            if end._room.unreleased > most:
                return f"{end._room.unreleased} bytes are unreleased"
            if len(end._buffer) > 13:  # a hello has 14 bytes, and frames have fewer
                return f"{len(end._buffer)} bytes are buffered"
            if end.state is State.OPEN and (
                end._room.room + end._room.due + end._room.unreleased != self._scenario.window_bytes
            ):
                return "room was lost or made"
        if any(pipe.data for pipe in world.pipes):
            return None
        if all(end.state is State.OPEN for end in world.ends) and not world.left.broken:
            for sender, receiver in (world.ends, world.ends[::-1]):
                if sender._window != receiver._room.room:
                    return "the ends differ in what room there is"
                if sender._window <= 0 and receiver._room.due:
                    return "a sender waits for room that is free"
        try:
            return self._complete(world)
        except _Broken as broken:
            return str(broken)

    def _complete(self, world: World) -> str | None:
        """Lets all go on undisturbed: each end that happened is told to both within its time."""
        over = world.left.broken or any(end.state is not State.OPEN for end in world.ends)
        if not over:
            return None
        for _ in range(STEPS_MAX):
            for which in (0, 1):
                pipe = world.pipes[which]
                if pipe.data:
                    world = self._receive(world, which, len(pipe.data))
                elif pipe.ends and not pipe.is_read:
                    world = self._receive_end(world, which)
            states = [end.state for end in world.ends]
            if states == [State.OPEN, State.OPEN] and not world.left.broken:
                return None
            if states == [State.CLOSED, State.CLOSED]:
                untold = [
                    r.value for r, each in zip(ROLES, world.layers, strict=True) if not each.told
                ]
                return f"{untold} were not told of the end" if untold else None
            if not any(p.data or (p.ends and not p.is_read) for p in world.pipes):
                if self._next(world) is None:
                    return f"{states} for ever"
                world = self._pass(world, 1)
        return f"no end after {STEPS_MAX} steps: {[end.state.name for end in world.ends]}"

    def tell(self, state: explore.State, move: explore.Move, traded: bool) -> str:  # noqa: ARG002
        """Returns a step as a line."""
        return str(move[0])

    def tell_end(self, state: explore.State) -> list[str]:  # noqa: ARG002
        """Returns nothing: the violation says it."""
        return []


def _reason(which: int) -> str:
    """Returns what an end is closed with; in few bytes, for each takes a step."""
    return ("-cl", "-co")[which]


def _with_pipe(world: World, which: int, pipe: Pipe) -> World:
    other = world.pipes[1 - which]
    return world._replace(pipes=(other, pipe) if which else (pipe, other))


def _with_layer(world: World, which: int, layer: Layer) -> World:
    other = world.layers[1 - which]
    return world._replace(layers=(other, layer) if which else (layer, other))


def _write(world: World, which: int, data: bytes) -> World:
    """Hands bytes to the network, which drops what nobody can read any more."""
    pipe = world.pipes[1 - which]
    if not data or pipe.ends or world.left.broken:
        return world
    return _with_pipe(world, 1 - which, pipe._replace(data=pipe.data + data))


def _shift(world: World, elapsed_ms: int) -> None:
    """Lets time pass: the clock stands at 0 in each state, so deadlines come nearer."""
    for end in world.ends:
        for name in TIMES:
            at = getattr(end, name)
            if at is not None:
                # How late it is matters to `late_ms` alone, and to a PING not at all.
                floor = 0 if name == "_ping_at_ms" else -1 - DEADLINES.late_ms
                setattr(end, name, max(at - elapsed_ms, floor))
        if end._pong_by_ms is not None:
            end._ping_at_ms = 0
