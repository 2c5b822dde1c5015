"""Producer of a log in memory, which behaves like `confluent_kafka.Producer`.

Only `poll` and `flush` of this producer serve its delivery callbacks; until then a record counts
against ``queue.buffering.max.messages``.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException, Message
from confluent_kafka.admin._metadata import ClusterMetadata

from ..interface import DeliveryCallback, Headers
from .broker import LeaderEpochs, MemoryBroker, Pending

_QUEUE_MAX: Final = 100_000
"""librdkafka's default of ``queue.buffering.max.messages``; beyond it `produce` fails."""
_MESSAGE_MAX_BYTES: Final = 1_000_000
"""librdkafka's default of ``message.max.bytes``."""
_TIMEOUT_MS: Final = 300_000
"""librdkafka's default of ``delivery.timeout.ms``."""
_LOST_SEQUENCE: Final = (
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
)
"""Answers that stop an idempotent producer for good."""
_UINT32: Final = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Returns the hash of the Java client's default partitioner, 31 bits."""
    m = 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & _UINT32
        k = (k ^ k >> 24) * m & _UINT32
        h = (h * m & _UINT32) ^ k
    if len(key) > whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & _UINT32
    h = (h ^ h >> 13) * m & _UINT32
    return (h ^ h >> 15) & 0x7FFFFFFF


# Per `partitioner`: the hash function, and whether an empty key is hashed like any other. None of
# them hashes a null key, which goes round robin.
_HASHES: Final[Mapping[str, tuple[Callable[[bytes], int], bool]]] = {
    "consistent_random": (zlib.crc32, False),
    "consistent": (zlib.crc32, True),
    "murmur2_random": (murmur2, True),
    "murmur2": (murmur2, True),
}


