"""A Spark application: its Python process, the JVM that this starts, and the JVM's workers.

SIGKILL and SIGSTOP go to all of them, as when a cluster kills or suspends a container: a JVM whose
Python process is gone takes a while to notice.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

from .processes import Child

_GONE_S: Final = 15.0
"""Bounds the wait for the end of the JVM and its children; then they get SIGKILL again."""
_POLL_S: Final = 0.02
"""How often the end is looked for; a larger value notices it later."""
_TO_ALL: Final = (signal.SIGSTOP, signal.SIGCONT)


class SparkChild(Child):
    """One Spark application, and those that replace it after a kill."""

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal: to the Python process, or to all if it stops or continues them."""
        if number in _TO_ALL and self.is_running:
            os.killpg(self.pid, number)
        else:
            super().signal(number)

    def kill(self) -> None:
        """Kills its Python process and its JVM, and waits for the end of both."""
        if self._process is None:
            return
        group = self._process.pid
        # A process that has not been waited for keeps its id, and so its group's id is not reused.
        if self._process.poll() is None:
            os.killpg(group, signal.SIGKILL)
        super().kill()
        _await_end(group)


def _await_end(group: int) -> None:
    """Waits until a process group is empty; kills what stays."""
    deadline_s = time.monotonic() + _GONE_S
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline_s:
            os.killpg(group, 0)
            time.sleep(_POLL_S)
        os.killpg(group, signal.SIGKILL)
