"""Takes the records of a transaction whose TxId is not known yet.

The BEGIN was sent before the application got the transaction. Until its answer comes, on a thread
that hands out answers, records are kept here; from then on they are sent directly.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from ..journal.control import TXID_HEADER
from ..journal.errors import BrokerError, LogtxError, RequestTimedOutError
from ..journal.txid import TxId
from .futures import EndFuture
from .sender import Sender
from .writer import Record, Writer

_BACKLOG_MAX: Final = 16
"""Most records kept while the TxId is awaited; the next one waits for it.

Keeping a record costs three times as much as producing it directly, and the TxId comes within 0.5
ms: with 1,000, transactions of 10,000 small records were a tenth slower and took a fifth more CPU.
A transaction of at most this many records never waits.
"""
_SLICE_S: Final = 0.05
"""Longest single wait for the TxId; deadlines and a failed BEGIN are noticed this late at most."""


class EarlyWriter(Writer):
    """Sends the records of a transaction's own branch, and keeps those that come too early.

    Beyond what `Writer` asks for, a subclass says whether records are taken (`_check_locked`,
    `_takes_records`), and what follows when one is refused or all are sent (`_fail_locked`,
    `_tell_failed`, `_advance`).
    """

    def __init__(
        self,
        sender: Sender,
        branch: int,
        delivery_timeout_s: float,
        *,
        begin_timeout_s: float,
        on_partition: Callable[[], None] | None = None,
    ) -> None:
        """Knows no TxId yet.

        Args:
            sender, branch, delivery_timeout_s, on_partition: as `Writer`'s.
            begin_timeout_s: how long the answer to the BEGIN may take.
        """
        super().__init__(sender, branch, delivery_timeout_s, on_partition=on_partition)
        self._begin_timeout_s = begin_timeout_s
        self._txid: TxId | None = None
        self._backlog: deque[Record] = deque()
        self._flowing = threading.Event()
        """Set once the TxId is known and nothing is kept, or never will be."""

    def _begin(self, txid: TxId) -> None:
        """Takes the TxId, under the lock. Call `_drain` next."""
        self._txid = txid
        self._headers = [(TXID_HEADER, txid.to_bytes())]
        self._begin_to_watch()

    @property
    def kept(self) -> int:
        """Number of records that wait for its TxId and are not in librdkafka's queue yet."""
        return len(self._backlog)

    def await_sent(self, deadline_s: float) -> None:
        """Waits until no record is kept, or until `deadline_s` of the monotonic clock."""
        while self._backlog and (left_s := deadline_s - time.monotonic()) > 0:
            self._flowing.wait(min(left_s, _SLICE_S))

    def _route(self, record: Record) -> None:
        # Kept records share their content with the application until they are sent.
        keepable = isinstance(record.value, bytes | str | None) and isinstance(
            record.key, bytes | str | None
        )
        deadline_s = time.monotonic() + self._begin_timeout_s + self._delivery_timeout_s
        while True:
            with self._lock:
                if self._txid is not None and not self._backlog:
                    break
                self._check_locked()
                if keepable and len(self._backlog) < _BACKLOG_MAX:
                    self._backlog.append(record)
                    return
            if time.monotonic() > deadline_s:
                raise RequestTimedOutError("the transaction did not begin in time")
            self._flowing.wait(_SLICE_S)
        self._send_waiting(record)

    def _drain(self) -> bool:
        """Sends the records that were kept. Returns False while librdkafka's queue is full."""
        refused: list[tuple[Record, Exception]] = []
        future: EndFuture | None = None
        with self._lock:
            full = not self._send_backlog(refused)
            for record, error in refused:
                self._tally.withdraw(record.number)
                future = self._fail_locked(_refusal(record, error)) or future
            if not full:
                self._set_direct()
        for record, error in refused:
            told = (
                error.args[0]
                if isinstance(error, KafkaException)
                else KafkaError(KafkaError._INVALID_ARG, str(error))
            )
            self._on_dropped([record], told)
        if future is not None:
            self._tell_failed(future, _refusal(*refused[0]))
        if full:
            return False
        self._flowing.set()
        self._advance()
        return True

    def _send_backlog(self, refused: list[tuple[Record, Exception]]) -> bool:
        """Does so under the lock. Returns False once the queue is full; adds to `refused`."""
        while self._backlog:
            record = self._backlog[0]
            try:
                self._send_record(record)
            except BufferError:
                return False
            except (KafkaException, TypeError, ValueError) as error:
                if isinstance(error, KafkaException):
                    self._sender.replaced(self._send, error)
                refused.append((record, error))
            self._backlog.popleft()
        return True

    def _set_direct(self) -> None:
        self._direct = self._txid is not None and not self._backlog and self._takes_records

    def _drop_backlog(self) -> list[Record]:
        """Drops the records that were kept; called under the lock. Tell `_on_dropped` of them."""
        dropped = list(self._backlog)
        for record in dropped:
            self._tally.withdraw(record.number)
        self._backlog.clear()
        return dropped

    # ---- for the subclass -----------------------------------------------------------------------

    @property
    def _takes_records(self) -> bool:
        """Whether records are taken."""
        raise NotImplementedError

    def _check_locked(self) -> None:
        """Raises if records are not taken; called under the lock."""
        raise NotImplementedError

    def _fail_locked(self, cause: LogtxError) -> EndFuture | None:
        """Makes it abort-only. Returns the future of a commit that fails because of it, or None."""
        raise NotImplementedError

    def _tell_failed(self, future: EndFuture, cause: LogtxError) -> None:
        """Completes that future; never under the lock."""
        raise NotImplementedError

    def _advance(self) -> None:
        """Does what is due, now that all that was kept is sent."""
        raise NotImplementedError


def _refusal(record: Record, error: Exception) -> LogtxError:
    return BrokerError(f"a record for {record.topic} was refused: {error}")
