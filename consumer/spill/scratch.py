"""A directory of this process alone, for what need not outlive it.

It is locked while the process lives, so that another one, or the next, can tell what was left by
the dead. A lock says so where a process id would not: in containers everybody is process 1.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

PREFIX: Final = "logtx-pending-"
LOCK: Final = "lock"
_ATTEMPTS: Final = 5


def _lock(path: Path, flags: int = 0) -> int | None:
    """A descriptor that holds the lock of a directory; None if somebody else holds it.

    Raises:
        OSError: it is gone, or has no lock, or is not ours to open.
    """
    # A file in it, opened to be written: what NFS needs to lock it for all its clients.
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def remove_stale(parent: Path) -> int:
    """Delete what dead processes left in `parent`; returns how many directories."""
    removed = 0
    for found in parent.glob(f"{PREFIX}*"):
        try:
            descriptor = _lock(found)
            if descriptor is None:
                continue
        except FileNotFoundError:
            # Died before it was locked; one that is being made is made again.
            with suppress(OSError):
                found.rmdir()
            continue
        except OSError:
            continue  # another user's, or another process is at it
        shutil.rmtree(found, ignore_errors=True)
        os.close(descriptor)
        removed += 1
    return removed


class ScratchDirectory:
    """A fresh locked directory, until it is removed."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use `make`."""
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def make(cls, parent: Path) -> Self:
        """Create and lock one.

        Raises:
            OSError: that can't be done in `parent`.
        """
        for _ in range(_ATTEMPTS):
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            try:
                descriptor = _lock(path, os.O_CREAT)
            except FileNotFoundError:
                continue
            # On the way here it may have been taken for a dead process's.
            if descriptor is not None:
                if (path / LOCK).exists():
                    return cls(path, descriptor)
                os.close(descriptor)
        raise OSError(f"directories made in {parent} are deleted at once")

    def remove(self) -> None:
        """Delete it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)
