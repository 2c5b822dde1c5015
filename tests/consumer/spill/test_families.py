"""Disk space of deleted runs is freed while other runs stay, a whole family at a time."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from logtx.consumer.core.pending import Record
from logtx.consumer.spill import families
from logtx.consumer.spill import store as spill
from logtx.consumer.spill.families import WRITE_BUFFER_BYTES, Family
from logtx.consumer.spill.store import RocksSpillStore
from logtx.journal.errors import SpillError

from .rocks import Disk

OWNER = ("t", 0)
SMALL_BYTES = 20_000


def records(start: int, stop: int, size: int = 100) -> list[Record]:
    return [
        Message(
            topic="t",
            partition=0,
            offset=offset,
            value=random.Random(offset).randbytes(size),
            timestamp=(TIMESTAMP_CREATE_TIME, offset),
        )
        for offset in range(start, stop)
    ]


def values(found: Iterable[Record]) -> list[tuple[int, bytes | None]]:
    return [(record.offset(), record.value()) for record in found]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    monkeypatch.setattr(families, "Rdict", found.open)
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, disk: Disk) -> Iterator[RocksSpillStore]:
    """A store with families of 20 KB, so that a test has many of them."""
    monkeypatch.setattr(spill, "FAMILY_BYTES", SMALL_BYTES)
    opened = RocksSpillStore(str(tmp_path))
    yield opened
    opened.close()
    assert not disk.tables
    assert list(tmp_path.iterdir()) == []


def live_bytes(store: RocksSpillStore) -> int:
    return sum(part.size for run in store._runs.values() for part in run.parts)


def of_families(store: RocksSpillStore) -> list[Family]:
    return store._families._all


def check_accounts(store: RocksSpillStore) -> None:
    """Checks that each family counts what runs have in it, and that garbage is bounded."""
    parts = [part for run in store._runs.values() for part in run.parts]
    for family in of_families(store):
        assert family.live == sum(p.size for p in parts if p.family is family)
        assert family.live <= family.written
    assert store.disk_bytes == sum(family.written for family in of_families(store))
    assert {id(p.family) for p in parts} <= set(map(id, of_families(store)))
    live = live_bytes(store)
    assert store.disk_bytes - live <= max(SMALL_BYTES, live) + SMALL_BYTES


class Readings:
    """Readers at different places in runs, compared with a naive store."""

    def __init__(self, store: RocksSpillStore, naive: dict[int, list[Record]]) -> None:
        self._store, self._naive = store, naive
        self._all: list[tuple[int, int, Iterator[Record]]] = []

    def begin(self, run: int) -> None:
        self._all.append((run, 0, self._store.read(run)))

    def step(self) -> None:
        current, self._all = self._all, []
        for run, position, reading in current:
            if run not in self._naive:
                continue
            written = self._naive[run]
            stop = min(position + 7, len(written))
            assert values(islice(reading, stop - position)) == values(written[position:stop])
            if stop < len(written):
                self._all.append((run, stop, reading))


@pytest.mark.parametrize("seed", range(8))
def test_runs_that_come_and_go_beside_a_naive_store(small: RocksSpillStore, seed: int) -> None:
    chance = random.Random(seed)
    naive: dict[int, list[Record]] = {}
    readings = Readings(small, naive)
    for _ in range(400):
        known = list(naive)
        if known and chance.random() < 0.4:
            run = chance.choice(known)
            small.delete(run)
            del naive[run]
        elif known and chance.random() < 0.2:
            readings.begin(chance.choice(known))
        else:
            run = chance.choice([*known, None])
            start = len(naive[run]) if run is not None else 0
            fresh = records(start, start + chance.randint(1, 40))
            run = small.append(run, OWNER, fresh)
            naive.setdefault(run, []).extend(fresh)
        readings.step()
        check_accounts(small)
    for run, written in naive.items():
        assert values(small.read(run)) == values(written)
    for run in naive:
        small.delete(run)
    assert small.disk_bytes == 0


def test_a_reader_goes_on_while_what_it_reads_is_moved(small: RocksSpillStore) -> None:
    kept, others = None, []
    for start in range(0, 200, 10):
        kept = small.append(kept, OWNER, records(start, start + 10))
        others.append(small.append(None, OWNER, records(0, 60)))
    assert kept is not None
    reading = small.read(kept)
    found = [next(reading)]
    before = [part.family for part in small._runs[kept].parts]
    assert len(before) > 4
    for other in others:
        small.delete(other)
    assert small._runs[kept].parts[0].family is not before[0]
    assert values(found + list(reading)) == values(records(0, 200))


def size_on_disk(directory: Path) -> int:
    return sum(os.lstat(path).st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def test_space_is_free_on_the_disk_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spill, "FAMILY_BYTES", WRITE_BUFFER_BYTES)
    store = RocksSpillStore(str(tmp_path))
    small = store.append(None, OWNER, records(0, 10))
    large = None
    for start in range(0, 5_000, 500):
        large = store.append(large, OWNER, records(start, start + 500, 10_000))
        small = store.append(small, OWNER, records(10 + start, 11 + start))
    assert large is not None
    # What is still in RocksDB's buffers is not on the disk.
    assert 50e6 - 3 * WRITE_BUFFER_BYTES < size_on_disk(tmp_path) < 52e6
    assert 50e6 < store.disk_bytes < 51e6
    reading = store.read(large)
    next(reading)
    store.delete(large)
    assert store.disk_bytes < 2 * WRITE_BUFFER_BYTES + 100_000
    assert size_on_disk(tmp_path) < 2 * WRITE_BUFFER_BYTES + 2_000_000
    with pytest.raises(SpillError, match="closed"):
        list(reading)
    assert len(list(store.read(small))) == 20
    store.delete(small)
    assert list(tmp_path.iterdir()) == []


def test_what_cant_be_moved_stays_and_is_moved_later(
    small: RocksSpillStore, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    kept, gone = [], []
    for _ in range(30):
        kept.append(small.append(None, OWNER, records(0, 20)))
        gone.append(small.append(None, OWNER, records(0, 60)))
    disk.room = 0
    for run in gone[:-1]:
        small.delete(run)
    assert disk.refused
    assert "spill_delete_failed" in caplog.text
    assert small.disk_bytes > 3 * live_bytes(small)
    for run in kept:
        assert values(small.read(run)) == values(records(0, 20))
    disk.room = 10**9
    small.delete(gone[-1])
    check_accounts(small)
    for run in kept:
        assert values(small.read(run)) == values(records(0, 20))


@pytest.mark.usefixtures("disk")
def test_garbage_leaves_room_for_what_is_live_within_the_limit(tmp_path: Path) -> None:
    limit = 400_000
    store = RocksSpillStore(str(tmp_path), limit)
    chance = random.Random(3)
    runs: list[int] = []
    most = 0
    for _ in range(1_000):
        while runs and live_bytes(store) > limit / 2:
            store.delete(runs.pop(chance.randrange(len(runs))))
        runs.append(store.append(None, OWNER, records(0, chance.randint(1, 40))))
        most = max(most, store.disk_bytes)
    assert limit / 2 < most <= limit
    for run in runs[:-1]:
        store.delete(run)
    assert store.disk_bytes <= limit / 2
    store.close()


def interrupt_behind(monkeypatch: pytest.MonkeyPatch, disk: Disk, name: str) -> None:
    """Lets a signal handler raise right behind the next call of a method."""
    original = getattr(disk, name)

    def interrupted(*arguments: str) -> None:
        monkeypatch.setattr(disk, name, original)
        original(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(disk, name, interrupted)


def test_who_is_interrupted_while_all_is_deleted_can_spill_again(
    small: RocksSpillStore, disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[Disk] = []
    monkeypatch.setattr(families, "Rdict", lambda *how: opened.append(disk.open(*how)) or disk)
    run = small.append(None, OWNER, records(0, 3))
    interrupt_behind(monkeypatch, disk, "close")
    with pytest.raises(KeyboardInterrupt):
        small.delete(run)
    assert list(tmp_path.iterdir()) == []
    run = small.append(None, OWNER, records(3, 6))
    assert len(opened) == 2
    assert values(small.read(run)) == values(records(3, 6))


def test_who_is_interrupted_while_a_family_is_dropped_drops_the_others_later(
    small: RocksSpillStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = small.append(None, OWNER, records(0, 3))
    runs = [small.append(None, OWNER, records(n, n + 150)) for n in (200, 400, 600, 800)]
    interrupt_behind(monkeypatch, disk, "drop_column_family")
    interrupted = 0
    for run in runs:
        try:
            small.delete(run)
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted == 1
    check_accounts(small)
    assert set(disk.tables) == {family.name for family in of_families(small)}
    assert values(small.read(kept)) == values(records(0, 3))
