"""A last reader: reads everything from the beginning, when nothing is written any more.

    python -m logtx.chaos.workload.final DIRECTORY NUMBER LIFE

It ends by itself: well when it has read to the end, with an error when it can't within `LIMIT_S`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..errors import ChaosError
from ..options import Metadata, System
from .process import Process, run
from .readers import TRANSIENT, Notes, all_partitions, final_readers, open_reader

_T = TypeVar("_T")
BATCH: Final = 500
"""Messages of one `consume`, and of one line of the history."""
LIMIT_S: Final = 900.0
"""Bounds the reading; `drain.FINALS_S` must be longer. Of 26,000 commits in topics that were
switched forty times it took 270 s where four readers shared two cores."""
IDLE_S: Final = 6.0
"""A reader of logtx ends after this time without a record (a read_committed one only at the ends of
the logs). A smaller value may stop too early, a larger one delays the end."""
SERIAL_IDLE_S: Final = 20.0
"""The same for a serializable reader: where a topic was made anew, it looks at a partition's end
twice, five seconds apart, before it passes over what went with the former one."""
ANEW_S: Final = 75.0
"""The same for a serializable reader where a topic that is made anew was in metadata mode: what is
placed behind the new topic's end is waited for, for a minute."""
FIRST_S: Final = 100.0
"""The same before the first record. It is longer because a serializable reader looks for its
transaction in the whole journal, beside others that read everything: with 30 s, one on a machine
with a load average of 35 ended before it was given anything. Of a run without any record, it delays
the end."""
ANSWER_S: Final = 20.0
"""Longest wait for one answer of a broker. A smaller value asks a slow broker again."""
_POLL_S: Final = 0.3
"""Longest wait of one `consume`."""
_RETRY_S: Final = 0.2
"""Pause after an error that may pass."""


def read_all(process: Process) -> None:
    """Reads all topics to their ends, or until SIGTERM."""
    settings = process.settings
    reader = final_readers(settings)[process.number]
    notes = Notes(process.recorder, reader)
    of_kafka = settings.system is System.KAFKA
    consumer = open_reader(settings, reader, **({"enable.partition.eof": True} if of_kafka else {}))
    positions_tell = not of_kafka and reader.isolation == "read_committed"
    partitions = all_partitions(process, OFFSET_BEGINNING)
    deadline_s = time.monotonic() + LIMIT_S
    _asked(process, deadline_s, lambda: consumer.assign(partitions))
    ends = {
        (p.topic, p.partition): _asked(
            process, deadline_s, partial(consumer.get_watermark_offsets, p, timeout=ANSWER_S)
        )[1]
        for p in partitions
    }
    notes.assigned(partitions)
    idle_s = IDLE_S
    if reader.isolation == "serializable":
        idle_s = ANEW_S if settings.metadata is Metadata.ALL else SERIAL_IDLE_S
    idle_until_s = time.monotonic() + max(idle_s, FIRST_S)
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
            idle_until_s = now_s + idle_s
        if of_kafka:
            is_over = len(at_end) == len(ends)
        else:
            idle = now_s >= idle_until_s
            is_over = idle and (not positions_tell or not _behind(consumer, ends))
        if is_over:
            told = [[*key, end] for key, end in ends.items()]
            process.recorder.write("note", note="read to end", ends=told)
            break
        if now_s > deadline_s:
            behind = _behind(consumer, ends)
            raise ChaosError(f"{process.name} did not reach the end in {LIMIT_S:.0f} s: {behind}")
    consumer.close()


def _asked(process: Process, deadline_s: float, ask: Callable[[], _T]) -> _T:
    """Returns the answer; asks again while the brokers refuse, as they do without a leader."""
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].fatal() or time.monotonic() > deadline_s:
                raise
            process.recorder.write("error", error=repr(error))
        process.stopping.wait(_RETRY_S)


def _is_end(message: Message) -> bool:
    """Returns whether this is librdkafka's event that a partition has no more for this reader."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def _behind(consumer: Any, ends: dict[tuple[str, int], int]) -> list[tuple[str, int, int, int]]:
    """Returns partitions that were not read to the end: topic, partition, position, end."""
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
