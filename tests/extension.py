"""Switches the C extension on or off for a test."""

from __future__ import annotations

from typing import Any, Final

import pytest

from logtx.journal.native import loading

TRIAL_S: Final = 20.0
"""How long trials may take: a busy machine stops a process for seconds."""


def look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the process look for the extension again, and use it."""
    monkeypatch.setenv(loading.VARIABLE, "1")
    for each in (loading.FINDING, loading.COUNTING, loading.READING, loading.DECODING):
        monkeypatch.setattr(each, "found", None)
    for name in ("_TRIAL_S", "_CONNECT_S", "_OTHERS_S"):
        monkeypatch.setattr(loading, name, TRIAL_S)


def use_extension(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Switches the extension on, and returns it; skips the test if there is none."""
    look_again(monkeypatch)
    found = loading.find()
    if found.extension is None:
        pytest.skip(found.reason)
    return found.extension


def go_without_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets everything take Python's path."""
    monkeypatch.setattr(loading.FINDING, "found", loading.Found(None, "the test goes without"))
