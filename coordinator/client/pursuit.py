"""Whom a client asks for the owner of a journal partition, and when. Pure.

Addresses come from the hint in Kafka, from a coordinator that sends the client away, and from
memory: where the session was last. Each may be wrong: stale, dead, or a process that is stopped,
where TCP connects and nothing answers. So

- an address is tried as soon as it is named, and again after a pause while it is still named;
- the hint in Kafka is looked up all the while, also while attempts are under way: none of them
  holds up the finding of a better address;
- an attempt without an answer is given up after half a second, the next one at the same address
  after twice that: a coordinator that is slow under a flood of clients is not asked ever again
  before it could answer;
- a pause is an eighth of the time lost so far, at random from half to one and a half of that. So
  the search makes a stall a fifth longer at most, and a thousand clients that lost one owner at
  one moment neither come in step nor ask often.

The caller supplies the clock and the chance. Seconds are monotonic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

PAUSE_SHARE: Final = 1 / 8
"""Of the time lost so far."""
PAUSE_MIN_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5
PATIENCE_MIN_S: Final = 0.5
"""How long the first attempt at an address may take; as long as a stopped peer goes unnoticed."""
PATIENCE_MAX_S: Final = 5.0
ATTEMPTS_MAX: Final = 4
"""Attempts under way at one time."""


@dataclass(slots=True)
class _Address:
    due_s: float
    patience_s: float = PATIENCE_MIN_S
    until_s: float | None = None
    """When the attempt under way is given up; None while there is none."""


@dataclass(slots=True)
class Pursuit:
    """One search, from the loss of the owner until a coordinator has served a request."""

    began_s: float
    draw: Callable[[], float]
    """A random number in [0, 1)."""
    _named: dict[str, str] = field(default_factory=dict)
    """The address that each source named last."""
    _addresses: dict[str, _Address] = field(default_factory=dict)
    _epoch: int = -1
    _look_due_s: float | None = None
    _looking: bool = False

    def named(self, address: str, now_s: float) -> None:
        """A coordinator, or our memory, says that this is the owner."""
        if address:
            self._name("peer", address, now_s)

    def looking(self, now_s: float) -> bool:
        """Whether to look the hint up now; then `looked_up` must follow."""
        if self._looking or (self._look_due_s is not None and self._look_due_s > now_s):
            return False
        self._looking = True
        return True

    def looked_up(self, hint: tuple[str, int] | None, now_s: float) -> None:
        """What Kafka said, if anything: address and epoch of the last owner that published."""
        self._looking = False
        self._look_due_s = now_s + self._pause_s(now_s)
        if hint is None:
            return
        address, epoch = hint
        # What a former owner publishes late takes the place of the hint, but not of the address
        # that it named; whoever is there may know the owner all the same.
        self._name("log" if epoch >= self._epoch else "late", address, now_s)
        if epoch > self._epoch:
            # A new owner at an address that failed before: a coordinator started anew.
            self._addresses[address].due_s = now_s
            self._epoch = epoch

    def attempts(self, now_s: float) -> list[str]:
        """Addresses to try now; for each `failed` must follow, or the search is over."""
        under_way = sum(a.until_s is not None for a in self._addresses.values())
        due = [
            name
            for name in dict.fromkeys(self._named.values())
            if (a := self._addresses[name]).until_s is None and a.due_s <= now_s
        ][: ATTEMPTS_MAX - under_way]
        for name in due:
            self._addresses[name].until_s = now_s + self._addresses[name].patience_s
        return due

    def overdue(self, now_s: float) -> list[str]:
        """Attempts to give up; `failed` must follow for each."""
        late = [
            name
            for name, a in self._addresses.items()
            if a.until_s is not None and a.until_s <= now_s
        ]
        for name in late:
            address = self._addresses[name]
            address.until_s = math.inf
            address.patience_s = min(address.patience_s * 2, PATIENCE_MAX_S)
        return late

    def failed(self, name: str, now_s: float) -> None:
        """An attempt ended, or the stream it opened broke before it was of use."""
        address = self._addresses.get(name)
        if address is not None:
            address.until_s = None
            address.due_s = now_s + self._pause_s(now_s)
        self._forget(now_s)

    def wait_s(self, now_s: float) -> float:
        """How long nothing is to be done, unless an attempt or a look ends before."""
        due = [PAUSE_MAX_S + now_s]
        if not self._looking:
            due.append(self._look_due_s or now_s)
        under_way = [a.until_s for a in self._addresses.values() if a.until_s is not None]
        due += under_way
        if len(under_way) < ATTEMPTS_MAX:
            named = (self._addresses[name] for name in self._named.values())
            due += [a.due_s for a in named if a.until_s is None]
        return max(min(due) - now_s, 0.0)

    def _name(self, source: str, name: str, now_s: float) -> None:
        self._named[source] = name
        self._addresses.setdefault(name, _Address(now_s))

    def _forget(self, now_s: float) -> None:
        """Drop addresses that nobody names any more, so that a long search stays small.

        Not at once: two coordinators that name each other would be tried in turn without a pause.
        """
        named = set(self._named.values())
        for name, address in list(self._addresses.items()):
            old = address.until_s is None and address.due_s + PAUSE_MAX_S < now_s
            if old and name not in named:
                del self._addresses[name]

    def _pause_s(self, now_s: float) -> float:
        pause_s = min(max((now_s - self.began_s) * PAUSE_SHARE, PAUSE_MIN_S), PAUSE_MAX_S)
        return pause_s * (0.5 + self.draw())
