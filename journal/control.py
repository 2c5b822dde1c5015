"""Codec of the header TxCtl: markers, and the few data records that need more than a TxId.

On the wire a version byte stands before a protobuf message (``control.proto``), so that fields
may be added without breaking old readers, and old readers refuse what they would misread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from google.protobuf.message import DecodeError

from .control_pb2 import BranchRange as WireRange
from .control_pb2 import TopicPartitions as WirePartitions
from .control_pb2 import TxCtl as WireControl
from .errors import MalformedHeaderError
from .value import Lazy, value

TXID_HEADER: Final = "TxId"
TXCTL_HEADER: Final = "TxCtl"
VERSION: Final = 1
OWN_BRANCH: Final = 0
"""The nonce that stands for the transaction owner's own records, which carry no TxCtl."""
PARTITION_LIST_MAX_BYTES: Final = 1024
"""A marker lists its transaction's partitions up to this size; beyond, the decision record does."""

TopicPartition = tuple[str, int]
_REMEMBERED_MAX: Final = 16
"""Partitions of a list that is remembered."""
_DATA: Final = WireControl.DATA
_COMMITTED: Final = WireControl.COMMITTED
_ABORTED: Final = WireControl.ABORTED


@value(frozen=True, slots=True)
class BranchRange:
    """What one branch wrote to one partition."""

    branch: int
    """The branch's random 64-bit nonce; 0 = the owner's own records."""
    first_offset: int
    last_offset: int
    count: int
    """Records, which other writers' records may stand between."""

    def __post_init__(self) -> None:
        """Check that the count fits between the offsets.

        Raises:
            ValueError: it does not.
        """
        if not 0 < self.count <= self.last_offset - self.first_offset + 1:
            raise ValueError(f"{self.count} records can't lie within this range: {self}")


@value(frozen=True, slots=True, kw_only=True)
class Marker(Lazy):
    """The end of a transaction in one data partition: a record without key and value.

    Source: Transactional Messaging in Kafka, "End phase", step 5a.
    """

    committed: bool
    """True for COMMITTED, False for ABORTED."""
    commit_sequence: int
    """Journal offset of the decision, which orders a transaction group."""
    hw: int
    """Transaction high watermark: every TxId of this journal below it was finished."""
    epoch: int
    """Epoch of the coordinator that wrote this marker."""
    partition_count: int = 0
    """Data partitions of the transaction."""
    partitions: tuple[TopicPartition, ...] = ()
    """All of them, sorted; empty where their list is larger than 1 KiB."""
    branches: tuple[BranchRange, ...] = ()
    """What this partition holds of each accepted branch; empty in an ABORTED marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataControl:
    """TxCtl of a data record."""

    branch: int = OWN_BRANCH
    sequence: int | None = None
    """Position of the record in its branch and partition from 0, where asked for."""


def group_by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, Sequence[int]]:
    """Partition numbers by topic, both sorted: the compact form of a partition list."""
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
        """Encode the list, or drop it where it is larger than `PARTITION_LIST_MAX_BYTES`."""
        named = tuple(partitions)
        return _listed_before(named) if len(named) <= _REMEMBERED_MAX else _listed(named)


def _listed(partitions: tuple[TopicPartition, ...]) -> PartitionList:
    grouped = group_by_topic(partitions)
    wire = tuple(WirePartitions(topic=t, partitions=p) for t, p in grouped.items())
    count = sum(len(p) for p in grouped.values())
    if sum(w.ByteSize() + 3 for w in wire) > PARTITION_LIST_MAX_BYTES:
        wire = ()
    return PartitionList(count, wire)


# Transactions write to the same partitions again.
_listed_before = lru_cache(maxsize=1_024)(_listed)


def encode_marker(marker: Marker, partitions: PartitionList | None = None) -> bytes:
    """Value of the header TxCtl of a marker.

    Args:
        marker: what to state.
        partitions: the partition list encoded before; without it, `marker.partitions` is used.
    """
    listed = partitions if partitions is not None else PartitionList.of(marker.partitions)
    wire = WireControl(
        kind=WireControl.COMMITTED if marker.committed else WireControl.ABORTED,
        commit_sequence=marker.commit_sequence,
        hw=marker.hw,
        partition_count=listed.count or marker.partition_count,
        partitions=listed.wire,
        branches=[
            WireRange(
                branch=b.branch,
                first_offset=b.first_offset,
                last_offset=b.last_offset,
                count=b.count,
            )
            for b in marker.branches
        ],
        epoch=marker.epoch,
    )
    return bytes((VERSION,)) + wire.SerializeToString(deterministic=True)


def encode_data_control(control: DataControl) -> bytes:
    """Value of the header TxCtl of a data record."""
    wire = WireControl(kind=WireControl.DATA, branch=control.branch, sequence=control.sequence)
    return bytes((VERSION,)) + wire.SerializeToString(deterministic=True)


def decode_control(raw: bytes | None) -> Marker | DataControl:
    """Decode a TxCtl header, of a marker or a data record.

    Raises:
        MalformedHeaderError: empty, of a newer version, not decodable or contradicting itself.
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
    if kind not in (_COMMITTED, _ABORTED):
        raise MalformedHeaderError(f"TxCtl of an unknown kind {kind}; upgrade this program")
    try:
        branches = [
            BranchRange(b.branch, b.first_offset, b.last_offset, b.count) for b in wire.branches
        ]
    except ValueError as error:
        raise MalformedHeaderError("a marker's count does not fit its offsets") from error
    # Consumers need no partition list, and in small transactions it costs as much as all the rest.
    marker = Marker.__new__(Marker)
    marker.committed = kind == _COMMITTED  # type: ignore[misc]  # nobody has it yet
    marker.commit_sequence = wire.commit_sequence  # type: ignore[misc]
    marker.hw = wire.hw  # type: ignore[misc]
    marker.epoch = wire.epoch  # type: ignore[misc]
    marker.partition_count = wire.partition_count  # type: ignore[misc]
    marker.branches = tuple(branches)  # type: ignore[misc]
    marker.unread = (_partitions, raw, 1)  # type: ignore[misc]
    return marker


def _partitions(raw: bytes, at: int) -> dict[str, Any]:
    wire = WireControl.FromString(raw[at:])
    return {"partitions": tuple((w.topic, p) for w in wire.partitions for p in w.partitions)}
