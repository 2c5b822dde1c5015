"""TxId: the identity of a transaction, made of the place of its BEGIN in the journal."""

from __future__ import annotations

import re
import struct
from typing import Final, Self

from .errors import MalformedHeaderError
from .value import value

TXID_BYTES: Final = 16
_LAYOUT: Final = struct.Struct(">QQ")
_TEXT: Final = re.compile(r"(\d{1,5})-([0-9a-f]{12})-(\d{1,19})")
MAX_PARTITION: Final = 2**16 - 1
MAX_INCARNATION: Final = 2**48 - 1
MAX_OFFSET: Final = 2**63 - 1
"""Largest values of a TxId's parts. An offset has 63 bits in its 64, because Kafka's is signed."""


@value(frozen=True, slots=True)
class TxId:
    """The identity of a transaction, 128 bits.

    Journal partition (16 bits), journal incarnation (48), offset of the BEGIN record (64). Unique
    for ever. Ordered only within one (partition, incarnation), by `offset`. There is no `<` between
    TxIds on purpose: across journals it would mean nothing.

    Source: PIP-31, "TxnID" (128 bits, the coordinator in the highest 16), and Transactional
    Messaging in Kafka, "Init phase" (the coordinator generates it).
    """

    partition: int
    """Journal partition, 0 to 65,535."""
    incarnation: int
    """48 random bits, drawn when the journal partition was begun."""
    offset: int
    """Offset of the BEGIN record in the journal partition."""

    def __post_init__(self) -> None:
        """Checks that each part fits its bits."""
        assert 0 <= self.partition <= MAX_PARTITION, self.partition
        assert 0 <= self.incarnation <= MAX_INCARNATION, self.incarnation
        assert 0 <= self.offset <= MAX_OFFSET, self.offset

    def to_bytes(self) -> bytes:
        """Returns 16 bytes, big-endian: the value of the header ``TxId``."""
        return _LAYOUT.pack(self.partition << 48 | self.incarnation, self.offset)

    @classmethod
    def from_bytes(cls, raw: bytes | None) -> Self:
        """Decodes a header's value.

        Raises:
            MalformedHeaderError: not 16 bytes, or an offset beyond 63 bits.
        """
        if raw is None or len(raw) != TXID_BYTES:
            got = "no value" if raw is None else f"{len(raw)} bytes"
            raise MalformedHeaderError(f"a TxId has {TXID_BYTES} bytes, this header {got}")
        high, offset = _LAYOUT.unpack(raw)
        if offset > MAX_OFFSET:
            raise MalformedHeaderError(f"a TxId's offset has 63 bits, this one is {offset}")
        return cls(high >> 48, high & MAX_INCARNATION, offset)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Decodes the text form, such as ``3-9f3ac1d2e4b7-17042``.

        Raises:
            ValueError: `text` does not have that form.
        """
        match = _TEXT.fullmatch(text)
        if match is None or int(match[1]) > MAX_PARTITION or int(match[3]) > MAX_OFFSET:
            raise ValueError(f"not a TxId: {text!r} (expected e.g. 3-9f3ac1d2e4b7-17042)")
        return cls(int(match[1]), int(match[2], 16), int(match[3]))

    @property
    def journal(self) -> tuple[int, int]:
        """(partition, incarnation), the only scope in which offsets may be compared."""
        return self.partition, self.incarnation

    def __str__(self) -> str:
        """Returns the text form."""
        return f"{self.partition}-{self.incarnation:012x}-{self.offset}"
