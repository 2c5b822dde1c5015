"""TLS of a connection: from bytes to bytes, without a socket, so that both shells do the same.

The machine of `frames` has what TLS lacks here. Its deadline for the peer's hello bounds the
handshake, and CLOSE tells a whole stream from one that was cut, so TLS's own alert of the end is
not waited for. Both ends can shut down their direction of TCP under it.
"""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...journal.errors import ConfigError, FrameError
from ..protocol.strangers import Role

_LOG = logging.getLogger(__name__)

_READ_BYTES: Final = 65_536
_HANDSHAKE: Final = b"\x16\x03"
"""First bytes of each TLS client."""
_ALERT: Final = bytes.fromhex("15 0303 0002 0228")
"""An alert, for who speaks no TLS: logtx's clients know by it that the port does."""
_NO_TLS: Final = frozenset(
    ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNEXPECTED_EOF_WHILE_READING")
)
"""What OpenSSL calls a peer that answers a handshake with something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Files of one end, all in PEM."""

    ca: Path | None = None
    """Certificates of who may sign the peer's. None: a client trusts what its system trusts, and a
    coordinator does not ask clients for a certificate."""
    certificate: Path | None = None
    """This end's certificate, with those between it and the CA. A coordinator must have one."""
    key: Path | None = None
    """The certificate's private key; None: it lies in the same file."""


class Tls:
    """What new connections of one end are protected with. Thread-safe.

    The files are looked at for each new connection, and read again when they have changed: so a
    renewed certificate needs no restart. Connections that are open keep theirs. While the files
    don't fit each other, as between the writing of one and of the other, what was read before is
    used on.
    """

    def __init__(self, role: Role, config: TlsConfig) -> None:
        """Reads the files.

        Raises:
            ConfigError: one can't be read, they don't fit each other, or a coordinator has none.
        """
        if role is Role.COORDINATOR and config.certificate is None:
            raise ConfigError("a coordinator with TLS needs a certificate: name its file")
        self._role = role
        self._config = config
        self._lock = threading.Lock()
        self._seen = self._stamps()
        try:
            self._context = self._read()
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise ConfigError(f"{self._files()} can't be used for TLS: {error}") from error

    def context(self) -> ssl.SSLContext:
        """Returns the context for a new connection."""
        with self._lock:
            stamps = self._stamps()
            if stamps != self._seen:
                try:
                    self._context = self._read()
                except (OSError, ValueError) as error:
                    # Not marked as seen: the next connection looks again.
                    _LOG.warning("tls_not_renewed files=%s error=%s", self._files(), error)
                else:
                    self._seen = stamps
                    _LOG.info("tls_renewed files=%s", self._files())
            return self._context

    def filter(self, host: str = "") -> TlsFilter:
        """Returns the TLS of one new connection; `host`: what the client calls the coordinator."""
        return TlsFilter(self.context(), self._role, host)

    def _read(self) -> ssl.SSLContext:
        config, ca = self._config, None if self._config.ca is None else str(self._config.ca)
        if self._role is Role.CLIENT:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
        else:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
            if ca is not None:
                context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if config.certificate is not None:
            # Without a password: OpenSSL would ask for one at the terminal.
            context.load_cert_chain(config.certificate, config.key, password=_no_password)
        return context

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        config = self._config
        return tuple(_stamp(path) for path in (config.ca, config.certificate, config.key))

    def _files(self) -> str:
        config = self._config
        return ", ".join(str(f) for f in (config.ca, config.certificate, config.key) if f)


class TlsFilter:
    """TLS of one connection at one end. Not thread-safe."""

    def __init__(self, context: ssl.SSLContext, role: Role, host: str) -> None:
        """Begins the handshake; `host` is what the client calls the coordinator."""
        self._role = role
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=role is Role.COORDINATOR,
            server_hostname=host if role is Role.CLIENT else None,
        )
        self._is_up = self._has_failed = False
        self._early = bytearray()
        self._first = b""
        if role is Role.CLIENT:
            self._shake()

    def wrap(self, plain: bytes) -> bytes:
        """Returns the bytes for the socket that carry these, and what the handshake has to say.

        What is given before the end of the handshake goes out behind it. After `unwrap` has raised
        nothing can be said any more.
        """
        if self._has_failed:
            return b""
        if self._is_up:
            self._write(plain)
        else:
            self._early += plain
        return self._outgoing.read()

    def unwrap(self, data: bytes) -> bytes:
        """Returns what bytes of the socket carry. Then `wrap(b"")` may have something to say.

        Raises:
            FrameError: the peer can't be spoken to, or is not trusted.
        """
        if len(self._first) < len(_HANDSHAKE):
            self._first += data[: len(_HANDSHAKE)]
        self._incoming.write(data)
        try:
            if not self._is_up and not self._shake():
                return b""
            return self._read()
        except ssl.SSLError as error:
            self._has_failed = True
            raise FrameError(self._sentence(error)) from error

    def last_words(self) -> bytes:
        """Returns what to tell the peer after `unwrap` has raised."""
        said = self._outgoing.read()
        speaks_tls = self._role is Role.CLIENT or self._first.startswith(_HANDSHAKE)
        return said if speaks_tls else _ALERT

    @property
    def peer(self) -> str:
        """Returns the name in the certificate that the peer showed, as `CN=…,O=…`; "" if none."""
        certificate: Any = self._tls.getpeercert() if self._is_up else None
        subject = certificate.get("subject", ()) if certificate else ()
        return ",".join(
            f"{_SHORT.get(name, name)}={value}"
            for part in reversed(subject)
            for name, value in part
        )

    def _shake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self._is_up = True
        early, self._early = bytes(self._early), bytearray()
        self._write(early)
        return True

    def _write(self, plain: bytes) -> None:
        left = memoryview(plain)
        while left:
            left = left[self._tls.write(left) :]

    def _read(self) -> bytes:
        found = bytearray()
        try:
            while plain := self._tls.read(_READ_BYTES):
                found += plain
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # All of it was read; or the peer has ended TLS, and its stream ends next.
        return bytes(found)

    def _sentence(self, error: ssl.SSLError) -> str:
        peer, reason = self._role.peer, error.reason or str(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"{peer}'s certificate is not accepted ({error.verify_message}): see that it is"
                " valid, names the host that is connected to, and is signed by the CA named here"
            )
        if "ALERT" in reason:
            return (
                f"{peer} ended TLS ({reason}): see that it accepts the certificate of this end, if"
                " there is one, and what it says itself"
            )
        if self._role is Role.CLIENT and reason in _NO_TLS:
            return (
                "this client speaks TLS and the coordinator's port does not: switch TLS off here,"
                " or name a port that speaks it"
            )
        if not self._first.startswith(_HANDSHAKE) and self._role is Role.COORDINATOR:
            return (
                "this port speaks TLS and the client does not: switch TLS on at the client, and"
                " install the coordinator's version of logtx there if it knows no TLS"
            )
        return f"TLS with {peer} failed ({reason})"


_SHORT: Final = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
}
"""Parts of a name as Kafka writes them."""


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Returns what differs once a file was written; None if there is none."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _no_password() -> str:
    raise ConfigError("the private key has a password: give logtx a file without one")
