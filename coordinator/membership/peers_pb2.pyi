from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerFrame(_message.Message):
    __slots__ = ("news", "take_over", "taken_over", "id")
    NEWS_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    TAKEN_OVER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    news: News
    take_over: TakeOverRequest
    taken_over: TakeOverReply
    id: int
    def __init__(self, news: _Optional[_Union[News, _Mapping]] = ..., take_over: _Optional[_Union[TakeOverRequest, _Mapping]] = ..., taken_over: _Optional[_Union[TakeOverReply, _Mapping]] = ..., id: _Optional[int] = ...) -> None: ...

class News(_message.Message):
    __slots__ = ("process_nonce", "address", "journal_id", "leaving", "owned", "following", "peers", "ends", "journal_format", "topics")
    PROCESS_NONCE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FORMAT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    process_nonce: int
    address: str
    journal_id: str
    leaving: bool
    owned: _containers.RepeatedCompositeFieldContainer[Owned]
    following: _containers.RepeatedScalarFieldContainer[int]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    ends: _containers.RepeatedCompositeFieldContainer[Seen]
    journal_format: int
    topics: _containers.RepeatedCompositeFieldContainer[Named]
    def __init__(self, process_nonce: _Optional[int] = ..., address: _Optional[str] = ..., journal_id: _Optional[str] = ..., leaving: _Optional[bool] = ..., owned: _Optional[_Iterable[_Union[Owned, _Mapping]]] = ..., following: _Optional[_Iterable[int]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., ends: _Optional[_Iterable[_Union[Seen, _Mapping]]] = ..., journal_format: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[Named, _Mapping]]] = ...) -> None: ...

class Named(_message.Message):
    __slots__ = ("topic", "ids")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    ids: _containers.RepeatedCompositeFieldContainer[HadName]
    def __init__(self, topic: _Optional[str] = ..., ids: _Optional[_Iterable[_Union[HadName, _Mapping]]] = ...) -> None: ...

class HadName(_message.Message):
    __slots__ = ("topic_id", "age_ms")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    topic_id: str
    age_ms: int
    def __init__(self, topic_id: _Optional[str] = ..., age_ms: _Optional[int] = ...) -> None: ...

class Seen(_message.Message):
    __slots__ = ("partition", "end")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    partition: int
    end: int
    def __init__(self, partition: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Owned(_message.Message):
    __slots__ = ("partition", "epoch")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    partition: int
    epoch: int
    def __init__(self, partition: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("process_nonce", "address")
    PROCESS_NONCE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    process_nonce: int
    address: str
    def __init__(self, process_nonce: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class TakeOverRequest(_message.Message):
    __slots__ = ("partition", "epoch", "end", "process_nonce")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PROCESS_NONCE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    epoch: int
    end: int
    process_nonce: int
    def __init__(self, partition: _Optional[int] = ..., epoch: _Optional[int] = ..., end: _Optional[int] = ..., process_nonce: _Optional[int] = ...) -> None: ...

class TakeOverReply(_message.Message):
    __slots__ = ("served", "reason")
    SERVED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    served: bool
    reason: str
    def __init__(self, served: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...
