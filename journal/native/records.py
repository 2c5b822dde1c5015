"""Decodes journal records in C, where there is the extension, and as `codec` does in any case.

The extension follows plans: what the parts of a record are, in the order of their bytes, and what
becomes of each. A plan is (kind, what, parts, name), the name being that of a field of the object
that it is a part of. The kinds:

- `l`, `s`, `b`: a long, a string, a boolean
- `o`: an object of the class `what`, whose fields are the parts
- `t`: a tuple of the parts, or a named one of the class `what`
- `a`: an array of its part, as a tuple; `0`: an array that has to be empty
- `m`: an array of its two parts, as a dict
- `2`: a union of which it is the second type, its part
- `=`: no bytes; it is `what`
- `c`: what the function `what` makes of its part
- `r`: the rest of the record, which is an array, by the function `what` of its bytes
- `u`: the rest of the record is left unread, for the function `what`: see `Lazy`

What has no plan, or does not keep to it, Python decodes, or says what is wrong with it. So the
plans are for what most of a journal consists of, and the rest of its rules stand in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache, partial
from typing import Any, Final, Protocol, TypeAlias

from ..position import Place, Position
from ..records import codec
from ..records.fast_reader import (
    read_decision,
    read_gone,
    read_part,
    read_partitions,
)
from ..records.types import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Claim,
    Committed,
    Entry,
    OffsetStep,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
    Snapshot,
    SnapshotProducer,
)
from .loading import find_decoder

Plan: TypeAlias = tuple[str, Any, tuple[Any, ...], str]
Plans: TypeAlias = tuple[tuple[int, int, Plan], ...]
"""(format version, type byte, plan of the entry) of each."""


class Decoder(Protocol):
    """Decodes by plans."""

    def decode(self, raw: object, /) -> Entry | None:
        """Returns the entry, or None: it is left to Python."""


def _long(name: str = "") -> Plan:
    return "l", None, (), name


def _string(name: str = "") -> Plan:
    return "s", None, (), name


def _boolean(name: str) -> Plan:
    return "b", None, (), name


def _empty(name: str) -> Plan:
    return "0", None, (), name


def _tuple(*parts: Plan, name: str = "") -> Plan:
    return "t", None, parts, name


def _array(name: str, part: Plan) -> Plan:
    return "a", None, (part,), name


def _second(name: str, part: Plan) -> Plan:
    return "2", None, (part,), name


def _rest(name: str, read: Callable[[bytes], Any]) -> Plan:
    return "r", read, (), name


def _unread(read: Callable[[bytes, int], dict[str, Any]]) -> Plan:
    return "u", read, (), "unread"


def _object(cls: type, *parts: Plan, name: str = "") -> Plan:
    """Plans an object. Fields that no part names have their defaults, but for a lazy one's."""
    named = {part[-1] for part in parts}
    constants = (
        ("=", field.default, (), field.name)
        for field in fields(cls)
        if field.name not in named and field.default is not MISSING
    )
    return "o", cls, (*parts, *constants), name


def _entry(record: Plan) -> Plan:
    kind, what, parts, _ = record
    head = _long("epoch"), _long("incarnation"), _long("predicted")
    return _object(Entry, *head, (kind, what, parts, "record"))


def _sequences(name: str) -> Plan:
    return "m", None, (_tuple(_long(), _long()), _long()), name


def _add_offsets(*more: Plan) -> Plan:
    place = _object(Place, _long("o2"), _long("o3"))
    offsets = _long("o1"), _long("o2"), _long("o3")
    to = _object(Position, *offsets, _sequences("met"), _sequences("delivered"), *more, name="to")
    # A step from nowhere is rare: it is the first of its group in the partition.
    start = _second("from_place", place)
    step = _object(OffsetStep, _string("topic"), _long("partition"), start, to)
    return _object(AddOffsets, _long("begin"), _string("group"), _array("steps", step))


