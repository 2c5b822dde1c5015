"""Another producer of the process, which shares librdkafka's producer with the one of a history.

Whatever the application does with its own, and whatever happens to that, this one's transactions
end as they should, its callbacks are called once each, and no call of it takes longer.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaError

from logtx.journal.errors import ConfigError, LogtxError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.state import State
from logtx.producer.producer import Producer
from logtx.producer.transaction import Transaction

from ..producer.fake import FakeCoordinators

TOPIC: Final = "neighbour"
DISTURBING: Final = frozenset({"outage", "stopped"})
"""Faults that break the log, or librdkafka's producer, and so whatever writes there."""
CALL_MAX_S: Final = 2.3


class Neighbour:
    """Commits, aborts, flushes, closes and comes back, on a thread of its own."""

    def __init__(
        self, seed: int, log: MemoryLog, config: Mapping[str, Any], disturbed: bool
    ) -> None:
        """Begins.

        Args:
            seed: of what it does.
            log: the history's.
            config: the history's.
            disturbed: whether faults are to come that may fail its transactions.
        """
        self.wrong: list[str] = []
        self._rng = random.Random(seed)
        self._log = log
        self._config = config
        self._disturbed = disturbed
        self._coordinators = FakeCoordinators()
        self._written = 0
        self._reports: dict[bytes, int] = {}
        log.create_topic(TOPIC, partitions=1)
        self._producer = self._open()
        self._going = True
        self._thread = threading.Thread(target=self._run, name="neighbour")
        self._thread.start()

    def end(self) -> list[str]:
        """Stops it, when all faults are over. Returns what was wrong."""
        self._going = False
        self._thread.join(30)
        if self._thread.is_alive():
            return [*self.wrong, "it hangs"]
        if all(self._transact() for _ in range(5)):
            self.wrong.append("its transactions do not commit any more")
        self._timed("flush", lambda: self._producer.flush(2))
        self._timed("close", lambda: self._producer.close(1))
        twice = {value: n for value, n in self._reports.items() if n != 1}
        if twice:
            self.wrong.append(f"its records were not reported once: {twice}")
        return self.wrong

    def _open(self, name: str = "neighbour") -> Producer:
        config = {**self._config, "transactional.id": name}
        return Producer(config, log=self._log, coordinators=self._coordinators)

    def _timed(self, name: str, call: Any) -> Any:
        began_s = time.monotonic()
        try:
            return call()
        finally:
            if (took_s := time.monotonic() - began_s) > CALL_MAX_S:
                self.wrong.append(f"{name} took {took_s:.1f} s")

    def _run(self) -> None:
        while self._going:
            what = self._rng.random()
            if what < 0.7:
                self._transact()
            elif what < 0.8:
                left = self._timed("flush", lambda: self._producer.flush(1))
                if left and not self._disturbed:
                    self.wrong.append(f"flush left {left}")
            elif what < 0.9:
                self._timed("close", lambda: self._producer.close(1))
                self._producer = self._open()
            else:
                # Either nobody shares with it, or it is refused.
                with suppress(ConfigError):
                    self._producer.purge()

    def _transact(self) -> LogtxError | None:
        """Commits or aborts some records. Returns why it could not."""
        try:
            self._timed("a transaction", self._write)
        except LogtxError as error:
            if not self._disturbed:
                self.wrong.append(f"a transaction failed: {error!r}")
            return error
        return None

    def _write(self) -> None:
        txn = self._producer.begin_transaction()
        if self._rng.random() < 0.5:
            # Its records wait for a moment, and the application may do anything meanwhile.
            self._log.hold_appends(TOPIC, 0)
            threading.Timer(0.005, lambda: self._log.release_appends(TOPIC, 0)).start()
        try:
            for _ in range(self._rng.randint(1, 3)):
                self._produce(txn)
            if self._rng.random() < 0.2:
                # Another one that shares comes, and goes again.
                self._timed("a guest's close", lambda: self._open("guest").close(1))
            if self._rng.random() < 0.2:
                txn.abort()
            elif txn.commit().state is not State.COMMITTED:
                self.wrong.append("a commit returned another state")
        except LogtxError:
            txn.abort()
            raise

    def _produce(self, txn: Transaction) -> None:
        value = b"n%d" % self._written
        self._written += 1
        self._reports[value] = 0
        try:
            txn.produce(TOPIC, value, partition=0, on_delivery=self._callback(value))
        except LogtxError:
            del self._reports[value]
            raise

    def _callback(self, value: bytes) -> Any:
        manner = self._rng.random()

        def delivered(error: KafkaError | None, _message: object) -> None:
            self._reports[value] += 1
            if error is not None and not self._disturbed:
                self.wrong.append(f"a record failed: {error}")
            if manner < 0.1:
                time.sleep(0.02)

        return delivered
