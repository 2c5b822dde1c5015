"""Consumers of the workload, of logtx or of Kafka, and the history of what they deliver.

Both kinds have the same calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ...consumer.consumer import Consumer
from ...journal.errors import BrokerError, RetriableError, UnknownTopicError
from ..options import System
from ..recorder import Recorder
from ..settings import FLEETING_PARTITIONS, METADATA_MS, SPARK_PARTITIONS, Settings
from .process import Process
from .record import polled

FETCH_WAIT_MS: Final = 100
"""Longest wait of a broker for `FETCH_MIN_BYTES`: a larger value delays delivery."""
FETCH_MIN_BYTES: Final = 16_384
"""Far more than the default of both systems, so it is the wait that ends: a reader asks each broker
ten times a second, not for every transaction. Each request goes through a proxy, and two cores have
better things to do."""
TRANSIENT: Final = (RetriableError, BrokerError, UnknownTopicError)
"""Errors of logtx's consumer after which it is tried again. A topic may be away for a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How one consumer reads."""

    group: str
    isolation: str
    member: bool = False
    """Whether it is a member of a group that shares the partitions; else it reads all of them."""
    transaction_group: str = "default"
    """Transaction group of a serializable reader."""


def consumer_readers(settings: Settings) -> list[Reader]:
    """Returns how each consumer process reads."""
    member = Reader(group=settings.readers_group, isolation="read_committed", member=True)
    alone = [
        Reader(group="chaos-alone", isolation="read_committed"),
        Reader(group="chaos-raw", isolation="read_uncommitted"),
    ]
    if settings.system is System.LOGTX:
        alone.append(Reader(group="chaos-serial", isolation="serializable"))
    return [member, member, *alone]


def final_readers(settings: Settings) -> list[Reader]:
    """Returns how each last reader reads, from the beginning."""
    readers = [Reader(group="chaos-final", isolation="read_committed")]
    if settings.system is System.LOGTX:
        readers += [
            Reader(group="chaos-final-serial", isolation="serializable"),
            Reader(
                group="chaos-final-workers",
                isolation="serializable",
                transaction_group=settings.workers_group,
            ),
        ]
    if settings.places_sidecars:
        readers.append(Reader(group="chaos-final-raw", isolation="read_uncommitted"))
    return readers


def reader_settings(settings: Settings, reader: Reader) -> dict[str, Any]:
    """Returns the settings of its consumer; positions are committed by hand."""
    found = {
        "bootstrap.servers": settings.bootstrap_servers,
        "group.id": reader.group,
        "isolation.level": reader.isolation,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "fetch.min.bytes": FETCH_MIN_BYTES,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "log_level": 2,
        **(settings.group_settings() if reader.member else {}),
    }
    if settings.system is System.LOGTX:
        # A producer that died leaves records whose fate only the journal tells.
        own = {"transaction.group": reader.transaction_group, "pending.lookup.age.ms": 10_000}
        return {**found, **own}
    return {**found, "fetch.queue.backoff.ms": 10}


def open_reader(settings: Settings, reader: Reader, **more: Any) -> Any:
    """Opens a `logtx.Consumer` or a `confluent_kafka.Consumer`."""
    found = {**reader_settings(settings, reader), **more}
    if settings.system is System.LOGTX:
        return Consumer(found)
    return KafkaConsumer(found)


class Notes:
    """Writes to the history what a consumer is assigned and delivers."""

    def __init__(self, recorder: Recorder, reader: Reader) -> None:
        self._recorder = recorder
        self._reader = reader
        self._group = {"group": reader.group} if reader.member else {}

    def assigned(self, partitions: Sequence[KafkaPartition]) -> None:
        """Notes partitions that were assigned, or that continue at another offset."""
        if not partitions:
            return
        self._recorder.write(
            "assigned",
            **self._group,
            isolation=self._reader.isolation,
            transaction_group=self._reader.transaction_group,
            partitions=[
                [p.topic, p.partition, p.offset if p.offset >= 0 else None] for p in partitions
            ],
        )

    def revoked(self, partitions: Sequence[KafkaPartition]) -> None:
        """Notes partitions that were revoked."""
        self._recorder.write(
            "revoked", partitions=[[p.topic, p.partition, None] for p in partitions]
        )

    def delivered(self, messages: Sequence[Message], **more: Any) -> list[Message]:
        """Notes a batch. Returns its records, without events.

        Raises:
            KafkaException: a fatal event.
        """
        records = []
        for message in messages:
            event = message.error()
            if event is None:
                records.append(message)
            elif event.fatal():
                raise KafkaException(event)
            else:
                self._recorder.write("error", error=str(event))
        if records:
            self._recorder.write(
                "poll",
                isolation=self._reader.isolation,
                records=[polled(message) for message in records],
                **more,
            )
        return records

    def committed(self, partitions: Sequence[KafkaPartition]) -> None:
        """Notes the positions that were committed."""
        moved = [[p.topic, p.partition, p.offset] for p in partitions if p.offset >= 0]
        if moved:
            self._recorder.write("committed_position", partitions=moved)


def all_partitions(process: Process, offset: int) -> list[KafkaPartition]:
    """Returns all partitions that there are by now, to be read from `offset`."""
    settings = process.settings
    counts = dict.fromkeys((settings.data_topic, settings.out_topic), process.partitions)
    if settings.fleeting_topic is not None:
        counts[settings.fleeting_topic] = FLEETING_PARTITIONS
    if settings.spark_topic is not None:
        counts[settings.spark_topic] = SPARK_PARTITIONS
    return [
        KafkaPartition(topic, number, offset)
        for topic, count in counts.items()
        for number in range(count)
    ]
