"""Work in a child that this process forks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

import pytest

TIMEOUT_S: Final = 60


def in_child(work: Callable[[], object]) -> str:
    """Returns what `work` returns in a forked child, or the name of what it raises there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told = str(work())
        except BaseException as error:  # noqa: BLE001 - the parent looks at it
            told = type(error).__name__
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    deadline_s = time.monotonic() + TIMEOUT_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline_s:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    with os.fdopen(reading) as told_by:
        return told_by.read()
