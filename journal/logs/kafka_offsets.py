"""Asks the leaders of a Kafka cluster's partitions for offsets, and trims partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as KafkaPartition

from ..control import TopicPartition
from ..errors import BrokerError, LogtxError, UnknownTopicError
from .asking import NO_TIME_S, Asking
from .ends_client import EndsClient
from .interface import TopicInfo
from .kafka_topics import KafkaTopics

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
_NO_LEADER: Final = KafkaError(KafkaError._TRANSPORT, "the leader did not answer")
_ASKED_SHARE: Final = 0.6
"""Part of the time in which the leaders may answer. The rest is for finding out who leads those
partitions that got no answer: with less of it the next question may go to the same brokers."""
_QUICK_SHARE: Final = 0.2
"""Part of the time before that in which all ends may be told at less cost. A larger one leaves less
for the others while one leader is silent, a smaller one asks twice on a busy machine."""


class KafkaOffsets(KafkaTopics):
    """The offsets of a cluster's partitions."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        # To make another client, confluent-kafka would wait for a token, up to ten seconds.
        is_slow_to_make = "oauth_cb" in config
        self._ends = None if is_slow_to_make else EndsClient(self.consumer)

    def start_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the offset of the first record that is still there, as the leader has it.

        Raises:
            UnknownTopicError: no such topic or partition.
            BrokerError: no answer, or refused.
        """
        return self._offset(topic, partition, OFFSET_BEGINNING, timeout_s)

    def end_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the offset that the next record will get, as the leader has it.

        Raises:
            UnknownTopicError: no such topic or partition.
            BrokerError: no answer, or refused.
        """
        return self._offset(topic, partition, OFFSET_END, timeout_s)

    def start_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int]:
        """Returns the first offset of each partition, by one request. Raises as `start_offset`."""
        return self._offsets(dict.fromkeys(partitions, OFFSET_BEGINNING), timeout_s)

    def end_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int]:
        """Returns the end offset of each partition, by one request. Raises as `end_offset`."""
        return self._offsets(dict.fromkeys(partitions, OFFSET_END), timeout_s)

    def each_start_offset(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | LogtxError]:
        """Asks once for the first offset of each partition; see `Log.each_end_offset`."""
        return self._each(dict.fromkeys(partitions, OFFSET_BEGINNING), timeout_s)

    def each_end_offset(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | LogtxError]:
        """Asks once for the end offset of each partition; see `Log.each_end_offset`."""
        keys = dict.fromkeys(partitions)
        asking = self._asking(f"ends of {len(keys)} partitions", timeout_s)
        found: dict[TopicPartition, int | LogtxError] = {}
        if self._ends is not None:
            found.update(self._ends.ends_of(keys, max(timeout_s * _QUICK_SHARE, NO_TIME_S)))
        others = [key for key in keys if key not in found]
        if others:
            found |= self._each(dict.fromkeys(others, OFFSET_END), asking.left_s)
        return {key: found[key] for key in keys}

    def offset_for_time(
        self, topic: str, partition: int, wall_ms: int, *, timeout_s: float = 10
    ) -> int | None:
        """Returns the offset of the first record stamped at `wall_ms` or later, or None.

        Asks the leader.
        """
        asking = self._asking(f"offset of {topic}-{partition} at {wall_ms} ms", timeout_s)
        self._refuse_mock(asking)
        found = self._offset(topic, partition, wall_ms, asking.left_s)
        return None if found < 0 else found

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | None]:
        """Returns what `offset_for_time` returns of each partition, by one request."""
        asking = self._asking(f"offsets of {len(times_ms)} partitions by time", timeout_s)
        self._refuse_mock(asking)
        found = self._offsets(times_ms, asking.left_s)
        return {key: None if offset < 0 else offset for key, offset in found.items()}

    def _offset(self, topic: str, partition: int, which: int, timeout_s: float) -> int:
        asking = self._asking(f"offset of {topic}-{partition}", timeout_s, "DESCRIBE", topic=topic)
        key = KafkaPartition(topic, partition)

        def ask(left_s: float) -> int:
            (told,) = asking.result(self._admin().offsets_of({key: which}, left_s)).values()
            offset = _told(told)
            if isinstance(offset, KafkaError):
                raise KafkaException(offset)
            return offset

        return self._ask_leader(topic, partition, asking, ask)

    def _offsets(
        self, wanted: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, int]:
        asking = self._asking(f"offsets of {len(wanted)} partitions", timeout_s, "DESCRIBE")
        # Those whose leaders changed, or that don't exist, are asked for by themselves: that finds
        # out which it is.
        return {
            key: told if isinstance(told, int) else self._offset(*key, wanted[key], asking.left_s)
            for key, told in self._told(wanted, asking).items()
        }

    def _told(
        self, wanted: Mapping[TopicPartition, int], asking: Asking
    ) -> dict[TopicPartition, int | KafkaError]:
        """Returns what one request tells of each partition."""
        if not wanted:
            return {}
        asked = {KafkaPartition(*key): which for key, which in wanted.items()}
        try:
            told = asking.result(self._admin().offsets_of(asked, asking.left_s))
        except KafkaException as exception:
            return dict.fromkeys(wanted, exception.args[0])
        return {(place.topic, place.partition): _told(each) for place, each in told.items()}

    def _each(
        self, wanted: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, int | LogtxError]:
        what = f"offsets of {len(wanted)} partitions"
        asking = self._asking(what, timeout_s)
        told = self._told(wanted, self._asking(what, timeout_s * _ASKED_SHARE))
        if any(not isinstance(answer, int) for answer in told.values()):
            self._renew_leaders(asking.left_s)
        unled = {
            topic
            for (topic, _), answer in told.items()
            if isinstance(answer, KafkaError) and answer.code() == KafkaError._NOENT
        }
        infos = self._known(unled, asking)
        found: dict[TopicPartition, int | LogtxError] = {}
        for (topic, partition), answer in told.items():
            info = infos.get(topic)
            if isinstance(answer, int):
                found[topic, partition] = answer
            elif isinstance(info, LogtxError):
                found[topic, partition] = info
            elif info is not None and partition >= info:
                found[topic, partition] = _no_partition(topic, partition)
            else:
                one = f"offset of {topic}-{partition}"
                named = self._asking(one, 0, "DESCRIBE", topic=topic)
                found[topic, partition] = named.error(answer)
        return found

    def _renew_leaders(self, timeout_s: float) -> None:
        """Learns who leads, for the next question: librdkafka does not find out by itself."""
        try:
            self._admin().list_topics(timeout=timeout_s)
        except KafkaException as error:
            _LOG.debug("leaders_not_told error=%s", error)

    def _known(self, topics: Collection[str], asking: Asking) -> dict[str, int | LogtxError]:
        """Returns the number of partitions of each topic, or why it is not told."""
        if not topics:
            return {}
        try:
            infos = self._topic_infos(sorted(topics), asking)
        except BrokerError as error:
            return dict.fromkeys(topics, error)
        return {t: i.partition_count if isinstance(i, TopicInfo) else i for t, i in infos.items()}

    def _ask_leader(
        self, topic: str, partition: int, asking: Asking, ask: Callable[[float], _T]
    ) -> _T:
        def ask_if_led(left_s: float) -> _T:
            try:
                return ask(left_s)
            except LogtxError:
                raise
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                if error.code() != KafkaError._NOENT:
                    raise
                # "No leaders found" is librdkafka's only error for an unknown partition too.
                self._require_partition(topic, partition, asking)
                passing = KafkaError(KafkaError.LEADER_NOT_AVAILABLE, error.str())
                raise KafkaException(passing) from exception

        try:
            return asking.until_led(
                ask_if_led, lambda s: self._admin().list_topics(topic, timeout=s)
            )
        except LogtxError:
            raise
        except KafkaException as exception:
            raise asking.error(exception.args[0]) from exception

    def _require_partition(self, topic: str, partition: int, asking: Asking) -> None:
        if partition >= self.topic_info(topic, timeout_s=asking.left_s).partition_count:
            raise _no_partition(topic, partition)

    def delete_records(
        self, topic: str, partition: int, before_offset: int, *, timeout_s: float = 10
    ) -> None:
        """Deletes the records of a partition below `before_offset`.

        Raises:
            UnknownTopicError: no such topic or partition.
            BrokerError: beyond the end, a compacted topic, no answer, or librdkafka's mock.
        """
        asking = self._asking(
            f"trim {topic}-{partition} to {before_offset}", timeout_s, "DELETE", topic=topic
        )
        self._refuse_mock(asking)
        key = KafkaPartition(topic, partition, before_offset)

        def ask(left_s: float) -> None:
            asking.result(self._admin().delete_records([key], request_timeout=left_s)[key])

        self._ask_leader(topic, partition, asking, ask)


def _told(answer: Any) -> int | KafkaError:
    """Returns the offset that a leader told, or the error in its place."""
    if isinstance(answer, KafkaError):
        return answer
    # librdkafka reports this, as a success, if the partition's leader broke the connection or was
    # replaced before it answered.
    return _NO_LEADER if answer.offset == OFFSET_INVALID else int(answer.offset)


def _no_partition(topic: str, partition: int) -> UnknownTopicError:
    return UnknownTopicError(f"topic {topic!r} has no partition {partition}")
