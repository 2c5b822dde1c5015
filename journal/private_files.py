"""Warns of files with secrets that others may read."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Final

_LOG = logging.getLogger(__name__)
_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH


def warn_if_others_read(path: Path, secrets: str) -> None:
    """Logs a warning if the group or everybody may read a file; names the file and the remedy."""
    try:
        mode = path.stat().st_mode
    except OSError:  # It is being replaced: who reads it next looks again.
        return
    if mode & _OTHERS:
        _LOG.warning("others may read %s in %s: chmod 600 it", secrets, path)
