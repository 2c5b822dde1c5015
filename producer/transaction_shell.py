"""One transaction of a producer: the shell that joins its book to librdkafka and a coordinator.

The steps, with the phases of `bookkeeping` (Transactional Messaging in Kafka, "Transaction flow"):

1. The BEGIN was sent before the application got this object. Until its TxId is known (on a thread
   that hands out answers), records (`EarlyWriter`) and offsets are kept; from then on they are sent
   directly. So a single thread can have hundreds of transactions under way without waiting for any.
2. `commit` closes the tally; the sender flushes until the last report has come.
3. The thread that serves that report sends the request to end the transaction.
4. The answer, on such a thread, completes the future. If an answer does not tell the decision, the
   engine's resolver asks for it.

Locks: the transaction's lock is never held while a session is called or a future completed, and
nothing that holds it waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ..coordinator.protocol.commands import Action, Began, Decided, Done, Outcome
from ..journal.acks import Acks
from ..journal.control import OWN_BRANCH, TopicPartition
from ..journal.errors import (
    BrokerError,
    DoubleStartError,
    ForkedError,
    GroupBoundError,
    LogtxError,
    ProducerFencedError,
    RequestTimedOutError,
    RetriableError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionConflictError,
    UnknownOutcomeError,
)
from ..journal.fork import forked_error, refuse
from ..journal.records.types import OffsetStep
from ..journal.state import State
from ..journal.txid import TxId
from .branch import Branch
from .core.bookkeeping import (
    EndResult,
    Phase,
    TransactionBook,
    abort_only,
    conflict,
    copy_of,
    end_result,
)
from .core.summary import BranchSummary, make_token
from .early_writer import EarlyWriter
from .finishing import Finishing, not_finished
from .futures import EndFuture
from .transaction import Transaction
from .writer import Record

if TYPE_CHECKING:
    from ..journal.offset_source import OffsetSource
    from .engine import Engine

_LOG = logging.getLogger(__name__)


class Listener(Protocol):
    """Keeps the open transactions of a producer; they report to it."""

    def began(self, transaction: TransactionShell, txid: TxId) -> None:
        """Notes the transaction's TxId."""

    def wrote(self, transaction: TransactionShell) -> None:
        """Notes that the transaction wrote to partitions that may have to be registered."""

    def ending(self, transaction: TransactionShell) -> None:
        """Notes that the end of the transaction was asked for."""

    def ended(self, transaction: TransactionShell) -> None:
        """Notes that the transaction needs nothing any more."""


