"""Tells by its first bytes who is at the other end of a connection, if it is no logtx. Pure.

An operator who swapped two ports, or upgraded half of a cluster, is to read one sentence that says
so: in the log of the end that noticed, and at the other end in that end's own protocol.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from ...journal.errors import FrameError, TlsError

FIRST_BYTES: Final = 8
"""Number of first bytes that tell one protocol from another. Fewer come only before an end."""


class Role(Enum):
    """Which end of a connection this is."""

    CLIENT = "client"
    COORDINATOR = "coordinator"

    @property
    def peer(self) -> str:
        """Returns who is at the other end, for people."""
        return "the coordinator" if self is Role.CLIENT else "the client"


class Stranger(NamedTuple):
    """Who is there in place of a logtx."""

    sentence: str
    """What happened, and what to do about it."""
    answer: bytes
    """The same in the stranger's own protocol; empty if it has no words for it."""
    kind: type[FrameError] = FrameError
    """The error that says the sentence."""


_METHODS: Final = tuple(
    f"{method} ".encode()
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
)
_OVER_GRPC: Final = (
    "this coordinator takes sessions by frames and not by gRPC (HTTP/2), as clients of older"
    " versions of logtx make them: install the coordinator's version of logtx at the client"
)
_OVER_TLS: Final = (
    "the client speaks TLS and this port does not: give this coordinator"
    " --ssl-certificate-location, or set coordinator.security.protocol=PLAINTEXT at the client"
)
_OVER_HTTP: Final = (
    "this port takes logtx's sessions and not HTTP requests: metrics are at --metrics-listen"
)
_OVER_KAFKA: Final = (
    "a Kafka client connected: name brokers in its bootstrap.servers, and not a coordinator"
)
_BY_GRPC: Final = (
    "the coordinator answers by gRPC (HTTP/2), as older versions of logtx do: upgrade it, or"
    " install its version here"
)
_BY_TLS: Final = (
    "the coordinator's port speaks TLS and this client does not: set"
    " coordinator.security.protocol=SSL, and coordinator.ssl.ca.location to the CA of its"
    " certificate (a coordinator: --ssl-certificate-location)"
)
_BY_HTTP: Final = (
    "an HTTP server answers in place of a coordinator: look for a wrong port in the coordinator's"
    " --advertise"
)


def stranger_of(first: bytes, role: Role) -> Stranger:
    """Returns who sent these first bytes to this end, which are not those of a logtx.

    Args:
        first: `FIRST_BYTES` bytes, or fewer if the connection ended behind them.
        role: which end received them.
    """
    shown = first[:FIRST_BYTES].hex(" ")
    if role is Role.CLIENT:
        # An HTTP/2 server speaks first: a SETTINGS frame of stream 0. A TLS server sends an alert.
        if len(first) >= 8 and first[3:8] == b"\x04\0\0\0\0":
            return Stranger(_BY_GRPC, b"")
        if first[:2] == b"\x15\x03":
            return Stranger(_BY_TLS, b"", TlsError)
        if first.startswith(b"HTTP/"):
            return Stranger(_BY_HTTP, b"")
        return Stranger(
            f"no coordinator answers there (its first bytes are {shown}): see that the address is"
            " one of a coordinator, and that nothing between changes bytes",
            b"",
        )
    if first.startswith(b"PRI * HT"):
        # Words of HTTP/2 (GOAWAY with a text) would make gRPC connect again at once, for ever, and
        # tell nobody. To this it says what the status is, and ends the call.
        return Stranger(_OVER_GRPC, _http("426 Upgrade Required", _OVER_GRPC))
    if first[:2] == b"\x16\x03":
        # Bytes that are no TLS make each TLS library say that this is a plain port.
        return Stranger(_OVER_TLS, _line(_OVER_TLS), TlsError)
    if first.startswith(_METHODS):
        return Stranger(_OVER_HTTP, _http("400 Bad Request", _OVER_HTTP))
    if first[:2] == b"\0\0" and first[4:6] == b"\0\x12":
        # ApiVersions, the first request of each Kafka client. It would read text as a length.
        return Stranger(_OVER_KAFKA, b"")
    sentence = (
        f"no client of logtx is there (its first bytes are {shown}): only those can use this port"
    )
    return Stranger(sentence, _line(sentence))


def _line(sentence: str) -> bytes:
    return f"logtx: {sentence}\n".encode()


def _http(status: str, sentence: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
    return head.encode() + _line(sentence)
