"""The states of a transaction, and the one table of which states may precede each.

Source: PIP-31, "TxnStatus".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """The state of a transaction, as the journal has it."""

    OPEN = "open"
    COMMITTING = "committing"
    """Decided; the markers are being written."""
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Never begun, or past the outcome retention; must never be read as aborted."""

    @property
    def commits(self) -> bool:
        """Whether it is decided to commit, with or without its markers."""
        return self in (State.COMMITTING, State.COMMITTED)

    @property
    def aborts(self) -> bool:
        """Whether it is decided to abort, with or without its markers."""
        return self in (State.ABORTING, State.ABORTED)

    @property
    def finished(self) -> bool:
        """Whether it is decided and every data partition has its marker or is gone."""
        return self in (State.COMMITTED, State.ABORTED)


VALID_PREVIOUS: Final[Mapping[State, frozenset[State]]] = {
    State.OPEN: frozenset(),
    State.COMMITTING: frozenset({State.OPEN}),
    State.COMMITTED: frozenset({State.COMMITTING}),
    State.ABORTING: frozenset({State.OPEN}),
    State.ABORTED: frozenset({State.ABORTING}),
}
"""State → states that may precede it; a transaction starts OPEN, with its BEGIN.

The diagram in the docs and tests derive from it.
"""
