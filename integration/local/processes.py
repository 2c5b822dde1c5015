"""Starts, watches, pauses, kills and stops child processes. No child outlives this process.

Children don't get the terminal's Ctrl-C. The kernel's parent-death signal (prctl PR_SET_PDEATHSIG)
ends a child when this process is killed with SIGKILL. Two pitfalls of the signal are handled here:

- a few lines of Python set it and then become the program (exec keeps both the signal and the
  process id). A `preexec_fn` would do the same inside a fork of this process, where other threads'
  locks make it unsafe;
- it fires when the *thread* that started the child ends, not the process. So one thread, which
  lives as long as this process, starts all children.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import cache
from pathlib import Path
from typing import Final

from ...coordinator.ready import says_ready
from .errors import ProcessDiedError
from .ports import HOST, pick_ports

COORDINATOR_START_TIMEOUT_S: Final = 60.0
"""Longest start of a coordinator until it serves; Python alone takes seconds on a busy machine."""
STOP_TIMEOUT_S: Final = 10.0
"""Longest wait for a process to end after SIGTERM; then it gets SIGKILL."""
KILL_TIMEOUT_S: Final = 60.0
"""Longest wait for a process to end after SIGKILL. Each of its threads has to run once more for it,
which took over ten seconds on a busy machine."""
_STOPPED_POLL_S: Final = 0.001
"""Pause between two looks whether a process has stopped; the first sees it on an idle machine."""
_POLL_S: Final = 0.02
"""Pause between two looks for the ready line; each look reads the whole log of this start."""
LOG_LINES: Final = 8
"""Log lines in an error; with fewer, the cause may be cut off."""

_NOT_INHERITED: Final = frozenset({"LOGTX_BOOTSTRAP_SERVERS", "LOGTX_CONFIG"})
"""Children are told by arguments what they connect to. From the environment a coordinator of a
local cluster would take security settings, or an address for metrics, that are meant for others."""
_BECOME_CHILD: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):  # the parent died before the line above took effect
    sys.exit("parent is gone")
# A shell starts its jobs in the background with SIGINT ignored, and a child would inherit that.
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""


def await_stopped(process: subprocess.Popen[bytes]) -> None:
    """Waits until every thread of a process that got SIGSTOP has stopped, or the process has ended.

    One of its threads must run to take the signal. On a busy machine the others work until then: of
    150 calls to an etcd whose SIGSTOP was sent, 8 were answered.

    Raises:
        subprocess.TimeoutExpired: it took longer than KILL_TIMEOUT_S.
    """
    states = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
    deadline_s = time.monotonic() + KILL_TIMEOUT_S
    with suppress(ChildProcessError):  # another thread has seen its end
        while process.returncode is None and os.waitid(os.P_PID, process.pid, states) is None:
            if time.monotonic() >= deadline_s:
                raise subprocess.TimeoutExpired(process.args, KILL_TIMEOUT_S)
            time.sleep(_STOPPED_POLL_S)


@cache
def _starter(pid: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a forked process needs its own
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="logtx-child-starter")


def spawn(
    command: Sequence[str],
    *,
    output: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Starts `command` (an absolute program path and its arguments) in its own process group.

    Appends its standard output and error to `output`. The child gets SIGKILL when this process ends
    in any way. Raises OSError if `output` cannot be opened.
    """
    wrapped = [sys.executable, "-I", "-S", "-c", _BECOME_CHILD, str(os.getpid()), *command]
    with output.open("ab") as sink:
        started = _starter(os.getpid()).submit(
            subprocess.Popen,
            wrapped,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            process_group=0,
        )
        return started.result()


def last_lines(path: Path, count: int, *, from_byte: int = 0) -> list[str]:
    """Returns a log's last `count` lines without blank ones and stack frames; [] if it has none.

    Reads at most its last 64 KiB, and nothing below `from_byte`.
    """
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(from_byte, size - 65_536))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = [line.rstrip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("\tat ", "\t... "))][-count:]


