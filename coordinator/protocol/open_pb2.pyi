from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Open(_message.Message):
    __slots__ = ("session", "calls")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    session: OpenSession
    calls: OpenCalls
    def __init__(self, session: _Optional[_Union[OpenSession, _Mapping]] = ..., calls: _Optional[_Union[OpenCalls, _Mapping]] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenCalls(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
