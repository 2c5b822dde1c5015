"""How much a queue's consumer asks for: what it works off in a fraction of a second. Pure.

A lease costs questions, whatever its size. So one that is fast asks for more than a poll returns,
and gives it out poll by poll. What it has and does not work on, others wait for. So it asks for no
more than it works off in `AHEAD_S`, as fast as it was. When it is slower than that, it gives back
what it has not begun (trap 186).
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
        self._begun = 0
        """Offsets of the leases that were begun since it asked last."""
        self._asked_s: float | None = None
        self._returned_s: float | None = None
        """When the last poll returned."""

    def begin(self, offsets: int) -> None:
        """Notes that a lease of so many offsets is read."""
        self._begun += offsets

    def ask(self, least: int, now_s: float) -> int:
        """Returns how many new offsets to ask for.

        Args:
            least: what a poll returns.
            now_s: the time.
        """
        begun, self._begun = self._begun, 0
        since_s, self._asked_s = self._asked_s, now_s
        if since_s is None or now_s <= since_s:
            return least
        wanted = round(begun * AHEAD_S / (now_s - since_s))
        return max(least, min(wanted, self._most, POLLS_MAX * least))

    def returned(self, now_s: float) -> None:
        """Notes that a poll returns messages."""
        self._returned_s = now_s

    def is_slow(self, now_s: float) -> bool:
        """Returns whether the application took long for what the last poll returned."""
        returned_s, self._returned_s = self._returned_s, None
        return returned_s is not None and now_s - returned_s > SLOW_S
