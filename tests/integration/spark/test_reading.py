"""Ranges of a partition, read without Spark: together they are what a consumer gets, once each."""

from __future__ import annotations

import random
import uuid
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message

from logtx.consumer.range_reader import reading
from logtx.consumer.range_reader.errors import DataLossError
from logtx.consumer.range_reader.reading import Range, RangeReader, ReadConfig, Share
from logtx.consumer.range_reader.spot import Spot, Vector
from logtx.integration.spark.planning import Planner, SourceOptions
from logtx.integration.testing import Cluster, EmbeddedCoordinators
from logtx.journal.errors import (
    BrokerError,
    ConfigError,
    OffsetsPendingError,
    TornTransactionError,
    UnknownTopicError,
)
from logtx.journal.logs.memory.broker import SCHEME
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.reader import journal_partition_of
from logtx.journal.records.types import OffsetStep
from logtx.journal.txid import TxId

from ...waiting import eventually


def read(cluster: Cluster, part: Range, **settings: object) -> list[Share]:
    config = ReadConfig(kafka={"bootstrap.servers": cluster.bootstrap_servers}, **settings)
    reader = RangeReader(config, part, cluster.log)
    try:
        return list(reader.shares())
    finally:
        reader.close()


def whole(cluster: Cluster, topic: str) -> Range:
    return Range(topic, 0, Position.at(0), cluster.log.end_offset(topic, 0))


def values(shares: list[Share]) -> list[bytes | None]:
    return [record.value() for share in shares for record in share.records]


@pytest.fixture
def busy_topic(logtx_memory_cluster: Cluster) -> str:
    """Interleaved transactions, committed and aborted, plain and late records."""
    cluster, chance = logtx_memory_cluster, random.Random(6)
    topic = cluster.topic(1)
    producer = cluster.producer()
    open_now = [producer.begin_transaction() for _ in range(3)]
    ended = []
    for number in range(300):
        if chance.random() < 0.1:
            producer._engine.sender.send(topic, b"plain-%d" % number, None, 0, None, None, 0, None)
            continue
        txn = chance.choice(open_now)
        txn.produce(topic, b"%d" % number, partition=0)
        if chance.random() < 0.1:
            open_now.remove(txn)
            (txn.abort if chance.random() < 0.3 else txn.commit)()
            ended.append(txn.txid)
            open_now.append(producer.begin_transaction())
    producer.flush(10)
    cluster.late_record(ended[0], topic)
    for txn in open_now[:2]:
        txn.commit()
    end = cluster.log.end_offset
    eventually(lambda: end(topic, 0) >= 301 + len(ended) + 2)
    return topic


def as_consumed(cluster: Cluster, topic: str) -> list[bytes | None]:
    consumer = cluster.consumer(topic)
    found: list[Message] = []
    while batch := consumer.consume(1_000, 0.5):
        found += batch
    return [m.value() for m in found]


def test_a_range_is_what_a_consumer_gets(logtx_memory_cluster: Cluster, busy_topic: str) -> None:
    shares = read(logtx_memory_cluster, whole(logtx_memory_cluster, busy_topic))
    assert values(shares) == as_consumed(logtx_memory_cluster, busy_topic)
    for share in shares:
        assert (share.txid is None) == (share.commit_sequence is None)
        for record in share.records:
            assert dict(record.headers() or ()).get("TxId") == share.txid


@pytest.mark.parametrize("seed", range(5))
def test_ranges_join_and_split_nothing(
    logtx_memory_cluster: Cluster, busy_topic: str, seed: int
) -> None:
    cluster, chance = logtx_memory_cluster, random.Random(seed)
    end = whole(cluster, busy_topic).end
    cuts = sorted({0, end, *(chance.randrange(end) for _ in range(12))})
    parts = [
        read(cluster, Range(busy_topic, 0, Position.at(start), stop))
        for start, stop in pairwise(cuts)
    ]
    assert [v for part in parts for v in values(part)] == as_consumed(cluster, busy_topic)
    homes: dict[bytes, set[int]] = {}
    for number, part in enumerate(parts):
        for share in part:
            if share.txid is not None:
                homes.setdefault(share.txid, set()).add(number)
    assert all(len(places) == 1 for places in homes.values())


