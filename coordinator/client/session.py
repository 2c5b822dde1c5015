"""One producer's session with the owner of a journal partition.

`CoordinatorClient` pipelines its requests on one stream; each frame takes all requests that wait.
When the stream breaks, it finds the owner again (`Pursuit` says whom to ask when), resumes the
session with the same generation and nonce, and repeats the unanswered requests in order. That is
safe because every request is idempotent. `CoordinatorQueries` asks single questions without a
session.

Source: Transactional Messaging in Kafka, "Failure cases" (time-outs: the producer retries with the
same TxId).
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ...journal.acks import Acks
from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import (
    CoordinatorBusyError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    DoubleStartError,
    LogtxError,
    NotCoordinatorError,
    ProducerFencedError,
    RequestTimedOutError,
    RequestTooLargeError,
    SessionClosedError,
    TooManyTransactionsError,
    TopicError,
)
from ...journal.logs.interface import Log
from ...journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ...journal.records.types import OffsetStep
from ...journal.txid import TxId
from ..protocol import coordinator_pb2 as pb
from ..protocol.checkpoint import Checkpoint
from ..protocol.commands import (
    Action,
    AddAcks,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Command,
    Connect,
    Connected,
    Decided,
    End,
    ExtendTransaction,
    GetOutcome,
    Reply,
    SessionId,
)
from ..protocol.replies import decode_decided
from ..protocol.requests import encode_request
from ..transport.tls import Tls
from .connection import REQUEST_MAX_BYTES, Connection
from .discovery import Discovery
from .finder import Finder, Found
from .serving import Serving, await_end

_LOG = logging.getLogger(__name__)

REFUSED_PAUSE_MIN_S: Final = 0.02
"""First pause before a request is repeated that the coordinator had no room for."""
REFUSED_PAUSE_MAX_S: Final = 0.5
"""Longest such pause; a shorter one makes an overloaded coordinator answer more repeats."""
TOGETHER_FROM: Final = 8
"""Unanswered requests from which on the connection's thread sends further ones, many at once. From
fewer on, one transaction after another takes longer; from more, threads that commit at one time
each cost the coordinator a read."""

OnReply = Callable[[Any], None]
"""Called once with the reply or a `LogtxError`, on a thread of `transport.answers` or the client's.
While it runs, no further answer is taken."""
_ELSEWHERE: Final = (CoordinatorLoadingError, NotCoordinatorError, SessionClosedError)
"""Errors that end the stream: the unanswered requests are repeated on the next one."""
_LATER: Final = (CoordinatorBusyError, TooManyTransactionsError)
"""Errors for want of room, where nothing was done: the request is repeated on this stream after a
pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Identifies the producer of a session, and bounds its requests."""

    producer_id: str
    """The producer's stable name."""
    transaction_group: str = DEFAULT_TRANSACTION_GROUP
    """Transaction group, which maps to a journal partition."""
    generation: int | None = None
    """Fencing epoch, if the application manages it; None: the coordinator assigns it."""
    timeout_s: float = 30.0
    """Bound of every request in seconds, reconnects included."""


@dataclass(slots=True)
class _Request:
    command: Command
    """The command; `Begin.answered_below` is filled in when it is sent."""
    on_reply: OnReply
    deadline_s: float
    sent: bool = False
    copied: bool = False
    """Whether a stream broke on which it had been sent: a copy may still be under way there."""
    refused: LogtxError | None = None
    """Why the coordinator had no room for it; nothing was done."""
    pause_s: float = REFUSED_PAUSE_MIN_S
    due_s: float | None = None
    """When to send it again after a refusal."""
    failure: LogtxError | None = None
    """Why it can't be sent at all."""


_Item: TypeAlias = tuple[int, _Request]


