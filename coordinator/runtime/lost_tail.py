"""Fills the lost tail of a journal partition, on an operator's word, so that it can be served.

Such a journal is dangerous because its offsets are TxIds and commit sequences, and would be used
twice. A new transaction would end another one's records, or consumers that met its sequence before
would take it for a duplicate. So the lost offsets are filled with void records, which belong to no
epoch, and everything below them stays valid. Why not a new incarnation:
docs/decisions/0012-a-lost-tail-is-filled.md.

Source: Transactional Messaging in Kafka, "Failure cases"; trap 10.
"""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from ...journal.errors import BrokerError, ConfigError
from ...journal.logs.interface import Log
from ...journal.reader import JOURNAL_TOPIC
from ...journal.records.codec import encode_entry
from ...journal.records.fate import NO_EPOCH
from ...journal.records.types import Committed, Entry
from .appender import APPENDER_CONFIG
from .pressure import APPENDS_MAX

MARGIN: Final = APPENDS_MAX
"""Records filled beyond what is known to be lost: as many as an owner may have had in flight, of
which only its clients know. With fewer, such offsets could be used twice."""
LOST_MAX: Final = 10_000_000
"""Most records that may have been lost; a larger loss is taken for a mistake in the end given.
Filling takes seconds per million records, and so does loading them."""
VOID: Final = encode_entry(Entry(NO_EPOCH, 0, Committed(begin=NO_EPOCH)))
"""A record of no epoch and no incarnation, predicted nowhere: it counts for no reader."""
_QUEUED_MAX: Final = 50_000
"""Most records in the producer's queue: bounds its memory."""


def fill_lost_tail(log: Log, partition: int, end: int, *, timeout_s: float = 120) -> int:
    """Fills a journal partition with void records, up to `MARGIN` records behind its former end.

    No coordinator may be running: one that has read the lost records would go on with them.

    Args:
        log: the log that holds the journal.
        partition: number of the journal partition.
        end: the former end: everything below was acknowledged, as coordinators say.
        timeout_s: bound of the whole call in seconds; a repeat goes on where it ended.

    Returns:
        The offset that the next record gets.

    Raises:
        ConfigError: nothing is lost, or so much that `end` must be a mistake.
        BrokerError: the log does not take the records.
        UnknownTopicError: there is no such journal partition.
    """
    deadline_s = time.monotonic() + timeout_s
    found = log.end_offset(JOURNAL_TOPIC, partition)
    if found >= end:
        raise ConfigError(
            f"journal partition {partition} ends at {found}: nothing is lost below {end}, and"
            " nothing was written"
        )
    if end - found > LOST_MAX:
        raise ConfigError(
            f"journal partition {partition} ends at {found}: {end - found} records can't have been"
            " lost, and nothing was written; see what the coordinators' errors say"
        )
    _append(log, partition, end + MARGIN - found, deadline_s)
    return log.end_offset(JOURNAL_TOPIC, partition)


def _append(log: Log, partition: int, count: int, deadline_s: float) -> None:
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = log.producer(APPENDER_CONFIG)
    try:
        for _ in range(count):
            while len(producer) >= _QUEUED_MAX and time.monotonic() < deadline_s:
                producer.poll(0.01)
            if failures or time.monotonic() >= deadline_s:
                break
            producer.produce(JOURNAL_TOPIC, VOID, partition=partition, on_delivery=delivered)
        producer.flush(max(deadline_s - time.monotonic(), 0))
        left = len(producer)
    except KafkaException as error:
        raise BrokerError(f"journal partition {partition} takes no records: {error}") from error
    finally:
        producer.purge()
        producer.close()
    if failures or left:
        why = failures[0].str() if failures else "no answer in time"
        raise BrokerError(f"journal partition {partition} takes no records: {why}")
