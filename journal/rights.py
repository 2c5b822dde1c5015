"""Words the commands that give a client of Kafka the rights it lacks. Pure."""

from __future__ import annotations

import shlex

THIS_CLIENT = "<this client>"
"""Stands for a principal that is not known: with TLS or a token the brokers decide who a client is.
"""


def grant(servers: str, principal: str, operation: str, *, topic: str = "", group: str = "") -> str:
    """Returns the command that gives a right.

    Args:
        servers: bootstrap.servers.
        principal: name of the client, as brokers know it; "" if that is not known.
        operation: Kafka's name of the operation, such as "Write".
        topic: the topic that it is for, if it is one.
        group: the consumer group that it is for, if it is one.
    """
    kind, name = ("--topic", topic) if topic else ("--group", group)
    words = [
        *("kafka-acls.sh", "--bootstrap-server", servers, "--add"),
        *("--allow-principal", f"User:{principal or THIS_CLIENT}"),
        *("--operation", operation, kind, name),
    ]
    return shlex.join(words)
