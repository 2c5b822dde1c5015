"""The states of a transaction and the one table of what may precede each.

Source: PIP-31, "TxnStatus".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a transaction stands."""

    OPEN = "open"
    COMMITTING = "committing"
    """Decided; markers are being written."""
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Never begun, or past the outcome retention: never to be read as aborted."""

    @property
    def commits(self) -> bool:
        """Decided to commit, whether or not the markers are written."""
        return self in (State.COMMITTING, State.COMMITTED)

    @property
    def aborts(self) -> bool:
        """Decided to abort, whether or not the markers are written."""
        return self in (State.ABORTING, State.ABORTED)

    @property
    def finished(self) -> bool:
        """Decided, and every data partition has its marker or is gone."""
        return self in (State.COMMITTED, State.ABORTED)


VALID_PREVIOUS: Final[Mapping[State, frozenset[State]]] = {
    State.OPEN: frozenset(),
    State.COMMITTING: frozenset({State.OPEN}),
    State.COMMITTED: frozenset({State.COMMITTING}),
    State.ABORTING: frozenset({State.OPEN}),
    State.ABORTED: frozenset({State.ABORTING}),
}
"""State → states it may follow; OPEN is where a BEGIN starts. Diagram and tests derive from it."""
