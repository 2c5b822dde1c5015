"""Errors of the demo, for people: one sentence, then the last lines of a log where there is one."""

from __future__ import annotations

from collections.abc import Sequence

from ...journal.errors import LogtxError


class DemoError(LogtxError):
    """The demo can't start; the message says why and what to do."""


class ProcessDiedError(DemoError):
    """A process of the demo ended by itself, or was not ready in time."""

    def __init__(self, sentence: str, details: Sequence[str] = ()) -> None:
        super().__init__("\n".join((sentence, *details)))
        self.sentence = sentence
        self.details = tuple(details)
