"""A last reader: everything from the beginning, when nothing is written any more.

    python -m logtx.chaos.workload.final DIRECTORY NUMBER INCARNATION

Ends by itself: well when it has read to the end, with an error when it can't within `LIMIT_S`.
"""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..errors import ChaosError
from ..options import System
from .process import Process, run
from .readers import TRANSIENT, Notes, all_partitions, final_readers, open_reader

BATCH: Final = 500
LIMIT_S: Final = 150.0
IDLE_S: Final = 6.0
"""Without a record: there are no more of them, where nothing else says so."""
FIRST_S: Final = 30.0
"""The same before the first record: a serializable reader looks for its transaction in the whole
journal, beside others who read everything."""
_POLL_S: Final = 0.3
_RETRY_S: Final = 0.2


def read_all(process: Process) -> None:
    """Until the end of both topics."""
    settings = process.settings
    reader = final_readers(settings)[process.number]
    notes = Notes(process.recorder, reader)
    of_kafka = settings.system is System.KAFKA
    consumer = open_reader(settings, reader, **({"enable.partition.eof": True} if of_kafka else {}))
    positions_tell = not of_kafka and reader.isolation == "read_committed"
    partitions = all_partitions(settings, OFFSET_BEGINNING)
    deadline_s = time.monotonic() + LIMIT_S
    consumer.assign(partitions)
    ends = {
        (p.topic, p.partition): consumer.get_watermark_offsets(p, timeout=20)[1] for p in partitions
    }
    notes.assigned(partitions)
    idle_until_s = time.monotonic() + FIRST_S
    at_end: set[tuple[str | None, int | None]] = set()
    while not process.stopping.is_set():
        try:
            messages = consumer.consume(BATCH, _POLL_S)
            at_end.update((m.topic(), m.partition()) for m in messages if _is_end(m))
            records = notes.delivered([m for m in messages if not _is_end(m)], final=True)
        except TRANSIENT as error:
            process.recorder.write("error", error=repr(error))
            process.stopping.wait(_RETRY_S)
            continue
        now_s = time.monotonic()
        if records:
            idle_until_s = now_s + IDLE_S
        if of_kafka:
            is_over = len(at_end) == len(ends)
        else:
            idle = now_s >= idle_until_s
            is_over = idle and (not positions_tell or not _behind(consumer, ends))
        if is_over:
            break
        if now_s > deadline_s:
            behind = _behind(consumer, ends)
            raise ChaosError(f"{process.name} did not reach the end in {LIMIT_S:.0f} s: {behind}")
    told = [[*key, end] for key, end in ends.items()]
    process.recorder.write("note", note="read to end", ends=told)
    consumer.close()


def _is_end(message: Message) -> bool:
    """Whether it is librdkafka's word that a partition has no more for this reader."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def _behind(consumer: Any, ends: dict[tuple[str, int], int]) -> list[tuple[str, int, int, int]]:
    """Partitions that were not read to the end: topic, partition, where it is, the end."""
    try:
        places = consumer.position([KafkaPartition(*key) for key in ends])
    except KafkaException:
        return [(*key, -1, end) for key, end in ends.items()]
    return [
        (p.topic, p.partition, p.offset, ends[p.topic, p.partition])
        for p in places
        if p.offset < ends[p.topic, p.partition]
    ]


if __name__ == "__main__":
    run("final", read_all)