_REASON: Final[Plan] = "c", AbortReason, (_string(),), "reason"
_PRODUCER: Final[Plan] = (
    "t",
    SnapshotProducer,
    (
        *(_string(), _long(), _long(), _string(), _boolean(""), _long(), _long()),
        _array("", _tuple(_long(), _long())),
        _long(),
    ),
    "",
)
_SNAPSHOT: Final = (
    *(_long("first"), _long("index"), _boolean("last"), _long("replaces"), _string("address")),
    *(_long("process_nonce"), _long("partition_count"), _array("past_epochs", _long())),
    _array("producers", _PRODUCER),
    *map(_empty, ("transactions", "groups", "bindings", "claims")),
    *(_long("hour"), _long("generation_floor"), _empty("group_uses")),
)
_SNAPSHOT_SINCE: Final[tuple[tuple[int, tuple[Plan, ...]], ...]] = (
    (5, (*map(_empty, ("modes", "last_places", "places")), _long("fence"), _empty("fence_places"))),
    (6, (*map(_empty, ("handed", "adopted", "unplaced")),)),
    (8, (_empty("sidecar_since"),)),
    (9, (_empty("subscriptions"),)),
    (10, (_empty("pointers"),)),
    (11, (_long("last_era"),)),
)
"""What a snapshot's chunk has since a version, behind `_SNAPSHOT`. Most chunks of a large snapshot
have producers alone, and these go by a plan."""


def _chunk(version: int) -> Plan:
    parts = [each for since, more in _SNAPSHOT_SINCE if since <= version for each in more]
    return _object(Snapshot, *_SNAPSHOT, *parts)


def _finished(cls: type) -> Plan:
    return _object(cls, _long("begin"), _rest("gone", read_gone))


_RECORDS: Final[tuple[tuple[int, Plan], ...]] = (
    (
        2,
        _object(
            ProducerRecord,
            *(_string("producer_id"), _long("generation"), _long("session_nonce")),
            *(_string("owner"), _boolean("voided"), _long("connected_ms")),
        ),
    ),
    (
        2,
        _object(
            Begin,
            *(_string("producer_id"), _long("generation"), _long("session_nonce")),
            *(_long("request_id"), _long("answered_below"), _long("timeout_ms")),
            *(_long("started_ms"), _rest("partitions", read_partitions)),
        ),
    ),
    (2, _object(AddPartitions, _long("begin"), _rest("partitions", read_partitions))),
    (2, _add_offsets()),
    (4, _add_offsets(_string("topic_id"))),
    (2, _object(PrepareAbort, _long("begin"), _REASON, _long("decided_ms"))),
    (2, _finished(Committed)),
    (2, _finished(Aborted)),
    (2, _object(Claim, _string("group"), _long("claimant"), _rest("partitions", read_gone))),
    *((version, _chunk(version)) for version in range(3, codec.FORMAT_VERSION + 1)),
)
"""(format version, plan of the record)."""
_LAZY: Final[tuple[tuple[int, Plan], ...]] = (
    (4, ("o", AddWrites, (_long("begin"), _long("part"), _unread(read_part)), "")),
    (
        2,
        (
            "o",
            PrepareCommit,
            (
                *(_long("begin"), ("=", (), (), "placed"), ("=", (), (), "handed")),
                *(("=", (), (), "sidecar_since"), _unread(read_decision)),
            ),
            "",
        ),
    ),
)
"""The same of those of which most is left unread."""


def plans(*, lazily: bool) -> Plans:
    """Returns what the extension is given.

    Args:
        lazily: see `codec.decode_entry`.
    """
    records = (*_RECORDS, *_LAZY) if lazily else _RECORDS
    return tuple((version, plan[1].type, _entry(plan)) for version, plan in records)


def entry_decoder(*, lazily: bool = False) -> Callable[[bytes | None], Entry]:
    """Returns a function that decodes as `codec.decode_entry` does, in C where that is possible.

    Args:
        lazily: see there.
    """
    return _decoding(find_decoder().extension, lazily=lazily)


@cache
def _decoding(extension: Any, *, lazily: bool) -> Callable[[bytes | None], Entry]:
    in_python = partial(codec.decode_entry, lazily=lazily)
    if extension is None:
        return in_python
    decoder: Decoder = extension.Decoder(plans(lazily=lazily))
    in_c = decoder.decode

    def decode(raw: bytes | None) -> Entry:
        found = in_c(raw)
        return in_python(raw) if found is None else found

    return decode
