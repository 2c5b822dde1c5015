"""Commits small transactions by several producers at once, in threads and in processes.

A crew is the producers of one process. Each has a thread, which commits one transaction after
another or keeps several in flight. A fleet is a side of one or more crews. A crew of one producer
runs on its process's main thread, as an application's loop would.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

from ..clients import (
    CONNECT_TIMEOUT_S,
    delete_topics,
    kafka_producer,
    logtx_producer,
    make_topic,
)
from ..model import Context, Sample
from ..remote import Remote, answering
from ..stats import percentile

TOPICS: Final = {"kafka": "bench-small-kafka", "logtx": "bench-small-logtx"}
PARTITIONS: Final = 2
VALUE: Final = b"x" * 100
PERCENTILES: Final = (50, 90, 99, 99.9)
WARM_UP: Final = 2
"""Transactions of each producer before its clock starts: the first one makes connections."""
CONNECTING_AT_ONCE: Final = 16
"""Producers of a crew that connect, or disconnect, at the same time."""
_ROUND_SLACK_S: Final = 90.0
"""How long another process may take for a round, warm-up included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Producers in one process."""

    kind: str
    """"kafka" or "logtx"."""
    name: str
    """Prefix of their transactional ids."""
    producers: int = 1
    in_flight: int = 1
    """Transactions that each producer has in flight; always 1 for Kafka's."""


@dataclass(slots=True)
class Counted:
    """Result of a crew's round."""

    latencies_s: list[float]
    """Time of each transaction from its begin to its acknowledged commit."""
    started_ns: int
    """Nanoseconds of the machine's monotonic clock, which all processes share."""
    ended_ns: int

    def joined(self, other: Counted) -> Counted:
        """Returns the result of two crews that ran side by side."""
        return Counted(
            self.latencies_s + other.latencies_s,
            min(self.started_ns, other.started_ns),
            max(self.ended_ns, other.ended_ns),
        )

    def sample(self, *, in_ms: bool = False) -> Sample:
        """Returns the rate of transactions, or p50 in ms; the notes have both, and percentiles."""
        rate = len(self.latencies_s) / ((self.ended_ns - self.started_ns) / 1e9)
        found = {f"p{p:g} ms": percentile(self.latencies_s, p) * 1e3 for p in PERCENTILES}
        notes = {
            "transactions": float(len(self.latencies_s)),
            "transactions/s": rate,
            **found,
        }
        return Sample(found["p50 ms"] if in_ms else rate, notes)


def transact(producer: Any, topic: str, partitions: int) -> None:
    """Begins, writes a record to each partition, commits: by the same calls on both sides."""
    producer.begin_transaction()
    for partition in range(partitions):
        producer.produce(topic, VALUE, partition=partition)
    producer.commit_transaction(CONNECT_TIMEOUT_S)


def one_after_another(
    producer: Any, topic: str, seconds: float, partitions: int = PARTITIONS
) -> list[float]:
    """Commits transactions one after another; returns the latency of each in seconds."""
    clock = time.perf_counter
    latencies_s: list[float] = []
    until = clock() + seconds
    while (began := clock()) < until:
        transact(producer, topic, partitions)
        latencies_s.append(clock() - began)
    return latencies_s


def pipelined(
    producer: Any, topic: str, seconds: float, in_flight: int, partitions: int = PARTITIONS
) -> list[float]:
    """Keeps several transactions in flight; returns the latency of each in seconds.

    The next one begins when the oldest is decided.
    """
    clock = time.perf_counter
    flying: deque[tuple[float, Future[Any]]] = deque()
    latencies_s: list[float] = []

    def land() -> None:
        began, future = flying.popleft()
        future.result(CONNECT_TIMEOUT_S)
        latencies_s.append(clock() - began)

    until = clock() + seconds
    while (began := clock()) < until:
        transaction = producer.begin_transaction()
        for partition in range(partitions):
            transaction.produce(topic, VALUE, partition=partition)
        flying.append((began, transaction.commit_async()))
        if len(flying) >= in_flight:
            land()
    while flying:
        land()
    return latencies_s


