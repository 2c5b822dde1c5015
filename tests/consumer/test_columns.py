"""Records as Arrow columns: the same as `consume` delivers, in the same order."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message, TopicPartition
from confluent_kafka.error import ConsumeError

from logtx.consumer import columns
from logtx.consumer.consumer import Consumer
from logtx.journal.control import TXCTL_HEADER, TXID_HEADER, BranchRange
from logtx.journal.errors import ConfigError, IntegrityError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.sidecar import sidecar_of
from logtx.journal.txid import TxId

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more
from .places import Places

MakeTopic = Callable[..., str]
ISOLATIONS = ["read_committed", "serializable", "read_uncommitted"]
Row = dict[str, Any]


@pytest.fixture
def topics(make_topic: MakeTopic) -> list[str]:
    """Two topics of two partitions."""
    return [make_topic(partitions=2), make_topic(partitions=2)]


def fill(written: Transactions, topics: Sequence[str]) -> None:
    """Writes plain records and transactions, with and without keys, values and headers."""
    for number in range(24):
        topic, partition = topics[number % 2], number // 2 % 2
        values = [b"%d-%d" % (number, i) for i in range(3)]
        more = None if number % 3 else [("a", b"%d" % number), ("a", None), ("\N{SNOWMAN}", b"")]
        written.append(topic, [b"", None, b"p" * number], more, partition, key=b"k" * (number % 4))
        written.append(topic, [b"p"], more, partition)
        txid = written.begin()
        written.write(txid, topic, values, partition)
        headers: Any = [(TXID_HEADER, txid.to_bytes()), *(more or ())]
        offsets = written.append(topic, [b"with more"], headers, partition, key=b"")
        written._written[txid, topic, partition][0] += offsets
        if number % 7:
            written.mark(txid, topic, partition, commit=number % 5 != 0)


def assign(consumer: Consumer, topics: Sequence[str]) -> Consumer:
    consumer.assign([TopicPartition(topic, number, 0) for topic in topics for number in range(2)])
    return consumer


def row_of(message: Message, sequences: dict[TxId, int]) -> Row:
    """Returns what the columns should say of a message."""
    kind, stamp_ms = message.timestamp()
    headers: Any = message.headers() or []
    raw = dict(headers).get(TXID_HEADER)
    txid = None if raw is None else TxId.from_bytes(raw)
    rest = [{"key": k, "value": v} for k, v in headers if k not in (TXID_HEADER, TXCTL_HEADER)]
    return {
        "key": message.key(),
        "value": message.value(),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": None if kind == TIMESTAMP_NOT_AVAILABLE else stamp_ms,
        "timestamp_type": kind,
        "headers": rest or None,
        "txid": None if txid is None else str(txid),
        "commit_sequence": None if txid is None else sequences.get(txid),
    }


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Returns the rows of a batch, with timestamps as numbers."""
    assert batch.schema == columns.SCHEMA
    batch.validate(full=True)
    stamps = batch.column("timestamp").cast("int64").to_pylist()
    return [{**row, "timestamp": at} for row, at in zip(batch.to_pylist(), stamps, strict=True)]


def read_rows(consumer: Consumer, count: int, at_a_time: int = 1000) -> list[Row]:
    """Returns so many rows."""
    found: list[Row] = []
    deadline_s = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"got {len(found)} of {count}"
        found += rows_of(consumer.consume_arrow(min(at_a_time, count - len(found)), 0.2))
    return found


def read_messages(consumer: Consumer) -> list[Message]:
    """Returns all messages."""
    found = consumer.consume(1000, 20)
    while more := consumer.consume(1000, 0.5):
        found += more
    return found


