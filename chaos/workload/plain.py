"""Writes plain records by a plain Kafka producer: they stand between those of transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ...journal.sidecar import is_sidecar, main_of, to_delivered
from ..recorder import Recorder
from ..settings import METADATA_MS, Settings
from .clients import DeliveryCallback
from .plain_reports import PlainReports
from .record import Value

_FLUSH_S: Final = 15.0
"""Bounds the wait for the last reports."""
_QUEUE_MAX: Final = 100
"""Most records on their way: without a limit a broker that stalls would fill the memory."""


def reporter(
    recorder: Recorder,
    value: str,
    also: Callable[[int], None] | None = None,
    reports: PlainReports | None = None,
) -> DeliveryCallback:
    """Returns a callback that writes to the history what became of a record.

    `also` gets the record's offset. `reports` are those of an idempotent producer, all of whose
    records give them.
    """

    def told(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            recorder.write("failed", v=value, error=str(error))
        elif reports is not None and not reports.tells(message.topic() or "", message):
            # Trap 240: nobody knows whether it was written.
            recorder.write("failed", v=value, error=f"acknowledged at offset {message.offset()}")
        else:
            offset = message.offset()
            if also is not None and offset is not None:
                also(offset)
            topic = message.topic()
            if topic is not None and is_sidecar(topic):
                # As readers are given it.
                topic, offset = main_of(topic), None if offset is None else to_delivered(offset)
            recorder.write(
                "acked",
                topic=topic,
                partition=message.partition(),
                offset=offset,
                v=value,
            )

    return told


class PlainWriter:
    """Appends records outside of transactions."""

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self._settings = settings
        self._recorder = recorder
        self._reports = PlainReports()
        self._producer = Producer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 2,
            }
        )

    def append(self, topic: str, value: Value, also: Callable[[int], None] | None = None) -> bool:
        """Appends a record. Returns False, and does nothing, while too many are on their way.

        `also` gets its offset, from within `append` or `close`.
        """
        self._producer.poll(0)
        if len(self._producer) >= _QUEUE_MAX:
            return False
        partition = self._settings.partition_of(value.key)
        self._recorder.write(
            "append", op=None, topic=topic, partition=partition, k=value.key, v=value.value
        )
        try:
            self._producer.produce(
                topic,
                value.encode(),
                str(value.key).encode(),
                partition,
                on_delivery=reporter(self._recorder, value.value, also, self._reports),
            )
        except KafkaException as error:
            # The topic has grown, and this client does not know the new partition yet.
            self._recorder.write("failed", v=value.value, error=str(error))
        return True

    def close(self, timeout_s: float = _FLUSH_S) -> bool:
        """Waits for the reports. Returns whether all came."""
        return self._producer.flush(timeout_s) == 0
