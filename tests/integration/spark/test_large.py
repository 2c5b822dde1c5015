"""Large transactions that several tasks read: together they get what one task gets."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer

from logtx.consumer.range_reader.errors import DataLossError
from logtx.consumer.range_reader.large import Large, LargePart, Search
from logtx.consumer.range_reader.reading import Range, RangeReader, ReadConfig
from logtx.consumer.range_reader.spot import Spot
from logtx.integration.spark import planning, searching
from logtx.integration.spark.planning import Planner, SourceOptions
from logtx.integration.testing import Cluster
from logtx.journal.control import BranchRange
from logtx.journal.errors import IntegrityError
from logtx.journal.position import Position
from logtx.producer.branch import Branches

from ...waiting import eventually


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PART_RECORDS", 10)


class Topic:
    """A topic with one partition, and what was committed to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.name = cluster, cluster.topic(1)
        self.key = self.name, 0
        self.producer = cluster.producer()
        self.end = 0

    def commit(self, count: int, *, branches: int = 0, stray: bool = False) -> None:
        """Commits a transaction of `count` records, of this many branches beside its own records.

        With `stray`, another transaction writes a record between them, and aborts.
        """
        transaction = self.producer.begin_transaction()
        config = {"bootstrap.servers": self.cluster.bootstrap_servers}
        joined = Branches(config)
        writers = [joined.join(transaction.branch_token()) for _ in range(branches)]
        other = self.producer.begin_transaction() if stray else None
        for number in range(count):
            writer = writers[number % branches] if branches else transaction
            writer.produce(self.name, b"%d-%d" % (self.end, number), partition=0)
            if other is not None and number == count // 2:
                self.producer.flush()  # Or the others would wait for their TxId, and come behind.
                other.produce(self.name, b"stray", partition=0)
                self.producer.flush()
        for branch in writers:
            transaction.accept(branch.finish())
            branch.close()
        transaction.commit()
        if other is not None:
            other.abort()
        joined.close()
        self.end += count + 1 + 2 * stray
        eventually(lambda: self.cluster.log.end_offset(*self.key) == self.end)

    def ranges(self, tasks: int, start: int = 0, end: int | None = None) -> list[Range]:
        options = {
            "kafka.bootstrap.servers": self.cluster.bootstrap_servers,
            "subscribe": self.name,
            "minpartitions": str(tasks),
        }
        planner = Planner(self.cluster.log, SourceOptions.parse(options))
        return planner.ranges({self.key: Spot(start)}, {self.key: self.end if end is None else end})

    def read(self, ranges: Sequence[Range]) -> list[tuple[bytes, int | None]]:
        """Returns values with their commit sequences."""
        config = ReadConfig(kafka={"bootstrap.servers": self.cluster.bootstrap_servers})
        found = []
        for part in ranges:
            reader = RangeReader(config, part, self.cluster.log)
            for share in reader.shares():
                found += [(r.value() or b"", share.commit_sequence) for r in share.records]
            reader.close()
        return found


@pytest.fixture
def topic(logtx_memory_cluster: Cluster) -> Topic:
    return Topic(logtx_memory_cluster)


@pytest.mark.parametrize("branches", [0, 1, 3])
def test_s15_tasks_share_a_large_transaction(topic: Topic, branches: int) -> None:
    topic.commit(5)
    topic.commit(200, branches=branches)
    topic.commit(4)
    ranges = topic.ranges(tasks=4)
    shares = [part.end - part.start.o2 for part in ranges if part.large is not None]
    assert sum(shares) == 200
    assert len(shares) >= 3
    assert max(shares) <= 70
    found = topic.read(ranges)
    assert found == topic.read(topic.ranges(tasks=1))
    assert len(found) == 209


def test_ranges_that_cut_a_transaction_deliver_it_once(topic: Topic) -> None:
    chance = random.Random(4)
    for _ in range(12):
        count = chance.choice((1, 7, 60, 150))
        topic.commit(count, branches=chance.choice((0, 2)), stray=chance.random() < 0.3)
    everything = topic.read(topic.ranges(tasks=1))
    assert len(everything) > 300
    shared = 0
    for tasks in (1, 2, 3, 8, 20):
        cuts = sorted(chance.sample(range(1, topic.end), 3))
        pieces = list(zip([0, *cuts], [*cuts, topic.end], strict=True))
        ranges = [r for start, end in pieces for r in topic.ranges(tasks, start, end)]
        assert topic.read(ranges) == everything
        shared += sum(part.large is not None for part in ranges)
    assert shared > 10


