"""Waits of tests for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Waits until something holds; fails if it does not in time."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "did not come about in time"
        time.sleep(0.005)
