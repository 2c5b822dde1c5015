"""What lies in `__transaction_topics`: the mode of each topic that was ever switched, for readers.

The home's replayed state is the truth (`coordinator.core.modes`). Each owner publishes it here, in
a compacted topic with one partition, as it publishes offsets in `__transaction_offsets`. The key
carries the owner's epoch: a late write of a replaced owner can't shadow that of its successor,
whatever compaction keeps (trap 27). Of several values the one made from the latest MODE record
counts.

On the wire a version byte precedes Avro, in keys and values. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import fastavro

from .errors import UnknownRecordError
from .modes import EndedSwitch, Phase
from .position import Journal
from .versioned import Versioned

MODES_TOPIC_SETTINGS: Final = {"cleanup.policy": "compact"}
EVERY: Final = "*"
"""Ends the name of a rule: see `mode_rules`."""
VERSION: Final = 1
"""Version byte; readers refuse any they don't know, for to go on without a topic's mode loses
order."""
WITH_EARLIER: Final = 2
"""Version byte of values that tell of switches before the latest one."""
_WHAT: Final = "a record of a topic's mode"
_CODEC: Final = Versioned(VERSION, _WHAT)
_CODEC_WITH_EARLIER: Final = Versioned(WITH_EARLIER, _WHAT)

_KEY: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "logtx.modes.Key",
        "fields": [
            {"name": "topic", "type": "string"},
            {"name": "partition", "type": "int"},
            {"name": "incarnation", "type": "long"},
            {"name": "epoch", "type": "long"},
        ],
    }
)
_SINCE: Final = {
    "name": "since",
    "type": {
        "type": "array",
        "items": {
            "type": "record",
            "name": "logtx.modes.Since",
            "fields": [
                {"name": "partition", "type": "int"},
                {"name": "offset", "type": "long"},
            ],
        },
    },
}
_FIELDS: Final = [
    {"name": "topic_id", "type": "string"},
    {"name": "phase", "type": "string"},
    {"name": "mode_offset", "type": "long"},
    {"name": "offset", "type": "long"},
    {"name": "with_records", "type": "boolean"},
    _SINCE,
]
_VALUE: Final = fastavro.parse_schema(
    {"type": "record", "name": "logtx.modes.Value", "fields": _FIELDS}
)
_VALUE_WITH_EARLIER: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "logtx.modes.ValueWithEarlier",
        "fields": [
            *_FIELDS,
            {
                "name": "earlier",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "logtx.modes.EndedSwitch",
                        "fields": [
                            {"name": "phase", "type": "string"},
                            {"name": "offset", "type": "long"},
                            {"name": "with_records", "type": "boolean"},
                            {
                                "name": "since",
                                "type": {"type": "array", "items": "logtx.modes.Since"},
                            },
                        ],
                    },
                },
            },
        ],
    }
)


@dataclass(frozen=True, slots=True)
class ModeKey:
    """Key of a record: a topic, and the owner of its home that wrote its mode."""

    topic: str
    partition: int
    """Journal partition that is the home."""
    incarnation: int
    epoch: int
    """Epoch of the owner that wrote it."""

    @property
    def home(self) -> Journal:
        """The home and its incarnation."""
        return self.partition, self.incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicModeRecord:
    """The mode of a topic, as the home says it."""

    topic: str
    topic_id: str
    phase: Phase
    home: Journal
    """The journal partition that places there, and its incarnation."""
    mode_offset: int
    """Journal offset of the MODE record with which the latest switch began."""
    offset: int
    """Orders what a home publishes of the topic: `mode_offset`, and one more once the switch is
    over."""
    since: Mapping[int, int] = field(default_factory=dict)
    """See `ModeChange.since`."""
    with_records: bool = True
    """See `ModeChange.with_records`."""
    earlier: tuple[EndedSwitch, ...] = ()
    """The switches before the latest one, in their order: see `journal.modes.remembered`."""


class Published(NamedTuple):
    """A record of the topic."""

    key: bytes | None
    value: bytes | None
    """None removes what was written with this key: a later owner does that."""
    written_ms: int
    """The record's timestamp."""


