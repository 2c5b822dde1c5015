"""Reads the logs of a run from the brokers, with plain consumers of confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from . import store
from .core.facts import LOGTX
from .errors import DumpError
from .load import LOGS, read_settings
from .store import Head, RawRecord

JOURNAL_TOPIC: Final = "__transaction_control"
BATCH: Final = 10_000
"""Messages of one `consume`."""
SLICE_S: Final = 0.1
"""Longest wait of one `consume`; bounds how late the deadline is noticed."""
REQUEST_S: Final = 20.0
"""Bounds each question about a topic or its ends. A smaller value fails on a busy cluster, a larger
one takes more of the deadline."""


def dump(run_dir: Path, *, bootstrap_servers: str | None = None, timeout_s: float = 180.0) -> None:
    """Writes the logs of a run to `logs` in its directory; replaces an earlier dump.

    Args:
        run_dir: of the run, with its ``chaos.json``.
        bootstrap_servers: of the cluster, all healed; None for those in ``chaos.json``.
        timeout_s: for all of it.

    Raises:
        BrokenHistoryError: ``chaos.json`` does not say what was run.
        DumpError: the brokers did not give everything in time.
    """
    settings = read_settings(run_dir)
    servers = bootstrap_servers or settings.bootstrap_servers
    dumper = _Dumper(servers, run_dir / LOGS, time.monotonic() + timeout_s)
    logtx = settings.system == LOGTX
    # The journal's end comes first: what is finished below it has its markers in the data that is
    # read next. The journal itself comes last: it has the decision of each marker that was read.
    ends = dumper.ends(JOURNAL_TOPIC) if logtx else {}
    for topic in settings.topics:
        dumper.dump(topic, store.DATA, "read_uncommitted")
        if not logtx:
            dumper.dump(topic, store.COMMITTED, "read_committed")
    # Behind their topics: they hold what the pointers that were read there name.
    for topic in dumper.existing(settings.sidecars):
        dumper.dump(topic, store.SIDECARS, "read_uncommitted")
    if logtx:
        dumper.dump(JOURNAL_TOPIC, store.JOURNAL, "read_uncommitted", ends)


class _Dumper:
    """One dump."""

    def __init__(self, bootstrap_servers: str, directory: Path, deadline_s: float) -> None:
        self._servers = bootstrap_servers
        self._directory = directory
        self._deadline_s = deadline_s

    def _consumer(self, isolation: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "logtx-chaos-dump",  # never joined: partitions are assigned
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "allow.auto.create.topics": False,
                "fetch.queue.backoff.ms": 5,
                # The broker reports an end after this wait; there are dozens of ends.
                "fetch.wait.max.ms": 10,
                "queued.min.messages": 100_000,
            }
        )

    def _partitions(self, consumer: Consumer, topic: str) -> list[int]:
        try:
            known = consumer.list_topics(topic, timeout=self._patience_s()).topics[topic]
        except KafkaException as error:
            raise DumpError(f"the brokers don't describe topic {topic}: {error}") from error
        if known.error is not None:
            raise DumpError(f"topic {topic} can't be read: {known.error}")
        return sorted(known.partitions)

    def _bounds(self, consumer: Consumer, topic: str, number: int) -> tuple[int, int]:
        while True:
            try:
                bounds = consumer.get_watermark_offsets(
                    KafkaPartition(topic, number), timeout=self._patience_s()
                )
            except KafkaException as error:
                if time.monotonic() > self._deadline_s or not error.args[0].retriable():
                    raise DumpError(f"no bounds of {topic}[{number}]: {error}") from error
                continue
            if bounds is not None:
                return bounds
            self._check_time(topic, number)

    def _patience_s(self) -> float:
        """Returns how long to wait for one answer.

        A moment is left after the deadline too, so that the broker can say what is wrong.
        """
        return min(max(self._deadline_s - time.monotonic(), 0.1), REQUEST_S)

    def _check_time(self, topic: str, number: int) -> None:
        if time.monotonic() > self._deadline_s:
            raise DumpError(f"{topic}[{number}] was not read to its end in time")

    def ends(self, topic: str) -> dict[int, int]:
        """Returns the current end of each partition of a topic."""
        consumer = self._consumer("read_uncommitted")
        try:
            numbers = self._partitions(consumer, topic)
            return {number: self._bounds(consumer, topic, number)[1] for number in numbers}
        finally:
            consumer.close()

    def existing(self, topics: Iterable[str]) -> list[str]:
        """Returns those of some topics that there are: a sidecar is created when it is needed."""
        consumer = self._consumer("read_uncommitted")
        try:
            known = consumer.list_topics(timeout=self._patience_s()).topics
        except KafkaException as error:
            raise DumpError(f"the brokers don't list topics: {error}") from error
        finally:
            consumer.close()
        return [topic for topic in topics if topic in known]

    def dump(
        self, topic: str, kind: str, isolation: str, ends: dict[int, int] | None = None
    ) -> None:
        """Writes all partitions of a topic."""
        consumer = self._consumer(isolation)
        try:
            for number in self._partitions(consumer, topic):
                start, _ = self._bounds(consumer, topic, number)
                records, end = self._read(consumer, topic, number, start)
                before = 0 if ends is None else ends.get(number, 0)
                head = Head(topic, number, start, end, before)
                store.write_log(self._directory, kind, head, records)
        finally:
            consumer.close()

    def _read(
        self, consumer: Consumer, topic: str, number: int, start: int
    ) -> tuple[list[RawRecord], int]:
        """Returns all records from the partition's start, and its end."""
        consumer.assign([KafkaPartition(topic, number, start)])
        records: list[RawRecord] = []
        try:
            while True:
                self._check_time(topic, number)
                for message in consumer.consume(BATCH, SLICE_S):
                    error = message.error()
                    if error is None:
                        records.append(_record(message))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        return records, _offset(message)
                    elif not error.retriable():
                        raise DumpError(f"{topic}[{number}] can't be read: {error}")
        finally:
            consumer.unassign()


def _record(message: Message) -> RawRecord:
    headers: store.Headers = []
    for header in message.headers() or ():
        value = header[1]
        headers.append((str(header[0]), value.encode() if isinstance(value, str) else value))
    return RawRecord(_offset(message), message.value(), headers)


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "librdkafka gives each record and each end an offset"
    return offset
