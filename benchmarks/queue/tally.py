"""Counts outputs: which messages have one, and which have more."""

from __future__ import annotations


class Tally:
    """The outputs of messages that are numbered from 0 on."""

    def __init__(self, count: int) -> None:
        """Begins without outputs.

        Args:
            count: number of messages.
        """
        self._seen = bytearray(count)
        self.worked_off = 0
        """Messages that have an output."""
        self.doubled = 0
        """Outputs beyond the first one of a message."""
        self.strange = 0
        """Outputs of no message."""

    def add(self, number: int) -> None:
        """Counts one output, of the message of this number."""
        if not 0 <= number < len(self._seen):
            self.strange += 1
        elif self._seen[number]:
            self.doubled += 1
        else:
            self._seen[number] = 1
            self.worked_off += 1

    @property
    def lost(self) -> int:
        """Messages without an output."""
        return len(self._seen) - self.worked_off
