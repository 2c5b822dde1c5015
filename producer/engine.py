"""What all transactions of a producer share: librdkafka, the session, and how to learn decisions.

`Producer` is the public face of this; a `Transaction` knows only this.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from itertools import takewhile
from typing import Final

from ..journal.control import TopicPartition
from ..journal.errors import (
    ConcurrentTransactionsError,
    ConfigError,
    ExpiredTransactionError,
    GroupBoundError,
    LogtxError,
    NotAllowedError,
    RequestTimedOutError,
    TransactionStateError,
)
from ..journal.log import Log
from ..journal.txid import TxId
from .ahead import Ahead
from .bookkeeping import again
from .config import ProducerConfig
from .coordinators import Coordinators, Outcome, Queries, Session
from .resolver import Resolver
from .sender import Sender
from .transaction import Transaction
from .wiring import open_producer

_log = logging.getLogger(__name__)

_TICK_MAX_S: Final = 0.05
_QUERY_MAX_S: Final = 5.0
"""One question for a decision; it is asked again until ``coordinator.timeout.ms`` has passed."""
_JOIN_S: Final = 5.0
_IN_VAIN_S: Final = 0.5
"""Longest wait of `close` for the abort of a transaction that nobody asked for; the coordinator
aborts it by itself when the session is gone."""


class Engine:
    """Shared by a producer's transactions; safe from any thread."""

    def __init__(
        self,
        config: ProducerConfig,
        log: Log,
        coordinators: Coordinators,
        close_log: Callable[[], None],
    ) -> None:
        self.config: Final = config
        self.fatal: LogtxError | None = None
        """Why the session is closed for good."""
        self._coordinators = coordinators
        self._close_log = close_log
        self._delay_s = config.registration_delay_ms / 1000
        self._guard = threading.Lock()
        self._connecting = threading.Lock()
        self._session: Session | None = None
        self._queries: Queries | None = None
        self._resolving_queries: Queries | None = None
        self._bound: set[str] = set()
        self._open: set[Transaction] = set()
        self._unregistered: dict[Transaction, float] = {}
        """Open ones that wrote to partitions → when to register these, in this order."""
        self._ahead = Ahead(allowed=config.begin_ahead)
        # A transaction key's next BEGIN would be refused until the one before is decided.
        in_flight_max = 1 if config.transaction_key else config.in_flight_max
        self._slots = threading.Semaphore(in_flight_max)
        self._closed = False
        self._resolver = Resolver(
            self._ask_outcome,
            timeout_s=config.coordinator_timeout_s,
            may_resend=lambda: self.fatal is None and not self._closed,
        )
        tick_s = min(max(self._delay_s / 2, 0.01), _TICK_MAX_S)
        self.sender: Final = Sender(
            open_producer(log, config), tick_s=tick_s, on_tick=self._on_tick
        )

    def check(self) -> None:
        """Raise what closed the producer, if it is closed."""
        if self.fatal is not None:
            raise again(self.fatal)
        self.check_not_closed()

    def check_not_closed(self) -> None:
        """Raise if the application closed the producer."""
        if self._closed:
            raise TransactionStateError("the producer is closed")

    @property
    def session(self) -> Session:
        """The session with the coordinator; only after `connect`."""
        assert self._session is not None
        return self._session

    @property
    def queries(self) -> Queries:
        """Questions to coordinators, as long as ``coordinator.timeout.ms``."""
        with self._guard:
            if self._queries is None:
                timeout_s = self.config.coordinator_timeout_s
                self._queries = self._coordinators.queries(timeout_s=timeout_s)
            return self._queries

    def connect(self) -> None:
        """Begin the session, which fences the predecessor of the same name; once."""
        self.check()
        if self._session is not None:
            return
        with self._connecting:
            if self._session is not None:
                return
            session = self._coordinators.session(
                producer_id=self.config.producer_id,
                transaction_group=self.config.transaction_group,
                generation=self.config.generation,
                timeout_s=self.config.coordinator_timeout_s,
                on_closed=self._on_closed,
            )
            try:
                session.connect()
            except BaseException:
                session.close()
                raise
            self._session = session

    def begin(self, timeout_ms: int, partitions: Iterable[TopicPartition]) -> Transaction:
        """Open a transaction; its TxId comes later.

        Raises:
            CoordinatorNotAvailableError, ProducerFencedError, …: as `Producer.begin_transaction`.
        """
        if timeout_ms < 1:
            raise ConfigError("a transaction's timeout must be at least 1 ms")
        self.connect()
        named = tuple(partitions)
        if not named and (transaction := self._take_ahead(timeout_ms)) is not None:
            return transaction
        self._take_slot()
        transaction = Transaction(self, named)
        with self._guard:
            self._open.add(transaction)
        self._send_begin(transaction, timeout_ms, named)
        return transaction

    def _take_ahead(self, timeout_ms: int) -> Transaction | None:
        now_s = time.monotonic()
        with self._guard:
            known = self._ahead.transaction
            alone = all(t is known for t in self._open)
            transaction = self._ahead.take(timeout_ms, now_s=now_s)
            self._ahead.begun(timeout_ms, alone=alone, now_s=now_s)
        return transaction

    def _send_begin(
        self, transaction: Transaction, timeout_ms: int, named: tuple[TopicPartition, ...]
    ) -> None:
        self.session.begin(transaction.on_began, timeout_ms=timeout_ms, partitions=named)
        self.sender.wake()

    def ending(self, transaction: Transaction) -> None:
        """The end of a transaction was asked for: begin the next, if it is sure to come."""
        with self._guard:
            timeout_ms = self._ahead.wanted
            alone = len(self._open) == 1 and transaction in self._open
            if timeout_ms is None or not alone or self._closed or self.fatal is not None:
                return
            if not self._slots.acquire(blocking=False):
                return
            following = Transaction(self, ())
            self._open.add(following)
            self._ahead.keep(following, time.monotonic())
        self._send_begin(following, timeout_ms, ())

    def _take_slot(self) -> None:
        key = self.config.transaction_key
        with self._guard:
            # Nobody but the caller can end it; one whose end was asked for is waited for.
            blocked = key is not None and any(t.is_open for t in self._open)
        if key is not None and blocked:
            raise ConcurrentTransactionsError(
                f"transaction key {key.key!r} has an open transaction: commit or abort it before"
                " the next one begins"
            )
        if not self._slots.acquire(timeout=self.config.coordinator_timeout_s):
            raise RequestTimedOutError(
                f"the last transaction of key {key.key!r} is not decided yet: begin again later"
                if key
                else f"{self.config.in_flight_max} transactions are open: end some, or raise "
                "transactions.in.flight.max"
            )

    def ended(self, transaction: Transaction) -> None:
        """A transaction needs nothing any more."""
        with self._guard:
            self._open.discard(transaction)
            self._unregistered.pop(transaction, None)
            self._ahead.ended(transaction, time.monotonic())
        self._slots.release()

    def wrote(self, transaction: Transaction) -> None:
        """It wrote to partitions that the coordinator may have to be told of, if it stays open."""
        with self._guard:
            if transaction in self._open:
                self._unregistered.setdefault(transaction, time.monotonic() + self._delay_s)

    def resolve(self, transaction: Transaction) -> None:
        """Learn the decision of a transaction whose end got no clear answer."""
        self._resolver.add(transaction)

    def bind_group(self, group: str) -> None:
        """Make sure that the consumer group's offsets belong to our transaction group; cached.

        Raises:
            GroupBoundError: they belong to another, which the message names.
        """
        if group in self._bound:
            return
        own = self.config.transaction_group
        binding = self.queries.bind_group(group, own)
        if binding.transaction_group != own:
            cure = (
                "use another consumer group with this transaction.key"
                if self.config.transaction_key
                else "set transaction.group to that one"
            )
            raise GroupBoundError(
                f"consumer group {group!r} commits its offsets in transaction group "
                f"{binding.transaction_group!r}, this producer is in {own!r}: {cure}"
            )
        self._bound.add(group)

    @property
    def queued(self) -> int:
        """Records whose reports were not served yet, those that wait for a TxId included."""
        with self._guard:
            kept = sum(transaction.kept for transaction in self._open)
        return kept + len(self.sender.producer)

    def flush(self, timeout_s: float) -> int:
        """Wait until every record has its report; how many are left after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        with self._guard:
            transactions = [] if self.sender.in_callback() else list(self._open)
        for transaction in transactions:
            transaction.await_sent(deadline_s)
        self.sender.flush(max(deadline_s - time.monotonic(), 0))
        return self.queued

    def close(self, timeout_s: float) -> None:
        """Abort what is open, send what is queued, and release everything."""
        if self._closed:
            return
        deadline_s = time.monotonic() + timeout_s
        with self._guard:
            transactions = list(self._open)
        if self.fatal is None:
            self._give_up(transactions, timeout_s)
        # Plain records are the application's too; those of transactions are settled by now.
        self.sender.flush(max(deadline_s - time.monotonic(), 0))
        self._closed = True
        self._resolver.close(_JOIN_S)
        self.sender.close(_JOIN_S)
        if self._session is not None:
            self._session.close()
        for transaction in transactions:
            transaction.abandon()
        for queries in (self._queries, self._resolving_queries):
            if queries is not None:
                queries.close()
        self._close_log()

    def _give_up(self, transactions: Iterable[Transaction], timeout_s: float) -> None:
        with self._guard:
            in_vain = self._ahead.transaction
        for transaction in transactions:
            transaction.give_up()
        wait([f for t in transactions if t is not in_vain and (f := t.future)], timeout=timeout_s)
        if in_vain is not None and in_vain.future is not None:
            # Whoever has nothing open must not wait for a coordinator that is not there.
            wait([in_vain.future], timeout=min(timeout_s, _IN_VAIN_S))

    def _ask_outcome(self, txid: TxId) -> Outcome:
        if self._resolving_queries is None:
            timeout_s = min(_QUERY_MAX_S, self.config.coordinator_timeout_s)
            self._resolving_queries = self._coordinators.queries(timeout_s=timeout_s)
        return self._resolving_queries.outcome(txid)

    def _on_closed(self, error: LogtxError) -> None:
        """The session is closed for good: fenced, or started twice."""
        if isinstance(error, NotAllowedError):
            # It is the reconnection that was not allowed; whoever holds a transaction of this
            # producer is told that it is over, whichever of the two it learnt first.
            error = ExpiredTransactionError(*error.args)
        self.fatal = self.fatal or error
        _log.warning("event=session_closed producer_id=%s", self.config.producer_id)
        with self._guard:
            transactions = list(self._open)
        for transaction in transactions:
            transaction.on_fatal(error)

    def _on_tick(self) -> bool:
        """On the sender's thread: register partitions of transactions that take longer."""
        if self._closed or self.fatal is not None:
            return bool(self._open)
        now_s = time.monotonic()
        with self._guard:
            in_vain = self._ahead.expired(now_s)
            due = list(takewhile(lambda t: self._unregistered[t] <= now_s, self._unregistered))
            # Before they are asked: one that writes to a further partition meanwhile comes again.
            for transaction in due:
                del self._unregistered[transaction]
        if in_vain is not None:
            in_vain.abort_async()
        for transaction in due:
            transaction.register_partitions()
        return bool(self._open)
