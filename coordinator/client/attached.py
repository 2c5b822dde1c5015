"""The stream of one consumer of a queue to the owner of its subscription.

The stream is the consumer's sign of life. When it breaks, the client finds the owner again
(`Pursuit` says whom to ask when), attaches with what the consumer holds, and repeats the requests
without an answer in order. That is safe: a repeated question for messages gives others, and an
acknowledgement that comes twice changes nothing the second time. Its result may then be DELETED
where the first, lost one was DONE.

What was acknowledged and has no answer is named when it attaches, beside what the consumer holds.
It is still leased to it, and others would be given it before the acknowledgement is repeated.

A consumer may be refused: its topic does not exist, or a coordinator of an older build is there. It
is told so, each time that it asks for messages, and the client attaches again. What refuses it may
pass, and what it acknowledged is not lost by it: unless the subscription was deleted.

When an operator has reset the subscription meanwhile, nothing that was given out before is the
consumer's, and what it said of that is refused when it is repeated. It is not named either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, TypeAlias

from ...journal.acks import joined
from ...journal.errors import (
    CoordinatorBusyError,
    CoordinatorLoadingError,
    LogtxError,
    NotAttachedError,
    NotCoordinatorError,
    SessionClosedError,
    SubscriptionResetError,
)
from ...journal.logs.interface import Log
from ..protocol import coordinator_pb2 as pb
from ..protocol.checkpoint import Checkpoint
from ..protocol.commands import Acknowledge, Acquire, Attach, Attached, Leases, Reply
from ..protocol.queues import Lease
from ..protocol.requests import encode_request
from ..transport.tls import Tls
from .connection import Connection
from .discovery import Discovery
from .finder import Finder, Found
from .serving import Serving, await_end

_LOG = logging.getLogger(__name__)

BUSY_PAUSE_S: Final = 0.02
"""Pause before a request is repeated that the coordinator could not decide yet. A longer one delays
acknowledgements after a failover, a shorter one asks more often."""
REFUSED_PAUSE_S: Final = 1.0
"""Pause before it attaches again after it was refused. A longer one delays it when that is mended,
a shorter one asks more often."""

_ELSEWHERE: Final = (
    *(CoordinatorLoadingError, NotCoordinatorError, SessionClosedError),
    NotAttachedError,
)
"""Errors that end the stream: the consumer attaches anew, and repeats what lacks an answer."""
_Command: TypeAlias = Acquire | Acknowledge | Attach
_Item: TypeAlias = tuple[int, _Command]


class AttachedClient:
    """Keeps one consumer attached, and asks for it. Thread-safe."""

    def __init__(
        self,
        log: Log,
        transaction_group: str,
        *,
        timeout_s: float,
        attach: Callable[[], Attach],
        on_attached: Callable[[Attached], None],
        on_leases: Callable[[tuple[Lease, ...]], None],
        tls: Tls | None = None,
    ) -> None:
        """Does nothing before `start`.

        Args:
            log: the log through which the coordinator is found.
            transaction_group: the one that the subscription is bound to.
            timeout_s: bound of finding the journal, in seconds.
            attach: returns how the consumer attaches now, with what it holds now.
            on_attached: called whenever the consumer attached, with what it still has; on the
                client's own thread, or where answers are taken.
            on_leases: called where answers are taken, with each lease, before its request's future
                is done: from then on `attach` must name it.
            tls: what connections are protected with; None: nothing.
        """
        self._discovery = Discovery(log)
        self._transaction_group, self._timeout_s = transaction_group, timeout_s
        self._tls = tls
        self._attach, self._on_attached, self._on_leases = attach, on_attached, on_leases
        self._partition = self._partition_count = 0
        self._finder = self._new_finder()
        self._lock = threading.Lock()
        self._requests: dict[int, tuple[_Command, Future[Reply]]] = {}
        """Those without an answer, oldest first."""
        self._next_id = 1
        self._attaches = 0
        """Id of the Attach that was submitted last."""
        self._opened: dict[str, int] = {}
        """Address → the id that the next request had when a stream to it was opened: how the
        consumer attached there says what earlier ones say."""
        self._stream: Connection[_Item] | None = None
        self._serving: Serving | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to look for the owner, and to attach there.

        Raises:
            CoordinatorNotAvailableError: no journal was found in time.
        """
        deadline_s = time.monotonic() + self._timeout_s
        self._partition = self._discovery.partition_of(self._transaction_group, deadline_s)
        self._partition_count = self._discovery.partition_count(deadline_s)
        self._thread = threading.Thread(target=self._run, name="queue-client", daemon=True)
        self._thread.start()

    @property
    def why(self) -> str:
        """The latest reason why the owner is not found."""
        return self._finder.why

    def submit(self, command: _Command) -> Future[Reply]:
        """Sends a request, now or when the consumer is attached. Its future never fails: an error
        is a reply. It waits for as long as there is no owner; bound the wait for it."""
        future: Future[Reply] = Future()
        with self._lock:
            is_closed = self._closing.is_set()
            if not is_closed:
                request_id = self._next_id
                self._next_id += 1
                if isinstance(command, Attach):
                    self._attaches = request_id
                self._requests[request_id] = command, future
                stream = self._stream
                if stream is not None:
                    stream.send((request_id, command))
        if is_closed:
            future.set_result(SessionClosedError("the consumer was closed"))
        elif stream is not None:
            stream.flush()  # Not under the lock, which `_encode` needs.
        return future

    def close(self) -> None:
        """Ends the stream. What the consumer holds is given to others after a second."""
        serving, thread = self._serving, self._thread
        self._stop()
        await_end(thread, serving)
        self._fail_all(SessionClosedError("the consumer was closed"))

    # ---- the client's own thread ----------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                found = self._finder.find()
                if found is not None:
                    self._serve(found)
            except LogtxError as error:
                self._refused(error)
            except Exception as error:  # noqa: BLE001 - the application gets it
                # If the thread ended, whoever waits would wait for ever.
                _LOG.exception("queue_client_failed")
                self._finder = self._new_finder()  # The former one may count on attempts of before.
                self._refused(LogtxError(f"attaching failed: {error!r}"))

    def _new_finder(self) -> Finder[Connection[_Item], Attached]:
        return Finder(self._look_up, self._open, Attached)

    def _refused(self, error: LogtxError) -> None:
        with self._lock:
            # What was acknowledged is repeated when it is attached, if there is anything then.
            is_final = isinstance(error, SubscriptionResetError)
            asking = [
                i
                for i, (c, _) in self._requests.items()
                if is_final or not isinstance(c, Acknowledge)
            ]
            futures = [self._requests.pop(i)[1] for i in asking]
        for future in futures:
            future.set_result(error)
        self._closing.wait(REFUSED_PAUSE_S)

    def _serve(self, found: Found[Connection[_Item], Attached]) -> None:
        serving = Serving(found.stream, elsewhere=_ELSEWHERE, take=self._take, tell=_ignore)
        try:
            self._attached(found, serving)
            serving.run(found.rest, ())
        finally:
            with self._lock:
                self._stream = self._serving = None
            found.stream.close()
            self._finder.lost(found, serving.hint, served=serving.served)

    def _attached(self, found: Found[Connection[_Item], Attached], serving: Serving) -> None:
        self._on_attached(found.connected)
        with self._lock:
            # It has just attached. An earlier Attach would let go of what it got since. A later one
            # may name other topics (trap 142).
            opened = self._opened[found.stream.address]
            self._opened.clear()
            attached = self._pop_attaches(opened)
            for request_id, (command, _) in self._requests.items():
                found.stream.send((request_id, command))
            self._stream, self._serving = found.stream, serving
            if self._closing.is_set():
                serving.end()  # `_stop` came before there was one to end.
        found.stream.flush()
        for future in attached:
            future.set_result(found.connected)

    def _pop_attaches(self, before: int) -> list[Future[Reply]]:
        """Removes what attaches, and was submitted earlier. Call it with the lock."""
        attaching = [
            i for i, (c, _) in self._requests.items() if isinstance(c, Attach) and i < before
        ]
        return [self._requests.pop(i)[1] for i in attaching]

    def _take(self, request_id: int, reply: Reply) -> bool:
        """Handles a reply. Returns that the stream was of use."""
        if isinstance(reply, CoordinatorBusyError):
            again = threading.Timer(BUSY_PAUSE_S, self._repeat, (request_id,))
            again.daemon = True
            again.start()
            return True
        with self._lock:
            command, future = self._requests.pop(request_id, (None, None))
            # Those that were put off, and are not repeated any more: see `_repeat`.
            overtaken = self._pop_attaches(request_id) if isinstance(command, Attach) else []
        if future is None:
            return True
        if isinstance(reply, Leases):
            self._on_leases(reply.leases)
        elif isinstance(reply, Attached):
            self._on_attached(reply)
        for each in overtaken:
            each.set_result(CoordinatorBusyError("it was put off, and a later one came"))
        future.set_result(reply)
        return True

    def _repeat(self, request_id: int) -> None:
        with self._lock:
            command, _ = self._requests.get(request_id, (None, None))
        # Meanwhile it was given messages, gave some back, or rests. By what it said before, it
        # would let go of the ones, and be given what it does not want any more (trap 154).
        try:
            again = self._attach() if isinstance(command, Attach) else command
        except SessionClosedError:
            return  # The consumer was dropped, so nobody waits for the answer.
        with self._lock:
            _, future = self._requests.get(request_id, (None, None))
            stream = self._stream
            if again is None or future is None or stream is None:
                return
            if isinstance(again, Attach) and request_id != self._attaches:
                return  # The later one is answered for both.
            self._requests[request_id] = again, future
            stream.send((request_id, again))
        stream.flush()

    def _fail_all(self, error: LogtxError) -> None:
        with self._lock:
            requests, self._requests = self._requests, {}
        for _, future in requests.values():
            future.set_result(error)

    def _stop(self) -> None:
        self._closing.set()
        self._finder.close()
        with self._lock:
            serving = self._serving
        if serving is not None:
            serving.end()

    # ---- the stream -----------------------------------------------------------------------------

    def _look_up(self) -> Checkpoint:
        return self._discovery.look_up(self._partition)

    def _open(self, address: str) -> Connection[_Item]:
        with self._lock:
            self._opened[address] = self._next_id
        request = self._encoded(0, self._attach())
        return Connection(address, request, self._encode, tls=self._tls)

    def _with_unanswered(self, command: Attach) -> Attach:
        with self._lock:
            said = [c for c, _ in self._requests.values() if isinstance(c, Acknowledge)]
        unanswered = (acks for each in said if each.era == command.era for acks in each.acks)
        return replace(command, held=joined([*command.held, *unanswered]))

    def _encode(self, item: _Item) -> pb.Request:
        return self._encoded(*item)

    def _encoded(self, request_id: int, command: _Command) -> pb.Request:
        if isinstance(command, Attach):
            command = self._with_unanswered(command)
        request = encode_request(request_id, command)
        if isinstance(command, Attach):
            request.attach.partition = self._partition
            request.attach.partition_count = self._partition_count
        return request


def _ignore(_decided: object) -> None:
    """Takes decisions, of which a consumer is told none."""
