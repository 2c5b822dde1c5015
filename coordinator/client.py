"""The coordinator's RPC client: the only way for producers and consumers to reach it.

`CoordinatorClient` is one producer's session. Requests are pipelined on one stream and sent in
frames of whatever waits. When the stream breaks, it finds the owner again through the log,
resumes the session with the same generation and nonce, and sends what was not answered again, in
order; every request is idempotent, so that is safe. `CoordinatorQueries` asks single questions
without a session.

Source: seed 001, "Failure cases" (time-outs: the producer retries with the same TxId).
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc

from ..journal.control import BranchRange, TopicPartition
from ..journal.errors import (
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    DoubleStartError,
    LogtxError,
    NotCoordinatorError,
    OffsetsPendingError,
    ProducerFencedError,
    RequestTimedOutError,
    RetriableError,
    SessionClosedError,
)
from ..journal.log import Log
from ..journal.records import OffsetStep
from ..journal.state import State
from ..journal.txid import TxId
from . import coordinator_pb2 as pb
from . import coordinator_pb2_grpc as pb_grpc
from .commands import (
    Action,
    AddOffsets,
    AddPartitions,
    Began,
    Begin,
    BindGroup,
    Binding,
    Command,
    Connect,
    Connected,
    Done,
    End,
    FetchOffsets,
    GetOutcome,
    GroupOffsets,
    ListTransactions,
    Outcome,
    Reply,
    Session,
    TransactionInfo,
    Transactions,
)
from .discovery import Discovery
from .wire import decode_reply, encode_request

__all__ = [
    "Action",
    "Began",
    "Binding",
    "Connected",
    "CoordinatorClient",
    "CoordinatorQueries",
    "Done",
    "GroupOffsets",
    "OnReply",
    "Outcome",
    "Reply",
    "State",
    "TransactionInfo",
]

_LOG = logging.getLogger(__name__)

CHANNEL_OPTIONS: Final = (
    # A coordinator that was stopped, not killed, is noticed by these pings alone.
    ("grpc.keepalive_time_ms", 200),
    ("grpc.http2.ping_timeout_ms", 300),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
)
FRAME_MAX: Final = 256
"""Requests in one stream message."""
RETRY_MIN_S: Final = 0.02
RETRY_MAX_S: Final = 0.5
CONNECT_TIMEOUT_S: Final = 5.0
"""Longest wait for one attempt to open a stream and have Connect answered."""
EXPIRE_S: Final = 0.1
"""How often requests are checked for having waited too long."""

OnReply = Callable[[Any], None]
"""Called once, on the client's own thread, with the reply or a `LogtxError`."""
R = TypeVar("R")
_AGAIN: Final = (CoordinatorLoadingError, NotCoordinatorError, SessionClosedError)


@dataclass(slots=True)
class _Request:
    make: Callable[[int, int], Command]
    """From the request id, and the lowest id not answered yet, to the command."""
    on_reply: OnReply
    deadline_s: float
    sent: bool = False


