"""Begins a producer's transactions and keeps them until they are decided.

Stands above the transactions and the engine that they use, and below `Producer`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import wait
from itertools import takewhile
from typing import Final

from ..coordinator.protocol.commands import Decided
from ..journal.control import TopicPartition
from ..journal.errors import (
    ConcurrentTransactionsError,
    ConfigError,
    LogtxError,
    RequestTimedOutError,
)
from ..journal.logs.interface import Log
from ..journal.txid import TxId
from .config import ProducerConfig
from .coordinators import Coordinators
from .core.ahead import Ahead
from .engine import Engine
from .succession import Send
from .transaction_shell import TransactionShell

_IN_VAIN_S: Final = 0.5
"""Longest wait of `close` for the abort of a transaction begun ahead that was never asked for.

The coordinator aborts it by itself once the session is gone, so a longer wait gains nothing.
"""
_SWEEP_S: Final = 0.5
"""How often transactions are looked for whose timeout has passed."""
_ASK_AGAIN_S: Final = 5.0
"""Pause before the coordinator is asked again about one that it has not ended. A longer one keeps
its place for longer, a shorter one asks more about those that are extended."""


class OpenTransactions:
    """Keeps the open transactions of a producer, and the engine that they share.

    Safe from any thread. Counts them against ``transactions.in.flight.max``, registers the
    partitions of those that take longer, and begins the next transaction ahead where one follows
    another.
    """

    def __init__(
        self,
        config: ProducerConfig,
        log: Log,
        coordinators: Coordinators,
        close_log: Callable[[], None],
        share: Hashable | None,
    ) -> None:
        """Opens librdkafka's producer; only `Engine.connect` asks the coordinator.

        Args:
            config: the producer's.
            log: the log that records are written to.
            coordinators: how to reach coordinators.
            close_log: `close` calls it last.
            share: see `Sender`.
        """
        self._config = config
        self._close_log = close_log
        self._delay_s = config.registration_delay_ms / 1000
        self._guard = threading.Lock()
        self._room = threading.Condition(self._guard)
        """Notified when an open transaction needs nothing any more."""
        self._open: set[TransactionShell] = set()
        self._began: dict[TxId, TransactionShell] = {}
        """TxId → open transaction: the coordinator names one that it has decided unasked."""
        self._unregistered: dict[TransactionShell, float] = {}
        """Open transactions with new partitions → monotonic time to register these, ascending."""
        self._kept: dict[TransactionShell, tuple[object, float]] = {}
        """Open transactions → what each keeps alive, and until when, monotonic clock."""
        self._late: dict[TransactionShell, float] = {}
        """Open transactions whose timeout has passed → when to ask about each, monotonic clock."""
        self._next_sweep_s = 0.0
        self._ahead = Ahead[TransactionShell](allowed=config.begin_ahead)
        # The coordinator would refuse a transaction key's next BEGIN until the transaction before
        # is decided.
        self._open_max = 1 if config.transaction_key else config.in_flight_max
        self.engine: Final = Engine(
            config,
            log,
            coordinators,
            share,
            on_tick=self._on_tick,
            on_stopped=self._on_stopped,
            on_fatal=self._on_fatal,
            on_decided=self._on_decided,
        )

    def begin(
        self,
        timeout_ms: int,
        partitions: Iterable[TopicPartition],
        keep: object,
        given: list[TransactionShell],
    ) -> TransactionShell:
        """Opens a transaction; its TxId comes later.

        Args:
            timeout_ms: after which the coordinator aborts it.
            partitions: which it is sure to write to.
            keep: kept alive until the transaction is decided, or its timeout has passed.
            given: gets it before it takes a place. If an exception keeps it from the application,
                the caller must `forget` it: nobody else would end it.

        Raises:
            CoordinatorNotAvailableError, ProducerFencedError, …: as `Producer.begin_transaction`.
        """
        if timeout_ms < 1:
            raise ConfigError("a transaction's timeout must be at least 1 ms")
        self.engine.connect()
        named = tuple(partitions)
        until_s = time.monotonic() + timeout_ms / 1000
        if not named and self._take_ahead(timeout_ms, (keep, until_s), given):
            return given[0]
        transaction = TransactionShell(self.engine, self, named)
        given.append(transaction)
        self._take_place(transaction)
        with self._guard:
            self._kept[transaction] = keep, until_s
        self._send_begin(transaction, timeout_ms, named)
        return transaction

    def _take_ahead(
        self, timeout_ms: int, kept: tuple[object, float], given: list[TransactionShell]
    ) -> bool:
        now_s = time.monotonic()
        with self._guard:
            known = self._ahead.transaction
            alone = all(t is known for t in self._open)
            if known is not None:
                given.append(known)
            taken = self._ahead.take(timeout_ms, now_s=now_s) is not None
            self._ahead.begun(timeout_ms, alone=alone, now_s=now_s)
            if known is not None and taken:
                self._kept[known] = kept
            else:
                given.clear()
        return taken

    def _take_place(self, transaction: TransactionShell) -> None:
        """Counts it among the open ones, once there is a place."""
        key = self._config.transaction_key
        with self._room:
            # Only the caller can end an open one. If its end was asked for, it is waited for.
            if key is not None and any(t.is_open for t in self._open):
                raise ConcurrentTransactionsError(
                    f"transaction key {key.key!r} has an open transaction: commit or abort it "
                    "before the next one begins"
                )
            if not self._has_place():
                self.engine.sender.check_may_wait(
                    "begin elsewhere, or raise transactions.in.flight.max"
                )
                self._room.wait_for(self._has_place, self._config.coordinator_timeout_s)
            if self._has_place():
                self._open.add(transaction)
                return
        raise RequestTimedOutError(
            f"the last transaction of key {key.key!r} is not decided yet: begin again later"
            if key
            else f"{self._config.in_flight_max} transactions are open: end some, or raise"
            " transactions.in.flight.max"
        )

    def _has_place(self) -> bool:
        return len(self._open) < self._open_max

    def _send_begin(
        self, transaction: TransactionShell, timeout_ms: int, named: tuple[TopicPartition, ...]
    ) -> None:
        self.engine.session.begin(transaction.on_began, timeout_ms=timeout_ms, partitions=named)
        self.engine.sender.wake()

    @property
    def queued(self) -> int:
        """Number of records whose reports were not served yet, with those that wait for a TxId."""
        with self._guard:
            kept = sum(transaction.kept for transaction in self._open)
        return kept + self.engine.sender.queued

    def flush(self, timeout_s: float) -> int:
        """Waits up to `timeout_s` until every record has its report. Returns how many are left."""
        deadline_s = time.monotonic() + timeout_s
        sender = self.engine.sender
        with self._guard:
            transactions = [] if sender.in_callback() else list(self._open)
        for transaction in transactions:
            transaction.await_sent(deadline_s)
        sender.flush(max(deadline_s - time.monotonic(), 0))
        return self.queued

    def close(self, timeout_s: float) -> None:
        """Aborts what is open, sends what is queued, and releases everything."""
        if self.engine.closed:
            return
        self.engine.sender.check_may_wait("close the producer elsewhere")
        deadline_s = time.monotonic() + timeout_s
        with self._guard:
            transactions = list(self._open)
        if self.engine.fatal is None:
            self._give_up(transactions, timeout_s)
        self.engine.close(deadline_s)
        for transaction in transactions:
            transaction.abandon()
        self._close_log()

    def _give_up(self, transactions: Iterable[TransactionShell], timeout_s: float) -> None:
        with self._guard:
            in_vain = self._ahead.transaction
        for transaction in transactions:
            transaction.give_up()
        wait([f for t in transactions if t is not in_vain and (f := t.future)], timeout=timeout_s)
        if in_vain is not None and in_vain.future is not None:
            # An application with nothing open must not wait for a coordinator that is not there.
            wait([in_vain.future], timeout=min(timeout_s, _IN_VAIN_S))

    def after_fork(self) -> None:
        """Makes the calls of open transactions raise ForkedError, in a child."""
        self.engine.after_fork()
        for transaction in self._open:
            transaction.after_fork()

    # ---- what transactions report: see `Listener` -----------------------------------------------

    def began(self, transaction: TransactionShell, txid: TxId) -> None:
        """Notes the transaction's TxId."""
        with self._guard:
            if transaction in self._open:
                self._began[txid] = transaction

    def wrote(self, transaction: TransactionShell) -> None:
        """Schedules the registration of the partitions it wrote to, in case it stays open."""
        with self._guard:
            if transaction in self._open:
                self._unregistered.setdefault(transaction, time.monotonic() + self._delay_s)

    def ending(self, transaction: TransactionShell) -> None:
        """Begins the next transaction while this one ends, if it is sure to be wanted."""
        engine = self.engine
        following: TransactionShell | None = None
        try:
            with self._guard:
                timeout_ms = self._ahead.wanted
                alone = len(self._open) == 1 and transaction in self._open
                if timeout_ms is None or not alone or not self._has_place():
                    return
                if engine.closed or engine.fatal is not None:
                    return
                following = TransactionShell(engine, self, ())
                self._open.add(following)
                self._ahead.keep(following, time.monotonic())
            self._send_begin(following, timeout_ms, ())
        except BaseException:
            # Of a signal handler: its BEGIN may not have been sent, so nobody must get it.
            if following is not None:
                following.forget()
            raise

    def ended(self, transaction: TransactionShell) -> None:
        """Forgets a transaction that needs nothing any more."""
        with self._guard:
            self._open.discard(transaction)
            if transaction.known_txid is not None:
                self._began.pop(transaction.known_txid, None)
            kept = self._kept.pop(transaction, None)
            self._late.pop(transaction, None)
            self._unregistered.pop(transaction, None)
            self._ahead.ended(transaction, time.monotonic())
            self._room.notify()
        del kept  # Outside of the lock: it may be the last reference.

    # ---- what the engine reports ----------------------------------------------------------------

    def _on_fatal(self, error: LogtxError) -> None:
        with self._guard:
            transactions = list(self._open)
        for transaction in transactions:
            transaction.on_fatal(error)

    def _on_decided(self, decided: Decided) -> None:
        with self._guard:
            transaction = self._began.get(decided.txid)
        if transaction is not None:
            transaction.on_decided(decided)

    def _on_stopped(self, send: Send) -> None:
        with self._guard:
            transactions = list(self._open)
        for transaction in transactions:
            transaction.stopped(send)

    def _on_tick(self) -> bool:
        """Registers partitions of transactions that take longer; called on the sender's thread."""
        if not self._open:
            # When the thread begins, `engine` is not set yet either.
            return False
        now_s = time.monotonic()
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + _SWEEP_S
            self._let_go(now_s)
        if self.engine.closed or self.engine.fatal is not None:
            return bool(self._open)
        self._ask_about_late(now_s)
        with self._guard:
            in_vain = self._ahead.expired(now_s)
            due = list(takewhile(lambda t: self._unregistered[t] <= now_s, self._unregistered))
            # Removed before they are asked: one that writes to a further partition meanwhile is
            # added again.
            for transaction in due:
                del self._unregistered[transaction]
        if in_vain is not None:
            in_vain.abort_async()
        for transaction in due:
            transaction.register_partitions()
        return bool(self._open)

    def _let_go(self, now_s: float) -> None:
        """Keeps nothing alive for transactions that the coordinator has aborted by now."""
        with self._guard:
            late = [t for t, (_, until_s) in self._kept.items() if until_s <= now_s]
            # Let go of outside of the lock: that may be the last reference.
            kept = [self._kept.pop(transaction) for transaction in late]
            self._late |= dict.fromkeys(late, now_s)
        del kept

    def _ask_about_late(self, now_s: float) -> None:
        """Asks whether transactions are over that nobody ended in time.

        The coordinator tells of each that it aborts, once. If the stream breaks at that moment,
        nobody is told, and the transaction would keep its place for ever (trap 145).
        """
        if not self._late:
            return
        with self._guard:
            due = [t for t, at_s in self._late.items() if at_s <= now_s]
            self._late |= dict.fromkeys(due, now_s + _ASK_AGAIN_S)
        for transaction in due:
            transaction.ask_whether_over()
