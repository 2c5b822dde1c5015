"""The cost of more open transactions, and of more partitions in a transaction."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import logtx

from ..clients import (
    CONNECT_TIMEOUT_S,
    CONSUMER,
    PRODUCER,
    consumer_config,
    delete_topics,
    from_start,
    kafka_producer,
    logtx_producer,
    make_topic,
    shown,
)
from ..cpu import CpuTimes
from ..model import Better, Comparison, Context, Curve, Picture, Point, Sample, Scenario
from .consumption import read_all
from .fleet import VALUE, Counted, one_after_another, pipelined, transact

SECONDS: Final = 1.0
"""Length of a round."""
OPEN: Final = (10, 100, 1_000, 10_000)
"""Transactions that stay open meanwhile; a producer may have 10,000."""
OPEN_TIMEOUT_S: Final = 300.0
"""Their time-out. It must outlast a round, or the filling of a backlog."""
IN_FLIGHT: Final = 64
"""Transactions that the measured producer has in flight."""
WARM_UP_S: Final = 0.3
"""How long transactions run before the clock starts."""
CALM_S: Final = 0.2
"""Time between two looks at the coordinator's CPU."""
CALM_CPU_S: Final = 0.04
"""A coordinator that uses less in `CALM_S` is at rest."""
SETTLE_MAX_S: Final = 20.0
"""How long to wait for that; then the round begins all the same."""
OPEN_TOPIC: Final = "bench-open"
WIDTHS: Final = (1, 4, 16, 64)
"""Partitions of a transaction, with a record in each."""
SPREAD_TOPICS: Final = {"kafka": "bench-spread-kafka", "logtx": "bench-spread-logtx"}
BACKLOG: Final = 200_000
"""Records to read, in all partitions."""
PER_TRANSACTION: Final = 100
"""Records in a transaction of the backlog."""
READ_PARTITIONS: Final = 2
"""Partitions of the topics with open transactions."""


def hold_open(producer: logtx.Producer, topic: str, count: int) -> list[Any]:
    """Begins `count` transactions with one record each; returns them open."""
    opened = []
    for number in range(count):
        place = number % READ_PARTITIONS
        transaction = producer.begin_transaction(OPEN_TIMEOUT_S, [(topic, place)])
        transaction.produce(topic, VALUE, partition=place)
        opened.append(transaction)
    for transaction in opened:
        assert transaction.txid, "the coordinator has begun it"
    if producer.flush(CONNECT_TIMEOUT_S):
        raise TimeoutError("the records of open transactions were not acknowledged")
    return opened


def abort_all(opened: list[Any]) -> None:
    """Aborts what `hold_open` began."""
    futures = [transaction.abort_async() for transaction in opened]
    for future in futures:
        future.result(CONNECT_TIMEOUT_S)


def _room_for(count: int) -> dict[str, Any]:
    return {"transactions.in.flight.max": count + 1}


class BesideOpen:
    """Commits small transactions while another producer's stay open."""

    def __init__(self, context: Context, count: int) -> None:
        """Keeps the parameters; `open` connects.

        Args:
            context: of the run.
            count: transactions that stay open.
        """
        self._context = context
        self._count = count

    def open(self) -> None:
        """Connects both producers."""
        servers, name = self._context.bootstrap_servers, f"bench-open-{self._count}"
        self._producer = logtx_producer(servers, name)
        self._other = logtx_producer(servers, f"{name}-other", _room_for(self._count))
        self._cpu = CpuTimes(self._context.pids)

    def close(self) -> None:
        """Disconnects."""
        self._producer.close()
        self._other.close()

    def measure(self) -> Sample:
        """Runs one round. Waits for rest before: other rounds leave the coordinator much to do."""
        self._settle()
        opened = hold_open(self._other, OPEN_TOPIC, self._count)
        try:
            self._settle()
            pipelined(self._producer, OPEN_TOPIC, WARM_UP_S, IN_FLIGHT)
            return self._round()
        finally:
            abort_all(opened)

    def _settle(self) -> None:
        """Waits until the coordinator is at rest, but for `SETTLE_MAX_S` at most."""
        until_s = time.monotonic() + SETTLE_MAX_S
        while time.monotonic() < until_s:
            before = self._cpu.now()
            time.sleep(CALM_S)
            if self._cpu.since(before, None)["coordinator CPU s"] < CALM_CPU_S:
                return

    def _round(self) -> Sample:
        seconds = self._context.sized(SECONDS, 0.2)
        before, started_ns = self._cpu.now(), time.monotonic_ns()
        found = pipelined(self._producer, OPEN_TOPIC, seconds, IN_FLIGHT)
        rate = Counted(found, started_ns, time.monotonic_ns()).sample()
        return Sample(rate.value, {**rate.notes, **self._cpu.since(before, len(found))})


