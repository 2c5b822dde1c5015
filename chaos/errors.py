"""What can go wrong with a chaos run itself; what it finds is the checker's to say."""

from __future__ import annotations

from ..journal.errors import LogtxError


class ChaosError(LogtxError):
    """The run can't be made or finished; the message says what to do."""
