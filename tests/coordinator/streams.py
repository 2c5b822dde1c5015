"""A producer's stream, frame by frame, for behaviour that no honest client has."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import grpc

from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol import coordinator_pb2_grpc as pb_grpc
from logtx.coordinator.protocol.replies import decode_reply
from logtx.coordinator.protocol.requests import encode_request

TIMEOUT_S = 15.0


class RawStream:
    """One stream to a coordinator; closed at the end of a `with` block."""

    def __init__(self, address: str, partition: int) -> None:
        self.partition = partition
        self._out: queue.SimpleQueue[pb.ClientFrame | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        stub = pb_grpc.CoordinatorStub(self._channel)  # type: ignore[no-untyped-call]
        frames: Iterator[pb.ClientFrame] = iter(self._out.get, None)
        self._stream = stub.Session(frames, timeout=TIMEOUT_S)
        self._replies: list[pb.Reply] = []
        self._next_id = 1

    def send(self, *commands: commands.Command, first_id: int | None = None) -> None:
        """Sends commands in one frame, with the next request ids, or from `first_id` on."""
        ids = first_id if first_id is not None else self._next_id
        requests = [encode_request(i, command) for i, command in enumerate(commands, ids)]
        for request in requests:
            if request.HasField("connect"):
                request.connect.partition = self.partition
            if request.HasField("attach"):
                request.attach.partition = self.partition
        self._next_id = ids + len(commands)
        self._out.put(pb.ClientFrame(requests=requests))

    def receive(self) -> tuple[int, commands.Reply] | None:
        """Returns the next reply with its request id; None if the coordinator ended the stream."""
        while not self._replies:
            frame = next(self._stream, None)
            if frame is None:
                return None
            self._replies.extend(frame.replies)
        wire = self._replies.pop(0)
        return wire.request_id, decode_reply(wire)

    def ask(self, command: commands.Command) -> commands.Reply:
        """Sends a command and returns the next reply, which must belong to it."""
        self.send(command)
        answer = self.receive()
        assert answer is not None, "the coordinator ended the stream"
        assert answer[0] == self._next_id - 1, answer
        return answer[1]

    def close(self) -> None:
        """Breaks the connection."""
        self._out.put(None)
        self._stream.cancel()
        self._channel.close()

    def __enter__(self) -> Self:
        """Begins a block that closes the stream at its end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def connect(
    stream: RawStream, producer_id: str, nonce: int, generation: int | None = None
) -> tuple[commands.SessionId, commands.Reply]:
    """Connects; returns the session that commands name, and the reply."""
    reply = stream.ask(
        commands.Connect(producer_id=producer_id, nonce=nonce, generation=generation)
    )
    given = reply.generation if isinstance(reply, commands.Connected) else -1
    return commands.SessionId(producer_id, given, nonce), reply


def begin(stream: RawStream, session: commands.SessionId, request_id: int) -> Any:
    """Opens a transaction; returns its TxId."""
    stream.send(
        commands.Begin(
            session=session, request_id=request_id, answered_below=request_id, timeout_ms=60_000
        ),
        first_id=request_id,
    )
    answer = stream.receive()
    assert answer is not None
    assert isinstance(answer[1], commands.Began), answer
    return answer[1].txid