def test_it_begins_within_a_transaction(logtx_memory_cluster: Cluster) -> None:
    topic = logtx_memory_cluster.topic(1)
    with logtx_memory_cluster.producer().begin_transaction() as txn:
        for number in range(5):
            txn.produce(topic, b"%d" % number, partition=0)
    eventually(lambda: logtx_memory_cluster.log.end_offset(topic, 0) == 6)
    for o1 in (0, 5):
        start = Position(o1=o1, o2=5, o3=2)
        assert values(read(logtx_memory_cluster, Range(topic, 0, start, 6))) == [b"2", b"3", b"4"]


def test_uncommitted_records_have_no_sequence(
    logtx_memory_cluster: Cluster, busy_topic: str
) -> None:
    shares = read(logtx_memory_cluster, whole(logtx_memory_cluster, busy_topic), committed=False)
    assert len(values(shares)) == 301
    assert all(share.commit_sequence is None for share in shares)


def test_a_range_of_commit_sequences(logtx_memory_cluster: Cluster, busy_topic: str) -> None:
    cluster = logtx_memory_cluster
    everything = read(cluster, whole(cluster, busy_topic))
    sequences = sorted({s.commit_sequence for s in everything if s.commit_sequence is not None})
    low, high = sequences[2], sequences[-2]
    partition = next(TxId.from_bytes(s.txid).partition for s in everything if s.txid is not None)
    wanted = [
        s for s in everything if s.commit_sequence is not None and low <= s.commit_sequence <= high
    ]
    found = read(cluster, whole(cluster, busy_topic), sequences=(partition, low - 1, high))
    assert values(found) == values(wanted)
    assert values(wanted)


def test_s19_a_group_that_shares_the_journal_partition_comes_too() -> None:
    # The two have one serial order. docs/spark.md says so, of the source and of the export.
    servers, count = f"{SCHEME}{uuid.uuid4().hex}", 2
    coordinators = EmbeddedCoordinators(servers, 1, journal_partitions=count)
    cluster = Cluster(MemoryLog.named(servers), coordinators, delete_topics=False)
    try:
        names = [f"group-{number}" for number in range(20)]
        homes = {name: journal_partition_of(name, count) for name in names}
        mine, sharing = [name for name in names if homes[name] == 0][:2]
        other = next(name for name in names if homes[name] == 1)
        topic = cluster.topic(1)
        for number, group in enumerate((mine, sharing, other)):
            with cluster.producer(transaction_group=group).begin_transaction() as txn:
                txn.produce(topic, group.encode(), partition=0)
            eventually(lambda end=2 * number + 2: cluster.log.end_offset(topic, 0) == end)
        asked = {"startingcommitsequence": "0", "transaction.group": mine}
        bounds = plan(cluster, topic, **asked).sequences()
        found = values(read(cluster, whole(cluster, topic), sequences=bounds))
    finally:
        cluster.close()
    assert found == [mine.encode(), sharing.encode()]


@pytest.mark.parametrize("by_option", [False, True], ids=["Spark's own", "pending.dir"])
def test_s17_what_is_too_large_goes_where_the_executor_has_room(
    logtx_memory_cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    by_option: bool,
) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    producer = cluster.producer()
    with producer.begin_transaction() as pending:
        for number in range(50):
            pending.produce(topic, b"%d" % number, partition=0)
        with producer.begin_transaction() as txn:
            txn.produce(topic, b"earlier", partition=0)
        eventually(lambda: cluster.log.end_offset(topic, 0) == 52)
    eventually(lambda: cluster.log.end_offset(topic, 0) == 53)
    sparks, own, system = (tmp_path / name for name in ("local", "own", "system"))
    for directory in (sparks, own, system):
        directory.mkdir()
    monkeypatch.setattr(reading, "FETCH_RECORDS", 4)  # memory is looked at before each fetch
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(sparks))
    monkeypatch.setattr("tempfile.tempdir", str(system))
    given = {"pending.memory.max.bytes": "0"} | ({"pending.dir": str(own)} if by_option else {})
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, **given}
    reader = RangeReader(SourceOptions.parse(options).read, whole(cluster, topic), cluster.log)
    try:
        shares = reader.shares()
        assert values([next(shares)]) == [b"earlier"]
        used = {directory.name for directory in (sparks, own, system) if any(directory.iterdir())}
        assert len(values(list(shares))) == 50
    finally:
        reader.close()
    assert used == {"own" if by_option else "local"}