class ReadBesideOpen:
    """Reads a backlog. Other transactions begin before its first record and end behind its last."""

    def __init__(self, context: Context, count: int) -> None:
        """Keeps the parameters.

        Args:
            context: of the run.
            count: transactions that are open all along the backlog.
        """
        self._context = context
        self._count = count

    def open(self) -> None:
        """Does nothing: every round has a consumer of its own."""

    def close(self) -> None:
        """Does nothing."""

    def measure(self) -> Sample:
        """Runs one round."""
        name = _backlog(self._count)
        with logtx.Consumer(consumer_config(self._context.bootstrap_servers, name)) as consumer:
            consumer.assign(from_start(name, READ_PARTITIONS))
            return read_all(
                consumer, _transactions(self._context) * PER_TRANSACTION, reads_all=True
            )


class Spread:
    """Commits transactions of one record in each of some partitions, one after another."""

    def __init__(self, context: Context, kind: str, width: int) -> None:
        """Keeps the parameters; `open` connects.

        Args:
            context: of the run.
            kind: "kafka" or "logtx".
            width: number of partitions.
        """
        self._context = context
        self._kind = kind
        self._width = width
        self._producer: Any = None

    def open(self) -> None:
        """Connects."""
        make = kafka_producer if self._kind == "kafka" else logtx_producer
        name = f"bench-spread-{self._kind}-{self._width}"
        self._producer = make(self._context.bootstrap_servers, name)

    def close(self) -> None:
        """Disconnects."""
        if self._kind == "logtx":
            self._producer.close()

    def measure(self) -> Sample:
        """Runs one round."""
        topic, seconds = SPREAD_TOPICS[self._kind], self._context.sized(SECONDS, 0.2)
        transact(self._producer, topic, self._width)
        started_ns = time.monotonic_ns()
        found = one_after_another(self._producer, topic, seconds, self._width)
        return Counted(found, started_ns, time.monotonic_ns()).sample(in_ms=True)


def _backlog(count: int) -> str:
    return f"bench-open-read-{count}"


def _transactions(context: Context) -> int:
    return int(context.sized(BACKLOG / PER_TRANSACTION, 5))


def _prepare_open(context: Context) -> None:
    make_topic(context.bootstrap_servers, OPEN_TOPIC, READ_PARTITIONS)


def _finish_open(context: Context) -> None:
    delete_topics(context.bootstrap_servers, [OPEN_TOPIC])


def _prepare_backlogs(context: Context) -> None:
    """Begins transactions, commits a backlog behind them, and then aborts them."""
    servers = context.bootstrap_servers
    for count in OPEN:
        topic = _backlog(count)
        make_topic(servers, topic, READ_PARTITIONS)
        flying: deque[Future[Any]] = deque()
        with (
            logtx_producer(servers, f"{topic}-other", _room_for(count)) as other,
            logtx_producer(servers, topic) as producer,
        ):
            opened = hold_open(other, topic, count)
            for _ in range(_transactions(context)):
                transaction = producer.begin_transaction()
                for number in range(PER_TRANSACTION):
                    transaction.produce(topic, VALUE, partition=number % READ_PARTITIONS)
                flying.append(transaction.commit_async())
                if len(flying) >= IN_FLIGHT:
                    flying.popleft().result(CONNECT_TIMEOUT_S)
            while flying:
                flying.popleft().result(CONNECT_TIMEOUT_S)
            abort_all(opened)


def _finish_backlogs(context: Context) -> None:
    delete_topics(context.bootstrap_servers, [_backlog(count) for count in OPEN])


def _prepare_spread(context: Context) -> None:
    for topic in SPREAD_TOPICS.values():
        make_topic(context.bootstrap_servers, topic, max(WIDTHS))


