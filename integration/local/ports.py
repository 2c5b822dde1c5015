"""Ports of this machine: which are free, and which to take."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from typing import Final

from .errors import PortInUseError

HOST: Final = "127.0.0.1"
PORT_MAX: Final = 65_535

# Below the kernel's range for outgoing connections (32768 and up): a client that keeps connecting
# to a port from that range, while the broker is down, can be given it as its own source port. It
# then talks to itself, and the broker cannot have its port back.
_FREE_PORTS: Final = range(20_000, 32_768)
_PORT_ATTEMPTS: Final = 200
_CONNECT_TIMEOUT_S: Final = 0.5


def check_port(port: int, *, host: str = HOST) -> None:
    """Raise PortInUseError unless we could listen on this port now."""
    problem = _listen_error(port, host)
    if problem is not None:
        raise PortInUseError(
            f"Port {port} on {host} is not free ({problem.strerror}): "
            "stop what listens there, or choose another port."
        )


def is_free(port: int) -> bool:
    """Whether we could listen on this port now."""
    return _listen_error(port, HOST) is None


def accepts(port: int) -> bool:
    """Whether somebody accepts connections there.

    Costs 0.1 ms where nobody does; to ask by a Kafka client costs 10 ms and a thread.
    """
    try:
        socket.create_connection((HOST, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def pick_ports(count: int, *, besides: Collection[int] = ()) -> list[int]:
    """So many different ports that are free now, and none of `besides`.

    Raises PortInUseError if there are too few.
    """
    chosen: list[int] = []
    for port in random.sample(_FREE_PORTS, _PORT_ATTEMPTS):
        if port not in besides and is_free(port):
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise PortInUseError(
        f"Found no {count} free ports between {_FREE_PORTS.start} and {_FREE_PORTS.stop}."
    )


def _listen_error(port: int, host: str) -> OSError | None:
    with socket.socket() as probe:
        # As Java does: connections of an earlier broker in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None
