from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Open(_message.Message):
    __slots__ = ("session", "calls", "metadata", "peers")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    session: OpenSession
    calls: OpenCalls
    metadata: OpenMetadata
    peers: OpenPeers
    def __init__(self, session: _Optional[_Union[OpenSession, _Mapping]] = ..., calls: _Optional[_Union[OpenCalls, _Mapping]] = ..., metadata: _Optional[_Union[OpenMetadata, _Mapping]] = ..., peers: _Optional[_Union[OpenPeers, _Mapping]] = ...) -> None: ...

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
