"""Serves the clients of a coordinator: producers' streams, and single calls.

Everything that a client can make grow here has a bound. A stream is read only while its requests
without an answer that the network has taken stay below a limit (`window`), and while the journal
keeps up (`pressure`). So the transport slows a client that floods, and one that does not read its
answers. Calls have no stream that could slow them; beyond a limit they are refused.

Source: Transactional Messaging in Kafka, "Transaction coordinator".
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

from ...journal.control import TopicPartition
from ...journal.errors import (
    ConfigError,
    CoordinatorBusyError,
    CoordinatorLoadingError,
    JournalTopicError,
    LogtxError,
    NotAllowedError,
    NotCoordinatorError,
    NotSupportedError,
    RetriableError,
    SessionClosedError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from ...journal.keys import is_key_name
from ...journal.modes import is_topic_binding
from ...journal.reader import JOURNAL_TOPIC, OFFSETS_TOPIC, journal_partition_of
from ...journal.sidecar import main_partition
from ..protocol import commands
from ..protocol import coordinator_pb2 as pb
from ..protocol.fields import ATTACH_VERSION, PROTOCOL_VERSION
from ..protocol.queues import OPERATOR, AcknowledgeType
from ..protocol.replies import encode_reply
from ..protocol.requests import decode_request
from ..runtime.alarm import monotonic_ms
from ..runtime.counters import CoordinatorCounters
from ..runtime.partition import PartitionRuntime, Role
from ..runtime.topics import TopicLookUps
from .bindings import GroupBindings
from .consumers import Consumers
from .rules import TopicRules
from .sidecars import Sidecars
from .stream import Answering, Replies, Stream, StreamLimits
from .switching import Switching

FIRST_LOAD_S: Final = 10.0
"""How long a new coordinator refuses its clients while one of its partitions is still loading: a
partition without a leader delays the others this long."""
CONNECT_TIMEOUT_S: Final = 10.0
"""How long a new stream may stay silent; past it the stream is ended."""
MARKERS_WAITING_MAX: Final = 20_000
"""Markers that may wait for one data partition before new work there is refused: without a limit a
partition that refuses its markers would gather all that is committed there. Aborts still add to
them, at most as many as transactions may be open."""
PLACES_WAITING_MAX: Final = MARKERS_WAITING_MAX
"""Decided transactions that may wait for their place in one data partition before new work there is
refused, for the same reason."""
OFFSETS_WAITING_MAX: Final = 20_000
"""Commits of one consumer group that may wait for their offsets to be written before further ones
are refused; bounds memory."""
SMALL_ANSWER_BYTES: Final = 256
"""Room reserved in the window for an ordinary answer."""
LARGE_ANSWER_BYTES: Final = 1024 * 1024
"""Room reserved in the window for the answer to a question about many things."""


class Streams:
    """Serves producers and consumers; lives on the coordinator's event loop."""

    def __init__(
        self,
        runtimes: Mapping[int, PartitionRuntime],
        topics: TopicLookUps,
        bindings: GroupBindings,
        switching: Switching,
        rules: TopicRules,
        sidecars: Sidecars,
        consumers: Consumers,
        limits: StreamLimits,
        counters: CoordinatorCounters,
    ) -> None:
        """Does nothing before the server runs.

        Args:
            runtimes: journal partition → its runtime; may be filled until the server starts.
            topics: looks up data topics.
            bindings: bindings of consumer groups.
            switching: checks switches of topics.
            rules: writes rules for topics that are created later.
            sidecars: opens sidecars of topics.
            consumers: knows the consumers of queues that are attached.
            limits: how much of clients' work may be under way.
            counters: counters for the metrics.
        """
        self._runtimes = runtimes
        self._topics = topics
        self._bindings = bindings
        self._switching = switching
        self._rules = rules
        self._sidecars = sidecars
        self._consumers = consumers
        self._limits = limits
        self._counters = counters
        self._all_loaded = False
        self._first_asked_s = 0.0
        self._calls = 0
        self._listings = asyncio.Semaphore(self._limits.listings_max)
        self._streams: dict[tuple[int, str, int], Stream] = {}

    async def call(self, request: pb.CallRequest) -> pb.Reply:
        """Answers one request that needs no session.

        It may be cancelled. Then what the shard has decided takes effect, and what was only kept or
        waits there does not.
        """
        request_id = request.request.request_id
        reply: commands.Reply
        ends = request.request.WhichOneof("command") == "abort_transaction"
        try:
            async with self._counted_call(request.request):
                self._check_count(request.partition_count)
                runtime = self._runtime(request.partition)
                command = decode_request(request.request, None)
                if isinstance(command, commands.Connect):
                    raise NotSupportedError("a producer connects by a stream (Session)")
                if _is_of_attached(command):
                    raise NotSupportedError("a queue's consumer attaches by a stream (Session)")
                doubt = await self._prepare(command, runtime)
                await runtime.room()
                if isinstance(command, commands.SetTopicRule):
                    reply = await self._rules.set(command)
                elif isinstance(command, commands.OpenSidecars):
                    reply = await self._sidecars.open(command)
                elif isinstance(
                    command,
                    commands.ListTransactions
                    | commands.ListKeys
                    | commands.GetKey
                    | commands.DescribeTopics
                    | commands.DescribeSidecars
                    | commands.DescribeSubscriptions,
                ):
                    async with self._listings:
                        reply = await _decided(runtime, command, doubt)
                else:
                    reply = await _decided(runtime, command, doubt)
        except (LogtxError, ValueError) as error:
            reply = _as_logtx(error)
        self._counters.answered(reply)
        if ends:
            self._counters.ended(reply)
        return encode_reply(request_id, reply)

    @asynccontextmanager
    async def _counted_call(self, request: pb.Request) -> AsyncIterator[None]:
        is_bind = request.WhichOneof("command") == "bind_group"
        if is_bind and not request.bind_group.HasField("transaction_group"):
            # Claims hold their place while their groups' bindings are asked for, here or elsewhere.
            # If these questions needed a place too, claims would wait for each other.
            yield
            return
        if self._calls >= self._limits.calls_max:
            raise CoordinatorBusyError(f"{self._calls} calls are under way, as many as allowed")
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    async def session(
        self, incoming: AsyncIterator[pb.ClientFrame]
    ) -> AsyncIterator[pb.ServerFrame]:
        """Serves the stream of one producer, or of one consumer of a queue."""
        out = Replies(self._limits)
        reader = asyncio.create_task(self._read(incoming, out))
        try:
            async for frame in out.frames():
                yield frame
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader

    async def _read(self, frames: AsyncIterator[pb.ClientFrame], out: Replies) -> None:
        stream: Stream | None = None
        try:
            stream, requests = await self._begin_stream(aiter(frames), out)
            while stream is not None and requests is not None:
                for request in requests:
                    await self._serve(stream, request)
                requests = await _next_requests(aiter(frames))
        finally:
            if stream is not None:
                self._disconnected(stream)
            out.end()

    async def _begin_stream(
        self, frames: AsyncIterator[pb.ClientFrame], out: Replies
    ) -> tuple[Stream | None, Sequence[pb.Request] | None]:
        """Waits for Connect, or Attach. Returns the stream, and what it still has to serve."""
        requests: Sequence[pb.Request] | None = ()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                while requests is not None and not requests:
                    requests = await _next_requests(frames)
        except TimeoutError:
            self._counters.connections_refused["silent"] += 1
            silent = SessionClosedError(f"no Connect came within {CONNECT_TIMEOUT_S:.0f} s")
            out.tell(encode_reply(0, silent))
            return None, None
        if requests is None:
            return None, None
        if requests[0].WhichOneof("command") == "attach":
            # The request is served like any other: it may come again on this stream.
            stream = self._join(requests[0], out)
            return stream, requests
        return await self._connect(requests[0], out), requests[1:]

    def _join(self, request: pb.Request, out: Replies) -> Stream | None:
        """Returns the stream of a queue's consumer; None if it can't attach here."""
        try:
            command = decode_request(request, None)
            assert isinstance(command, commands.Attach), "its kind is that"
            _check_version(request.attach.version, ATTACH_VERSION)
            self._check_count(request.attach.partition_count)
            runtime = self._runtime(request.attach.partition)
        except (LogtxError, ValueError) as error:
            out.tell(encode_reply(request.request_id, _as_logtx(error)))
            return None
        return self._consumers.join(runtime.partition, command, out)

    async def _connect(self, request: pb.Request, out: Replies) -> Stream | None:
        future: asyncio.Future[Stream | None] = asyncio.get_running_loop().create_future()
        try:
            command = decode_request(request, None)
            if not isinstance(command, commands.Connect):
                raise SessionClosedError("a stream begins with Connect")
            _check_version(request.connect.version, PROTOCOL_VERSION)
            self._check_count(request.connect.partition_count)
            runtime = self._runtime(request.connect.partition)
            if is_key_name(command.producer_id):
                # With two homes a key could have two connections and two open transactions.
                self._check_home("transaction key", command.producer_id, runtime)
        except (LogtxError, ValueError) as error:
            refusal = _as_logtx(error)
            self._counters.connection_refused(refusal)
            out.tell(encode_reply(request.request_id, refusal))
            return None
        await runtime.room()

        def answer(reply: commands.Reply) -> None:
            if future.done():
                return  # The client went away.
            out.tell(encode_reply(request.request_id, reply))
            # The session is attached here and not where the future is awaited: the next reply in
            # the same turn of the loop may be the one to a newer producer, and close this session.
            stream = None
            if isinstance(reply, commands.Connected):
                stream = self._attach(runtime, command, reply, out)
            elif isinstance(reply, LogtxError):
                self._counters.connection_refused(reply)
            future.set_result(stream)

        runtime.submit(command, answer)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and (stream := future.result()):
                self._disconnected(stream)
            raise

    def _check_home(self, what: str, name: str, runtime: PartitionRuntime) -> None:
        home = journal_partition_of(name, len(self._runtimes))
        if home != runtime.partition:
            raise ConfigError(
                f"{what} {name!r} has its home in journal partition {home}, not {runtime.partition}"
            )

    def _attach(
        self,
        runtime: PartitionRuntime,
        command: commands.Connect,
        reply: commands.Connected,
        out: Replies,
    ) -> Stream:
        session = commands.SessionId(command.producer_id, reply.generation, command.nonce)
        stream = Stream(runtime.partition, out, session)
        key = runtime.partition, session.producer_id, session.nonce
        former = self._streams.get(key)
        self._streams[key] = stream
        if former is not None:
            former.end(SessionClosedError("the session was resumed by another connection"))
        runtime.attach(session.producer_id)
        return stream

    async def _serve(self, stream: Stream, request: pb.Request) -> None:
        size, came_s = room_of(request), time.monotonic()
        await stream.out.window.enter(size)
        answer = Answering(stream, request.request_id, size, came_s, self._counters)
        runtime = self._runtimes[stream.partition]
        try:
            command = decode_request(request, stream.session)
            stream.check(command)
            answer.ends = isinstance(command, commands.End)
            if isinstance(command, commands.Attach):
                doubt = await self._prepare_attach(command, runtime)
            else:
                doubt = await self._prepare(command, runtime)
            if isinstance(command, commands.End) and doubt is None:
                command, doubt = await self._with_main_ends(command, runtime)
        except (LogtxError, ValueError) as error:
            answer(_as_logtx(error))
            return
        await runtime.room()
        if stream.over:
            # It was ended while topics were looked up. A copy of this request may have been refused
            # since, on another stream; this one must not be decided.
            answer(SessionClosedError("the stream has ended"))
            return
        stream.answers.add(answer)
        runtime.submit(command, answer, doubt)

    async def _prepare(
        self, command: commands.Command, runtime: PartitionRuntime
    ) -> LogtxError | None:
        """Looks up what the shard must know to decide a command.

        Returns:
            Why a command that names its data topics can't be decided; None if it can. This is not
            raised, for only the shard knows whether the command was done before.

        Raises:
            GroupBoundError: a consumer group's offsets belong to another transaction group.
            CoordinatorBusyError: too many markers wait for a data partition, or too many commits
                for their offsets.
            ConfigError: a consumer group's binding has its home in another journal partition.
            TopicModeError: a topic can't be switched here.
            NotSupportedError: another coordinator does not read that eras of subscriptions end.
        """
        match command:
            case commands.BindGroup():
                # With two homes a group could have two bindings (trap 28).
                self._check_home("consumer group", command.group, runtime)
                if is_topic_binding(command.group) and command.transaction_group is not None:
                    # It is for ever, so not for a name that nobody gave to a topic.
                    await self._switching.check_bindable(command.group)
            case commands.Begin() | commands.AddPartitions():
                return await self._learn(command.partitions, runtime)
            case commands.AddWrites():
                return await self._learn(command.writes, runtime)
            case commands.End():
                if command.action is commands.Action.COMMIT:
                    mains = map(main_partition, runtime.sidecars(command))
                    refusal = await self._learn([*command.writes, *mains], runtime)
                    await runtime.drain(command)
                    return refusal
                # An abort must succeed whatever happened to its topics: the shard sees to it.
                return await self._topics.learn(command.writes)
            case commands.ClaimOffsets():
                await self._check_bound(command.group, runtime)
            case commands.AddOffsets():
                await self._check_bound(command.group, runtime)
                if runtime.offsets_backlog(command.group) >= OFFSETS_WAITING_MAX:
                    raise CoordinatorBusyError(
                        f"{OFFSETS_WAITING_MAX} commits of consumer group {command.group!r} wait"
                        f" for their offsets to be written to {OFFSETS_TOPIC}"
                    )
            case commands.UnbindGroup():
                self._check_home("consumer group", command.group, runtime)
                await self._check_is_free(command.group)
            case commands.ResetSubscription() | commands.DeleteSubscription():
                self._consumers.check_builds_for_eras()
            case commands.SetTopicMode():
                count = len(self._runtimes)
                return await self._switching.check(command, runtime.partition, count)
        return None

    async def _check_is_free(self, group: str) -> None:
        if not is_topic_binding(group) and not await self._bindings.is_free(group):
            raise NotAllowedError(
                f"{group!r} has offsets, which are to be forgotten first, or is a subscription:"
                " delete that first (logtx subscription delete)"
            )

    async def _prepare_attach(
        self, command: commands.Attach, runtime: PartitionRuntime
    ) -> LogtxError | None:
        """Looks up the topics of a queue; as `_prepare`.

        Raises:
            GroupBoundError: the subscription belongs to another transaction group, or to none yet.
            NotSupportedError: another coordinator does not know queues.
            CoordinatorBusyError: the owner of the binding does not answer.
        """
        self._consumers.check_builds()
        await self._check_bound(command.group, runtime)
        # Nothing is written for a queue: its topics may refuse that.
        refusal = await self._topics.learn([(t, 0) for t in command.topics], command.topics)
        if isinstance(refusal, UnknownTopicError):
            # The shard lets that pass for a topic which the queue has: another refusal must not.
            now_ms = monotonic_ms()
            each = (self._topics.known.refusal([(t, 0)], now_ms, [t]) for t in command.topics)
            refusal = next((r for r in each if isinstance(r, UnsupportedTopicError)), refusal)
        # Of a topic that it only has messages of, the shard must know whether it is there still.
        left = command.left_topics
        doubt = await self._topics.learn([(t, 0) for t in left], left)
        return doubt if isinstance(doubt, RetriableError) else refusal

    async def _with_main_ends(
        self, command: commands.End, runtime: PartitionRuntime
    ) -> tuple[commands.End, LogtxError | None]:
        """Tells a commit with records in sidecars where the main partitions end by now.

        Returns:
            The command, and why it can't be decided: as `_prepare`.
        """
        mains = frozenset(map(main_partition, runtime.sidecars(command)))
        if not mains or command.action is not commands.Action.COMMIT:
            return command, None
        try:
            if runtime.unwritten(mains):
                self._sidecars.check_builds_for_places()
            return replace(command, main_ends=await self._sidecars.main_ends(mains)), None
        except (CoordinatorBusyError, NotSupportedError) as error:
            return command, error

    async def _learn(
        self, partitions: Collection[TopicPartition], runtime: PartitionRuntime
    ) -> LogtxError | None:
        _check_lanes(partitions, runtime)
        # A topic may be sealed whose transactions are placed: markers alone need its writes.
        unwritten = runtime.unwritten(partitions)
        # Looked at one by one only where one may have so many.
        may_be_full = unwritten and runtime.placing_count >= PLACES_WAITING_MAX
        for partition in partitions if may_be_full else ():
            if runtime.places_backlog(partition) >= PLACES_WAITING_MAX:
                raise CoordinatorBusyError(
                    f"{partition[0]}[{partition[1]}] has {PLACES_WAITING_MAX} transactions that"
                    " wait for its end: see what the coordinator's log says of it"
                )
        refusal = await self._topics.learn(partitions, unwritten)
        if isinstance(refusal, UnsupportedTopicError):
            # An owner that has just taken over knows the modes, and not yet which topic has the
            # name: it would refuse what it found prepared in a topic that was sealed meanwhile.
            known = runtime.unwritten(partitions)
            if known and known != unwritten:
                refusal = await self._topics.learn(partitions, known)
        return refusal

    async def _check_bound(self, group: str, runtime: PartitionRuntime) -> None:
        if is_topic_binding(group):
            raise ConfigError(f"{group!r} stands for a topic, and is no consumer group")
        has_offsets = runtime.has_offsets(group) or runtime.has_subscription(group)
        count = len(self._runtimes)
        await self._bindings.check(group, runtime.partition, count, has_offsets=has_offsets)

    def _runtime(self, partition: int) -> PartitionRuntime:
        self._check_journal()
        runtime = self._runtimes.get(partition)
        if runtime is None:
            raise NotCoordinatorError(f"there is no journal partition {partition} here")
        return runtime

    def _check_count(self, told: int) -> None:
        """Refuses a client that sees another partition count, so that its names have other homes.

        This happens when the journal topic got more partitions while this coordinator runs.
        """
        count = len(self._runtimes)
        if told not in (0, count):
            raise JournalTopicError(
                f"topic {JOURNAL_TOPIC} has {told} partitions for the client and {count} for this"
                f" coordinator, and their number must never change: names would have other homes."
                f" Nothing was written; copy the first {count} into a topic of that many"
            )

    def _check_journal(self) -> None:
        """Refuses all clients while the journal's partition count may turn out to be wrong.

        Partitions that were added to the journal are empty, and so are loaded before the old ones
        tell how many there were. A transaction begun in a new one would have a second home.
        """
        runtimes = self._runtimes.values()
        for runtime in runtimes:
            if isinstance(runtime.failure, JournalTopicError):
                raise runtime.failure
        if self._all_loaded:
            return
        self._first_asked_s = self._first_asked_s or time.monotonic()
        waited_s = time.monotonic() - self._first_asked_s
        # A partition without a leader must not delay the others for long.
        if waited_s < FIRST_LOAD_S and any(r.role is Role.LOADING for r in runtimes):
            raise CoordinatorLoadingError("the journal is being loaded for the first time")
        self._all_loaded = True

    def _disconnected(self, stream: Stream) -> None:
        session, runtime = stream.session, self._runtimes[stream.partition]
        runtime.forget(list(stream.answers))
        if stream.consumer is not None and self._consumers.left(stream):
            runtime.consumer_gone(*stream.consumer)
        if session is None:
            return
        key = stream.partition, session.producer_id, session.nonce
        if self._streams.get(key) is stream:
            del self._streams[key]
            runtime.detach(session.producer_id, session.nonce)

    def sessions(self) -> Mapping[int, int]:
        """Returns journal partition → number of connected producers."""
        return Counter(partition for partition, _, _ in self._streams)

    def decided(
        self, partition: int, producer_id: str, nonce: int, decided: commands.Decided
    ) -> None:
        """Tells a producer's session of a decision that it did not ask for, if it is connected."""
        stream = self._streams.get((partition, producer_id, nonce))
        if stream is not None:
            stream.out.decided(decided)

    def close_session(
        self, partition: int, producer_id: str, nonce: int, error: LogtxError
    ) -> None:
        """Ends a producer's session for good. Its client is told why."""
        stream = self._streams.pop((partition, producer_id, nonce), None)
        if stream is not None:
            stream.end(error)
            # Its end finds no stream to detach any more, and the producer would count as connected
            # for ever. A successor's nonce is another one.
            self._runtimes[partition].detach(producer_id, nonce)

    def close_sessions(self, partition: int, error: LogtxError) -> None:
        """Ends every session of a journal partition. The clients connect again."""
        for key in [k for k in self._streams if k[0] == partition]:
            self._streams.pop(key).end(error)
        self._consumers.close(partition, error)


