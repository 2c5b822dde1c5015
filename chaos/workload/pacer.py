"""When the next transaction is due. Pure."""

from __future__ import annotations

from typing import Final

CATCH_UP: Final = 3.0
"""After a stall, so many times the rate until what was missed is made up for."""


class Pacer:
    """So many a second on the average, from the start on."""

    def __init__(self, rate: float, now_s: float) -> None:
        """Begin.

        Args:
            rate: a second.
            now_s: of any clock that `wait_s` is given too.
        """
        self._gap_s = 1 / rate
        self._due_s = now_s
        self._least_s = self._gap_s / CATCH_UP
        self._not_before_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next may begin; 0 takes it."""
        at_s = max(self._due_s, self._not_before_s)
        if now_s < at_s:
            return at_s - now_s
        self._due_s += self._gap_s
        self._not_before_s = now_s + self._least_s
        return 0.0
