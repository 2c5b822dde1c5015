"""A consumer that reads along: a member of a group, or alone and from the beginning.

    python -m logtx.chaos.workload.consumer DIRECTORY NUMBER LIFE

It commits its positions about every second; a successor continues there.
"""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from ...journal.errors import LogtxError, TopicRecreatedError
from .process import Process, run
from .readers import TRANSIENT, Notes, Reader, all_partitions, consumer_readers, open_reader

BATCH: Final = 200
"""Messages of one `consume`, and of one line of the history."""
_COMMIT_EVERY_S: Final = 1.0
"""How often positions are committed. A larger value makes a successor read more again."""
_POLL_S: Final = 0.2
"""Longest wait of one `consume`; bounds how late SIGTERM is noticed."""
_RETRY_S: Final = 0.2
"""Pause after an error that may pass."""


def consume(process: Process) -> None:
    """Reads until SIGTERM."""
    reader = consumer_readers(process.settings)[process.number]
    notes = Notes(process.recorder, reader)
    consumer = _open(process, reader, notes, is_first=process.life == 0)
    commit_at_s = time.monotonic() + _COMMIT_EVERY_S
    while not process.stopping.is_set():
        try:
            notes.delivered(consumer.consume(BATCH, _POLL_S))
            if time.monotonic() >= commit_at_s:
                commit_at_s = time.monotonic() + _COMMIT_EVERY_S
                _commit(consumer, notes)
        except TRANSIENT as error:
            _transient(process, error)
        except TopicRecreatedError as error:
            # As its message says: librdkafka does not read the new topic.
            _transient(process, error)
            _commit(consumer, notes)
            consumer.close()
            consumer = _open(process, reader, notes, is_first=False)
        except LogtxError:
            raise
        except KafkaException as error:
            if error.args[0].fatal():
                raise
            _transient(process, error)
    consumer.close()


def _open(process: Process, reader: Reader, notes: Notes, *, is_first: bool) -> Any:
    """Opens a consumer of all topics; the first one of its name begins at the beginning."""
    consumer = open_reader(process.settings, reader)
    if reader.member:
        consumer.subscribe(
            process.settings.topics, on_assign=_assigned(notes), on_revoke=_revoked(notes)
        )
    else:
        _assign(process, consumer, notes, OFFSET_BEGINNING if is_first else OFFSET_STORED)
    return consumer


def _transient(process: Process, error: Exception) -> None:
    process.recorder.write("error", error=repr(error))
    process.stopping.wait(_RETRY_S)


def _assign(process: Process, consumer: Any, notes: Notes, offset: int) -> None:
    """Assigns all partitions, to be read from `offset`."""
    partitions = all_partitions(process, offset)
    while not process.stopping.is_set():
        try:
            consumer.assign(partitions)
        except TRANSIENT as error:
            _transient(process, error)
        except LogtxError:
            raise
        except KafkaException as error:
            _transient(process, error)
        else:
            notes.assigned(partitions)
            return


def _assigned(notes: Notes) -> Any:
    def call(_: Any, partitions: list[KafkaPartition]) -> None:
        notes.assigned([KafkaPartition(p.topic, p.partition) for p in partitions])

    return call


def _revoked(notes: Notes) -> Any:
    def call(_: Any, partitions: list[KafkaPartition]) -> None:
        notes.revoked(partitions)

    return call


def _commit(consumer: Any, notes: Notes) -> None:
    try:
        notes.committed(consumer.commit(asynchronous=False) or ())
    except LogtxError:
        raise
    except KafkaException as error:
        # Kafka's consumer says so when there is nothing new to commit. Or a rebalance came, and
        # other members continue from an earlier offset.
        if error.args[0].fatal():
            raise


if __name__ == "__main__":
    run("consumer", consume)
