"""Codec of the header TxCtl: markers, mode records, and the few data records that need more than
a TxId.

On the wire a version byte precedes a protobuf message (``control.proto``): fields may be added
without breaking old readers, and old readers refuse what they would misread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice, repeat, starmap
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from .control_pb2 import BranchRange as WireRange
from .control_pb2 import TopicPartitions as WirePartitions
from .control_pb2 import TxCtl as WireControl
from .errors import MalformedHeaderError
from .value import Lazy, value

TXID_HEADER: Final = "TxId"
TXCTL_HEADER: Final = "TxCtl"
VERSION: Final = 1
"""Version byte of a TxCtl header; readers refuse any other."""
OWN_BRANCH: Final = 0
"""Nonce that stands for the transaction owner's own records, which carry no TxCtl."""
PARTITION_LIST_MAX_BYTES: Final = 1024
"""Largest partition list in a marker; a larger one stands only in the decision record.

More makes every marker of a wide transaction larger, once per partition.
"""

TopicPartition = tuple[str, int]
_REMEMBERED_MAX: Final = 16
"""Longest partition list that is cached encoded; longer ones seldom come again."""
_DATA: Final = WireControl.DATA
_COMMITTED: Final = WireControl.COMMITTED
_ABORTED: Final = WireControl.ABORTED
_PLACES: Final = WireControl.PLACES
_MARKERS: Final = WireControl.MARKERS
_POINTER: Final = WireControl.POINTER


@value(frozen=True, slots=True)
class BranchRange:
    """The records that one branch wrote to one partition."""

    branch: int
    """The branch's random 64-bit nonce; 0 = the owner's own records."""
    first_offset: int
    last_offset: int
    count: int
    """Number of records; other writers' records may lie between them."""

    def __post_init__(self) -> None:
        """Checks that the count fits between the offsets.

        Raises:
            ValueError: it does not.
        """
        if not 0 < self.count <= self.last_offset - self.first_offset + 1:
            raise ValueError(f"{self.count} records can't lie within this range: {self}")


class RangeColumns(NamedTuple):
    """Ranges of several partitions in columns, of which most have one range per partition."""

    range_counts: Sequence[int]
    """How many of the ranges are of each partition; empty where it is one of each."""
    branches: Sequence[int]
    """The branch of each range; empty where all are `OWN_BRANCH`."""
    first_offsets: Sequence[int]
    last_offsets: Sequence[int]
    counts: Sequence[int]

    @classmethod
    def of(cls, ranges: Sequence[Sequence[BranchRange]]) -> RangeColumns:
        """Returns the ranges of each partition as columns."""
        found = [*chain.from_iterable(ranges)]
        numbers, branches = [*map(len, ranges)], [r.branch for r in found]
        return cls(
            numbers if numbers != [1] * len(numbers) else [],
            branches if any(branches) else [],
            [r.first_offset for r in found],
            [r.last_offset for r in found],
            [r.count for r in found],
        )

    def by_partition(self, partition_count: int) -> list[tuple[BranchRange, ...]]:
        """Returns the ranges of each of so many partitions.

        Raises:
            ValueError: columns are of different lengths, or a range is impossible.
        """
        # Columns become objects without a line of Python for each range.
        branches = self.branches or repeat(OWN_BRANCH, len(self.first_offsets))
        columns = zip(branches, self.first_offsets, self.last_offsets, self.counts, strict=True)
        ranges = [*starmap(BranchRange, columns)]
        found: list[tuple[BranchRange, ...]] = [*zip(ranges)]
        if self.range_counts:
            left = iter(ranges)
            found = [tuple(islice(left, count)) for count in self.range_counts]
        if len(found) != partition_count or sum(self.range_counts or [len(ranges)]) != len(ranges):
            raise ValueError("there are not as many ranges as partitions have")
        return found


