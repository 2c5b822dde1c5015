"""Converts the values in journal records to Avro's, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final, TypeAlias, TypeVar

from ..acks import SubscribeEffect, SubscriptionKind
from ..control import BranchRange, RangeColumns, TopicPartition
from ..modes import Phase
from ..places import AdoptedWrites, PartitionId
from ..position import Journal, Passed, Place, Position
from ..state import State
from ..txid import TxId
from .ack_conversion import (
    acks_from_avro,
    acks_to_avro,
    subscriptions_from_avro,
    subscriptions_to_avro,
)
from .columns import columns_by_topic
from .fast_writer import signed
from .types import (
    UNKNOWN_OFFSET,
    AbortReason,
    DataPartition,
    OffsetStep,
    PartitionWrites,
    PointerStep,
    SnapshotAdopted,
    SnapshotAdoption,
    SnapshotClaim,
    SnapshotGroup,
    SnapshotHanded,
    SnapshotMode,
    SnapshotPlaces,
    SnapshotProducer,
    SnapshotSince,
    SnapshotSteps,
    SnapshotTransaction,
    StepIdentity,
)

Avro = dict[str, Any]
Item = TypeVar("Item")


def _partitions_to_avro(partitions: Iterable[DataPartition]) -> list[Avro]:
    grouped: dict[tuple[str, str], list[DataPartition]] = {}
    for p in partitions:
        grouped.setdefault((p.topic, p.topic_id), []).append(p)
    return [
        {
            "topic": topic,
            "topic_id": topic_id,
            "partitions": [p.partition for p in found],
            "first_offsets": [p.first_offset for p in found]
            if any(p.first_offset != UNKNOWN_OFFSET for p in found)
            else [],
        }
        for (topic, topic_id), found in grouped.items()
    ]


def _partitions_from_avro(rows: Sequence[Avro]) -> tuple[DataPartition, ...]:
    found: list[DataPartition] = []
    for row in rows:
        topic, topic_id, partitions = row["topic"], row["topic_id"], row["partitions"]
        first_offsets = row["first_offsets"] or repeat(UNKNOWN_OFFSET, len(partitions))
        for partition, first_offset in zip(partitions, first_offsets, strict=True):
            found.append(DataPartition(topic, partition, topic_id, first_offset))
    return tuple(found)


def _keys_to_avro(keys: Iterable[TopicPartition]) -> list[Avro]:
    return _partitions_to_avro(DataPartition(topic, partition) for topic, partition in keys)


def _keys_from_avro(rows: Sequence[Avro]) -> tuple[TopicPartition, ...]:
    return tuple(p.key for p in _partitions_from_avro(rows))


def _branches_to_avro(branches: Iterable[BranchRange]) -> list[Avro]:
    return [
        {
            "branch": signed(b.branch),
            "first_offset": b.first_offset,
            "last_offset": b.last_offset,
            "count": b.count,
        }
        for b in branches
    ]


def _branches_from_avro(rows: Iterable[Avro]) -> tuple[BranchRange, ...]:
    return tuple(
        BranchRange(b["branch"] % 2**64, b["first_offset"], b["last_offset"], b["count"])
        for b in rows
    )


def _writes_to_avro(writes: Iterable[PartitionWrites]) -> list[Avro]:
    return [
        {
            "topic": w.partition.topic,
            "topic_id": w.partition.topic_id,
            "partition": w.partition.partition,
            "first_offset": w.partition.first_offset,
            "branches": _branches_to_avro(w.branches),
        }
        for w in writes
    ]


def _writes_from_avro(rows: Sequence[Avro]) -> tuple[PartitionWrites, ...]:
    found: list[PartitionWrites] = []
    for row in rows:
        partition = DataPartition(
            row["topic"], row["partition"], row["topic_id"], row["first_offset"]
        )
        found.append(PartitionWrites(partition, _branches_from_avro(row["branches"])))
    return tuple(found)


def columns_to_avro(writes: Sequence[PartitionWrites]) -> list[Avro]:
    """Returns writes as columns, in runs of one topic."""
    return [
        {
            "topic": each.topic,
            "topic_id": each.topic_id,
            "partitions": each.partitions,
            "registered": each.registered,
            **each.ranges._asdict(),
            "branches": [*map(signed, each.ranges.branches)],
        }
        for each in columns_by_topic(writes)
    ]


def columns_from_avro(rows: Iterable[Avro]) -> tuple[PartitionWrites, ...]:
    """Returns the writes of columns.

    Raises:
        ValueError: they are of different lengths, or a range is impossible.
    """
    return tuple(chain.from_iterable(map(_writes_of_columns, rows)))


def _writes_of_columns(row: Avro) -> Iterator[PartitionWrites]:
    numbers = row["partitions"]
    registered = row["registered"] or repeat(UNKNOWN_OFFSET, len(numbers))
    columns = RangeColumns(
        row["range_counts"],
        [b % 2**64 for b in row["branches"]],
        *(row["first_offsets"], row["last_offsets"], row["counts"]),
    )
    ranges = columns.by_partition(len(numbers))
    named = [
        DataPartition(row["topic"], number, row["topic_id"], first_offset)
        for number, first_offset in zip(numbers, registered, strict=True)
    ]
    return map(PartitionWrites, named, ranges)


def _placed_to_avro(keys: Iterable[TopicPartition]) -> list[Avro]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in keys:
        grouped.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitions": found} for topic, found in grouped.items()]


def _placed_from_avro(rows: Sequence[Avro]) -> tuple[TopicPartition, ...]:
    return tuple(chain.from_iterable(zip(repeat(row["topic"]), row["partitions"]) for row in rows))


def _by_topic(
    partitions: Iterable[tuple[PartitionId, Item]],
) -> Iterator[tuple[Avro, list[Item]]]:
    """Yields a row for each topic and topic id, and what belongs to each of its partitions."""
    grouped: dict[tuple[str, str], tuple[list[int], list[Item]]] = {}
    for (topic, number, topic_id), item in partitions:
        numbers, items = grouped.setdefault((topic, topic_id), ([], []))
        numbers.append(number)
        items.append(item)
    for (topic, topic_id), (numbers, items) in grouped.items():
        yield {"topic": topic, "topic_id": topic_id, "partitions": numbers}, items


def _partition_ids(row: Avro) -> Iterator[PartitionId]:
    return (PartitionId(row["topic"], number, row["topic_id"]) for number in row["partitions"])


def _offsets_to_avro(offsets: Iterable[tuple[PartitionId, int]]) -> list[Avro]:
    return [row | {"offsets": found} for row, found in _by_topic(offsets)]


def _offsets_from_avro(rows: Iterable[Avro]) -> tuple[tuple[PartitionId, int], ...]:
    return tuple(
        pair for row in rows for pair in zip(_partition_ids(row), row["offsets"], strict=True)
    )


def _ends_to_avro(ends: Mapping[PartitionId, int]) -> list[Avro]:
    return _offsets_to_avro(ends.items())


def _ends_from_avro(rows: Iterable[Avro]) -> dict[PartitionId, int]:
    return dict(_offsets_from_avro(rows))


def _since_to_avro(since: Mapping[int, int] | Iterable[tuple[int, int]]) -> list[Avro]:
    return [{"partition": p, "offset": o} for p, o in sorted(dict(since).items())]


def _since_from_avro(rows: Iterable[Avro]) -> dict[int, int]:
    return {row["partition"]: row["offset"] for row in rows}


def _sequences_to_avro(sequences: Mapping[Journal, int]) -> list[Avro]:
    return [
        {"partition": p, "incarnation": i, "sequence": s} for (p, i), s in sorted(sequences.items())
    ]


def _sequences_from_avro(rows: Sequence[Avro]) -> dict[Journal, int]:
    return {(r["partition"], r["incarnation"]): r["sequence"] for r in rows}


def passed_to_avro(passed: Passed | None) -> Avro | None:
    """Returns what was passed of a home as Avro."""
    if passed is None:
        return None
    partition, incarnation = passed.home
    return {
        "partition": partition,
        "incarnation": incarnation,
        "sequence": passed.sequence,
        "taken": passed.taken,
    }


def passed_from_avro(row: Avro | None) -> Passed | None:
    """Returns what was passed of a home, of its Avro form."""
    if row is None:
        return None
    return Passed((row["partition"], row["incarnation"]), row["sequence"], row["taken"])


def _position_to_avro(position: Position) -> Avro:
    return {
        "o1": position.o1,
        "o2": position.o2,
        "o3": position.o3,
        "met": _sequences_to_avro(position.met),
        "delivered": _sequences_to_avro(position.delivered),
        "topic_id": position.topic_id,
        "passed": passed_to_avro(position.passed),
    }


def _position_from_avro(row: Avro) -> Position:
    return Position(
        o1=row["o1"],
        o2=row["o2"],
        o3=row["o3"],
        met=_sequences_from_avro(row["met"]),
        delivered=_sequences_from_avro(row["delivered"]),
        topic_id=row.get("topic_id", ""),
        passed=passed_from_avro(row.get("passed")),
    )


def _from_place_to_avro(place: Place | None) -> Avro:
    return {
        "from_o2": None if place is None else place.o2,
        "from_o3": 0 if place is None else place.o3,
        "from_passed": None if place is None else passed_to_avro(place.passed),
    }


def _from_place_from_avro(row: Avro) -> Place | None:
    if row["from_o2"] is None:
        return None
    return Place(row["from_o2"], row["from_o3"], passed_from_avro(row.get("from_passed")))


def _steps_to_avro(steps: Iterable[OffsetStep]) -> list[Avro]:
    return [
        {
            "topic": s.topic,
            "partition": s.partition,
            **_from_place_to_avro(s.from_place),
            **_position_to_avro(s.to),
        }
        for s in steps
    ]


def _steps_from_avro(rows: Sequence[Avro]) -> tuple[OffsetStep, ...]:
    return tuple(
        OffsetStep(r["topic"], r["partition"], _from_place_from_avro(r), _position_from_avro(r))
        for r in rows
    )


def _sent_to_avro(sent: Iterable[StepIdentity]) -> list[Avro]:
    return [
        {
            "topic": topic,
            "partition": partition,
            **_from_place_to_avro(from_place),
            "o2": to.o2,
            "o3": to.o3,
            "passed": passed_to_avro(to.passed),
        }
        for topic, partition, from_place, to in sent
    ]


def _sent_from_avro(rows: Sequence[Avro]) -> tuple[StepIdentity, ...]:
    return tuple(
        (
            r["topic"],
            r["partition"],
            _from_place_from_avro(r),
            Place(r["o2"], r["o3"], passed_from_avro(r.get("passed"))),
        )
        for r in rows
    )


def _producers_to_avro(rows: Iterable[SnapshotProducer]) -> list[Avro]:
    return [
        row._asdict() | {"begins": [{"request_id": r, "begin": b} for r, b in row.begins]}
        for row in rows
    ]


def _producers_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotProducer, ...]:
    for row in rows:
        row["begins"] = tuple((b["request_id"], b["begin"]) for b in row["begins"])
    return tuple(SnapshotProducer(**row) for row in rows)


def _transactions_to_avro(rows: Iterable[SnapshotTransaction]) -> list[Avro]:
    return [
        row._asdict()
        | {
            "partitions": _partitions_to_avro(row.partitions),
            "writes": _writes_to_avro(row.writes),
            "steps": [
                {
                    "group": s.group,
                    "steps": _steps_to_avro(s.steps),
                    "sent": _sent_to_avro(s.sent),
                }
                for s in row.steps
            ],
        }
        for row in rows
    ]


def _transactions_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotTransaction, ...]:
    for row in rows:
        row["state"] = State(row["state"])
        row["reason"] = None if row["reason"] is None else AbortReason(row["reason"])
        row["doomed"] = None if row["doomed"] is None else AbortReason(row["doomed"])
        row["partitions"] = _partitions_from_avro(row["partitions"])
        row["writes"] = _writes_from_avro(row["writes"])
        row["steps"] = tuple(
            SnapshotSteps(s["group"], _steps_from_avro(s["steps"]), _sent_from_avro(s["sent"]))
            for s in row["steps"]
        )
    return tuple(SnapshotTransaction(**row) for row in rows)


def _groups_to_avro(rows: Iterable[SnapshotGroup]) -> list[Avro]:
    return [
        row._asdict()
        | {
            "offsets": [
                {"topic": topic, "partition": partition, **_position_to_avro(position)}
                for topic, partition, position in row.offsets
            ]
        }
        for row in rows
    ]


def _groups_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotGroup, ...]:
    for row in rows:
        row["offsets"] = tuple(
            (o["topic"], o["partition"], _position_from_avro(o)) for o in row["offsets"]
        )
    return tuple(SnapshotGroup(**row) for row in rows)


def _bindings_to_avro(bindings: Iterable[tuple[str, str]]) -> list[Avro]:
    return [{"group": group, "transaction_group": bound} for group, bound in bindings]


def _bindings_from_avro(rows: Iterable[Avro]) -> tuple[tuple[str, str], ...]:
    return tuple((r["group"], r["transaction_group"]) for r in rows)


def _uses_to_avro(uses: Iterable[tuple[str, int]]) -> list[Avro]:
    return [{"group": group, "used_hour": hour} for group, hour in uses]


def _uses_from_avro(rows: Iterable[Avro]) -> tuple[tuple[str, int], ...]:
    return tuple((r["group"], r["used_hour"]) for r in rows)


def _topics_to_avro(topics: Iterable[tuple[str, str]]) -> list[Avro]:
    return [{"group": group, "topic": topic} for group, topic in topics]


def _topics_from_avro(rows: Iterable[Avro]) -> tuple[tuple[str, str], ...]:
    return tuple((r["group"], r["topic"]) for r in rows)


def _claims_to_avro(rows: Iterable[SnapshotClaim]) -> list[Avro]:
    return [row._asdict() | {"partitions": _keys_to_avro(row.partitions)} for row in rows]


def _claims_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotClaim, ...]:
    for row in rows:
        row["partitions"] = _keys_from_avro(row["partitions"])
    return tuple(SnapshotClaim(**row) for row in rows)


def _modes_to_avro(rows: Iterable[SnapshotMode]) -> list[Avro]:
    return [row._asdict() | {"since": _since_to_avro(row.since)} for row in rows]


def _modes_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotMode, ...]:
    for row in rows:
        row["phase"] = Phase(row["phase"])
        row["since"] = tuple(_since_from_avro(row["since"]).items())
    return tuple(SnapshotMode(**row) for row in rows)


def _places_to_avro(rows: Iterable[SnapshotPlaces]) -> list[Avro]:
    return [
        {
            "begin": row.begin,
            "sequence": row.sequence,
            "places": [
                topic | {"ends": [end for end, _ in found], "places": [at for _, at in found]}
                for topic, found in _by_topic((p, (end, at)) for p, end, at in row.places)
            ],
        }
        for row in rows
    ]


def _places_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotPlaces, ...]:
    return tuple(
        SnapshotPlaces(
            row["begin"],
            row["sequence"],
            tuple(
                item
                for topic in row["places"]
                for item in zip(_partition_ids(topic), topic["ends"], topic["places"], strict=True)
            ),
        )
        for row in rows
    )


Handed: TypeAlias = tuple[tuple[TopicPartition, int], ...]


def _handed_to_avro(handed: Handed) -> list[Avro]:
    grouped: dict[tuple[int, str], list[int]] = {}
    for (topic, partition), home in handed:
        grouped.setdefault((home, topic), []).append(partition)
    return [
        {"home": home, "topic": topic, "partitions": found}
        for (home, topic), found in grouped.items()
    ]


def _handed_from_avro(rows: Iterable[Avro]) -> Handed:
    return tuple(
        ((row["topic"], partition), row["home"]) for row in rows for partition in row["partitions"]
    )


def _adopted_writes_to_avro(writes: Iterable[AdoptedWrites]) -> list[Avro]:
    return [
        {
            "topic": w.partition.topic,
            "topic_id": w.partition.topic_id,
            "partition": w.partition.partition,
            "branches": _branches_to_avro(w.branches),
            "placed": w.placed,
        }
        for w in writes
    ]


def _adopted_writes_from_avro(rows: Iterable[Avro]) -> tuple[AdoptedWrites, ...]:
    return tuple(
        AdoptedWrites(
            PartitionId(row["topic"], row["partition"], row["topic_id"]),
            _branches_from_avro(row["branches"]),
            row["placed"],
        )
        for row in rows
    )


def _snapshot_handed_to_avro(rows: Iterable[SnapshotHanded]) -> list[Avro]:
    return [{"begin": row.begin, "partitions": _handed_to_avro(row.partitions)} for row in rows]


def _snapshot_handed_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotHanded, ...]:
    return tuple(SnapshotHanded(r["begin"], _handed_from_avro(r["partitions"])) for r in rows)


def _ends_of_mains_to_avro(since: Handed) -> list[Avro]:
    grouped: dict[str, list[tuple[int, int]]] = {}
    for (topic, partition), end in since:
        grouped.setdefault(topic, []).append((partition, end))
    return [
        {"topic": topic, "partitions": [p for p, _ in found], "ends": [e for _, e in found]}
        for topic, found in grouped.items()
    ]


def _ends_of_mains_from_avro(rows: Iterable[Avro]) -> Handed:
    return tuple(
        ((row["topic"], partition), end)
        for row in rows
        for partition, end in zip(row["partitions"], row["ends"], strict=True)
    )


def _pointers_to_avro(steps: Iterable[PointerStep]) -> list[Avro]:
    grouped: dict[str, list[PointerStep]] = {}
    for step in steps:
        grouped.setdefault(step.sidecar[0], []).append(step)
    return [
        {
            "topic": topic,
            "partitions": [step.sidecar[1] for step in found],
            "pointers": [step.pointer for step in found],
            "firsts": [step.first for step in found],
        }
        for topic, found in grouped.items()
    ]


def _pointers_from_avro(rows: Iterable[Avro]) -> tuple[PointerStep, ...]:
    return tuple(
        PointerStep((row["topic"], partition), pointer, first)
        for row in rows
        for partition, pointer, first in zip(
            row["partitions"], row["pointers"], row["firsts"], strict=True
        )
    )


def _snapshot_since_to_avro(rows: Iterable[SnapshotSince]) -> list[Avro]:
    return [{"begin": r.begin, "partitions": _ends_of_mains_to_avro(r.partitions)} for r in rows]


def _snapshot_since_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotSince, ...]:
    return tuple(SnapshotSince(r["begin"], _ends_of_mains_from_avro(r["partitions"])) for r in rows)


def _adopted_to_avro(rows: Iterable[SnapshotAdopted]) -> list[Avro]:
    return [
        {
            "partition": row.journal[0],
            "incarnation": row.journal[1],
            "upto": row.upto,
            "refused": [
                {
                    "sequence": sequence,
                    "partitions": _partitions_to_avro(
                        DataPartition(p.topic, p.partition, p.topic_id) for p in where
                    ),
                }
                for sequence, where in row.refused
            ],
            "begun": [
                {
                    "sequence": sequence,
                    "topic": last.topic,
                    "topic_id": last.topic_id,
                    "partition": last.partition,
                }
                for sequence, last in row.begun
            ],
        }
        for row in rows
    ]


def _adopted_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotAdopted, ...]:
    return tuple(
        SnapshotAdopted(
            (row["partition"], row["incarnation"]),
            row["upto"],
            tuple(
                (
                    each["sequence"],
                    tuple(
                        PartitionId(p.topic, p.partition, p.topic_id)
                        for p in _partitions_from_avro(each["partitions"])
                    ),
                )
                for each in row["refused"]
            ),
            tuple(
                (at["sequence"], PartitionId(at["topic"], at["partition"], at["topic_id"]))
                for at in row["begun"]
            ),
        )
        for row in rows
    )


def _unplaced_to_avro(rows: Iterable[SnapshotAdoption]) -> list[Avro]:
    return [
        row._asdict() | {"txid": row.txid.to_bytes(), "writes": _adopted_writes_to_avro(row.writes)}
        for row in rows
    ]


def _unplaced_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotAdoption, ...]:
    return tuple(
        SnapshotAdoption(
            row["offset"],
            TxId.from_bytes(row["txid"]),
            row["sequence"],
            _adopted_writes_from_avro(row["writes"]),
        )
        for row in rows
    )


_NAMES: Final = ("Forget.producers", "Forget.groups", "Forget.bindings")
# Converters of the fields whose Avro form differs from the dataclass's own value, by field name. A
# name means the same in every record, so one table serves them all. The exceptions are a claim's
# `partitions`, which are input of any cluster and have no topic id, and the names of a `Forget`.
TO_AVRO: Final[Mapping[str, Callable[[Any], Any]]] = {
    "partitions": _partitions_to_avro,
    "gone": _keys_to_avro,
    "writes": _writes_to_avro,
    "added": _partitions_to_avro,
    "steps": _steps_to_avro,
    "producers": _producers_to_avro,
    "transactions": _transactions_to_avro,
    "groups": _groups_to_avro,
    "bindings": _bindings_to_avro,
    "claims": _claims_to_avro,
    "group_uses": _uses_to_avro,
    "topics": _topics_to_avro,
    "placed": _placed_to_avro,
    "ends": _ends_to_avro,
    "since": _since_to_avro,
    "modes": _modes_to_avro,
    "last_places": _offsets_to_avro,
    "places": _places_to_avro,
    "fence_places": _offsets_to_avro,
    "handed": _handed_to_avro,
    "Snapshot.handed": _snapshot_handed_to_avro,
    "sidecar_since": _ends_of_mains_to_avro,
    "Snapshot.sidecar_since": _snapshot_since_to_avro,
    "adopted": _adopted_to_avro,
    "unplaced": _unplaced_to_avro,
    "starts": _offsets_to_avro,
    "acks": acks_to_avro,
    "subscriptions": subscriptions_to_avro,
    "pointers": _pointers_to_avro,
    "txid": TxId.to_bytes,
    "Adoption.writes": _adopted_writes_to_avro,
    "Claim.partitions": _keys_to_avro,
    **dict.fromkeys(_NAMES, list),
}
"""Field → function that returns its value's Avro form."""
FROM_AVRO: Final[Mapping[str, Callable[[Any], Any]]] = {
    "partitions": _partitions_from_avro,
    "gone": _keys_from_avro,
    "writes": _writes_from_avro,
    "added": _partitions_from_avro,
    "steps": _steps_from_avro,
    "reason": AbortReason,
    "producers": _producers_from_avro,
    "transactions": _transactions_from_avro,
    "groups": _groups_from_avro,
    "bindings": _bindings_from_avro,
    "claims": _claims_from_avro,
    "group_uses": _uses_from_avro,
    "topics": _topics_from_avro,
    "placed": _placed_from_avro,
    "ends": _ends_from_avro,
    "phase": Phase,
    "since": _since_from_avro,
    "modes": _modes_from_avro,
    "last_places": _offsets_from_avro,
    "places": _places_from_avro,
    "fence_places": _offsets_from_avro,
    "handed": _handed_from_avro,
    "Snapshot.handed": _snapshot_handed_from_avro,
    "sidecar_since": _ends_of_mains_from_avro,
    "Snapshot.sidecar_since": _snapshot_since_from_avro,
    "adopted": _adopted_from_avro,
    "unplaced": _unplaced_from_avro,
    "starts": _offsets_from_avro,
    "kind": SubscriptionKind,
    "effect": SubscribeEffect,
    "acks": acks_from_avro,
    "subscriptions": subscriptions_from_avro,
    "pointers": _pointers_from_avro,
    "txid": TxId.from_bytes,
    "Adoption.writes": _adopted_writes_from_avro,
    "settled": tuple,
    "Claim.partitions": _keys_from_avro,
    "past_epochs": tuple,
    **dict.fromkeys(_NAMES, tuple),
}
"""Field → function that returns its value, of the Avro form."""
