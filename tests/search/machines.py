"""The real cores as machines: a state is a number, a step is looked up once it was taken.

A `Tenure` (with its `Shard`) and a `PartitionBuffer` are deterministic, and of the states that
millions of interleavings reach, few differ. So each distinct step of a core is taken once, by the
core itself, and kept: `step(state, input) → (state, outputs)`. What tells two states of a core
apart is its `Fingerprint`: everything reachable from it, nothing left out but what never changes.
If that tells apart what is in truth alike, the search is larger than it must be, and no less right.
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
"""Live cores kept besides their numbers, so that a step need not begin at the core's start."""


class Interner:
    """Values, each once, by a number."""

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[Any] = []

    def __call__(self, value: Hashable) -> int:
        """The number of a value."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


class Chains:
    """Sequences that grow at their end, each once, by a number; 0 is the empty one."""

    __slots__ = ("_children", "_items", "lengths", "parents", "tails")

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._items: dict[int, tuple[int, ...]] = {0: ()}
        self.lengths = [0]
        self.parents = [0]
        self.tails = [-1]
        """The last item of each."""

    def append(self, chain: int, item: int) -> int:
        """The number of the longer sequence."""
        found = self._children.get((chain, item))
        if found is None:
            found = self._children[chain, item] = len(self.lengths)
            self.lengths.append(self.lengths[chain] + 1)
            self.parents.append(chain)
            self.tails.append(item)
        return found

    def items(self, chain: int) -> tuple[int, ...]:
        """Its items."""
        out = []
        while chain:
            out.append(self.tails[chain])
            chain = self.parents[chain]
        return tuple(out[::-1])


class Core(Protocol):
    """A real core, and the inputs that it takes."""

    def apply(self, key: Hashable) -> None:
        """Take an input."""

    def drain(self) -> tuple[Any, ...]:
        """What it gave out since it was asked last."""

    def fingerprint(self) -> bytes:
        """All of its state, as `Fingerprint` gives it."""

    def facts(self) -> Any:
        """What the world and the invariants look at in this state."""


class Machine:
    """The states of a kind of core, and the steps between them that were taken."""

    def __init__(self, make: Callable[[Any], Core]) -> None:
        """Nothing is known yet.

        Args:
            make: a core at its start, of which there may be many.
        """
        self._make = make
        self._numbers: dict[bytes, int] = {}
        self._origins: list[tuple[int, Any]] = []
        """The state before and the input; or -1 and what the core was made from."""
        self._steps: dict[tuple[int, Any], tuple[int, tuple[Any, ...]]] = {}
        self._starts: dict[Any, tuple[int, tuple[Any, ...]]] = {}
        self._live: OrderedDict[int, Core] = OrderedDict()
        self.facts: list[Any] = []
        """Of each state."""

    def start(self, origin: Hashable) -> tuple[int, tuple[Any, ...]]:
        """The state that a core starts in, and what it gave out by then."""
        found = self._starts.get(origin)
        if found is None:
            core = self._make(origin)
            given = core.drain()
            found = self._starts[origin] = self._number(core, -1, origin), given
        return found

    def step(self, state: int, key: Hashable) -> tuple[int, tuple[Any, ...]]:
        """Where an input leads, and what the core gives out."""
        found = self._steps.get((state, key))
        if found is None:
            core = self._core(state)
            core.apply(key)
            given = core.drain()
            found = self._steps[state, key] = self._number(core, state, key), given
        return found

    @property
    def steps_taken(self) -> int:
        """Distinct steps of the real core."""
        return len(self._steps) + len(self._starts)

    def _core(self, state: int) -> Core:
        # The caller changes it, so it is taken out; the chain of inputs leads to it again.
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
    """What tells the states of a core apart: everything reachable from it, as bytes.

    Pickled without a memo, so that equal values give equal bytes, whoever shares them. That which
    is no part of a state is left out by name; a function or an open iterator raises `TypeError`.
    """

    def __init__(
        self, leave_out: Mapping[type, frozenset[str]], short: Mapping[type, Callable[[Any], Any]]
    ) -> None:
        """Say what is no part of a state.

        Args:
            leave_out: attributes that are the same in all states of a core, that count or cache.
            short: classes whose values are told apart by less than all they hold.
        """
        self._reduce = {kind: partial(_parts, names) for kind, names in leave_out.items()}
        self._reduce |= {kind: partial(_short, tell) for kind, tell in short.items()}

    def __call__(self, core: Any) -> bytes:
        """16 bytes."""
        out = io.BytesIO()
        pickler = pickle.Pickler(out, protocol=5)
        pickler.fast = True
        pickler.dispatch_table = self._reduce
        pickler.dump(core)
        return blake2b(out.getbuffer(), digest_size=16).digest()


def _parts(leave_out: frozenset[str], value: Any) -> tuple[Any, ...]:
    # Sets in an order of their own: strings hash differently in each process.
    kept = (
        sorted(v) if isinstance(v, set) else v
        for name, v in value.__dict__.items()
        if name not in leave_out
    )
    return tuple, (tuple(kept),)


def _short(tell: Callable[[Any], Any], value: Any) -> tuple[Any, ...]:
    return tuple, (tell(value),)