class TransactionShell(EarlyWriter, Transaction):
    """Implements `Transaction`; the calls beyond that are for the producer's own modules.

    Called by `OpenTransactions`: `on_began`, `on_decided`, `ask_whether_over`, `on_fatal`,
    `register_partitions`, `give_up`, `abandon`, `kept`, `await_sent`, `future`, `is_untouched`.
    Called by `Resolver`: `resolve_until`, `resolved`, `send_end_again`, `unresolved`.
    """

    def __init__(
        self, engine: Engine, listener: Listener, partitions: Iterable[TopicPartition]
    ) -> None:
        """Sends nothing: `listener` sends the BEGIN, and passes its answer to `on_began`.

        Args:
            engine: the part that all transactions of the producer share.
            listener: gets reports of what happens.
            partitions: data partitions that the BEGIN names.
        """
        super().__init__(
            engine.sender,
            OWN_BRANCH,
            engine.config.delivery_timeout_s,
            begin_timeout_s=engine.config.coordinator_timeout_s,
            on_partition=self._announce,
        )
        self._engine = engine
        self._listener = listener
        self._book = TransactionBook(self._tally, partitions)
        self._begin_error: LogtxError | None = None
        self._input_backlog: list[Callable[[], None]] = []
        """Sends what was said of the input before the TxId is known."""
        # `_future` is returned to repeated calls; `_pending` is the same one until it is completed.
        self._future: EndFuture | None = None
        self._pending: EndFuture | None = None
        self._end_error: LogtxError | None = None
        self._asked_to_end = False
        """Whether the application called for commit or abort."""
        self._resolve_until_s = 0.0
        self._holds_slot = True
        self._not_committed: list[Callable[[], None]] = []

    # ---- the calls of `Transaction`; `produce` is the writer's ----------------------------------

    @property
    def txid(self) -> TxId:
        deadline_s = self._engine.config.coordinator_timeout_s * 2
        if self._txid is None:
            self._sender.check_may_wait("ask for the TxId elsewhere")
        if self._txid is None and not self._flowing.wait(deadline_s):
            raise RequestTimedOutError("the coordinator did not answer the BEGIN in time")
        with self._lock:
            self._check_begun()
            assert self._txid is not None
            return self._txid

    @property
    def transaction_group(self) -> str:
        return self._engine.config.transaction_group

    @property
    def is_open(self) -> bool:
        return self._book.phase is Phase.OPEN

    @property
    def is_untouched(self) -> bool:
        """Whether nothing happened to it since it was begun, so that it can serve as a new one."""
        return self._book.takes_records and self._begin_error is None

    @property
    def is_decided(self) -> bool:
        return self._book.phase in (Phase.COMMITTED, Phase.ABORTED)

    @property
    def is_committed(self) -> bool:
        return self._book.phase is Phase.COMMITTED

    def send_offsets(
        self, source: OffsetSource | str, steps: Sequence[OffsetStep] | None = None, /
    ) -> None:
        self._check()
        if isinstance(source, str):
            if steps is None:
                raise TypeError("send_offsets takes a consumer, or a group and its steps")
            group = source
            self._engine.bind_group(group)
        else:
            group = source.group_id
            self._engine.bind_group(group)
            # The last step that may fail: the consumer's next steps will go on from these.
            steps = source.offset_steps()
            if steps:
                self.on_not_committed(source.lose_steps())
        frozen = tuple(steps)
        if not frozen:
            return
        with self._lock:
            self._check_locked()
            self._book.requests += 1
            if self._txid is None:
                self._input_backlog.append(partial(self._request_offsets, group, frozen))
                return
        self._request_offsets(group, frozen)

    def send_acks(
        self,
        group: str,
        acks: Sequence[Acks],
        /,
        *,
        delay: float = 0.0,
        on_reply: Callable[[LogtxError | None], None] | None = None,
        era: int = 0,
    ) -> None:
        self._check()
        delay_ms = round(delay * 1000)
        request = partial(self._request_acks, group, tuple(acks), delay_ms, era, on_reply)
        with self._lock:
            self._check_locked()
            self._book.requests += 1
            if self._txid is None:
                self._input_backlog.append(request)
                return
        request()

    def commit(self, timeout: float | None = None, *, finished: bool = False) -> Outcome:
        if finished or not self.is_decided:
            self._sender.check_may_wait("call commit_async")
        future = self.commit_async(finished=finished)
        try:
            return self._wait(future, timeout)
        except RequestTimedOutError:
            if not (finished and self.is_committed):
                raise
            raise not_finished(self.txid, "the time to wait is over") from None

    def commit_async(self, *, finished: bool = False) -> Future[Outcome]:
        self._asked_to_end = True
        committed = self._end_async(Action.COMMIT)
        if not finished:
            return committed
        engine, future = self._engine, EndFuture(self._engine.callbacks)
        timeout_s = engine.config.coordinator_timeout_s
        asking = Finishing(engine.session, future, timeout_s=timeout_s)
        # On the thread that decides: the one for callbacks may be the application's for long.
        Future.add_done_callback(committed, asking.begin)
        return future

    def abort(self, timeout: float | None = None) -> Outcome:
        return self._wait(self.abort_async(), timeout)

    def abort_async(self) -> Future[Outcome]:
        self._asked_to_end = True
        return self._end_async(Action.ABORT)

    def _give_up_reports(self, error: BaseException) -> None:
        with self._lock:
            self._break_off(error)

    @property
    def _was_ended(self) -> bool:
        return self._asked_to_end

    @property
    def was_ended_unasked(self) -> bool:
        """Whether it is not open any more, though the application asked neither for commit nor for
        abort."""
        return not self._asked_to_end and not self.is_open

    def branch(self) -> Branch:
        txid = self.txid
        branch = Branch(
            self._engine.sender,
            txid,
            self._engine.config.delivery_timeout_s,
            on_partition=self._announce,
        )
        branch.use_sidecars_as(self)
        with self._lock:
            self._check_locked()
            self._book.add_branch(branch.tally)
        return branch

    def branch_token(self) -> str:
        return make_token(self.txid)

    def accept(self, summary: BranchSummary) -> None:
        txid = self.txid
        with self._lock:
            self._check_locked()
            self._book.accept(txid, summary)
        self._send_part()

    # ---- ends -----------------------------------------------------------------------------------

    def _end_async(self, end: Action) -> Future[Outcome]:
        replaced: EndFuture | None = None
        resolve = False
        with self._lock:
            try:
                future, replaced, resolve = self._ask(end)
            except LogtxError as error:
                failed = EndFuture(self._engine.callbacks)
                failed.finish(error)
                return failed
            except BaseException as error:
                self._break_off(error)
                raise
            finally:
                self._set_direct()
        if replaced is not None:
            _finish(replaced, TransactionAbortedError("aborted before the commit was sent"))
        if resolve:
            self._engine.resolve(self)
        else:
            self._advance()
            self._listener.ending(self)
        return future

    def _break_off(self, error: BaseException) -> None:
        """Lets an abort succeed, whatever a signal handler's exception left half done."""
        self._tally.give_up()
        self._book.break_off(BrokerError(f"the call was interrupted by {error!r}"))

    def _ask(self, end: Action) -> tuple[Future[Outcome], EndFuture | None, bool]:
        """Asks for an end, under the lock. Returns (future, future that it replaces, resolve?)."""
        self._check_begun()
        # Set before the tally is closed: a record admitted from now on finds this False.
        self._direct = False
        book = self._book
        if book.ask(end):
            replaced = self._pending
            self._future = self._pending = EndFuture(self._engine.callbacks)
            return self._future, replaced, False
        if book.phase is Phase.UNRESOLVED:
            book.sent()
            self._resolve_until_s = 0.0
            self._future = self._pending = EndFuture(self._engine.callbacks)
            return self._future, None, True
        if self._future is None or book.end is not end:
            # It was decided without having been asked to, for example by a time-out of the
            # coordinator.
            assert self._txid is not None
            book.end = end
            self._future = EndFuture(self._engine.callbacks)
            committed = book.phase is Phase.COMMITTED
            self._future.finish(_told_by_the_way(self._txid, committed=committed))
        return self._future, None, False

    def _wait(self, future: Future[Outcome], timeout: float | None) -> Outcome:
        if not future.done():
            # A callback that asked for an abort: it goes on.
            self._sender.check_may_wait("call abort_async")
        config = self._engine.config
        # Everything that the future waits for has one of these time-outs; their sum is never
        # reached.
        requests = 6 + self._book.parts_left  # the last two: until it is finished
        bound_s = config.delivery_timeout_s + requests * config.coordinator_timeout_s + 1
        try:
            return future.result(bound_s if timeout is None else timeout)
        except TimeoutError:
            raise RequestTimedOutError(
                "the transaction is not decided yet: call again to go on waiting"
            ) from None

    def _advance(self) -> None:
        """Does what is due: flushes, or sends the request to end the transaction."""
        try:
            self._do_what_is_due()
        except BaseException:
            # A signal handler's may come before the request was sent. The resolver sends it again.
            if self._book.phase is Phase.SENT:
                self._engine.resolve(self)
            raise

    def _do_what_is_due(self) -> None:
        self._send_part()
        with self._lock:
            book = self._book
            if book.phase is not Phase.ENDING or self._txid is None or self._backlog:
                return
            ready, settled = book.ready, book.own.settled
            flaw = book.own.verified() if ready and book.end is Action.COMMIT else None
            failed: EndFuture | None = None
            if flaw is not None:
                failed, ready = self._fail_locked(flaw), False
            if ready:
                action = book.sent()
                writes, parts = book.writes(), book.parts
        if flaw is not None:
            _finish(failed, abort_only(flaw))
        if not settled:
            self._sender.hurry(self)
            # If it was settled or decided in between, nothing else would call `done`.
            if self._tally.settled or self.is_decided:
                self._sender.done(self)
        if ready:
            self._engine.session.end(self._txid, action, writes, self._on_end_reply, parts=parts)

    def _send_part(self) -> None:
        """Sends a part of what accepted branches wrote, if the commit has no room for it."""
        try:
            with self._lock:
                due = self._book.next_part() if self._txid is not None else None
            if due is not None:
                assert self._txid is not None
                self._engine.session.add_writes(self._txid, *due, self._on_part_reply)
        except BaseException as error:
            # Of a signal handler: the part may not have been sent, and nothing would answer it.
            self._on_failure(BrokerError(f"the call was interrupted by {error!r}"))
            raise

    def _on_part_reply(self, reply: Done | LogtxError) -> None:
        with self._lock:
            self._book.part_answered()
        if isinstance(reply, LogtxError):
            self._on_request_failed(reply)
        else:
            self._send_part()
            self._advance()

    def _on_end_reply(self, reply: Outcome | LogtxError) -> None:
        told = end_result(reply.state if isinstance(reply, Outcome) else reply)
        with self._lock:
            if self._book.phase is not Phase.SENT:
                return
            if isinstance(reply, LogtxError):
                self._end_error = reply
            if told is EndResult.REFUSED:
                assert isinstance(reply, LogtxError)
                self._book.refused(reply)
                future = self._take_pending()
        if told is EndResult.REFUSED:
            assert isinstance(reply, LogtxError)
            _finish(future, abort_only(reply))
        elif told in (EndResult.COMMITTED, EndResult.ABORTED):
            self._decide(reply)
        elif self._book.end is Action.ABORT and self._engine.fatal is not None:
            # Its session is gone for good, and the transaction with it: asking is of no use.
            self.unresolved()
        else:
            self._engine.resolve(self)

    def _decide(self, reply: Outcome | LogtxError) -> None:
        """Keeps the decision and completes the future."""
        result = end_result(reply.state if isinstance(reply, Outcome) else reply)
        committed = result is EndResult.COMMITTED
        assert self._txid is not None
        with self._lock:
            if self._book.phase in (Phase.COMMITTED, Phase.ABORTED):
                return
            wanted = self._book.end
            told = reply if isinstance(reply, TransactionConflictError) else None
            self._book.decided(committed=committed, conflict=told)
            self._direct = False
            dropped = self._drop_backlog()
            callbacks = [] if committed else self._not_committed
            future = self._take_pending()
        self._sender.done(self)
        self._on_dropped(dropped)
        self._tally.drop_callbacks()
        for callback in callbacks:
            callback()
        outcome = (
            reply
            if isinstance(reply, Outcome)
            else _told_by_the_way(self._txid, committed=committed)
        )
        # Comes first: the thread that waits for the future may begin the next transaction at once.
        self._release()
        if committed == (wanted is Action.COMMIT):
            _finish(future, outcome)
        elif committed:
            _finish(future, TransactionCommittedError("the transaction is committed already"))
        else:
            _finish(future, self._aborted_error(reply))

    def _aborted_error(self, reply: Outcome | LogtxError) -> LogtxError:
        """Returns why a commit found its transaction aborted, as precisely as it is known."""
        for error in (self._engine.fatal, self._end_error, reply):
            if isinstance(error, ProducerFencedError | DoubleStartError):
                return copy_of(error)
        if isinstance(reply, LogtxError):
            return copy_of(reply)
        return TransactionAbortedError("the transaction was aborted: redo its work")

    def _take_pending(self) -> EndFuture | None:
        """Takes the future to be completed, under the lock, in the step that ends the wait.

        A later call gets another future.
        """
        future, self._pending = self._pending, None
        return future

    def _release(self) -> None:
        with self._lock:
            held, self._holds_slot = self._holds_slot, False
        if held:
            self._sender.ended(self._tally)
            self._listener.ended(self)

    # ---- resolution: called by the resolver, on its own thread ----------------------------------

    def resolve_until(self, timeout_s: float) -> float:
        """Returns the deadline of the search, monotonic clock; the first call sets it."""
        self._resolve_until_s = self._resolve_until_s or time.monotonic() + timeout_s
        return self._resolve_until_s

    def resolved(self, outcome: Outcome) -> None:
        """Takes over the decision that the coordinator told the resolver."""
        self._decide(outcome)

    def send_end_again(self) -> None:
        """Sends the request again: it is still open, so the request never arrived.

        The request names its TxId, so repeating it is safe.
        """
        with self._lock:
            book = self._book
            action, writes, parts = book.end, book.writes(), book.parts
        assert self._txid is not None
        assert action is not None
        self._engine.session.end(self._txid, action, writes, self._on_end_reply, parts=parts)

    def unresolved(self) -> None:
        """Gives up: the decision could not be learnt in time."""
        with self._lock:
            if self._book.phase is not Phase.SENT:
                return
            self._book.unresolved()
            future = self._take_pending()
            cause, abort = self._end_error, self._book.end is Action.ABORT
        if abort:
            error = copy_of(
                self._engine.fatal or cause or RequestTimedOutError("abort unconfirmed")
            )
        else:
            error = UnknownOutcomeError(
                f"whether transaction {self._txid} is committed could not be learnt in time: ask "
                "Producer.outcome() or commit again; never assume an abort"
            )
        error.__cause__ = cause
        _finish(future, error)
        self._release()

    # ---- what the session and the engine report -------------------------------------------------

    def on_began(self, reply: Began | LogtxError) -> None:
        """Takes the answer to BEGIN: sends what was kept."""
        kept: list[Callable[[], None]] = []
        dropped: list[Record] = []
        with self._lock:
            if isinstance(reply, LogtxError):
                self._begin_error = reply
                self._book.fail(reply)
                dropped = self._drop_backlog()
                future = self._take_pending()
            else:
                self._begin(reply.txid)
                kept, self._input_backlog = self._input_backlog, []
        if isinstance(reply, LogtxError):
            self._flowing.set()
            self._on_dropped(dropped)
            _finish(future, copy_of(reply))
            self._release()
            return
        self._listener.began(self, reply.txid)
        for send in kept:
            send()
        if not self._drain():
            self._sender.retry(self._drain)

    def on_decided(self, decided: Decided) -> None:
        """Takes a decision that the coordinator made unasked: from now on nothing is produced."""
        error = conflict(decided)
        if error is not None:
            self._on_request_failed(error)

    def ask_whether_over(self) -> None:
        """Asks the coordinator whether it has ended the transaction. `on_decided` may be lost."""
        if self._book.phase is Phase.OPEN and self._txid is not None:
            self._engine.session.outcome(self._txid, self._on_told_whether_over)

    def _on_told_whether_over(self, reply: Outcome | LogtxError) -> None:
        if isinstance(reply, LogtxError):
            return  # It is asked again.
        if reply.state is State.UNKNOWN:
            # No commit of it was taken, and its timeout is over: it was aborted, long ago.
            self._on_request_failed(
                TransactionAbortedError(
                    f"transaction {reply.txid} is over: it was not ended in time"
                )
            )
        else:
            self.on_decided(Decided(reply.txid, reply.state, reply.reason))

    @property
    def known_txid(self) -> TxId | None:
        """Its TxId; None before the answer to its BEGIN."""
        return self._txid

    @property
    def future(self) -> EndFuture | None:
        """The future of its commit or abort; None until one is asked for."""
        return self._future

    def on_not_committed(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once it turns out to be aborted; at once if it is decided already.

        Then another thread has ended it meanwhile, and what it is told of is no part of it.
        """
        with self._lock:
            is_decided = self._book.phase in (Phase.COMMITTED, Phase.ABORTED)
            if not is_decided:
                self._not_committed.append(callback)
        if is_decided:
            callback()

    def give_up(self) -> None:
        """Aborts, because the producer closes, unless its end was asked for."""
        if self.is_open:
            self._end_async(Action.ABORT)

    def forget(self) -> None:
        """Aborts, because the application did not get it, and frees its place at once."""
        self.give_up()
        self._release()

    def abandon(self) -> None:
        """Ends the wait for the decision: the producer is closed, so nothing else would end it."""
        self.unresolved()
        with self._lock:
            future = self._take_pending()
            dropped = self._drop_backlog()
        self._on_dropped(dropped)
        _finish(future, RequestTimedOutError("the producer was closed before it ended"))

    def after_fork(self) -> None:
        """Makes every call raise ForkedError, in a child, and what waits for its end."""
        # In the parent another thread may have held the former ones.
        self._lock, self._flowing = threading.Lock(), threading.Event()
        self._begin_error = forked_error("transaction")
        self._flowing.set()
        refuse(self)
        if self._future is not None:
            self._future.after_fork()

    def _abort_after(self, error: BaseException, *, interrupted: bool) -> None:
        if not isinstance(self._begin_error, ForkedError):
            super()._abort_after(error, interrupted=interrupted)

    def on_fatal(self, error: LogtxError) -> None:
        """Fails the transaction: the session is closed for good."""
        with self._lock:
            future = self._take_pending() if self._book.phase is Phase.ENDING else None
            self._book.fail(error)
            self._direct = False
            dropped = self._drop_backlog()
        self._sender.done(self)
        self._on_dropped(dropped)
        _finish(future, copy_of(error))

    def extend(self) -> None:
        """Asks the coordinator to begin the timeout anew, without waiting."""
        with self._lock:
            is_open = self._book.phase in (Phase.OPEN, Phase.ENDING) and self._txid is not None
        if is_open:
            assert self._txid is not None
            self._engine.session.extend(self._txid, self._on_extended)

    def _on_extended(self, reply: Done | LogtxError) -> None:
        if isinstance(reply, TransactionAbortedError | TransactionCommittedError):
            self._on_request_failed(reply)
        elif isinstance(reply, LogtxError):
            # It may be extended by the next call, and commit within its timeout if not.
            _LOG.warning("not_extended txid=%s error=%s", self._txid, reply)

    def register_partitions(self) -> None:
        """Tells the coordinator of partitions written to, unless the decision will name them."""
        with self._lock:
            phase = self._book.phase
            new = self._book.to_register() if phase is Phase.OPEN else {}
        if phase in (Phase.ENDING, Phase.SENT):
            # A commit that fails takes the transaction back to OPEN.
            self._announce()
        elif new:
            assert self._txid is not None, "no record is acknowledged before"
            self._engine.session.add_partitions(self._txid, new, partial(self._on_registered, new))

    def _announce(self) -> None:
        self._listener.wrote(self)

    def _on_registered(
        self, partitions: Iterable[TopicPartition], reply: Done | LogtxError
    ) -> None:
        if isinstance(reply, RetriableError):
            with self._lock:
                self._book.not_registered(partitions)
            self._announce()
        elif isinstance(reply, LogtxError):
            self._on_request_failed(reply)

    def _request_offsets(self, group: str, steps: Sequence[OffsetStep]) -> None:
        assert self._txid is not None
        self._engine.session.add_offsets(self._txid, group, steps, self._on_input)

    def _request_acks(
        self,
        group: str,
        acks: Sequence[Acks],
        delay_ms: int,
        era: int,
        on_reply: Callable[[LogtxError | None], None] | None,
    ) -> None:
        assert self._txid is not None
        replied = partial(self._on_acks, on_reply)
        session = self._engine.session
        session.add_acks(self._txid, group, acks, replied, delay_ms=delay_ms, era=era)

    def _on_acks(
        self, on_reply: Callable[[LogtxError | None], None] | None, reply: Done | LogtxError
    ) -> None:
        if on_reply is not None:
            on_reply(reply if isinstance(reply, LogtxError) else None)
        self._on_input(reply)

    def _on_input(self, reply: Done | LogtxError) -> None:
        with self._lock:
            self._book.requests -= 1
        if isinstance(reply, GroupBoundError):
            self._engine.forget_bindings()
        if isinstance(reply, LogtxError):
            self._on_request_failed(reply)
        else:
            self._advance()

    def _on_request_failed(self, error: LogtxError) -> None:
        if isinstance(error, TransactionAbortedError | TransactionCommittedError):
            # Only if no request to end it is under way: the answer to that would say it too.
            if self._book.phase in (Phase.OPEN, Phase.ENDING):
                self._decide(error)
        else:
            self._on_failure(error)

    # ---- writer ---------------------------------------------------------------------------------

    def _on_settled(self) -> None:
        self._sender.done(self)
        self._advance()

    def _on_failure(self, cause: LogtxError) -> None:
        with self._lock:
            future = self._fail_locked(cause)
        _finish(future, abort_only(cause))

    def _fail_locked(self, cause: LogtxError) -> EndFuture | None:
        """Makes it abort-only. Returns the future of a commit that fails because of it, or None."""
        future = self._take_pending() if self._book.fail(cause) else None
        self._set_direct()
        return future

    def _tell_failed(self, future: EndFuture, cause: LogtxError) -> None:
        _finish(future, abort_only(self._book.cause or cause))

    @property
    def _takes_records(self) -> bool:
        return self._book.takes_records

    def _check_begun(self) -> None:
        if self._begin_error is not None:
            raise copy_of(self._begin_error)

    def _check(self) -> None:
        self._engine.check()
        with self._lock:
            self._check_locked()

    def _check_locked(self) -> None:
        self._check_begun()
        self._book.check_open()


def _told_by_the_way(txid: TxId, *, committed: bool) -> Outcome:
    """Returns the outcome of a transaction whose decision another request's answer told.

    Whether it is finished, nobody said: its markers may be missing (trap 139).
    """
    return Outcome(txid, State.COMMITTING if committed else State.ABORTED)


def _finish(future: EndFuture | None, result: Outcome | LogtxError) -> None:
    """Completes a future, if there is one; never under a lock."""
    if future is not None:
        future.finish(result)