def _finish_spread(context: Context) -> None:
    delete_topics(context.bootstrap_servers, list(SPREAD_TOPICS.values()))


def _sides(make: Any) -> dict[str, Any]:
    return {f"open-{count}": partial(make, count=count) for count in OPEN}


def _growth(what: str, note: str | None = None, **fields: Any) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(
            title=f"{what}, {count:,} open; ratio: to {OPEN[0]} open",
            logtx=f"open-{count}",
            baseline=f"open-{OPEN[0]}",
            note=note,
            **fields,
        )
        for count in OPEN[1:]
    )


BESIDE_OPEN: Final = Scenario(
    name="open",
    title="Small transactions while others stay open",
    unit="transactions/s",
    better=Better.HIGHER,
    method=(
        f"Another producer has {OPEN[0]} to {OPEN[-1]:,} transactions open, with a record each. "
        f"One producer commits transactions of 2 records in 2 partitions, {IN_FLIGHT} in flight, "
        "for 1 s a round. Kafka's producers have one open transaction each, so it has no equal of "
        "it. Measured: transactions decided, over the time from the first begin to the last "
        "acknowledged commit, and the coordinator's CPU meanwhile."
    ),
    settings=(shown(PRODUCER), f"values of {len(VALUE)} bytes, no keys, one broker"),
    sides=_sides(BesideOpen),
    comparisons=(
        *_growth("small transactions"),
        *_growth(
            "coordinator's CPU per 1,000 of them",
            "coordinator CPU s per 1,000",
            unit="s",
            better=Better.LOWER,
        ),
    ),
    prepare=_prepare_open,
    finish=_finish_open,
    picture=Picture(
        x="transactions open beside them",
        y="transactions/s",
        curves=[Curve(f"logtx, {IN_FLIGHT} in flight", [Point(n, f"open-{n}") for n in OPEN])],
    ),
)

READ_BESIDE_OPEN: Final = Scenario(
    name="open-consumption",
    title="Committed consumption while others stay open",
    unit="records/s",
    better=Better.HIGHER,
    method=(
        f"A new consumer a round reads a backlog of {BACKLOG:,} records of {len(VALUE)} bytes, "
        f"committed in transactions of {PER_TRANSACTION} over {READ_PARTITIONS} partitions, each "
        f"value and its headers. In front of it {OPEN[0]} to {OPEN[-1]:,} transactions were begun, "
        "with a record each, that end behind it: a consumer of Kafka would wait for them. "
        "Measured: records, over the time from the first record's delivery to the last's."
    ),
    settings=(shown(CONSUMER),),
    sides=_sides(ReadBesideOpen),
    comparisons=_growth("committed consumption"),
    prepare=_prepare_backlogs,
    finish=_finish_backlogs,
    picture=Picture(
        x="transactions open all along the backlog",
        y="records/s",
        curves=[Curve("logtx", [Point(n, f"open-{n}") for n in OPEN])],
    ),
)

SPREAD: Final = Scenario(
    name="partitions",
    title="Transactions over many partitions",
    unit="ms",
    better=Better.LOWER,
    method=(
        f"One producer, transactions of one record in each of {', '.join(map(str, WIDTHS))} "
        "partitions, one after another for 1 s a round, by the same calls on both sides. Measured: "
        "p50 of the time from begin to the acknowledged commit."
    ),
    settings=(shown(PRODUCER), f"values of {len(VALUE)} bytes, no keys, one broker"),
    sides={
        f"{kind}-{width}": partial(Spread, kind=kind, width=width)
        for width in WIDTHS
        for kind in SPREAD_TOPICS
    },
    comparisons=tuple(
        Comparison(
            title=f"a record in each of {width} partitions, one after another, p50"
            if width > 1
            else "one record, one after another, p50",
            kafka=f"kafka-{width}",
            logtx=f"logtx-{width}",
        )
        for width in WIDTHS
    ),
    prepare=_prepare_spread,
    finish=_finish_spread,
    picture=Picture(
        x="partitions of a transaction",
        y="begin to acknowledged commit, p50, ms",
        curves=[
            Curve(label, [Point(n, f"{kind}-{n}") for n in WIDTHS])
            for kind, label in (("kafka", "Kafka"), ("logtx", "logtx"))
        ],
    ),
)
