"""A branch: one writer's share of a transaction that another process, or another thread, owns.

1. The owner hands out `Transaction.branch_token`.
2. Each writer joins with it, draws a random nonce, and produces; every record carries the TxId and
   the nonce.
3. `finish` waits for the reports of its records and returns a summary.
4. The owner accepts the summaries that count, and commits. Every consumer drops the records of a
   branch that was not accepted (a failed or speculative task attempt).

Source: PIP-31, "Produce Messages" (many producers in one transaction).
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from ..journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    DataControl,
    TopicPartition,
    encode_data_control,
)
from ..journal.errors import (
    BrokerError,
    LogtxError,
    RequestTimedOutError,
    RetriableError,
    TransactionStateError,
)
from ..journal.fork import keep_from_children, refuse
from ..journal.txid import TxId
from .core.bookkeeping import copy_of
from .core.summary import NONCE_BITS, BranchSummary, read_token
from .core.tally import BranchTally
from .sender import Sender
from .sidecars import SidecarNames
from .succession import Send
from .writer import Record, Writer

if TYPE_CHECKING:
    from ..journal.logs.interface import Log
    from .coordinators import Coordinators, Queries

_LOG = logging.getLogger(__name__)
_CLOSE_S: Final = 5.0
"""Longest wait of `Branches.close` for the sender's thread, which nothing blocks for long."""

_B = TypeVar("_B", bound="Branch")


class Branch(Writer):
    """One writer's share of a transaction; `Transaction.branch` and `Branch.join` return it."""

    def __init__(
        self,
        sender: Sender,
        txid: TxId,
        delivery_timeout_s: float,
        *,
        on_partition: Callable[[], None] | None = None,
    ) -> None:
        """Draws a nonce and takes records at once; arguments as `Writer`'s."""
        nonce = secrets.randbits(NONCE_BITS) or 1
        super().__init__(sender, nonce, delivery_timeout_s, on_partition=on_partition)
        self._txid = txid
        control = encode_data_control(DataControl(branch=nonce))
        self._headers = [(TXID_HEADER, txid.to_bytes()), (TXCTL_HEADER, control)]
        self._begin_to_watch()
        self._settled = threading.Event()
        self._finished = False
        self._summary: BranchSummary | None = None
        """What `finish` returned, and returns from then on."""
        self._failure: LogtxError | None = None
        self._release: Callable[[], None] | None = None
        self._direct = True
        keep_from_children(self)

    @classmethod
    def join(
        cls,
        config: Mapping[str, Any],
        token: str,
        *,
        sidecar: bool | None = None,
        log: Log | None = None,
        coordinators: Coordinators | None = None,
    ) -> Self:
        """Joins a transaction of another process, through a producer of its own.

        Args:
            config: as a `Producer`'s; of logtx's own settings, only the time-outs and the
                registration delay matter here, and `transaction.sidecar.min.bytes`.
            token: the owner's `Transaction.branch_token`.
            sidecar: whether its records go to the sidecars of their topics, whatever the owner's
                do: see `Producer.begin_transaction`. None: as `transaction.sidecar.min.bytes`
                says; a branch counts its own bytes.
            log: the log to use instead of opening that of ``bootstrap.servers``.
            coordinators: how to reach coordinators, instead of by a connection to each.

        Raises:
            ConfigError: a setting or the token is not valid.
        """
        read_token(token)
        branches = Branches(config, log=log, coordinators=coordinators)
        try:
            return branches._join(cls, token, branches.close, sidecar)
        except BaseException:
            branches.close()
            raise

    @property
    def txid(self) -> TxId:
        """The id of the transaction that this is a branch of."""
        return self._txid

    @property
    def tally(self) -> BranchTally:
        """The count of its records and their reports."""
        return self._tally

    def finish(self, timeout: float | None = None) -> BranchSummary:
        """Waits for the reports of all records. Returns a summary of what was written.

        Once it has returned one, further calls return the same, whatever comes after that.

        Args:
            timeout: seconds; None: as long as records may take by ``delivery.timeout.ms``.

        Raises:
            BrokerError: a record failed; write all of it again in another branch.
            TransactionAbortedError, TransactionCommittedError: the transaction has ended.
            RequestTimedOutError: `timeout` passed; may be called again.
        """
        if self._summary is not None:
            return self._summary
        with self._lock:
            self._direct = False
            self._finished = True
            self._tally.close()
        bound_s = self._delivery_timeout_s + 1 if timeout is None else timeout
        if not self._tally.settled:
            self._sender.check_may_wait("call finish elsewhere")
            self._sender.hurry(self)
            try:
                self._settled.wait(bound_s)
            finally:
                self._sender.done(self)
        if self._failure is not None:
            raise copy_of(self._failure)
        if not self._tally.settled:
            raise RequestTimedOutError("records are not acknowledged yet: call again to wait on")
        if (flaw := self._tally.verified()) is not None:
            self._on_failure(flaw)
            assert self._failure is not None
            raise copy_of(self._failure)
        self._tally.raise_floors()
        self._tally.drop_callbacks()
        self._sender.ended(self._tally)
        self._summary = BranchSummary(self._txid, self._tally.branch, self._tally.ranges())
        return self._summary

    def close(self) -> None:
        """Releases the branch's producer; gives up records without a report."""
        with self._lock:
            self._direct = False
            self._finished = True
            release, self._release = self._release, None
        self._sender.ended(self._tally)
        if release is not None:
            release()

    def after_fork(self) -> None:
        """Makes every call raise ForkedError, in a child of the process that joined."""
        self._lock, self._release = threading.Lock(), None
        refuse(self)

    def __enter__(self) -> Self:
        """Begins a block that closes the branch at its end; call `finish` in it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the branch."""
        self.close()

    def fail(self, cause: LogtxError) -> None:
        """Takes no more records: the transaction has ended, or a record failed."""
        with self._lock:
            self._failure = self._failure or cause
            self._direct = False

    # ---- writer ---------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise copy_of(self._failure)
        if self._finished:
            raise TransactionStateError("the branch is finished: join again for another one")

    def _route(self, record: Record) -> None:
        self._send_waiting(record)

    def _on_settled(self) -> None:
        self._settled.set()

    def _on_failure(self, cause: LogtxError) -> None:
        self.fail(BrokerError(f"{cause}; write the work of this branch again in another one"))


