"""RocksDB's threads, which a forked child has not: it can't spill, and must not wait for them.

All databases of a process share them. In a child RocksDB takes them for running: nothing would
reach the disk, and at the end of the process it would wait for them, and crash or hang.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from ...journal.errors import SpillError


class _Threads:
    started = False
    lost = False
    """Whether they ran in the parent, before the fork."""


_THREADS: Final = _Threads()


def start_threads() -> None:
    """Notes that a database is opened, which starts them.

    Raises:
        SpillError: this process is a forked child, and they run in its parent alone.
    """
    if _THREADS.lost:
        raise SpillError(
            "a forked child can't spill pending transactions if its parent has: start processes by"
            ' "spawn" or "forkserver", make consumers after the fork alone, or raise'
            " pending.memory.max.bytes"
        )
    _THREADS.started = True


def _lose() -> None:
    if _THREADS.started and not _THREADS.lost:
        _THREADS.lost = True
        _end_at_once()


def _end_at_once() -> None:
    """Lets the process end before RocksDB waits, with its status, where the C library can do so.

    Handlers run in reverse order. RocksDB's is older, and so is never reached.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):
        library.on_exit(library._exit, None)


os.register_at_fork(after_in_child=_lose)
