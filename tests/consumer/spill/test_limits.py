"""Limits of spilling: a full disk, a configured limit, and what dead processes left. trap 25."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message, TopicPartition

from logtx.consumer.core.pending import PendingTransaction, PendingTransactionMap, Record
from logtx.consumer.spill import families
from logtx.consumer.spill.scratch import LOCK, PREFIX, ScratchDirectory, remove_stale
from logtx.consumer.spill.store import RocksSpillStore
from logtx.journal.errors import SpillError
from logtx.journal.logs.memory.log import MemoryLog

from ..conftest import MakeConsumer
from ..logs import Transactions, read
from .rocks import Disk

OWNER = ("t", 0)
VALUES = [b"%d" % n for n in range(5_000)]


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    memory_log.create_topic("t", partitions=1)
    return memory_log


def records(start: int, stop: int, value: bytes | None = None) -> list[Record]:
    return [
        cast(
            Record,
            Message(
                topic="t",
                partition=0,
                offset=offset,
                value=value or b"%d" % offset,
                timestamp=(TIMESTAMP_CREATE_TIME, offset),
            ),
        )
        for offset in range(start, stop)
    ]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    monkeypatch.setattr(families, "Rdict", found.open)
    return found


def stop_and_start_again(
    make_consumer: MakeConsumer,
    log: MemoryLog,
    settings: dict[str, Any],
    make_room: Callable[[], dict[str, Any]],
) -> str:
    """Runs a consumer that can't spill, and then, with more room, another one of its group.

    A small transaction, with records of the large one in between, is delivered before the large one
    fails; it does not come again. Returns the text of the error.
    """
    transactions = Transactions(log)
    large, small = transactions.begin(), transactions.begin()
    transactions.write(small, "t", [b"early"])
    transactions.write(large, "t", VALUES[:1_000])
    transactions.mark(small, "t")
    transactions.append("t", [b"plain"])
    transactions.write(large, "t", VALUES[1_000:])
    transactions.mark(large, "t")
    consumer = make_consumer(enable_auto_commit=False, **settings)
    consumer.assign([TopicPartition("t", 0)])
    assert read(consumer, 2) == [b"early", b"plain"]
    with pytest.raises(SpillError) as caught:
        read(consumer, len(VALUES))
    with pytest.raises(SpillError):  # each further call fails too
        consumer.poll(0.1)
    consumer.commit(asynchronous=False)
    consumer.close()
    settings |= make_room()
    again = make_consumer(group_id=consumer.group_id, enable_auto_commit=False, **settings)
    again.assign([TopicPartition("t", 0)])
    assert read(again, len(VALUES)) == VALUES
    assert again.stats()["spilled_bytes"] > 0
    return str(caught.value)


def test_trap_25_a_disk_full_in_the_middle_of_a_batch_loses_nothing(
    log: MemoryLog, make_consumer: MakeConsumer, tmp_path: Path, disk: Disk
) -> None:
    settings = {"pending_memory_max_bytes": 100_000, "pending_dir": str(tmp_path)}
    disk.room = 20_000

    def make_room() -> dict[str, Any]:
        disk.room = 10**9
        return {}

    text = stop_and_start_again(make_consumer, log, settings, make_room)
    assert disk.refused >= 2
    assert "No space left" in text
    assert "pending.dir" in text
    assert list(tmp_path.iterdir()) == []


def test_the_limit_of_disk_stops_the_consumer_and_a_higher_one_loses_nothing(
    log: MemoryLog, make_consumer: MakeConsumer, tmp_path: Path
) -> None:
    settings = {"pending_memory_max_bytes": 100_000, "pending_dir": str(tmp_path)}
    text = stop_and_start_again(
        make_consumer,
        log,
        settings | {"pending_disk_max_bytes": 20_000},
        lambda: {"pending_disk_max_bytes": 1_000_000},
    )
    assert f"pending.disk.max.bytes={20_000}" in text


def test_no_disk_at_all_is_a_limit_too(tmp_path: Path) -> None:
    store = RocksSpillStore(str(tmp_path), 0)
    with pytest.raises(SpillError, match=r"pending\.disk\.max\.bytes=0"):
        store.append(None, OWNER, records(0, 1))
    store.close()


def test_the_limit_counts_all_runs_and_what_was_given_back(tmp_path: Path) -> None:
    store = RocksSpillStore(str(tmp_path), 4_000)
    first = store.append(None, OWNER, records(0, 100))
    first_bytes = store.disk_bytes
    second = store.append(None, OWNER, records(0, 300))
    both_bytes = store.disk_bytes
    assert 3_000 < both_bytes < 4_000
    for run in (None, first, second):
        with pytest.raises(SpillError, match=r"pending\.disk\.max\.bytes=4000"):
            store.append(run, OWNER, records(300, 600))
    assert store.disk_bytes == both_bytes
    third = store.append(None, OWNER, records(0, 1))
    store.delete(first)
    assert store.disk_bytes < both_bytes - first_bytes + 200
    store.append(third, OWNER, records(1, 101))
    assert [r.offset() for r in store.read(second)] == list(range(300))
    assert [r.offset() for r in store.read(third)] == list(range(101))
    store.close()


@pytest.mark.parametrize("room", [0, 1, 5_000, 30_000])
def test_a_full_disk_leaves_a_run_as_it_was(tmp_path: Path, disk: Disk, room: int) -> None:
    store = RocksSpillStore(str(tmp_path))
    pending_map = PendingTransactionMap(0, store)
    pending = pending_map.view()[b"x"] = PendingTransaction(OWNER, b"x", 0)
    for start in (0, 3_000):
        pending.records += records(start, start + 3_000)
        pending_map.charge([pending])
        disk.room = room
        for _ in range(2):
            with pytest.raises(SpillError, match="No space left"):
                pending_map.enforce()
            assert pending.count == start + 3_000
            assert [r.offset() for r in pending_map.stream(pending)] == list(range(start + 3_000))
        disk.room = 10**9
        pending_map.enforce()
        assert not pending.records
    assert [r.offset() for r in pending_map.stream(pending)] == list(range(6_000))
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_disk_takes_at_a_time_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(families, "WRITE_BUFFER_BYTES", 64 * 1024)
    opened = families.Families(tmp_path, 10**9)
    put, waits = opened._put, []

    def count(*arguments: Any) -> bool:
        waits.append(not put(*arguments))
        return not waits[-1]

    monkeypatch.setattr(opened, "_put", count)
    family = opened.writable(0)
    for number in range(200):
        opened.put(family, b"%d" % number, bytes(100_000))
    assert any(waits)
    assert all(opened.get(family, b"%d" % number) == bytes(100_000) for number in range(200))
    opened.close()


def test_a_disk_that_takes_nothing_any_more_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(families, "WRITE_TIMEOUT_S", 0.05)
    opened = families.Families(tmp_path, 10**9)
    family = opened.writable(0)
    monkeypatch.setattr(opened, "_put", lambda *_: False)
    with pytest.raises(SpillError, match=r"took nothing.*pending\.dir"):
        opened.put(family, b"key", b"value")
    opened.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 8 MiB."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems can't be mounted here")
    yield mounted
    # RocksDB may have files open there until what it raised is collected.
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def test_trap_25_a_real_disk_full_of_pending_records(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "WRITE_BUFFER_BYTES", 1024 * 1024)
    store = RocksSpillStore(str(small_disk))
    value = bytes(10_000)
    run, written = store.append(None, OWNER, records(0, 1)), 1
    error = None
    while error is None and written < 5_000:
        try:
            store.append(run, OWNER, records(written, written + 50, value))
            written += 50
        except SpillError as caught:
            error = str(caught)
    assert "No space left" in str(error)
    # This includes what never reached the disk.
    assert [r.offset() for r in store.read(run)] == list(range(written))
    with pytest.raises(SpillError, match="No space left"):
        store.append(None, OWNER, records(0, 500, value))
    store.close()
    assert list(small_disk.iterdir()) == []
    gc.collect()  # RocksDB could not close files; what it raised refers to it.
    again = RocksSpillStore(str(small_disk))
    run = again.append(None, OWNER, records(0, 500, value))
    assert [r.offset() for r in again.read(run)] == list(range(500))
    again.close()


def test_trap_25_what_a_dead_process_left_is_deleted_at_start(tmp_path: Path) -> None:
    program = dedent(
        """
        import os, sys
        from pathlib import Path
        from logtx.consumer.spill.scratch import ScratchDirectory
        scratch = ScratchDirectory.make(Path(sys.argv[1]))
        (scratch.path / "0").write_bytes(b"x")
        print(scratch.path, flush=True)
        sys.stdin.read()
        """
    )
    foreign = tmp_path / "something-else"
    foreign.mkdir()
    unlocked = tmp_path / f"{PREFIX}unlocked"
    unlocked.mkdir()
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().decode().strip())
        mine = ScratchDirectory.make(tmp_path)
        RocksSpillStore(str(tmp_path)).close()
        assert set(tmp_path.iterdir()) == {mine.path, theirs, foreign}
        other.send_signal(signal.SIGKILL)
        other.wait()
        RocksSpillStore(str(tmp_path)).close()
        assert set(tmp_path.iterdir()) == {mine.path, foreign}
        mine.remove()
    assert set(tmp_path.iterdir()) == {foreign}


def test_a_directory_taken_for_a_dead_processs_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    real_open = os.open

    def open_late(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if Path(path).name == LOCK and flags & os.O_CREAT:
            made.append(Path(path).parent)
            if len(made) == 1:
                remove_stale(tmp_path)  # another process, between two steps of ours
                assert not made[0].exists()
        return real_open(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", open_late)
    scratch = ScratchDirectory.make(tmp_path)
    assert len(made) == 2
    assert scratch.path == made[1]
    assert list(tmp_path.iterdir()) == [scratch.path]
    assert remove_stale(tmp_path) == 0
    scratch.remove()
