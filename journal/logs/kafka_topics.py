"""Describes, creates and deletes topics of a Kafka cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, if not in its __all__
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from ..errors import BrokerError, LogtxError, UnknownTopicError
from .asking import NO_TIME_S, PASSING, PAUSE_S, UNKNOWN, Answers, Asking
from .interface import TopicInfo
from .kafka_cluster import KafkaCluster

_UNSUPPORTED: Final = frozenset({KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE})
_NOT_TOLD: Final = _UNSUPPORTED | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
"""Errors of a question for a topic's settings after which it can do without them."""
_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Zeros: the id that a cluster tells whose brokers are too old for topic ids."""
_URL_SAFE: Final = str.maketrans("+/", "-_")


class KafkaTopics(KafkaCluster):
    """The topics of a cluster."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._tells_rights = True
        """False once the brokers could not tell what this client may do with a topic."""

    def topic_info(self, topic: str, *, timeout_s: float = 10) -> TopicInfo:
        """Describes a topic.

        Raises:
            UnknownTopicError: no topic has that name.
            BrokerError: no answer, or refused.
        """
        asking = self._asking(f"describe topic {topic!r}", timeout_s)
        told = self._topic_infos([topic], asking)[topic]
        if isinstance(told, TopicInfo):
            return told
        raise told

    def partition_count(self, topic: str, *, timeout_s: float = 10) -> int:
        """Returns a topic's number of partitions, which needs no right but DESCRIBE.

        Raises:
            UnknownTopicError: no topic has that name.
            BrokerError: no answer, or refused.
        """
        asking = self._asking(f"describe topic {topic!r}", timeout_s, "DESCRIBE", topic=topic)
        if self._mock(asking):
            return self.topic_info(topic, timeout_s=asking.left_s).partition_count
        return len(asking.answer(lambda left: self._describe(topic, left, asking)).partitions)

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float = 10) -> dict[str, str]:
        """Returns the ids of those topics that exist and have one; see `Log.topic_ids`.

        Raises:
            BrokerError: no answer.
        """
        asking = self._asking(f"describe {len(topics)} topics", timeout_s)
        if self._mock(asking):
            return {}  # It has none.
        described = self._describe_all(topics, asking)
        ids = {t: _id_of(d) for t, d in described.items() if not isinstance(d, KafkaException)}
        return {topic: topic_id for topic, topic_id in ids.items() if topic_id}

    def topic_infos(
        self, topics: Sequence[str], *, timeout_s: float = 10
    ) -> dict[str, TopicInfo | LogtxError]:
        """Describes several topics with two requests.

        Returns:
            Topic → what the log says about it, or the error: `UnknownTopicError` if no topic has
            that name, `BrokerError` if the broker refused to describe it.

        Raises:
            BrokerError: no answer.
        """
        asking = self._asking(f"describe {len(topics)} topics", timeout_s)
        return self._topic_infos(topics, asking)

    def topics(self, *, timeout_s: float = 10) -> set[str]:
        """Returns the names of all topics that this client may see, as one broker knows them.

        Raises:
            BrokerError: no answer.
        """
        asking = self._asking("list topics", timeout_s)
        return set(asking.answer(lambda left: self._admin().list_topics(timeout=left)).topics)

    def _topic_infos(
        self, topics: Sequence[str], asking: Asking
    ) -> dict[str, TopicInfo | LogtxError]:
        if self._mock(asking):
            # A request for one topic's metadata would create the topic in the mock; one for all
            # does not.
            listed = asking.answer(lambda left: self._admin().list_topics(timeout=left)).topics
            return {topic: _mock_topic_info(topic, listed) for topic in topics}

        described = self._describe_all(topics, asking)
        there = [t for t, answer in described.items() if not isinstance(answer, KafkaException)]
        settings = self._settings_of(there, asking) if there else {}
        found: dict[str, TopicInfo | LogtxError] = {}
        for topic, answer in described.items():
            told = answer if isinstance(answer, KafkaException) else settings[topic]
            if isinstance(told, KafkaException):
                one = self._asking(f"describe topic {topic!r}", 0, "DESCRIBE", topic=topic)
                error = one.error(told.args[0])
                error.__cause__ = told
                found[topic] = error
            else:
                found[topic] = _topic_info(topic, answer, told)
        return found

    def _describe_all(self, topics: Sequence[str], asking: Asking) -> dict[str, Any]:
        def ask(wait_s: float) -> Answers:
            collection, rights = TopicCollection(list(topics)), self._tells_rights
            return Answers(
                self._admin().describe_topics(
                    collection, request_timeout=wait_s, include_authorized_operations=rights
                )
            )

        described = asking.answer(lambda left: self._ask_controller(left, asking, ask))
        if self._tells_rights and described and all(map(_is_unsupported, described.values())):
            self._tells_rights = False
            return self._describe_all(topics, asking)
        return described

    def _settings_of(
        self, topics: Sequence[str], asking: Asking
    ) -> dict[str, Mapping[str, str] | KafkaException | None]:
        resources = {t: ConfigResource(ConfigResource.Type.TOPIC, t) for t in topics}

        def ask(wait_s: float) -> Answers:
            futures = self._admin().describe_configs(
                list(resources.values()), request_timeout=wait_s
            )
            return Answers({t: futures[resource] for t, resource in resources.items()})

        answers = asking.answer(lambda left: self._ask_controller(left, asking, ask))
        return {topic: _settings(answer) for topic, answer in answers.items()}

    def _describe(self, topic: str, left_s: float, asking: Asking) -> Any:
        def ask(wait_s: float) -> Future[Any]:
            topics = TopicCollection([topic])
            return self._admin().describe_topics(topics, request_timeout=wait_s)[topic]

        return self._ask_controller(left_s, asking, ask)

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = 30,
    ) -> bool:
        """Creates a topic and waits until each partition has a leader.

        On librdkafka's mock, the mock sets the number of partitions, and `settings` mean nothing.

        Returns:
            False if it existed already.

        Raises:
            BrokerError: refused, or no answer.
        """
        asking = self._asking(f"create topic {topic!r}", timeout_s, "CREATE", topic=topic)
        if self._mock(asking):
            known = asking.answer(lambda left: self._admin().list_topics(timeout=left)).topics
            asking.answer(lambda left: self._admin().list_topics(topic, timeout=left))
            return topic not in known
        new = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=replication_factor,
            config=dict(settings or {}),
        )

        def ask(wait_s: float) -> Future[None]:
            return self._admin().create_topics([new], request_timeout=wait_s)[topic]

        try:
            asking.until_done(lambda left: self._ask_controller(left, asking, ask))
            created = True
        except LogtxError:
            raise
        except KafkaException as exception:
            if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise asking.error(exception.args[0]) from exception
            created = asking.repeated
        self._await_leaders(topic, asking)
        return created

    def _await_leaders(self, topic: str, asking: Asking) -> None:
        def ask(left_s: float) -> None:
            count = len(self._describe(topic, left_s, asking).partitions)
            latest = {KafkaPartition(topic, p): OFFSET_END for p in range(count)}
            for told in asking.result(self._admin().offsets_of(latest, left_s)).values():
                if isinstance(told, KafkaError):
                    raise KafkaException(told)

        # Brokers learn of a new topic one after another; until then they report it as unknown.
        asking.answer(ask, PASSING | UNKNOWN | {KafkaError._NOENT})

    def raise_partitions(self, topic: str, partitions: int, *, timeout_s: float = 30) -> None:
        """Raises a topic's number of partitions, and waits until each has a leader.

        Does nothing if it has as many.

        Raises:
            UnknownTopicError: no topic has that name.
            BrokerError: refused, no answer, or librdkafka's mock, which can't.
        """
        asking = self._asking(f"add partitions to {topic!r}", timeout_s, "ALTER", topic=topic)
        self._refuse_mock(asking)
        new = NewPartitions(topic, partitions)

        def ask(wait_s: float) -> Future[None]:
            return self._admin().create_partitions([new], request_timeout=wait_s)[topic]

        try:
            asking.until_done(lambda left: self._ask_controller(left, asking, ask))
        except LogtxError:
            raise
        except KafkaException as exception:
            # It has as many, or more: another coordinator was quicker.
            if exception.args[0].code() != KafkaError.INVALID_PARTITIONS:
                raise asking.error(exception.args[0]) from exception
        self._await_leaders(topic, asking)

    def delete_topic(self, topic: str, *, timeout_s: float = 30) -> None:
        """Deletes a topic and waits until the cluster no longer knows it.

        Raises:
            UnknownTopicError: no topic has that name.
            BrokerError: refused, no answer, still there when the time is up, or librdkafka's mock,
                which can't.
        """
        asking = self._asking(f"delete topic {topic!r}", timeout_s, "DELETE", topic=topic)
        self._refuse_mock(asking)

        def ask(wait_s: float) -> Future[None]:
            return self._admin().delete_topics([topic], request_timeout=wait_s)[topic]

        asking.answer(lambda left: self._ask_controller(left, asking, ask))
        while True:
            try:
                self._describe(topic, asking.left_s, asking)
            except LogtxError:
                raise
            except KafkaException as exception:
                if exception.args[0].code() in UNKNOWN:
                    return
                raise asking.error(exception.args[0]) from exception
            if asking.left_s <= NO_TIME_S:
                raise BrokerError(f"{asking.asked}: the cluster still has it after {timeout_s} s")
            time.sleep(PAUSE_S)