class CoordinatorClient:
    """One producer's session with the owner of one journal partition. Thread-safe."""

    def __init__(
        self,
        log: Log,
        *,
        producer_id: str,
        transaction_group: str = "default",
        generation: int | None = None,
        timeout_s: float = 30.0,
        on_closed: Callable[[LogtxError], None] | None = None,
    ) -> None:
        """Nothing is connected before `connect`.

        Args:
            log: how to find the coordinator.
            producer_id: the producer's stable name.
            transaction_group: maps to a journal partition.
            generation: the fencing epoch, if the application manages it; else assigned.
            timeout_s: bound of every request, reconnects included.
            on_closed: called once if the session ends for good (fenced, double start).
        """
        self._log = log
        self._group = transaction_group
        self._producer_id = producer_id
        self._generation = generation
        self._nonce = random.SystemRandom().getrandbits(63)
        self._timeout_s = timeout_s
        self._on_closed = on_closed
        self._discovery = Discovery(log)
        self._partition: int | None = None
        self._lock = threading.Lock()
        self._requests: dict[int, _Request] = {}
        self._next_id = 1
        self._outbox: queue.SimpleQueue[tuple[int, _Request] | None] | None = None
        self._connected: Connected | None = None
        self._first: queue.SimpleQueue[Connected | LogtxError] = queue.SimpleQueue()
        self._failure: LogtxError | None = None
        self._closing = threading.Event()
        self._stream: Any = None
        self._thread: threading.Thread | None = None

    # ---- what producers call ---------------------------------------------------------------

    @property
    def session(self) -> Session:
        """Who this client is, once connected."""
        assert self._connected is not None, "connect() first"
        return Session(self._producer_id, self._connected.generation, self._nonce)

    def connect(self) -> Connected:
        """Open the session; fences whoever used the producer id before, and aborts its work.

        Raises:
            CoordinatorNotAvailableError: nobody answered within `timeout_s`.
            ProducerFencedError, DoubleStartError: the generation is used up.
        """
        deadline_s = time.monotonic() + self._timeout_s
        self._partition = self._discovery.partition_of(self._group, deadline_s)
        self._thread = threading.Thread(target=self._run, name="coordinator-client", daemon=True)
        self._thread.start()
        threading.Thread(target=self._expire, name="coordinator-timeouts", daemon=True).start()
        try:
            first = self._first.get(timeout=max(0.1, deadline_s - time.monotonic()))
        except queue.Empty:
            self.close()
            raise CoordinatorNotAvailableError(
                f"no coordinator answered for journal partition {self._partition} within"
                f" {self._timeout_s:.0f} s; is `logtx coordinator` running?"
            ) from None
        if isinstance(first, LogtxError):
            raise first
        return first

    def begin(
        self,
        on_reply: OnReply,
        *,
        timeout_ms: int,
        partitions: Iterable[TopicPartition] = (),
    ) -> None:
        """Open a transaction; replies `Began`."""
        named = tuple(partitions)

        def command(request_id: int, answered_below: int) -> Command:
            return Begin(
                session=self.session,
                request_id=request_id,
                answered_below=answered_below,
                timeout_ms=timeout_ms,
                partitions=named,
            )

        self._submit(command, on_reply)

    def add_partitions(
        self, txid: TxId, partitions: Iterable[TopicPartition], on_reply: OnReply
    ) -> None:
        """Register data partitions; replies `Done`."""
        command = AddPartitions(txid=txid, partitions=tuple(partitions), session=self.session)
        self._submit(lambda _id, _below: command, on_reply)

    def add_offsets(
        self, txid: TxId, group: str, steps: Sequence[OffsetStep], on_reply: OnReply
    ) -> None:
        """Make input offsets part of the transaction; replies `Done`."""
        command = AddOffsets(session=self.session, txid=txid, group=group, steps=tuple(steps))
        self._submit(lambda _id, _below: command, on_reply)

    def end(
        self,
        txid: TxId,
        action: Action,
        writes: Mapping[TopicPartition, tuple[BranchRange, ...]],
        on_reply: OnReply,
    ) -> None:
        """Commit or abort; replies `Outcome`, which for a commit means that it is decided."""
        command = End(session=self.session, txid=txid, action=action, writes=dict(writes))
        self._submit(lambda _id, _below: command, on_reply)

    def outcome(self, txid: TxId, on_reply: OnReply) -> None:
        """Ask for a transaction's state; replies `Outcome`."""
        self._submit(lambda _id, _below: GetOutcome(txid=txid), on_reply)

    def close(self) -> None:
        """End the session; what is open is aborted after the coordinator's grace."""
        self._closing.set()
        self._break_stream()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CONNECT_TIMEOUT_S)
        self._fail_all(SessionClosedError("the client was closed"))

    # ---- requests --------------------------------------------------------------------------

    def _submit(self, make: Callable[[int, int], Command], on_reply: OnReply) -> None:
        request = _Request(make, on_reply, time.monotonic() + self._timeout_s)
        with self._lock:
            failure = self._failure
            if failure is None and self._closing.is_set():
                failure = SessionClosedError("the client was closed")
            if failure is None:
                request_id = self._next_id
                self._next_id += 1
                self._requests[request_id] = request
                if self._outbox is not None:
                    self._outbox.put((request_id, request))
        if failure is not None:
            on_reply(failure)

    def _encode(self, request_id: int, request: _Request) -> pb.Request:
        request.sent = True
        with self._lock:
            # Answers come in any order; dict order makes the first one left the oldest.
            answered_below = min(next(iter(self._requests), request_id), request_id)
        command = request.make(request_id, answered_below)
        return encode_request(request_id, command, self._partition or 0)

    def _answered(self, wire: pb.Reply) -> None:
        reply = decode_reply(wire)
        if wire.request_id == 0:
            if isinstance(reply, ProducerFencedError | DoubleStartError):
                self._close_for_good(reply)
            return
        if isinstance(reply, _AGAIN):
            # Stays among the requests, and is sent again on the next stream.
            self._break_stream()
            return
        with self._lock:
            request = self._requests.pop(wire.request_id, None)
        if request is not None:
            request.on_reply(reply)

    def _expire(self) -> None:
        """Fail requests that waited too long; runs in a thread of its own."""
        while not self._closing.wait(EXPIRE_S):
            now = time.monotonic()
            with self._lock:
                late = [i for i, r in self._requests.items() if r.deadline_s <= now]
                requests = [self._requests.pop(i) for i in late]
            for request in requests:
                request.on_reply(
                    RequestTimedOutError(f"no answer within {self._timeout_s:.0f} s")
                    if request.sent
                    else CoordinatorNotAvailableError(
                        f"no coordinator could be reached within {self._timeout_s:.0f} s"
                    )
                )

    def _fail_all(self, error: LogtxError) -> None:
        with self._lock:
            requests = list(self._requests.values())
            self._requests.clear()
        for request in requests:
            request.on_reply(error)

    def _close_for_good(self, error: LogtxError) -> None:
        with self._lock:
            self._failure = error
        self._closing.set()
        self._fail_all(error)
        self._first.put(error)
        if self._on_closed is not None:
            self._on_closed(error)

    # ---- the stream ------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = RETRY_MIN_S
        while not self._closing.is_set():
            try:
                if self._serve_stream():
                    pause_s = RETRY_MIN_S
            except (ProducerFencedError, DoubleStartError) as error:
                self._close_for_good(error)
            except RetriableError as error:
                _LOG.debug("coordinator_unreachable: %s", error)
            except LogtxError as error:
                self._close_for_good(error)
            self._closing.wait(pause_s * (0.5 + random.random()))
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _serve_stream(self) -> bool:
        """Find the owner, open a stream and read it to its end; whether it was connected."""
        assert self._partition is not None
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        owner = self._discovery.owner_of(self._partition, deadline_s)
        channel = grpc.insecure_channel(owner.address, options=CHANNEL_OPTIONS)
        outbox: queue.SimpleQueue[tuple[int, _Request] | None] = queue.SimpleQueue()
        connected = False
        try:
            self._stream = _stub(channel).Session(self._frames(outbox))
            watchdog = threading.Timer(CONNECT_TIMEOUT_S, self._break_stream)
            watchdog.start()
            try:
                for frame in self._stream:
                    for reply in frame.replies:
                        if connected:
                            self._answered(reply)
                        else:
                            watchdog.cancel()
                            self._resume(decode_reply(reply), outbox)
                            connected = True
            finally:
                watchdog.cancel()
        except grpc.RpcError as error:
            if not connected:
                raise CoordinatorNotAvailableError(f"{owner.address}: {error}") from error
        finally:
            with self._lock:
                self._outbox = None
            outbox.put(None)
            channel.close()
        return connected

    def _resume(self, reply: Reply, outbox: queue.SimpleQueue[tuple[int, _Request] | None]) -> None:
        """The coordinator answered Connect: send what is not answered, oldest first."""
        if isinstance(reply, LogtxError):
            raise reply
        assert isinstance(reply, Connected), reply
        first = self._connected is None
        self._connected = reply
        self._generation = reply.generation
        with self._lock:
            for item in self._requests.items():
                outbox.put(item)
            self._outbox = outbox
        if first:
            self._first.put(reply)

    def _frames(
        self, outbox: queue.SimpleQueue[tuple[int, _Request] | None]
    ) -> Iterator[pb.ClientFrame]:
        connect = Connect(
            producer_id=self._producer_id, nonce=self._nonce, generation=self._generation
        )
        yield pb.ClientFrame(requests=[encode_request(0, connect, self._partition or 0)])
        while True:
            item = outbox.get()
            requests = []
            while item is not None:
                requests.append(self._encode(*item))
                if len(requests) >= FRAME_MAX or outbox.empty():
                    break
                item = outbox.get()
            if requests:
                yield pb.ClientFrame(requests=requests)
            if item is None:
                return

    def _break_stream(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.cancel()


def _stub(channel: Any) -> Any:
    return pb_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]


