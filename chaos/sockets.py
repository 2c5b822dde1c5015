"""Finds the TCP ports that a process of this machine connects from, by Linux's /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_LOCAL, _INODE = 1, 9
"""Columns of /proc/<pid>/net/tcp."""


def local_ports(pid: int) -> set[int]:
    """Returns the local ports of a process' TCP sockets; empty if the process is gone."""
    try:
        inodes = set(_socket_inodes(_PROC / str(pid) / "fd"))
        tables = [(_PROC / str(pid) / "net" / name).read_text() for name in ("tcp", "tcp6")]
    except OSError:
        return set()
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    return {
        int(row[_LOCAL].rpartition(":")[2], 16)
        for row in rows
        if len(row) > _INODE and row[_INODE] in inodes
    }


def _socket_inodes(directory: Path) -> list[str]:
    found = []
    for name in os.listdir(directory):
        try:
            target = os.readlink(directory / name)
        except FileNotFoundError:
            continue  # closed after it was listed
        if target.startswith("socket:["):
            found.append(target[len("socket:[") : -1])
    return found
