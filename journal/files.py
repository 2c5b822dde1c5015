"""Looks at files that settings name."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Final

_LOG = logging.getLogger(__name__)
_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH
_WARNED: Final[set[Path]] = set()
"""Of which a warning was logged. A process may open many clients, each of which reads its files."""


def warn_if_others_read(path: Path, secrets: str) -> None:
    """Logs a warning if the group or everybody may read a file; names the file and the remedy.

    Each file is warned of once in a process.
    """
    try:
        mode = path.stat().st_mode
    except OSError:  # It is being replaced: who reads it next looks again.
        return
    if mode & _OTHERS and path not in _WARNED:
        _WARNED.add(path)
        _LOG.warning("others may read %s in %s: chmod 600 it", secrets, path)


def stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Returns what differs once a file was written; None if there is none."""
    if path is None:
        return None
    try:
        found = path.stat()
    except (OSError, ValueError):  # A path with a NUL is one that nobody has.
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
