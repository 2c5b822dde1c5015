"""Creates logtx's internal topics, and refuses them if their settings could lose decisions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError

from ...journal.errors import BrokerError, JournalTopicError, UnknownTopicError
from ...journal.logs.interface import GroupOffset, Log, TopicInfo
from ...journal.mode_registry import MODES_TOPIC_SETTINGS
from ...journal.modes import MODES_TOPIC
from ...journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC, OFFSETS_TOPIC
from ...journal.rights import coordinator_may_not, grant, lacking
from ..core.tenure import RECORD_MAX_BYTES
from .offsets_topic import OFFSETS_TOPIC_SETTINGS

_LOG = logging.getLogger(__name__)

JOURNAL_SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    # The broker stamps the records, so their age does not depend on a coordinator's clock.
    "message.timestamp.type": "LogAppendTime",
}
"""Settings of the journal. With other values decisions could be lost."""
BATCH_OVERHEAD_BYTES: Final = 1_024
"""Upper bound of what Kafka adds to a record that is alone in its batch."""
MESSAGE_MIN_BYTES: Final = RECORD_MAX_BYTES + BATCH_OVERHEAD_BYTES
"""Least ``max.message.bytes``: a topic with less refuses records that the coordinator allows."""
MESSAGE_DEFAULT_BYTES: Final = 1_048_588
"""Kafka's default of ``max.message.bytes``, for a log that does not tell it."""
_NEEDED: Final = ("READ", "WRITE", "DESCRIBE_CONFIGS")
"""What a coordinator must be allowed to do with its topics. Kafka includes DESCRIBE in each."""
_GROUP_TIMEOUT_S: Final = 3.0
"""Longest wait for the answer whether the group may be used. A longer one delays the start while
Kafka looks for the group's coordinator; a shorter one finds a missing right later."""


def prepare_topics(
    log: Log, *, partitions: int, replication_factor: int
) -> tuple[TopicInfo, TopicInfo]:
    """Creates the journal and `__transaction_offsets` if missing, and checks them.

    Args:
        log: the log that holds them.
        partitions: partition count of a topic that must be created.
        replication_factor: replicas of a topic that must be created, and the least that an existing
            one must have; -1 is the broker's default.

    Returns:
        What the log says about the journal and about `__transaction_offsets`.

    Raises:
        JournalTopicError: a topic has a setting that could lose decisions; the message says how to
            change it.
        BrokerError: Kafka does not answer, or a right is missing; the message names the command
            that gives it.
    """
    settings_of = {JOURNAL_TOPIC: JOURNAL_SETTINGS, OFFSETS_TOPIC: OFFSETS_TOPIC_SETTINGS}
    infos = [
        _prepare(topic, settings, partitions, replication_factor, log)
        for topic, settings in settings_of.items()
    ]
    if infos[0].operations is not None:
        _check_group(log)
    return infos[0], infos[1]


def prepare_modes_topic(log: Log, replication_factor: int) -> None:
    """Creates `__transaction_topics` if missing, and checks it; see `prepare_topics`."""
    _prepare(MODES_TOPIC, MODES_TOPIC_SETTINGS, 1, replication_factor, log)


def _prepare(
    topic: str, settings: Mapping[str, str], partitions: int, replication_factor: int, log: Log
) -> TopicInfo:
    try:
        info = _described(topic, log)
    except UnknownTopicError:
        log.create_topic(
            topic,
            partitions=partitions,
            replication_factor=replication_factor,
            settings=settings,
        )
        info = log.topic_info(topic)
    _check_rights(info, log)
    check_topic(info, settings, replication_factor, log.bootstrap_servers)
    return info


def _described(topic: str, log: Log) -> TopicInfo:
    try:
        return log.topic_info(topic)
    except BrokerError as error:
        if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise _lacking(topic, (*_NEEDED, "CREATE"), log) from error
        raise


def _lacking(topic: str, operations: Sequence[str], log: Log) -> BrokerError:
    return BrokerError(
        coordinator_may_not(log.bootstrap_servers, log.principal, operations, topic),
        kafka_code=KafkaError.TOPIC_AUTHORIZATION_FAILED,
    )


