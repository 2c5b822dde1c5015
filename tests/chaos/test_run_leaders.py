"""What a log of several brokers answers when leaders change."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from logtx.integration.local.cluster import LocalCluster
from logtx.integration.local.topics import create_topic
from logtx.journal.logs.kafka import KafkaLog

PARTITIONS = 6
TIMEOUT_S = 60.0


def leaders(servers: str) -> list[int]:
    """By partition."""
    found = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics("t", timeout=20)
    return [found.topics["t"].partitions[number].leader for number in range(PARTITIONS)]


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ends_are_told_when_a_killed_leader_leads_again(tmp_path: Path) -> None:
    """Found by chaos: librdkafka went on asking with the old leader epoch, and was refused."""
    with LocalCluster(tmp_path, brokers=3) as cluster:
        create_topic(cluster.direct_servers, "t", partitions=PARTITIONS)
        log = KafkaLog({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        before = leaders(cluster.direct_servers)
        assert [log.end_offset("t", number) for number in range(PARTITIONS)] == [0] * PARTITIONS
        victim = before[0]
        cluster.broker(victim).kill()
        deadline_s = time.monotonic() + TIMEOUT_S
        while victim in leaders(cluster.direct_servers):
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
        cluster.broker(victim).start()
        while leaders(cluster.direct_servers) != before:
            assert time.monotonic() < deadline_s + TIMEOUT_S
            time.sleep(0.2)
        assert [log.end_offset("t", number) for number in range(PARTITIONS)] == [0] * PARTITIONS
        log.close()
        cluster.kill()