@pytest.mark.parametrize("gives", ["nothing", "errors", "starts"])
def test_trap_228_a_side_read_that_gives_nothing_is_not_awaited_for_ever(
    logtx_memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, gives: str
) -> None:
    cluster = logtx_memory_cluster
    topic = cluster.topic(1)
    with cluster.producer() as producer, producer.begin_transaction() as txn:
        for number in range(10):
            txn.produce(topic, b"%d" % number, partition=0)
    eventually(lambda: cluster.log.end_offset(topic, 0) == 11)
    codes = {"errors": KafkaError.UNKNOWN_TOPIC_OR_PART, "starts": KafkaError._AUTO_OFFSET_RESET}
    told = None
    if gives in codes:
        told = Message(topic=topic, partition=0, error=KafkaError(codes[gives]))

    class Silent:
        """The consumer of side reads, whose topic was deleted behind the questions for its ends."""

        assign = unassign = close = staticmethod(lambda *_: None)
        poll = staticmethod(lambda _: told)
        consume = staticmethod(lambda *_: [])

    monkeypatch.setattr(reading, "STALL_S", 0.3)
    config = ReadConfig(kafka={"bootstrap.servers": cluster.bootstrap_servers})
    reader = RangeReader(config, Range(topic, 0, Position.at(5), 11), cluster.log)
    reader._side_reader._consumer = cast(Any, Silent())
    try:
        with pytest.raises(BrokerError, match=r"stood at 11 of 11 for 0\.3 s"):
            list(reader.shares())
    finally:
        reader.close()


def test_what_retention_took_is_said(logtx_memory_cluster: Cluster, busy_topic: str) -> None:
    cluster = logtx_memory_cluster
    part = whole(cluster, busy_topic)
    expected = values(read(cluster, Range(busy_topic, 0, Position.at(100), part.end)))
    cluster.log.delete_records(busy_topic, 0, 100)
    with pytest.raises(DataLossError, match="begins at 100 now"):
        read(cluster, part)
    # What ended above is there, except of transactions that began below.
    with pytest.raises(TornTransactionError):
        read(cluster, part, fail_on_data_loss=False)
    left = values(read(cluster, part, fail_on_data_loss=False, torn_skip=True))
    assert left
    assert set(left) < set(expected)


def plan(cluster: Cluster, topic: str, **options: str) -> Planner:
    parsed = SourceOptions.parse(
        {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, **options}
    )
    return Planner(cluster.log, parsed)


