"""Topics in metadata mode with sidecars: what is placed there is read as what a pointer names.

What is read is compared with a naive merge of the partition's logs and the home's journal.
"""

from __future__ import annotations

import json
import random
from typing import Any, cast

import pytest
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer.core.home_view import Due
from logtx.consumer.range_reader.due import RangePlaces
from logtx.consumer.range_reader.large import Large
from logtx.consumer.range_reader.places import PlacesAhead
from logtx.consumer.range_reader.reading import Range, RangeReader, ReadConfig
from logtx.consumer.range_reader.spot import Spot
from logtx.integration.spark import compacting
from logtx.integration.spark.planning import Planner, SourceOptions
from logtx.integration.spark.source import BatchSource, Part
from logtx.journal.control import TXID_HEADER
from logtx.journal.errors import LogtxError, TornTransactionError
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.position import Journal, Passed, Position
from logtx.journal.sidecar import to_delivered
from logtx.journal.spans import MessageId
from logtx.journal.txid import TxId

from ...consumer.logs import Transactions
from ...consumer.places import HOME, SIDE, Places, expected, log_with_sidecar
from .test_places import Reading, Story, batch, follow, plain, read

__all__ = ["log_with_sidecar"]

KEY = "t", 0


@pytest.fixture
def places(log: MemoryLog) -> Places:
    written = Transactions(log)
    written.with_journal()
    return Places(written, "t")


def aside(places: Places, *values: bytes, main: tuple[bytes, ...] = ()) -> TxId:
    """Decides and places a transaction that writes to the sidecar, and perhaps to the topic."""
    txid = places.written.begin()
    if main:
        places.written.write(txid, "t", main)
    places.written.write(txid, SIDE, values)
    places.decide(txid)
    places.place()
    return txid


def options_of(log: MemoryLog, **options: str) -> SourceOptions:
    named = {"kafka.bootstrap.servers": log.bootstrap_servers, "subscribe": "t", **options}
    return SourceOptions.parse(named)


def ranges_of(options: SourceOptions) -> list[Range]:
    return [part.range for part in BatchSource(options).partitions() if isinstance(part, Part)]


@pytest.mark.parametrize("seed", range(12))
def test_random_histories(places: Places, log: MemoryLog, seed: int) -> None:
    follow(Story(places, seed, ("t", SIDE, SIDE)), log, random.Random(-seed))


def test_in_a_sealed_partition_each_commit_is_a_micro_batch(places: Places, log: MemoryLog) -> None:
    places.switch(Phase.METADATA)
    query = Reading(log, startingOffsets="earliest", maxRecordsPerTrigger="1")
    query.on()
    end = log.end_offset("t", 0)
    for number in range(3):
        aside(places, b"%d" % number, b"x")
        assert query.trigger() == [b"%d" % number, b"x"]
        assert query.trigger() == [], "nothing comes twice"
        query.restart()
        assert query.repeat() == [b"%d" % number, b"x"]
    assert query.stands().o2 == end == log.end_offset("t", 0)


def test_it_begins_within_one(places: Places, log: MemoryLog) -> None:
    """A consumer's place says how many of its records were delivered, in the topic and aside."""
    places.switch(Phase.METADATA)
    txid = aside(places, b"2", b"3", b"4", main=(b"0", b"1"))
    aside(places, b"5")
    planner = Planner(log, options_of(log))
    end, sequence = log.end_offset("t", 0), places.written.sequences[txid]
    for taken in range(6):
        start = {KEY: Spot(end, passed=Passed(HOME, sequence - 1, taken))}
        found = planner.ranges(start, {KEY: end}, planner.placed(start, planner.settled_end(start)))
        parts = [Part(each, options_of(log).read, False) for each in found]
        assert read(log, parts) == [b"%d" % number for number in range(taken, 6)]
    planner.close()