def by_partition(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """Returns the rows of each partition in order: between partitions there is none."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["topic"], row["partition"]), []).append(row)
    return found


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("at_a_time", [5, 1000])
def test_columns_say_what_messages_say(
    isolation: str,
    at_a_time: int,
    topics: list[str],
    transactions: Transactions,
    make_consumer: MakeConsumer,
) -> None:
    fill(transactions, topics)
    known = {} if isolation == "read_uncommitted" else transactions.sequences
    one, other = (assign(make_consumer(isolation_level=isolation), topics) for _ in range(2))
    expected = [row_of(message, known) for message in read_messages(one)]
    assert len(expected) > 100
    found = read_rows(other, len(expected), at_a_time)
    assert by_partition(found) == by_partition(expected)
    assert nothing_more(other)
    partitions = other.assignment()
    assert other.position(partitions) == one.position(partitions)


def test_columns_come_in_serial_order(memory_log: MemoryLog) -> None:
    written = Transactions(memory_log)
    written.with_journal()
    topics = ["t", "u"]
    for topic in topics:
        memory_log.create_topic(topic, partitions=2)
    for number in range(20):
        txid = written.begin()
        for topic in topics:
            written.write(txid, topic, [b"%d" % number] * 3, number % 2)
        written.decide(txid)
        for topic in reversed(topics):
            written.mark(txid, topic, number % 2)
        written.finish(txid)
    found: list[list[Row]] = []
    for at_a_time in (4, 1000):
        config = {"group.id": f"g{at_a_time}", "isolation.level": "serializable"}
        with Consumer(config, log=memory_log) as consumer:
            found.append(read_rows(assign(consumer, topics), 120, at_a_time))
    with Consumer({"group.id": "g", "isolation.level": "serializable"}, log=memory_log) as consumer:
        messages = read_messages(assign(consumer, topics))
    expected = [row_of(message, written.sequences) for message in messages]
    assert found == [expected, expected]
    order = [row["commit_sequence"] for row in expected]
    assert order == sorted(order)
    assert None not in order


def test_a_batch_without_rows_comes_when_nothing_came(
    make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    consumer = make_consumer()
    consumer.assign([TopicPartition(make_topic(), 0, 0)])
    for batch in (consumer.consume_arrow(10, 0.1), consumer.consume_arrow(0)):
        assert rows_of(batch) == []
        assert not batch
    for number in (-1, 1_000_001):
        with pytest.raises(ValueError, match="num_messages"):
            consumer.consume_arrow(number)
    consumer.close()
    with pytest.raises(RuntimeError, match="closed"):
        consumer.consume_arrow(0)


def test_positions_are_those_of_messages(
    make_topic: MakeTopic, transactions: Transactions, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    transactions.transaction(topic, [b"%d" % number for number in range(10)])
    settings: Any = {"group_id": f"g-{topic}", "enable_auto_commit": False}
    for first in (0, 3, 6, 9):
        consumer = make_consumer(**settings)
        consumer.assign([TopicPartition(topic, 0)])
        found = read_rows(consumer, 3 if first < 9 else 1)
        assert [row["value"] for row in found] == [b"%d" % n for n in range(first, 10)][:3]
        consumer.commit(asynchronous=False)
        consumer.close()


# ---- events --------------------------------------------------------------------------------------


def raised_by(consumer: Consumer) -> ConsumeError:
    """Returns the event that the next call raises."""
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        try:
            assert consumer.consume_arrow(10, 0.2).num_rows == 0
        except ConsumeError as error:
            return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("first", ["record", "event"])
def test_an_event_is_raised_once_and_reading_goes_on_behind_it(
    first: str, make_topic: MakeTopic, transactions: Transactions, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    before = [b"a", b"b"] if first == "record" else []
    transactions.append(topic, before)
    for value in (b"bad", b"worse"):
        transactions.append(topic, [value], [(TXID_HEADER, b"short")])
    transactions.append(topic, [b"c"])
    settings: Any = {"group_id": f"g-{topic}", "enable_auto_commit": False}
    consumer = make_consumer(**settings)
    consumer.assign([TopicPartition(topic, 0)])
    found: list[bytes] = []
    raised: list[ConsumeError] = []
    deadline_s = time.monotonic() + 20
    while len(found) + len(raised) < len(before) + 3:
        assert time.monotonic() < deadline_s
        try:
            found += [row["value"] for row in rows_of(consumer.consume_arrow(10, 0.5))]
        except ConsumeError as error:
            raised.append(error)
    assert found == [*before, b"c"]
    assert [e.kafka_message and e.kafka_message.value() for e in raised] == [b"bad", b"worse"]
    assert all(e.code == KafkaError._BAD_MSG and "TxId" in str(e) for e in raised)
    assert nothing_more(consumer)
    consumer.commit(asynchronous=False)
    consumer.close()
    again = make_consumer(**settings)
    again.assign([TopicPartition(topic, 0)])
    assert nothing_more(again)


@pytest.mark.parametrize("transport", ["memory", "mock", "native"], indirect=True)
def test_the_end_of_a_partition_is_raised_where_it_is_asked_for(
    make_topic: MakeTopic, transactions: Transactions, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    transactions.append(topic, [b"a", b"b"])
    consumer = make_consumer(enable_partition_eof=True)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(read_rows(consumer, 2)) == 2
    end = raised_by(consumer)
    assert end.code == KafkaError._PARTITION_EOF
    assert end.kafka_message is not None
    assert end.kafka_message.offset() == 2
    assert nothing_more(consumer)


def test_what_is_not_whole_is_an_error_as_of_consume(
    make_topic: MakeTopic, transactions: Transactions, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    txid = transactions.begin()
    transactions.write(txid, topic, [b"a", b"b", b"c"])
    transactions.append(topic, [b"plain"])
    transactions.mark(txid, topic, ranges=(BranchRange(0, 0, 3, 4),))
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [row["value"] for row in read_rows(consumer, 1)] == [b"plain"]
    with pytest.raises(IntegrityError):
        consumer.consume_arrow(10, 20)


# ---- without pyarrow, and too much ---------------------------------------------------------------


def test_without_pyarrow_an_error_says_what_to_install(
    make_topic: MakeTopic,
    transactions: Transactions,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic()
    transactions.append(topic, [b"a"])
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pyarrow", None)
        patched.delitem(sys.modules, "logtx.consumer.columns")
        patched.delattr("logtx.consumer.columns")
        with pytest.raises(ConfigError, match=r"pip install 'logtx\[arrow\]'"):
            consumer.consume_arrow(10, 20)
    assert [row["value"] for row in read_rows(consumer, 1)] == [b"a"]


@pytest.mark.parametrize("part", ["key", "value"])
def test_more_than_a_column_holds_comes_in_smaller_batches(
    part: str,
    make_topic: MakeTopic,
    transactions: Transactions,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(columns, "BYTES_MAX", 100)
    topic = make_topic()
    txid = transactions.begin()
    key, value = (b"x" * 40, b"") if part == "key" else (None, b"x" * 40)
    headers: Any = [(TXID_HEADER, txid.to_bytes())]
    offsets = transactions.append(topic, [value] * 4, headers, key=key)
    stated = BranchRange(0, offsets[0], offsets[-1], len(offsets))
    transactions.mark(txid, topic, ranges=(stated,))
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    for _ in range(2):
        with pytest.raises(ConfigError, match="smaller num_messages"):
            consumer.consume_arrow(10, 20)
    found = read_rows(consumer, 4, 2)
    assert [row["offset"] for row in found] == [0, 1, 2, 3]
    assert nothing_more(consumer)


@pytest.mark.parametrize("transport", ["native"], indirect=True)
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_extension_makes_the_columns_of_what_it_read(
    isolation: str,
    topics: list[str],
    transactions: Transactions,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(transactions, topics)
    monkeypatch.delattr(columns, "_asked")
    assert read_rows(assign(make_consumer(isolation_level=isolation), topics), 100)


# ---- where records come another way --------------------------------------------------------------


def test_spilled_records_come_as_columns(
    make_topic: MakeTopic, transactions: Transactions, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    values = [b"%d" % number * 100 for number in range(500)]
    txid = transactions.begin()
    transactions.write(txid, topic, values)
    consumer = make_consumer(pending_memory_max_bytes=1_000)
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline_s = time.monotonic() + 20
    while not consumer.counters.spilled_bytes:
        assert time.monotonic() < deadline_s
        assert not consumer.consume_arrow(10, 0.1)
    transactions.mark(txid, topic)
    found = read_rows(consumer, 500)
    assert [row["value"] for row in found] == values
    assert {row["txid"] for row in found} == {str(txid)}
    assert {row["commit_sequence"] for row in found} == {transactions.sequences[txid]}


def test_placed_records_and_those_of_sidecars_come_as_columns(memory_log: MemoryLog) -> None:
    written = Transactions(memory_log)
    written.with_journal()
    for topic in ("t", "u", sidecar_of("u")):
        memory_log.create_topic(topic, partitions=1)
    places = Places(written, "t")
    places.switch(Phase.METADATA)
    placed = places.transaction([b"a", b"b"])
    written.append("t", [b"plain"])
    aside = written.begin()
    written.write(aside, sidecar_of("u"), [b"c", b"d"])
    written.mark(aside, "u")
    both: list[Any] = []
    for read in (lambda one: read_rows(one, 5), read_messages):
        config = {"group.id": f"g{len(both)}", "auto.offset.reset": "earliest"}
        with Consumer(config, log=memory_log) as consumer:
            consumer.assign([TopicPartition("t", 0), TopicPartition("u", 0)])
            both.append(read(consumer))
    found, messages = both
    expected = [row_of(message, written.sequences) for message in messages]
    assert by_partition(found) == by_partition(expected)
    assert {row["txid"] for row in found} == {None, str(aside), str(placed)}
    assert [row["commit_sequence"] is None for row in found].count(True) == 1
