"""Decides when the next transaction is due. Pure."""

from __future__ import annotations

from typing import Final

CATCH_UP: Final = 3.0
"""After a stall, the rate is multiplied by this until what was missed is made up for. A larger
value gives bursts, a smaller one takes longer to make up."""


class Pacer:
    """Keeps to a rate per second on average, from the start on."""

    def __init__(self, rate: float, now_s: float) -> None:
        """Begins at `now_s`.

        Args:
            rate: per second.
            now_s: seconds of any clock; `wait_s` takes the same one.
        """
        self._gap_s = 1 / rate
        self._due_s = now_s
        self._least_s = self._gap_s / CATCH_UP
        self._not_before_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Returns the seconds until the next transaction may begin; with 0 it counts as begun."""
        at_s = max(self._due_s, self._not_before_s)
        if now_s < at_s:
            return at_s - now_s
        self._due_s += self._gap_s
        self._not_before_s = now_s + self._least_s
        return 0.0
