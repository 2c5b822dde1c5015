"""Converts what journal records say of subscriptions to Avro, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..acks import Acks, SnapshotSubscription, SubscriptionKind
from ..places import PartitionId
from ..spans import AT_OFFSET, MessageId, Span

Avro = dict[str, Any]
_AT_OFFSET = -1
"""Stands for `AT_OFFSET`, which would take nine bytes."""
_SPAN_NUMBERS = 6


def _spans_to_avro(spans: Iterable[Span]) -> list[int]:
    numbers: list[int] = []
    before = 0
    for lo, hi in spans:
        numbers += (lo.offset - before, _short(lo.sequence), lo.nth)
        numbers += (hi.offset - lo.offset, _short(hi.sequence), hi.nth)
        before = hi.offset
    return numbers


def _short(sequence: int) -> int:
    return _AT_OFFSET if sequence == AT_OFFSET else sequence


def _spans_from_avro(numbers: Sequence[int]) -> tuple[Span, ...]:
    """Returns the spans.

    Raises:
        ValueError: the numbers are no spans.
    """
    spans: list[Span] = []
    before = 0
    for at in range(0, len(numbers), _SPAN_NUMBERS):
        lo_offset, lo_sequence, lo_nth, length, hi_sequence, hi_nth = numbers[
            at : at + _SPAN_NUMBERS
        ]
        lo = MessageId(before + lo_offset, _long(lo_sequence), lo_nth)
        hi = MessageId(lo.offset + length, _long(hi_sequence), hi_nth)
        spans.append(Span(lo, hi).check())
        before = hi.offset
    return tuple(spans)


def _long(sequence: int) -> int:
    return AT_OFFSET if sequence == _AT_OFFSET else sequence


def acks_to_avro(acks: Iterable[Acks]) -> list[Avro]:
    """Returns messages as rows, one for each partition."""
    return [
        {
            "topic": each.partition.topic,
            "topic_id": each.partition.topic_id,
            "partition": each.partition.partition,
            "spans": _spans_to_avro(each.spans),
        }
        for each in acks
    ]


def acks_from_avro(rows: Iterable[Avro]) -> tuple[Acks, ...]:
    """Returns the messages of rows.

    Raises:
        ValueError: they are no spans.
    """
    return tuple(Acks(_partition(row), _spans_from_avro(row["spans"])) for row in rows)


def _partition(row: Avro) -> PartitionId:
    return PartitionId(row["topic"], row["partition"], row["topic_id"])


def subscriptions_to_avro(rows: Iterable[SnapshotSubscription]) -> list[Avro]:
    """Returns the rows of a snapshot."""
    return [
        {
            "group": row.group,
            "kind": row.kind.value,
            "topic": row.partition.topic,
            "topic_id": row.partition.topic_id,
            "partition": row.partition.partition,
            "deleted": _spans_to_avro(row.deleted),
            "pending": [
                {"begin": begin, "spans": _spans_to_avro((span,))} for begin, span in row.pending
            ],
            "era": row.era,
        }
        for row in rows
    ]


def subscriptions_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotSubscription, ...]:
    """Returns the rows of a snapshot.

    Raises:
        ValueError: they have no spans where there must be some, or an unknown kind.
    """
    return tuple(
        SnapshotSubscription(
            row["group"],
            SubscriptionKind(row["kind"]),
            _partition(row),
            _spans_from_avro(row["deleted"]),
            tuple(
                (each["begin"], span)
                for each in row["pending"]
                for span in _spans_from_avro(each["spans"])
            ),
            row["era"],
        )
        for row in rows
    )
