"""The records of the workload, as they are in the topics and in the history."""

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
    """`<process>:<n>`: unique; n counts the values of its writer."""
    operation: str | None
    """Its writer's name for the transaction; None for a plain record."""
    source: tuple[int, int] | None = None
    """Partition and offset of the input record that it was made of."""

    def encode(self) -> bytes:
        """Returns the value as JSON."""
        fields = {"k": self.key, "v": self.value, "t": self.operation}
        if self.source is not None:
            fields["i"] = self.source
        return _ENCODE(fields).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Decodes JSON. Raises ValueError, KeyError."""
        fields = json.loads(raw)
        source = fields.get("i")
        return cls(fields["k"], fields["v"], fields["t"], tuple(source) if source else None)


def polled(message: Message) -> list[object]:
    """Returns a delivered record as the history has it: topic, partition, offset, k, v, op, TxId.

    The last item is the commit sequence, None here: consumers of records are not told it.
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
