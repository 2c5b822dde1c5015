"""What all transactions of a producer share: librdkafka, the session, and the resolver.

Stands below the transactions: they use it. It sees one only through the resolver's protocol
`Undecided`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Final, Self

from ..coordinator.client.session import SessionOptions
from ..coordinator.protocol.commands import Decided, GroupOffsets, Outcome
from ..journal.control import TopicPartition
from ..journal.errors import (
    ClosedError,
    CoordinatorNotAvailableError,
    ExpiredTransactionError,
    GroupBoundError,
    LogtxError,
    NotAllowedError,
    RequestTimedOutError,
)
from ..journal.fork import refuse
from ..journal.logs.interface import Log
from ..journal.txid import TxId
from .config import ProducerConfig
from .coordinators import Coordinators, Queries, Session
from .core.bookkeeping import copy_of
from .futures import Callbacks
from .opening import open_producer
from .resolver import Resolver, Undecided
from .sender import Sender
from .sidecars import SidecarNames
from .succession import Send

_LOG = logging.getLogger(__name__)

_TICK_MAX_S: Final = 0.05
"""Longest interval of the sender's tick; more registers partitions later than they are due."""
_QUERY_MAX_S: Final = 5.0
"""Time-out of one question for a decision.

It is asked again until ``coordinator.timeout.ms`` has passed. A longer time-out waits longer for a
coordinator that does not answer, before another one is tried.
"""
_JOIN_S: Final = 5.0
"""Longest wait of `close` for each of the producer's own threads; none of them blocks for long."""


