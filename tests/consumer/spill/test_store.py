"""Pending transactions on disk come back equal and in order; a disk that refuses loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, Message, TopicPartition
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from logtx.consumer.consumer import Consumer
from logtx.consumer.core.pending import (
    HEADER_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    TRANSACTION_OVERHEAD_BYTES,
    PendingTransaction,
    PendingTransactionMap,
    Record,
)
from logtx.consumer.spill.chunks import (
    CHUNK_MAX_BYTES,
    CHUNK_MAX_RECORDS,
    decode_chunk,
    encode_chunks,
)
from logtx.consumer.spill.families import Family
from logtx.consumer.spill.store import RocksSpillStore
from logtx.journal.errors import SpillError
from logtx.journal.logs.memory.log import MemoryLog

from ...extension import use_extension
from ..conftest import MakeConsumer
from ..logs import Transactions, nothing_more, read
from .light import light_of

OWNER = ("t", 3)
AsRead = Callable[[list[Message]], list[Record]]


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    memory_log.create_topic("t", partitions=1)
    return memory_log


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksSpillStore]:
    opened = RocksSpillStore(str(tmp_path / "spill"))
    yield opened
    opened.close()


def message(offset: int, **fields: Any) -> Message:
    defaults: dict[str, Any] = {"key": b"k", "value": b"v%d" % offset, "headers": None}
    defaults |= {"timestamp": (TIMESTAMP_CREATE_TIME, 1000 + offset)}
    return Message(topic="t", partition=3, offset=offset, **(defaults | fields))


def records(*messages: Message) -> list[Record]:
    return [cast(Record, m) for m in messages]


def facts(found: Any) -> tuple[Any, ...]:
    names = "topic partition offset key value headers timestamp leader_epoch latency error"
    return tuple(getattr(found, name)() for name in names.split())


@pytest.fixture(params=["confluent", "light", "mixed"])
def as_read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsRead:
    """Makes records of messages as they are read: in Python, in C, or some so and some so."""
    if request.param == "confluent":
        return lambda messages: records(*messages)
    light = partial(light_of, use_extension(monkeypatch))
    if request.param == "light":
        return light
    return lambda messages: [
        record if number // 2 % 2 else records(message)[0]
        for number, (record, message) in enumerate(zip(light(messages), messages, strict=True))
    ]


PECULIAR = [
    {},
    {"key": None, "value": None},
    {"headers": [("TxId", b"x" * 16), ("a", None), ("a", b"")]},
    {"leader_epoch": 7, "value": b""},
    {"leader_epoch": 8, "key": b""},
    {"timestamp": (0, 0), "headers": []},
]


@pytest.mark.parametrize("shapes", [PECULIAR, *([shape] * 3 for shape in PECULIAR)])
def test_spilled_messages_come_back_equal_in_all_fields(
    store: RocksSpillStore, shapes: list[dict[str, Any]], as_read: AsRead
) -> None:
    written = as_read([message(offset, **shape) for offset, shape in enumerate(shapes)])
    run = store.append(None, OWNER, written)
    assert [facts(m) for m in store.read(run)] == [facts(m) for m in written]


def test_light_messages_come_back_as_light_ones(
    store: RocksSpillStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    light = light_of(use_extension(monkeypatch), [message(n) for n in range(2_500)])
    first, *rest = light
    run = store.append(None, OWNER, [first])
    store.append(run, OWNER, rest)
    back = list(store.read(run))
    assert {type(m) for m in back} == {type(first)}
    assert [facts(m) for m in back] == [facts(m) for m in light]
    # A chunk with one that has been changed takes the other way.
    cast(Message, light[2]).set_error(KafkaError(KafkaError._BAD_MSG))
    kinds = [type(m) for m in store.read(store.append(None, OWNER, light[:2]))]
    assert kinds == [type(first)] * 2
    odd = store.append(None, OWNER, light[:4])
    assert [type(m) for m in store.read(odd)] == [Message] * 4


def test_headers_alike_are_not_one_list(store: RocksSpillStore, as_read: AsRead) -> None:
    run = store.append(None, OWNER, as_read([message(n, headers=[("a", b"")]) for n in (1, 2)]))
    first, second = (cast(Message, m) for m in store.read(run))
    headers = first.headers()
    assert headers is not None
    headers.clear()
    assert second.headers() == [("a", b"")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(
        st.one_of(st.none(), st.integers(0, CHUNK_MAX_BYTES * 2)), min_size=1, max_size=20
    )
)
@example(sizes=[1] * (2 * CHUNK_MAX_RECORDS))
@example(sizes=[CHUNK_MAX_BYTES] * 3)
def test_chunks_are_bounded_and_hold_everything_in_order(
    as_read: AsRead, sizes: list[int | None]
) -> None:
    written = as_read(
        [message(n, value=None if size is None else bytes(size)) for n, size in enumerate(sizes)]
    )
    chunks = [decode_chunk(OWNER, chunk) for chunk in encode_chunks(written)]
    assert [facts(m) for chunk in chunks for m in chunk] == [facts(m) for m in written]
    for chunk in chunks:
        assert len(chunk) <= CHUNK_MAX_RECORDS
        assert sum(len(r) + len(r.key() or b"") for r in chunk[:-1]) < CHUNK_MAX_BYTES


def test_a_run_is_appended_to_and_read_in_order(store: RocksSpillStore) -> None:
    run = store.append(None, OWNER, records(*map(message, range(2_500))))
    other = store.append(None, OWNER, records(message(1)))
    assert store.append(run, OWNER, records(*map(message, range(2_500, 5_000)))) == run
    assert [m.offset() for m in store.read(run)] == list(range(5_000))
    store.delete(other)
    assert sum(1 for _ in store.read(run)) == 5_000


def test_a_run_streams_a_chunk_at_a_time(
    store: RocksSpillStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.append(None, OWNER, records(*map(message, range(10_000))))
    read: list[bytes] = []
    get = store._families.get

    def count(family: Family, key: bytes) -> bytes:
        read.append(key)
        return get(family, key)

    monkeypatch.setattr(store._families, "get", count)
    reading = store.read(run)
    for position in range(1, 5_000):
        next(reading)
        assert len(read) == -(-position // CHUNK_MAX_RECORDS)


def only_file(store: RocksSpillStore) -> Path:
    """Writes what RocksDB still has in memory to its only file. Returns the file."""
    [family] = store._families._all
    assert family.table is not None
    family.table.flush()
    [found] = store._families.place.rglob("*.sst")
    return found


def test_a_byte_that_the_disk_changed_is_noticed(store: RocksSpillStore) -> None:
    run = store.append(None, OWNER, records(*map(message, range(100))))
    file = only_file(store)
    content = bytearray(file.read_bytes())
    content[len(content) // 4] ^= 1
    file.write_bytes(content)
    with pytest.raises(SpillError, match=r"Corruption.*pending\.dir"):
        list(store.read(run))


def test_a_chunk_that_is_missing_is_noticed(store: RocksSpillStore) -> None:
    run = store.append(None, OWNER, records(*map(message, range(2_500))))
    [family] = store._families._all
    assert family.table is not None
    [*_, last] = family.table.keys()
    family.table.delete(last)
    with pytest.raises(SpillError, match=r"missing.*pending\.dir"):
        list(store.read(run))


def test_a_closed_store_ends_a_reading(store: RocksSpillStore) -> None:
    run = store.append(None, OWNER, records(*map(message, range(2_500))))
    reading = store.read(run)
    next(reading)
    store.close()
    with pytest.raises(SpillError, match="closed"):
        list(reading)
    with pytest.raises(SpillError, match="closed"):
        list(store.read(run))


def test_what_is_on_disk_is_counted(store: RocksSpillStore) -> None:
    runs = []
    for count in (1, 10, 5_000):
        runs.append(store.append(None, OWNER, records(*map(message, range(count)))))
        store.append(runs[0], OWNER, records(message(count, value=bytes(10_000))))
    assert store.disk_bytes == store.spilled_bytes
    assert store.disk_bytes == pytest.approx(only_file(store).stat().st_size, rel=0.03)
    before = store.disk_bytes
    store.delete(runs[2])  # less than a family
    assert store.disk_bytes == before
    store.close()
    assert store.disk_bytes == 0


def test_the_directory_goes_with_the_last_run(store: RocksSpillStore, tmp_path: Path) -> None:
    first = store.append(None, OWNER, records(message(0)))
    second = store.append(None, OWNER, records(message(1)))
    assert len(list((tmp_path / "spill").iterdir())) == 1
    store.delete(first)
    assert [m.offset() for m in store.read(second)] == [1]
    store.delete(second)
    assert list((tmp_path / "spill").iterdir()) == []
    assert store.append(None, OWNER, records(message(2))) != second


def test_an_unwritable_directory_is_told_at_once(log: MemoryLog, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(SpillError, match=r"pending\.dir"):
        Consumer({"group.id": "g", "pending.dir": str(blocked / "below")}, log=log)


@pytest.mark.parametrize("memory", [0, 20_000, 10_000_000])
def test_interleaved_transactions_are_delivered_from_disk(
    log: MemoryLog, make_consumer: MakeConsumer, tmp_path: Path, memory: int
) -> None:
    transactions = Transactions(log)
    three = [transactions.begin() for _ in range(3)]
    for burst in range(10):
        for number, txid in enumerate(three):
            values = [b"%d-%d-%d" % (number, burst, n) for n in range(333)]
            transactions.write(txid, "t", values, branch=5 if number == 2 else None)
        transactions.append("t", [b"plain"])
    transactions.mark(three[1], "t", commit=False)
    transactions.mark(three[2], "t")
    transactions.mark(three[0], "t")
    consumer = make_consumer(pending_memory_max_bytes=memory, pending_dir=str(tmp_path))
    consumer.assign([TopicPartition("t", 0)])
    found = read(consumer, 10 + 6_660)
    assert found[:10] == [b"plain"] * 10
    assert found[10:3_340] == [b"2-%d-%d" % (b, n) for b in range(10) for n in range(333)]
    assert found[3_340:] == [b"0-%d-%d" % (b, n) for b in range(10) for n in range(333)]
    assert nothing_more(consumer, 0.1)
    assert (consumer.stats()["spilled_bytes"] > 0) == (memory < 10_000_000)
    assert consumer.stats()["pending_memory_bytes"] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_crash_while_a_spilled_transaction_is_delivered(
    log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    transactions = Transactions(log)
    values = [b"%d" % n for n in range(10_000)]
    transactions.transaction("t", values)
    found: list[bytes | None] = []
    group = None
    while len(found) < len(values):
        settings = {"group_id": group} if group else {}
        consumer = make_consumer(
            pending_memory_max_bytes=50_000, enable_auto_commit=False, **settings
        )
        group = consumer.group_id
        consumer.assign([TopicPartition("t", 0)])
        found += read(consumer, min(1_700, len(values) - len(found)))
        consumer.commit(asynchronous=False)
        consumer.close()
    assert found == values


def test_what_is_charged_is_given_back(store: RocksSpillStore) -> None:
    pending_map = PendingTransactionMap(10**9, store)
    view = pending_map.view()
    pending = view[b"x"] = PendingTransaction(OWNER, b"x", 0)
    txid = ("TxId", b"x" * 16)
    pending.records += records(*(message(n, value=b"v", headers=[txid]) for n in range(10)))
    pending_map.charge([pending])
    plain = TRANSACTION_OVERHEAD_BYTES + 10 * (RECORD_OVERHEAD_BYTES + 2)
    assert pending_map.memory_bytes == plain
    pending.further_headers = True
    pending.records += records(message(10, value=b"v", headers=[txid, ("ab", b"c" * 1_000)]))
    pending_map.charge([pending])
    further = RECORD_OVERHEAD_BYTES + 2 + HEADER_OVERHEAD_BYTES + 1_002
    assert pending_map.memory_bytes == plain + further
    pending_map.memory_max_bytes = 0
    pending_map.enforce()
    assert pending_map.memory_bytes == TRANSACTION_OVERHEAD_BYTES
    assert pending.run_bytes == 11 * 2 + HEADER_OVERHEAD_BYTES + 1_002
    pending_map.discard(pending)
    pending_map.discard(pending)
    assert pending_map.memory_bytes == 0


@pytest.mark.parametrize("limit", [0, 100_000, 3_000_000])
def test_of_a_large_transaction_no_more_is_spilled_at_a_time_than_must(
    store: RocksSpillStore, limit: int
) -> None:
    pending_map = PendingTransactionMap(limit, store)
    view = pending_map.view()
    large = view[b"x"] = PendingTransaction(OWNER, b"x", 0)
    small = view[b"y"] = PendingTransaction(OWNER, b"y", 1_000_000)
    small.records += records(message(1_000_000, value=b""))
    pending_map.charge([small])
    for start in range(0, 20_000, 100):
        key = b"k" * (start % 7)
        large.records += records(*(message(start + n, key=key) for n in range(100)))
        before = len(large.records)
        pending_map.charge([large])
        pending_map.enforce()
        assert pending_map.memory_bytes <= max(limit, 2 * TRANSACTION_OVERHEAD_BYTES)
        if limit == 3_000_000 and len(large.records) < before:
            assert before * 0.6 < len(large.records) < before * 0.8
    assert bool(small.records) == (limit > 0)
    assert large.count == 20_000
    assert large.last_offset == 19_999
    stream = [r.offset() for r in pending_map.stream(large)]
    assert stream == list(range(20_000))
    assert large.run_bytes == sum(
        len(r) + len(r.key() or b"") for r in store.read(cast(int, large.run))
    )
    held = sum(RECORD_OVERHEAD_BYTES + len(r) + len(r.key() or b"") for r in large.records)
    assert large.charged_bytes == held
    pending_map.drop(view)
    assert pending_map.memory_bytes == 0