def _topic_info(topic: str, described: Any, settings: Mapping[str, str] | None) -> TopicInfo:
    return TopicInfo(
        topic=topic,
        topic_id=_id_of(described),
        partition_count=len(described.partitions),
        settings=settings,
        replication_factor=min(len(p.replicas) for p in described.partitions),
        operations=_operations(described),
    )


def _id_of(described: Any) -> str:
    topic_id = getattr(described, "topic_id", None)
    # librdkafka writes plain base64, Kafka's own tools its URL-safe form.
    text = "" if topic_id is None else str(topic_id).translate(_URL_SAFE)
    return "" if text == _NO_TOPIC_ID else text


def _operations(described: Any) -> frozenset[str] | None:
    """Returns what the client may do with a topic; None if the brokers don't tell."""
    told = getattr(described, "authorized_operations", None)
    return frozenset(operation.name for operation in told) if told else None


def _mock_topic_info(topic: str, listed: Mapping[str, Any]) -> TopicInfo | UnknownTopicError:
    if topic not in listed:
        return UnknownTopicError(f"there is no topic {topic!r}")
    partitions = listed[topic].partitions.values()
    return TopicInfo(
        topic=topic,
        topic_id="",
        partition_count=len(partitions),
        settings=None,
        replication_factor=min(len(p.replicas) for p in partitions),
    )


def _is_unsupported(answer: Any) -> bool:
    return isinstance(answer, KafkaException) and answer.args[0].code() in _UNSUPPORTED


def _settings(answer: Any) -> Mapping[str, str] | KafkaException | None:
    """Returns a topic's settings; None where they are not told, or not to this client."""
    if isinstance(answer, KafkaException):
        return None if answer.args[0].code() in _NOT_TOLD else answer
    return {name: entry.value for name, entry in answer.items() if entry.value is not None}
