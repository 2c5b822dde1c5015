"""Several coordinators on every transport: joining, leaving and dying under a committing client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from logtx.coordinator.runtime import appender
from logtx.journal.logs.interface import Log
from logtx.journal.reader import find_fates, journal_partition_of

from ..parameters import SLOW_KAFKA
from .clusters import PARTITIONS, Cluster, Committer, cluster_of


@pytest.fixture
def cluster(own_log: Log, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """No coordinator yet. A producer without warm-up makes a move slow, not wrong."""
    monkeypatch.setattr(appender, "WARM_S", 0.0)
    with cluster_of(own_log) as made:
        yield made


@pytest.mark.parametrize("transport", ["memory", "mock", SLOW_KAFKA], indirect=True)
def test_a_committing_client_loses_nothing(cluster: Cluster, unique: Callable[[str], str]) -> None:
    group, topic = unique("group"), unique("topic")
    cluster.log.create_topic(topic, partitions=1)
    home = journal_partition_of(group, PARTITIONS)
    cluster.joined(2)
    steady = Committer(cluster.log, topic, group=group, name=unique("producer"))
    try:
        steady.progress()
        cluster.join()
        cluster.settled()
        for end in ("leave", "kill", "kill"):
            steady.progress()
            node = cluster.owner(home)
            getattr(node, end)()
            steady.progress()
            cluster.settled()
            if end != "leave":
                cluster.join(listen=node.address)
                cluster.settled()
    finally:
        steady.stop()
    assert steady.refused == []
    assert len(set(steady.committed)) == len(steady.committed), "a TxId was given twice"
    fates = find_fates(cluster.log, steady.committed, timeout_s=20)
    assert all(f.state.commits for f in fates.values())
