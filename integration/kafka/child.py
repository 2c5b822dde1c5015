"""Child processes that do not outlive us and do not hear the terminal's Ctrl-C.

The kernel's parent-death signal (prctl PR_SET_PDEATHSIG) ends the child when we are killed with
SIGKILL. Two of its traps are handled here:

- it is set by a few lines of Python that then become the program (exec keeps both the signal and
  the process id). A `preexec_fn` would do the same inside our own forked process, where gRPC's
  fork handlers and other threads' locks make it unsafe;
- it fires when the *thread* that started the child ends, not the process. So one thread, which
  lives as long as we do, starts all children.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final

_BECOME_CHILD: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):  # the parent died before the line above took effect
    sys.exit("parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


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
    """Start `command` (an absolute program path and its arguments) in its own process group.

    Standard output and error are appended to `output`. The child gets SIGKILL when this process
    ends in whatever way. Raises OSError if `output` cannot be opened.
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
    """The last `count` lines of a log without blank ones and stack frames; [] if there is none.

    Reads at most 64 KiB, from `from_byte` on.
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
