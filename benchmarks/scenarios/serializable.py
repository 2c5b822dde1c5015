"""Reads committed records in serial order, beside reading them partition by partition."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import logtx

from ..clients import (
    CONNECT_TIMEOUT_S,
    CONSUMER,
    consumer_config,
    delete_topics,
    from_start,
    logtx_producer,
    make_topic,
    shown,
)
from ..model import Better, Comparison, Context, Sample, Scenario
from .consumption import read_all

PARTITIONS: Final = 3
TRANSACTIONS: Final = {99: 2_000, 9: 8_000}
"""Number of transactions in the backlog, by how many records each has."""
VALUE: Final = b"x" * 100
IN_FLIGHT: Final = 64
"""Transactions in flight while the backlog is written, which is not measured."""


class _Reading:
    """Reads the topic from its start to its last record, with a new consumer in each round."""

    isolation = ""

    def __init__(self, context: Context, records: int) -> None:
        self.context = context
        self.records = records

    def open(self) -> None:
        """Does nothing: every round has a consumer of its own."""

    def close(self) -> None:
        """Does nothing."""

    def measure(self) -> Sample:
        """Runs one round."""
        name = _name(self.records)
        settings = {
            **consumer_config(self.context.bootstrap_servers, f"{name}-{self.isolation}"),
            "isolation.level": self.isolation,
            "transaction.group": name,
        }
        with logtx.Consumer(settings) as consumer:
            consumer.assign(from_start(name, PARTITIONS))
            return read_all(consumer, _total(self.context, self.records), reads_all=True)


class ReadCommitted(_Reading):
    """Reads partition by partition."""

    isolation = "read_committed"


class Serializable(_Reading):
    """Reads in the order of the decisions."""

    isolation = "serializable"


def _name(records: int) -> str:
    """Returns the name of the topic, and of the transaction group that writes it."""
    return f"bench-serial-{records}"


def _transactions(context: Context, records: int) -> int:
    return int(context.sized(TRANSACTIONS[records], 10))


def _total(context: Context, records: int) -> int:
    return _transactions(context, records) * records


def _prepare(context: Context, records: int) -> None:
    """Writes the transactions; their records go to the partitions in turn."""
    servers, name = context.bootstrap_servers, _name(records)
    make_topic(servers, name, PARTITIONS)
    flying: deque[Future[Any]] = deque()
    with logtx_producer(servers, f"{name}-fill", {"transaction.group": name}) as producer:
        for _ in range(_transactions(context, records)):
            transaction = producer.begin_transaction()
            for number in range(records):
                transaction.produce(name, VALUE, partition=number % PARTITIONS)
            flying.append(transaction.commit_async())
            if len(flying) >= IN_FLIGHT:
                flying.popleft().result(CONNECT_TIMEOUT_S)
        while flying:
            flying.popleft().result(CONNECT_TIMEOUT_S)


def _finish(context: Context, records: int) -> None:
    delete_topics(context.bootstrap_servers, [_name(records)])


def _scenario(records: int, *, quick: bool = False) -> Scenario:
    return Scenario(
        name=f"serializable-{records}",
        title=f"isolation.level=serializable, transactions of {records} records",
        unit="records/s",
        better=Better.HIGHER,
        method=(
            f"A new consumer a round reads a backlog of {TRANSACTIONS[records]:,} transactions of "
            f"{records} records of {len(VALUE)} bytes, in turn in {PARTITIONS} partitions, as in "
            "committed consumption: in the order of the decisions (serializable), and partition by "
            "partition (read_committed). Kafka has no equal of it. Measured: records, over the "
            "time from the first record's delivery to the last's."
        ),
        settings=(shown({k: v for k, v in CONSUMER.items() if k != "isolation.level"}),),
        sides={side.isolation: partial(side, records=records) for side in _SIDES},
        comparisons=(
            Comparison(
                title=f"serializable, {records} records in {PARTITIONS} partitions; "
                "ratio: to logtx's read_committed",
                logtx=Serializable.isolation,
                baseline=ReadCommitted.isolation,
                target=0.5,
            ),
        ),
        prepare=partial(_prepare, records=records),
        finish=partial(_finish, records=records),
        quick=quick,
    )


_SIDES: Final = (ReadCommitted, Serializable)
SERIALIZABLE_99: Final = _scenario(99, quick=True)
SERIALIZABLE_9: Final = _scenario(9)
