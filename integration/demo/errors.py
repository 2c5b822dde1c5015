"""Errors of the demo, for people."""

from __future__ import annotations

from ...journal.errors import LogtxError


class DemoError(LogtxError):
    """The demo can't start; the message says why and what to do."""
