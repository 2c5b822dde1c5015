"""The real cores as machines: a state is a number; a step that was taken once is looked up.

A `Tenure` (with its `Shard`) and a `PartitionBuffer` are deterministic, and millions of
interleavings reach few different states. So the core itself takes each distinct step once, and the
machine keeps it: `step(state, input) → (state, outputs)`. The `Fingerprint` tells two states of a
core apart: it covers everything reachable from the core, except what never changes. If it tells
apart states that are in truth alike, the search is larger than it must be, but no less right.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Protocol

COPIES_MAX: Final = 4_096
"""Live cores that a machine keeps. With fewer, more steps begin by replaying a core's inputs from
its start; more take memory."""


class Interner:
    """Numbers distinct values."""

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[Any] = []

    def __call__(self, value: Hashable) -> int:
        """Returns the number of a value."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


class Chains:
    """Numbers distinct sequences that grow at their end; 0 is the empty one."""

    __slots__ = ("_children", "_items", "lengths", "parents", "tails")

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._items: dict[int, tuple[int, ...]] = {0: ()}
        self.lengths = [0]
        self.parents = [0]
        self.tails = [-1]
        """Last item of each sequence, by its number."""

    def append(self, chain: int, item: int) -> int:
        """Returns the number of the longer sequence."""
        found = self._children.get((chain, item))
        if found is None:
            found = self._children[chain, item] = len(self.lengths)
            self.lengths.append(self.lengths[chain] + 1)
            self.parents.append(chain)
            self.tails.append(item)
        return found

    def items(self, chain: int) -> tuple[int, ...]:
        """Returns the items of a sequence."""
        out = []
        while chain:
            out.append(self.tails[chain])
            chain = self.parents[chain]
        return tuple(out[::-1])


class Core(Protocol):
    """A real core, and the inputs that it takes."""

    def apply(self, key: Hashable) -> None:
        """Takes an input."""

    def drain(self) -> tuple[Any, ...]:
        """Returns what it gave out since the last call."""

    def fingerprint(self) -> bytes:
        """Returns its whole state, as `Fingerprint` gives it."""

    def facts(self) -> Any:
        """Returns what the world and the invariants need to know of this state."""


class Machine:
    """The states of one kind of core, and the steps that were taken between them."""

    def __init__(self, make: Callable[[Any], Core]) -> None:
        """Begins without any state.

        Args:
            make: makes a core from its origin; there may be many origins.
        """
        self._make = make
        self._numbers: dict[bytes, int] = {}
        self._origins: list[tuple[int, Any]] = []
        """By state: the state before and the input; or -1 and the origin."""
        self._steps: dict[tuple[int, Any], tuple[int, tuple[Any, ...]]] = {}
        self._starts: dict[Any, tuple[int, tuple[Any, ...]]] = {}
        self._live: OrderedDict[int, Core] = OrderedDict()
        self.facts: list[Any] = []
        """Facts of each state, by its number."""

    def start(self, origin: Hashable) -> tuple[int, tuple[Any, ...]]:
        """Returns the state that a core starts in, and what it gave out by then."""
        found = self._starts.get(origin)
        if found is None:
            core = self._make(origin)
            given = core.drain()
            found = self._starts[origin] = self._number(core, -1, origin), given
        return found

    def step(self, state: int, key: Hashable) -> tuple[int, tuple[Any, ...]]:
        """Returns the state that an input leads to, and what the core gives out."""
        found = self._steps.get((state, key))
        if found is None:
            core = self._core(state)
            core.apply(key)
            given = core.drain()
            found = self._steps[state, key] = self._number(core, state, key), given
        return found

    @property
    def steps_taken(self) -> int:
        """Number of distinct steps that the real core took."""
        return len(self._steps) + len(self._starts)

    def _core(self, state: int) -> Core:
        # The caller changes the core, so it is taken out; its chain of inputs can make it again.
        core = self._live.pop(state, None)
        if core is not None:
            return core
        keys = []
        while True:
            before, key = self._origins[state]
            if before < 0:
                core = self._make(key)
                break
            keys.append(key)
            state = before
        for key in reversed(keys):
            core.apply(key)
        core.drain()
        return core

    def _number(self, core: Core, before: int, key: Any) -> int:
        packed = core.fingerprint()
        number = self._numbers.get(packed)
        if number is None:
            number = self._numbers[packed] = len(self._origins)
            self._origins.append((before, key))
            self.facts.append(core.facts())
        if number not in self._live:
            self._live[number] = core
            if len(self._live) > COPIES_MAX:
                self._live.popitem(last=False)
        return number


class Fingerprint:
    """Tells the states of a core apart: everything reachable from it, as bytes.

    It pickles without a memo, so that equal values give equal bytes, shared or not. Attributes that
    are no part of a state are left out by name; a function or an open iterator raises `TypeError`.
    """

    def __init__(
        self, leave_out: Mapping[type, frozenset[str]], short: Mapping[type, Callable[[Any], Any]]
    ) -> None:
        """Sets what is no part of a state.

        Args:
            leave_out: attributes that are the same in all states of a core, or only count or cache.
            short: classes whose values are told apart by a part of what they hold.
        """
        self._reduce = {kind: partial(_parts, names) for kind, names in leave_out.items()}
        self._reduce |= {kind: partial(_short, tell) for kind, tell in short.items()}

    def __call__(self, core: Any) -> bytes:
        """Returns the fingerprint of a core: 16 bytes."""
        out = io.BytesIO()
        pickler = pickle.Pickler(out, protocol=5)
        pickler.fast = True
        pickler.dispatch_table = self._reduce
        pickler.dump(core)
        return blake2b(out.getbuffer(), digest_size=16).digest()


def _parts(leave_out: frozenset[str], value: Any) -> tuple[Any, ...]:
    # Sets are sorted: strings hash differently in each process.
    kept = (
        sorted(v) if isinstance(v, set) else v
        for name, v in value.__dict__.items()
        if name not in leave_out
    )
    return tuple, (tuple(kept),)


def _short(tell: Callable[[Any], Any], value: Any) -> tuple[Any, ...]:
    return tuple, (tell(value),)
