"""What only the store in RocksDB has: a directory, which may be copied, damaged, or left open."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from logtx.coordinator.store import rocks
from logtx.coordinator.store.base import READY, Event
from logtx.coordinator.store.core.changes import Change, Cursor
from logtx.coordinator.store.core.keys import headers_of
from logtx.coordinator.store.rocks import RocksStore
from logtx.journal.errors import MetadataStoreError

from .journals import PARTITION, write
from .stores import Replaying, content, transactions
from .test_stores import ACTIONS_OF_ONE, header, on_loop


def test_a_watch_does_not_see_what_is_written_behind_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moment and the reading of its pages a writer may write."""
    monkeypatch.setattr(rocks, "PAGE", 2)

    async def check() -> None:
        store = RocksStore(tmp_path)
        first = [Change(None, header(n)) for n in range(6)]
        await store.apply(PARTITION, None, Cursor(1), first)
        events = store.watch(headers_of(PARTITION))
        told = await anext(events)  # two of six
        changed = header(5, timeout_ms=77)
        later = [Change(header(5), changed), Change(None, header(6))]
        await store.apply(PARTITION, Cursor(1), Cursor(2), later)
        while told[-1] != READY:
            told += await anext(events)
        known = {e.key: e.value for e in told if e != READY}
        assert len(known) == 6
        assert await anext(events) == [
            Event(k, v)
            for k, v in (await content(store)).items()
            if k[:1] == b"h" and known.get(k) != v
        ]
        await store.close()

    on_loop(check)


def test_a_store_that_was_not_closed_has_what_the_journal_said_at_some_point(
    tmp_path: Path,
) -> None:
    """A copy of its files is what a crash leaves: the rest is projected again."""

    async def check() -> None:
        journal, store = write(ACTIONS_OF_ONE), RocksStore(tmp_path / "open")
        half = journal.entries[: journal.end // 2]
        await Replaying(store, half).run(batch=3)
        await store.tidy()
        await Replaying(store, journal.entries).run(batch=3)
        shutil.copytree(tmp_path / "open", tmp_path / "crashed")
        await store.close()
        crashed = RocksStore(tmp_path / "crashed")
        cursor = await crashed.cursor(PARTITION)
        assert cursor is not None
        assert len(half) <= cursor.offset <= journal.end
        await Replaying(crashed, journal.entries).run()
        assert await transactions(crashed) == journal.replay().expected()
        await crashed.close()

    on_loop(check)


def test_a_damaged_file_is_found_when_it_is_read(tmp_path: Path) -> None:
    async def check() -> None:
        store = RocksStore(tmp_path)
        changes = [Change(None, header(n)) for n in range(3_000)]
        await store.apply(PARTITION, None, Cursor(1), changes)
        await store.close()
        (table,) = (tmp_path / "rocksdb").glob("*.sst")
        raw = bytearray(table.read_bytes())
        raw[100:4_000] = bytes(3_900)
        table.write_bytes(raw)
        store = RocksStore(tmp_path)
        with pytest.raises(MetadataStoreError, match="made again from the journal"):
            await content(store)
        assert not await store.apply(PARTITION, Cursor(1), Cursor(2), [])
        assert await store.cursor(PARTITION) is None  # so a projector begins anew
        assert await store.apply(PARTITION, None, Cursor(1), changes)
        await store.close()

    on_loop(check)


def test_closing_ends_watches(tmp_path: Path) -> None:
    async def check() -> None:
        store = RocksStore(tmp_path)
        events = store.watch(headers_of(PARTITION))
        assert await anext(events) == [READY]
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.01)
        await store.close()
        with pytest.raises(MetadataStoreError, match="watch again"):
            await waiting

    on_loop(check)


def test_a_directory_that_goes_while_it_is_open_is_begun_anew(tmp_path: Path) -> None:
    """What stands in the way is told, for as long as it does; then the journal has it all."""

    async def check() -> None:
        place = tmp_path / "store"
        store, changes = RocksStore(place), [Change(None, header(n)) for n in range(50)]
        assert await store.apply(PARTITION, None, Cursor(1), changes)
        shutil.rmtree(place)
        place.write_text("no directory")
        for _ in range(2):
            with pytest.raises(MetadataStoreError, match=r"Transactions go on.*make the directory"):
                await store.tidy()
        place.unlink()
        assert not await store.apply(PARTITION, Cursor(1), Cursor(2), [])
        assert await store.cursor(PARTITION) is None
        assert await store.apply(PARTITION, None, Cursor(1), changes)
        await store.tidy()
        assert len(await content(store)) > len(changes)
        await store.close()

    on_loop(check)
