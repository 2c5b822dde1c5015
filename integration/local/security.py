"""Secures the client listeners of a local cluster: SASL, and Kafka's own authorizer. Pure.

The brokers' own listeners stay open to this machine, with all rights, so that the cluster can be
looked at and given rights (`LocalCluster.direct_servers`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9._-]+")
MECHANISM: Final = "PLAIN"
PROTOCOL: Final = "SASL_PLAINTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Who may connect, and who may do everything. Others may do what ACLs allow."""

    users: Mapping[str, str]
    """Name → password, each of letters, digits, dots, hyphens and underscores."""
    superusers: Sequence[str] = ()
    """Names of those who may do everything."""

    def __post_init__(self) -> None:
        """Raises ValueError if a name or a password has other characters, or a name is unknown."""
        for word in (*self.users, *self.users.values()):
            if not _PLAIN_WORD.fullmatch(word):
                raise ValueError(f"{word!r}: use letters, digits and ._- in names and passwords")
        if strangers := set(self.superusers) - set(self.users):
            raise ValueError(f"superusers {sorted(strangers)} are no users")

    def client_settings(self, user: str) -> dict[str, str]:
        """Returns the settings of librdkafka by which a client connects as `user`."""
        return {
            "security.protocol": PROTOCOL,
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self.users[user],
        }

    def broker_settings(self, client_listener: str) -> dict[str, str]:
        """Returns the properties of a broker, beside the security protocol of the listener."""
        users = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        listener = f"listener.name.{client_listener.lower()}"
        super_users = ["User:ANONYMOUS", *(f"User:{name}" for name in self.superusers)]
        return {
            f"{listener}.sasl.enabled.mechanisms": MECHANISM,
            f"{listener}.plain.sasl.jaas.config": f"{module} required {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(super_users),
        }
