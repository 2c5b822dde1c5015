"""Errors of reading ranges. Each text is one sentence that names the way out."""

from __future__ import annotations

from ...journal.errors import LogtxError


class DataLossError(LogtxError):
    """Records that were to be read are gone: by retention, or with their topic."""


class SwitchedError(LogtxError):
    """A topic's mode was switched when a range of it was planned: plan and read it again."""
