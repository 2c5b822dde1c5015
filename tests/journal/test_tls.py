"""Settings of TLS to coordinators, and a coordinator's options of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from logtx.journal.errors import ConfigError
from logtx.journal.tls import OWN, TlsConfig, take_tls, tls_of_options

SSL = {"coordinator.security.protocol": "SSL"}


def test_a_client_speaks_none_unless_it_is_told_to() -> None:
    for protocol in ({}, {"coordinator.security.protocol": "plaintext"}):
        settings = {"linger.ms": 5, **protocol}
        assert take_tls(settings) is None
        assert settings == {"linger.ms": 5}


def test_what_a_client_says_is_taken() -> None:
    assert take_tls(dict(SSL)) == TlsConfig()
    settings: dict[str, Any] = {
        "coordinator.security.protocol": "ssl",
        "coordinator.ssl.ca.location": "ca.pem",
        "coordinator.ssl.certificate.location": "c.pem",
        "coordinator.ssl.key.location": "k.pem",
        "coordinator.ssl.key.password": "secret",
        "coordinator.ssl.endpoint.identification.algorithm": "none",
        "linger.ms": 5,
    }
    assert sorted(settings.keys() - {"linger.ms"}) == sorted(OWN)
    found = take_tls(settings)
    assert found == TlsConfig(
        ca=Path("ca.pem"),
        certificate=Path("c.pem"),
        key=Path("k.pem"),
        key_password="secret",
        checks_host=False,
    )
    assert "secret" not in repr(found), "it may come into a log"
    assert settings == {"linger.ms": 5}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"security.protocol": "SASL_SSL"}, "must be PLAINTEXT or SSL, not 'SASL_SSL'"),
        ({"ssl.ca.location": "a"}, r"^coordinator\.ssl\.ca\.location has no effect without .*=SSL"),
        ({**SSL, "ssl.ca.location": ""}, r"^coordinator\.ssl\.ca\.location must be a non-empty"),
        (
            {**SSL, "ssl.key.location": "k"},
            r"^coordinator\.ssl\.key\.location has no effect without coordinator\.ssl\.cert",
        ),
        (
            {**SSL, "ssl.key.password": "p"},
            r"^coordinator\.ssl\.key\.password has no effect without coordinator\.ssl\.cert",
        ),
        (
            {**SSL, "ssl.endpoint.identification.algorithm": "http"},
            "algorithm must be one of https, none",
        ),
    ],
)
def test_what_a_client_can_not_mean_is_refused(settings: Mapping[str, Any], sentence: str) -> None:
    named = {
        name if name.startswith("coordinator.") else f"coordinator.{name}": value
        for name, value in settings.items()
    }
    with pytest.raises(ConfigError, match=sentence):
        take_tls(named)


def test_what_a_coordinator_is_told_is_taken() -> None:
    assert tls_of_options({"ssl_ca_location": None}) is None
    found = tls_of_options(
        {
            "ssl_certificate_location": "c.pem",
            "ssl_key_location": None,
            "ssl_ca_location": "ca.pem",
            "ssl_client_auth": "required",
        }
    )
    assert found == TlsConfig(
        certificate=Path("c.pem"),
        ca=Path("ca.pem"),
        client_auth="required",
        of_coordinator=True,
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"ssl_client_auth": "none"},
            "^--ssl-client-auth has no effect without --ssl-certificate-location",
        ),
        (
            {"ssl_certificate_location": "c", "ssl_client_auth": "always"},
            "^--ssl-client-auth must be one of none, requested, required, not 'always'",
        ),
        (
            {"ssl_certificate_location": "c", "ssl_client_auth": "requested"},
            "^--ssl-client-auth=requested needs --ssl-ca-location",
        ),
    ],
)
def test_what_a_coordinator_can_not_be_told_is_refused(
    options: Mapping[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tls_of_options(options)
