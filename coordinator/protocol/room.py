"""What a receiver lets its peer send. Pure.

room of the sender + released, not granted yet (due) + unreleased = the window, at any time.
"""

from __future__ import annotations


class Room:
    """The room of one sender, as its receiver counts it. Sizes are bytes."""

    __slots__ = ("due", "room", "unreleased")

    def __init__(self, window_bytes: int) -> None:
        """Gives the sender all of the window."""
        self.room = window_bytes
        self.due = self.unreleased = 0

    @property
    def is_left(self) -> bool:
        """Returns whether the sender may send a message: the last one may take more than there is,
        so each fits into any window."""
        return self.room > 0

    def take(self, cost: int) -> None:
        """Takes a message that came."""
        self.room -= cost
        self.unreleased += cost

    def release(self, cost: int) -> None:
        """Frees what messages took.

        Raises:
            ValueError: the messages that came and were not released cost less.
        """
        if not 0 <= cost <= self.unreleased:
            raise ValueError(f"{cost} bytes are released, of {self.unreleased}")
        self.unreleased -= cost
        self.due += cost

    def grant(self) -> int:
        """Returns what the sender is to be given now, once; mostly 0.

        A grant goes out when it is as large as what the sender has left: at the latest when it has
        none, and each doubles that at least.
        """
        if not self.due or self.due < self.room:
            return 0
        granted, self.due = self.due, 0
        self.room += granted
        return granted
