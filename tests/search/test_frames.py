"""Two ends of a connection, searched, and the proof that the search bites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from logtx.coordinator.protocol import frames
from logtx.coordinator.protocol.frames import Ended, Endpoint, Kind, State
from logtx.journal.errors import SessionClosedError

from ..parameters import slow
from .explore import explore
from .frames_world import DEADLINES, FramesWorld, Left, Scenario
from .test_sidecars import Patch, told

pytestmark = pytest.mark.timeout(900)

HELLO = Scenario(name="hello", closes=(1, 1), is_open=False, left=Left(cuts=1), messages=(1, 0))
SILENT_HELLO = Scenario(
    name="hello, silence", is_open=False, left=Left(vanishes=1, times=1), messages=(0, 1)
)
WINDOW = Scenario(name="a window of three messages", messages=(5, 0), window_bytes=600)
CLOSES = Scenario(name="both close", messages=(2, 0), closes=(1, 1), window_bytes=300)
CUT = Scenario(name="a cut", messages=(2, 1), left=Left(cuts=1), window_bytes=300)
SILENT = Scenario(name="silence", messages=(1, 0), left=Left(vanishes=1, times=1))
PINGS = Scenario(name="pings", messages=(1, 0), prompt=True, left=Left(times=4))
FULL_WINDOW = replace(PINGS, name="pings beside full windows", releases=False)
STILL = Scenario(
    name="one stands still", messages=(1, 0), prompt=True, left=Left(times=2, stills=1)
)
SLOW_NETWORK = Scenario(name="a slow network", closes=(1, 0), left=Left(times=2))
SHOWN = Scenario(name="shown alive", messages=(1, 1), closes=(0, 1), left=Left(shows=2, times=1))
SHOWN_ONCE = replace(SHOWN, name="shown alive once", messages=(1, 0), left=Left(shows=1, times=1))
REDUCED = (HELLO, SILENT_HELLO, WINDOW, CLOSES, CUT, SILENT, PINGS, FULL_WINDOW, STILL, SHOWN_ONCE)
LARGER = (
    replace(STILL, name="both stand still", left=Left(times=2, stills=2)),
    SLOW_NETWORK,
    SHOWN,
    replace(CLOSES, name="both close, more messages", messages=(2, 1)),
    replace(CUT, name="a cut, closes", messages=(1, 1), closes=(1, 1)),
    replace(SILENT, name="silence, for longer", left=Left(vanishes=1, times=2)),
)


@pytest.mark.parametrize("scenario", [*REDUCED, *slow(LARGER)], ids=lambda each: each.name)
def test_no_message_and_no_end_is_lost_or_doubled(scenario: Scenario) -> None:
    world = FramesWorld(scenario)
    report = explore(world)
    assert report.violation is None, told(report)
    assert report.complete
    assert world.delivered, "no message came in any state"
    assert world.ends_told or not (any(scenario.closes) or any(scenario.left[:2]))
    print(
        f"{world.name}: {report.states} states, {report.transitions} steps, {report.seconds:.1f} s"
    )


# ---- rules, dropped one at a time ---------------------------------------------------------------


def partial_frames_are_dropped(patch: Patch) -> None:
    """Forgets what lies behind the last whole frame (F1)."""
    receive = Endpoint.receive

    def mutant(self: Any, data: bytes, now_ms: int) -> Any:
        events = receive(self, data, now_ms)
        if self.state is State.OPEN and data[:1] != frames.MAGIC[:1]:
            self._buffer.clear()
        return events

    patch(Endpoint, "receive", mutant)


def frames_are_taken_again(patch: Patch) -> None:
    """Takes a message twice (F1)."""
    take = Endpoint._take

    def mutant(self: Any, kind: int, payload: bytes, now_ms: int) -> Any:
        return take(self, kind, payload, now_ms) * (2 if kind == Kind.MESSAGE else 1)

    patch(Endpoint, "_take", mutant)


def the_window_is_not_waited_for(patch: Patch) -> None:
    """Sends without room (F2)."""
    send = Endpoint.send

    def mutant(self: Any, payload: bytes) -> bytes:
        self._window += 1_000
        data = send(self, payload)
        self._window -= 1_000
        return data

    patch(Endpoint, "send", mutant)
    patch(Endpoint, "may_send", property(lambda self: self.state is State.OPEN))


def room_is_given_at_half(patch: Patch) -> None:
    """Gives room again when half of the window is free (F3, trap 212)."""
    to_send = Endpoint.to_send

    def mutant(self: Any) -> bytes:
        due = self._room.due
        if due < self._window_bytes // 2:
            self._room.due = 0
        said = to_send(self)
        if due < self._window_bytes // 2:
            self._room.due = due
        return said

    patch(Endpoint, "to_send", mutant)


def released_room_is_not_given(patch: Patch) -> None:
    """Gives less room than was released (F3)."""
    release = Endpoint.release

    def mutant(self: Any, cost: int) -> None:
        release(self, cost)
        self._room.due -= 1

    patch(Endpoint, "release", mutant)


def _without_pong(patch: Patch, when: Callable[[Any], bool]) -> None:
    to_send = Endpoint.to_send

    def mutant(self: Any) -> bytes:
        self._pong_due = self._pong_due and not when(self)
        return to_send(self)

    patch(Endpoint, "to_send", mutant)


def pings_are_not_answered(patch: Patch) -> None:
    """Answers no PING (F4)."""
    _without_pong(patch, lambda _: True)


def a_full_window_stops_answers(patch: Patch) -> None:
    """Answers no PING while the window is full, as an end does that reads no more (trap 210)."""
    _without_pong(patch, lambda end: not end._room.is_left)


def no_pings(patch: Patch) -> None:
    """Never asks whether the peer is there (F4)."""
    tick = Endpoint.tick

    def mutant(self: Any, now_ms: int) -> Any:
        self._ping_at_ms = now_ms + 1
        return tick(self, now_ms)

    patch(Endpoint, "tick", mutant)


def bytes_are_no_sign_of_life(patch: Patch) -> None:
    """Lets the deadline stand whatever comes (F4)."""
    receive = Endpoint.receive

    def mutant(self: Any, data: bytes, now_ms: int) -> Any:
        by = self._pong_by_ms
        events = receive(self, data, now_ms)
        if self.state is State.OPEN:
            self._pong_by_ms = by
        return events

    patch(Endpoint, "receive", mutant)


def a_hello_is_awaited_for_ever(patch: Patch) -> None:
    """Has no deadline for the hello (F4)."""
    init = Endpoint.__init__

    def mutant(self: Any, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        self._wait_by_ms = None

    patch(Endpoint, "__init__", mutant)


def lingering_has_no_end(patch: Patch) -> None:
    """Waits for ever for the peer to end its side (F4)."""
    linger = Endpoint._linger

    def mutant(self: Any, error: Any, last: bytes, now_ms: int) -> Ended:
        ended = linger(self, error, last, now_ms)
        self._wait_by_ms = None
        return ended

    patch(Endpoint, "_linger", mutant)


def an_end_is_told_again(patch: Patch) -> None:
    """Tells the end of the stream behind an end (F5)."""
    end = Endpoint.receive_end

    def mutant(self: Any) -> Any:
        return end(self) or [Ended(SessionClosedError("again"))]

    patch(Endpoint, "receive_end", mutant)


def an_end_is_not_told(patch: Patch) -> None:
    """Says nothing above of an end by the network (F5)."""
    end = Endpoint.receive_end

    def mutant(self: Any) -> Any:
        return end(self)[:0]

    patch(Endpoint, "receive_end", mutant)


def close_says_nothing(patch: Patch) -> None:
    """Ends without a CLOSE (F5)."""
    patch(frames, "_close_frame", lambda _: b"")


def the_socket_is_closed_behind_close(patch: Patch) -> None:
    """Closes as soon as CLOSE is written, with bytes unread (F5, trap 214)."""
    to_send = Endpoint.to_send

    def mutant(self: Any) -> bytes:
        said = to_send(self)
        if self.state is State.LINGERING:
            self._closed(SessionClosedError())
        return said

    patch(Endpoint, "to_send", mutant)


def unasked_pongs_are_refused(patch: Patch) -> None:
    """Takes a PONG that it did not ask for as an end (trap 237)."""
    take = Endpoint._take

    def mutant(self: Any, kind: int, payload: bytes, now_ms: int) -> Any:
        if kind == Kind.PONG and self._pong_by_ms is None:
            return [self._violated("sent a PONG that was not asked for", now_ms)]
        return take(self, kind, payload, now_ms)

    patch(Endpoint, "_take", mutant)


def nothing(_: Patch) -> None:
    """Drops a rule by the scenario."""


@dataclass(frozen=True)
class Mutation:
    """A rule that is dropped, and where that shows."""

    apply: Callable[[Patch], None]
    scenario: Scenario


MUTATIONS = (
    Mutation(partial_frames_are_dropped, CUT),
    Mutation(frames_are_taken_again, WINDOW),
    Mutation(the_window_is_not_waited_for, WINDOW),
    Mutation(room_is_given_at_half, WINDOW),
    Mutation(released_room_is_not_given, WINDOW),
    Mutation(pings_are_not_answered, PINGS),
    Mutation(a_full_window_stops_answers, FULL_WINDOW),
    Mutation(no_pings, SILENT),
    Mutation(bytes_are_no_sign_of_life, PINGS),
    Mutation(a_hello_is_awaited_for_ever, SILENT_HELLO),
    Mutation(lingering_has_no_end, replace(CLOSES, left=Left(vanishes=1))),
    Mutation(an_end_is_told_again, CLOSES),
    Mutation(an_end_is_not_told, CUT),
    Mutation(close_says_nothing, CLOSES),
    Mutation(the_socket_is_closed_behind_close, CLOSES),
    Mutation(unasked_pongs_are_refused, SHOWN),
    # Trap 213: an end that stood still takes its peer for dead.
    Mutation(nothing, replace(STILL, deadlines=replace(DEADLINES, late_ms=10_000))),
)


@pytest.mark.parametrize(
    "mutation", MUTATIONS, ids=lambda each: f"{each.apply.__name__}-{each.scenario.name}"
)
def test_a_dropped_rule_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.apply(monkeypatch.setattr)
    report = explore(FramesWorld(mutation.scenario))
    assert report.violation is not None, f"{report.states} states, and none shows it"
    print(report.violation)
