"""Streams of one connection: every interleaving of their messages, grants and ends.

Real: both machines of `multiplex`. Modelled: the connection, which carries messages in order and
may be cut; a shell at each end, which asks its machine as the product's do; and the layers above,
which send numbered messages, release what came one by one, and end streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from logtx.coordinator.protocol import multiplex
from logtx.coordinator.protocol.multiplex import (
    ClientStreams,
    CoordinatorStreams,
    StreamBegan,
    StreamEnded,
    StreamMessage,
    StreamRoom,
    end_part,
    message_part,
    read_for_client,
)
from logtx.coordinator.protocol.open_pb2 import Part, Parts
from logtx.coordinator.protocol.room import Room
from logtx.journal.errors import FrameError, SessionClosedError

from . import explore

COST: Final = 2 + 256
"""What a message of two bytes takes of the room."""


class Layer(NamedTuple):
    """What a client's layer has of one stream, and what came of it at the coordinator."""

    to_send: int
    ends: int = 0
    """Times that the client may end it."""
    refuses: int = 0
    """Times that the coordinator may."""
    number: int = 0
    sent: int = 0
    came: int = 0
    begun: bool = False
    told: str = ""
    """How the client was told of the end."""
    client_ended: bool = False
    coordinator_over: str = ""
    """How the coordinator's layer came to the end."""


class Ways(NamedTuple):
    """Messages under way."""

    to_coordinator: tuple[bytes, ...] = ()
    to_client: tuple[bytes, ...] = ()
    cuts: int = 0
    """Times that the connection may be cut."""
    is_cut: bool = False


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What the layers do."""

    name: str
    layers: tuple[Layer, ...]
    cuts: int = 0
    streams_max: int = 10
    together: bool = False
    """Whether a client's message may carry a part of each stream."""


class World(NamedTuple):
    """A state, unpacked."""

    client: ClientStreams
    coordinator: CoordinatorStreams
    layers: tuple[Layer, ...]
    ways: Ways


class _Broken(Exception):  # noqa: N818
    """An invariant is broken."""


