"""TLS of a connection: from bytes to bytes, without a socket, so that both shells do the same.

The machine of `frames` has what TLS lacks here. Its deadline for the peer's hello bounds the
handshake, and CLOSE tells a whole stream from one that was cut, so TLS's own alert of the end is
not waited for. Both ends can shut down their direction of TCP under it.
"""

from __future__ import annotations

import logging
import ssl
import threading
from typing import Any, Final

from ...journal.errors import ConfigError, TlsError
from ...journal.files import stamp
from ...journal.tls import TlsConfig
from ..protocol.strangers import Role
from .tls_files import read_context
from .tls_refusals import refusal

_LOG = logging.getLogger(__name__)

_READ_BYTES: Final = 65_536
_HANDSHAKE: Final = b"\x16\x03"
"""First bytes of each TLS client."""
_ALERT: Final = bytes.fromhex("15 0303 0002 0228")
"""An alert, for who speaks no TLS: logtx's clients know by it that the port does."""


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
            ConfigError: one can't be used, or a coordinator has no certificate. The message names
                the setting.
        """
        if role is Role.COORDINATOR and config.certificate is None:
            raise ConfigError(
                "a coordinator with TLS needs a certificate: name its file by"
                f" {config.name('ssl.certificate.location')}"
            )
        self._role = role
        self.config: Final = config
        self._lock = threading.Lock()
        self._seen = self.stamps()
        self._context = read_context(role, config)

    def context(self) -> ssl.SSLContext:
        """Returns the context for a new connection."""
        with self._lock:
            stamps = self.stamps()
            if stamps != self._seen:
                try:
                    self._context = read_context(self._role, self.config)
                except ConfigError as error:
                    # Not marked as seen: the next connection looks again.
                    _LOG.warning("tls_not_renewed files=%s error=%s", self._files(), error)
                else:
                    self._seen = stamps
                    _LOG.info("tls_renewed files=%s", self._files())
            return self._context

    def filter(self, host: str = "") -> TlsFilter:
        """Returns the TLS of one new connection; `host`: what the client calls the coordinator."""
        return TlsFilter(self.context(), self._role, self.config, host)

    def stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Returns what changes when a file does."""
        config = self.config
        return tuple(stamp(path) for path in (config.ca, config.certificate, config.key))

    def _files(self) -> str:
        config = self.config
        return ",".join(str(f) for f in (config.ca, config.certificate, config.key) if f)


class TlsFilter:
    """TLS of one connection at one end. Not thread-safe."""

    def __init__(self, context: ssl.SSLContext, role: Role, config: TlsConfig, host: str) -> None:
        """Begins the handshake; `host` is what the client calls the coordinator."""
        self._role, self._config = role, config
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
            TlsError: the peer can't be spoken to, or is not trusted.
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
            speaks_tls = self._role is Role.CLIENT or self._first.startswith(_HANDSHAKE)
            told = refusal(error, self._role, self._config, peer_speaks_tls=speaks_tls)
            raise TlsError(told) from error

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


_SHORT: Final = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
}
"""Parts of a name as Kafka writes them."""
