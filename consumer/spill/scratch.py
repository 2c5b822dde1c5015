"""Makes a directory for this process alone, for files that need not outlive it.

The process holds a lock on it while it lives, so that other processes can tell which directories
dead processes left. A process id would not tell: in containers every process may have id 1.
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
"""How often `ScratchDirectory.make` tries, if another process deletes the directory before it is
locked. Fewer may fail when many processes start at once."""


def _lock(path: Path, flags: int = 0) -> int | None:
    """Locks a directory. Returns the descriptor that holds the lock; None if another process does.

    Raises:
        OSError: the directory is gone, has no lock file, or must not be opened by this user.
    """
    # NFS locks a file for all its clients only if it is opened for writing.
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
    """Deletes the directories that dead processes left in `parent`. Returns how many."""
    removed = 0
    for found in parent.glob(f"{PREFIX}*"):
        try:
            descriptor = _lock(found)
            if descriptor is None:
                continue
        except FileNotFoundError:
            # Its process died before the lock was made. If it is only being made now, `make` tries
            # again.
            with suppress(OSError):
                found.rmdir()
            continue
        except OSError:
            continue  # it belongs to another user, or another process deletes it
        shutil.rmtree(found, ignore_errors=True)
        os.close(descriptor)
        removed += 1
    return removed


class ScratchDirectory:
    """A fresh directory that is locked until it is removed."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Called by `make` only."""
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def make(cls, parent: Path) -> Self:
        """Creates and locks a directory.

        Raises:
            OSError: this can't be done in `parent`.
        """
        for _ in range(_ATTEMPTS):
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            try:
                descriptor = _lock(path, os.O_CREAT)
            except FileNotFoundError:
                continue
            # Before it was locked another process may have deleted it as a dead process's.
            if descriptor is not None:
                if (path / LOCK).exists():
                    return cls(path, descriptor)
                os.close(descriptor)
        raise OSError(f"directories made in {parent} are deleted at once")

    def remove(self) -> None:
        """Deletes the directory with everything in it, and its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)