class Engine:
    """The part that a producer's transactions share; safe from any thread."""

    def __init__(
        self,
        config: ProducerConfig,
        log: Log,
        coordinators: Coordinators,
        share: Hashable | None,
        *,
        on_tick: Callable[[], bool],
        on_stopped: Callable[[Send], None],
        on_fatal: Callable[[LogtxError], None],
        on_decided: Callable[[Decided], None],
    ) -> None:
        """Opens librdkafka's producer; only `connect` asks the coordinator.

        Args:
            config: the producer's.
            log: the log that records are written to.
            coordinators: how to reach coordinators.
            share: see `Sender`.
            on_tick: called often on the sender's thread; returns whether transactions are open.
            on_stopped: called on that thread with the `send` of a producer that stopped for good.
            on_fatal: called once if the session is closed for good, after `fatal` is set.
            on_decided: called with decisions that the producer did not ask for.
        """
        self.config: Final = config
        self.fatal: LogtxError | None = None
        """Why the session is closed for good; None while it is not."""
        self.closed = False
        """Whether the application closed the producer."""
        self._coordinators = coordinators
        self.callbacks: Final = Callbacks("logtx-callbacks")
        """Calls the callbacks of the transactions' futures."""
        self._on_fatal = on_fatal
        self._on_decided = on_decided
        self._guard = threading.Lock()
        self._connecting = threading.Lock()
        self._session: Session | None = None
        self._queries: Queries | None = None
        self._resolving_queries: Queries | None = None
        self._bound: set[str] = set()
        self._resolver = Resolver(
            self._ask_outcome,
            timeout_s=config.coordinator_timeout_s,
            may_resend=lambda: self.fatal is None and not self.closed,
        )
        tick_s = min(max(config.registration_delay_ms / 2000, 0.01), _TICK_MAX_S)
        self.sender: Final = Sender(
            partial(open_producer, log, config),
            share=share,
            tick_s=tick_s,
            delivery_timeout_s=config.delivery_timeout_s,
            retry_backoff_ms=config.retry_backoff_ms,
            queue_max=config.queue_max,
            on_tick=on_tick,
            on_stopped=on_stopped,
            on_delivery=config.librdkafka.get("on_delivery"),
            username=config.librdkafka.get("sasl.username"),
        )

        self.sidecars: Final = SidecarNames(self._open_sidecars, self.sender.check_may_wait)
        """The sidecars of topics, opened when they are first asked for."""

    @classmethod
    def closed_one(cls) -> Self:
        """Returns one that is closed, and has nothing but that."""
        closed = cls.__new__(cls)
        closed.fatal, closed.closed = None, True
        return closed

    def check(self) -> None:
        """Raises what closed the producer, if it is closed."""
        if self.fatal is not None:
            raise copy_of(self.fatal)
        self.check_not_closed()

    def check_not_closed(self) -> None:
        """Raises ClosedError if the application closed the producer."""
        if self.closed:
            raise ClosedError("Producer has been closed")

    @property
    def session(self) -> Session:
        """The session with the coordinator; there is one only after `connect`."""
        assert self._session is not None
        return self._session

    @property
    def queries(self) -> Queries:
        """Requests without a session, with ``coordinator.timeout.ms`` as their time-out."""
        with self._guard:
            if self._queries is None:
                timeout_s = self.config.coordinator_timeout_s
                self._queries = self._coordinators.queries(timeout_s=timeout_s)
            return self._queries

    def connect(self, timeout_s: float | None = None) -> None:
        """Begins the session, which fences the predecessor of the same name. Does so once.

        Args:
            timeout_s: seconds; None, or more than that: ``coordinator.timeout.ms``.

        Raises:
            RequestTimedOutError: no coordinator answered in `timeout_s`.
            CoordinatorNotAvailableError: nor in ``coordinator.timeout.ms``.
            ProducerFencedError, DoubleStartError: another producer has this name.
        """
        self.check()
        if self._session is not None:
            return
        with self._connecting:
            if self._session is not None:
                return
            config = self.config
            options = SessionOptions(
                producer_id=config.producer_id,
                transaction_group=config.transaction_group,
                generation=config.generation,
                timeout_s=config.coordinator_timeout_s,
            )
            session = self._coordinators.session(options, self._on_closed, self._on_decided)
            try:
                session.connect(timeout_s)
            except CoordinatorNotAvailableError as error:
                session.close()
                if timeout_s is None or timeout_s >= config.coordinator_timeout_s:
                    raise
                raise RequestTimedOutError(f"within {timeout_s:g} s: {error}") from error
            except BaseException:
                session.close()
                raise
            self._session = session

    def resolve(self, transaction: Undecided) -> None:
        """Starts to look for the decision of a transaction whose end got no clear answer."""
        self._resolver.add(transaction)

    def bind_group(self, group: str) -> None:
        """Makes sure that the consumer group's offsets belong to this transaction group; cached.

        Raises:
            GroupBoundError: they belong to another transaction group, which the message names.
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

    def _open_sidecars(self, topics: Iterable[str]) -> None:
        self.check()
        self.queries.open_sidecars(topics)

    def forget_bindings(self) -> None:
        """Asks for all bindings again: one ended, as it does if a group is unused for long."""
        self._bound.clear()

    def fetch_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> GroupOffsets:
        """Asks for what a consumer group has committed; see `Queries`."""
        return self.queries.fetch_offsets(group, partitions)

    def close(self, deadline_s: float) -> None:
        """Sends what is queued until `deadline_s` (monotonic clock), and releases everything."""
        # Plain records of the application may be queued; those of transactions are settled by now.
        self.sender.flush(max(deadline_s - time.monotonic(), 0))
        self.closed = True
        self._resolver.close(_JOIN_S)
        self.sender.close(_JOIN_S)
        for opened in (self._session, self._queries, self._resolving_queries):
            if opened is not None:
                opened.close()

    def after_fork(self) -> None:
        """Makes every call raise ForkedError, in a child."""
        self.closed = True
        refuse(self)

    def _ask_outcome(self, txid: TxId) -> Outcome:
        if self._resolving_queries is None:
            timeout_s = min(_QUERY_MAX_S, self.config.coordinator_timeout_s)
            self._resolving_queries = self._coordinators.queries(timeout_s=timeout_s)
        return self._resolving_queries.outcome(txid)

    def _on_closed(self, error: LogtxError) -> None:
        """Records that the session is closed for good: fenced, or started twice."""
        if isinstance(error, NotAllowedError):
            # Only the reconnection was not allowed. The holder of a transaction of this producer
            # gets ExpiredTransactionError in both cases: whether it learns first that the
            # transaction is over, or that the reconnection was refused.
            error = ExpiredTransactionError(str(error))
        self.fatal = self.fatal or error
        _LOG.warning("session_closed producer_id=%s", self.config.producer_id)
        self._on_fatal(error)
