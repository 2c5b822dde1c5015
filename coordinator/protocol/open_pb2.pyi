from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Open(_message.Message):
    __slots__ = ("session", "calls", "metadata", "peers", "streams")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    session: OpenSession
    calls: OpenCalls
    metadata: OpenMetadata
    peers: OpenPeers
    streams: OpenStreams
    def __init__(self, session: _Optional[_Union[OpenSession, _Mapping]] = ..., calls: _Optional[_Union[OpenCalls, _Mapping]] = ..., metadata: _Optional[_Union[OpenMetadata, _Mapping]] = ..., peers: _Optional[_Union[OpenPeers, _Mapping]] = ..., streams: _Optional[_Union[OpenStreams, _Mapping]] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenCalls(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenMetadata(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenPeers(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenStreams(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Parts(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("stream", "message", "room", "end")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stream: int
    message: bytes
    room: int
    end: StreamEnd
    def __init__(self, stream: _Optional[int] = ..., message: _Optional[bytes] = ..., room: _Optional[int] = ..., end: _Optional[_Union[StreamEnd, _Mapping]] = ...) -> None: ...

class StreamEnd(_message.Message):
    __slots__ = ("code", "text")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: int
    text: str
    def __init__(self, code: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...