def encode_key(key: ModeKey) -> bytes:
    """Returns the key of a record as bytes."""
    names = ("topic", "partition", "incarnation", "epoch")
    return _CODEC.encode(_KEY, {name: getattr(key, name) for name in names})


def encode_value(mode: TopicModeRecord) -> bytes:
    """Returns the value of a record; topic and home stand in its key."""
    body: dict[str, Any] = {
        "topic_id": mode.topic_id,
        "phase": mode.phase.value,
        "mode_offset": mode.mode_offset,
        "offset": mode.offset,
        "with_records": mode.with_records,
        "since": _since_to_avro(mode.since),
    }
    if not mode.earlier:
        return _CODEC.encode(_VALUE, body)
    body["earlier"] = [
        {
            "phase": each.phase.value,
            "offset": each.offset,
            "with_records": each.with_records,
            "since": _since_to_avro(each.since),
        }
        for each in mode.earlier
    ]
    return _CODEC_WITH_EARLIER.encode(_VALUE_WITH_EARLIER, body)


def _since_to_avro(since: Mapping[int, int]) -> list[dict[str, int]]:
    return [{"partition": p, "offset": o} for p, o in sorted(since.items())]


def _since_from_avro(rows: Iterable[Mapping[str, int]]) -> dict[int, int]:
    return {row["partition"]: row["offset"] for row in rows}


def decode_key(raw: bytes | None) -> ModeKey:
    """Decodes the key of a record.

    Raises:
        UnknownRecordError: it is of a newer version.
        CorruptRecordError: it does not decode.
    """
    return ModeKey(**_CODEC.decode(_KEY, raw))


def decode_value(key: ModeKey, raw: bytes | None) -> TopicModeRecord:
    """Decodes the value of a record.

    Raises:
        UnknownRecordError: it is of a newer version, or says a phase of one.
        CorruptRecordError: it does not decode.
    """
    with_earlier = raw is not None and raw[:1] == bytes((WITH_EARLIER,))
    codec, schema = _CODEC, _VALUE
    if with_earlier:
        codec, schema = _CODEC_WITH_EARLIER, _VALUE_WITH_EARLIER
    body = codec.decode(schema, raw)
    return TopicModeRecord(
        topic=key.topic,
        topic_id=body["topic_id"],
        phase=_phase(key.topic, body["phase"]),
        home=key.home,
        mode_offset=body["mode_offset"],
        offset=body["offset"],
        since=_since_from_avro(body["since"]),
        with_records=body["with_records"],
        earlier=tuple(
            EndedSwitch(
                row["offset"],
                _phase(key.topic, row["phase"]),
                _since_from_avro(row["since"]),
                row["with_records"],
            )
            for row in body.get("earlier", ())
        ),
    )


def _phase(topic: str, told: str) -> Phase:
    try:
        return Phase(told)
    except ValueError:
        raise UnknownRecordError(
            f"topic {topic} is in the phase {told!r}; upgrade this program"
        ) from None


def latest(records: Iterable[Published]) -> dict[str, TopicModeRecord]:
    """Returns what counts: topic → its mode. Rules (`mode_rules`) are left out.

    Of what was written in one home and incarnation, what was made from the latest MODE record
    counts. A home whose journal was lost begins anew with another incarnation. Offsets of the two
    can't be compared, so the one that was written last counts.

    Args:
        records: the topic's, in its order.

    Raises:
        UnknownRecordError: a record is of a newer version.
        CorruptRecordError: a record does not decode.
    """
    kept: dict[bytes | None, Published] = {}
    for record in records:
        kept[record.key] = record
    best: dict[tuple[str, Journal], tuple[int, int, int, TopicModeRecord]] = {}
    for record in kept.values():
        if record.value is None:
            continue
        key = decode_key(record.key)
        if key.topic.endswith(EVERY):
            continue
        mode = decode_value(key, record.value)
        found = mode.offset, key.epoch, record.written_ms, mode
        before = best.get((key.topic, key.home))
        if before is None or found[:2] > before[:2]:
            best[key.topic, key.home] = found
    ordered = sorted(best.values(), key=lambda found: found[2])
    return {mode.topic: mode for _, _, _, mode in ordered}
