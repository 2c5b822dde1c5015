"""Connects to a host that may have several addresses, in both shells.

An address may drop packets: nothing answers, and to wait for it alone would take all the time that
there is (trap 258). So each further address is tried a moment after the one before, while that one
goes on, and at once when it is refused; who takes the connection first has it, and the others are
closed (RFC 8305, "Happy Eyeballs"). Addresses of IPv6 and IPv4 take turns, for most often all of
one kind are unreachable.

`Race` never waits: its caller does, until a socket of `connecting` can be written to or the next
address is due.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, zip_longest
from typing import Any, Final

APART_MS: Final = 200
"""How long an address is tried before the next one is, too. A client's search gives its first
attempt half a second: with more there is no time left for a second address. With less a host far
away is connected to several times."""
ADDRESSES_MAX: Final = 16
"""Addresses of a host that are tried. Each takes a socket, and of the time."""

_UNDER_WAY: Final = (errno.EINPROGRESS, errno.EWOULDBLOCK)
"""What connecting a socket that does not block answers while it goes on."""

Found = tuple[Any, Any, int, str, Any]
"""One address, as `getaddrinfo` returns it."""


class Race:
    """Connects to the first of a host's addresses that takes the connection. Not thread-safe."""

    def __init__(self, found: Iterable[Found], *, now_ms: int, by_ms: int) -> None:
        """Tries nothing before `step`.

        Args:
            found: the addresses, the preferred ones first.
            now_ms: the time.
            by_ms: when the caller gives up. Each address is tried in the first half of that time.
        """
        self._left = deque(_in_turns(found)[:ADDRESSES_MAX])
        self._apart_ms = min(APART_MS, (by_ms - now_ms) // (2 * max(len(self._left), 1)))
        self._due_ms = now_ms
        self._failure: OSError | None = None
        self.connecting: set[socket.socket] = set()
        """Those under way."""

    @property
    def next_due_ms(self) -> int | None:
        """Returns when to try the next address; None: there is none."""
        return self._due_ms if self._left else None

    def step(self, now_ms: int) -> socket.socket | None:
        """Looks at those under way, and tries what is due.

        Returns:
            The socket that is connected, and does not block; None while there is none.

        Raises:
            OSError: no address takes the connection.
        """
        made = self._connected(now_ms)
        while made is None and self._left and (now_ms >= self._due_ms or not self.connecting):
            self._due_ms = now_ms + self._apart_ms
            made = self._begin(self._left.popleft(), now_ms)
        if made is None and not self.connecting:
            raise self._failure or OSError("the host has no address")
        return made

    def close(self) -> None:
        """Closes what is under way."""
        while self.connecting:
            self.connecting.pop().close()

    def _begin(self, address: Found, now_ms: int) -> socket.socket | None:
        family, kind, protocol, _, where = address
        try:
            made = socket.socket(family, kind, protocol)
        except OSError as error:  # Of a family that this machine lacks.
            self._failed(error, now_ms)
            return None
        made.setblocking(False)
        self.connecting.add(made)
        code = made.connect_ex(where)
        return None if code in _UNDER_WAY else self._ended(made, code, now_ms)

    def _connected(self, now_ms: int) -> socket.socket | None:
        polling = select.poll()
        numbers = {each.fileno(): each for each in self.connecting}
        for number in numbers:
            polling.register(number, select.POLLOUT)
        for number, _ in polling.poll(0) if numbers else ():
            made = numbers[number]
            code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if self._ended(made, code, now_ms) is not None:
                return made
        return None

    def _ended(self, made: socket.socket, code: int, now_ms: int) -> socket.socket | None:
        self.connecting.discard(made)
        if code == 0:
            return made
        made.close()
        self._failed(OSError(code, os.strerror(code)), now_ms)
        return None

    def _failed(self, error: OSError, now_ms: int) -> None:
        self._failure, self._due_ms = error, now_ms


def _in_turns(found: Iterable[Found]) -> list[Found]:
    """Returns the addresses with their families in turns, that of the first one first."""
    families: dict[Any, list[Found]] = {}
    for each in found:
        families.setdefault(each[0], []).append(each)
    turns = chain.from_iterable(zip_longest(*families.values()))
    return [each for each in turns if each is not None]


def send_at_once(connected: socket.socket) -> None:
    """Has the system send small messages at once: an answer would wait 40 ms for the peer's system
    to acknowledge the one before."""
    # The peer may have reset the connection already. macOS refuses the option then, others don't;
    # whoever reads next is told of the reset.
    with suppress(OSError):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
