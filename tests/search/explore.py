"""Breadth-first search over every state of a small world. Knows nothing of transactions.

A state is a tuple of plain values that `marshal` writes; equal states have equal tuples, so a world
must give its states in a canonical form. Of a state that was seen, 8 bytes of BLAKE2b are kept (of
30 million states, two are taken for one with a chance of 1 in 40,000), and where it came from:
5 bytes. So a violation's trace is one of the shortest, and memory stays small: only the states
of the level at hand are held whole.
"""

from __future__ import annotations

import marshal
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from resource import RUSAGE_SELF, getrusage
from typing import Any, Final, Protocol

Move = tuple[Any, ...]
"""What happens in one step, for people: `World.tell` puts it into words. The last item says
whether two parties that are alike have changed places in the state after."""
State = tuple[Any, ...]
KIB: Final = 1024
"""Linux counts memory by it."""


class World(Protocol):
    """A small world: where it begins, and all that may happen next."""

    name: str

    def initial(self) -> State:
        """The one state that it begins in."""

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Every step from a state and where it leads, in an order that is always the same.

        A text stands for a step that breaks an invariant, and says which.
        """

    def check(self, state: State) -> str | None:
        """What invariant a state breaks, if any."""

    def tell(self, state: State, move: Move, traded: bool) -> str:
        """A step from a state, in a line; `traded` if those alike bear each other's names."""

    def tell_end(self, state: State) -> list[str]:
        """What more leads to what `check` found, a step a line."""


@dataclass(slots=True)
class Report:
    """What a search found."""

    world: str
    states: int = 0
    transitions: int = 0
    levels: list[int] = field(default_factory=list)
    """States first met at each depth."""
    seconds: float = 0.0
    """Of this process's CPU: what else runs on the machine does not count."""
    violation: str | None = None
    trace: list[str] = field(default_factory=list)
    """The steps to the violation, in words."""
    choices: list[int] = field(default_factory=list)
    """The same as `retrace` takes them."""
    complete: bool = False
    """Whether every state was visited, as opposed to stopped by a limit or a violation."""
    notes: dict[str, float] = field(default_factory=dict)
    """What a world counted besides."""

    @property
    def depth(self) -> int:
        """Steps to the furthest state."""
        return max(len(self.levels) - 1, 0)

    @property
    def branching(self) -> float:
        """Steps that can be taken from a state, on average."""
        return self.transitions / self.states if self.states else 0.0

    @property
    def rate(self) -> float:
        """States per second of CPU time."""
        return self.states / self.seconds if self.seconds else 0.0


class _Trail:
    """Where each state came from: its parent's place in the level before, and which move."""

    def __init__(self) -> None:
        self._parents: list[array[int]] = []
        self._choices: list[array[int]] = []

    def next_level(self) -> None:
        self._parents.append(array("I"))
        self._choices.append(array("B"))

    def add(self, parent: int, choice: int) -> None:
        self._parents[-1].append(parent)
        self._choices[-1].append(choice)

    def choices(self, level: int, place: int) -> list[int]:
        """The moves that lead to a state, by their numbers."""
        found = []
        for depth in range(level, 0, -1):
            found.append(self._choices[depth - 1][place])
            place = self._parents[depth - 1][place]
        return found[::-1]


def explore(
    world: World,
    *,
    states_max: int = 2**62,
    seconds_max: float = float("inf"),
    memory_max_bytes: float = float("inf"),
    progress: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Visit every state, or all up to the first violation.

    Args:
        world: what to search.
        states_max: stop, incomplete, beyond so many.
        seconds_max: stop, incomplete, after so much CPU time.
        memory_max_bytes: stop, incomplete, when the process has ever held so much.
        progress: called about every second of CPU time.
    """
    report, began_s = Report(world.name), time.process_time()
    told_s = began_s
    trail = _Trail()
    first = world.initial()
    problem = world.check(first)
    if problem is not None:
        report.violation = problem
        return report
    packed = marshal.dumps(first, 2)
    seen = {blake2b(packed, digest_size=8).digest()}
    level = [packed]
    report.levels, report.states = [1], 1
    while level:
        following: list[bytes] = []
        trail.next_level()
        for place, packed in enumerate(level):
            for choice, (_, after) in enumerate(world.moves(marshal.loads(packed))):
                report.transitions += 1
                if isinstance(after, str):
                    problem = after
                else:
                    packed_after = marshal.dumps(after, 2)
                    digest = blake2b(packed_after, digest_size=8).digest()
                    if digest in seen:
                        continue
                    seen.add(digest)
                    following.append(packed_after)
                    trail.add(place, choice)
                    problem = world.check(after)
                if problem is not None:
                    report.violation = problem
                    report.choices = [*trail.choices(len(report.levels) - 1, place), choice]
                    report.trace = retrace(world, report.choices)
                    report.seconds = time.process_time() - began_s
                    return report
            if not place & 1023 and (now_s := time.process_time()) - told_s >= 1:
                told_s, report.states, report.seconds = now_s, len(seen), now_s - began_s
                progress(report)
                held_bytes = getrusage(RUSAGE_SELF).ru_maxrss * KIB
                if (
                    report.seconds > seconds_max
                    or report.states > states_max
                    or held_bytes > memory_max_bytes
                ):
                    return report
        report.states, report.seconds = len(seen), time.process_time() - began_s
        if following:
            report.levels.append(len(following))
        level = following
    report.complete = True
    progress(report)
    return report


def retrace(world: World, choices: list[int]) -> list[str]:
    """The steps that these choices make, in words."""
    state, lines, traded = world.initial(), [], False
    for choice in choices:
        move, after = world.moves(state)[choice]
        lines.append(world.tell(state, move, traded))
        traded ^= move[-1]
        if isinstance(after, str):
            return lines
        state = after
    world.check(state)
    return [*lines, *world.tell_end(state)]
