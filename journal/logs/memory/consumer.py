"""Consumer of a log in memory, which behaves like `confluent_kafka.Consumer`.

Heeds ``group.id``, ``auto.offset.reset``, ``enable.partition.eof``, ``enable.auto.commit`` (at
revocation and close only) and ``max.poll.interval.ms``; ignores all other settings.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import (
    TopicPartition as KafkaPartition,
)

from ..interface import GroupOffset, RebalanceCallback
from .broker import METADATA_MAX_CHARS, LeaderEpochs, MemoryBroker, MemoryPartition
from .group import Member, Partition

_LOG = logging.getLogger(__name__)
_serial = itertools.count(1)
_FOREVER: Final = float("inf")
_GROUP_CHECK_S: Final = 0.05
"""Interval at which a waiting group member checks whether another one has fallen silent."""
_RESETS: Final[Mapping[str, int | None]] = {
    **dict.fromkeys(("earliest", "smallest", "beginning"), OFFSET_BEGINNING),
    **dict.fromkeys(("latest", "largest", "end"), OFFSET_END),
    "error": None,
}


def _exception(code: int, reason: str) -> KafkaException:
    return KafkaException(KafkaError(code, reason))


class _Reading:
    """The place of a consumer in one assigned partition."""

    __slots__ = ("eof_told", "missing_told", "next", "paused", "position", "started", "stopped")

    def __init__(self, offset: int) -> None:
        self.next = offset
        """Offset to fetch next; below 0, a logical offset that is not resolved yet."""
        self.position = OFFSET_INVALID
        self.paused = False
        self.started = False
        """Whether a poll came after the assignment; before it a seek fails, as in librdkafka."""
        self.stopped = False
        """Whether it reported _AUTO_OFFSET_RESET: nothing more comes until a new assignment."""
        self.eof_told = -1
        self.missing_told = False


class MemoryConsumer:
    """The `LogConsumer` of a log in memory; for one thread at a time."""

    def __init__(self, broker: MemoryBroker, config: Mapping[str, Any]) -> None:
        if "group.id" not in config:
            raise ValueError("Failed to create consumer: group.id must be set")
        self._broker = broker
        self._group = str(config["group.id"])
        self._reset = _RESETS[str(config.get("auto.offset.reset", "latest"))]
        self._tells_eof = str(config.get("enable.partition.eof", False)).lower() == "true"
        self._commits = str(config.get("enable.auto.commit", True)).lower() == "true"
        self._poll_interval_max_s = float(config.get("max.poll.interval.ms", 300_000)) / 1000
        self._client_id = str(config.get("client.id", "rdkafka"))
        self._on_commit = config.get("on_commit")
        self._answers: deque[tuple[KafkaError | None, list[KafkaPartition]]] = deque()
        """Answers to commits, which the next poll reports."""
        self._readings: dict[Partition, _Reading] = {}
        self._paused: set[Partition] = set()
        """Partitions that were paused and not resumed, whether or not they are assigned."""
        self._leader_epochs = LeaderEpochs()
        self._member: Member | None = None
        self._callbacks: dict[str, RebalanceCallback | None] = {}
        self._callback_assigned = False
        self._closed = False

    # ---- subscription

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Joins the consumer group; `poll` and `consume` call the callbacks."""
        self._check_open()
        self.unsubscribe()
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._join(tuple(topics))

    def _join(self, topics: tuple[str, ...]) -> None:
        now = time.monotonic()
        with self._broker.changed:
            self._member = Member(
                f"{self._client_id}-{next(_serial):06d}", topics, self._poll_interval_max_s, now
            )
            self._broker.group(self._group).join(self._member)
            self._broker.changed.notify_all()

    def unsubscribe(self) -> None:
        """Leaves the group, after it revoked what was assigned."""
        self._check_open()
        if self._member is None:
            return
        self._revoke("revoke")
        self._leave()

    def _leave(self) -> None:
        if self._member is not None:
            with self._broker.changed:
                self._broker.group(self._group).leave(self._member)
                self._broker.changed.notify_all()
            self._member = None

    def memberid(self) -> str | None:
        """Returns the id in the group; "" without a subscription."""
        return self._member.id if self._member else ""

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Changes nothing: a log in memory asks nobody who he is."""
        del username, password
        self._check_open()

    def _serve_rebalance(self) -> None:
        # One step at a time, each with its callback outside of the lock: give back, wait at the
        # barrier, take over.
        member = self._member
        if member is None:
            return
        with self._broker.changed:
            now = time.monotonic()
            group = self._broker.group(self._group)
            if not member.expelled:
                member.last_poll_s = now
            group.expel_silent(now)
            revoked = not member.expelled and member.id in group.awaited
            granted, member.granted = member.granted, None
        if member.expelled:
            try:
                self._revoke("lost")
            finally:
                self._join(member.topics)
        elif revoked:
            try:
                self._revoke("revoke")
            finally:
                with self._broker.changed:
                    if member.id in group.awaited:
                        group.arrive(member, self._broker.partition_counts())
                        self._broker.changed.notify_all()
        elif granted is not None:
            try:
                self._call("assign", granted)
            finally:
                # As confluent-kafka does, also if the callback has raised.
                if not self._callback_assigned:
                    self.assign([KafkaPartition(t, p) for t, p in granted])

    def _revoke(self, kind: str) -> None:
        if not self._readings:
            return
        try:
            self._call(kind, list(self._readings))
        finally:
            if self._commits and kind == "revoke":
                self._commit_quietly()
            self._readings = {}

    def _call(self, kind: str, partitions: Iterable[Partition]) -> None:
        self._callback_assigned = False
        callback = self._callbacks.get(kind)
        if kind == "lost" and callback is None:
            callback = self._callbacks.get("revoke")
        if callback is not None:
            callback(self, [KafkaPartition(t, p) for t, p in partitions])

    def _rebalance_due(self) -> bool:
        member = self._member
        if member is None:
            return False
        group = self._broker.group(self._group)
        group.expel_silent(time.monotonic())
        return member.expelled or member.granted is not None or member.id in group.awaited

    # ---- assignment

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Reads these partitions from their offsets; `OFFSET_INVALID` = the committed one."""
        self._check_open()
        self._callback_assigned = True
        with self._broker.changed:
            self._readings = {}
            self._add(partitions)

    def incremental_assign(self, partitions: list[KafkaPartition]) -> None:
        """Reads these partitions too; raises _CONFLICT for one that is assigned already."""
        self._check_open()
        self._callback_assigned = True
        with self._broker.changed:
            if any((p.topic, p.partition) in self._readings for p in partitions):
                raise _exception(KafkaError._CONFLICT, "partition is assigned already")
            self._add(partitions)

    def _add(self, partitions: list[KafkaPartition]) -> None:
        for p in partitions:
            reading = self._readings[p.topic, p.partition] = _Reading(p.offset)
            # As in librdkafka, where a pause outlives every seek and assignment.
            reading.paused = (p.topic, p.partition) in self._paused
        if not self._broker.down:
            for key, reading in self._readings.items():
                self._resolve(key, reading)

    def unassign(self) -> None:
        """Reads nothing any more."""
        self._check_open()
        self._callback_assigned = True
        self._readings = {}

    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None:
        """Stops reading these partitions."""
        self._check_open()
        self._callback_assigned = True
        for p in partitions:
            if self._readings.pop((p.topic, p.partition), None) is None:
                raise _exception(KafkaError._INVALID_ARG, "partition is not assigned")

    def assignment(self) -> list[KafkaPartition]:
        """Returns the partitions that are assigned now."""
        self._check_open()
        return [KafkaPartition(t, p) for t, p in self._readings]

    def seek(self, partition: KafkaPartition) -> None:
        """Goes on from another offset; raises _STATE before the first poll."""
        self._check_open()
        reading = self._readings.get((partition.topic, partition.partition))
        if reading is None or not reading.started or reading.stopped:
            raise _exception(KafkaError._STATE, "Failed to seek: Local: Erroneous state")
        reading.next = partition.offset
        reading.eof_told = -1

    def pause(self, partitions: list[KafkaPartition]) -> None:
        """Delivers nothing of these partitions until `resume`."""
        self._set_paused(partitions, True)

    def resume(self, partitions: list[KafkaPartition]) -> None:
        """Delivers these partitions again."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: list[KafkaPartition], paused: bool) -> None:
        self._check_open()
        for p in partitions:
            reading = self._readings.get((p.topic, p.partition))
            if reading is None:
                raise _exception(KafkaError._UNKNOWN_PARTITION, "partition is not assigned")
            reading.paused = paused
            (self._paused.add if paused else self._paused.discard)((p.topic, p.partition))

    # ---- reading

    def poll(self, timeout: float = -1) -> Message | None:
        """Returns the next record or event; None after `timeout` seconds (below 0: never)."""
        found = self._fetch(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Returns up to `num_messages`; like librdkafka, waits the whole time for all of them.

        As there, what was fetched comes before a rebalance that is due, and is dropped again if the
        rebalance takes its partition away or assigns it anew.
        """
        return self._fetch(num_messages, timeout)

    def _fetch(self, limit: int, timeout: float) -> list[Message]:
        until = _FOREVER if timeout < 0 else time.monotonic() + timeout
        found: list[Message] = []
        self._check_open()
        if limit > 1 and self._rebalance_due() and not self._broker.down:
            with self._broker.changed:
                self._take(found, limit)
        while True:
            self._check_open()
            self._report_commits()
            before = dict(self._readings)
            self._serve_rebalance()
            found = [m for m in found if self._is_current(m, before)]
            with self._broker.changed:
                while not self._rebalance_due():
                    if not self._broker.down:
                        self._take(found, limit)
                    wait_s = until - time.monotonic()
                    if len(found) >= limit or wait_s <= 0:
                        return self._given(found)
                    if self._member is not None:
                        self._member.last_poll_s = time.monotonic()
                        wait_s = min(wait_s, _GROUP_CHECK_S)
                    self._broker.changed.wait(None if wait_s == _FOREVER else wait_s)
            # A member that can't pass the barrier yet still keeps to its time-out.
            if found and time.monotonic() >= until:
                return self._given(found)

    def _is_current(self, message: Message, before: Mapping[Partition, _Reading]) -> bool:
        key = (str(message.topic()), int(message.partition() or 0))
        return self._readings.get(key) is before.get(key)

    def _given(self, found: list[Message]) -> list[Message]:
        for message in found:
            reading = self._readings.get((str(message.topic()), int(message.partition() or 0)))
            if reading is not None and message.error() is None:
                reading.position = int(message.offset() or 0) + 1
        return found

    def _take(self, found: list[Message], limit: int) -> None:
        for key in list(self._readings):
            reading = self._readings[key]
            if reading.paused or reading.stopped:
                continue
            reading.started = True
            partition = self._broker.find_partition(*key)
            if partition is None:
                if not reading.missing_told:
                    reading.missing_told = True
                    found.append(_event(key, KafkaError.UNKNOWN_TOPIC_OR_PART, reading.next))
            elif not self._leader_epochs.hear(key, partition.leader_epoch):
                pass  # It fetches nothing, and says nothing.
            elif not self._resolve(key, reading):
                reading.stopped = True
                found.append(_event(key, KafkaError._AUTO_OFFSET_RESET, reading.next))
            else:
                self._take_from(key, reading, partition, found, limit)
            if len(found) >= limit:
                # Lets the next call begin with another partition.
                self._readings[key] = self._readings.pop(key)
                return

    def _take_from(
        self,
        key: Partition,
        reading: _Reading,
        partition: MemoryPartition,
        found: list[Message],
        limit: int,
    ) -> None:
        topic, number = key
        offset = reading.next
        first = offset - partition.start
        for record in partition.records[first : first + limit - len(found)]:
            record_key, value, headers, timestamp = record
            found.append(
                Message(
                    topic=topic,
                    partition=number,
                    offset=offset,
                    key=record_key,
                    value=value,
                    headers=list(headers) if headers else None,
                    timestamp=(TIMESTAMP_CREATE_TIME, timestamp),
                )
            )
            offset += 1
        if offset != reading.next:
            reading.next = offset
        elif self._tells_eof and reading.eof_told != offset and len(found) < limit:
            reading.eof_told = offset
            found.append(_event(key, KafkaError._PARTITION_EOF, offset))

    def _resolve(self, key: Partition, reading: _Reading) -> bool:
        # Makes `next` an offset that lies in the partition. Returns False if there is none, because
        # of auto.offset.reset=error. A partition that does not exist (yet) stays unresolved.
        partition = self._broker.find_partition(*key)
        if partition is None or partition.start <= reading.next <= partition.end:
            return True
        offset: int | None = reading.next
        if offset in (OFFSET_STORED, OFFSET_INVALID):
            committed = self._broker.group(self._group).offsets.get(key)
            offset = committed.offset if committed else self._reset
        for _ in range(2):
            if offset == OFFSET_BEGINNING:
                offset = partition.start
            elif offset == OFFSET_END:
                offset = partition.end
            if offset is not None and partition.start <= offset <= partition.end:
                reading.next = offset
                return True
            offset = self._reset
        return False

    # ---- offsets

    def position(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        """Returns the offset after the last delivered record; `OFFSET_INVALID` before the first."""
        self._check_open()
        found = ((p, self._readings.get((p.topic, p.partition))) for p in partitions)
        return [
            KafkaPartition(p.topic, p.partition, r.position if r else OFFSET_INVALID)
            for p, r in found
        ]

    def commit(
        self,
        message: Message | None = None,
        offsets: list[KafkaPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[KafkaPartition] | None:
        """Commits the offset after a record, or these offsets, or the positions.

        Raises:
            KafkaException: refused, if synchronous. The answer to an asynchronous one is told to
                ``on_commit`` within the next poll.
        """
        self._check_open()
        if message is not None:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            offsets = [KafkaPartition(topic, partition, offset + 1)]
        elif offsets is None:
            offsets = [
                KafkaPartition(t, p, r.position)
                for (t, p), r in self._readings.items()
                if r.position >= 0
            ]
            if not offsets:
                raise _exception(KafkaError._NO_OFFSET, "Commit failed: Local: No offset stored")
        if not asynchronous:
            self._store(offsets, -1)
            return offsets
        try:
            self._store(offsets, 0)
        except KafkaException as error:
            _LOG.warning("commit_failed group=%s error=%s", self._group, error)
            self._answers.append((error.args[0], offsets))
        else:
            self._answers.append((None, offsets))
        return None

    def _report_commits(self, *, closing: bool = False) -> None:
        while self._answers and (closing or not self._broker.holds_answers):
            error, places = self._answers.popleft()
            if self._on_commit is not None:
                self._on_commit(error, places)

    def _commit_quietly(self) -> None:
        if any(r.position >= 0 for r in self._readings.values()):
            self.commit(asynchronous=True)

    def _store(self, offsets: list[KafkaPartition], timeout_s: float) -> None:
        with self._broker.changed:
            self._wait_available(timeout_s)
            group = self._broker.group(self._group)
            if self._member is None:
                # Kafka takes offsets from a non-member only while the group is empty.
                if group.members:
                    raise _exception(KafkaError.UNKNOWN_MEMBER_ID, "Commit failed: Unknown member")
            elif self._member.expelled:
                raise _exception(KafkaError.UNKNOWN_MEMBER_ID, "Commit failed: Unknown member")
            for p in offsets:
                if self._broker.find_partition(p.topic, p.partition) is None:
                    raise _exception(KafkaError.UNKNOWN_TOPIC_OR_PART, "Commit failed")
                if len(p.metadata or "") > METADATA_MAX_CHARS:
                    raise _exception(KafkaError.OFFSET_METADATA_TOO_LARGE, "Commit failed")
            for p in offsets:
                group.offsets[p.topic, p.partition] = GroupOffset(p.offset, p.metadata or "")

    def committed(
        self, partitions: list[KafkaPartition], timeout: float = -1
    ) -> list[KafkaPartition]:
        """Returns committed offsets with their metadata; `OFFSET_INVALID` where there is none."""
        self._check_open()
        with self._broker.changed:
            self._wait_available(timeout)
            offsets = self._broker.group(self._group).offsets
            found = ((p, offsets.get((p.topic, p.partition))) for p in partitions)
            return [
                KafkaPartition(p.topic, p.partition, o.offset, metadata=o.metadata or None)
                if o
                else KafkaPartition(p.topic, p.partition)
                for p, o in found
            ]

    def get_watermark_offsets(
        self, partition: KafkaPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """Returns the first offset of a partition and the one after its last."""
        self._check_open()
        with self._broker.changed:
            if not cached:
                self._wait_available(timeout)
            found = self._known(partition)
            return found.start, found.end

    def offsets_for_times(
        self, partitions: list[KafkaPartition], timeout: float = -1
    ) -> list[KafkaPartition]:
        """Returns, per partition, the first offset at or after the time in `offset` (ms), or -1.

        The times -1 and -2 ask for the end and the start, as in Kafka's protocol.
        """
        self._check_open()
        with self._broker.changed:
            self._wait_available(timeout)
            return [
                KafkaPartition(p.topic, p.partition, _offset_at(self._known(p), p.offset))
                for p in partitions
            ]

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Returns the metadata of one topic or of all."""
        self._check_open()
        with self._broker.changed:
            self._wait_available(timeout)
            return self._broker.metadata(topic)

    def close(self) -> None:
        """Gives partitions back and leaves the group; every other call fails from then on."""
        if self._closed:
            return
        if self._member is None and self._commits:
            self._commit_quietly()
        try:
            self.unsubscribe()
            self._report_commits(closing=True)
        finally:
            # As in librdkafka, whatever a callback raises.
            self._leave()
            self._readings = {}
            self._closed = True

    def _known(self, partition: KafkaPartition) -> MemoryPartition:
        found = self._broker.find_partition(partition.topic, partition.partition)
        if found is None:
            raise _exception(KafkaError._UNKNOWN_PARTITION, "Local: Unknown partition")
        return found

    def _wait_available(self, timeout_s: float) -> None:
        if not self._broker.wait_available(timeout_s):
            raise _exception(KafkaError._TIMED_OUT, "Local: Timed out")

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")


def _event(key: Partition, code: int, offset: int) -> Message:
    error = KafkaError(code)
    return Message(
        topic=key[0], partition=key[1], offset=offset, value=error.str().encode(), error=error
    )


def _offset_at(partition: MemoryPartition, timestamp_ms: int) -> int:
    if timestamp_ms == OFFSET_END:
        return partition.end
    if timestamp_ms == OFFSET_BEGINNING:
        return partition.start
    found = partition.offset_at(timestamp_ms)
    return OFFSET_END if found is None else found
