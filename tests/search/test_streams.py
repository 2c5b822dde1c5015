"""Streams of one connection, searched, and the proof that the search bites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from logtx.coordinator.protocol import multiplex
from logtx.coordinator.protocol.multiplex import (
    ClientStreams,
    CoordinatorStreams,
    StreamEnded,
    StreamMessage,
)
from logtx.coordinator.protocol.open_pb2 import Part
from logtx.coordinator.protocol.room import Room

from ..parameters import slow
from .explore import explore
from .streams_world import Layer, Scenario, StreamsWorld
from .test_sidecars import Patch, told

pytestmark = pytest.mark.timeout(900)

ROOM = Scenario(name="a room of two messages", layers=(Layer(5), Layer(2)))
ENDS = Scenario(name="both end both", layers=(Layer(2, 1, 1), Layer(2, 1, 1)))
THREE = Scenario(name="three, one after the other", layers=(Layer(1, 1), Layer(1, 0, 1), Layer(1)))
CUT = Scenario(name="a cut", layers=(Layer(2, 1, 0), Layer(1, 0, 1)), cuts=1)
FULL = Scenario(
    name="more than a connection takes", layers=(Layer(2, 1), Layer(2), Layer(1)), streams_max=1
)
TOGETHER = Scenario(name="in one message", layers=(Layer(3), Layer(3, 1)), together=True)
REDUCED = (ROOM, ENDS, THREE, CUT, FULL, TOGETHER)
LARGER = (
    Scenario(name="three end", layers=(Layer(2, 1, 1), Layer(1, 1, 1), Layer(1, 1)), together=True),
    Scenario(name="long ones", layers=(Layer(6, 1), Layer(6, 0, 1)), together=True),
)


@pytest.fixture(autouse=True)
def _small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiplex, "ROOM_BYTES", 2 * 258)


@pytest.mark.parametrize("scenario", [*REDUCED, *slow(LARGER)], ids=lambda each: each.name)
def test_no_message_and_no_end_of_a_stream_is_lost_doubled_or_taken_for_anothers(
    scenario: Scenario,
) -> None:
    world = StreamsWorld(scenario)
    report = explore(world)
    assert report.violation is None, told(report)
    assert report.complete
    assert world.delivered
    refuses = any(layer.refuses for layer in scenario.layers) or scenario.streams_max == 1
    assert bool(world.ends_told) == refuses
    print(
        f"{world.name}: {report.states} states, {report.transitions} steps, {report.seconds:.1f} s"
    )


# ---- rules, dropped one at a time ---------------------------------------------------------------


def late_parts_begin_a_stream(patch: Patch) -> None:
    """Takes what was under way to a stream that has ended for a new one (S1)."""
    receive = CoordinatorStreams.receive

    def mutant(self: Any, payload: bytes) -> Any:
        self._last = 0
        return receive(self, payload)

    patch(CoordinatorStreams, "receive", mutant)


def numbers_are_given_again(patch: Patch) -> None:
    """Gives the number of a stream that has ended to the next one (S1)."""
    end = ClientStreams.end

    def mutant(self: Any, stream: int) -> None:
        end(self, stream)
        self._last = max(self._granted, default=0)

    patch(ClientStreams, "end", mutant)


def messages_are_taken_twice(patch: Patch) -> None:
    """Takes a message twice (S1)."""
    receive = CoordinatorStreams.receive

    def mutant(self: Any, payload: bytes) -> Any:
        events = receive(self, payload)
        return [e for e in events for _ in range(2 if isinstance(e, StreamMessage) else 1)]

    patch(CoordinatorStreams, "receive", mutant)


def the_room_is_not_waited_for(patch: Patch) -> None:
    """Sends without room (S2)."""
    patch(ClientStreams, "may_send", lambda self, stream: stream in self._sent)


def all_streams_have_one_room(patch: Patch) -> None:
    """Takes what any stream sent from the room of all (S2, trap 282)."""

    def mutant(self: Any, stream: int) -> bool:
        return bool(self._granted.get(stream, 0) > sum(self._sent.values()))

    patch(ClientStreams, "may_send", mutant)


def every_stream_is_let_in(patch: Patch) -> None:
    """Lets any number of streams begin (S3)."""
    init = CoordinatorStreams.__init__

    def mutant(self: Any, _: int) -> None:
        init(self, 10)

    patch(CoordinatorStreams, "__init__", mutant)


def who_is_not_let_in_is_not_told(patch: Patch) -> None:
    """Says nothing to who begins too many (S3, S5)."""
    to_send = CoordinatorStreams.to_send

    def mutant(self: Any, stream: int) -> list[Part]:
        self._refused = []
        return to_send(self, stream)

    patch(CoordinatorStreams, "to_send", mutant)


def room_is_given_at_half(patch: Patch) -> None:
    """Gives room again when more than half of it is free (S4, trap 212)."""
    grant = Room.grant

    def mutant(self: Any) -> int:
        return grant(self) if self.due > multiplex.ROOM_BYTES // 2 else 0

    patch(Room, "grant", mutant)


def released_room_is_not_given(patch: Patch) -> None:
    """Gives less room than was released (S4)."""
    release = Room.release

    def mutant(self: Any, cost: int) -> None:
        release(self, cost)
        self.due -= 1

    patch(Room, "release", mutant)


def a_clients_end_is_not_told(patch: Patch) -> None:
    """Says nothing above of an end by the client (S5)."""
    receive = CoordinatorStreams.receive

    def mutant(self: Any, payload: bytes) -> Any:
        return [e for e in receive(self, payload) if not isinstance(e, StreamEnded)]

    patch(CoordinatorStreams, "receive", mutant)


def a_coordinators_end_is_not_told(patch: Patch) -> None:
    """Says nothing to the client of an end (S5)."""
    end = CoordinatorStreams.end

    def mutant(self: Any, stream: int, error: Any) -> list[Part]:
        return end(self, stream, error)[:0]

    patch(CoordinatorStreams, "end", mutant)


def who_ends_a_stream_remembers_it(patch: Patch) -> None:
    """Keeps a stream that it has ended itself (S5)."""

    def mutant(self: Any, stream: int, error: Any) -> list[Part]:
        return [multiplex.end_part(stream, error)] if stream in self._rooms else []

    patch(CoordinatorStreams, "end", mutant)


@dataclass(frozen=True)
class Mutation:
    """A rule that is dropped, and where that shows."""

    apply: Callable[[Patch], None]
    scenario: Scenario


MUTATIONS = (
    Mutation(late_parts_begin_a_stream, ENDS),
    Mutation(numbers_are_given_again, THREE),
    Mutation(messages_are_taken_twice, ROOM),
    Mutation(the_room_is_not_waited_for, ROOM),
    Mutation(all_streams_have_one_room, ROOM),
    Mutation(every_stream_is_let_in, FULL),
    Mutation(who_is_not_let_in_is_not_told, FULL),
    Mutation(room_is_given_at_half, ROOM),
    Mutation(released_room_is_not_given, ROOM),
    Mutation(a_clients_end_is_not_told, ENDS),
    Mutation(a_coordinators_end_is_not_told, ENDS),
    Mutation(who_ends_a_stream_remembers_it, ENDS),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.apply.__name__)
def test_a_dropped_rule_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.apply(monkeypatch.setattr)
    report = explore(StreamsWorld(mutation.scenario))
    assert report.violation is not None, f"{report.states} states, and none shows it"
    print(report.violation)
