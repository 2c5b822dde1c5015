"""Runs searches for large transactions, in many partitions at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from ...consumer.range_reader.large import Search
from ...consumer.range_reader.reading import CONSUMER
from ...journal.control import TopicPartition
from ...journal.logs.interface import Log, LogConsumer

SEARCH_S: Final = 2.0
"""Longest search when a job or micro-batch is planned. What it has not found by then is read by one
task. A smaller value finds less in many partitions, a larger one delays the plan."""
_POLL_S: Final = 0.1
QUEUE_KBYTES: Final = 1_024
"""What a broker may send ahead. A larger value reads more records that nobody wants."""
_FETCH: Final[Mapping[str, Any]] = {
    # One record of each partition is wanted, and a broker sends whole batches.
    "max.partition.fetch.bytes": 16_384,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": QUEUE_KBYTES,
}


def settings(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Returns the settings of a consumer that searches; `kafka` are those that the options give."""
    found = {**CONSUMER, **kafka, **_FETCH}
    given = str(found.get("fetch.max.bytes", ""))
    # A fetch may be no smaller than a message (message.max.bytes), and no larger than an answer
    # (receive.message.max.bytes). Left out, librdkafka makes it as large as the queue or a message.
    if not given.isdecimal() or int(given) > QUEUE_KBYTES * 1024:
        found.pop("fetch.max.bytes", None)
    return found


def run(log: Log, kafka: Mapping[str, str], searches: Mapping[TopicPartition, Search]) -> None:
    """Answers what the searches want, until they want nothing or `SEARCH_S` have passed.

    Args:
        log: the log to read.
        kafka: librdkafka's settings.
        searches: partition → its search, which knows then what was found.
    """
    deadline_s = time.monotonic() + SEARCH_S
    consumer = log.consumer(settings(kafka))
    try:
        while time.monotonic() < deadline_s:
            wanted = {k: s.wanted for k, s in searches.items() if s.wanted is not None}
            if not wanted:
                return
            consumer.assign([KafkaPartition(*key, offset) for key, offset in wanted.items()])
            _round(consumer, {key: searches[key] for key in wanted}, deadline_s)
    finally:
        consumer.close()


def _round(
    consumer: LogConsumer, searches: dict[TopicPartition, Search], deadline_s: float
) -> None:
    """Gives each search the record that it wants."""
    while searches and time.monotonic() < deadline_s:
        message = consumer.poll(_POLL_S)
        if message is None:
            continue
        error = message.error()
        key = str(message.topic()), int(message.partition() or 0)
        if error is None:
            search = searches.pop(key, None)
            if search is not None:
                search.take(message)  # type: ignore[arg-type]  # as the consumer's own core
        elif error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
            search = searches.pop(key, None)
            if search is not None:
                search.take(None)