def test_where_reading_begins_and_ends(logtx_memory_cluster: Cluster, busy_topic: str) -> None:
    cluster, key = logtx_memory_cluster, (busy_topic, 0)
    end = whole(cluster, busy_topic).end
    at = partial(plan, cluster, busy_topic)

    def start(default: str, **options: str) -> Vector:
        return at(**options).start(default).places

    assert start("earliest")[key].o2 == 0
    assert start("latest")[key].o2 == end
    assert start("earliest", startingoffsets="latest")[key].o2 == end
    assert start("earliest", startingoffsets=f'{{"{busy_topic}": {{"0": 23}}}}')[key].o2 == 23
    assert start("earliest", startingoffsets=f'{{"{busy_topic}": {{"0": -1}}}}')[key].o2 == end
    assert start("latest", startingtimestamp="0")[key].o2 == 0
    assert start("earliest", startingtimestamp=str(2**52))[key].o2 == end
    assert at(endingoffsets=f'{{"{busy_topic}": {{"0": 7}}}}').end() == {key: 7}
    assert at().end() == {key: end}
    ranges = at(minpartitions="4").ranges(start("earliest"), {key: end})
    assert [r.start.o2 for r in ranges] == [0, *(r.end for r in ranges[:-1])]
    assert len(ranges) == 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingoffsets": "first"}, "startingOffsets must be earliest, latest or like"),
        ({"startingoffsets": '{"other": {"0": 1}}'}, "must name exactly the partitions"),
        ({"startingoffsets": "iov"}, "needs option group"),
        ({"startingoffsets": "earliest", "startingtimestamp": "1"}, "not two"),
        ({"isolation.level": "chaos"}, "isolation.level must be one of"),
        ({"startingofsets": "1"}, "startingofsets is no option of the source"),
    ],
)
def test_bad_options_are_said(
    logtx_memory_cluster: Cluster, options: dict[str, str], sentence: str
) -> None:
    topic = logtx_memory_cluster.topic(1)
    with pytest.raises(ConfigError, match=sentence):
        plan(logtx_memory_cluster, topic, **options).start("earliest")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingoffsets": "last"}, "^option endingOffsets must be earliest, latest or like"),
        ({"endingoffsets": '{"TOPIC": {"0": 1}}'}, r"^endingOffsets names offset 1 of TOPIC\[0\]"),
        (
            {"endingoffsetsbytimestamp": "noon"},
            "^option endingOffsetsByTimestamp must be milliseconds",
        ),
        ({"startingoffsets": "earliest", "startingtimestamp": "0"}, "one of the options starting"),
        ({"endingoffsets": "latest", "endingtimestamp": "0"}, "one of the options ending"),
    ],
)
def test_s18_a_bad_bound_is_told_by_its_own_name(
    logtx_memory_cluster: Cluster, options: dict[str, str], sentence: str
) -> None:
    topic = logtx_memory_cluster.topic(1)
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(ConfigError, match=sentence.replace("TOPIC", topic)):
        plan(logtx_memory_cluster, topic, **given).end()


def test_an_unknown_topic_is_said(logtx_memory_cluster: Cluster) -> None:
    with pytest.raises(UnknownTopicError, match="nowhere"):
        plan(logtx_memory_cluster, "nowhere").start("earliest")


def test_a_groups_iov_is_a_bound(logtx_memory_cluster: Cluster) -> None:
    cluster = logtx_memory_cluster
    topic = cluster.topic(2)
    with cluster.producer().begin_transaction() as txn:
        for n in range(10):
            txn.produce(topic, b"%d" % n, partition=0)
    eventually(lambda: cluster.log.end_offset(topic, 0) == 11)
    inner = Position(o1=0, o2=10, o3=4)
    with cluster.producer().begin_transaction() as txn:
        txn.send_offsets("readers", [OffsetStep(topic, 0, None, inner)])
    start = plan(cluster, topic, startingiov="readers").start("latest").places
    assert start == {(topic, 0): Spot(10, 4, 0), (topic, 1): Spot(0, fresh=True)}
    assert plan(cluster, topic, group="readers").start("latest").places == start
    iov = {"startingoffsets": "iov", "group": "readers"}
    assert plan(cluster, topic, **iov).start("latest").places == start
    assert plan(cluster, topic, endingiov="readers").end() == {(topic, 0): 10, (topic, 1): 0}
    (part,) = plan(cluster, topic).ranges(start, {(topic, 0): 11, (topic, 1): 0})
    assert values(read(cluster, part)) == [b"%d" % n for n in range(4, 10)]
    # One that is open may still move it: not to be guessed.
    holder = cluster.producer().begin_transaction(timeout=60)
    holder.send_offsets("readers", [OffsetStep(topic, 0, inner.place, Position.at(11))])
    holder.branch()
    waiting = {"startingiov": "readers", "coordinator.timeout.ms": "300"}

    def is_refused() -> bool:
        try:
            plan(cluster, topic, **waiting).start("latest")
        except OffsetsPendingError:
            return True
        return False

    eventually(is_refused)  # the offsets are sent in the background
    holder.commit()
    assert plan(cluster, topic, startingiov="readers").start("latest").places[topic, 0] == Spot(11)
