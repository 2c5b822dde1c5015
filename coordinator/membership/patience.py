"""How much longer to wait for others where this process runs late itself. Pure.

A process that gets too little of the processor answers late, and its peers on the same machine
judge it by clocks that run late as well. With fixed times they presume each other dead, and take
each other's partitions. Each take-over loads a journal and ends what was in flight, which takes
more of the processor: the partitions go round for ever, and nobody decides anything (trap 205).

So a coordinator measures how late its own event loop runs, and gives others several times as much
in addition. On a machine that keeps up this is nothing. It never makes a killed process live
longer: where nobody listens, a call is refused at once.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FACTOR: Final = 4.0
"""Times the lateness that others are given more: to answer takes them several turns of theirs.

A smaller one takes partitions from busy owners; a larger one leaves those of a stopped process
without an owner for longer, on a busy machine."""
MEMORY_S: Final = 10.0
"""How long a late turn counts. Longer than the pauses between late turns on a busy machine."""
MORE_MAX_S: Final = 4.0
"""Upper bound of what others are given more; a stopped process on a stopped machine is replaced
that much later."""
UNNOTICED_S: Final = 0.05
"""Lateness that does not count: a large answer takes the event loop that long."""


class Patience:
    """The lateness of one process's event loop, over the last `MEMORY_S` seconds."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque()
        """(when, seconds), of falling seconds: an earlier one that was less late never counts."""

    def woke(self, late_s: float, now_s: float) -> None:
        """Notes that a turn came so much later than it was due, in seconds."""
        if late_s < UNNOTICED_S:
            return
        while self._late and self._late[-1][1] <= late_s:
            self._late.pop()
        self._late.append((now_s, late_s))

    def more_s(self, now_s: float) -> float:
        """Returns the seconds that others are given more than usual."""
        while self._late and now_s - self._late[0][0] > MEMORY_S:
            self._late.popleft()
        return min(FACTOR * self._late[0][1], MORE_MAX_S) if self._late else 0.0
