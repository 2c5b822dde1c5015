"""Decides whom a client asks for the owner of a journal partition, and when. Pure.

Addresses come from three sources: the hint in Kafka, a coordinator that sends the client elsewhere,
and memory (where the session was last). Each may be stale, dead, or the address of a stopped
process, where TCP connects and nothing answers. So

- the client tries an address as soon as it is named, and again after a pause while it is still
  named;
- the client looks up the hint in Kafka again and again, also while attempts are under way: no
  attempt delays the finding of a better address;
- the client gives up an attempt without an answer after half a second, and the next one at the same
  address after twice that. Otherwise a coordinator that is slow under a flood of clients would be
  asked again and again before it could answer;
- a pause is an eighth of the time lost so far, multiplied by a random factor from 0.5 to 1.5. So
  the search makes a stall at most a fifth longer, and a thousand clients that lost one owner at
  the same moment neither ask in step nor ask often.

The caller supplies the clock and the random numbers. Seconds are monotonic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ...journal.errors import JournalError, LogtxError, RetriableError

PAUSE_SHARE: Final = 1 / 8
"""Length of a pause, as a share of the time lost so far. A larger share makes a stall longer; a
smaller one makes a flood of clients ask more often."""
PAUSE_MIN_S: Final = 0.02
"""Shortest pause, before the random factor."""
PAUSE_MAX_S: Final = 0.5
"""Longest pause, before the random factor: bounds how late a new owner is found."""
PATIENCE_MIN_S: Final = 0.5
"""How long the first attempt at an address may take; as long as a stopped peer goes unnoticed."""
PATIENCE_MAX_S: Final = 5.0
"""How long an attempt may take at most, after attempts that were given up."""
ATTEMPTS_MAX: Final = 4
"""Attempts under way at one time; each takes a thread and a connection."""


def may_be_elsewhere(refusal: LogtxError) -> bool:
    """Returns whether another coordinator may take the session that this one refused.

    A coordinator that can't read the journal says so though another one may serve.
    """
    return isinstance(refusal, RetriableError | JournalError)


@dataclass(slots=True)
class _Address:
    due_s: float
    patience_s: float = PATIENCE_MIN_S
    until_s: float | None = None
    """When to give up the attempt that is under way; None while there is none."""


@dataclass(slots=True)
class Pursuit:
    """One search, from the loss of the owner until a coordinator has served a request."""

    began_s: float
    draw: Callable[[], float]
    """Returns a random number in [0, 1)."""
    _named: dict[str, str] = field(default_factory=dict)
    """Source → the address that it named last."""
    _addresses: dict[str, _Address] = field(default_factory=dict)
    _epoch: int = -1
    _look_due_s: float | None = None
    _looking: bool = False

    def named(self, address: str, now_s: float) -> None:
        """Records an address that a coordinator, or our memory, names as the owner's."""
        if address:
            self._name("peer", address, now_s)

    def looking(self, now_s: float) -> bool:
        """Returns whether to look up the hint now. If so, call `looked_up` afterwards."""
        if self._looking or (self._look_due_s is not None and self._look_due_s > now_s):
            return False
        self._looking = True
        return True

    def looked_up(self, hint: tuple[str, int] | None, now_s: float) -> None:
        """Records the hint: address and epoch of the last owner that published; None if unknown."""
        self._looking = False
        self._look_due_s = now_s + self._pause_s(now_s)
        if hint is None:
            return
        address, epoch = hint
        # A former owner's late publication replaces the hint in Kafka, but not the address that
        # the hint named. The former owner is tried too, as it may know the owner.
        self._name("log" if epoch >= self._epoch else "late", address, now_s)
        if epoch > self._epoch:
            # A new owner at an address that failed before: the coordinator was restarted.
            self._addresses[address].due_s = now_s
            self._epoch = epoch

    def attempts(self, now_s: float) -> list[str]:
        """Returns the addresses to try now. For each, call `failed` unless it ends the search."""
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
        """Returns the addresses whose attempts to give up now. Call `failed` for each."""
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
        """Records that an attempt ended, or that its stream broke before it was of use."""
        address = self._addresses.get(name)
        if address is not None:
            address.until_s = None
            address.due_s = now_s + self._pause_s(now_s)
        self._forget(now_s)

    def wait_s(self, now_s: float) -> float:
        """Returns for how many seconds nothing is due, unless an attempt or a look-up ends."""
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
        """Drops addresses that no source names any more, so that a long search stays small.

        An address is kept for a while: otherwise two coordinators that name each other would be
        tried in turn without a pause.
        """
        named = set(self._named.values())
        for name, address in list(self._addresses.items()):
            old = address.until_s is None and address.due_s + PAUSE_MAX_S < now_s
            if old and name not in named:
                del self._addresses[name]

    def _pause_s(self, now_s: float) -> float:
        pause_s = min(max((now_s - self.began_s) * PAUSE_SHARE, PAUSE_MIN_S), PAUSE_MAX_S)
        return pause_s * (0.5 + self.draw())