@value(frozen=True, slots=True, kw_only=True)
class Marker(Lazy):
    """The end of a transaction in one data partition: a record without key and value.

    Source: Transactional Messaging in Kafka, "End phase", step 5a.
    """

    committed: bool
    """True for COMMITTED, False for ABORTED."""
    commit_sequence: int
    """Journal offset of the decision; it orders the transactions of a group."""
    hw: int
    """Transaction high watermark: every TxId of this journal partition below it was finished."""
    epoch: int
    """Epoch of the coordinator that wrote this marker."""
    partition_count: int = 0
    """Number of the transaction's data partitions."""
    partitions: tuple[TopicPartition, ...] = ()
    """The data partitions, sorted; empty if the list exceeds `PARTITION_LIST_MAX_BYTES`."""
    branches: tuple[BranchRange, ...] = ()
    """The range of each accepted branch in this partition; empty in an ABORTED marker."""
    topic_id: str = ""
    """Id of the topic that the records are in, as far as the coordinator knew; "" if it did not.

    A topic that is deleted and created again may get a marker of its predecessor (trap 12).
    """
    sidecar: tuple[BranchRange, ...] = ()
    """The range of each accepted branch in the partition's sidecar, with offsets there. If there is
    any, the marker is a *pointer*, and committed."""
    since: int = 0
    """On a pointer: an end of this partition that was told before the decision. So the first
    pointer of its TxId stands at or behind it. Part of the decision: all copies of a pointer say
    the same."""
    sidecar_id: str = ""
    """On a pointer: id of the sidecar's topic, as far as the coordinator knew; "" if it did not. As
    with `topic_id`, the records may be in another one all the same."""
    pointer: int | None = None
    """On a sidecar's COMMITTED marker: offset of the pointer in the main partition; None if it is
    not known."""

    @property
    def is_pointer(self) -> bool:
        """Whether it says that records of the partition's sidecar are delivered here."""
        return bool(self.sidecar)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataControl:
    """The TxCtl header of a data record."""

    branch: int = OWN_BRANCH
    sequence: int | None = None
    """Position of the record in its branch and partition, from 0; None if it is not numbered."""


@value(frozen=True, slots=True)
class ModeRecord:
    """A turn of a topic's mode in one data partition: a record without key and value.

    Its header TxId names the home, and the journal offset of the MODE record with which the switch
    began, as it names a transaction by the offset of its BEGIN. One that names a later MODE record
    than all that a reader knows of the topic counts; any other changes nothing.
    """

    places: bool
    """True: behind it transactions of the home are placed. False: they get markers again."""
    topic_id: str = ""
    """Id of the topic; see `Marker.topic_id`."""


def group_by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, Sequence[int]]:
    """Returns partition numbers by topic, both sorted: the compact form of a partition list."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions)):
        grouped.setdefault(topic, []).append(partition)
    return grouped


@value(frozen=True, slots=True)
class PartitionList:
    """The partitions of one transaction, encoded once for all of its markers."""

    count: int
    wire: tuple[WirePartitions, ...] = field(repr=False)

    @classmethod
    def of(cls, partitions: Iterable[TopicPartition]) -> PartitionList:
        """Encodes the list, or drops it if it is larger than `PARTITION_LIST_MAX_BYTES`."""
        named = tuple(partitions)
        return _listed_before(named) if len(named) <= _REMEMBERED_MAX else _listed(named)


def _listed(partitions: tuple[TopicPartition, ...]) -> PartitionList:
    grouped = group_by_topic(partitions)
    wire = tuple(WirePartitions(topic=t, partitions=p) for t, p in grouped.items())
    count = sum(len(p) for p in grouped.values())
    if sum(w.ByteSize() + 3 for w in wire) > PARTITION_LIST_MAX_BYTES:
        wire = ()
    return PartitionList(count, wire)


# Transactions write to the same partitions again and again.
_listed_before = lru_cache(maxsize=1_024)(_listed)


def encode_marker(marker: Marker, partitions: PartitionList | None = None) -> bytes:
    """Returns the value of a marker's TxCtl header.

    Args:
        marker: what to state.
        partitions: the partition list, encoded before; without it, `marker.partitions` is used.
    """
    listed = partitions if partitions is not None else PartitionList.of(marker.partitions)
    # A kind of its own: a program of the version before would take a COMMITTED marker without
    # branches for an empty transaction, and lose it silently.
    ended = _POINTER if marker.is_pointer else _COMMITTED
    wire = WireControl(
        kind=ended if marker.committed else _ABORTED,
        commit_sequence=marker.commit_sequence,
        hw=marker.hw,
        partition_count=listed.count or marker.partition_count,
        partitions=listed.wire,
        branches=[*map(_wire_range, marker.branches)],
        epoch=marker.epoch,
        topic_id=marker.topic_id,
        sidecar=[*map(_wire_range, marker.sidecar)],
        since=marker.since,
        sidecar_id=marker.sidecar_id,
        pointer=marker.pointer,
    )
    return bytes((VERSION,)) + wire.SerializeToString(deterministic=True)


def _wire_range(b: BranchRange) -> WireRange:
    return WireRange(
        branch=b.branch, first_offset=b.first_offset, last_offset=b.last_offset, count=b.count
    )


def encode_data_control(control: DataControl) -> bytes:
    """Returns the value of a data record's TxCtl header."""
    wire = WireControl(kind=WireControl.DATA, branch=control.branch, sequence=control.sequence)
    return bytes((VERSION,)) + wire.SerializeToString(deterministic=True)


