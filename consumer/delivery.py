"""Delivers to the application: records, or whole transactions; one of the two on a consumer.

Each call goes on from where the last one stood, lets upkeep run while it waits, and takes back what
an exception keeps from the application.
"""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Message

from ..journal.errors import ConcurrentUseError, LogtxError, NotSupportedError
from ..journal.logs.interface import Log
from .assignment import Assignment
from .config import ConsumerConfig, IsolationLevel
from .core.counters import ConsumerCounters
from .lifetime import Parts
from .positions import Positions
from .reading import Reading
from .serial_reader import CommittedTransaction, SerialReader

POLL_SLICE_S: Final = 0.5
"""Longest single wait, in seconds: longer waits are made of these, so that upkeep goes on and
Python handles signals. Longer slices delay both; shorter ones cost CPU on an idle consumer."""


class Delivery:
    """Hands out what the partitions' buffers let through."""

    def __init__(
        self,
        log: Log,
        config: ConsumerConfig,
        counters: ConsumerCounters,
        parts: Parts,
        assignment: Assignment,
    ) -> None:
        self._log = log
        self._config = config
        self._counters = counters
        self._parts = parts
        self._reading: Reading = parts.reading
        self._positions: Positions = parts.positions
        self._assignment = assignment
        self._mode: str | None = None
        self.serial: SerialReader | None = None
        """Made when serial order is first needed: if serializable, or by `transaction`."""

    # The application's call must put back what an exception keeps from it. It does so itself: a
    # signal handler's may come right behind the end of a call of ours.

    def put_back(self, error: BaseException) -> None:
        """Takes back what the call under way took: the exception keeps it from the application."""
        # A signal handler's call that was refused may have come anywhere, too.
        passing = isinstance(error, LogtxError) and not isinstance(error, ConcurrentUseError)
        self._reading.put_back(interrupted=not passing)
        if self.serial is not None:
            self.serial.take_back()

    def begin_transactions(self) -> None:
        """Makes ready to deliver transactions, and waits for none."""
        self._enter("transactions", time.monotonic())

    def received(self) -> None:
        """Drops the transaction that was delivered last: the application has got it."""
        if self.serial is not None:
            self.serial.received()

    def _enter(self, mode: str, until_s: float | None) -> bool:
        # Returns whether something may be delivered; False if that is not before `until_s`.
        if self._mode not in (None, mode):
            raise NotSupportedError(
                "transactions() and poll() or consume() don't mix on one consumer: open another"
            )
        self._mode = mode
        if self._reading.interrupted:
            self._assignment.hear_again()
            if self.serial is not None:
                # What it has taken out of its order is not known: another one begins where we are.
                self.serial.close()
                self.serial = self._parts.serial = None
        serializable = self._config.isolation_level is IsolationLevel.SERIALIZABLE
        if self.serial is None and (serializable or mode == "transactions"):
            self.serial = self._parts.serial = self._make_serial_reader()
        self._reading.recover()
        if self._assignment.unrestored:
            self._assignment.restore_again()
        while (pause_s := self._positions.prepare(subscribed=self._assignment.subscribed)) > 0:
            left_s = pause_s if until_s is None else until_s - time.monotonic()
            self._reading.fetch(max(0.0, min(pause_s, left_s, POLL_SLICE_S)))
            if until_s is not None and time.monotonic() >= until_s:
                return False
        return True

    def _make_serial_reader(self) -> SerialReader:
        # Not before records are asked for: a consumer may be assigned before there is a journal.
        # Partitions assigned by then begin again, with buffers that sort whole transactions.
        reader = SerialReader(self._log, self._config, self._reading, self._counters)
        try:
            if self._reading.interrupted:
                self._reading.recover(reader.make_buffer)
            else:
                self._reading.rebuild(reader.make_buffer)
        except BaseException:
            reader.close()
            raise
        return reader

    def records(self, limit: int, timeout: float) -> list[Message]:
        """Returns up to `limit` messages as soon as there is one, or none after `timeout`."""
        until = None if timeout < 0 else time.monotonic() + timeout
        if not self._enter("records", until):
            return []
        reading = self.serial or self._reading
        self._positions.auto_commit()
        # Raise before anything is taken: what is taken counts as delivered, and an error raised
        # then would lose it.
        reading.raise_failure(again=False)
        reading.tend()
        found = reading.take(limit)
        if found:
            return found
        while True:
            reading.raise_failure(again=False)
            waiting = reading.work()
            left = POLL_SLICE_S if until is None else until - time.monotonic()
            # During a side read each poll is followed by one of its slices: no other pause needed.
            pause = 0 if waiting else max(0.0, min(left, POLL_SLICE_S))
            reading.fetch(pause)
            found = reading.take(limit)
            if found:
                return found
            if until is not None and time.monotonic() >= until:
                reading.raise_failure(again=True)
                return []

    def transaction(self, timeout: float | None) -> CommittedTransaction | None:
        """Returns the next transaction; None after `timeout` seconds without any."""
        until = None if timeout is None else time.monotonic() + timeout
        if not self._enter("transactions", until):
            return None
        assert self.serial is not None
        self._positions.auto_commit()
        return self.serial.next(timeout)
