"""Breadth-first search over every state of a small world. Knows nothing of transactions.

A state is a tuple of plain values that `marshal` writes. Equal states must have equal tuples, so a
world gives its states in a canonical form. Each state that was seen takes 8 bytes of BLAKE2b (among
30 million states, two are taken for one with a chance of 1 in 40,000) and 5 bytes that say where it
came from. So a violation's trace is one of the shortest, and memory stays small: only the states of
the present level are held whole.
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
"""What happens in one step; `World.tell` puts it into words. The last item says whether two parties
that are alike have changed places in the state after it."""
State = tuple[Any, ...]
KIB: Final = 1024
"""The unit in which Linux counts memory."""


class World(Protocol):
    """A small world: where it begins, and all that may happen next."""

    name: str

    def initial(self) -> State:
        """Returns the one state that it begins in."""

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step from a state and where it leads, always in the same order.

        A step that breaks an invariant leads to a text that says which.
        """

    def check(self, state: State) -> str | None:
        """Returns which invariant a state breaks, if any."""

    def tell(self, state: State, move: Move, traded: bool) -> str:
        """Returns a step as a line; `traded`: the parties that are alike have swapped names."""

    def tell_end(self, state: State) -> list[str]:
        """Returns the further steps that lead to what `check` found, one line for each."""


@dataclass(slots=True)
class Report:
    """Result of a search."""

    world: str
    states: int = 0
    transitions: int = 0
    levels: list[int] = field(default_factory=list)
    """States first met at each depth."""
    seconds: float = 0.0
    """CPU seconds of this process: other work of the machine does not count."""
    violation: str | None = None
    trace: list[str] = field(default_factory=list)
    """The steps to the violation, in words."""
    choices: list[int] = field(default_factory=list)
    """The same in the form that `retrace` takes."""
    complete: bool = False
    """Whether every state was visited; False if a limit or a violation stopped the search."""
    notes: dict[str, float] = field(default_factory=dict)
    """Further counts of the world."""

    @property
    def depth(self) -> int:
        """Number of steps to the furthest state."""
        return max(len(self.levels) - 1, 0)

    @property
    def branching(self) -> float:
        """Average number of steps that can be taken from a state."""
        return self.transitions / self.states if self.states else 0.0

    @property
    def rate(self) -> float:
        """States per second of CPU time."""
        return self.states / self.seconds if self.seconds else 0.0


class _Trail:
    """Keeps where each state came from: its parent's place in the level before, and the move."""

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
        """Returns the numbers of the moves that lead to a state."""
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
    """Visits every state, or all up to the first violation.

    Args:
        world: what to search.
        states_max: number of states beyond which to stop, incomplete.
        seconds_max: CPU seconds after which to stop, incomplete.
        memory_max_bytes: peak memory of the process at which to stop, incomplete.
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
    """Returns the steps that these choices make, in words."""
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
