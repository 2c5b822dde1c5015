"""How soon transactions and plain records are delivered, and how quickly a backlog is read."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from typing import Any, Final

import logtx
from logtx.journal.modes import Mode

from ..clients import (
    CONNECT_TIMEOUT_S,
    PRODUCER,
    consumer_config,
    from_start,
    logtx_producer,
)
from ..model import Context, Sample
from ..scenarios.consumption import read_all
from ..scenarios.fleet import VALUE
from ..scenarios.latency import HANGING, LogtxAlone, value_of
from ..stats import percentile
from .topics import MODES, WIDE, Seal, topic_of

OPEN: Final = 30
"""Transactions of a round of `Sealed`. They are open and written before the topic is sealed."""
EVERY_S: Final = 0.025
"""Time from one commit to the next, or from one plain record to the next."""
PLAIN: Final = 40
"""Plain records of a round."""
BACKLOG_PARTITIONS: Final = 4
BACKLOG: Final = 400_000
"""Records of the backlog, in all partitions."""
PER_TRANSACTION: Final = 1_000


class Delivery(LogtxAlone):
    """Commits small transactions; a consumer in a process of its own polls."""

    def __init__(self, context: Context, mode: Mode, width: int) -> None:
        """Keeps the parameters; `open` connects.

        Args:
            context: of the run.
            mode: of the topic.
            width: partitions of a transaction.
        """
        super().__init__(context)
        self.partitions = width
        self.topic = topic_of(f"{WIDE}{width}", mode)
        self.name = f"{type(self).__name__}-{self.topic}"


class Sealed(LogtxAlone):
    """Commits transactions whose records are written already."""

    def __init__(self, context: Context, *, sealed: bool) -> None:
        """Keeps the parameters; `open` connects.

        Args:
            context: of the run.
            sealed: whether the topic takes no records when they are committed.
        """
        super().__init__(context)
        self._sealed = sealed
        self.topic = topic_of("sealed" if sealed else "unsealed", Mode.METADATA)
        self.name = f"{type(self).__name__}-{self.topic}"

    def open(self) -> None:
        """Connects."""
        super().open()
        self._seal = Seal(self.context.bootstrap_servers, self.topic, value_of(HANGING))

    def close(self) -> None:
        """Disconnects."""
        self._seal.close()
        super().close()

    def measure(self) -> Sample:
        """Runs one round: p50 in ms from the call of commit to the delivery."""
        self.ask("start")
        self.await_delivery()
        opened: dict[int, Any] = {}
        for _ in range(int(self.context.sized(OPEN, 3))):
            self.number += 1
            opened[self.number] = transaction = self.producer.begin_transaction()
            for partition in range(self.partitions):
                transaction.produce(self.topic, value_of(self.number), partition=partition)
        if self.producer.flush(CONNECT_TIMEOUT_S):
            raise TimeoutError("records were not acknowledged")
        # Both sides wait for a setting to be heeded; only one changes it.
        self._seal.set(sealed=self._sealed)
        committed: dict[int, int] = {}
        for number, transaction in opened.items():
            committed[number] = time.monotonic_ns()
            transaction.commit(CONNECT_TIMEOUT_S)
            time.sleep(EVERY_S)
        times = self.times_of(committed)
        self._seal.set(sealed=False)
        self.ask("stop")
        latencies_ms = [(times[n] - committed[n]) / 1e6 for n in committed]
        notes = {"transactions": float(len(latencies_ms)), "max ms": max(latencies_ms)}
        return Sample(percentile(latencies_ms, 50), notes)


class Plain(LogtxAlone):
    """Writes plain records; nothing else is written."""

    partitions = 1

    def __init__(self, context: Context, mode: Mode) -> None:
        """Keeps the parameters; `open` connects.

        Args:
            context: of the run.
            mode: of the topic.
        """
        super().__init__(context)
        self.topic = topic_of("plain", mode)
        self.name = f"{type(self).__name__}-{self.topic}"

    def make_producer(self, name: str) -> Any:
        """Returns a producer that does not begin transactions, and does not wait for more."""
        return logtx.Producer(
            {
                **PRODUCER,
                "linger.ms": 0,
                "bootstrap.servers": self.context.bootstrap_servers,
                "transactional.id": name,
            }
        )

    def transaction(self, number: int) -> int:
        """Writes a plain record; returns when `produce` was called, in monotonic ns."""
        called_ns = time.monotonic_ns()
        self.producer.produce(self.topic, value_of(number), partition=0)
        if self.producer.flush(CONNECT_TIMEOUT_S):
            raise TimeoutError("a record was not acknowledged")
        return called_ns

    def measure(self) -> Sample:
        """Runs one round: p50 in ms from the call of produce to the delivery."""
        self.ask("start")
        self.await_delivery()
        written: dict[int, int] = {}
        for _ in range(int(self.context.sized(PLAIN, 3))):
            self.number += 1
            written[self.number] = self.transaction(self.number)
            time.sleep(EVERY_S)
        times = self.times_of(written)
        self.ask("stop")
        latencies_ms = [(times[n] - written[n]) / 1e6 for n in written]
        return Sample(percentile(latencies_ms, 50), {"p99 ms": percentile(latencies_ms, 99)})


class Backlog:
    """Reads a topic from its start to its last record, with a new consumer in each round."""

    def __init__(self, context: Context, mode: Mode) -> None:
        """Keeps the parameters.

        Args:
            context: of the run.
            mode: of the topic.
        """
        self._context = context
        self._topic = topic_of("backlog", mode)

    def open(self) -> None:
        """Does nothing: every round has a consumer of its own."""

    def close(self) -> None:
        """Does nothing."""

    def measure(self) -> Sample:
        """Runs one round: records a second, whose values and headers are read."""
        servers = self._context.bootstrap_servers
        consumer = logtx.Consumer(consumer_config(servers, f"bench-{self._topic}"))
        try:
            consumer.assign(from_start(self._topic, BACKLOG_PARTITIONS))
            return read_all(consumer, _backlog(self._context), reads_all=True)
        finally:
            consumer.close()


def _backlog(context: Context) -> int:
    return int(context.sized(BACKLOG / PER_TRANSACTION, 5)) * PER_TRANSACTION


def fill(context: Context) -> None:
    """Writes the backlogs: transactions of records of 100 bytes."""
    for mode in MODES:
        topic = topic_of("backlog", mode)
        flying: deque[Future[Any]] = deque()
        with logtx_producer(context.bootstrap_servers, f"fill-{topic}") as producer:
            for number in range(_backlog(context) // PER_TRANSACTION):
                transaction = producer.begin_transaction()
                for _ in range(PER_TRANSACTION):
                    partition = number % BACKLOG_PARTITIONS
                    transaction.produce(topic, VALUE, partition=partition)
                flying.append(transaction.commit_async())
                if len(flying) > BACKLOG_PARTITIONS:
                    flying.popleft().result(CONNECT_TIMEOUT_S)
            for future in flying:
                future.result(CONNECT_TIMEOUT_S)