def _check_version(version: int, spoken: int) -> None:
    if version != spoken:
        raise NotSupportedError(f"protocol version {version}; this coordinator speaks {spoken}")


def _is_of_attached(command: commands.Command) -> bool:
    """Returns whether a command needs the stream of a queue's consumer."""
    if isinstance(command, commands.Acknowledge):
        return command.consumer != OPERATOR or command.type is not AcknowledgeType.REJECT
    return isinstance(command, commands.Attach | commands.Acquire)


async def _decided(
    runtime: PartitionRuntime, command: commands.Command, doubt: LogtxError | None
) -> commands.Reply:
    """Returns the reply to a command of a call, once the client may be told."""
    future: asyncio.Future[commands.Reply] = asyncio.get_running_loop().create_future()

    def answer(reply: commands.Reply) -> None:
        if not future.done():
            future.set_result(reply)

    runtime.submit(command, answer, doubt)
    try:
        return await future
    except asyncio.CancelledError:
        runtime.forget([answer])
        raise


async def _next_requests(frames: AsyncIterator[pb.ClientFrame]) -> Sequence[pb.Request] | None:
    """Returns the requests of the next message; None at the stream's end."""
    frame = await anext(frames, None)
    return None if frame is None else frame.requests


def _check_lanes(partitions: Iterable[TopicPartition], runtime: PartitionRuntime) -> None:
    for partition in partitions if runtime.marks_any else ():
        if runtime.marker_backlog(partition) >= MARKERS_WAITING_MAX:
            raise CoordinatorBusyError(
                f"{partition[0]}[{partition[1]}] has {MARKERS_WAITING_MAX} markers to take and"
                " takes none: see what the coordinator's log says of it"
            )


_LARGE_ANSWERS: Final = (
    "fetch_offsets",
    "claim_offsets",
    "list_transactions",
    "list_keys",
    "describe_topics",
    "describe_sidecars",
    "describe_subscriptions",
)


def room_of(request: pb.Request, large_bytes: int = LARGE_ANSWER_BYTES) -> int:
    """Returns the room in a window for a request and its answer, in bytes.

    Args:
        request: the request.
        large_bytes: room for the answer to a question about many things.
    """
    large = request.WhichOneof("command") in _LARGE_ANSWERS
    return request.ByteSize() + (large_bytes if large else SMALL_ANSWER_BYTES)


def _as_logtx(error: Exception) -> LogtxError:
    """Returns an error that a client can be told, also for a malformed request."""
    if isinstance(error, LogtxError):
        return error if error.code else NotSupportedError(str(error))
    return NotSupportedError(f"the request does not decode: {error}")
