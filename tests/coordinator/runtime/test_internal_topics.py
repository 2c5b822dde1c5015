"""logtx's own topics under settings that would lose decisions: which they are, and the remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import KafkaError

from logtx.coordinator.core.tenure import RECORD_MAX_BYTES
from logtx.coordinator.runtime.internal_topics import (
    JOURNAL_SETTINGS,
    MESSAGE_MIN_BYTES,
    check_topic,
    prepare_topics,
)
from logtx.coordinator.service import JOURNAL_CONFIG
from logtx.journal.errors import BrokerError, JournalTopicError
from logtx.journal.logs.interface import TopicInfo
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC, OFFSETS_TOPIC

RIGHT = {**JOURNAL_SETTINGS, "max.message.bytes": "1048588", "min.insync.replicas": "2"}


def info(replicas: int = 3, **changed: str) -> TopicInfo:
    """Returns the journal topic with right settings, except for the changed ones."""
    settings = {**RIGHT, **{name.replace("__", "."): value for name, value in changed.items()}}
    return TopicInfo(
        topic=JOURNAL_TOPIC,
        topic_id="id",
        partition_count=8,
        replication_factor=replicas,
        settings=settings,
    )


def check(found: TopicInfo, replication_factor: int = 3) -> None:
    """Checks it as a coordinator does at its start."""
    check_topic(found, JOURNAL_SETTINGS, replication_factor, "kafka-1:9092")


def test_a_right_topic() -> None:
    check(info())
    check(info(replicas=1, min__insync__replicas="1"), -1)


@pytest.mark.parametrize(
    ("changed", "mend"),
    [
        ({"cleanup__policy": "compact"}, "cleanup.policy=delete"),
        ({"cleanup__policy": "compact,delete"}, "cleanup.policy=delete"),
        ({"retention__ms": "604800000"}, "retention.ms=-1"),
        ({"retention__bytes": "1000000"}, "retention.bytes=-1"),
        ({"unclean__leader__election__enable": "true"}, "unclean.leader.election.enable=false"),
        ({"message__timestamp__type": "CreateTime"}, "message.timestamp.type=LogAppendTime"),
        ({"max__message__bytes": "1000"}, "max.message.bytes=1048588"),
        ({"min__insync__replicas": "4"}, "min.insync.replicas=2"),
    ],
)
def test_a_wrong_setting_is_named_with_the_command_that_mends_it(
    changed: dict[str, str], mend: str
) -> None:
    with pytest.raises(JournalTopicError) as refusal:
        check(info(**changed))
    name, value = next(iter(changed.items()))
    assert f"{name.replace('__', '.')}={value}" in str(refusal.value)
    assert str(refusal.value).endswith(
        "kafka-configs.sh --bootstrap-server kafka-1:9092 --alter --entity-type topics"
        f" --entity-name {JOURNAL_TOPIC} --add-config {mend}"
    )


def test_all_that_is_wrong_is_mended_at_once() -> None:
    with pytest.raises(JournalTopicError, match=r"retention\.ms=-1,retention\.bytes=-1"):
        check(info(retention__ms="1", retention__bytes="1"))


def test_fewer_replicas_than_asked_for() -> None:
    with pytest.raises(JournalTopicError, match=r"has 1 replicas, and 3 are asked for"):
        check(info(replicas=1, min__insync__replicas="1"))


def test_one_broker_that_acknowledges_alone_is_said(caplog: pytest.LogCaptureFixture) -> None:
    check(info(min__insync__replicas="1"))
    assert "one_replica_in_sync" in caplog.text


def test_finding_21_a_single_replica_is_said(caplog: pytest.LogCaptureFixture) -> None:
    check(info(replicas=1, min__insync__replicas="1"), -1)
    assert "one_replica topic=" in caplog.text
    assert "--replication-factor 3" in caplog.text


def test_finding_19_no_batch_is_larger_than_the_journal_takes() -> None:
    assert JOURNAL_CONFIG["batch.size"] == RECORD_MAX_BYTES < MESSAGE_MIN_BYTES


def test_what_a_coordinator_creates_is_right(memory_log: MemoryLog) -> None:
    for _ in range(2):
        journal, offsets = prepare_topics(memory_log, partitions=3, replication_factor=-1)
    assert (journal.topic, offsets.topic) == (JOURNAL_TOPIC, OFFSETS_TOPIC)
    assert journal.partition_count == offsets.partition_count == 3
    assert journal.settings is not None
    assert JOURNAL_SETTINGS.items() <= journal.settings.items()


def test_a_group_that_can_not_be_asked_for_delays_no_start(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told, codes = memory_log.topic_info, [KafkaError._TIMED_OUT]
    every = frozenset({"READ", "WRITE", "DESCRIBE_CONFIGS"})
    monkeypatch.setattr(memory_log, "topic_info", lambda t: replace(told(t), operations=every))

    def refuse(*_: object, **__: object) -> None:
        raise BrokerError("no", kafka_code=codes[0])

    monkeypatch.setattr(memory_log, "commit_group_offset", refuse)
    prepare_topics(memory_log, partitions=1, replication_factor=1)
    assert "group_not_checked" in caplog.text
    assert "journal_not_trimmed mend=kafka-acls.sh" in caplog.text, "DELETE is missing"
    codes[0] = KafkaError.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(BrokerError):
        prepare_topics(memory_log, partitions=1, replication_factor=1)


def test_the_offsets_topic_must_be_compacted(memory_log: MemoryLog) -> None:
    memory_log.create_topic(OFFSETS_TOPIC, partitions=1)
    with pytest.raises(JournalTopicError, match=r"cleanup\.policy=compact"):
        prepare_topics(memory_log, partitions=1, replication_factor=-1)