class MemoryProducer:
    """The `LogProducer` of a log in memory; safe from any thread."""

    def __init__(self, broker: MemoryBroker, config: Mapping[str, Any]) -> None:
        self._broker = broker
        self._queue_max = int(config.get("queue.buffering.max.messages", _QUEUE_MAX))
        self._message_max_bytes = int(config.get("message.max.bytes", _MESSAGE_MAX_BYTES))
        timeout = config.get("message.timeout.ms", config.get("delivery.timeout.ms", _TIMEOUT_MS))
        self._timeout_s = float(timeout) / 1000 or float("inf")
        pauses = {"retry.backoff.ms": 100.0, "retry.backoff.max.ms": 1_000.0}
        self._retry_s = min(float(config.get(name, ms)) for name, ms in pauses.items()) / 1000
        self._partitioner = str(config.get("partitioner", "consistent_random"))
        self._gapless = bool(config.get("enable.gapless.guarantee", False))
        self._idempotent = bool(config.get("enable.idempotence", False))
        self.stopped = False
        """True after a gapless producer had a record refused, or an idempotent one its sequence: it
        takes and places nothing more."""
        self.epoch = 0
        """Of its producer id: another one follows each record that failed, for all partitions."""
        self._gaps: set[tuple[str, int]] = set()
        """Partitions of which a record failed that no broker had. The next one that comes there
        does not follow the one before, so another epoch begins, and nobody is told."""
        self._next_partition = random.randrange(1 << 16)
        self._count = 0
        self._reports: deque[tuple[Pending, int | None, int]] = deque()
        self._leader_epochs = LeaderEpochs()
        self._unplaced: dict[int, Pending] = {}
        # Records without a place in the log, by id(): held, or kept back by an outage; and those
        # that are sent again.
        self._again: dict[tuple[str, int], tuple[float, deque[Pending]]] = {}
        """Partition → when to send again, monotonic clock, and what, and others behind it."""

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Queues a record.

        Raises:
            BufferError: `queue.buffering.max.messages` records wait for their place or report.
            KafkaException: MSG_SIZE_TOO_LARGE, beyond `message.max.bytes`; _FATAL, after it stopped
                (`stopped`).
        """
        if self.stopped:
            raise KafkaException(KafkaError(KafkaError._FATAL, "Local: Fatal error", fatal=True))
        value = value.encode() if isinstance(value, str) else value
        key = key.encode() if isinstance(key, str) else key
        if len(value or b"") + len(key or b"") > self._message_max_bytes:
            raise KafkaException(
                KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "Message size too large")
            )
        kept = None
        if headers:
            pairs = headers.items() if isinstance(headers, dict) else headers
            kept = tuple((k, v.encode() if isinstance(v, str) else v) for k, v in pairs)
        with self._broker.changed:
            if self._count >= self._queue_max:
                raise BufferError("Local: Queue full")
            if partition < 0:
                partition = self._choose(topic, key)
            self._count += 1
            record = (key, value, kept, timestamp or self._broker.now_ms())
            self._broker.submit(Pending(self, topic, partition, record, on_delivery))

    def _choose(self, topic: str, key: bytes | None) -> int:
        count = self._broker.count_partitions(topic)
        hashing, hashes_empty = _HASHES.get(self._partitioner, (None, False))
        if hashing and key is not None and (key or hashes_empty):
            return hashing(key) % max(count, 1)
        self._next_partition += 1
        return self._next_partition % max(count, 1)

    # The broker calls the next ones under its lock; `_expire` and `_send_again` are called under it
    # too.

    def report(self, pending: Pending, error: int | None, offset: int) -> None:
        """Queues the delivery report of a record, once."""
        self._unplaced.pop(id(pending), None)
        if error is not None and error != KafkaError._MSG_TIMED_OUT:
            self.stopped |= self._gapless  # a time-out is not covered by the guarantee
            self.stopped |= self._idempotent and error in _LOST_SEQUENCE
        if error is not None:
            key = pending.topic, pending.partition
            # librdkafka takes a new epoch at once only where a broker, or a request, is concerned.
            if self._broker.is_queued(pending) or error == KafkaError._PURGE_QUEUE:
                self._gaps.add(key)
            else:
                self.epoch += 1
        if not pending.reported:
            pending.reported = True
            self._reports.append((pending, error, offset))

    def wait_for_place(self, pending: Pending) -> None:
        """Notes that a record has no place yet and may time out."""
        pending.deadline_s = pending.deadline_s or time.monotonic() + self._timeout_s
        self._unplaced[id(pending)] = pending

    def hears_of(self, pending: Pending, leader_epoch: int | None) -> bool:
        """Tells the leader epoch of a record's partition; returns whether it goes by that.

        As librdkafka: it asks who leads a partition that is outdated to it, and believes no answer.
        Only that a topic is gone makes it forget.
        """
        key = pending.topic, pending.partition
        if leader_epoch is None:
            self._leader_epochs.forget(key)
            return True
        return self._leader_epochs.hear(key, leader_epoch)

    def keeps_back(self, pending: Pending) -> bool:
        """Keeps a record behind those of its partition that wait to be sent again, if any do."""
        _, waiting = self._again.get((pending.topic, pending.partition), (0, None))
        if waiting is None:
            return False
        waiting.append(pending)
        self.wait_for_place(pending)
        return True

    def fills_gap(self, pending: Pending) -> None:
        """Learns that a record is the next one of its partition which reaches a broker."""
        key = pending.topic, pending.partition
        if key in self._gaps:
            self._gaps.discard(key)
            self.epoch += 1

    def hears_nothing(self, pending: Pending, offset: int) -> None:
        """Takes back a written record without an answer, to send it again after a pause."""
        pending.written = (self.epoch, offset) if self._idempotent else None
        key = pending.topic, pending.partition
        self._again[key] = time.monotonic() + self._retry_s, deque([pending])
        self.wait_for_place(pending)

    def _send_again(self) -> None:
        now_s = time.monotonic()
        for key in [key for key, (due_s, _) in self._again.items() if due_s <= now_s]:
            _, waiting = self._again.pop(key)
            for pending in waiting:
                if not pending.reported:
                    self._unplaced.pop(id(pending), None)
                    self._broker.submit(pending)

    def _expire(self) -> None:
        now = time.monotonic()
        for pending in [p for p in self._unplaced.values() if p.deadline_s <= now]:
            self.report(pending, KafkaError._MSG_TIMED_OUT, -1001)
            self._broker.give_up(pending)

    def poll(self, timeout: float = -1) -> int:
        """Serves callbacks; waits up to `timeout` seconds for the first (below 0: for ever)."""
        until = float("inf") if timeout < 0 else time.monotonic() + timeout
        with self._broker.changed:
            self._await_report(until)
        return self._serve()

    def flush(self, timeout: float = -1) -> int:
        """Serves all callbacks, for up to `timeout` seconds. Returns how many are left."""
        until = float("inf") if timeout < 0 else time.monotonic() + timeout
        while self._count:
            with self._broker.changed:
                self._await_report(until)
            if not self._serve() and time.monotonic() >= until:
                break
        return self._count

    def _await_report(self, until_s: float) -> None:
        while True:
            if self._again:
                self._send_again()
            if self._unplaced:
                self._expire()
            wait_s = until_s - time.monotonic()
            if self._reports or wait_s <= 0:
                return
            due = [p.deadline_s for p in self._unplaced.values()]
            first = min((*due, *(due_s for due_s, _ in self._again.values())), default=float("inf"))
            wait_s = min(wait_s, max(first - time.monotonic(), 0))
            self._broker.changed.wait(None if wait_s == float("inf") else wait_s)

    def _serve(self) -> int:
        # Callbacks run without the lock: they may produce, or ask the log. One that raises ends the
        # call, as in confluent-kafka; the next call serves the rest.
        served = 0
        for _ in range(len(self._reports)):
            try:
                pending, code, offset = self._reports.popleft()
            except IndexError:  # another thread polls too
                break
            with self._broker.changed:
                self._count -= 1
            served += 1
            if pending.callback is None:
                continue
            key, value, _, timestamp = pending.record
            error = None if code is None else KafkaError(code)
            message = Message(
                topic=pending.topic,
                partition=pending.partition,
                offset=offset,
                key=key,
                value=value,
                error=error,
                timestamp=(TIMESTAMP_CREATE_TIME, timestamp),
                latency=time.monotonic() - pending.queued_s,
            )
            pending.callback(error, message)
        return served

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Fails records without a place; one that a test holds counts as in flight."""
        del blocking  # nothing here takes time
        with self._broker.changed:
            for pending in list(self._unplaced.values()):
                if not self._broker.is_queued(pending):
                    if in_flight:
                        self.report(pending, KafkaError._PURGE_INFLIGHT, -1001)
                elif in_queue:
                    self._broker.give_up(pending)
                    self.report(pending, KafkaError._PURGE_QUEUE, -1001)
            self._broker.changed.notify_all()

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Returns the metadata of one topic or of all. It never waits."""
        del timeout
        with self._broker.changed:
            return self._broker.metadata(topic)

    def cluster_id(self, timeout: float = -1) -> str | None:
        """Returns None: a log in memory has no cluster."""
        del timeout
        return None

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Does nothing: nobody asks for credentials here."""

    def close(self) -> bool:
        """Flushes. Returns True, as confluent-kafka does."""
        self.flush()
        return True

    def __len__(self) -> int:
        """Returns the number of records whose report was not served yet."""
        return self._count

    def __bool__(self) -> bool:
        """Returns True always, although an idle producer has length 0."""
        return True
