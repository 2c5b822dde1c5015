"""A batch is sorted by partition, and the garbage collector is left as it was."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from logtx.consumer.config import ConsumerConfig
from logtx.consumer.core.counters import ConsumerCounters
from logtx.consumer.reading import Reading
from logtx.journal.collector import collector_paused
from logtx.journal.control import TopicPartition
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position

ASSIGNED = [("a", 0), ("a", 1), ("b", 0)]
RUNS = st.lists(st.tuples(st.sampled_from([*ASSIGNED, ("b", 1)]), st.integers(1, 50)), max_size=12)


def sort(
    assigned: list[TopicPartition],
    runs: list[tuple[TopicPartition, int]],
    formerly: Sequence[TopicPartition] = (),
) -> tuple[list[Message], list[tuple[TopicPartition, list[Message]]]]:
    """Returns a batch of these runs, and the runs of it that each partition was fed."""
    keys = [key for key, count in runs for _ in range(count)]
    batch = [
        Message(topic=topic, partition=partition, offset=n, value=b"")
        for n, (topic, partition) in enumerate(keys)
    ]
    log = MemoryLog("sorted")
    consumer = log.consumer({"group.id": "g"})
    config = ConsumerConfig.parse({"group.id": "g"})
    reading = Reading(log, consumer, config, ConsumerCounters())
    fed: list[tuple[TopicPartition, list[Message]]] = []
    try:
        for key in (*formerly, *assigned):
            reading.add(key, Position.at(0), None)
        reading.remove(formerly)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "_feed", lambda a, part: fed.append((a.key, list(part.records))))
            patch.setattr(consumer, "poll", lambda _timeout: batch[0] if batch else None)
            patch.setattr(consumer, "consume", lambda *_: batch[1:])
            reading.fetch(0)
    finally:
        reading.close()
        consumer.close()
    return batch, fed


@given(RUNS)
def test_a_batch_is_sorted_by_partition(runs: list[tuple[TopicPartition, int]]) -> None:
    batch, fed = sort(ASSIGNED, runs)
    # Records of partitions that are not assigned are left out; the others keep their order.
    expected = [m for m in batch if (m.topic(), m.partition()) in ASSIGNED]
    assert [m for _, records in fed for m in records] == expected
    for key, records in fed:
        assert records
        assert all((m.topic(), m.partition()) == key for m in records)


@given(st.lists(st.tuples(st.sampled_from([("a", 0), ("a", 1), ("a", 2)]), st.integers(1, 50))))
def test_a_batch_of_one_topic_is_sorted_by_partition(
    runs: list[tuple[TopicPartition, int]],
) -> None:
    assigned = [("a", 0), ("a", 1)]
    batch, fed = sort(assigned, runs)
    assert [m for _, records in fed for m in records] == [m for m in batch if m.partition() < 2]
    assert all(m.partition() == key[1] for key, records in fed for m in records)


@given(RUNS)
def test_leftovers_of_a_topic_that_was_assigned_are_left_out(
    runs: list[tuple[TopicPartition, int]],
) -> None:
    batch, fed = sort([("a", 0)], runs, formerly=[("b", 0)])
    expected = [m for m in batch if (m.topic(), m.partition()) == ("a", 0)]
    assert [m for _, records in fed for m in records] == expected


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with suppress(KeyError), collector_paused():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
