"""Lets a run end by itself, whatever it waits for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from .errors import ChaosError

_STDERR: Final = 2
GAVE_UP_STATUS: Final = 70
"""Exit status of a run that could not even end its processes in time."""


@contextmanager
def ends_within(limit_s: float, last_s: float) -> Iterator[None]:
    """Bounds the block, in the main thread, by an alarm.

    Each wait within has its own bound, and says more. This one is for what has none: a library that
    never returns. After it the block has `last_s` seconds to end its processes. Then this process
    ends, and the kernel ends its children.

    Args:
        limit_s: seconds until ChaosError is raised in the block.
        last_s: seconds from then until the process ends.

    Raises:
        ChaosError: the time is up.
    """
    fired = False

    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        nonlocal fired
        if fired:
            os.write(_STDERR, b"The run did not end its processes in time.\n")
            os._exit(GAVE_UP_STATUS)
        fired = True
        raise ChaosError(f"The run did not end within {limit_s:.0f} s.")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, limit_s, last_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