class StreamsWorld:
    """See the module."""

    def __init__(self, scenario: Scenario) -> None:
        self.name, self._scenario = scenario.name, scenario
        self.delivered = self.ends_told = 0

    # ---- states ---------------------------------------------------------------------------------

    def initial(self) -> explore.State:
        """Returns two machines without a stream."""
        client, coordinator = ClientStreams(), CoordinatorStreams(self._scenario.streams_max)
        ways = Ways(cuts=self._scenario.cuts)
        return _pack(World(client, coordinator, self._scenario.layers, ways))

    def _unpack(self, state: explore.State) -> World:
        (last, granted, sent), (last_begun, rooms), layers, ways = state
        client, coordinator = ClientStreams(), CoordinatorStreams(self._scenario.streams_max)
        client._last, client._granted, client._sent = last, dict(granted), dict(sent)
        coordinator._last = last_begun
        for number, *counts in rooms:
            room = coordinator._rooms[number] = Room(0)
            room.room, room.due, room.unreleased = counts
        return World(client, coordinator, tuple(Layer(*each) for each in layers), Ways(*ways))

    # ---- steps ----------------------------------------------------------------------------------

    def moves(self, state: explore.State) -> list[tuple[explore.Move, explore.State | str]]:
        """Returns every step."""
        found: list[tuple[explore.Move, explore.State | str]] = []
        for line, step in self._steps(self._unpack(state)):
            after: explore.State | str
            try:
                after = _pack(step(self._unpack(state)))
            except (_Broken, FrameError, ValueError, KeyError) as broken:
                after = f"{type(broken).__name__}: {broken}"
            found.append(((line, False), after))
        return found

    def _steps(self, world: World) -> Iterator[tuple[str, Any]]:
        ways = world.ways
        if ways.is_cut:
            return
        can_send = []
        for n, layer in enumerate(world.layers):
            open_ = not layer.told and not layer.client_ended
            has_room = not layer.number or world.client.may_send(layer.number)
            if open_ and layer.to_send and has_room:
                can_send.append(n)
                yield f"client sends on {n}", lambda w, n=n: self._send(w, [n])
            if open_ and layer.ends:
                yield f"client ends {n}", lambda w, n=n: self._client_ends(w, n)
            is_there = layer.begun and not layer.coordinator_over
            room = world.coordinator._rooms.get(layer.number)
            if is_there and room is not None and room.unreleased:
                yield f"coordinator releases one of {n}", lambda w, n=n: self._release(w, n)
            if is_there and layer.refuses:
                yield f"coordinator ends {n}", lambda w, n=n: self._coordinator_ends(w, n)
        if self._scenario.together and len(can_send) > 1:
            yield "client sends on all", lambda w, all_=can_send: self._send(w, all_)
        if ways.to_coordinator:
            yield "coordinator gets a message", self._to_coordinator
        if ways.to_client:
            yield "client gets a message", self._to_client
        if ways.cuts:
            yield "the connection is cut", self._cut

    def _send(self, world: World, which: list[int]) -> World:
        parts = []
        for n in which:
            layer = world.layers[n]
            number = layer.number or world.client.begin()
            payload = bytes((n, layer.sent))
            parts.append(message_part(number, payload))
            world.client.sent(number, payload)
            world = _with(world, n, number=number, to_send=layer.to_send - 1, sent=layer.sent + 1)
        return _say(world, parts, to_client=False)

    def _client_ends(self, world: World, n: int) -> World:
        layer = world.layers[n]
        world = _with(world, n, ends=layer.ends - 1, client_ended=True)
        if not layer.number:
            return world
        world.client.end(layer.number)
        return _say(world, [end_part(layer.number, SessionClosedError("client"))], to_client=False)

    def _release(self, world: World, n: int) -> World:
        number = world.layers[n].number
        world.coordinator.release(number, COST)
        return _say(world, world.coordinator.to_send(number), to_client=True)

    def _coordinator_ends(self, world: World, n: int) -> World:
        layer = world.layers[n]
        parts = world.coordinator.end(layer.number, SessionClosedError("coordinator"))
        world = _with(world, n, refuses=layer.refuses - 1, coordinator_over="coordinator")
        return _say(world, parts, to_client=True)

    def _to_coordinator(self, world: World) -> World:
        first, *rest = world.ways.to_coordinator
        world = world._replace(ways=world.ways._replace(to_coordinator=tuple(rest)))
        for event in world.coordinator.receive(first):
            n = _layer_of(world, event.stream)
            layer = world.layers[n]
            if layer.coordinator_over:
                raise _Broken(f"stream {n} is over at the coordinator, and {event} came")
            match event:
                case StreamBegan():
                    if layer.begun:
                        raise _Broken(f"stream {n} began twice")
                    world = _with(world, n, begun=True)
                case StreamMessage(_, payload):
                    if not layer.begun or payload != bytes((n, layer.came)):
                        raise _Broken(f"message {layer.came} of {n} was expected, not {event}")
                    self.delivered += 1
                    world = _with(world, n, came=layer.came + 1)
                case StreamEnded(_, error):
                    if not layer.client_ended or layer.came != layer.sent:
                        raise _Broken(f"stream {n} ended before its client ended it: {event}")
                    world = _with(world, n, coordinator_over=str(error))
        return _say(world, world.coordinator.to_send(0), to_client=True)

    def _to_client(self, world: World) -> World:
        first, *rest = world.ways.to_client
        world = world._replace(ways=world.ways._replace(to_client=tuple(rest)))
        for event in read_for_client(first):
            match event:
                case StreamRoom():
                    world.client.granted(event)
                case StreamEnded(number, error):
                    n = _layer_of(world, number)
                    layer = world.layers[n]
                    if layer.client_ended:
                        continue  # Its shell has forgotten the number.
                    if layer.told:
                        raise _Broken(f"stream {n} was ended twice")
                    self.ends_told += 1
                    world.client.end(number)
                    world = _with(world, n, told=str(error))
        return world

    def _cut(self, world: World) -> World:
        """Loses what is under way, and tells both of the end; nothing may happen behind it."""
        return world._replace(ways=Ways(cuts=world.ways.cuts - 1, is_cut=True))

    # ---- what must hold -------------------------------------------------------------------------

    def check(self, state: explore.State) -> str | None:
        """Returns what is wrong with a state."""
        world = self._unpack(state)
        rooms = world.coordinator._rooms
        if len(rooms) > self._scenario.streams_max:
            return f"the coordinator holds {len(rooms)} streams"
        for room in rooms.values():
            if room.unreleased > multiplex.ROOM_BYTES + COST:
                return f"{room.unreleased} bytes are unreleased"
            if room.room + room.due + room.unreleased != multiplex.ROOM_BYTES:
                return "room was lost or made"
        ways = world.ways
        if ways.is_cut or ways.to_client or ways.to_coordinator:
            return None
        for n, layer in enumerate(world.layers):
            problem = self._at_rest(world, layer)
            if problem is not None:
                return f"stream {n}: {problem}"
        numbers = {layer.number for layer in world.layers}
        return None if set(rooms) <= numbers else f"{rooms} are held, of {numbers}"

    def _at_rest(self, world: World, layer: Layer) -> str | None:
        """Returns what is wrong with a stream while nothing is under way."""
        room = world.coordinator._rooms.get(layer.number)
        is_over = bool(layer.told) or layer.client_ended
        if is_over != (room is None) and layer.number:
            return f"over at the client: {is_over}, at the coordinator: {room is None}"
        if is_over and layer.begun and not layer.coordinator_over:
            return "the coordinator's layer does not know that it is over"
        if layer.coordinator_over == "coordinator" and not is_over:
            return "the client was not told of the end"
        if is_over:
            known = layer.number in world.client._granted or layer.number in world.client._sent
            return "the client keeps what is over" if known else None
        if layer.came != layer.sent:
            return f"{layer.sent} messages were sent, and {layer.came} came"
        if room is None:
            return None
        left = world.client._granted[layer.number] - world.client._sent[layer.number]
        if left != room.room:
            return f"the client has {left} bytes of room, and the coordinator gave {room.room}"
        if left <= 0 and room.due:
            return "a sender waits for room that is free"
        if left > 0 and not world.client.may_send(layer.number):
            return "it waits for room that others took"
        return None

    def tell(self, state: explore.State, move: explore.Move, traded: bool) -> str:  # noqa: ARG002
        """Returns a step as a line."""
        return str(move[0])

    def tell_end(self, state: explore.State) -> list[str]:  # noqa: ARG002
        """Returns nothing: the violation says it."""
        return []


