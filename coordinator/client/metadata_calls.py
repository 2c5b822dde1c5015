"""Questions to the metadata store of one coordinator, and gRPC's way to ask them.

`framed_metadata` asks them over frames. Both say the same, and fail by the same errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import grpc

from ...journal.errors import (
    CoordinatorNotAvailableError,
    MetadataNotServedError,
    RequestTimedOutError,
)
from ..protocol import metadata_pb2 as pb
from ..protocol import metadata_pb2_grpc as pb_grpc
from .connection import open_channel

OLDER: Final = "this coordinator is of an older version, without a metadata store"


class Pages(Protocol):
    """The pages of an answer, as they come.

    Raises, while it is read:
        CoordinatorNotAvailableError: the coordinator is gone.
        RequestTimedOutError: the next page did not come in time.
        MetadataNotServedError: the coordinator is of an older version.
    """

    def __iter__(self) -> Pages: ...
    def __next__(self) -> pb.MetadataPage: ...
    def close(self) -> None:
        """Ends the answer, if it has not ended."""


class MetadataCalls(Protocol):
    """The store of one coordinator. Thread-safe. Calls raise what `Pages` does."""

    def query(self, question: pb.MetadataQuery, timeout_s: float) -> Pages:
        """Asks what is there."""

    def watch(self, question: pb.MetadataQuery) -> Pages:
        """Begins to ask what is there and what changes, from now on."""

    def horizon(self, request: pb.HorizonRequest, timeout_s: float) -> pb.HorizonReply:
        """Asks up to where a data partition is settled."""

    def status(self, timeout_s: float) -> pb.StatusReply:
        """Asks how far the store has the journal."""

    def close(self) -> None:
        """Ends all answers, and the connections."""


class GrpcMetadata:
    """`MetadataCalls` over gRPC."""

    def __init__(self, address: str) -> None:
        """Connects when it is first used.

        Raises:
            ForkedError: the process that forked this one uses gRPC.
        """
        self._channel = open_channel(address)
        self._stub: Any = pb_grpc.MetadataStub(self._channel)  # type: ignore[no-untyped-call]

    def query(self, question: pb.MetadataQuery, timeout_s: float) -> Pages:
        """Asks what is there."""
        return _GrpcPages(_told(lambda: self._stub.Query(question, timeout=timeout_s)))

    def watch(self, question: pb.MetadataQuery) -> Pages:
        """Begins to ask what is there and what changes, from now on."""
        return _GrpcPages(_told(lambda: self._stub.Watch(question)))

    def horizon(self, request: pb.HorizonRequest, timeout_s: float) -> pb.HorizonReply:
        """Asks up to where a data partition is settled."""
        found: pb.HorizonReply = _told(lambda: self._stub.GetHorizon(request, timeout=timeout_s))
        return found

    def status(self, timeout_s: float) -> pb.StatusReply:
        """Asks how far the store has the journal."""
        ask = self._stub.GetStatus
        found: pb.StatusReply = _told(lambda: ask(pb.StatusRequest(), timeout=timeout_s))
        return found

    def close(self) -> None:
        """Ends all answers, and the connection."""
        self._channel.close()


class _GrpcPages:
    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> _GrpcPages:
        return self

    def __next__(self) -> pb.MetadataPage:
        page: pb.MetadataPage = _told(lambda: next(self._call))
        return page

    def close(self) -> None:
        self._call.cancel()


def _told(call: Callable[[], Any]) -> Any:
    """Returns what a call of gRPC does, which raises errors of logtx."""
    try:
        return call()
    except (grpc.RpcError, ValueError) as error:  # A ValueError is of a channel that was closed.
        code = getattr(error, "code", lambda: None)()
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise MetadataNotServedError(OLDER) from error
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise RequestTimedOutError("the coordinator did not answer in time") from error
        details = getattr(error, "details", None)
        text = details() if details is not None else error
        raise CoordinatorNotAvailableError(f"the coordinator can't be reached: {text}") from error