def test_what_lies_in_the_topic_too_is_for_one_task(
    places: Places, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that shared what stands together in the topic would leave out the rest (trap 129)."""
    for module in ("planning", "parts"):
        monkeypatch.setattr(f"logtx.integration.spark.{module}.PART_RECORDS", 10)
    places.switch(Phase.METADATA)
    aside(places, b"a", b"b")
    aside(places, b"c", b"d", main=tuple(b"%d" % number for number in range(100)))
    plain(places, b"p")
    options = options_of(log, minPartitions="5")
    assert [each.large for each in ranges_of(options)] == [None] * 5
    assert read(log, BatchSource(options).partitions()) == expected(log, "t")
    assert len(expected(log, "t")) == 105

    def mutant(home: Journal, due: Due) -> Large | None:
        found = Large(TxId(*home, due.begin).to_bytes(), due.sequence, due.branches, is_placed=True)
        return found if due.branches else None

    monkeypatch.setattr(Large, "placed", mutant)
    assert b"c" not in read(log, BatchSource(options).partitions())


def test_a_batch_of_commits(places: Places, log: MemoryLog) -> None:
    places.switch(Phase.METADATA)
    txids = [aside(places, b"%d" % number) for number in range(4)]
    low, high = (places.written.sequences[txids[number]] for number in (1, 2))
    named = {"startingCommitSequence": str(low), "endingCommitSequence": str(high)}
    assert batch(log, **named, **{"transaction.group": "g"}) == [b"1", b"2"]


def test_its_records_say_where_they_lie(places: Places, log: MemoryLog) -> None:
    places.switch(Phase.METADATA)
    txid = aside(places, b"1", b"2", main=(b"0",))
    options = options_of(log)
    (part,) = ranges_of(options)
    reader = RangeReader(options.read, part, log)
    shares = list(reader.shares())
    reader.close()
    sequence = places.written.sequences[txid]
    assert {(s.txid, s.commit_sequence) for s in shares} == {(txid.to_bytes(), sequence)}
    found = [(r.offset(), r.topic(), r.value()) for s in shares for r in s.records]
    assert found == [(1, "t", b"0"), (to_delivered(0), "t", b"1"), (to_delivered(1), "t", b"2")]
    assert shares[0].first == MessageId(places.end(), sequence, 0)
    assert [share.side for share in shares] == [None], "its first record lies in the topic"


# ---- uncommitted records ------------------------------------------------------------------------

UNCOMMITTED = {"isolation.level": "read_uncommitted"}


@pytest.mark.parametrize("tasks", [1, 3])
def test_uncommitted_records_have_what_is_placed_in_the_sidecar(
    places: Places, log: MemoryLog, tasks: int
) -> None:
    places.switch(Phase.METADATA)
    aside(places, b"a1", b"a2")
    plain(places, b"p1")
    hanging = places.written.begin()
    places.written.write(hanging, "t", [b"h1"])
    places.written.write(hanging, SIDE, [b"never"])
    aside(places, b"b2", b"b3", main=(b"b1",))
    plain(places, b"p2")
    aside(places, b"c1")
    found = batch(log, minPartitions=str(tasks), **UNCOMMITTED)
    assert found == [b"a1", b"a2", b"p1", b"h1", b"b1", b"b2", b"b3", b"p2", b"c1"]


def test_a_query_of_uncommitted_records_goes_on_where_it_was(
    places: Places, log: MemoryLog
) -> None:
    places.switch(Phase.METADATA)
    query = Reading(log, startingOffsets="earliest", **UNCOMMITTED)
    query.on()
    for number in range(3):
        aside(places, b"%d" % number, b"x", main=(b"m",))
        assert query.trigger() == [b"m", b"%d" % number, b"x"]
        aside(places, b"y%d" % number)
        assert query.trigger() == [b"y%d" % number]
        assert query.trigger() == [], "nothing comes twice"
        query.restart()
        assert query.repeat() == [b"y%d" % number]


def test_a_task_of_uncommitted_records_comes_to_a_mode_record(
    places: Places, log: MemoryLog
) -> None:
    plain(places, b"p1")
    options = options_of(log, **UNCOMMITTED)
    places.switch(Phase.METADATA, publish=False)
    aside(places, b"a1")
    plain(places, b"p2")
    planned = BatchSource(options).partitions()
    places.publish(Phase.METADATA, {0: 1})
    assert read(log, planned) == [b"p1", b"a1", b"p2"]


def test_uncommitted_records_without_a_sidecar_ask_no_home(
    places: Places, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.delete_topic(SIDE)
    places.switch(Phase.METADATA)
    places.transaction([b"a"])
    places.switch(Phase.MARKERS)
    plain(places, b"p1")
    monkeypatch.setattr(PlacesAhead, "reach", lambda *_, **__: pytest.fail("asked"))
    assert batch(log, **UNCOMMITTED) == [b"a", b"p1"]


# ---- exports ------------------------------------------------------------------------------------


class Exported:
    """A log in memory whose producer and group of places are those of Kafka's own transactions."""

    def __init__(self, log: MemoryLog) -> None:
        self.log, self.values, self._open = log, list[bytes | None](), list[bytes | None]()
        self.places: dict[int, KafkaPartition] = {}
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def producer(self, _: object) -> Exported:
        return self

    def consumer(self, config: Any) -> Any:
        return self if config["group.id"].startswith("logtx-export") else self.log.consumer(config)

    def init_transactions(self, _: float) -> None: ...

    def begin_transaction(self) -> None:
        self._open = []

    def produce(self, _topic: str, value: bytes | None, *_: object, **__: object) -> None:
        self._open.append(value)

    def consumer_group_metadata(self) -> None: ...

    def send_offsets_to_transaction(self, offsets: list[KafkaPartition], *_: object) -> None:
        self.places |= {each.partition: each for each in offsets}

    def commit_transaction(self, _: float) -> None:
        self.values += self._open
        self.commits += 1

    def committed(self, asked: list[KafkaPartition], _: float) -> list[KafkaPartition]:
        return [self.places.get(each.partition, each) for each in asked]

    def close(self) -> None: ...


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_an_export_to_a_topic_goes_on_within_one(
    places: Places, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(compacting, "TRANSACTION_RECORDS", at_once)
    log.create_topic("latest", partitions=1, settings={"cleanup.policy": "compact"})
    exported = Exported(log)

    def run() -> None:
        source, target = log.topic_info("t"), log.topic_info("latest")
        made = compacting._Run(
            cast(Log, exported), {"bootstrap.servers": log.bootstrap_servers}, source, target
        )
        made.export(restart=False)
        made.close()

    def keyed(txid: TxId, topic: str, *values: bytes) -> None:
        control = [(TXID_HEADER, txid.to_bytes())]
        offsets = [places.written.append(topic, [v], control, key=v)[0] for v in values]
        places.written._written.setdefault((txid, topic, 0), {})[0] = offsets

    places.switch(Phase.METADATA)
    for number in range(3):
        txid = places.written.begin()
        keyed(txid, "t", b"%d-0" % number)
        keyed(txid, SIDE, b"%d-1" % number, b"%d-2" % number, b"%d-3" % number)
        places.decide(txid)
        places.place()
        if not number:
            run()
    [before] = exported.places.values()
    run()
    run()
    assert exported.values == expected(log, "t")
    assert len(exported.values) == 12
    # One that was killed goes on behind what it wrote, within a transaction too.
    for written in range(9):
        metadata = json.dumps({**json.loads(before.metadata or ""), "records": written})
        exported.places[0] = KafkaPartition("t", 0, before.offset, metadata=metadata)
        exported.values.clear()
        run()
        assert exported.values == expected(log, "t")[4 + written :]


# ---- what is gone -------------------------------------------------------------------------------


def read_dues(
    log: MemoryLog, dues: RangePlaces, end: int, *, fail_on_data_loss: bool
) -> list[bytes | None]:
    """Reads a range that carries these places, from 1 on."""
    kafka = {"bootstrap.servers": log.bootstrap_servers}
    config = ReadConfig(kafka=kafka, fail_on_data_loss=fail_on_data_loss)
    reader = RangeReader(config, Range("t", 0, Position.at(1), end, places=dues), log)
    try:
        return [record.value() for share in reader.shares() for record in share.records]
    finally:
        reader.close()


def dues_of(log: MemoryLog) -> RangePlaces:
    [found] = [each.places for each in ranges_of(options_of(log))]
    assert found is not None
    return found


def test_trap_230_what_is_placed_below_the_logs_start_is_gone_as_a_marker_is(
    places: Places, log: MemoryLog
) -> None:
    """Its sidecar was trimmed then. The journal still tells of it."""
    places.switch(Phase.METADATA)
    aside(places, b"a1", b"a2")
    plain(places, b"p1", b"p2")
    aside(places, b"b1", main=(b"b0",))
    plain(places, b"p3")
    dues, end = dues_of(log), places.end()
    log.delete_records(SIDE, 0, 2)
    with pytest.raises(TornTransactionError, match="_txnlog"):
        read_dues(log, dues, end, fail_on_data_loss=False)
    log.delete_records("t", 0, 2)
    assert read_dues(log, dues, end, fail_on_data_loss=False) == [b"p2", b"b0", b"b1", b"p3"]
    with pytest.raises(LogtxError):
        read_dues(log, dues, end, fail_on_data_loss=True)
    # What lies in the topic is gone where the log starts at its place (trap 174).
    log.delete_records("t", 0, dues.dues[1].place)
    assert read_dues(log, dues, end, fail_on_data_loss=False) == [b"p3"]
