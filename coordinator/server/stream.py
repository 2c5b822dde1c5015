"""One stream of a client: its replies on their way out, and the window of its requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, Self

from ...journal.errors import LogtxError, NotAttachedError, NotSupportedError
from ...journal.state import State
from ...journal.value import value
from ..protocol import commands
from ..protocol import coordinator_pb2 as pb
from ..protocol.replies import encode_decided, encode_reply
from ..runtime.counters import CoordinatorCounters
from ..runtime.serving import Answer
from .window import Window

PIPELINED_MAX: Final = 4_096
"""Requests under way in one stream, in addition to commits that wait. More take more memory; with
fewer a client with many requests in flight is slowed down."""
FRAME_MAX: Final = 256
"""Most replies in one stream message."""
FRAME_MAX_BYTES: Final = 1024 * 1024
"""A message of this size takes no further reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """How much of clients' work may be under way."""

    requests_max: int
    """Most unanswered requests of one stream."""
    requests_max_bytes: int = 64 * 1024 * 1024
    """Most bytes of these requests, including the room reserved for the answers."""
    calls_max: int = 1_000
    """Most calls of all clients at one time."""
    listings_max: int = 4
    """Most calls among them that are answered with lists at one time; further ones wait."""

    @classmethod
    def for_open_transactions(cls, per_producer: int) -> Self:
        """Returns limits for producers with `per_producer` open transactions each.

        Each transaction can have a commit that waits for another one's commit. That other commit
        must still be read.
        """
        return cls(requests_max=per_producer + PIPELINED_MAX)


@value(frozen=True, slots=True)
class _Out:
    """A reply, or a decision that was not asked for, on its way out."""

    reply: pb.Reply | pb.Decided
    size: int
    """Bytes that its request occupies in the window; -1: it answers no request."""


@dataclass(slots=True, eq=False)
class Stream:
    """The stream of a producer, or of a queue's consumer, and its replies on their way out."""

    partition: int
    out: Replies
    session: commands.SessionId | None = None
    """The producer's session."""
    consumer: tuple[str, int] | None = None
    """The consumer: its subscription, and its number."""
    answers: set[Answer] = field(default_factory=set)
    over: bool = False
    """Whether no request of it may be decided any more: the client repeats them elsewhere."""

    def check(self, command: commands.Command) -> None:
        """Refuses what does not belong on this stream.

        Raises:
            NotSupportedError: the stream is connected already, or is of another kind.
            NotAttachedError: the command is of another consumer.
        """
        match command:
            case commands.Connect():
                raise NotSupportedError("this stream is connected already")
            case commands.Attach() | commands.Acquire() | commands.Acknowledge():
                if self.consumer is None:
                    raise NotSupportedError("a producer's stream: a consumer attaches by its own")
                if (command.group, command.consumer) != self.consumer:
                    raise NotAttachedError("another consumer attached by this stream")
            case _ if self.session is None:
                raise NotSupportedError("a consumer's stream: a producer connects by its own")

    def end(self, error: LogtxError) -> None:
        """Tells the client why, and ends the stream."""
        self.over = True
        self.out.tell(encode_reply(0, error))
        self.out.end()


@dataclass(slots=True, eq=False)
class Answering:
    """Answers one request.

    This is an object because a closure would have to refer to itself. Only the garbage collector
    frees such circles, and its pauses stall every client.
    """

    stream: Stream
    request_id: int
    size: int
    came_s: float
    counters: CoordinatorCounters
    ends: bool = False
    """Whether the request is to end a transaction."""

    def __call__(self, reply: commands.Reply) -> None:
        if isinstance(reply, commands.Outcome) and reply.state is State.COMMITTING:
            self.counters.commit_latency.observe(time.monotonic() - self.came_s)
        self.counters.answered(reply)
        if self.ends:
            self.counters.ended(reply)
        self.stream.answers.discard(self)
        self.stream.out.answer(encode_reply(self.request_id, reply), self.size)


class Replies:
    """The replies of one stream on their way out, and the window of its requests."""

    def __init__(self, limits: StreamLimits) -> None:
        self.window = Window(limits.requests_max, limits.requests_max_bytes)
        self._queue: asyncio.Queue[_Out | None] = asyncio.Queue()

    def answer(self, reply: pb.Reply, size: int) -> None:
        """Queues the answer to a request that occupies `size` bytes."""
        self._queue.put_nowait(_Out(reply, size))

    def tell(self, reply: pb.Reply) -> None:
        """Queues a reply that answers no request in the window."""
        self._queue.put_nowait(_Out(reply, -1))

    def decided(self, decided: commands.Decided) -> None:
        """Queues a decision that was not asked for."""
        self._queue.put_nowait(_Out(encode_decided(decided), -1))

    def end(self) -> None:
        """Ends `frames` behind what is queued."""
        self._queue.put_nowait(None)

    async def frames(self) -> AsyncIterator[pb.ServerFrame]:
        """Yields the messages to send, as fast as the client takes them."""
        while (out := await self._queue.get()) is not None:
            batch, size = [out], out.reply.ByteSize()
            ended = False
            while len(batch) < FRAME_MAX and size < FRAME_MAX_BYTES and not self._queue.empty():
                more = self._queue.get_nowait()
                if more is None:
                    ended = True
                    break
                batch.append(more)
                size += more.reply.ByteSize()
            yield pb.ServerFrame(
                replies=[b.reply for b in batch if type(b.reply) is pb.Reply],
                decided=[b.reply for b in batch if type(b.reply) is pb.Decided],
            )
            for sent in batch:
                if sent.size >= 0:
                    self.window.leave(sent.size)
            if ended:
                return
