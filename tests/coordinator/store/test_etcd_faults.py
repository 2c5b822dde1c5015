"""An etcd that is killed, paused, full, or lost its data: errors in bounded time, then all well."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from logtx.coordinator.client.metadata import MetadataClient
from logtx.coordinator.protocol.commands import Action
from logtx.coordinator.protocol.metadata import HeaderState
from logtx.coordinator.store.base import READY
from logtx.coordinator.store.core.changes import Change, Cursor
from logtx.coordinator.store.core.keys import header_key, headers_of
from logtx.coordinator.store.opening import MetadataConfig, make_store
from logtx.coordinator.store.projector import clear
from logtx.integration.local.etcd import INSTALL, LocalEtcd, find_etcd
from logtx.journal.errors import LogtxError, MetadataStoreError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.txid import TxId

from ..clusters import cluster_of
from .journals import PARTITION, Journal
from .stores import transactions
from .test_client import TOPIC, Committer
from .test_projector import Written, caught_up, projecting, story, written_up_to
from .test_stores import header

pytest.importorskip("aetcd", reason="pip install 'logtx[etcd]'")

from logtx.coordinator.store import etcd as module
from logtx.coordinator.store.etcd import EtcdStore

TIMEOUT_S = 180.0
CALL_S = 15.0
"""Longest call of these tests: on a busy machine a sound etcd may take seconds."""
PREFIX = b"logtx/"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for an etcd for longer than in production."""
    monkeypatch.setattr(module, "CALL_S", CALL_S)


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
        written, store, journal = Written(), EtcdStore([own.endpoint], PREFIX), Journal()
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
        store = EtcdStore([own.endpoint], PREFIX)
        assert await store.apply(PARTITION, None, Cursor(1), [Change(None, header(1))])
        monkeypatch.setattr(module, "CALL_S", 0.5)
        own.pause()
        began_s = time.monotonic()
        with pytest.raises(MetadataStoreError, match="does not answer"):
            await store.apply(PARTITION, Cursor(1), Cursor(2), [Change(None, header(2))])
        assert time.monotonic() - began_s < CALL_S / 2
        own.resume()
        # Whether that was written is not known: the cursor tells.
        monkeypatch.setattr(module, "CALL_S", CALL_S)  # it elects itself first
        cursor = await store.cursor(PARTITION)
        assert cursor in (Cursor(1), Cursor(2))
        written = await store.header(header(2).txid)
        assert (written is None) == (cursor == Cursor(1))
        await store.close()

    on_loop(check)


