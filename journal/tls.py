"""Settings of TLS between clients and coordinators, and of coordinators among each other. Pure.

Both have librdkafka's names. Those of clients begin with ``coordinator.``, for without it they are
of connections to brokers. Those of coordinators are options of `logtx coordinator`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .errors import ConfigError
from .settings import take_choice, take_text

_PREFIX: Final = "coordinator."
_SSL: Final = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
)
_CLIENT_AUTH: Final = "ssl.client.auth"
PROTOCOL: Final = f"{_PREFIX}security.protocol"
"""The setting that switches TLS on, of a client."""
OWN: Final = (PROTOCOL, *(f"{_PREFIX}{name}" for name in _SSL))
"""Names of a client's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Checked settings of one end. Files are in PEM."""

    ca: Path | None = None
    """``ssl.ca.location``: certificates of who may sign the peer's. None: those that the system
    trusts."""
    certificate: Path | None = None
    """``ssl.certificate.location``: this end's certificate, with those between it and the CA. A
    coordinator must have one."""
    key: Path | None = None
    """``ssl.key.location``: the certificate's private key; None: it lies in the same file."""
    key_password: str | None = field(default=None, repr=False)
    """``ssl.key.password``: the password of the key; None: it has none."""
    checks_host: bool = True
    """``ssl.endpoint.identification.algorithm``: whether a coordinator's certificate must name the
    host that is connected to (https), or need not (none)."""
    client_auth: str = "none"
    """``ssl.client.auth``: whether a coordinator asks clients for a certificate: none, requested
    (it may be missing) or required."""
    of_coordinator: bool = False
    """Whether these are a coordinator's, whose errors name options and not settings."""

    def name(self, setting: str) -> str:
        """Returns how whoever set it calls a setting, such as ``ssl.ca.location``."""
        return _option(setting) if self.of_coordinator else f"{_PREFIX}{setting}"


def take_tls(settings: MutableMapping[str, Any]) -> TlsConfig | None:
    """Takes a client's settings of TLS to coordinators; None: it speaks none.

    Raises:
        ConfigError: one is wrong, or has no effect.
    """
    protocol = str(settings.pop(PROTOCOL, None) or "PLAINTEXT")
    if protocol.upper() not in ("PLAINTEXT", "SSL"):
        raise ConfigError(f"{PROTOCOL} must be PLAINTEXT or SSL, not {protocol!r}")
    if protocol.upper() == "SSL":
        return _taken(settings, TlsConfig())
    idle = [name for name in OWN if settings.pop(name, None) is not None]
    if idle:
        raise ConfigError(f"{idle[0]} has no effect without {PROTOCOL}=SSL: set that, too")
    return None


def tls_of_options(given: Mapping[str, Any]) -> TlsConfig | None:
    """Returns what the options of a coordinator say; None: it speaks no TLS.

    Args:
        given: name of an option, with _ for - → its value; None of one that was not given.

    Raises:
        ConfigError: one is wrong, or has no effect.
    """
    options = {f"--{n.replace('_', '-')}": v for n, v in given.items() if v is not None}
    config = TlsConfig(of_coordinator=True)
    certificate = config.name("ssl.certificate.location")
    if options and certificate not in options:
        raise ConfigError(f"{min(options)} has no effect without {certificate}: give that, too")
    return _taken(options, config) if options else None


def _taken(settings: MutableMapping[str, Any], unset: TlsConfig) -> TlsConfig:
    name = unset.name
    ca, certificate, key = (
        None if (path := take_text(settings, name(setting), None)) is None else Path(path)
        for setting in _SSL[:3]
    )
    password = take_text(settings, name("ssl.key.password"), None)
    for setting, value in (("ssl.key.location", key), ("ssl.key.password", password)):
        if certificate is None and value is not None:
            raise ConfigError(
                f"{name(setting)} has no effect without {name('ssl.certificate.location')}: set"
                " that, too"
            )
    identification = name("ssl.endpoint.identification.algorithm")
    client_auth = "none"
    if unset.of_coordinator:
        client_auth = take_choice(
            settings, name(_CLIENT_AUTH), "none", ["none", "requested", "required"]
        )
    if client_auth != "none" and ca is None:
        raise ConfigError(
            f"{name(_CLIENT_AUTH)}={client_auth} needs {name('ssl.ca.location')}: name a file with"
            " the CA that signs clients' certificates"
        )
    return TlsConfig(
        ca=ca,
        certificate=certificate,
        key=key,
        key_password=password,
        checks_host=take_choice(settings, identification, "https", ["https", "none"]) == "https",
        client_auth=client_auth,
        of_coordinator=unset.of_coordinator,
    )


def _option(setting: str) -> str:
    return f"--{setting.replace('.', '-')}"
