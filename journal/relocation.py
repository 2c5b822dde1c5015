"""Copies of what a transaction has in a sidecar, and the records that say where they lie.

A log can only lose its beginning. So where a few ranges that pointers need lie before much that
nobody needs, `logtx sidecar compact` copies these ranges to the sidecar's end, and trims what lies
before. A pointer can't be changed. Therefore the compacted topic `__transaction_relocations` says
of each copy where it lies.

A *relocation* is a fact: this copy of that transaction's range is whole, and lies there. Facts do
not contradict one another, so nothing fences two copiers: each copy has an id of its own, which is
part of the key, and any copy that the sidecar still has is as good as another (trap 190).

A copied record has the key, the value and the timestamp of its original, and its headers. Only that
of the TxId has another name, and says the copy's id, the TxId, and the original's offset and
timestamp. So a copy is a plain record to whoever reads the sidecar and does not look for it, and
what is delivered of it has the offset that the original had: the same message, whoever reads where
(trap 191).

Pure.

Source: PIP-31, "Sidecar Approach" (the sidecar is compacted in commit order).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from .control import TXID_HEADER, TopicPartition
from .errors import JournalError, UnknownRecordError
from .txid import TxId
from .value import value

RELOCATIONS_TOPIC: Final = "__transaction_relocations"
"""Compacted topic of one partition: where copies of ranges of sidecars lie."""
RELOCATIONS_SETTINGS: Final = {"cleanup.policy": "compact"}
COPY_HEADER: Final = "TxCopy"
"""Stands on a copied record where its original has the TxId."""
_ORIGIN: Final = struct.Struct(">16s16sqBq")
_FORMAT: Final = 1

Headers = Sequence[tuple[str, bytes | None]]


@value(frozen=True, slots=True)
class Origin:
    """What a copied record says of its original."""

    copy_id: bytes
    """16 bytes."""
    txid: bytes
    """The TxId as bytes."""
    offset: int
    """Its offset in the sidecar."""
    timestamp: tuple[int, int]
    """(type, milliseconds), as confluent-kafka tells it."""


def copied_headers(headers: Headers, origin: Origin) -> list[tuple[str, bytes | None]]:
    """Returns the headers of the copy of a record."""
    kind, at_ms = origin.timestamp
    raw = _ORIGIN.pack(origin.copy_id, origin.txid, origin.offset, kind, at_ms)
    return [(COPY_HEADER, raw) if name == TXID_HEADER else (name, each) for name, each in headers]


def origin_of(headers: Headers) -> Origin | None:
    """Returns what a record says of its original; None if it is no copy."""
    # An application's record has a TxId beside a header of this name.
    if any(name == TXID_HEADER for name, _ in headers):
        return None
    for name, raw in headers:
        if name == COPY_HEADER and raw is not None and len(raw) == _ORIGIN.size:
            copy_id, txid, offset, kind, at_ms = _ORIGIN.unpack(raw)
            return Origin(copy_id, txid, offset, (kind, at_ms))
    return None


def original_headers(headers: Headers, origin: Origin) -> list[tuple[str, bytes | None]]:
    """Returns the headers that the original of a copied record had."""
    found = list(headers)
    for index, (name, raw) in enumerate(found):
        if name == COPY_HEADER and raw is not None and raw[:16] == origin.copy_id:
            found[index] = TXID_HEADER, origin.txid
            break
    return found


@value(frozen=True, slots=True, kw_only=True)
class Relocation:
    """A copy of what a transaction has in a partition of a sidecar: it is whole, and durable."""

    sidecar: TopicPartition
    topic_id: str
    """Id of the sidecar; "" where the log has none."""
    txid: bytes
    """The TxId as bytes."""
    copy_id: bytes
    first: int
    """Offset of its first record."""
    last: int
    """Offset of its last one. Records of others may lie between."""
    count: int
    """Number of its records."""
    pointer: int
    """Offset of the transaction's pointer in the main partition, or of a later copy of that."""


def encode_relocation(relocation: Relocation) -> tuple[bytes, bytes]:
    """Returns a relocation's record: key and value, as JSON."""
    return _json(_key_of(relocation)), _json(
        {
            "format": _FORMAT,
            "first": relocation.first,
            "last": relocation.last,
            "count": relocation.count,
            "pointer": relocation.pointer,
        }
    )


def decode_relocation(key: bytes | None, raw: bytes | None) -> Relocation | None:
    """Returns the relocation in a record; None if the record deletes one.

    Raises:
        UnknownRecordError: a newer version wrote it: upgrade this program.
        JournalError: it is no such record.
    """
    if raw is None:
        return None
    try:
        named, said = json.loads(key or b""), json.loads(raw)
        if said["format"] != _FORMAT:
            raise UnknownRecordError(
                f"a relocation has format {said['format']}: upgrade this program"
            )
        return Relocation(
            sidecar=(named["sidecar"], named["partition"]),
            topic_id=named["id"],
            txid=TxId.parse(named["txid"]).to_bytes(),
            copy_id=bytes.fromhex(named["copy"]),
            first=said["first"],
            last=said["last"],
            count=said["count"],
            pointer=said["pointer"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(f"{RELOCATIONS_TOPIC} has a record that is none of its: {key!r}") from (
            error
        )


def _key_of(relocation: Relocation) -> dict[str, Any]:
    return {
        "sidecar": relocation.sidecar[0],
        "partition": relocation.sidecar[1],
        "id": relocation.topic_id,
        "txid": str(TxId.from_bytes(relocation.txid)),
        "copy": relocation.copy_id.hex(),
    }


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


class _Place(NamedTuple):
    sidecar: TopicPartition
    txid: bytes


class Relocations:
    """The relocations that were read."""

    def __init__(self, known: Iterable[Relocation] = ()) -> None:
        """Begins with some."""
        self._known: dict[_Place, list[Relocation]] = {}
        for each in known:
            self.add(each)

    def add(self, relocation: Relocation) -> None:
        """Adds one."""
        self._known.setdefault(_Place(relocation.sidecar, relocation.txid), []).append(relocation)

    def remove(self, relocation: Relocation) -> None:
        """Removes one that was added."""
        self._known[_Place(relocation.sidecar, relocation.txid)].remove(relocation)

    def find(
        self, sidecar: TopicPartition, topic_id: str, txid: bytes, start: int
    ) -> Relocation | None:
        """Returns the copy to read of a transaction's range; None if the sidecar has none.

        Args:
            sidecar: the partition.
            topic_id: id of the sidecar that is there; "" if it is not known.
            txid: of the transaction.
            start: where the partition begins. A copy that begins below was trimmed, wholly or in
                part. Ask for the start first, and read the relocations then: what was trimmed up to
                there has a relocation from before (trap 189).
        """
        return max(
            (
                each
                for each in self._known.get(_Place(sidecar, txid), ())
                if each.first >= start and topic_id in ("", each.topic_id)
            ),
            key=lambda each: each.first,
            default=None,
        )

    def of(self, sidecar: TopicPartition, topic_id: str) -> list[Relocation]:
        """Returns all of a partition of a sidecar with this id."""
        return [
            each
            for place, those in self._known.items()
            if place.sidecar == sidecar
            for each in those
            if each.topic_id == topic_id
        ]
