"""Makes light messages of confluent-kafka's, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Any

from confluent_kafka import Message

from logtx.consumer.core.pending import Record


def light_of(extension: Any, messages: Sequence[Message]) -> list[Record]:
    """Returns the same as light messages. All are of one partition."""
    rows, contents, runs = [], [], []
    for message in messages:
        kind, stamp_ms = message.timestamp()
        key, value, headers = message.key(), message.value(), message.headers()
        sizes = [-1 if each is None else len(each) for each in (key, value)]
        rows.append(pack("=qqii", message.offset(), stamp_ms, *sizes))
        contents += [key or b"", value or b""]
        epoch = message.leader_epoch()
        alike = None if headers is None else tuple(headers)
        runs.append((alike, kind, -1 if epoch is None else epoch, 1))
    first = messages[0]
    made: list[Record] = extension.Message.unpack(
        b"".join((*rows, *contents)), 0, first.topic(), first.partition(), runs, len(messages)
    )
    return made
