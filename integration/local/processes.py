"""The demo's child processes: started, paused, killed and stopped; none outlives the demo."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...coordinator.ready import says_ready
from ..kafka.child import last_lines, spawn
from ..kafka.ports import HOST, pick_ports
from .errors import ProcessDiedError

JOURNAL_PARTITIONS: Final = 8
"""If the journal is created by the demo's coordinators."""
COORDINATOR_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02
_LOG_LINES: Final = 8


class Child:
    """One process and those that take its place after a kill; all write to one log."""

    def __init__(self, name: str, log: Path, arguments: Sequence[str]) -> None:
        """Nothing is started yet.

        Args:
            name: for people.
            log: standard output and error are appended to it.
            arguments: of `python -m`.
        """
        self.name = name
        self.starts = 0
        self._log = log
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def is_running(self) -> bool:
        """Whether the process is alive; a paused one is."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        assert self._process is not None, "start() first"
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Of the ended process; None while it runs, and before."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it, or its successor."""
        assert not self.is_running, self.name
        self._log.touch()
        self._log_start = self._log.stat().st_size
        self.starts += 1
        self._process = spawn([sys.executable, "-m", *self._command()], output=self._log)

    def _command(self) -> list[str]:
        return self._arguments

    def check(self) -> None:
        """Raise ProcessDiedError if the process has ended, with its last lines."""
        if self._process is not None and (status := self._process.poll()) is not None:
            raise ProcessDiedError(
                f"The {self.name} ended by itself (exit status {status}); its log is {self._log}.",
                self.last_lines(_LOG_LINES),
            )

    def last_lines(self, count: int) -> list[str]:
        """What the process that was started last said last."""
        return last_lines(self._log, count, from_byte=self._log_start)

    def pause(self) -> None:
        """SIGSTOP: it does nothing more until `resume` or `kill`."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._send(signal.SIGCONT)

    def leave_behind(self) -> Child:
        """Its running process as a child of its own; a successor can be started beside it."""
        left = Child(f"zombie {self.starts} of {self.name}", self._log, self._arguments)
        left._process, self._process = self._process, None
        left._log_start = self._log_start
        return left

    def kill(self) -> None:
        """SIGKILL, and wait for the end. Nothing to do if it is not running."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait(_STOP_TIMEOUT_S)
            self._process = None

    def ask_to_stop(self) -> None:
        """SIGTERM; the process finishes what it is at."""
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)  # a paused process would not see it

    def await_end(self, timeout_s: float = _STOP_TIMEOUT_S) -> bool:
        """Wait for the end after `ask_to_stop`, then SIGKILL; whether it ended well and in time."""
        status = None
        if self._process is not None:
            try:
                status = self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                status = None
        self.kill()
        return status == 0

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


class CoordinatorChild(Child):
    """`logtx coordinator`, at another port each time: clients find it through the log."""

    def __init__(self, name: str, log: Path, bootstrap_servers: str) -> None:
        super().__init__(name, log, ())
        self._bootstrap_servers = bootstrap_servers
        self.address = ""
        self.faults = 0
        """Kills and pauses so far."""
        self._started_s = 0.0
        self._ready = False

    def start(self) -> None:
        """Start it, or its successor."""
        self.address = f"{HOST}:{pick_ports(1)[0]}"
        self._ready = False
        self._started_s = time.monotonic()
        super().start()

    def _command(self) -> list[str]:
        servers = ["--bootstrap-servers", self._bootstrap_servers]
        journal = ["--journal-partitions", str(JOURNAL_PARTITIONS)]
        return ["logtx", "coordinator", *servers, *journal, "--listen", self.address]

    @property
    def is_ready(self) -> bool:
        """Whether it serves. Raises ProcessDiedError if it died or takes too long."""
        if not self._ready:
            self._ready = says_ready(self._log, from_byte=self._log_start)
        if not self._ready:
            self.check()
            if time.monotonic() - self._started_s > COORDINATOR_START_TIMEOUT_S:
                raise ProcessDiedError(
                    f"The {self.name} was not ready within {COORDINATOR_START_TIMEOUT_S:.0f} s; "
                    f"its log is {self._log}.",
                    last_lines(self._log, _LOG_LINES, from_byte=self._log_start),
                )
        return self._ready

    def await_ready(self) -> None:
        """Wait until it serves; bounded, raises as `is_ready`."""
        while not self.is_ready:
            time.sleep(_POLL_S)
