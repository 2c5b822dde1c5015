"""Exports a topic's committed records to a compacted topic, without what is logtx's own.

A compacted topic takes no markers, for these have no key; and compaction would drop a committed
value under a later aborted one. So transactions go to a topic of their own, and this keeps the
latest committed value of each key in another.

A partition's records go to the partition of the same number, in delivery order: transactions in
commit order, plain records at their own place. They are written in transactions *of Kafka's own*,
together with the place where the next one begins. Records are read first, and then written, so that
no transaction of Kafka's is open for longer than a few megabytes take. An export that takes over
fences the former, whose late writes could otherwise cover newer values. Needs no Spark.

Source: Transactional Messaging in Kafka, "Do transactions make sense for compacted topics?".
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ...consumer.core.looks import LOOKS_APART_S
from ...consumer.range_reader.due import Reach
from ...consumer.range_reader.errors import DataLossError
from ...consumer.range_reader.places import PLACE_S, PlacesAhead, require_complete
from ...consumer.range_reader.reading import CONSUMER, Range, RangeReader, ReadConfig
from ...consumer.range_reader.spot import Spot
from ...journal.control import TXCTL_HEADER, TXID_HEADER, TopicPartition
from ...journal.errors import (
    BrokerError,
    ConfigError,
    LogtxError,
    NotSupportedError,
    ProducerFencedError,
    RequestTimedOutError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from ...journal.logs.interface import Log, TopicInfo
from ...journal.logs.open import open_log
from ...journal.position import Passed, Position
from .options import kafka_only
from .vector import passed_from_json, passed_to_json

_LOG = logging.getLogger(__name__)

PORTION_OFFSETS: Final = 100_000
"""Offsets that are read at once. A larger value repeats more after a failure, a smaller one opens
more readers."""
TRANSACTION_RECORDS: Final = 10_000
TRANSACTION_BYTES: Final = 8 * 1024 * 1024
"""One transaction of Kafka's ends with this many records, or bytes of keys and values. Larger ones
take more memory and time, smaller ones wait for more commits."""
TIMEOUT_MS: Final = 120_000
"""Longest time of one transaction of Kafka's, whose own limit is 15 minutes by default. A smaller
value fails on slow brokers; with a larger one a dead export holds up readers for longer."""
ANSWER_S: Final = 30.0
"""Longest wait for an answer of the brokers: a smaller value fails on slow ones, a larger one
reports dead ones later."""
_FENCED: Final = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
_OWN_HEADERS: Final = (TXID_HEADER, TXCTL_HEADER)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a partition goes on."""

    offset: int
    """o2: what ends below it is written."""
    records: int = 0
    """Number of records, in delivery order, that are written of what ends behind it."""
    passed: Passed | None = None
    """What is written of the transactions that a home places: see `Spot.passed`."""

    @property
    def spot(self) -> Spot:
        """The same place, but for the records."""
        return Spot(self.offset, passed=self.passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of a run."""

    topic: str
    to_topic: str
    records: int
    """Number of records written in this run."""
    offsets: dict[int, int]
    """Partition → o2 where the next run begins."""


def export_to_topic(
    *,
    topic: str,
    to_topic: str,
    bootstrap_servers: str,
    restart: bool = False,
    **options: str,
) -> Compacted:
    """Writes the records committed since the last run to a compacted topic.

    What is guaranteed: a reader of `to_topic` with ``isolation.level=read_committed`` gets each
    committed record once, in the order in which consumers of `topic` get it, whatever process dies.
    Other readers may get records again. Run it at least once within the brokers'
    ``offsets.retention.minutes`` (7 days by default), which keeps the place of the last run.

    Args:
        topic: the topic to export; all of its records need keys.
        to_topic: a compacted topic with as many partitions, into which nobody else writes; made if
            there is none.
        bootstrap_servers: the brokers of the Kafka cluster. They need Kafka's own transactions.
        restart: begin at the start of `topic`, whatever was exported before.
        options: librdkafka's settings, as ``**{"kafka.…": …}``.

    Raises:
        UnknownTopicError: there is no such topic.
        UnsupportedTopicError: `to_topic` is not compacted, or has another number of partitions.
        ConfigError: `to_topic` has records, and where they come from is not known; or a record has
            no key; or an option is no setting of librdkafka.
        DataLossError: records that were to be exported are gone, or those that were exported.
        ProducerFencedError: another run for these topics took over.
        NotSupportedError: the log has no transactions of its own.
        BrokerError: the brokers refused, or did not answer.
    """
    kafka = kafka_only(bootstrap_servers, options)
    with closing(open_log(kafka)) as log:
        source, target = _topics(log, topic, to_topic)
        run = _Run(log, kafka, source, target)
        try:
            return run.export(restart=restart)
        finally:
            run.close()


def _topics(log: Log, topic: str, to_topic: str) -> tuple[TopicInfo, TopicInfo]:
    if topic == to_topic:
        raise ConfigError("a topic can't be exported into itself")
    source = log.topic_info(topic)
    try:
        target = log.topic_info(to_topic)
    except UnknownTopicError:
        log.create_topic(
            to_topic, partitions=source.partition_count, settings={"cleanup.policy": "compact"}
        )
        target = log.topic_info(to_topic)
    if not target.compacted:
        raise UnsupportedTopicError(
            f"topic {to_topic} is not compacted: set its cleanup.policy to compact, or name another"
        )
    if target.partition_count != source.partition_count:
        raise UnsupportedTopicError(
            f"topic {to_topic} has {target.partition_count} partitions, and {topic} has"
            f" {source.partition_count}: equal numbers keep the order of each key"
        )
    return source, target


class _Run:
    """One run. Call `export` once, then `close`."""

    def __init__(
        self, log: Log, kafka: Mapping[str, str], source: TopicInfo, target: TopicInfo
    ) -> None:
        self._log, self._kafka, self._source, self._target = log, kafka, source, target
        self._name = f"logtx-export-{source.topic}-{target.topic}"
        self._at: dict[TopicPartition, _Place] = {}
        """Where each partition goes on behind what was taken."""
        self._taken: list[tuple[int, Message]] = []
        """Records to be written next, with their partitions."""
        self._bytes = 0
        self._records = 0
        # The protocol of logs has no transactions: those that logtx is made for don't have them.
        self._producer: Any = log.producer(
            {
                "linger.ms": 20,
                "batch.size": 1_000_000,
                **kafka,
                "transactional.id": self._name,
                "transaction.timeout.ms": TIMEOUT_MS,
            }
        )
        self._places: Any = log.consumer(
            {
                **kafka,
                "group.id": self._name,
                "enable.auto.commit": False,
                # So that the place of a transaction that is being committed is waited for.
                "isolation.level": "read_committed",
            }
        )

    def close(self) -> None:
        """Closes both clients. What is under way was aborted, or will be by the brokers."""
        self._places.close()
        try:
            self._producer.close()
        except KafkaException as error:
            # It flushes first, which a fenced producer refuses. That was raised before.
            _LOG.warning("export_not_closed producer=%s error=%s", self._name, error)

    def export(self, *, restart: bool) -> Compacted:
        if not hasattr(self._producer, "init_transactions"):
            raise NotSupportedError(
                f"the log at {self._log.bootstrap_servers} has no transactions of its own, and an"
                " export to a compacted topic needs them: without, a stopped process could write"
                " old values over new ones"
            )
        with _told("begin"):
            # From here on a former run can't write any more, and its places don't change.
            self._producer.init_transactions(ANSWER_S)
            self._at = self._starts(restart=restart)
        ends = self._log.end_offsets(list(self._at))
        reach = self._reach(ends)
        for key, end in ends.items():
            while self._at[key].offset < end:
                self._portion(key, min(self._at[key].offset + PORTION_OFFSETS, end), reach.get(key))
            if key in reach and reach[key].behind(self._at[key].spot).dues:
                self._portion(key, end, reach[key])  # of a partition that takes no writes any more
        # Also without records: the brokers forget places that they are not told again.
        self._write()
        offsets = {partition: place.offset for (_, partition), place in self._at.items()}
        return Compacted(
            topic=self._source.topic,
            to_topic=self._target.topic,
            records=self._records,
            offsets=offsets,
        )

    def _reach(self, ends: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Reach]:
        """Returns what is placed up to the ends, in partitions that have a home."""
        source = self._source
        topic_ids = {source.topic: source.topic_id} if source.topic_id else {}
        with closing(PlacesAhead(self._log, {**CONSUMER, **self._kafka})) as ahead:
            starts = {key: at.spot for key, at in self._at.items()}
            asked = {key: Spot(end) for key, end in ends.items()}
            reach = ahead.reach(starts, asked, topic_ids, wait_s=PLACE_S)
        require_complete(reach)
        return reach

    def _starts(self, *, restart: bool) -> dict[TopicPartition, _Place]:
        """Returns where each partition goes on."""
        topic = self._source.topic
        keys = [(topic, p) for p in range(self._source.partition_count)]
        first = self._log.start_offsets(keys)
        starts = {key: _Place(offset) for key, offset in first.items()}
        if restart:
            return starts
        asked = [KafkaPartition(*key) for key in keys]
        found = {(p.topic, p.partition): p for p in self._places.committed(asked, ANSWER_S)}
        places = {key: p.offset for key, p in found.items() if p.offset >= 0}
        last = self._ends(self._source, places)
        if not places:
            self._check_empty()
        for key, offset in places.items():
            before = json.loads(found[key].metadata or "{}")
            if before.get("to_topic_id", "") != self._target.topic_id:
                raise DataLossError(
                    f"{self._target.topic} was deleted and created again since the last export of"
                    f" {topic} into it: restart to write into it all that {topic} still has"
                )
            if before.get("topic_id", "") != self._source.topic_id or offset > last[key]:
                raise DataLossError(
                    f"{topic} was deleted and created again, or lost its end: to export what is"
                    " there now, export it into a new topic, or restart"
                )
            if offset < first[key]:
                raise DataLossError(
                    f"{topic}[{key[1]}] begins at {first[key]} now, and offset {offset} was to be"
                    " exported: retention deleted it; restart to go on without it"
                )
            passed = passed_from_json(before.get("passed"))
            starts[key] = _Place(offset, before.get("records", 0), passed)
        return starts

    def _ends(
        self, info: TopicInfo, expected: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Returns the ends of partitions; asks twice if one lies below what is expected.

        A broker that does not know yet that another leads a partition tells an end of before.
        """
        ends = self._log.end_offsets(list(expected))
        if info.replication_factor > 1 and any(ends[k] < least for k, least in expected.items()):
            time.sleep(LOOKS_APART_S)
            ends = self._log.end_offsets(list(expected))
        return ends

    def _check_empty(self) -> None:
        target = self._target.topic
        keys = [(target, p) for p in range(self._target.partition_count)]
        if any(self._ends(self._target, dict.fromkeys(keys, 1)).values()):
            raise ConfigError(
                f"topic {target} has records, and Kafka has no place of an export of"
                f" {self._source.topic} into it: it is somebody else's, or the place has expired"
                f" (offsets.retention.minutes), or {self._source.topic} was created again; restart"
                " to write all of it again"
            )

    def _portion(self, key: TopicPartition, end: int, reach: Reach | None) -> None:
        """Takes what ends in a range, and writes it whenever there is enough."""
        at, count = self._at[key], 0
        part, passed = Range(*key, Position.at(at.offset), end), None
        if reach is not None:
            passed = reach.passed(end, at.spot)
            left = reach.behind(at.spot)
            part = replace(part, places=left.until(Spot(end, passed=passed)))
        reader = RangeReader(ReadConfig(kafka=self._kafka), part, self._log)
        with closing(reader), _told(f"export {key[0]}[{key[1]}]"):
            for share in reader.shares():
                for record in share.records:
                    count += 1
                    if count > at.records:
                        self._take(record, key[1])
                        self._at[key] = replace(at, records=count)
                        if self._is_enough:
                            self._write()
        self._at[key] = _Place(end, passed=passed)

    def _take(self, record: Message, partition: int) -> None:
        key, value = record.key(), record.value()
        if key is None:
            raise ConfigError(
                f"{record.topic()}[{partition}] has a record without a key at {record.offset()}:"
                " a compacted topic takes none"
            )
        self._taken.append((partition, record))
        self._bytes += len(key) + len(value or b"")

    @property
    def _is_enough(self) -> bool:
        return len(self._taken) >= TRANSACTION_RECORDS or self._bytes >= TRANSACTION_BYTES

    def _write(self) -> None:
        """Writes what was taken in one transaction, with the places of all partitions."""
        with _told(f"export {self._source.topic} to {self._target.topic}"):
            self._producer.begin_transaction()
            try:
                for partition, record in self._taken:
                    self._produce(record, partition)
                metadata = self._places.consumer_group_metadata()
                self._producer.send_offsets_to_transaction(self._told_at(), metadata, ANSWER_S)
                self._producer.commit_transaction(TIMEOUT_MS / 1000)
            except BaseException:
                self._abort()
                raise
        self._records += len(self._taken)
        self._taken.clear()
        self._bytes = 0

    def _told_at(self) -> list[KafkaPartition]:
        topic_ids = {"topic_id": self._source.topic_id, "to_topic_id": self._target.topic_id}
        return [
            KafkaPartition(
                *key,
                at.offset,
                metadata=json.dumps({**topic_ids, "records": at.records, **_passed(at)}),
            )
            for key, at in self._at.items()
        ]

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(ANSWER_S)
        except KafkaException as error:
            # What failed before is raised. The brokers abort it by its timeout, or at a next run.
            _LOG.warning("export_not_aborted producer=%s error=%s", self._name, error)

    def _produce(self, record: Message, partition: int) -> None:
        given: Any = record.headers() or ()
        headers = [(name, value) for name, value in given if name not in _OWN_HEADERS]
        while True:
            try:
                self._producer.produce(
                    self._target.topic,
                    record.value(),
                    record.key(),
                    partition,
                    timestamp=record.timestamp()[1],
                    headers=headers or None,
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return


def _passed(at: _Place) -> dict[str, Any]:
    # Where no home places, the text stays what it was.
    return {} if at.passed is None else {"passed": passed_to_json(at.passed)}


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turns librdkafka's exceptions into logtx's."""
    try:
        yield
    except LogtxError:
        raise
    except KafkaException as error:
        told: KafkaError = error.args[0]
        if told.code() in _FENCED:
            raise ProducerFencedError(
                f"{what}: another export into this topic took over"
            ) from error
        if told.code() == KafkaError._TIMED_OUT:
            raise RequestTimedOutError(f"{what}: {told.str()}") from error
        raise BrokerError(f"{what}: {told.str()}", kafka_code=told.code()) from error