def test_others_between_its_records_leave_it_to_one_task(topic: Topic) -> None:
    topic.commit(200, stray=True)
    ranges = topic.ranges(tasks=4)
    assert [part.large for part in ranges] == [None] * 4
    assert len(topic.read(ranges)) == 200


def test_a_partly_read_one_is_not_shared(topic: Topic) -> None:
    topic.commit(200)
    topic.commit(200)
    options = {
        "kafka.bootstrap.servers": topic.cluster.bootstrap_servers,
        "subscribe": topic.name,
        "minpartitions": "8",
    }
    planner = Planner(topic.cluster.log, SourceOptions.parse(options))
    ranges = planner.ranges({topic.key: Spot(200, 150, 0)}, {topic.key: topic.end})
    assert len(topic.read(ranges)) == 50 + 200


def test_what_lost_records_is_not_shared(topic: Topic) -> None:
    topic.commit(200)
    topic.cluster.log.delete_records(topic.name, 0, 20)
    assert [part.large for part in topic.ranges(tasks=4, start=20)] == [None] * 4


def test_a_part_that_misses_a_record_is_refused(topic: Topic) -> None:
    topic.commit(50)
    topic.commit(50)
    first, second = (p for p in topic.ranges(tasks=4) if p.large and p.start.o2 in (0, 51))
    assert first.large is not None
    wrong = Range(*topic.key, Position.at(40), 60, first.large)
    with pytest.raises(IntegrityError, match="offset 50 does not hold"):
        topic.read([wrong])
    other = Range(*topic.key, second.start, second.end, first.large)
    with pytest.raises(IntegrityError, match="offset 51 does not hold"):
        topic.read([other])
    short = LargePart(first.large, 0)
    with pytest.raises(IntegrityError, match="offset 0 does not hold"):
        short.end(10)


def test_a_search_asks_for_few_records(topic: Topic) -> None:
    topic.commit(3_000)
    topic.commit(1)
    consumer = topic.cluster.log.consumer({"group.id": "any"})
    from confluent_kafka import TopicPartition

    search, asked = Search(0, topic.end, [1_000, 2_000]), 0
    while search.wanted is not None:
        consumer.assign([TopicPartition(*topic.key, search.wanted)])
        search.take(consumer.poll(5))  # type: ignore[arg-type]
        asked += 1
    consumer.close()
    assert asked <= 16
    assert [(type(f), f.first, f.marker) for f in search.found] == [(Large, 0, 3_000)]


@pytest.mark.parametrize(
    "sizes",
    [
        {"message.max.bytes": "10000000"},
        {"receive.message.max.bytes": "100000000", "fetch.max.bytes": "60000000"},
        {
            "message.max.bytes": "5000",
            "fetch.max.bytes": "50000",
            "receive.message.max.bytes": "60000",
        },
    ],
)
def test_sizes_of_messages_that_the_options_give(sizes: dict[str, str]) -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0", **sizes}
    Consumer(searching.settings(kafka)).close()  # librdkafka refuses sizes that do not fit


@pytest.mark.parametrize("strict", [True, False])
def test_retention_deletes_a_part_that_tasks_share(
    logtx_memory_cluster: Cluster, strict: bool
) -> None:
    topic = Topic(logtx_memory_cluster)
    topic.commit(20)
    logtx_memory_cluster.log.delete_records(topic.name, 0, 5)
    large = Large(b"x" * 16, 1, (BranchRange(0, 0, 19, 20),))
    servers = {"bootstrap.servers": logtx_memory_cluster.bootstrap_servers}
    config = ReadConfig(kafka=servers, fail_on_data_loss=strict)
    reader = RangeReader(
        config, Range(topic.name, 0, Position.at(0), 10, large), logtx_memory_cluster.log
    )
    with pytest.raises(DataLossError, match="run the job or query again"):
        list(reader.shares())
    reader.close()
