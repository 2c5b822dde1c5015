"""Who may connect to a secured local cluster; `tests/test_secured_kafka.py` runs one."""

from __future__ import annotations

from pathlib import Path

import pytest

from logtx.integration.local.directory import Ports
from logtx.integration.local.security import Security
from logtx.integration.local.settings import broker_settings

PORTS = Ports(client=1, broker=2, controller=3)


def settings(security: Security | None) -> dict[str, str]:
    return broker_settings(1, [PORTS], advertised_port=1, kafka_data=Path("/d"), security=security)


def test_only_the_listener_for_clients_is_secured() -> None:
    made = settings(Security(users={"admin": "a", "alice": "b"}, superusers=["admin"]))
    protocols = made["listener.security.protocol.map"].split(",")
    assert protocols == ["CLIENT:SASL_PLAINTEXT", "BROKER:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
    assert made["super.users"] == "User:ANONYMOUS;User:admin"
    assert 'user_alice="b"' in made["listener.name.client.plain.sasl.jaas.config"]
    plain = settings(None)
    assert "SASL" not in plain["listener.security.protocol.map"]
    assert not {"super.users", "authorizer.class.name"} & plain.keys()


@pytest.mark.parametrize(
    ("users", "superusers"),
    [({'a"b': "x"}, []), ({"a": "x;y"}, []), ({"": "x"}, []), ({"a": ""}, []), ({"a": "x"}, ["b"])],
)
def test_what_can_not_be(users: dict[str, str], superusers: list[str]) -> None:
    with pytest.raises(ValueError, match=r"superusers|letters"):
        Security(users=users, superusers=superusers)
