"""How much a queue's consumer asks for: what it works off in a fraction of a second. Pure.

A lease costs questions, whatever its size. So one that is fast asks for more than a poll returns,
and gives it out poll by poll; and it asks for the next lease when it begins one. What it has and
does not work on, others wait for. So it asks for no more than it works off in `AHEAD_S`, as fast as
it was. When it is slower than that, it gives back what it has not begun (trap 186).
"""

from __future__ import annotations

from typing import Final

AHEAD_S: Final = 0.2
"""For how long a lease is to last. A longer one keeps messages from others that have nothing to do,
a shorter one costs more questions for each message."""
POLLS_MAX: Final = 10
"""Most polls that a lease is to last. With more, a consumer that is killed takes more messages
along; fewer cost more questions for each message."""
SLOW_S: Final = 1.0
"""How long the application may take for what one poll returned, before the consumer gives back what
it has not begun. With a longer one others wait longer, with a shorter one it reads more in vain."""


class Pace:
    """Measures how fast one consumer is. The caller supplies the time, in seconds."""

    def __init__(self, most: int) -> None:
        """Knows nothing yet.

        Args:
            most: most offsets of a lease; less than a poll returns: it asks for that.
        """
        self._most = most
        self._begun: tuple[int, float] | None = None
        """The lease that is worked off: its offsets, and when it was begun."""
        self._wanted = 0
        """How many offsets it worked off in `AHEAD_S`, of the last lease."""
        self._returned_s: float | None = None
        """When the last poll returned."""

    def begin(self, offsets: int, now_s: float) -> None:
        """Notes that a lease of so many offsets is begun, and the one before worked off."""
        self._measure(now_s)
        self._begun = offsets, now_s

    def ask(self, least: int, now_s: float) -> int:
        """Returns how many new offsets to ask for, with nothing left to work on.

        Args:
            least: what a poll returns.
            now_s: the time.
        """
        self._measure(now_s)
        return self._bounded(least)

    def ask_ahead(self, least: int) -> int | None:
        """Returns how many to ask for when a lease is begun; None: nothing, for it is too slow, or
        may hold no more than a poll returns.

        Args:
            least: what a poll returns.
        """
        return self._bounded(least) if self._most >= least <= self._wanted else None

    def _measure(self, now_s: float) -> None:
        if self._begun is not None and now_s > self._begun[1]:
            offsets, begun_s = self._begun
            self._wanted = round(offsets * AHEAD_S / (now_s - begun_s))
        self._begun = None

    def _bounded(self, least: int) -> int:
        return max(least, min(self._wanted, self._most, POLLS_MAX * least))

    def returned(self, now_s: float) -> None:
        """Notes that a poll returns messages."""
        self._returned_s = now_s

    def is_slow(self, now_s: float) -> bool:
        """Returns whether the application took long for what the last poll returned."""
        returned_s, self._returned_s = self._returned_s, None
        return returned_s is not None and now_s - returned_s > SLOW_S
