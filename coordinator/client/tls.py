"""The TLS of a client's connections to coordinators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...journal.tls import TlsConfig, take_tls
from ..protocol.strangers import Role
from ..transport.tls import Tls

__all__ = ["Tls", "opened_tls", "tls_of"]


def opened_tls(config: TlsConfig | None) -> Tls | None:
    """Returns the TLS of these settings; None: there is none.

    Raises:
        ConfigError: a file can't be used.
    """
    return None if config is None else Tls(Role.CLIENT, config)


def tls_of(settings: Mapping[str, Any]) -> Tls | None:
    """Returns the TLS that a client's whole settings ask for; None: none.

    Raises:
        ConfigError: a setting is wrong, or a file can't be used.
    """
    return opened_tls(take_tls(dict(settings)))