class Child:
    """Runs one process, and successors in its place after a kill; all write to one log."""

    def __init__(self, name: str, log: Path, arguments: Sequence[str]) -> None:
        """Prepares the process; `start` runs it.

        Args:
            name: name for people.
            log: file that standard output and error are appended to.
            arguments: arguments of `python -m`.
        """
        self.name = name
        self.starts = 0
        self._log = log
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def is_running(self) -> bool:
        """Whether the process is alive (also while paused)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the process that was started last."""
        assert self._process is not None, "start() first"
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status of the ended process; None before its start, while it runs, after `kill`."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> Path:
        """File with what the process and its predecessors printed."""
        return self._log

    def start(self) -> None:
        """Starts the process, or its successor.

        Raises:
            OSError: its log can't be written.
        """
        assert not self.is_running, self.name
        self._log.touch()
        self._log_start = self._log.stat().st_size
        self.starts += 1
        env = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        self._process = spawn(self._whole_command(), output=self._log, env=env)

    def _whole_command(self) -> list[str]:
        return [sys.executable, "-m", *self._command()]

    def _command(self) -> list[str]:
        return self._arguments

    def check(self) -> None:
        """Raises ProcessDiedError, with its last lines, if the process has ended by itself."""
        if self._process is not None and (status := self._process.poll()) is not None:
            raise ProcessDiedError(
                f"The {self.name} ended by itself (exit status {status}); its log is {self._log}.",
                self.last_lines(LOG_LINES),
            )

    def last_lines(self, count: int) -> list[str]:
        """Returns the last lines that the process started last has printed."""
        return last_lines(self._log, count, from_byte=self._log_start)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal if the process runs."""
        if self.is_running:
            assert self._process is not None
            self._process.send_signal(number)

    def pause(self) -> None:
        """Sends SIGSTOP and waits: the process does nothing more until `resume` or `kill`."""
        self.signal(signal.SIGSTOP)
        if self._process is not None:
            await_stopped(self._process)

    def resume(self) -> None:
        """Sends SIGCONT, to end a pause."""
        self.signal(signal.SIGCONT)

    def leave_behind(self) -> Child:
        """Returns the running process as a child of its own; a successor can start beside it."""
        left = copy(self)
        left.name = f"zombie {self.starts} of {self.name}"
        self._process = None
        return left

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end. Does nothing if the process is not running."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait(KILL_TIMEOUT_S)
            self._process = None

    def ask_to_stop(self) -> None:
        """Sends SIGTERM, and ends a pause; the process finishes what it is doing."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a paused process would not see it

    def await_end(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Waits for the end after `ask_to_stop`, and sends SIGKILL after `timeout_s` seconds.

        Returns whether the process ended in time, with exit status 0.
        """
        status = None
        if self._process is not None:
            try:
                status = self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                status = None
        self.kill()
        return status == 0


class CoordinatorChild(Child):
    """Runs `logtx coordinator`, on another port at each start unless `listen` is given.

    Clients find it through the log, wherever it listens.
    """

    def __init__(
        self,
        name: str,
        log: Path,
        bootstrap_servers: str,
        *options: str,
        listen: str | None = None,
        launcher: Sequence[str] = (),
    ) -> None:
        """Prepares the coordinator; `start` runs it.

        Args:
            name: name for people.
            log: file that standard output and error are appended to.
            bootstrap_servers: addresses of the Kafka cluster.
            options: further options of `logtx coordinator`.
            listen: host:port to listen on; None picks a free port at each start.
            launcher: a module and its arguments, put before `logtx` on the command line.
        """
        super().__init__(name, log, ())
        self._servers = bootstrap_servers
        self._options = options
        self._listen = listen
        self._launcher = launcher
        self.address = listen or ""
        """host:port where it listens; "" before the first start, if none was given."""
        self._started_s = 0.0
        self._ready = False

    def start(self) -> None:
        """Starts the coordinator, or its successor. Raises as `Child.start`, and PortInUseError."""
        self.address = self._listen_at()
        self._ready = False
        self._started_s = time.monotonic()
        super().start()

    def _listen_at(self) -> str:
        return self._listen or f"{HOST}:{pick_ports(1)[0]}"

    def _command(self) -> list[str]:
        where = ["--bootstrap-servers", self._servers, "--listen", self.address]
        return [*self._launcher, "logtx", "coordinator", *where, *self._options]

    @property
    def is_ready(self) -> bool:
        """Whether it serves or stands by.

        Raises:
            ProcessDiedError: it died or takes too long; with its last lines.
        """
        if not self._ready:
            self._ready = says_ready(self._log, from_byte=self._log_start)
        if not self._ready:
            self.check()
            if time.monotonic() - self._started_s > COORDINATOR_START_TIMEOUT_S:
                raise ProcessDiedError(
                    f"The {self.name} was not ready within {COORDINATOR_START_TIMEOUT_S:.0f} s;"
                    f" its log is {self._log}.",
                    self.last_lines(LOG_LINES),
                )
        return self._ready

    def await_ready(self) -> None:
        """Waits until it serves or stands by, for a limited time. Raises as `is_ready`."""
        while not self.is_ready:
            time.sleep(_POLL_S)
