"""Errors of a chaos run itself. What the run finds is reported by the checker."""

from __future__ import annotations

from ..journal.errors import LogtxError


class ChaosError(LogtxError):
    """The run can't be started, finished or judged; the message says why."""
