from logtx.coordinator.protocol import coordinator_pb2 as _coordinator_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MetadataRequest(_message.Message):
    __slots__ = ("query", "watch", "horizon", "status")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    query: MetadataQuery
    watch: MetadataQuery
    horizon: HorizonRequest
    status: StatusRequest
    def __init__(self, query: _Optional[_Union[MetadataQuery, _Mapping]] = ..., watch: _Optional[_Union[MetadataQuery, _Mapping]] = ..., horizon: _Optional[_Union[HorizonRequest, _Mapping]] = ..., status: _Optional[_Union[StatusRequest, _Mapping]] = ...) -> None: ...

class MetadataAnswer(_message.Message):
    __slots__ = ("page", "horizon", "status", "last")
    PAGE_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    page: MetadataPage
    horizon: HorizonReply
    status: StatusReply
    last: bool
    def __init__(self, page: _Optional[_Union[MetadataPage, _Mapping]] = ..., horizon: _Optional[_Union[HorizonReply, _Mapping]] = ..., status: _Optional[_Union[StatusReply, _Mapping]] = ..., last: _Optional[bool] = ...) -> None: ...

class MetadataQuery(_message.Message):
    __slots__ = ("header", "operations", "writes_by_segment", "acks_by_segment_subscription", "txn_by_deadline", "txn_by_final_state", "limit", "fresh", "timeout_ms")
    class Writes(_message.Message):
        __slots__ = ("topic", "partition", "from_place", "to_place")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        FROM_PLACE_FIELD_NUMBER: _ClassVar[int]
        TO_PLACE_FIELD_NUMBER: _ClassVar[int]
        topic: str
        partition: int
        from_place: int
        to_place: int
        def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., from_place: _Optional[int] = ..., to_place: _Optional[int] = ...) -> None: ...
    class Acks(_message.Message):
        __slots__ = ("topic", "partition", "subscription")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
        topic: str
        partition: int
        subscription: str
        def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., subscription: _Optional[str] = ...) -> None: ...
    class Deadline(_message.Message):
        __slots__ = ("before_ms",)
        BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
        before_ms: int
        def __init__(self, before_ms: _Optional[int] = ...) -> None: ...
    class Final(_message.Message):
        __slots__ = ("state", "from_ms", "to_ms")
        STATE_FIELD_NUMBER: _ClassVar[int]
        FROM_MS_FIELD_NUMBER: _ClassVar[int]
        TO_MS_FIELD_NUMBER: _ClassVar[int]
        state: MetadataHeader.State
        from_ms: int
        to_ms: int
        def __init__(self, state: _Optional[_Union[MetadataHeader.State, str]] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    WRITES_BY_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    ACKS_BY_SEGMENT_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TXN_BY_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    TXN_BY_FINAL_STATE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    operations: bytes
    writes_by_segment: MetadataQuery.Writes
    acks_by_segment_subscription: MetadataQuery.Acks
    txn_by_deadline: MetadataQuery.Deadline
    txn_by_final_state: MetadataQuery.Final
    limit: int
    fresh: bool
    timeout_ms: int
    def __init__(self, header: _Optional[bytes] = ..., operations: _Optional[bytes] = ..., writes_by_segment: _Optional[_Union[MetadataQuery.Writes, _Mapping]] = ..., acks_by_segment_subscription: _Optional[_Union[MetadataQuery.Acks, _Mapping]] = ..., txn_by_deadline: _Optional[_Union[MetadataQuery.Deadline, _Mapping]] = ..., txn_by_final_state: _Optional[_Union[MetadataQuery.Final, _Mapping]] = ..., limit: _Optional[int] = ..., fresh: _Optional[bool] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class MetadataPage(_message.Message):
    __slots__ = ("entries", "ready", "error")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[MetadataEntry]
    ready: bool
    error: _coordinator_pb2.Error
    def __init__(self, entries: _Optional[_Iterable[_Union[MetadataEntry, _Mapping]]] = ..., ready: _Optional[bool] = ..., error: _Optional[_Union[_coordinator_pb2.Error, _Mapping]] = ...) -> None: ...

class MetadataEntry(_message.Message):
    __slots__ = ("header", "operation", "deleted")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    header: MetadataHeader
    operation: MetadataOperation
    deleted: bool
    def __init__(self, header: _Optional[_Union[MetadataHeader, _Mapping]] = ..., operation: _Optional[_Union[MetadataOperation, _Mapping]] = ..., deleted: _Optional[bool] = ...) -> None: ...

class MetadataHeader(_message.Message):
    __slots__ = ("txid", "version", "state", "finished", "producer_id", "generation", "created_ms", "timeout_ms", "finalized_ms", "commit_sequence", "reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPEN: _ClassVar[MetadataHeader.State]
        COMMITTED: _ClassVar[MetadataHeader.State]
        ABORTED: _ClassVar[MetadataHeader.State]
    OPEN: MetadataHeader.State
    COMMITTED: MetadataHeader.State
    ABORTED: MetadataHeader.State
    TXID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FINALIZED_MS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    version: int
    state: MetadataHeader.State
    finished: bool
    producer_id: str
    generation: int
    created_ms: int
    timeout_ms: int
    finalized_ms: int
    commit_sequence: int
    reason: str
    def __init__(self, txid: _Optional[bytes] = ..., version: _Optional[int] = ..., state: _Optional[_Union[MetadataHeader.State, str]] = ..., finished: _Optional[bool] = ..., producer_id: _Optional[str] = ..., generation: _Optional[int] = ..., created_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., finalized_ms: _Optional[int] = ..., commit_sequence: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class MetadataOperation(_message.Message):
    __slots__ = ("txid", "seq_offset", "seq_index", "kind", "topic", "partition", "topic_id", "first_offset", "last_offset", "count", "branch", "placed", "place", "subscription", "step")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WRITE: _ClassVar[MetadataOperation.Kind]
        ACK: _ClassVar[MetadataOperation.Kind]
    WRITE: MetadataOperation.Kind
    ACK: MetadataOperation.Kind
    TXID_FIELD_NUMBER: _ClassVar[int]
    SEQ_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEQ_INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    seq_offset: int
    seq_index: int
    kind: MetadataOperation.Kind
    topic: str
    partition: int
    topic_id: str
    first_offset: int
    last_offset: int
    count: int
    branch: int
    placed: bool
    place: int
    subscription: str
    step: _coordinator_pb2.OffsetStep
    def __init__(self, txid: _Optional[bytes] = ..., seq_offset: _Optional[int] = ..., seq_index: _Optional[int] = ..., kind: _Optional[_Union[MetadataOperation.Kind, str]] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., count: _Optional[int] = ..., branch: _Optional[int] = ..., placed: _Optional[bool] = ..., place: _Optional[int] = ..., subscription: _Optional[str] = ..., step: _Optional[_Union[_coordinator_pb2.OffsetStep, _Mapping]] = ...) -> None: ...

class HorizonRequest(_message.Message):
    __slots__ = ("topic", "partition", "timeout_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    timeout_ms: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class HorizonReply(_message.Message):
    __slots__ = ("error", "max_read_position", "end_offset", "undecided", "exact")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MAX_READ_POSITION_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    error: _coordinator_pb2.Error
    max_read_position: int
    end_offset: int
    undecided: int
    exact: bool
    def __init__(self, error: _Optional[_Union[_coordinator_pb2.Error, _Mapping]] = ..., max_read_position: _Optional[int] = ..., end_offset: _Optional[int] = ..., undecided: _Optional[int] = ..., exact: _Optional[bool] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("error", "back_end", "shared", "operations", "partitions", "swept_ms", "swept_operations", "swept_headers", "problem", "history_ms")
    class Partition(_message.Message):
        __slots__ = ("partition", "next_offset", "lag_records", "problem")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
        PROBLEM_FIELD_NUMBER: _ClassVar[int]
        partition: int
        next_offset: int
        lag_records: int
        problem: str
        def __init__(self, partition: _Optional[int] = ..., next_offset: _Optional[int] = ..., lag_records: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BACK_END_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SWEPT_MS_FIELD_NUMBER: _ClassVar[int]
    SWEPT_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    SWEPT_HEADERS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    HISTORY_MS_FIELD_NUMBER: _ClassVar[int]
    error: _coordinator_pb2.Error
    back_end: str
    shared: bool
    operations: int
    partitions: _containers.RepeatedCompositeFieldContainer[StatusReply.Partition]
    swept_ms: int
    swept_operations: int
    swept_headers: int
    problem: str
    history_ms: int
    def __init__(self, error: _Optional[_Union[_coordinator_pb2.Error, _Mapping]] = ..., back_end: _Optional[str] = ..., shared: _Optional[bool] = ..., operations: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[StatusReply.Partition, _Mapping]]] = ..., swept_ms: _Optional[int] = ..., swept_operations: _Optional[int] = ..., swept_headers: _Optional[int] = ..., problem: _Optional[str] = ..., history_ms: _Optional[int] = ...) -> None: ...
