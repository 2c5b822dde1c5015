"""Errors of the demo, with messages for people."""

from __future__ import annotations

from ...journal.errors import LogtxError


class DemoError(LogtxError):
    """The demo can't start, or makes no progress; the message says why."""
