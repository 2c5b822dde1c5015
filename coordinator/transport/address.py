"""The clock of both shells, and how addresses are read everywhere."""

from __future__ import annotations

import time

from ...journal.errors import ConfigError


def now_ms() -> int:
    """Returns the monotonic clock, as `Endpoint` has it."""
    return time.monotonic_ns() // 1_000_000


def split(address: str) -> tuple[str, int]:
    """Returns host and port of `host:port`; an IPv6 host may stand in brackets.

    Raises:
        ConfigError: it is no such address.
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""  # Where an IPv6 host without brackets ends can't be told.
    if not _is_host(host) or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{address!r} is no address: give host:port, or [host]:port with IPv6")
    return host, int(port)


def _is_host(host: str) -> bool:
    # Else the resolver raises what is no OSError: of an empty label, of one of more than 63 bytes.
    try:
        return bool(host.encode("idna")) and host.isprintable() and not set(host) & set("/[] ")
    except UnicodeError:
        return False


def joined(host: str, port: int) -> str:
    """Returns `host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