def _pack(world: World) -> explore.State:
    client, coordinator = world.client, world.coordinator
    assert not coordinator._refused, "it is said at once"
    rooms = tuple(
        (number, room.room, room.due, room.unreleased)
        for number, room in sorted(coordinator._rooms.items())
    )
    sums = tuple(tuple(sorted(each.items())) for each in (client._granted, client._sent))
    return (
        (client._last, *sums),
        (coordinator._last, rooms),
        tuple(map(tuple, world.layers)),
        tuple(world.ways),
    )


def _with(world: World, n: int, **changes: Any) -> World:
    layers = list(world.layers)
    layers[n] = layers[n]._replace(**changes)
    return world._replace(layers=tuple(layers))


def _say(world: World, parts: list[Part], *, to_client: bool) -> World:
    if not parts:
        return world
    payload = Parts(parts=parts).SerializeToString(deterministic=True)
    ways = world.ways
    if to_client:
        return world._replace(ways=ways._replace(to_client=(*ways.to_client, payload)))
    return world._replace(ways=ways._replace(to_coordinator=(*ways.to_coordinator, payload)))


def _layer_of(world: World, number: int) -> int:
    """Returns whose a number is: the last one that was given it."""
    found = [n for n, layer in enumerate(world.layers) if layer.number == number]
    if not found:
        raise _Broken(f"nobody has the number {number}")
    return found[-1]
