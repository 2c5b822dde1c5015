"""A Spark application: its Python, the JVM that this starts, and the workers that the JVM starts.

A SIGKILL is for all of them, as when a cluster's container is killed: a JVM whose Python is gone
takes its time to notice.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

from ...local.processes import Child

_GONE_S: Final = 15.0
"""For the JVM, and what it started, to follow."""
_POLL_S: Final = 0.02


class SparkChild(Child):
    """One Spark application and those that take its place after a kill."""

    def kill(self) -> None:
        """SIGKILL to its Python and JVM, and wait for the end of both."""
        if self._process is None:
            return
        group = self._process.pid
        # A process that has not been waited for keeps its number, hence its group's.
        if self._process.poll() is None:
            os.killpg(group, signal.SIGKILL)
        super().kill()
        _await_end(group)


def _await_end(group: int) -> None:
    """Wait until a process group is empty; SIGKILL for what stays."""
    deadline_s = time.monotonic() + _GONE_S
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline_s:
            os.killpg(group, 0)
            time.sleep(_POLL_S)
        os.killpg(group, signal.SIGKILL)