class CoordinatorQueries:
    """Single questions to whichever coordinator owns what they are about. Thread-safe; blocks.

    Every call is retried over retriable errors for up to `timeout_s`, then raises the last.
    """

    def __init__(self, log: Log, *, timeout_s: float = 30.0) -> None:
        """Find coordinators through `log`."""
        self._log = log
        self._timeout_s = timeout_s
        self._discovery = Discovery(log)
        self._channels: dict[str, Any] = {}
        self._bindings: dict[str, str] = {}
        self._lock = threading.Lock()

    def bind_group(self, group: str, transaction_group: str | None) -> Binding:
        """Tie a consumer group to a transaction group, or with None only ask for its binding."""
        bound = self._bindings.get(group)
        if bound is None:
            command = BindGroup(group=group, transaction_group=transaction_group)
            bound = self._ask(group, command, Binding).transaction_group
            if bound is not None:
                self._bindings[group] = bound
        return Binding(bound)

    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> GroupOffsets:
        """A consumer group's committed IOV; empty where the group never committed.

        Raises:
            OffsetsPendingError: a pending transaction holds one of them; not retried here.
        """
        bound = self.bind_group(group, None).transaction_group
        if bound is None:
            return GroupOffsets({})
        named = None if partitions is None else tuple(partitions)
        return self._ask(bound, FetchOffsets(group=group, partitions=named), GroupOffsets)

    def outcome(self, txid: TxId) -> Outcome:
        """A transaction's state."""
        return self._ask(txid.partition, GetOutcome(txid=txid), Outcome)

    def add_partitions(self, txid: TxId, partitions: Iterable[TopicPartition]) -> None:
        """Register a branch's data partitions, by the TxId alone."""
        command = AddPartitions(txid=txid, partitions=tuple(partitions))
        self._ask(txid.partition, command, Done)

    def transactions(self, transaction_group: str) -> tuple[TransactionInfo, ...]:
        """Transactions that are not finished, of the journal partition of a group."""
        found = self._ask(transaction_group, ListTransactions(), Transactions)
        return found.transactions

    def close(self) -> None:
        """Close the channels."""
        with self._lock:
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    def _ask(self, of: str | int, command: Command, kind: type[R]) -> R:
        deadline_s = time.monotonic() + self._timeout_s
        partition = of if isinstance(of, int) else self._discovery.partition_of(of, deadline_s)
        pause_s = RETRY_MIN_S
        while True:
            try:
                reply = self._call(partition, command, deadline_s)
                if isinstance(reply, kind):
                    return reply
                raise reply if isinstance(reply, LogtxError) else LogtxError(f"got {reply}")
            except OffsetsPendingError:
                raise
            except RetriableError:
                if time.monotonic() + pause_s > deadline_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _call(self, partition: int, command: Command, deadline_s: float) -> Reply:
        owner = self._discovery.owner_of(partition, deadline_s)
        with self._lock:
            channel = self._channels.get(owner.address)
            if channel is None:
                channel = grpc.insecure_channel(owner.address, options=CHANNEL_OPTIONS)
                self._channels[owner.address] = channel
        request = pb.CallRequest(partition=partition, request=encode_request(1, command, partition))
        try:
            left_s = max(0.1, deadline_s - time.monotonic())
            return decode_reply(_stub(channel).Call(request, timeout=left_s))
        except grpc.RpcError as error:
            code = getattr(error, "code", lambda: None)()
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise RequestTimedOutError(
                    f"the coordinator at {owner.address} did not answer within"
                    f" {self._timeout_s:.0f} s"
                ) from error
            raise CoordinatorNotAvailableError(
                f"the coordinator at {owner.address} can't be reached ({code})"
            ) from error
