"""Tells peers that this process lives while its event loop is held up.

An event loop answers the pings of its connections between two of its turns. A turn may take half a
second: a journal is replayed, a thousand clients connect, or others have the processor. All clients
would leave at once then, and come back to a loop that has still more to do (trap 237). So a thread
looks at the loop, and while that is late it says a PONG on each connection by itself. It costs
connections nothing while the loop is in time, for it does nothing then.

*It never claims too much.* A thread that went on for ever would keep clients at a coordinator whose
loop is dead for good (trap 239). So it says something only while the loop was seen running within
`HELD_UP_MAX_S`. A process that was stopped says nothing: all its threads stand still, and when it
runs on it is silent until the loop has run, if it stood for longer than that.

*It never says half a frame.* `LoopConnection.show_alive` puts a PONG between two frames alone, and
what the system did not take of it goes out in front of the next one (trap 238).

It needs the interpreter for that. A call into C that keeps it for longer than the client's deadline
is a call that a client takes for a dead coordinator.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
import time
from typing import Final, Protocol

BEAT_S: Final = 0.05
"""How often the loop shows that it runs, and how often the thread looks. More often costs CPU of an
idle process, now some 0.1%."""
HELD_UP_S: Final = 0.1
"""Silence of the loop after which the thread speaks for it. With `BEAT_S` more, and the time for
all connections, it must be below `CLIENT_DEADLINES.pong_ms`: a PING may have come just when the
loop was held up."""
SHOWN_S: Final = 0.2
"""Pause before it speaks again. With the time for all connections it must be below what clients
wait for without a byte, `ping_after_ms` and `pong_ms`."""
HELD_UP_MAX_S: Final = 4.0
"""Silence of the loop after which the thread is silent, too, and clients leave half a second later.

As long as coordinators wait for each other's news (`SILENCE_S` of the peers): until then no other
coordinator takes over, and a client that leaves finds nobody. Longer, and clients stay at a
coordinator that serves nothing while another one serves."""

_FLAGS: Final = getattr(socket, "MSG_NOSIGNAL", 0)
# Not `socket.send`, which lets go of the interpreter: the busy loop takes it, and gives it back one
# switch interval later. A thousand connections take 700 ms so, and 10 ms this way.
_send: Final = ctypes.PyDLL("ws2_32" if os.name == "nt" else None).send
_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_send.restype = ctypes.c_ssize_t


def send_now(descriptor: int, data: bytes) -> int:
    """Writes to a socket that does not block; returns how many bytes the system took, maybe 0."""
    return max(int(_send(descriptor, data, len(data), _FLAGS)), 0)


class Shown(Protocol):
    """A connection that can be shown to be alive."""

    def show_alive(self) -> None:
        """Says a PONG, if that fits between two frames. Called in another thread."""


class Alive:
    """Speaks for one event loop on its connections, while that is held up.

    All but the thread's work is called on the loop. It must be stopped before the loop is closed.
    """

    def __init__(self) -> None:
        """Does nothing before `start`."""
        self._connections: set[Shown] = set()
        self._beat_s = 0.0
        """When the loop was seen running last."""
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.rounds = 0
        """How often it spoke for the loop."""

    def start(self) -> None:
        """Begins to look at the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._beat()
        self._thread = threading.Thread(target=self._run, name="logtx-alive", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Says nothing any more."""
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()  # It waits for nothing else, and writes without waiting.

    def add(self, connection: Shown) -> None:
        """Speaks on this connection, too."""
        self._connections.add(connection)

    def discard(self, connection: Shown) -> None:
        """Speaks on it no more, but for a round that is under way."""
        self._connections.discard(connection)

    def _beat(self) -> None:
        assert self._loop is not None, "start() first"
        self._beat_s = time.monotonic()
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _run(self) -> None:
        assert self._loop is not None, "start() first"
        pause_s = BEAT_S
        while not self._stopping.wait(pause_s):
            pause_s = BEAT_S
            late_s = time.monotonic() - self._beat_s
            # One that has ended is not held up.
            if HELD_UP_S < late_s <= HELD_UP_MAX_S and self._loop.is_running():
                for connection in list(self._connections):
                    connection.show_alive()
                self.rounds += 1
                pause_s = SHOWN_S
