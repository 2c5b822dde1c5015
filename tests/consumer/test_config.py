"""Settings of a consumer: how they are checked, sorted and fixed."""

from __future__ import annotations

from typing import Any

import pytest

from logtx.consumer.config import MIB, ConsumerConfig, IsolationLevel, OffsetsStorage
from logtx.journal.errors import ConfigError


def parse(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig.parse({"group.id": "g", "bootstrap.servers": "x:1"} | settings)


def test_defaults() -> None:
    config = parse()
    assert config.isolation_level is IsolationLevel.READ_COMMITTED
    assert config.offsets_storage is OffsetsStorage.KAFKA
    assert config.enable_auto_commit
    assert config.pending_memory_max_bytes == 64 * 1024 * 1024
    assert config.torn_reset is None
    assert config.librdkafka["auto.offset.reset"] == "error"
    assert config.librdkafka["enable.auto.commit"] is False
    assert config.librdkafka["fetch.queue.backoff.ms"] == 5
    assert "bootstrap.servers" not in config.librdkafka


def test_librdkafkas_settings_pass_and_ours_do_not() -> None:
    config = parse(**{"fetch.queue.backoff.ms": 7, "client.id": "me", "pending.dir": "/x"})
    assert config.librdkafka["fetch.queue.backoff.ms"] == 7
    assert config.librdkafka["client.id"] == "me"
    assert not any(name.startswith("pending.") for name in config.librdkafka)
    assert config.pending_dir == "/x"


@pytest.mark.parametrize(
    ("memory", "kbytes"), [(0, 1_024), (16 * MIB, 4_096), (64 * MIB, 16_384), (2**40, 65_536)]
)
def test_librdkafkas_queue_is_bounded_in_proportion(memory: int, kbytes: int) -> None:
    config = parse(**{"pending.memory.max.bytes": memory})
    assert config.librdkafka["queued.max.messages.kbytes"] == kbytes
    given = parse(**{"pending.memory.max.bytes": memory, "queued.max.messages.kbytes": 7})
    assert given.librdkafka["queued.max.messages.kbytes"] == 7


@pytest.mark.parametrize(("given", "limit"), [(-1, None), (0, 0), (10**12, 10**12)])
def test_the_limit_of_disk(given: int, limit: int | None) -> None:
    assert parse().pending_disk_max_bytes is None
    assert parse(**{"pending.disk.max.bytes": given}).pending_disk_max_bytes == limit


def test_side_consumers_get_no_callbacks_of_the_application() -> None:
    config = parse(**{"stats_cb": print, "oauth_cb": print, "group.instance.id": "a"})
    quiet = config.librdkafka_quiet
    assert set(config.librdkafka) - set(quiet) == {"stats_cb", "group.instance.id"}


def test_an_idle_consumer_asks_seldom_and_one_that_reads_on_the_side_waits_for_nothing() -> None:
    for config in (parse(), parse(**{"fetch.wait.max.ms": 500})):
        assert config.librdkafka["fetch.wait.max.ms"] >= 100
        assert config.librdkafka_quiet["fetch.wait.max.ms"] == 10


def test_finding_19_isolation_from_kafkas_own_transactions_is_a_setting() -> None:
    for level in ("read_uncommitted", "read_committed"):
        config = parse(**{"kafka.isolation.level": level, "isolation.level": "read_uncommitted"})
        assert config.librdkafka["isolation.level"] == level
        assert config.librdkafka_quiet["isolation.level"] == level
        assert "kafka.isolation.level" not in config.librdkafka
    # What it hides at a partition's end is read all the same.
    assert config.librdkafka["enable.partition.eof"]
    assert not config.partition_eof


@pytest.mark.parametrize(
    "settings",
    [
        {"kafka.isolation.level": "serializable"},
        {"kafka.isolation": "read_committed"},
        {"group.id": ""},
        {"isolation.level": "read_comitted"},
        {"auto.offset.reset": "first"},
        {"pending.memory.max.byte": 1},
        {"pending.memory.max.bytes": -1},
        {"pending.memory.max.bytes": "lots"},
        {"pending.disk.max.bytes": -2},
        {"torn.reset": "sometimes"},
        {"offsets.storage": "zookeeper"},
        {"transaction.groups": "x"},
        {"transaction.group": ""},
        {"enable.auto.commit": "maybe"},
        {"enable.auto.commit": True, "offsets.storage": "transactions"},
        {"enable.partition.eof": True, "isolation.level": "serializable"},
        {"auto.commit.interval.ms": 2**40},
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**settings)
    assert any(name in str(caught.value) for name in settings)


def test_isolation_levels() -> None:
    for level in IsolationLevel:
        config = parse(**{"isolation.level": level.value})
        assert config.isolation_level is level
        # With read_committed Kafka would stop at the last stable offset.
        assert config.librdkafka["isolation.level"] == "read_uncommitted"


@pytest.mark.parametrize(
    ("name", "value", "cooperative"),
    [
        ("partition.assignment.strategy", "cooperative-sticky", True),
        ("partition.assignment.strategy", "range,roundrobin", False),
        ("group.protocol", "consumer", True),
    ],
)
def test_how_partitions_come_and_go(name: str, value: str, cooperative: bool) -> None:
    assert parse(**{name: value}).cooperative is cooperative


def test_the_settings_of_topics_get_round_nothing() -> None:
    # librdkafka would take the reset from there: what retention deleted was jumped over in silence.
    config = ConsumerConfig.parse(
        {"group.id": "g", "default.topic.config": {"auto.offset.reset": "earliest"}}
    )
    assert config.auto_offset_reset == "earliest"
    assert config.librdkafka["auto.offset.reset"] == "error"
    assert "default.topic.config" not in config.librdkafka
    nearer = ConsumerConfig.parse(
        {
            "group.id": "g",
            "auto.offset.reset": "latest",
            "default.topic.config": {"auto.offset.reset": "earliest"},
        }
    )
    assert nearer.auto_offset_reset == "latest"
    with pytest.raises(ConfigError, match=r"default\.topic\.config must be a dict"):
        ConsumerConfig.parse({"group.id": "g", "default.topic.config": "earliest"})


def test_librdkafkas_settings_that_begin_like_ours_pass() -> None:
    config = ConsumerConfig.parse(
        {
            "group.id": "g",
            "coordinator.query.interval.ms": 1000,
            "metadata.broker.list": "b:1",
        }
    )
    assert config.librdkafka["coordinator.query.interval.ms"] == 1000
    assert "metadata.broker.list" not in config.librdkafka
