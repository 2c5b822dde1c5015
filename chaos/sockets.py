"""Tells which process a TCP connection of this machine comes from, by Linux's sock_diag and /proc.

/proc/net/tcp says the same, but the kernel walks its whole table of connections at each reading,
and clients that reconnect under faults let us ask many times a second.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
"""nlmsghdr: length in bytes, type, flags, sequence, port."""
_REQUEST: Final = struct.Struct("=BBBxI 2s2s4s12x4s12xI8s")
"""inet_diag_req_v2: family, protocol, extensions, states, ports, addresses, interface, cookie."""
_INODE: Final = struct.Struct("=68xI")
"""Where inet_diag_msg has the inode."""
_ANY_COOKIE: Final = b"\xff" * 8
_ALL_STATES: Final = 0xFFFFFFFF
_TIMEOUT_S: Final = 1.0
"""Bounds the wait for the kernel, which answers while it is asked."""


def socket_inode(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Returns the inode of the socket that has this IPv4 connection; None if it is closed.

    Args:
        local: address and port of the socket's own end.
        remote: those of the other end.

    Raises:
        OSError: the kernel can't be asked.
    """
    request = _REQUEST.pack(
        socket.AF_INET,
        socket.IPPROTO_TCP,
        0,
        _ALL_STATES,
        local[1].to_bytes(2),
        remote[1].to_bytes(2),
        socket.inet_aton(local[0]),
        socket.inet_aton(remote[0]),
        0,
        _ANY_COOKIE,
    )
    size = _HEADER.size + len(request)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + request)
        answer = kernel.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    inode: int = _INODE.unpack_from(answer, _HEADER.size)[0]
    return inode or None


def socket_inodes(pid: int) -> set[int]:
    """Returns the inodes of a process' sockets; empty if the process is gone."""
    directory = _PROC / str(pid) / "fd"
    found: set[int] = set()
    try:
        names = os.listdir(directory)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(directory / name)
        except OSError:
            continue  # closed after it was listed, or its process has ended
        if target.startswith("socket:["):
            found.add(int(target[len("socket:[") : -1]))
    return found
