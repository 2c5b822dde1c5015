"""The messages that are worked off: plain ones, or ones in committed transactions."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any, Final

from ..clients import CONNECT_TIMEOUT_S, kafka_producer, logtx_producer
from ..spill.payload import Payload

PARTITIONS: Final = 4
SIZE: Final = 100
"""Bytes of a message."""
PER_TRANSACTION: Final = 100
"""Messages of a transaction, all in one partition."""
_IN_FLIGHT: Final = 16
"""Transactions that are written at a time."""
_FLUSH_EVERY: Final = 10_000
"""Messages between two waits: librdkafka keeps no more than ten times as many."""


class FillError(Exception):
    """The broker took less than was to be worked off."""


def fill_plain(servers: str, topic: str, numbers: range, partitions: int = PARTITIONS) -> None:
    """Writes plain messages of these numbers, to all partitions in turn.

    Raises:
        FillError: they were not acknowledged in time.
    """
    payload, producer = Payload(SIZE, numbers.stop), kafka_producer(servers, None)
    for number in numbers:
        producer.produce(topic, payload.value(number), partition=number % partitions)
        if not number % _FLUSH_EVERY and producer.flush(CONNECT_TIMEOUT_S):
            raise FillError(f"{topic}: messages were not acknowledged")
    if producer.flush(CONNECT_TIMEOUT_S):
        raise FillError(f"{topic}: messages were not acknowledged")


def fill_transactions(servers: str, topic: str, numbers: range) -> None:
    """Writes messages of these numbers in committed transactions, to all partitions in turn.

    Raises:
        LogtxError, TimeoutError: a transaction did not commit.
    """
    payload = Payload(SIZE, numbers.stop)
    flying: deque[Future[Any]] = deque()
    with logtx_producer(servers, f"fill-{topic}") as producer:
        for nth, first in enumerate(range(numbers.start, numbers.stop, PER_TRANSACTION)):
            transaction = producer.begin_transaction()
            for number in range(first, min(first + PER_TRANSACTION, numbers.stop)):
                transaction.produce(topic, payload.value(number), partition=nth % PARTITIONS)
            flying.append(transaction.commit_async())
            if len(flying) >= _IN_FLIGHT:
                flying.popleft().result(CONNECT_TIMEOUT_S)
        while flying:
            flying.popleft().result(CONNECT_TIMEOUT_S)
