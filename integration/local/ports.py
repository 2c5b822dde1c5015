"""Finds out which ports of this machine are free, and picks some."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Collection
from typing import Final

from .errors import PortInUseError

HOST: Final = "127.0.0.1"
PORT_MAX: Final = 65_535
"""The largest TCP port."""

# Below the kernel's range for outgoing connections (32768 and up). A client that keeps connecting
# to a port from that range, while the broker is down, can get this port as its own source port. It
# then talks to itself, and the broker cannot have its port back.
_FREE_PORTS: Final = range(20_000, 32_768)
_PORT_ATTEMPTS: Final = 200
"""Random ports that one `pick_ports` tries, and so the most that it can return."""
_CLAIMED: Final[dict[int, socket.socket]] = {}
"""Ports that this process has picked."""
_CONNECT_TIMEOUT_S: Final = 0.5
"""Longest wait for a connection: bounds the time lost on a listener that does not accept."""


def check_port(port: int, *, host: str = HOST) -> None:
    """Raises PortInUseError unless this process could listen on the port now."""
    problem = _listen_error(port, host)
    if problem is not None:
        raise PortInUseError(
            f"Port {port} on {host} is not free ({problem.strerror}): "
            "stop what listens there, or choose another port."
        )


def is_free(port: int) -> bool:
    """Returns whether this process could listen on the port now."""
    return _listen_error(port, HOST) is None


def accepts(port: int) -> bool:
    """Returns whether a process accepts connections on the port.

    Takes 0.1 ms if none does; asking with a Kafka client takes 10 ms and a thread.
    """
    try:
        socket.create_connection((HOST, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def pick_ports(count: int, *, besides: Collection[int] = ()) -> list[int]:
    """Returns `count` different ports that are free now and not in `besides`.

    On Linux no other process that picks ports gets one of them before this process ends.

    Raises PortInUseError if it finds too few.
    """
    chosen: list[int] = []
    for port in random.sample(_FREE_PORTS, _PORT_ATTEMPTS):
        if port not in besides and is_free(port) and _claim(port):
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise PortInUseError(
        f"Found no {count} free ports between {_FREE_PORTS.start} and {_FREE_PORTS.stop}."
    )


def _claim(port: int) -> bool:
    """Claims a port for this process, unless another one has. Returns whether it may be used.

    Some seconds pass before a program that was started listens there. Meanwhile another of several
    processes that start programs all the time, as tests do, could pick the same.
    """
    if sys.platform != "linux" or port in _CLAIMED:
        return True
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0logtx-port-{port}")  # No file: the system forgets it with the process.
    except OSError:
        claim.close()
        return False
    _CLAIMED[port] = claim
    return True


def _listen_error(port: int, host: str) -> OSError | None:
    with socket.socket() as probe:
        # As Java does: an earlier broker's connections in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None
