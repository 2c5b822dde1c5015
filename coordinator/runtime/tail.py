"""Follows the journal partitions that others own: one consumer, in one thread, for all of them.

The thread decodes the records and hands them to the event loop in bounded batches. The next batch
waits until the loop has taken the last one. So a standby that lags neither costs memory nor holds
up the loop for long.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ...journal.errors import BrokerError, CorruptRecordError, JournalError, LogtxError
from ...journal.logs.interface import Log, LogConsumer
from ...journal.reader import JOURNAL_TOPIC, STANDING_READER_SETTINGS, decode_message
from ...journal.records.types import Entry
from ..tasks import raise_on

_LOG = logging.getLogger(__name__)

CONSUMER_SETTINGS: Final = {
    **STANDING_READER_SETTINGS,
    # Bounds what librdkafka reads ahead for each partition: a lagging standby is not worth more.
    "queued.max.messages.kbytes": 4_096,
}
BATCH_MAX: Final = 256
"""Records handed over at once. They hold the event loop for a few milliseconds; more would stall
its clients longer, fewer make following slower."""
POLL_S: Final = 0.02
"""Longest time until a change of what is followed takes effect; a shorter one wakes the thread more
often."""
MAKE_AGAIN_S: Final = 0.5
"""Pause after a consumer could not be made, for want of memory or of file handles."""
CLOSE_S: Final = 5.0
"""Longest wait of `close` for the thread."""


@dataclass(slots=True)
class Batch:
    """Records read from one partition."""

    partition: int
    token: int
    """Token of the `Tail.follow` that it belongs to."""
    entries: list[tuple[int, Entry]] = field(default_factory=list)
    """Offsets and entries in order; empty if the log had nothing further at the time."""
    failure: LogtxError | None = None
    """Why no further batch will come; None while reading goes on."""


@dataclass(slots=True)
class _Following:
    token: int
    offset: int
    failed: bool = False


class Tail:
    """Follows any number of journal partitions; created and used on one event loop."""

    def __init__(self, log: Log, deliver: Callable[[Batch], None]) -> None:
        """Starts the thread. Calls `deliver` on the event loop, batch by batch."""
        self._log = log
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._wanted: dict[int, _Following] = {}
        self._token = 0
        self._work = threading.Event()
        self._taken = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)
        self._thread.start()

    def follow(self, partition: int, offset: int) -> int:
        """Delivers a partition's records from `offset` on. Returns the token of its batches."""
        with self._lock:
            self._token += 1
            self._wanted[partition] = _Following(self._token, offset)
        self._work.set()
        return self._token

    def leave(self, partition: int) -> None:
        """Stops following a partition. Batches under way are still delivered."""
        with self._lock:
            self._wanted.pop(partition, None)

    async def close(self) -> None:
        """Stops the thread and closes the consumer."""
        self._closed = True
        self._work.set()
        self._taken.set()
        await asyncio.to_thread(self._thread.join, CLOSE_S)

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closed:
                self._read_by_a_consumer()
        except Exception as error:  # noqa: BLE001 - whatever it is, the coordinator is deaf now
            raise_on(self._loop, error)

    def _read_by_a_consumer(self) -> None:
        try:
            consumer = self._log.consumer(CONSUMER_SETTINGS)
        except KafkaException as exception:
            # Nobody is told: nothing was lost, and every wait for a record has a bound.
            _LOG.warning("tail_not_made error=%s", exception)
            time.sleep(MAKE_AGAIN_S)
            return
        assigned: dict[int, _Following] = {}
        try:
            self._read(consumer, assigned)
        except KafkaException as exception:
            _LOG.warning("tail_broken error=%s", exception)
            self._give_up(assigned, BrokerError(f"following the journal: {exception}"))
        finally:
            consumer.close()

    def _read(self, consumer: LogConsumer, assigned: dict[int, _Following]) -> None:
        while not self._closed:
            self._assign(consumer, assigned)
            if not assigned:
                self._work.wait()
                self._work.clear()
                continue
            first = consumer.poll(POLL_S)
            if first is not None:
                messages = [first, *consumer.consume(BATCH_MAX, 0)]
                self._hand_over(self._batches(messages, assigned))

    def _give_up(self, assigned: dict[int, _Following], failure: LogtxError) -> None:
        with self._lock:
            # Each receiver calls `follow` again, from what it has read so far. Until then its
            # partition is not followed.
            told = {**assigned, **self._wanted}
            self._wanted.clear()
        self._hand_over([Batch(p, f.token, failure=failure) for p, f in told.items()])

    def _assign(self, consumer: LogConsumer, assigned: dict[int, _Following]) -> None:
        with self._lock:
            wanted = dict(self._wanted)
        # A partition that is followed again is unassigned first, because its next offset differs.
        gone = [p for p, f in assigned.items() if wanted.get(p) is not f]
        if gone:
            consumer.incremental_unassign([KafkaPartition(JOURNAL_TOPIC, p) for p in gone])
            for partition in gone:
                del assigned[partition]
        come = {p: f for p, f in wanted.items() if p not in assigned}
        if come:
            places = [KafkaPartition(JOURNAL_TOPIC, p, f.offset) for p, f in come.items()]
            consumer.incremental_assign(places)
            assigned |= come

    def _batches(self, messages: list[Message], assigned: dict[int, _Following]) -> list[Batch]:
        batches: dict[int, Batch] = {}
        for message in messages:
            partition, offset = message.partition(), message.offset()
            following = assigned.get(-1 if partition is None else partition)
            if partition is None or following is None or following.failed:
                continue
            batch = batches.get(partition)
            if batch is None:
                batch = batches[partition] = Batch(partition, following.token)
            error = message.error()
            if error is None:
                assert offset is not None
                batch.failure = self._take(message, partition, offset, batch)
            elif error.code() != KafkaError._PARTITION_EOF and not _passing(error):
                batch.failure = BrokerError(
                    f"following {JOURNAL_TOPIC}-{partition} from {following.offset}:"
                    f" {error.name()}: {error.str()}"
                )
            following.failed = batch.failure is not None
        return list(batches.values())

    @staticmethod
    def _take(message: Message, partition: int, offset: int, batch: Batch) -> LogtxError | None:
        try:
            batch.entries.append((offset, decode_message(message)))
        except JournalError as error:
            return error
        except Exception as error:  # noqa: BLE001 - one bad record must not stop the others
            return CorruptRecordError(f"{JOURNAL_TOPIC}-{partition} at offset {offset}: {error!r}")
        return None

    def _hand_over(self, batches: list[Batch]) -> None:
        if not batches or self._loop.is_closed():
            return
        self._taken.clear()
        self._loop.call_soon_threadsafe(self._give, batches)
        while not self._taken.wait(POLL_S) and not self._closed and not self._loop.is_closed():
            pass

    def _give(self, batches: list[Batch]) -> None:
        try:
            for batch in batches:
                self._deliver(batch)
        finally:
            self._taken.set()


def _passing(error: KafkaError) -> bool:
    """Returns whether librdkafka recovers by itself. After other errors the partition is failed."""
    return error.code() != KafkaError._AUTO_OFFSET_RESET and not error.fatal()
