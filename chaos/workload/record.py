"""The records of the workload: what is written to the topics, and into the history of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Self

from confluent_kafka import Message

_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode
_TXID_HEADER: Final = "TxId"


@dataclass(frozen=True, slots=True)
class Value:
    """A record's value."""

    key: int
    value: str
    """`<process>:<n>`: unique, and its writer's n-th."""
    operation: str | None
    """The transaction, by its writer's name for it; None: a plain record."""
    source: tuple[int, int] | None = None
    """Partition and offset of the input that it was made of."""

    def encode(self) -> bytes:
        """JSON."""
        fields = {"k": self.key, "v": self.value, "t": self.operation}
        if self.source is not None:
            fields["i"] = self.source
        return _ENCODE(fields).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """From JSON. Raises ValueError, KeyError."""
        fields = json.loads(raw)
        source = fields.get("i")
        return cls(fields["k"], fields["v"], fields["t"], tuple(source) if source else None)


def polled(message: Message) -> list[object]:
    """A delivered record, as the history has it: topic, partition, offset, k, v, op, TxId.

    The commit sequence, at the end, is not told to consumers of records.
    """
    raw = message.value()
    assert isinstance(raw, bytes), (message.topic(), message.partition(), message.offset())
    value = Value.decode(raw)
    headers: Any = message.headers() or ()
    txid = next((raw for name, raw in headers if name == _TXID_HEADER), None)
    return [
        message.topic(),
        message.partition(),
        message.offset(),
        value.key,
        value.value,
        value.operation,
        txid.hex() if isinstance(txid, bytes) else None,
        None,
    ]