class Branches:
    """Joins transactions of other processes, any number in sequence and in parallel.

    All branches share one producer: a new producer takes half a second for its first record, and so
    no task of a Spark job has to wait for that each time. Safe from any thread.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        log: Log | None = None,
        coordinators: Coordinators | None = None,
    ) -> None:
        """Opens the producer; arguments and errors are those of `Branch.join`."""
        from .config import ProducerConfig
        from .opening import open_producer, resources

        self._settings = settings = ProducerConfig.parse(config)
        opened = resources(config, settings, log, coordinators)
        log, coordinators, self._close_log, share = opened
        self._queries = coordinators.queries(timeout_s=settings.coordinator_timeout_s)
        self._delay_s = settings.registration_delay_ms / 1000
        self._registrars: set[_Registrar] = set()
        self._sender = Sender(
            partial(open_producer, log, settings),
            share=share,
            tick_s=min(max(self._delay_s / 2, 0.01), 0.05),
            delivery_timeout_s=settings.delivery_timeout_s,
            retry_backoff_ms=settings.retry_backoff_ms,
            queue_max=settings.queue_max,
            on_tick=self._on_tick,
            on_stopped=self._on_stopped,
        )
        self._sidecars = SidecarNames(self._queries.open_sidecars, self._sender.check_may_wait)

    def join(self, token: str, *, sidecar: bool | None = None) -> Branch:
        """Returns a branch of the transaction that the token names; close it when it is finished.

        Args:
            token: as of `Branch.join`.
            sidecar: as of `Branch.join`.

        Raises:
            ConfigError: the token is not valid.
        """
        return self._join(Branch, token, _nothing, sidecar)

    def _join(
        self, kind: type[_B], token: str, release: Callable[[], None], sidecar: bool | None
    ) -> _B:
        txid = read_token(token)
        branch = kind(self._sender, txid, self._settings.delivery_timeout_s)
        min_bytes = self._settings.sidecar_from(sidecar)
        if min_bytes is not None:
            branch.use_sidecars(self._sidecars, min_bytes)
        registrar = _Registrar(self._queries, branch, self._delay_s)

        def end() -> None:
            self._registrars.discard(registrar)
            registrar.close()
            release()

        branch._release = end
        self._registrars.add(registrar)
        self._sender.wake()
        return branch

    def _on_stopped(self, send: Send) -> None:
        for registrar in self._registrars.copy():
            if registrar.branch is not None:
                registrar.branch.stopped(send)

    def _on_tick(self) -> bool:
        registrars = self._registrars.copy()
        for registrar in registrars:
            registrar.tick()
        return bool(registrars)

    def close(self) -> None:
        """Releases the producer; gives up records without a report."""
        for registrar in self._registrars.copy():
            registrar.close()
        self._sender.close(_CLOSE_S)
        self._queries.close()
        self._close_log()


def _nothing() -> None:
    """Leaves a shared producer to the other branches."""


class _Registrar:
    """Tells the coordinator of the partitions that a joined branch writes to.

    Asks on a thread of its own, because its requests block.
    """

    def __init__(self, queries: Queries, branch: Branch, delay_s: float) -> None:
        self._queries = queries
        self.branch: Branch | None = branch
        self._due_s = time.monotonic() + delay_s
        self._registered: set[TopicPartition] = set()
        self._running: Future[None] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def tick(self) -> None:
        """Registers new partitions, unless a request is under way."""
        branch = self.branch
        if branch is None or (self._running is not None and not self._running.done()):
            return
        if time.monotonic() < self._due_s:
            return
        first_offsets = dict(branch.tally.first_offsets())
        new = {key: first_offsets[key] for key in first_offsets.keys() - self._registered}
        if new:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="logtx-branch")
            self._running = self._pool.submit(self._register, branch, new)

    def _register(self, branch: Branch, first_offsets: dict[TopicPartition, int]) -> None:
        try:
            self._queries.add_partitions(branch.txid, first_offsets)
        except RetriableError:
            _LOG.info("branch_registration_deferred txid=%s", branch.txid)
        except LogtxError as error:
            branch.fail(error)
        else:
            self._registered |= first_offsets.keys()

    def close(self) -> None:
        """Sends no more requests."""
        self.branch = None
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