def test_one_that_is_paused_is_gone_on_with(
    own: LocalEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was written while no answer came is there once, and the rest follows."""

    async def check() -> None:
        written, store, journal = Written(), EtcdStore([own.endpoint], PREFIX), Journal()
        story(journal)
        written.write(journal)
        async with projecting(written, store) as projector:
            await caught_up(projector, journal)
            monkeypatch.setattr(module, "CALL_S", 0.5)
            own.pause()
            story(journal)
            written.write(journal)
            with pytest.raises(MetadataStoreError, match="does not answer"):
                await projector.projected({PARTITION: journal.end}, 3)
            monkeypatch.setattr(module, "CALL_S", CALL_S)
            own.resume()
            await written_up_to(store, journal.end)
            assert await transactions(store) == journal.replay().expected()
        await store.close()

    on_loop(check)


def test_no_transaction_waits_for_one_that_is_gone(own: LocalEtcd) -> None:
    """What is decided meanwhile is told when it is back."""
    log = MemoryLog("etcd")
    log.create_topic(TOPIC, partitions=2)
    with cluster_of(log) as cluster, MetadataClient(log, timeout_s=30) as client:
        cluster.join(metadata=MetadataConfig(store=f"etcd:{own.endpoint}"))
        producer = Committer(log)
        txids = [producer.begin() for _ in range(3)]
        producer.end(txids[0])
        assert state_of(client, txids[0]) is HeaderState.COMMITTED
        own.kill()
        producer.end(txids[1])
        producer.end(txids[2], Action.ABORT)
        with (
            MetadataClient(log, timeout_s=2) as impatient,
            pytest.raises(MetadataStoreError, match="Transactions go on without it"),
        ):
            state_of(impatient, txids[1])
        restart(own)
        assert state_of(client, txids[1]) is HeaderState.COMMITTED
        assert state_of(client, txids[2]) is HeaderState.ABORTED
        producer.close()


def state_of(client: MetadataClient, txid: TxId) -> HeaderState | None:
    """Returns what is decided; asks again while an answer is that the store fails."""
    header = client.header(txid)
    return None if header is None else header.state


def test_two_clusters_share_one(own: LocalEtcd) -> None:
    """Each has a prefix: the same keys say something else for each."""

    async def check() -> None:
        one, other = (
            make_store(MetadataConfig(store=f"etcd:{own.endpoint}{prefix}"))
            for prefix in ("", "/b/c")
        )
        assert await one.apply(PARTITION, None, Cursor(1), [Change(None, header(1))])
        assert await other.cursor(PARTITION) is None
        events = one.watch(headers_of(PARTITION))
        assert len(await anext(events)) == 1
        assert await anext(events) == [READY]
        changed = header(1, timeout_ms=5)
        assert await other.apply(PARTITION, None, Cursor(7), [Change(None, changed)])
        assert await one.apply(PARTITION, Cursor(1), Cursor(2), [Change(None, header(2))])
        assert [e.key for e in await anext(events)] == [header_key(header(2).txid)]
        assert await one.header(changed.txid) == header(1)
        assert await other.header(changed.txid) == changed
        await clear(other, PARTITION, Cursor(7))
        assert await one.cursor(PARTITION) == Cursor(2)
        await one.close()
        await other.close()

    on_loop(check)


def test_another_member_is_asked(own: LocalEtcd) -> None:
    async def check() -> None:
        store = EtcdStore(["127.0.0.1:9", own.endpoint], PREFIX)
        assert await store.cursor(PARTITION) is None
        await store.close()

    on_loop(check)


def test_one_that_lost_its_data_is_filled_again(own: LocalEtcd) -> None:
    async def check() -> None:
        written, store, journal = Written(), EtcdStore([own.endpoint], PREFIX), Journal()
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
        store, written = EtcdStore([process.endpoint], PREFIX), [None, *map(Cursor, range(5_000))]

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


def test_a_full_one_is_gone_on_with_when_it_has_room(tmp_path: Path) -> None:
    if find_etcd() is None:
        pytest.skip(f"there is no etcd on this machine: {INSTALL}")
    process = LocalEtcd(tmp_path, quota_bytes=200_000)
    process.start()

    async def check() -> None:
        await asyncio.to_thread(process.await_ready)
        written, store, journal = Written(), EtcdStore([process.endpoint], PREFIX), Journal()
        async with projecting(written, store) as projector:
            while not projector.store_problem:
                for _ in range(20):
                    story(journal)
                written.write(journal)
                await asyncio.sleep(0.05)
            assert "it is full" in projector.store_problem
            process.kill()
            process.quota_bytes = None
            await asyncio.to_thread(restart, process)
            await disarmed(store)
            await written_up_to(store, journal.end)
            assert await transactions(store) == journal.replay().expected()
        await store.close()

    try:
        on_loop(check)
    finally:
        process.kill()


async def disarmed(store: EtcdStore) -> None:
    """Does what `etcdctl alarm disarm` does."""
    from aetcd import rpc

    channel = grpc.aio.insecure_channel(store._endpoints[0])
    maintenance = rpc.MaintenanceStub(channel)
    raised = await maintenance.Alarm(rpc.AlarmRequest(), timeout=CALL_S, wait_for_ready=True)
    for each in raised.alarms:
        request = rpc.AlarmRequest(
            action=rpc.AlarmRequest.DEACTIVATE, memberID=each.memberID, alarm=each.alarm
        )
        await maintenance.Alarm(request, timeout=CALL_S)
    await channel.close()


def test_a_watch_ends_with_an_error_when_etcd_does(own: LocalEtcd) -> None:
    async def check() -> None:
        store = EtcdStore([own.endpoint], PREFIX)
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
