"""How long the names in a request may be: they go into the journal, snapshots and memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..journal.errors import ConfigError
from . import commands as c

TOPIC_MAX_BYTES: Final = 249
"""Kafka's own bound."""
NAME_MAX_BYTES: Final = 1_024
"""Of a producer id, a transaction key with its owner, a consumer group or a transaction group.

Far below a chunk of a snapshot, which holds each name whole.
"""
_CHAR_BYTES: Final = 4
"""The most that UTF-8 takes for one."""


def check_names(command: c.Command) -> None:
    """Refuse a command with a name that is too long.

    Raises:
        ConfigError: one is; the message begins with it.
    """
    for what, name in _names(command):
        _check(what, name, NAME_MAX_BYTES)
    for topic in _topics(command):
        _check("topic", topic, TOPIC_MAX_BYTES)


def _check(what: str, name: str, most: int) -> None:
    if len(name) * _CHAR_BYTES <= most:
        return
    size = len(name.encode())
    if size > most:
        raise ConfigError(
            f"{what} {name[:20]!r}… has a name of {size} bytes in UTF-8, and {most} are allowed"
        )


def _names(command: c.Command) -> Iterator[tuple[str, str]]:
    match command:
        case c.Connect() | c.ListTransactions():
            yield "producer", command.producer_id
        case c.AddOffsets() | c.FetchOffsets() | c.ClaimOffsets():
            yield "consumer group", command.group
        case c.BindGroup():
            yield "consumer group", command.group
            yield "transaction group", command.transaction_group or ""
        case c.GetKey() | c.DeleteKey():
            yield "transaction key", command.name
        case c.ListKeys():
            yield "transaction key", command.after


def _topics(command: c.Command) -> Iterator[str]:
    match command:
        case c.Begin() | c.AddPartitions() | c.ClaimOffsets():
            yield from (topic for topic, _ in command.partitions)
        case c.End():
            yield from (topic for topic, _ in command.writes)
        case c.AddOffsets():
            yield from (step.topic for step in command.steps)
        case c.FetchOffsets():
            yield from (topic for topic, _ in command.partitions or ())
        case c.ListTransactions():
            yield command.topic
