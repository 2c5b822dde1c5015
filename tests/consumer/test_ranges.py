"""Ranges of partitions, read by Python and by the C extension: the same records, and columns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Message

from logtx.consumer import columns, fetching
from logtx.consumer.core.headers import by_headers
from logtx.consumer.fetching import NativeFetcher, open_fetcher, open_quickest
from logtx.consumer.range_reader import reading
from logtx.consumer.range_reader.due import PlacedRangeInput, RangePlaces
from logtx.consumer.range_reader.large import Large
from logtx.consumer.range_reader.reading import CONSUMER, Range, RangeReader, ReadConfig, Share
from logtx.consumer.source import OtherQueueError
from logtx.consumer.spill import chunks
from logtx.integration.inspect.sums import sum_up
from logtx.integration.spark.frames import Batches
from logtx.journal.control import TXID_HEADER, BranchRange
from logtx.journal.errors import IntegrityError
from logtx.journal.fetcher import PollingFetcher
from logtx.journal.logs.interface import Log
from logtx.journal.native import loading
from logtx.journal.native.loading import Found
from logtx.journal.position import Position
from logtx.journal.reader import READER_SETTINGS

from .logs import Transactions
from .test_columns import fill, row_of

MakeTopic = Callable[..., str]
Row = dict[str, Any]
WAYS = pytest.mark.parametrize("transport", ["memory", "mock", "native"], indirect=True)
NATIVE = pytest.mark.parametrize("transport", ["native"], indirect=True)


def read(log: Log, part: Range, **settings: Any) -> list[Share]:
    config = ReadConfig(kafka={"bootstrap.servers": log.bootstrap_servers}, **settings)
    with closing(RangeReader(config, part, log)) as reader:
        return list(reader.shares())


def whole(log: Log, topic: str) -> Range:
    return Range(topic, 0, Position.at(0), log.end_offset(topic, 0))


def row_for_spark(message: Message, sequences: Mapping[Any, int]) -> Row:
    """Returns what a batch for Spark should say of a message."""
    row = row_of(message, dict(sequences))
    kind = row.pop("timestamp_type")
    return {**row, "timestampType": kind - 1}


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Returns the rows of a batch for Spark, with timestamps as milliseconds."""
    batch.validate(full=True)
    stamps = batch.column("timestamp").cast("int64").to_pylist()
    rows = batch.to_pylist()
    return [{**row, "timestamp": at // 1000} for row, at in zip(rows, stamps, strict=True)]


def is_light(message: Message) -> bool:
    return hasattr(type(message), "columns")


@pytest.fixture
def topic(make_topic: MakeTopic, transactions: Transactions) -> str:
    """Plain records and transactions, some of them aborted, some open, with headers and without."""
    name = make_topic(partitions=2)
    fill(transactions, [name, make_topic(partitions=2)])
    txid = transactions.begin()
    transactions.write(txid, name, [b"%d" % n for n in range(40)], branch=1, first_sequence=0)
    transactions.mark(txid, name)
    return name


@WAYS
@pytest.mark.parametrize("headers", [False, True])
def test_columns_for_spark_say_what_records_say(
    log: Log,
    topic: str,
    transactions: Transactions,
    headers: bool,
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = read(log, whole(log, topic))
    records = [record for share in shares for record in share.records]
    assert {is_light(record) for record in records} == {transport == "native"}
    expected = [row_for_spark(record, transactions.sequences) for record in records]
    assert len(expected) == 80
    if transport == "native":
        monkeypatch.delattr(columns, "_asked")
    (batch,) = Batches(topic, 0, headers=headers).of(shares)
    if not headers:
        for row in expected:
            del row["headers"]
    assert rows_of(batch) == expected


@WAYS
@pytest.mark.parametrize("fetch_records", [1, 7, 10_000])
def test_ranges_join(
    log: Log, topic: str, fetch_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = [r.offset() for share in read(log, whole(log, topic)) for r in share.records]
    monkeypatch.setattr(reading, "FETCH_RECORDS", fetch_records)
    end = log.end_offset(topic, 0)
    cuts = [0, 1, 13, 14, 60, end]
    parts = [Range(topic, 0, Position.at(start), stop) for start, stop in pairwise(cuts)]
    found = [r.offset() for part in parts for share in read(log, part) for r in share.records]
    assert found == once


def nothing_packed(_: list[Any]) -> Generator[bytes, None, int]:
    yield from ()
    return 0


@WAYS
def test_spilled_records_and_others_share_a_batch(
    log: Log,
    make_topic: MakeTopic,
    transactions: Transactions,
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic()
    txid = transactions.begin()
    transactions.write(txid, topic, [b"%d" % n * 50 for n in range(100)])
    transactions.append(topic, [b"plain"], [("a", b"b")])
    transactions.mark(txid, topic)
    # Memory is looked at before each fetch: what the last one brings is not spilled.
    monkeypatch.setattr(reading, "FETCH_RECORDS", 30)
    # So what was spilled comes back as Messages, as light ones do that can't be packed.
    monkeypatch.setattr(chunks, "_packed", nothing_packed)
    shares = read(log, whole(log, topic), pending_memory_max_bytes=1)
    records = [record for share in shares for record in share.records]
    assert len({is_light(record) for record in records}) == (2 if transport == "native" else 1)
    (batch,) = Batches(topic, 0, headers=True).of(shares)
    expected = [row_for_spark(record, transactions.sequences) for record in records]
    assert rows_of(batch) == expected
    assert len(expected) == 101


@WAYS
def test_a_part_of_a_large_transaction_is_checked(
    log: Log, make_topic: MakeTopic, transactions: Transactions
) -> None:
    topic = make_topic()
    txid = transactions.begin()
    for branch in (1, 2):
        transactions.write(txid, topic, [b"%d" % n for n in range(30)], branch=branch)
    transactions.mark(txid, topic)
    transactions.append(topic, [b"another"])
    branches = transactions.ranges(txid, topic)
    large = Large(txid.to_bytes(), transactions.sequences[txid], branches)
    shares = read(log, Range(topic, 0, Position.at(20), 45, large=large))
    assert [r.offset() for share in shares for r in share.records] == list(range(20, 45))
    wrong = Large(txid.to_bytes(), 1, (*branches, BranchRange(3, 60, 61, 2)))
    with pytest.raises(IntegrityError, match="offset 60 does not hold one of its records"):
        read(log, Range(topic, 0, Position.at(50), 62, large=wrong))


@WAYS
def test_the_sums_of_an_audit(log: Log, topic: str) -> None:
    span = (3, log.end_offset(topic, 0) - 1)
    expected: dict[tuple[bytes, bytes], list[int]] = {}
    for record in every_record(log, topic):
        headers: dict[str, Any] = dict(record.headers() or ())
        if TXID_HEADER in headers and span[0] <= (record.offset() or 0) < span[1]:
            key = headers[TXID_HEADER], headers.get("TxCtl", b"")
            total = expected.setdefault(key, [0, record.offset() or 0, 0, 0])
            is_blank = bool(key[1]) and (record.key(), record.value()) == (None, None)
            total[0], total[2], total[3] = total[0] + 1, record.offset() or 0, total[3] + is_blank
    found = {(g.raw_txid, g.ctl): list(g[4:]) for g in sum_up(log, (topic, 0), span)}
    assert found == expected
    assert len(found) > 20


def every_record(log: Log, topic: str) -> list[Message]:
    """Returns all records of the first partition, aborted ones and markers, too."""
    end, found = log.end_offset(topic, 0), []
    with closing(PollingFetcher(log.consumer(READER_SETTINGS))) as fetcher:
        fetcher.assign(topic, 0, 0)
        while len(found) < end:
            found += fetcher.fetch(100, 5).records
    return found


@NATIVE
def test_a_record_of_another_queue_is_read_again_in_its_place(
    log: Log, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 271, for a reader of ranges."""
    expected = [record.offset() for record in every_record(log, topic)]
    with closing(open_quickest(log.consumer, CONSUMER)) as fetcher:
        assert isinstance(fetcher, NativeFetcher)
        fetcher.assign(topic, 0, 0)
        found, turns, take = [], 0, fetcher._source.read

        def some(limit: int, timeout_s: float) -> Any:
            nonlocal turns
            turns += 1
            if turns in (1, 4, 6):
                take(limit, timeout_s)  # which nobody sees
                raise OtherQueueError
            return take(limit, timeout_s)

        monkeypatch.setattr(fetcher._source, "read", some)
        while len(found) < len(expected):
            found += [record.offset() for record in fetcher.fetch(10, 5).records]
        assert found == expected


@NATIVE
def test_one_fetcher_reads_one_partition_after_another(log: Log, topic: str) -> None:
    with closing(open_quickest(log.consumer, CONSUMER)) as fetcher:
        for partition, start in ((0, 5), (1, 0), (0, 0), (0, 5)):
            fetcher.assign(topic, partition, start)
            end, found, eof = log.end_offset(topic, partition), [], []
            while not eof:
                fetched = fetcher.fetch(1_000, 5)
                found += [(r.partition(), r.offset()) for r in fetched.records]
                eof += [e.offset() for e in fetched.events if _is_end(e)]
                if fetched.records and fetched.runs is not None:
                    assert sum(count for _, count in fetched.runs) == len(fetched.records)
            assert found == [(partition, offset) for offset in range(start, end)]
            assert eof == [end]
            fetcher.unassign()
            assert fetcher.fetch(10, 0.2).records == []


def _is_end(event: Message) -> bool:
    error = event.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


@NATIVE
def test_a_process_that_reads_little_does_without_a_trial(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading.READING, "found", None)
    monkeypatch.setattr(fetching, "_asked_records", 0)
    kinds = []
    for records in (1_000, fetching.TRIAL_PAYS_RECORDS - 1_001, 1, 1):
        with closing(open_fetcher(log.consumer, CONSUMER, records=records)) as fetcher:
            kinds.append(type(fetcher))
    assert kinds == [PollingFetcher, PollingFetcher, NativeFetcher, NativeFetcher]


@NATIVE
def test_without_the_extension_ranges_are_read_in_python(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading.COUNTING, "found", Found(None, "the test goes without"))
    with closing(open_quickest(log.consumer, CONSUMER)) as fetcher:
        assert isinstance(fetcher, PollingFetcher)


def test_a_placed_range_passes_on_what_is_known_of_headers() -> None:
    told: list[Any] = []

    class Buffer:
        def feed(self, records: Any, runs: Any = None) -> None:
            told.append((records, runs))

    records: Any = [Message(topic="t", partition=0, offset=n, headers=[("a", b"")]) for n in (0, 1)]
    runs = [(records[0].headers(), 2)]
    PlacedRangeInput(Buffer(), RangePlaces((0, 1)), set()).feed(records, runs)  # type: ignore[arg-type]
    assert told == [(records, runs)]
    assert [(h, len(list(some))) for h, some in by_headers(records, runs)] == runs
    assert [(h, len(list(some))) for h, some in by_headers(records, None)] == runs