def _check_rights(info: TopicInfo, log: Log) -> None:
    """Checks what the coordinator may do with one of its topics.

    Raises:
        BrokerError: a right is missing; names the command that gives it.
    """
    if lack := lacking(info.operations, _NEEDED):
        raise _lacking(info.topic, lack, log)
    if info.topic == JOURNAL_TOPIC and (lack := lacking(info.operations, ("DELETE",))):
        # The journal works without; it only grows for ever.
        command = grant(log.bootstrap_servers, log.principal, lack, topic=info.topic)
        _LOG.warning("journal_not_trimmed mend=%s", command)


def _check_group(log: Log) -> None:
    """Checks that the coordinator may commit as the group in which owners publish themselves.

    It commits something that nobody reads, as Kafka has no other way to ask.

    Raises:
        BrokerError: it may not; names the command that gives it the right.
    """
    nobodys = GroupOffset(0, "")
    try:
        log.commit_group_offset(
            COORDINATORS_GROUP, OFFSETS_TOPIC, 0, nobodys, timeout_s=_GROUP_TIMEOUT_S
        )
    except BrokerError as error:
        if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise
        # A group without a coordinator for now delays what clients are told, and nothing else.
        _LOG.warning("group_not_checked error=%s", error)


def check_topic(
    info: TopicInfo, required: Mapping[str, str], replication_factor: int, servers: str
) -> None:
    """Refuses a topic that could lose acknowledged records.

    Args:
        info: what the log says about the topic.
        required: settings that it must have.
        replication_factor: least number of replicas that it must have; -1 is any.
        servers: ``bootstrap.servers``, for the command in the error's message.

    Raises:
        JournalTopicError: names every wrong setting and the command that changes them.
    """
    if info.replication_factor < replication_factor:
        raise JournalTopicError(
            f"topic {info.topic} has {info.replication_factor} replicas, and"
            f" {replication_factor} are asked for (--replication-factor): add replicas with"
            f" kafka-reassign-partitions.sh --bootstrap-server {servers} --execute"
            " --reassignment-json-file, or ask for fewer"
        )
    if info.settings is None:
        return
    mends = dict(_mends(info, info.settings, required))
    if mends:
        found, mend = found_and_mended(info, mends, servers)
        raise JournalTopicError(f"topic {info.topic} has {found}; mend it with: {mend}")


def found_and_mended(info: TopicInfo, mends: Mapping[str, str], servers: str) -> tuple[str, str]:
    """Returns what a topic's wrong settings are, and the command that mends them.

    Args:
        info: what the log says about the topic.
        mends: wrong setting → the value that it must have.
        servers: ``bootstrap.servers``, for the command.
    """
    settings = info.settings or {}
    found = ", ".join(f"{name}={settings[name]}" for name in mends)
    mend = ",".join(f"{name}={value}" for name, value in mends.items())
    return found, (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics"
        f" --entity-name {info.topic} --add-config {mend}"
    )


def _mends(
    info: TopicInfo, settings: Mapping[str, str], required: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yields the wrong settings, each with the value that it must have."""
    for name, value in required.items():
        if settings.get(name, value) != value:
            yield name, value
    if int(settings.get("max.message.bytes", MESSAGE_DEFAULT_BYTES)) < MESSAGE_MIN_BYTES:
        yield "max.message.bytes", str(MESSAGE_DEFAULT_BYTES)
    replicas, in_sync = info.replication_factor, int(settings.get("min.insync.replicas", 1))
    if in_sync > replicas:
        # Then no append is ever acknowledged.
        yield "min.insync.replicas", str(max(replicas - 1, 1))
    elif in_sync == 1 < replicas:
        _LOG.warning("one_replica_in_sync topic=%s replicas=%d", info.topic, replicas)
    elif replicas == 1 and not info.certain:
        # Kafka's own default; the loss of one disk would lose every decision.
        _LOG.warning("one_replica topic=%s fix=--replication-factor 3", info.topic)