class ConnectedCrew:
    """A connected crew in this process."""

    def __init__(self, crew: Crew, servers: str) -> None:
        """Connects all producers, some at a time."""
        self._crew = crew
        self._make: Callable[[str], Any]
        if crew.kind == "kafka":
            self._make = lambda name: kafka_producer(servers, name)
        else:
            self._make = lambda name: logtx_producer(servers, name)
        names = [f"{crew.name}-{number}" for number in range(crew.producers)]
        self._producers = self._each(self._make, names)

    def _each(self, call: Callable[[Any], Any], arguments: list[Any]) -> list[Any]:
        if len(arguments) == 1:
            return [call(arguments[0])]
        with ThreadPoolExecutor(CONNECTING_AT_ONCE) as pool:
            return list(pool.map(call, arguments))

    def close(self) -> None:
        """Disconnects."""
        producers, self._producers = self._producers, []
        if self._crew.kind == "logtx":
            self._each(lambda producer: producer.close(), producers)

    def run(self, seconds: float) -> Counted:
        """Runs one round: all producers begin together when the last one is warm."""
        topic = TOPICS[self._crew.kind]
        if len(self._producers) == 1:
            self._warm_up(self._producers[0], topic)
            started_ns = time.monotonic_ns()
            found = self._work(self._producers[0], topic, seconds)
            return Counted(found, started_ns, time.monotonic_ns())
        started: list[int] = []
        together = threading.Barrier(
            len(self._producers), lambda: started.append(time.monotonic_ns()), CONNECT_TIMEOUT_S
        )

        def work(producer: Any) -> list[float]:
            try:
                self._warm_up(producer, topic)
            except BaseException:
                together.abort()  # or the others would wait in vain
                raise
            together.wait()
            return self._work(producer, topic, seconds)

        with ThreadPoolExecutor(len(self._producers)) as pool:
            futures = [pool.submit(work, producer) for producer in self._producers]
            latencies_s = [each for future in futures for each in future.result()]
        return Counted(latencies_s, started[0], time.monotonic_ns())

    @staticmethod
    def _warm_up(producer: Any, topic: str) -> None:
        for _ in range(WARM_UP):
            transact(producer, topic, PARTITIONS)

    def _work(self, producer: Any, topic: str, seconds: float) -> list[float]:
        if self._crew.in_flight == 1:
            return one_after_another(producer, topic, seconds)
        return pipelined(producer, topic, seconds, self._crew.in_flight)


class _Hand(Protocol):
    """A crew in this process or in another."""

    def start(self, seconds: float) -> None: ...
    def counted(self) -> Counted: ...
    def close(self) -> None: ...


class _Here:
    def __init__(self, crew: Crew, servers: str) -> None:
        self._connected = ConnectedCrew(crew, servers)
        self._seconds = 0.0

    def start(self, seconds: float) -> None:
        self._seconds = seconds

    def counted(self) -> Counted:
        return self._connected.run(self._seconds)

    def close(self) -> None:
        self._connected.close()


def _serve(connection: Connection, crew: Crew, servers: str) -> None:
    with answering(connection), closing(ConnectedCrew(crew, servers)) as connected:
        connection.send(None)
        while True:
            connection.send(connected.run(connection.recv()))


class _Elsewhere:
    def __init__(self, crew: Crew, servers: str) -> None:
        self._remote = Remote(crew.name, _serve, crew, servers)

    def await_connected(self) -> None:
        self._remote.receive(CONNECT_TIMEOUT_S * 2)

    def start(self, seconds: float) -> None:
        self._remote.send(seconds)

    def counted(self) -> Counted:
        found: Counted = self._remote.receive(_ROUND_SLACK_S)
        return found

    def close(self) -> None:
        self._remote.close()


class Fleet:
    """A side: some producers, spread over some processes."""

    def __init__(
        self,
        context: Context,
        *,
        kind: str,
        seconds: float,
        producers: int = 1,
        in_flight: int = 1,
        processes: int = 1,
        anew: bool = False,
        in_ms: bool = False,
    ) -> None:
        """Keeps the parameters; `open` connects.

        Args:
            context: of the run.
            kind: "kafka" or "logtx".
            seconds: length of a round in a full run.
            producers: their number in all processes.
            in_flight: transactions that each producer has in flight.
            processes: number of processes that the producers are spread over.
            anew: connect for each round and disconnect after it: idle connections would disturb
                the other sides.
            in_ms: the round's value is p50 of the latency, not the rate.
        """
        assert producers % processes == 0, "every process has as many"
        self._context = context
        self._seconds = seconds
        self._anew = anew
        self._in_ms = in_ms
        self._hands: list[_Hand] = []
        what = f"bench-{kind}-{producers}x{in_flight}"
        self._crews = [
            Crew(
                kind=kind,
                name=f"{what}-{process + 1}of{processes}",
                producers=producers // processes,
                in_flight=in_flight,
            )
            for process in range(processes)
        ]

    def open(self) -> None:
        """Connects, unless each round does so."""
        if not self._anew:
            self._connect()

    def close(self) -> None:
        """Disconnects."""
        hands, self._hands = self._hands, []
        for hand in hands:
            hand.close()

    def measure(self) -> Sample:
        """Runs one round."""
        if self._anew:
            self._connect()
        for hand in self._hands:
            hand.start(self._context.sized(self._seconds, 0.2))
        found = [hand.counted() for hand in self._hands]
        if self._anew:
            self.close()
        counted = found[0]
        for other in found[1:]:
            counted = counted.joined(other)
        return counted.sample(in_ms=self._in_ms)

    def _connect(self) -> None:
        servers = self._context.bootstrap_servers
        if len(self._crews) == 1:
            self._hands = [_Here(self._crews[0], servers)]
            return
        elsewhere = [_Elsewhere(crew, servers) for crew in self._crews]
        self._hands = list(elsewhere)
        for hand in elsewhere:
            hand.await_connected()


def prepare(context: Context) -> None:
    """Creates a topic of two partitions for each kind."""
    for topic in TOPICS.values():
        make_topic(context.bootstrap_servers, topic, PARTITIONS)


def finish(context: Context) -> None:
    """Deletes the topics."""
    delete_topics(context.bootstrap_servers, list(TOPICS.values()))