class CoordinatorClient:
    """One producer's session with the owner of one journal partition. Thread-safe."""

    def __init__(
        self,
        log: Log,
        options: SessionOptions,
        *,
        on_closed: Callable[[LogtxError], None] | None = None,
        on_decided: Callable[[Decided], None] | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Does nothing before `connect`.

        Args:
            log: the log through which the coordinator is found.
            options: producer of the session, and the bound of its requests.
            on_closed: called once if the session ends for good (fenced, double start).
            on_decided: called where answers are taken with a decision that was not asked for: a
                time-out, an operator. One may be lost with its stream, or come twice.
            tls: what connections are protected with; None: nothing.
        """
        self._log = log
        self._group = options.transaction_group
        self._producer_id = options.producer_id
        self._generation = options.generation
        self._nonce = random.SystemRandom().getrandbits(63)
        self._timeout_s = options.timeout_s
        self._on_closed = on_closed
        self._on_decided = on_decided
        self._tls = tls
        self._discovery = Discovery(log)
        self._partition: int | None = None
        self._partition_count = 0
        self._finder: Finder[Connection[_Item], Connected] = Finder(
            self._look_up, self._open, Connected
        )
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Wakes the thread that waits for the next due request."""
        self._requests: dict[int, _Request] = {}
        self._begins: dict[int, None] = {}
        """Ids of the BEGINs in `_requests`, oldest first."""
        self._next_id = 1
        self._stream: Connection[_Item] | None = None
        """Stream that requests are sent on; None while there is none."""
        self._serving: Serving | None = None
        """Takes what comes on it."""
        self._connected: Connected | None = None
        self._first: queue.SimpleQueue[Connected | LogtxError] = queue.SimpleQueue()
        self._failure: LogtxError | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- what producers call --------------------------------------------------------------------

    @property
    def session(self) -> SessionId:
        """The identity of this session; valid once connected."""
        assert self._connected is not None, "connect() first"
        return SessionId(self._producer_id, self._connected.generation, self._nonce)

    def connect(self, timeout_s: float | None = None) -> Connected:
        """Opens the session. Fences the former user of the producer id, and aborts its work.

        Args:
            timeout_s: seconds, if fewer than the session's own time-out.

        Raises:
            RequestTimedOutError: no coordinator answered within `timeout_s` seconds.
            CoordinatorNotAvailableError: nor within the session's own time-out.
            ProducerFencedError: a producer with a newer generation has connected.
            DoubleStartError: another producer has connected with the same generation.
            TlsError: the settings of TLS are not those that the coordinator needs.
        """
        wait_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        deadline_s = time.monotonic() + wait_s
        self._partition = self._discovery.partition_of(self._group, deadline_s)
        self._partition_count = self._discovery.partition_count(deadline_s)
        self._thread = threading.Thread(target=self._run, name="coordinator-client", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="coordinator-timeouts", daemon=True).start()
        try:
            first = self._first.get(timeout=max(0.01, deadline_s - time.monotonic()))
        except queue.Empty:
            self.close()
            late = RequestTimedOutError if timeout_s == wait_s else CoordinatorNotAvailableError
            raise late(
                f"no coordinator answered for journal partition {self._partition} within"
                f" {wait_s:g} s; is `logtx coordinator` running? ({self._finder.why})"
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
        """Opens a transaction; the reply is `Began`."""
        begin = Begin(
            session=self.session,
            request_id=0,
            answered_below=0,
            timeout_ms=timeout_ms,
            partitions=tuple(partitions),
        )
        self._submit(begin, on_reply)

    def add_partitions(
        self, txid: TxId, first_offsets: Mapping[TopicPartition, int], on_reply: OnReply
    ) -> None:
        """Registers data partitions with the first offset in each (-1: unknown); replies `Done`."""
        command = AddPartitions(
            txid=txid,
            partitions=tuple(first_offsets),
            session=self.session,
            first_offsets=first_offsets,
        )
        self._submit(command, on_reply)

    def add_offsets(
        self, txid: TxId, group: str, steps: Sequence[OffsetStep], on_reply: OnReply
    ) -> None:
        """Makes input offsets part of the transaction; the reply is `Done`."""
        command = AddOffsets(session=self.session, txid=txid, group=group, steps=tuple(steps))
        self._submit(command, on_reply)

    def add_acks(
        self,
        txid: TxId,
        group: str,
        acks: Sequence[Acks],
        on_reply: OnReply,
        *,
        delay_ms: int = 0,
        era: int = 0,
    ) -> None:
        """Makes acknowledgements of a subscription part of the transaction; replies `Done`.

        If it aborts, nobody gets the messages for `delay_ms`. They were given out in `era`.
        """
        command = AddAcks(
            session=self.session,
            txid=txid,
            group=group,
            acks=tuple(acks),
            delay_ms=delay_ms,
            era=era,
        )
        self._submit(command, on_reply)

    def add_writes(
        self,
        txid: TxId,
        part: int,
        writes: Mapping[TopicPartition, tuple[BranchRange, ...]],
        on_reply: OnReply,
    ) -> None:
        """Names a part of what branches wrote, from 0 on, each after the answer of the one before.

        The reply is `Done`.
        """
        command = AddWrites(session=self.session, txid=txid, part=part, writes=writes)
        self._submit(command, on_reply)

    def extend(self, txid: TxId, on_reply: OnReply) -> None:
        """Begins the transaction's timeout anew; the reply is `Done`."""
        self._submit(ExtendTransaction(session=self.session, txid=txid), on_reply)

    def end(
        self,
        txid: TxId,
        action: Action,
        writes: Mapping[TopicPartition, tuple[BranchRange, ...]],
        on_reply: OnReply,
        *,
        parts: int = 0,
    ) -> None:
        """Commits or aborts; the reply is `Outcome`, which for a commit says that it is decided.

        `parts` is the number of parts, by `add_writes`, that name the rest of what was written.
        """
        command = End(
            session=self.session, txid=txid, action=action, writes=dict(writes), parts=parts
        )
        self._submit(command, on_reply)

    def outcome(self, txid: TxId, on_reply: OnReply, *, until_finished: bool = False) -> None:
        """Asks for a transaction's state; the reply is `Outcome`.

        `until_finished`: that of a decided one waits for some seconds until it is finished.
        """
        self._submit(GetOutcome(txid=txid, until_finished=until_finished), on_reply)

    def close(self) -> None:
        """Ends the session. Open transactions are aborted after the coordinator's grace."""
        serving, thread = self._serving, self._thread
        self._stop()
        await_end(thread, serving)
        self._fail_all(SessionClosedError("the client was closed"))

    # ---- requests -------------------------------------------------------------------------------

    def _submit(self, command: Command, on_reply: OnReply) -> None:
        request = _Request(command, on_reply, time.monotonic() + self._timeout_s)
        with self._lock:
            failure = self._failure
            if failure is None and self._closing.is_set():
                failure = SessionClosedError("the client was closed")
            if failure is None:
                request_id = self._next_id
                self._next_id += 1
                self._requests[request_id] = request
                if isinstance(command, Begin):
                    self._begins[request_id] = None
                stream, waiting = self._stream, len(self._requests)
                if stream is not None:
                    stream.send((request_id, request))
        if failure is not None:
            on_reply(failure)
        elif stream is not None and waiting > TOGETHER_FROM:
            stream.flush_soon()
        elif stream is not None:
            stream.flush()  # Not under the lock, which `_encode` needs.

    def _encode(self, item: _Item) -> pb.Request | None:
        """Encodes a request as it leaves. Returns None if it is too large, and has it answered."""
        request_id, request = item
        request.sent = True
        wire = encode_request(request_id, request.command)
        if isinstance(request.command, Begin):
            with self._lock:
                # Of the BEGINs alone: another request may wait for long, and the coordinator keeps
                # each BEGIN until it is told that the client has the answer.
                oldest = next(iter(self._begins), request_id)
            wire.begin.answered_below = min(oldest, request_id)
        if wire.ByteSize() > REQUEST_MAX_BYTES:
            refusal = RequestTooLargeError(
                f"the request takes {wire.ByteSize()} bytes, and {REQUEST_MAX_BYTES} are allowed;"
                " use fewer partitions, branches or offsets"
            )
            with self._lock:
                # Not answered here: this may be a thread that sends another request, with locks of
                # the application which the callback of this one waits for.
                request.failure = refusal
                self._changed.notify()
            return None
        return wire

    def _answered(self, request_id: int, reply: Reply) -> None:
        with self._lock:
            request = self._remove(request_id)
        if request is not None:
            request.on_reply(reply)

    def _remove(self, request_id: int) -> _Request | None:
        self._begins.pop(request_id, None)
        return self._requests.pop(request_id, None)

    def _refuse(self, request_id: int, error: LogtxError) -> None:
        """Schedules a refused request again: an overloaded coordinator only slows this client."""
        with self._lock:
            request = self._requests.get(request_id)
            if request is not None:
                request.refused = error
                request.due_s = time.monotonic() + request.pause_s * (0.5 + random.random())
                request.pause_s = min(request.pause_s * 2, REFUSED_PAUSE_MAX_S)
                self._changed.notify()

    def _watch(self) -> None:
        """Fails requests that waited too long or can't be sent, and repeats refused ones; runs in
        its own thread."""
        while not self._closing.is_set():
            now_s = time.monotonic()
            repeated_on: Connection[_Item] | None = None
            with self._lock:
                late = [
                    i
                    for i, r in self._requests.items()
                    if r.deadline_s <= now_s or r.failure is not None
                ]
                expired = [r for i in late if (r := self._remove(i)) is not None]
                for request_id, request in self._requests.items():
                    if request.due_s is not None and request.due_s <= now_s:
                        request.due_s = None
                        repeated_on = self._stream
                        if repeated_on is not None:
                            repeated_on.send((request_id, request))
                if not expired and repeated_on is None:
                    self._changed.wait(self._idle_s(now_s))
            if repeated_on is not None:
                repeated_on.flush()
            for request in expired:
                request.on_reply(self._expired(request))

    def _idle_s(self, now_s: float) -> float:
        """Returns for how many seconds no request can be due.

        A request submitted from now on has its whole `timeout_s` ahead.
        """
        due = [now_s + self._timeout_s]
        due += [r.deadline_s for r in self._requests.values()]
        due += [r.due_s for r in self._requests.values() if r.due_s is not None]
        return max(min(due) - now_s, 0.0)

    def _expired(self, request: _Request) -> LogtxError:
        if request.failure is not None:
            return request.failure
        if request.refused is not None and request.due_s is not None and not request.copied:
            return request.refused  # Every copy of it was answered.
        if request.sent:
            return RequestTimedOutError(f"no answer within {self._timeout_s:g} s")
        return CoordinatorNotAvailableError(
            f"no coordinator could be reached within {self._timeout_s:g} s: {self._finder.why}"
        )

    def _fail_all(self, error: LogtxError) -> None:
        with self._lock:
            requests = list(self._requests.values())
            self._requests.clear()
            self._begins.clear()
        for request in requests:
            # What it was refused for, it was not sent.
            why = _unanswered(error) if request.sent else error
            request.on_reply(request.failure or why)

    def _close_for_good(self, error: LogtxError) -> None:
        with self._lock:
            self._failure = error
        self._stop()
        self._fail_all(error)
        self._first.put(error)
        if self._on_closed is not None:
            self._on_closed(error)

    def _stop(self) -> None:
        self._closing.set()
        self._finder.close()
        with self._lock:
            serving = self._serving
            self._changed.notify()
        if serving is not None:
            serving.end()

    # ---- the stream -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                found = self._finder.find()
                if found is not None:
                    self._serve(found)
        except LogtxError as error:
            self._close_for_good(error)
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer gets it
            _LOG.exception("session_failed producer_id=%s", self._producer_id)
            self._close_for_good(
                SessionClosedError(f"the session failed, by a bug of logtx: {error!r}")
            )

    def _look_up(self) -> Checkpoint:
        assert self._partition is not None
        return self._discovery.look_up(self._partition)

    def _open(self, address: str) -> Connection[_Item]:
        connect = Connect(
            producer_id=self._producer_id, nonce=self._nonce, generation=self._generation
        )
        request = encode_request(0, connect)
        request.connect.partition = self._partition or 0
        request.connect.partition_count = self._partition_count
        return Connection(address, request, self._encode, tls=self._tls)

    def _serve(self, found: Found[Connection[_Item], Connected]) -> None:
        """Sends the unanswered requests, oldest first, and reads the stream to its end.

        Raises:
            ProducerFencedError, DoubleStartError: the session ended for good.
        """
        serving = Serving(found.stream, elsewhere=_ELSEWHERE, take=self._take, tell=self._tell)
        self._resume(found, serving)
        try:
            serving.run(found.rest, found.decided)
        finally:
            with self._lock:
                self._stream = self._serving = None
            found.stream.close()
            self._finder.lost(found, serving.hint, served=serving.served)

    def _tell(self, decided: Iterable[pb.Decided]) -> None:
        if self._on_decided is not None:
            for wire in decided:
                self._on_decided(decode_decided(wire))

    def _resume(self, found: Found[Connection[_Item], Connected], serving: Serving) -> None:
        first = self._connected is None
        self._connected = found.connected
        self._generation = found.connected.generation
        with self._lock:
            for request_id, request in self._requests.items():
                request.due_s = None
                request.copied = request.copied or request.sent
                found.stream.send((request_id, request))
            self._stream, self._serving = found.stream, serving
            if self._closing.is_set():
                serving.end()  # `_stop` came before there was one to end.
        found.stream.flush()
        if first:
            self._first.put(found.connected)

    def _take(self, request_id: int, reply: Reply) -> bool:
        """Handles a reply. Returns whether it answers a request."""
        if request_id == 0:
            if isinstance(reply, ProducerFencedError | DoubleStartError):
                raise reply
            return False
        if isinstance(reply, _LATER):
            self._refuse(request_id, reply)
        else:
            self._answered(request_id, self._in_doubt(request_id, reply))
        return True

    def _in_doubt(self, request_id: int, reply: Reply) -> Reply:
        """Returns the reply to give: a refused commit may have been decided by an earlier copy.

        Topics are looked up outside of the state machine that decides. A copy that waits for its
        own look-up, on a stream whose end is not noticed there, may still find the topics.
        """
        with self._lock:
            request = self._requests.get(request_id)
            copied = request is not None and request.copied and isinstance(request.command, End)
        if not (copied and isinstance(reply, TopicError)):
            return reply
        error = RequestTimedOutError(f"the request was repeated, so this is not certain: {reply}")
        error.__cause__ = reply
        return error


def _unanswered(error: LogtxError) -> LogtxError:
    """Returns the reply to a request that was sent, when its session ends for good.

    The session's error does not answer the request. A commit that is told, for example, that a
    topic is not supported would be taken for refused, although a copy of it may have been decided
    before the stream broke.
    """
    if isinstance(error, ProducerFencedError | DoubleStartError | SessionClosedError):
        return error
    return SessionClosedError(f"the session ended before the answer came: {error}")
