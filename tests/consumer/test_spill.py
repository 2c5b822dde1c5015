"""Pending transactions on disk: equal, in order, bounded, and no loss when the disk refuses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.consumer.pending import PendingTransaction, PendingTransactionMap, Record
from logtx.consumer.spill import CHUNK_MAX_RECORDS, RocksSpillStore
from logtx.journal.errors import SpillError
from logtx.journal.memory_log import MemoryLog

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more, read

OWNER = ("t", 3)


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


def test_spilled_messages_come_back_equal_in_all_fields(store: RocksSpillStore) -> None:
    written = [
        message(0),
        message(1, key=None, value=None),
        message(2, headers=[("TxId", b"x" * 16), ("a", None), ("a", b"")]),
        message(3, leader_epoch=7, value=b""),
        message(4, timestamp=(0, 0), headers=[]),
    ]
    run = store.append(None, OWNER, records(*written))
    assert [facts(m) for m in store.read(run)] == [facts(m) for m in written]


def test_a_run_is_appended_to_and_read_in_order(store: RocksSpillStore) -> None:
    run = store.append(None, OWNER, records(*map(message, range(2_500))))
    other = store.append(None, OWNER, records(message(1)))
    assert store.append(run, OWNER, records(*map(message, range(2_500, 5_000)))) == run
    assert [m.offset() for m in store.read(run)] == list(range(5_000))
    store.delete(other)
    assert sum(1 for _ in store.read(run)) == 5_000


def test_a_run_streams_a_chunk_at_a_time(store: RocksSpillStore) -> None:
    run = store.append(None, OWNER, records(*map(message, range(10_000))))
    reading = store.read(run)
    next(reading)
    store._db.delete_range(b"\0" * 12, b"\xff" * 12)
    assert sum(1 for _ in range(CHUNK_MAX_RECORDS - 1) if next(reading)) == CHUNK_MAX_RECORDS - 1
    with pytest.raises(SpillError, match="lost"):
        next(reading)


def test_the_directory_goes_with_the_last_run(store: RocksSpillStore, tmp_path: Path) -> None:
    first = store.append(None, OWNER, records(message(0)))
    second = store.append(None, OWNER, records(message(1)))
    assert len(list((tmp_path / "spill").iterdir())) == 1
    store.delete(first)
    assert [m.offset() for m in store.read(second)] == [1]
    store.delete(second)
    assert list((tmp_path / "spill").iterdir()) == []
    assert store.append(None, OWNER, records(message(2))) != second


def test_trap_25_what_a_dead_process_left_is_deleted_at_start(tmp_path: Path) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    stale = tmp_path / f"logtx-pending-{int(dead.stdout)}-abc"
    mine = tmp_path / f"logtx-pending-{os.getpid()}-abc"
    foreign = tmp_path / "something-else"
    for path in (stale, mine, foreign):
        path.mkdir()
        (path / "file").write_bytes(b"x")
    RocksSpillStore(str(tmp_path)).close()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([mine.name, foreign.name])


def test_trap_25_a_disk_full_in_the_middle_of_a_batch_loses_nothing(
    log: MemoryLog, make_consumer: MakeConsumer, tmp_path: Path
) -> None:
    transactions = Transactions(log)
    txid = transactions.begin()
    values = [b"%d" % n for n in range(5_000)]
    transactions.write(txid, "t", values)
    transactions.mark(txid, "t")
    settings = {"pending_memory_max_bytes": 100_000, "pending_dir": str(tmp_path)}
    consumer = make_consumer(**settings)
    consumer.assign([TopicPartition("t", 0)])
    store = consumer._reading._store
    opened = store._open()
    calls = iter(range(100))

    class FullDisk:
        def __getattr__(self, name: str) -> Any:
            return getattr(opened, name)

        def put(self, *arguments: Any) -> None:
            if next(calls) >= 2:
                raise Exception("IO error: No space left on device")  # noqa: TRY002
            opened.put(*arguments)

    store._db = FullDisk()
    with pytest.raises(SpillError, match=r"No space left.*pending\.dir"):
        consumer.consume(10_000, 2)
    [place] = consumer.position([TopicPartition("t", 0)])
    consumer.close()
    assert place.offset <= 5_001
    again = make_consumer(group_id=consumer.group_id, **settings)
    again.assign([TopicPartition("t", 0)])
    assert read(again, 5_000) == values


def test_disk_full_and_then_free_again_goes_on_without_a_restart(
    store: RocksSpillStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending_map = PendingTransactionMap(1_000, store)
    view = pending_map.view()
    pending = view[b"x"] = PendingTransaction(OWNER, b"x", 0)
    pending.records += records(*map(message, range(3_000)))
    pending_map.charge([pending])
    real = store._pack.encode
    failing = iter([False, True])

    class Failing:
        def encode(self, value: Any) -> bytes:
            if next(failing, False):
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(value)

    monkeypatch.setattr(store, "_pack", Failing())
    with pytest.raises(OSError, match="No space"):
        pending_map.enforce()
    assert pending.count == 3_000
    pending_map.enforce()
    assert not pending.records
    assert [r.offset() for r in pending_map.stream(pending)] == list(range(3_000))


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
