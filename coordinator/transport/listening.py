"""A port that a coordinator listens at: how it is taken, and given back.

A child of a fork has a copy of the listening socket. While one is open the port stays taken, and
the system takes connections there that nobody serves (trap 259). So Python's children close their
copy, and the end of the listening itself reaches every other one.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

from ...journal.fork import keep_from_children

BACKLOG: Final = 1_024
"""Connections that the system keeps until they are accepted: all clients of a dead coordinator come
at the same moment."""


class Listening:
    """A socket that listens."""

    def __init__(self, listening: socket.socket) -> None:
        self.socket: Final = listening
        keep_from_children(self)

    @property
    def port(self) -> int:
        """Returns the port."""
        return int(self.socket.getsockname()[1])

    def give_back(self) -> None:
        """Ends the listening, whoever has a copy of the socket.

        Close what accepts connections in the same turn, before it looks at the socket again.
        """
        # macOS refuses it for a socket that listens; there the children have closed theirs.
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def after_fork(self) -> None:
        """Closes the child's copy."""
        # Not by `close`, which waits for whoever has put the socket into an event loop.
        if self.socket.fileno() >= 0:
            os.close(self.socket.detach())


def listen(host: str, port: int) -> Listening:
    """Listens at the first address of a host; port 0 takes a free one.

    One, for with port 0 several would get several ports. `::` takes IPv4, too, as it does elsewhere
    but in asyncio.

    Raises:
        OSError: it can't be listened at.
    """
    family, *_, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
    return Listening(
        socket.create_server(address[:2], family=family, backlog=BACKLOG, dualstack_ipv6=both)
    )
