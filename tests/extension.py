"""Switches the C extension on or off for a test."""

from __future__ import annotations

from typing import Any

import pytest

from logtx.journal.native import loading


def look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the process look for the extension again, and use it."""
    monkeypatch.setenv(loading.VARIABLE, "1")
    for each in (loading.FINDING, loading.COUNTING, loading.READING, loading.DECODING):
        monkeypatch.setattr(each, "found", None)


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
