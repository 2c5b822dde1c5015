"""Says why TLS with a peer failed, and which setting to change. Pure."""

from __future__ import annotations

import ssl
from typing import Final

from ...journal.tls import PROTOCOL, TlsConfig
from ..protocol.strangers import Role

_NO_TLS: Final = frozenset(
    ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNEXPECTED_EOF_WHILE_READING")
)
"""What OpenSSL calls a peer that answers a handshake with something else."""
NOT_YET_VALID: Final = 9
EXPIRED: Final = 10
_OTHER_HOST: Final = (62, 64)
"""What OpenSSL calls what it finds in a certificate (X509_V_ERR_…)."""
_OF_COORDINATORS: Final = TlsConfig(of_coordinator=True)
_OF_CLIENTS: Final = TlsConfig()


def refusal(error: ssl.SSLError, role: Role, config: TlsConfig, *, peer_speaks_tls: bool) -> str:
    """Returns what happened and what to do about it.

    Args:
        error: what OpenSSL says.
        role: which end this is.
        config: its settings.
        peer_speaks_tls: whether the peer began as TLS does.
    """
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return _not_trusted(error, role, config)
    if "ALERT" in reason:
        return _alerted(reason, role, config)
    if not peer_speaks_tls:
        return (
            f"this port speaks TLS and the client does not: set {PROTOCOL}=SSL at the client, or"
            f" give a coordinator {_OF_COORDINATORS.name('ssl.certificate.location')}; a version of"
            " logtx that knows no TLS is to be upgraded"
        )
    if reason in _NO_TLS:
        here = f"set {PROTOCOL}=PLAINTEXT here"
        return (
            "this client speaks TLS and the coordinator's port does not: give the coordinator"
            f" {_OF_COORDINATORS.name('ssl.certificate.location')}, or"
            f" {'start this one without it' if config.of_coordinator else here}"
        )
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return (
            "the client showed no certificate, which"
            f" {config.name('ssl.client.auth')}={config.client_auth} asks for: set"
            f" {_OF_CLIENTS.name('ssl.certificate.location')} at the client"
        )
    return f"TLS with {role.peer} failed ({reason})"


def _not_trusted(error: ssl.SSLCertVerificationError, role: Role, config: TlsConfig) -> str:
    said, code = error.verify_message, error.verify_code
    told = f"{role.peer}'s certificate is not accepted ({said}): "
    if code == EXPIRED:
        return f"{told}renew it there"
    if code == NOT_YET_VALID:
        return f"{told}look at the clocks of both machines"
    if code in _OTHER_HOST:
        return (
            f"{told}give the coordinator one that names the host of its --advertise, or set"
            f" {config.name('ssl.endpoint.identification.algorithm')} to none, which accepts the"
            " certificate of any host"
        )
    ca = config.name("ssl.ca.location")
    return f"{told}set {ca} to a file with the CA that has signed it"


def _alerted(reason: str, role: Role, config: TlsConfig) -> str:
    told = f"{role.peer} ended TLS ({reason}): "
    if role is Role.COORDINATOR:
        return (
            f"{told}see that it trusts the CA of {config.name('ssl.certificate.location')}"
            f" ({_OF_CLIENTS.name('ssl.ca.location')} at clients), and what it says itself"
        )
    certificate = config.name("ssl.certificate.location")
    if config.certificate is None:
        return (
            f"{told}it asks for a certificate of its clients"
            f" ({_OF_COORDINATORS.name('ssl.client.auth')}): set {certificate}"
        )
    return (
        f"{told}see that it accepts the certificate of {certificate}: that must be valid, and its"
        f" CA in the coordinator's {_OF_COORDINATORS.name('ssl.ca.location')}"
    )
