"""Words the commands that give a client of Kafka the rights it lacks. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Final

THIS_CLIENT: Final = "<this client>"
"""Stands for a principal that is not known: with TLS or a token the brokers decide who a client is.
"""


def grant(
    servers: str, principal: str, operations: Collection[str], *, topic: str = "", group: str = ""
) -> str:
    """Returns the command that gives rights.

    Args:
        servers: bootstrap.servers.
        principal: name of the client, as brokers know it; "" if that is not known.
        operations: Kafka's names of the operations, such as WRITE.
        topic: the topic that it is for, if it is one.
        group: the consumer group that it is for, if it is one.
    """
    kind, name = ("--topic", topic) if topic else ("--group", group)
    words = [
        *("kafka-acls.sh", "--bootstrap-server", servers, "--add"),
        *("--allow-principal", f"User:{principal or THIS_CLIENT}"),
        *(word for operation in operations for word in ("--operation", _of_tool(operation))),
        *(kind, name),
    ]
    return shlex.join(words)


def may_not_read(servers: str, principal: str, topic: str) -> str:
    """Returns what an error says of a client that may not read; arguments as of `grant`."""
    command = grant(servers, principal, ["READ"], topic=topic)
    return f"this client may not READ topic {topic}: give it the right with: {command}"


def coordinator_may_not(
    servers: str, principal: str, operations: Collection[str], topic: str
) -> str:
    """Returns what an error says of rights that the coordinator lacks; arguments as of `grant`."""
    return (
        f"the coordinator may not {' and '.join(operations)} in topic {topic}: give it the right"
        f" with: {grant(servers, principal, operations, topic=topic)}"
    )


def lacking(operations: frozenset[str] | None, needed: Collection[str]) -> list[str]:
    """Returns which of the needed operations are not allowed; none if that is not known."""
    return [] if operations is None else [each for each in needed if each not in operations]


def _of_tool(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))