def encode_mode_record(record: ModeRecord) -> bytes:
    """Returns the value of a mode record's TxCtl header."""
    wire = WireControl(kind=_PLACES if record.places else _MARKERS, topic_id=record.topic_id)
    return bytes((VERSION,)) + wire.SerializeToString(deterministic=True)


def decode_control(raw: bytes | None) -> Marker | DataControl | ModeRecord:
    """Decodes a TxCtl header, of a marker, a data record or a mode record.

    Raises:
        MalformedHeaderError: empty, of a newer version, not decodable, or contradicting itself.
    """
    if not raw:
        raise MalformedHeaderError("the TxCtl header is empty")
    if raw[0] != VERSION:
        raise MalformedHeaderError(f"TxCtl of version {raw[0]}; this program reads {VERSION}")
    try:
        wire = WireControl.FromString(raw[1:])
    except DecodeError as error:
        raise MalformedHeaderError("the TxCtl header does not decode") from error
    kind = wire.kind
    if kind == _DATA:
        sequence = wire.sequence if wire.HasField("sequence") else None
        return DataControl(branch=wire.branch, sequence=sequence)
    if kind in (_PLACES, _MARKERS):
        return ModeRecord(kind == _PLACES, wire.topic_id)
    if kind not in (_COMMITTED, _ABORTED, _POINTER):
        raise MalformedHeaderError(f"TxCtl of an unknown kind {kind}; upgrade this program")
    sidecar: tuple[BranchRange, ...] = ()
    try:
        branches = [
            BranchRange(b.branch, b.first_offset, b.last_offset, b.count) for b in wire.branches
        ]
        if kind == _POINTER:
            sidecar = tuple(
                BranchRange(b.branch, b.first_offset, b.last_offset, b.count) for b in wire.sidecar
            )
    except ValueError as error:
        raise MalformedHeaderError("a marker's count does not fit its offsets") from error
    if kind == _POINTER and not sidecar:
        raise MalformedHeaderError("a pointer that names no records")
    # Consumers need no partition list, and in small transactions it would cost as much as all the
    # rest.
    marker = Marker.__new__(Marker)
    marker.committed = kind != _ABORTED  # type: ignore[misc]  # not handed out yet
    marker.commit_sequence = wire.commit_sequence  # type: ignore[misc]
    marker.hw = wire.hw  # type: ignore[misc]
    marker.epoch = wire.epoch  # type: ignore[misc]
    marker.partition_count = wire.partition_count  # type: ignore[misc]
    marker.branches = tuple(branches)  # type: ignore[misc]
    marker.topic_id = wire.topic_id  # type: ignore[misc]
    marker.sidecar = sidecar  # type: ignore[misc]
    marker.since = wire.since  # type: ignore[misc]
    marker.sidecar_id = wire.sidecar_id  # type: ignore[misc]
    marker.pointer = wire.pointer if wire.HasField("pointer") else None  # type: ignore[misc]
    marker.unread = (_partitions, raw, 1)  # type: ignore[misc]
    return marker


def _partitions(raw: bytes, at: int) -> dict[str, Any]:
    wire = WireControl.FromString(raw[at:])
    return {"partitions": tuple((w.topic, p) for w in wire.partitions for p in w.partitions)}
