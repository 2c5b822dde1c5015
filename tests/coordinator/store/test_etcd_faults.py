"""An etcd that is killed, paused, full, or lost its data: errors in bounded time, then all well."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from logtx.coordinator.store.core.changes import Change, Cursor
from logtx.coordinator.store.core.keys import headers_of
from logtx.integration.local.etcd import INSTALL, LocalEtcd, find_etcd
from logtx.journal.errors import LogtxError, MetadataStoreError

from .journals import PARTITION, Journal
from .stores import transactions
from .test_projector import Written, caught_up, projecting, story, written_up_to
from .test_stores import header

pytest.importorskip("aetcd", reason="pip install 'logtx[etcd]'")

from logtx.coordinator.store import etcd as module
from logtx.coordinator.store.etcd import EtcdStore

TIMEOUT_S = 60.0


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalEtcd]:
    """An etcd of this test's own."""
    if find_etcd() is None:
        pytest.skip(f"there is no etcd on this machine: {INSTALL}")
    process = LocalEtcd(tmp_path)
    process.start()
    try:
        process.await_ready()
        yield process
    finally:
        process.kill()


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine for a bounded time."""

    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await test()

    asyncio.run(bounded())


def restart(process: LocalEtcd) -> None:
    """Starts an etcd again."""
    process.start()
    process.await_ready()


def test_one_that_is_killed_is_used_again_when_it_is_back(own: LocalEtcd) -> None:
    async def check() -> None:
        written, store, journal = Written(), EtcdStore([own.endpoint]), Journal()
        story(journal)
        written.write(journal)
        async with projecting(written, store) as projector:
            await caught_up(projector, journal)
            own.kill()
            story(journal)
            written.write(journal)
            with pytest.raises(MetadataStoreError, match="does not answer"):
                await projector.projected({PARTITION: journal.end}, 4)
            await asyncio.to_thread(restart, own)
            await caught_up(projector, journal)
            assert await transactions(store) == journal.replay().expected()
        await store.close()

    on_loop(check)


def test_one_that_is_paused_is_waited_for_no_longer_than_a_call_may_take(
    own: LocalEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        store = EtcdStore([own.endpoint])
        assert await store.apply(PARTITION, None, Cursor(1), [Change(None, header(1))])
        monkeypatch.setattr(module, "CALL_S", 0.5)
        own.pause()
        began_s = time.monotonic()
        with pytest.raises(MetadataStoreError, match="does not answer"):
            await store.apply(PARTITION, Cursor(1), Cursor(2), [Change(None, header(2))])
        assert time.monotonic() - began_s < 3
        own.resume()
        # Whether that was written is not known: the cursor tells.
        monkeypatch.setattr(module, "CALL_S", 10.0)  # it elects itself first
        cursor = await store.cursor(PARTITION)
        assert cursor in (Cursor(1), Cursor(2))
        written = await store.header(header(2).txid)
        assert (written is None) == (cursor == Cursor(1))
        await store.close()

    on_loop(check)


def test_another_member_is_asked(own: LocalEtcd) -> None:
    async def check() -> None:
        store = EtcdStore(["127.0.0.1:9", own.endpoint])
        assert await store.cursor(PARTITION) is None
        await store.close()

    on_loop(check)


def test_one_that_lost_its_data_is_filled_again(own: LocalEtcd) -> None:
    async def check() -> None:
        written, store, journal = Written(), EtcdStore([own.endpoint]), Journal()
        story(journal)
        written.write(journal)
        async with projecting(written, store) as projector:
            await caught_up(projector, journal)
            own.kill()
            shutil.rmtree(own.data)
            await asyncio.to_thread(restart, own)
            story(journal)
            written.write(journal)
            await written_up_to(store, journal.end)
            assert await transactions(store) == journal.replay().expected()
        await store.close()

    on_loop(check)


def test_a_full_one_says_what_to_do(tmp_path: Path) -> None:
    if find_etcd() is None:
        pytest.skip(f"there is no etcd on this machine: {INSTALL}")
    process = LocalEtcd(tmp_path, quota_bytes=200_000)
    process.start()

    async def check() -> None:
        await asyncio.to_thread(process.await_ready)
        store, written = EtcdStore([process.endpoint]), [None, *map(Cursor, range(5_000))]

        async def fill() -> None:
            for number, (before, after) in enumerate(pairwise(written)):
                changes = [Change(None, header(number * 50 + n)) for n in range(50)]
                assert await store.apply(PARTITION, before, after, changes)

        with pytest.raises(MetadataStoreError, match=r"it is full.*alarm disarm"):
            await fill()
        assert await store.cursor(PARTITION) in written[1:]  # reading goes on
        await store.close()

    try:
        on_loop(check)
    finally:
        process.kill()


def test_a_watch_ends_with_an_error_when_etcd_does(own: LocalEtcd) -> None:
    async def check() -> None:
        store = EtcdStore([own.endpoint])
        events = store.watch(headers_of(PARTITION))
        await anext(events)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.2)
        own.kill()
        with pytest.raises(LogtxError) as raised:
            await waiting
        assert raised.value.retriable
        await store.close()

    on_loop(check)
