"""A producer's stream, frame by frame, for behaviour that no honest client has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from logtx.coordinator.client.connection import Calls
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol.open_pb2 import Open, OpenSession
from logtx.coordinator.protocol.replies import decode_reply
from logtx.coordinator.protocol.requests import encode_request
from logtx.journal.errors import LogtxError, RequestTimedOutError

from .transport.served import PATIENT, Client

TIMEOUT_S = 15.0


class Frames:
    """The messages of one session, as a test wants them."""

    def __init__(self, address: str) -> None:
        self._client = Client(address)
        self._client.send(Open(session=OpenSession()).SerializeToString())

    def send(self, frame: pb.ClientFrame) -> None:
        """Queues a message behind the earlier ones; it goes when there is room."""
        self._client.send(frame.SerializeToString())

    @property
    def waiting(self) -> int:
        """Returns how many messages there was no room for yet."""
        return len(self._client.queue)

    def receive(self) -> pb.ServerFrame | None:
        """Returns the next message; None if the coordinator ended the session."""
        try:
            return pb.ServerFrame.FromString(self._client.receive())
        except RequestTimedOutError:
            raise
        except LogtxError:
            return None

    def close(self) -> None:
        """Ends the connection."""
        self._client.connection.close()


@contextmanager
def calls_to(address: str) -> Iterator[Calls]:
    """Yields what asks a coordinator without a session."""
    calls = Calls(address, deadlines=PATIENT)
    try:
        yield calls
    finally:
        calls.close()


class RawStream:
    """One stream to a coordinator; closed at the end of a `with` block."""

    def __init__(self, address: str, partition: int) -> None:
        self.partition = partition
        self._frames = Frames(address)
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
        self._frames.send(pb.ClientFrame(requests=requests))

    def receive(self) -> tuple[int, commands.Reply] | None:
        """Returns the next reply with its request id; None if the coordinator ended the stream."""
        while not self._replies:
            frame = self._frames.receive()
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
        self._frames.close()

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
