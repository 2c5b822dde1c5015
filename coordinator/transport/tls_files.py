"""Reads the files of TLS, and says what is wrong with them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from ...journal.errors import ConfigError
from ...journal.files import warn_if_others_read
from ...journal.tls import TlsConfig
from ..protocol.strangers import Role
from .tls_refusals import EXPIRED, NOT_YET_VALID

_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"
_TURNS: Final = 4
"""How often both ends of a handshake are asked: one of TLS 1.2 is done after two."""


def read_context(role: Role, config: TlsConfig) -> ssl.SSLContext:
    """Returns what connections of one end are made with.

    Raises:
        ConfigError: a file can't be used; the message names the setting.
    """
    is_client = role is Role.CLIENT
    ca = config.name("ssl.ca.location")
    if config.ca is not None:
        _check_pem(config.ca, ca, _CERTIFICATE, "certificate")
    purpose = ssl.Purpose.SERVER_AUTH if is_client else ssl.Purpose.CLIENT_AUTH
    try:
        context = ssl.create_default_context(purpose, cafile=config.ca)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{ca}: {config.ca} can't be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if is_client:
        context.check_hostname = config.checks_host
    elif config.client_auth != "none":
        is_required = config.client_auth == "required"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    if config.certificate is not None:
        _load(context, config)
        if config.key_password is None:
            warn_if_others_read(config.key or config.certificate, "the private key")
        # Many CAs sign for servers alone. Other coordinators that ask for nothing look at nothing.
        if not (is_client and config.of_coordinator and config.client_auth == "none"):
            _check_valid(role, config)
    return context


def _load(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Loads this end's certificate and key."""
    assert config.certificate is not None, "there is one"
    certificate, key = config.name("ssl.certificate.location"), config.name("ssl.key.location")
    password = config.name("ssl.key.password")
    key_path = config.key or config.certificate
    _check_pem(config.certificate, certificate, _CERTIFICATE, "certificate")
    _check_pem(key_path, key, _KEY, "private key")

    def given() -> str:
        if config.key_password is None:  # OpenSSL would ask for it at the terminal.
            raise ConfigError(f"{key}: the key in {key_path} has a password: set {password}")
        return config.key_password

    try:
        context.load_cert_chain(config.certificate, key_path, password=given)
    except ConfigError:
        raise
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{key}: the key in {key_path} is not that of the certificate in"
                f" {config.certificate} ({certificate}): name the two that belong together"
            ) from error
        if config.key_password is not None:
            raise ConfigError(
                f"{password}: the key in {key_path} can't be read with this password"
            ) from error
        raise ConfigError(
            f"{certificate}: {config.certificate} can't be used with the key in {key_path}: {error}"
        ) from error
    except OSError as error:  # It was there a moment ago: files are being replaced.
        raise ConfigError(f"{certificate}, {key}: can't be read: {error}") from error
    except ValueError:  # Too long, or with characters that no password has. The error shows it.
        raise ConfigError(f"{password}: no key can have such a password") from None


def _check_valid(role: Role, config: TlsConfig) -> None:
    """Shakes hands with itself: so OpenSSL says whether peers will find the certificate valid.

    Nothing else of the standard library reads the times in a certificate.
    """
    server, client = (ssl.SSLContext(p) for p in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    for each in (server, client):
        _load(each, config)
    judge = client if role is Role.COORDINATOR else server
    judge.load_verify_locations(config.certificate)
    # So it judges the certificate, and not those who have signed it: they may not be known here.
    judge.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    judge.verify_mode = ssl.CERT_REQUIRED
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for end in ends * _TURNS:
            _shake(end)
    except ssl.SSLError as error:
        why = {EXPIRED: "has expired", NOT_YET_VALID: "is not valid yet"}.get(
            getattr(error, "verify_code", 0), f"can't be used for a {role.value} ({error})"
        )
        raise ConfigError(
            f"{config.name('ssl.certificate.location')}: the certificate in {config.certificate}"
            f" {why}: name one that is valid now"
        ) from error


def _shake(end: ssl.SSLObject) -> None:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return


def _check_pem(path: Path, setting: str, mark: bytes, what: str) -> None:
    try:
        text = path.read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{setting}: can't read {path}: {why}") from error
    if mark not in text:
        raise ConfigError(f"{setting}: there is no {what} in {path}: name a file in PEM")
