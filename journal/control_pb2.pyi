from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TxCtl(_message.Message):
    __slots__ = ("kind", "branch", "sequence", "commit_sequence", "hw", "partition_count", "partitions", "branches", "epoch", "topic_id", "sidecar", "since", "sidecar_id", "pointer")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DATA: _ClassVar[TxCtl.Kind]
        COMMITTED: _ClassVar[TxCtl.Kind]
        ABORTED: _ClassVar[TxCtl.Kind]
        PLACES: _ClassVar[TxCtl.Kind]
        MARKERS: _ClassVar[TxCtl.Kind]
        POINTER: _ClassVar[TxCtl.Kind]
    DATA: TxCtl.Kind
    COMMITTED: TxCtl.Kind
    ABORTED: TxCtl.Kind
    PLACES: TxCtl.Kind
    MARKERS: TxCtl.Kind
    POINTER: TxCtl.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HW_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SIDECAR_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SIDECAR_ID_FIELD_NUMBER: _ClassVar[int]
    POINTER_FIELD_NUMBER: _ClassVar[int]
    kind: TxCtl.Kind
    branch: int
    sequence: int
    commit_sequence: int
    hw: int
    partition_count: int
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    branches: _containers.RepeatedCompositeFieldContainer[BranchRange]
    epoch: int
    topic_id: str
    sidecar: _containers.RepeatedCompositeFieldContainer[BranchRange]
    since: int
    sidecar_id: str
    pointer: int
    def __init__(self, kind: _Optional[_Union[TxCtl.Kind, str]] = ..., branch: _Optional[int] = ..., sequence: _Optional[int] = ..., commit_sequence: _Optional[int] = ..., hw: _Optional[int] = ..., partition_count: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., branches: _Optional[_Iterable[_Union[BranchRange, _Mapping]]] = ..., epoch: _Optional[int] = ..., topic_id: _Optional[str] = ..., sidecar: _Optional[_Iterable[_Union[BranchRange, _Mapping]]] = ..., since: _Optional[int] = ..., sidecar_id: _Optional[str] = ..., pointer: _Optional[int] = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class BranchRange(_message.Message):
    __slots__ = ("branch", "first_offset", "last_offset", "count")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    branch: int
    first_offset: int
    last_offset: int
    count: int
    def __init__(self, branch: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
