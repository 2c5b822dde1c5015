from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientFrame(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[Request]
    def __init__(self, requests: _Optional[_Iterable[_Union[Request, _Mapping]]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("replies", "decided")
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[Reply]
    decided: _containers.RepeatedCompositeFieldContainer[Decided]
    def __init__(self, replies: _Optional[_Iterable[_Union[Reply, _Mapping]]] = ..., decided: _Optional[_Iterable[_Union[Decided, _Mapping]]] = ...) -> None: ...

class Decided(_message.Message):
    __slots__ = ("txid", "state", "reason")
    TXID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    state: Outcome.State
    reason: str
    def __init__(self, txid: _Optional[bytes] = ..., state: _Optional[_Union[Outcome.State, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("partition", "request", "partition_count", "timeout_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    request: Request
    partition_count: int
    timeout_ms: int
    def __init__(self, partition: _Optional[int] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., partition_count: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("request_id", "connect", "begin", "add_partitions", "add_offsets", "end", "get_outcome", "fetch_offsets", "bind_group", "list_transactions", "abort_transaction", "list_keys", "get_key", "delete_key", "claim_offsets", "forget_producer", "forget_group", "unbind_group", "extend_transaction", "add_writes", "set_topic_mode", "describe_topics", "set_topic_rule", "open_sidecars", "describe_sidecars", "attach", "acquire", "acknowledge", "add_acks", "describe_subscriptions", "reset_subscription", "delete_subscription")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    ADD_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ADD_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    GET_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    FETCH_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BIND_GROUP_FIELD_NUMBER: _ClassVar[int]
    LIST_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    ABORT_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    LIST_KEYS_FIELD_NUMBER: _ClassVar[int]
    GET_KEY_FIELD_NUMBER: _ClassVar[int]
    DELETE_KEY_FIELD_NUMBER: _ClassVar[int]
    CLAIM_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FORGET_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    FORGET_GROUP_FIELD_NUMBER: _ClassVar[int]
    UNBIND_GROUP_FIELD_NUMBER: _ClassVar[int]
    EXTEND_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    ADD_WRITES_FIELD_NUMBER: _ClassVar[int]
    SET_TOPIC_MODE_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    SET_TOPIC_RULE_FIELD_NUMBER: _ClassVar[int]
    OPEN_SIDECARS_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_SIDECARS_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    ADD_ACKS_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    RESET_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DELETE_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    connect: Connect
    begin: Begin
    add_partitions: AddPartitions
    add_offsets: AddOffsets
    end: End
    get_outcome: GetOutcome
    fetch_offsets: FetchOffsets
    bind_group: BindGroup
    list_transactions: ListTransactions
    abort_transaction: AbortTransaction
    list_keys: ListKeys
    get_key: GetKey
    delete_key: DeleteKey
    claim_offsets: ClaimOffsets
    forget_producer: ForgetProducer
    forget_group: ForgetGroup
    unbind_group: UnbindGroup
    extend_transaction: ExtendTransaction
    add_writes: AddWrites
    set_topic_mode: SetTopicMode
    describe_topics: DescribeTopics
    set_topic_rule: SetTopicRule
    open_sidecars: OpenSidecars
    describe_sidecars: DescribeSidecars
    attach: Attach
    acquire: Acquire
    acknowledge: Acknowledge
    add_acks: AddAcks
    describe_subscriptions: DescribeSubscriptions
    reset_subscription: ResetSubscription
    delete_subscription: DeleteSubscription
    def __init__(self, request_id: _Optional[int] = ..., connect: _Optional[_Union[Connect, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ..., add_partitions: _Optional[_Union[AddPartitions, _Mapping]] = ..., add_offsets: _Optional[_Union[AddOffsets, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., get_outcome: _Optional[_Union[GetOutcome, _Mapping]] = ..., fetch_offsets: _Optional[_Union[FetchOffsets, _Mapping]] = ..., bind_group: _Optional[_Union[BindGroup, _Mapping]] = ..., list_transactions: _Optional[_Union[ListTransactions, _Mapping]] = ..., abort_transaction: _Optional[_Union[AbortTransaction, _Mapping]] = ..., list_keys: _Optional[_Union[ListKeys, _Mapping]] = ..., get_key: _Optional[_Union[GetKey, _Mapping]] = ..., delete_key: _Optional[_Union[DeleteKey, _Mapping]] = ..., claim_offsets: _Optional[_Union[ClaimOffsets, _Mapping]] = ..., forget_producer: _Optional[_Union[ForgetProducer, _Mapping]] = ..., forget_group: _Optional[_Union[ForgetGroup, _Mapping]] = ..., unbind_group: _Optional[_Union[UnbindGroup, _Mapping]] = ..., extend_transaction: _Optional[_Union[ExtendTransaction, _Mapping]] = ..., add_writes: _Optional[_Union[AddWrites, _Mapping]] = ..., set_topic_mode: _Optional[_Union[SetTopicMode, _Mapping]] = ..., describe_topics: _Optional[_Union[DescribeTopics, _Mapping]] = ..., set_topic_rule: _Optional[_Union[SetTopicRule, _Mapping]] = ..., open_sidecars: _Optional[_Union[OpenSidecars, _Mapping]] = ..., describe_sidecars: _Optional[_Union[DescribeSidecars, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., acquire: _Optional[_Union[Acquire, _Mapping]] = ..., acknowledge: _Optional[_Union[Acknowledge, _Mapping]] = ..., add_acks: _Optional[_Union[AddAcks, _Mapping]] = ..., describe_subscriptions: _Optional[_Union[DescribeSubscriptions, _Mapping]] = ..., reset_subscription: _Optional[_Union[ResetSubscription, _Mapping]] = ..., delete_subscription: _Optional[_Union[DeleteSubscription, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("request_id", "error", "connected", "began", "done", "outcome", "group_offsets", "binding", "transactions", "key", "keys", "claimed", "topic_modes", "sidecar_needs", "attached", "leases", "ack_results", "subscriptions")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    GROUP_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_MODES_FIELD_NUMBER: _ClassVar[int]
    SIDECAR_NEEDS_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    ACK_RESULTS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    error: Error
    connected: Connected
    began: Began
    done: Done
    outcome: Outcome
    group_offsets: GroupOffsets
    binding: Binding
    transactions: Transactions
    key: KeyInfo
    keys: Keys
    claimed: Claimed
    topic_modes: TopicModes
    sidecar_needs: SidecarNeeds
    attached: Attached
    leases: Leases
    ack_results: AckResults
    subscriptions: Subscriptions
    def __init__(self, request_id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., connected: _Optional[_Union[Connected, _Mapping]] = ..., began: _Optional[_Union[Began, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., group_offsets: _Optional[_Union[GroupOffsets, _Mapping]] = ..., binding: _Optional[_Union[Binding, _Mapping]] = ..., transactions: _Optional[_Union[Transactions, _Mapping]] = ..., key: _Optional[_Union[KeyInfo, _Mapping]] = ..., keys: _Optional[_Union[Keys, _Mapping]] = ..., claimed: _Optional[_Union[Claimed, _Mapping]] = ..., topic_modes: _Optional[_Union[TopicModes, _Mapping]] = ..., sidecar_needs: _Optional[_Union[SidecarNeeds, _Mapping]] = ..., attached: _Optional[_Union[Attached, _Mapping]] = ..., leases: _Optional[_Union[Leases, _Mapping]] = ..., ack_results: _Optional[_Union[AckResults, _Mapping]] = ..., subscriptions: _Optional[_Union[Subscriptions, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    hint: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class Connect(_message.Message):
    __slots__ = ("version", "partition", "producer_id", "nonce", "generation", "partition_count")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    version: int
    partition: int
    producer_id: str
    nonce: int
    generation: int
    partition_count: int
    def __init__(self, version: _Optional[int] = ..., partition: _Optional[int] = ..., producer_id: _Optional[str] = ..., nonce: _Optional[int] = ..., generation: _Optional[int] = ..., partition_count: _Optional[int] = ...) -> None: ...

class Connected(_message.Message):
    __slots__ = ("generation", "partition", "incarnation", "epoch")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    generation: int
    partition: int
    incarnation: int
    epoch: int
    def __init__(self, generation: _Optional[int] = ..., partition: _Optional[int] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("answered_below", "timeout_ms", "partitions")
    ANSWERED_BELOW_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    answered_below: int
    timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[Partitions]
    def __init__(self, answered_below: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[Partitions, _Mapping]]] = ...) -> None: ...

class Began(_message.Message):
    __slots__ = ("txid",)
    TXID_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    def __init__(self, txid: _Optional[bytes] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddPartitions(_message.Message):
    __slots__ = ("txid", "partitions")
    TXID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[Partitions]
    def __init__(self, txid: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[Partitions, _Mapping]]] = ...) -> None: ...

class ExtendTransaction(_message.Message):
    __slots__ = ("txid",)
    TXID_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    def __init__(self, txid: _Optional[bytes] = ...) -> None: ...

class AddWrites(_message.Message):
    __slots__ = ("txid", "part", "writes")
    TXID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    part: int
    writes: _containers.RepeatedCompositeFieldContainer[Writes]
    def __init__(self, txid: _Optional[bytes] = ..., part: _Optional[int] = ..., writes: _Optional[_Iterable[_Union[Writes, _Mapping]]] = ...) -> None: ...

class AddOffsets(_message.Message):
    __slots__ = ("txid", "group", "steps")
    TXID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    group: str
    steps: _containers.RepeatedCompositeFieldContainer[OffsetStep]
    def __init__(self, txid: _Optional[bytes] = ..., group: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[OffsetStep, _Mapping]]] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("txid", "action", "writes", "parts")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COMMIT: _ClassVar[End.Action]
        ABORT: _ClassVar[End.Action]
    COMMIT: End.Action
    ABORT: End.Action
    TXID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    action: End.Action
    writes: _containers.RepeatedCompositeFieldContainer[Writes]
    parts: int
    def __init__(self, txid: _Optional[bytes] = ..., action: _Optional[_Union[End.Action, str]] = ..., writes: _Optional[_Iterable[_Union[Writes, _Mapping]]] = ..., parts: _Optional[int] = ...) -> None: ...

class GetOutcome(_message.Message):
    __slots__ = ("txid", "until_finished")
    TXID_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FINISHED_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    until_finished: bool
    def __init__(self, txid: _Optional[bytes] = ..., until_finished: _Optional[bool] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("txid", "state", "commit_sequence", "reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Outcome.State]
        OPEN: _ClassVar[Outcome.State]
        COMMITTING: _ClassVar[Outcome.State]
        COMMITTED: _ClassVar[Outcome.State]
        ABORTING: _ClassVar[Outcome.State]
        ABORTED: _ClassVar[Outcome.State]
    UNKNOWN: Outcome.State
    OPEN: Outcome.State
    COMMITTING: Outcome.State
    COMMITTED: Outcome.State
    ABORTING: Outcome.State
    ABORTED: Outcome.State
    TXID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    state: Outcome.State
    commit_sequence: int
    reason: str
    def __init__(self, txid: _Optional[bytes] = ..., state: _Optional[_Union[Outcome.State, str]] = ..., commit_sequence: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class FetchOffsets(_message.Message):
    __slots__ = ("group", "all", "partitions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    all: bool
    partitions: _containers.RepeatedCompositeFieldContainer[Partitions]
    def __init__(self, group: _Optional[str] = ..., all: _Optional[bool] = ..., partitions: _Optional[_Iterable[_Union[Partitions, _Mapping]]] = ...) -> None: ...

class GroupOffsets(_message.Message):
    __slots__ = ("offsets", "last_commit", "commit_sequence")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[Position]
    last_commit: bytes
    commit_sequence: int
    def __init__(self, offsets: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., last_commit: _Optional[bytes] = ..., commit_sequence: _Optional[int] = ...) -> None: ...

class ClaimOffsets(_message.Message):
    __slots__ = ("group", "claimant", "partitions", "conditional")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLAIMANT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONAL_FIELD_NUMBER: _ClassVar[int]
    group: str
    claimant: int
    partitions: _containers.RepeatedCompositeFieldContainer[Partitions]
    conditional: bool
    def __init__(self, group: _Optional[str] = ..., claimant: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[Partitions, _Mapping]]] = ..., conditional: _Optional[bool] = ...) -> None: ...

class Claimed(_message.Message):
    __slots__ = ("number", "offsets")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    number: int
    offsets: GroupOffsets
    def __init__(self, number: _Optional[int] = ..., offsets: _Optional[_Union[GroupOffsets, _Mapping]] = ...) -> None: ...

class BindGroup(_message.Message):
    __slots__ = ("group", "transaction_group")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    transaction_group: str
    def __init__(self, group: _Optional[str] = ..., transaction_group: _Optional[str] = ...) -> None: ...

class Binding(_message.Message):
    __slots__ = ("transaction_group",)
    TRANSACTION_GROUP_FIELD_NUMBER: _ClassVar[int]
    transaction_group: str
    def __init__(self, transaction_group: _Optional[str] = ...) -> None: ...

class ListTransactions(_message.Message):
    __slots__ = ("states", "age_min_ms", "producer_id", "topic", "after", "limit")
    STATES_FIELD_NUMBER: _ClassVar[int]
    AGE_MIN_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[Outcome.State]
    age_min_ms: int
    producer_id: str
    topic: str
    after: int
    limit: int
    def __init__(self, states: _Optional[_Iterable[_Union[Outcome.State, str]]] = ..., age_min_ms: _Optional[int] = ..., producer_id: _Optional[str] = ..., topic: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class Transactions(_message.Message):
    __slots__ = ("transactions", "more")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionInfo]
    more: bool
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionInfo, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class TransactionInfo(_message.Message):
    __slots__ = ("txid", "state", "producer_id", "generation", "started_ms", "timeout_ms", "partitions", "groups", "age_ms", "reason", "placing")
    TXID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PLACING_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    state: Outcome.State
    producer_id: str
    generation: int
    started_ms: int
    timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[Partitions]
    groups: _containers.RepeatedScalarFieldContainer[str]
    age_ms: int
    reason: str
    placing: bool
    def __init__(self, txid: _Optional[bytes] = ..., state: _Optional[_Union[Outcome.State, str]] = ..., producer_id: _Optional[str] = ..., generation: _Optional[int] = ..., started_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[Partitions, _Mapping]]] = ..., groups: _Optional[_Iterable[str]] = ..., age_ms: _Optional[int] = ..., reason: _Optional[str] = ..., placing: _Optional[bool] = ...) -> None: ...

class AbortTransaction(_message.Message):
    __slots__ = ("txid",)
    TXID_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    def __init__(self, txid: _Optional[bytes] = ...) -> None: ...

class ListKeys(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class Keys(_message.Message):
    __slots__ = ("keys", "more")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[KeyInfo]
    more: bool
    def __init__(self, keys: _Optional[_Iterable[_Union[KeyInfo, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class GetKey(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteKey(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ForgetProducer(_message.Message):
    __slots__ = ("producer_id",)
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    def __init__(self, producer_id: _Optional[str] = ...) -> None: ...

class ForgetGroup(_message.Message):
    __slots__ = ("group", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class UnbindGroup(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class SetTopicMode(_message.Message):
    __slots__ = ("topic", "mode", "without_records")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_RECORDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    mode: TopicMode.Mode
    without_records: bool
    def __init__(self, topic: _Optional[str] = ..., mode: _Optional[_Union[TopicMode.Mode, str]] = ..., without_records: _Optional[bool] = ...) -> None: ...

class OpenSidecars(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeSidecars(_message.Message):
    __slots__ = ("sidecars",)
    SIDECARS_FIELD_NUMBER: _ClassVar[int]
    sidecars: _containers.RepeatedCompositeFieldContainer[SidecarPartitions]
    def __init__(self, sidecars: _Optional[_Iterable[_Union[SidecarPartitions, _Mapping]]] = ...) -> None: ...

class SidecarPartitions(_message.Message):
    __slots__ = ("topic", "partitions", "main_starts")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MAIN_STARTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    main_starts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., main_starts: _Optional[_Iterable[int]] = ...) -> None: ...

class SidecarNeeds(_message.Message):
    __slots__ = ("undecided", "end", "incarnation", "steps")
    UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    undecided: int
    end: int
    incarnation: int
    steps: _containers.RepeatedCompositeFieldContainer[PointerSteps]
    def __init__(self, undecided: _Optional[int] = ..., end: _Optional[int] = ..., incarnation: _Optional[int] = ..., steps: _Optional[_Iterable[_Union[PointerSteps, _Mapping]]] = ...) -> None: ...

class PointerSteps(_message.Message):
    __slots__ = ("topic", "partitions", "pointers", "firsts")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    POINTERS_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    pointers: _containers.RepeatedScalarFieldContainer[int]
    firsts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., pointers: _Optional[_Iterable[int]] = ..., firsts: _Optional[_Iterable[int]] = ...) -> None: ...

class SetTopicRule(_message.Message):
    __slots__ = ("rule", "mode", "transaction_group")
    RULE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_GROUP_FIELD_NUMBER: _ClassVar[int]
    rule: str
    mode: TopicMode.Mode
    transaction_group: str
    def __init__(self, rule: _Optional[str] = ..., mode: _Optional[_Union[TopicMode.Mode, str]] = ..., transaction_group: _Optional[str] = ...) -> None: ...

class DescribeTopics(_message.Message):
    __slots__ = ("topics", "after")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    after: str
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., after: _Optional[str] = ...) -> None: ...

class TopicModes(_message.Message):
    __slots__ = ("topics", "more")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicMode]
    more: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicMode, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class TopicMode(_message.Message):
    __slots__ = ("topic", "topic_id", "phase", "mode_offset", "since", "published", "waiting", "last")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MARKERS: _ClassVar[TopicMode.Mode]
        METADATA: _ClassVar[TopicMode.Mode]
    MARKERS: TopicMode.Mode
    METADATA: TopicMode.Mode
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        IN_MARKERS: _ClassVar[TopicMode.Phase]
        TO_METADATA: _ClassVar[TopicMode.Phase]
        IN_METADATA: _ClassVar[TopicMode.Phase]
        TO_MARKERS: _ClassVar[TopicMode.Phase]
    IN_MARKERS: TopicMode.Phase
    TO_METADATA: TopicMode.Phase
    IN_METADATA: TopicMode.Phase
    TO_MARKERS: TopicMode.Phase
    class SinceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class LastEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MODE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: str
    phase: TopicMode.Phase
    mode_offset: int
    since: _containers.ScalarMap[int, int]
    published: bool
    waiting: int
    last: _containers.ScalarMap[int, int]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[str] = ..., phase: _Optional[_Union[TopicMode.Phase, str]] = ..., mode_offset: _Optional[int] = ..., since: _Optional[_Mapping[int, int]] = ..., published: _Optional[bool] = ..., waiting: _Optional[int] = ..., last: _Optional[_Mapping[int, int]] = ...) -> None: ...

class KeyInfo(_message.Message):
    __slots__ = ("name", "epoch", "connected_ms", "age_ms", "transactions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_MS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    connected_ms: int
    age_ms: int
    transactions: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., connected_ms: _Optional[int] = ..., age_ms: _Optional[int] = ..., transactions: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Partitions(_message.Message):
    __slots__ = ("topic", "partitions", "first_offsets", "claims")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    first_offsets: _containers.RepeatedScalarFieldContainer[int]
    claims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., first_offsets: _Optional[_Iterable[int]] = ..., claims: _Optional[_Iterable[int]] = ...) -> None: ...

class Writes(_message.Message):
    __slots__ = ("topic", "partitions", "range_counts", "branches", "first_offsets", "last_offsets", "counts")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RANGE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    range_counts: _containers.RepeatedScalarFieldContainer[int]
    branches: _containers.RepeatedScalarFieldContainer[int]
    first_offsets: _containers.RepeatedScalarFieldContainer[int]
    last_offsets: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., range_counts: _Optional[_Iterable[int]] = ..., branches: _Optional[_Iterable[int]] = ..., first_offsets: _Optional[_Iterable[int]] = ..., last_offsets: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("topic", "partition", "o1", "o2", "o3", "met", "delivered", "topic_id", "passed")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    O1_FIELD_NUMBER: _ClassVar[int]
    O2_FIELD_NUMBER: _ClassVar[int]
    O3_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    o1: int
    o2: int
    o3: int
    met: _containers.RepeatedCompositeFieldContainer[Sequence]
    delivered: _containers.RepeatedCompositeFieldContainer[Sequence]
    topic_id: str
    passed: Passed
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., o1: _Optional[int] = ..., o2: _Optional[int] = ..., o3: _Optional[int] = ..., met: _Optional[_Iterable[_Union[Sequence, _Mapping]]] = ..., delivered: _Optional[_Iterable[_Union[Sequence, _Mapping]]] = ..., topic_id: _Optional[str] = ..., passed: _Optional[_Union[Passed, _Mapping]] = ...) -> None: ...

class Passed(_message.Message):
    __slots__ = ("partition", "incarnation", "sequence", "taken")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    partition: int
    incarnation: int
    sequence: int
    taken: int
    def __init__(self, partition: _Optional[int] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., taken: _Optional[int] = ...) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("partition", "incarnation", "sequence")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    incarnation: int
    sequence: int
    def __init__(self, partition: _Optional[int] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class OffsetStep(_message.Message):
    __slots__ = ("to", "claim")
    class Place(_message.Message):
        __slots__ = ("o2", "o3", "passed")
        O2_FIELD_NUMBER: _ClassVar[int]
        O3_FIELD_NUMBER: _ClassVar[int]
        PASSED_FIELD_NUMBER: _ClassVar[int]
        o2: int
        o3: int
        passed: Passed
        def __init__(self, o2: _Optional[int] = ..., o3: _Optional[int] = ..., passed: _Optional[_Union[Passed, _Mapping]] = ...) -> None: ...
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    to: Position
    claim: int
    def __init__(self, to: _Optional[_Union[Position, _Mapping]] = ..., claim: _Optional[int] = ..., **kwargs) -> None: ...

class MessageId(_message.Message):
    __slots__ = ("offset", "sequence", "nth")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NTH_FIELD_NUMBER: _ClassVar[int]
    offset: int
    sequence: int
    nth: int
    def __init__(self, offset: _Optional[int] = ..., sequence: _Optional[int] = ..., nth: _Optional[int] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("lo", "hi")
    LO_FIELD_NUMBER: _ClassVar[int]
    HI_FIELD_NUMBER: _ClassVar[int]
    lo: MessageId
    hi: MessageId
    def __init__(self, lo: _Optional[_Union[MessageId, _Mapping]] = ..., hi: _Optional[_Union[MessageId, _Mapping]] = ...) -> None: ...

class Acks(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "spans")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: str
    partition: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[str] = ..., partition: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("number", "topic", "topic_id", "partition", "span", "delivery_count", "left_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    topic: str
    topic_id: str
    partition: int
    span: Span
    delivery_count: int
    left_ms: int
    def __init__(self, number: _Optional[int] = ..., topic: _Optional[str] = ..., topic_id: _Optional[str] = ..., partition: _Optional[int] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., delivery_count: _Optional[int] = ..., left_ms: _Optional[int] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("group", "consumer", "kind", "topics", "starts", "held", "ack_timeout_ms", "version", "partition", "partition_count", "era")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SHARED: _ClassVar[Attach.Kind]
        FAILOVER: _ClassVar[Attach.Kind]
    SHARED: Attach.Kind
    FAILOVER: Attach.Kind
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ACK_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERA_FIELD_NUMBER: _ClassVar[int]
    group: str
    consumer: int
    kind: Attach.Kind
    topics: _containers.RepeatedScalarFieldContainer[str]
    starts: _containers.RepeatedCompositeFieldContainer[Partitions]
    held: _containers.RepeatedCompositeFieldContainer[Acks]
    ack_timeout_ms: int
    version: int
    partition: int
    partition_count: int
    era: int
    def __init__(self, group: _Optional[str] = ..., consumer: _Optional[int] = ..., kind: _Optional[_Union[Attach.Kind, str]] = ..., topics: _Optional[_Iterable[str]] = ..., starts: _Optional[_Iterable[_Union[Partitions, _Mapping]]] = ..., held: _Optional[_Iterable[_Union[Acks, _Mapping]]] = ..., ack_timeout_ms: _Optional[int] = ..., version: _Optional[int] = ..., partition: _Optional[int] = ..., partition_count: _Optional[int] = ..., era: _Optional[int] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("leases", "era", "leases_ahead")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    ERA_FIELD_NUMBER: _ClassVar[int]
    LEASES_AHEAD_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    era: int
    leases_ahead: bool
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., era: _Optional[int] = ..., leases_ahead: _Optional[bool] = ...) -> None: ...

class Acquire(_message.Message):
    __slots__ = ("group", "consumer", "max_offsets", "at_ends", "delivery_limit", "max_new_offsets", "ahead")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    AT_ENDS_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    group: str
    consumer: int
    max_offsets: int
    at_ends: bool
    delivery_limit: int
    max_new_offsets: int
    ahead: bool
    def __init__(self, group: _Optional[str] = ..., consumer: _Optional[int] = ..., max_offsets: _Optional[int] = ..., at_ends: _Optional[bool] = ..., delivery_limit: _Optional[int] = ..., max_new_offsets: _Optional[int] = ..., ahead: _Optional[bool] = ...) -> None: ...

class Leases(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class Acknowledge(_message.Message):
    __slots__ = ("group", "consumer", "type", "acks", "delay_ms", "unseen", "era")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACCEPT: _ClassVar[Acknowledge.Type]
        REJECT: _ClassVar[Acknowledge.Type]
        RELEASE: _ClassVar[Acknowledge.Type]
        RENEW: _ClassVar[Acknowledge.Type]
    ACCEPT: Acknowledge.Type
    REJECT: Acknowledge.Type
    RELEASE: Acknowledge.Type
    RENEW: Acknowledge.Type
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    ERA_FIELD_NUMBER: _ClassVar[int]
    group: str
    consumer: int
    type: Acknowledge.Type
    acks: _containers.RepeatedCompositeFieldContainer[Acks]
    delay_ms: int
    unseen: bool
    era: int
    def __init__(self, group: _Optional[str] = ..., consumer: _Optional[int] = ..., type: _Optional[_Union[Acknowledge.Type, str]] = ..., acks: _Optional[_Iterable[_Union[Acks, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., unseen: _Optional[bool] = ..., era: _Optional[int] = ...) -> None: ...

class AckResults(_message.Message):
    __slots__ = ("refused",)
    class Result(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DONE: _ClassVar[AckResults.Result]
        PENDING: _ClassVar[AckResults.Result]
        DELETED: _ClassVar[AckResults.Result]
        LOST: _ClassVar[AckResults.Result]
    DONE: AckResults.Result
    PENDING: AckResults.Result
    DELETED: AckResults.Result
    LOST: AckResults.Result
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[Refused]
    def __init__(self, refused: _Optional[_Iterable[_Union[Refused, _Mapping]]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("result", "acks")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    result: AckResults.Result
    acks: Acks
    def __init__(self, result: _Optional[_Union[AckResults.Result, str]] = ..., acks: _Optional[_Union[Acks, _Mapping]] = ...) -> None: ...

class AddAcks(_message.Message):
    __slots__ = ("txid", "group", "acks", "delay_ms", "era")
    TXID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    ERA_FIELD_NUMBER: _ClassVar[int]
    txid: bytes
    group: str
    acks: _containers.RepeatedCompositeFieldContainer[Acks]
    delay_ms: int
    era: int
    def __init__(self, txid: _Optional[bytes] = ..., group: _Optional[str] = ..., acks: _Optional[_Iterable[_Union[Acks, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., era: _Optional[int] = ...) -> None: ...

class ResetSubscription(_message.Message):
    __slots__ = ("group", "era", "starts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ERA_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    era: int
    starts: _containers.RepeatedCompositeFieldContainer[SubscriptionStart]
    def __init__(self, group: _Optional[str] = ..., era: _Optional[int] = ..., starts: _Optional[_Iterable[_Union[SubscriptionStart, _Mapping]]] = ...) -> None: ...

class SubscriptionStart(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: str
    partition: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class DeleteSubscription(_message.Message):
    __slots__ = ("group", "era")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ERA_FIELD_NUMBER: _ClassVar[int]
    group: str
    era: int
    def __init__(self, group: _Optional[str] = ..., era: _Optional[int] = ...) -> None: ...

class DescribeSubscriptions(_message.Message):
    __slots__ = ("groups", "after", "available_max")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_MAX_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    after: str
    available_max: int
    def __init__(self, groups: _Optional[_Iterable[str]] = ..., after: _Optional[str] = ..., available_max: _Optional[int] = ...) -> None: ...

class Subscriptions(_message.Message):
    __slots__ = ("subscriptions", "more")
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionInfo]
    more: bool
    def __init__(self, subscriptions: _Optional[_Iterable[_Union[SubscriptionInfo, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class SubscriptionInfo(_message.Message):
    __slots__ = ("group", "kind", "consumers", "partitions", "redelivered", "rejected", "era")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    ERA_FIELD_NUMBER: _ClassVar[int]
    group: str
    kind: Attach.Kind
    consumers: _containers.RepeatedCompositeFieldContainer[AttachedConsumer]
    partitions: _containers.RepeatedCompositeFieldContainer[SubscribedPartition]
    redelivered: int
    rejected: int
    era: int
    def __init__(self, group: _Optional[str] = ..., kind: _Optional[_Union[Attach.Kind, str]] = ..., consumers: _Optional[_Iterable[_Union[AttachedConsumer, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[SubscribedPartition, _Mapping]]] = ..., redelivered: _Optional[int] = ..., rejected: _Optional[int] = ..., era: _Optional[int] = ...) -> None: ...

class AttachedConsumer(_message.Message):
    __slots__ = ("consumer", "topics", "leased", "gone")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    consumer: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    leased: int
    gone: bool
    def __init__(self, consumer: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., leased: _Optional[int] = ..., gone: _Optional[bool] = ...) -> None: ...

class SubscribedPartition(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "start", "reached", "left", "pending", "leased", "txids", "former", "available")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    TXIDS_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: str
    partition: int
    start: MessageId
    reached: MessageId
    left: int
    pending: int
    leased: int
    txids: _containers.RepeatedScalarFieldContainer[bytes]
    former: bool
    available: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[str] = ..., partition: _Optional[int] = ..., start: _Optional[_Union[MessageId, _Mapping]] = ..., reached: _Optional[_Union[MessageId, _Mapping]] = ..., left: _Optional[int] = ..., pending: _Optional[int] = ..., leased: _Optional[int] = ..., txids: _Optional[_Iterable[bytes]] = ..., former: _Optional[bool] = ..., available: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...
