"""Jobs of many tasks that write to many partitions (finding S12)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from logtx.integration.testing import Cluster
from logtx.journal.reader import JOURNAL_TOPIC, read_entries
from logtx.journal.records.types import AddWrites

from .conftest import committed

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
TASKS = 200
Sink = Callable[..., Any]


def parts_in(cluster: Cluster) -> int:
    """Number of records of parts in the whole journal."""
    found = 0
    for partition in range(cluster.log.partition_count(JOURNAL_TOPIC)):
        start = cluster.log.start_offset(JOURNAL_TOPIC, partition)
        end = cluster.log.end_offset(JOURNAL_TOPIC, partition)
        entries = read_entries(cluster.log, partition, start, end, timeout_s=60)
        found += sum(isinstance(entry.record, AddWrites) for _, entry in entries)
    return found


@pytest.mark.parametrize("partitions", [50, 300])
def test_s12_every_task_writes_to_every_partition(
    spark: Any, sink: Sink, logtx_cluster: Cluster, partitions: int
) -> None:
    topic = logtx_cluster.topic(partitions)
    count, before = TASKS * partitions, parts_in(logtx_cluster)
    frame = spark.range(0, count, 1, TASKS).selectExpr(
        "cast(id as string) as value", f"cast(id % {partitions} as int) as partition"
    )
    began_s = time.monotonic()
    sink(frame, topic=topic).save()
    print(f"{TASKS} x {partitions}: {time.monotonic() - began_s:.1f} s")
    assert (parts_in(logtx_cluster) > before) is (partitions == 300)
    rows = committed(logtx_cluster, topic, count)
    assert sorted(int(value) for *_, value in rows) == list(range(count))
