"""What all back ends do: one suite over memory, RocksDB and a real etcd."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from logtx.coordinator.protocol.metadata import Header, HeaderState, Operation, OperationKind
from logtx.coordinator.store import keyed
from logtx.coordinator.store.base import READY, Event, MetadataStore
from logtx.coordinator.store.core.changes import (
    MUTATIONS_MAX,
    Change,
    Cursor,
    HeaderDiffersError,
)
from logtx.coordinator.store.core.keys import headers_of, keys_of, prefixed, writes
from logtx.coordinator.store.keyed import Batch, KeyedStore
from logtx.coordinator.store.polling import PollingWatch
from logtx.coordinator.store.projector import clear
from logtx.integration.local.etcd import INSTALL, find_etcd
from logtx.journal.txid import TxId

from .conftest import MakeStore
from .journals import ACTIONS, PARTITION, write
from .stores import CrashedError, Replaying, content, transactions
from .test_codec import OLD

TIMEOUT_S = 120.0
STORY = random.Random(17)
ACTIONS_OF_ONE = [
    (STORY.choice(ACTIONS), STORY.randrange(6), STORY.randrange(6)) for _ in range(120)
]


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine for a bounded time."""

    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await test()

    asyncio.run(bounded())


def header(begin: int, **fields: Any) -> Header:
    """Returns a header."""
    given = {"state": HeaderState.OPEN, "timeout_ms": 1_000 + begin, **fields}
    txid = TxId(PARTITION, 7, begin)
    return Header(txid=txid, version=begin, producer_id="p", generation=1, created_ms=5, **given)


def run(begin: int, number: int, place: int | None = None) -> Operation:
    """Returns an operation."""
    return Operation(
        txid=TxId(PARTITION, 7, begin),
        seq=(begin, number),
        kind=OperationKind.WRITE,
        topic="orders",
        partition=1,
        first_offset=number,
        last_offset=number,
        count=1,
        branch=2**64 - 1,
        placed=True,
        place=place,
    )


@pytest.mark.slow
def test_an_etcd_is_there_for_all_tests() -> None:
    """The quick tests pass over etcd where it is not installed; all tests together don't."""
    assert find_etcd() is not None, INSTALL


def test_a_journal_is_projected_alike(make_store: MakeStore) -> None:
    async def check() -> None:
        journal, store = write(ACTIONS_OF_ONE), make_store()
        await Replaying(store, journal.entries).run(batch=7)
        assert await transactions(store) == journal.replay().expected()
        await store.close()

    on_loop(check)


def test_a_projector_killed_at_each_write_goes_on_with_a_store_opened_anew(
    make_store: MakeStore,
) -> None:
    async def check() -> None:
        journal, lives = write(ACTIONS_OF_ONE[:60]), 0
        while True:
            lives += 1
            assert lives < 500
            store = make_store()
            try:
                await Replaying(store, journal.entries).run(writes=1, batch=9)
                break
            except CrashedError:
                await store.close()
        assert await transactions(store) == journal.replay().expected()
        await store.close()

    on_loop(check)


def test_two_projectors_of_one_journal_write_what_one_does(make_store: MakeStore) -> None:
    async def check() -> None:
        journal, store = write(ACTIONS_OF_ONE), make_store()

        async def project(batch: int) -> None:
            for _ in range(200):
                await Replaying(store, journal.entries).run(batch=batch)
                cursor = await store.cursor(PARTITION)
                if cursor is not None and cursor.offset == journal.end:
                    return
            raise AssertionError("it never came to the end")

        await asyncio.gather(project(3), project(5), project(8))
        assert await transactions(store) == journal.replay().expected()
        await store.close()

    on_loop(check)


def test_a_write_whose_cursor_is_another_one_does_nothing(make_store: MakeStore) -> None:
    async def check() -> None:
        store, cursor = make_store(), Cursor(5, 0, 7)
        assert await store.apply(PARTITION, None, cursor, [Change(None, header(1))])
        before = await content(store)
        for wrong in (None, replace(cursor, part=1), replace(cursor, offset=4)):
            assert not await store.apply(PARTITION, wrong, Cursor(9), [Change(None, header(2))])
        assert await content(store) == before
        await store.close()

    on_loop(check)


def test_a_header_is_put_on_top_of_the_version_that_it_replaces_alone(
    make_store: MakeStore,
) -> None:
    async def check() -> None:
        store, first = make_store(), header(1)
        await store.apply(PARTITION, None, Cursor(1), [Change(None, first)])
        decided = replace(first, state=HeaderState.COMMITTED, timeout_ms=0, finalized_ms=3)
        await store.apply(PARTITION, Cursor(1), Cursor(2), [Change(first, decided)])
        before = await content(store)
        aborted = replace(decided, state=HeaderState.ABORTED, finalized_ms=9)
        for stale in (Change(first, aborted), Change(None, first), Change(header(2), header(2))):
            with pytest.raises(HeaderDiffersError, match="made again"):
                await store.apply(PARTITION, Cursor(2), Cursor(3), [Change(None, run(1, 0)), stale])
        assert await content(store) == before
        finished = Change(decided, replace(decided, finished=True))
        assert await store.apply(PARTITION, Cursor(2), Cursor(3), [finished])
        await store.close()

    on_loop(check)


def test_a_full_write_has_all_its_headers_checked(make_store: MakeStore) -> None:
    """Those that are new, between some that are there, and those that change."""

    async def check() -> None:
        store = make_store()
        size = min(store.mutations_max // MUTATIONS_MAX, 500)
        old = [header(2 * n) for n in range(size)]
        decided = {"state": HeaderState.COMMITTED, "timeout_ms": 0, "finalized_ms": 3}
        assert await store.apply(PARTITION, None, Cursor(1), [Change(None, h) for h in old])
        new = [Change(None, header(2 * n + 1)) for n in range(size)]
        assert await store.apply(PARTITION, Cursor(1), Cursor(2), new)
        changed = [Change(h, replace(h, **decided)) for h in old]
        assert await store.apply(PARTITION, Cursor(2), Cursor(3), changed)
        for at in (0, size // 2, size - 1):
            again = [Change(None, header(10_000 + n)) for n in range(size)]
            again[at] = new[at]
            with pytest.raises(HeaderDiffersError):
                await store.apply(PARTITION, Cursor(3), Cursor(4), again)
        assert await store.cursor(PARTITION) == Cursor(3)
        await store.close()

    on_loop(check)


def test_a_header_that_an_older_program_wrote_is_replaced(make_store: MakeStore) -> None:
    value, record = next((v, r) for v, r in OLD.items() if isinstance(r, Header))

    async def check() -> None:
        store = make_store()
        assert isinstance(store, KeyedStore)
        written = [(key, bytes.fromhex(value)) for key in keys_of(record)]
        assert await store._commit(Batch(guards={}, mutations=written))
        after = replace(record, version=record.version + 1)
        partition = record.txid.partition
        with pytest.raises(HeaderDiffersError):
            await store.apply(partition, None, Cursor(1), [Change(after, after)])
        assert await store.apply(partition, None, Cursor(1), [Change(record, after)])
        assert await store.header(record.txid) == after
        await store.close()

    on_loop(check)


def test_a_record_that_changed_since_is_not_deleted(make_store: MakeStore) -> None:
    async def check() -> None:
        store, known, other = make_store(), header(1), header(2)
        await store.apply(PARTITION, None, Cursor(1), [Change(None, known), Change(None, other)])
        decided = replace(known, state=HeaderState.COMMITTED, timeout_ms=0, finalized_ms=3)
        await store.apply(PARTITION, Cursor(1), Cursor(2), [Change(known, decided)])
        assert not await store.delete([Change(known, None), Change(other, None)])
        assert await store.header(other.txid) == other
        assert await store.delete([Change(decided, None), Change(other, None)])
        assert not [k for k in await content(store) if k[:1] in b"hdf"]
        await store.close()

    on_loop(check)


def test_what_an_older_program_wrote_is_swept(make_store: MakeStore) -> None:
    """Its value has other bytes than the same record has today."""
    value, record = next(iter(OLD.items()))

    async def check() -> None:
        store = make_store()
        assert isinstance(store, KeyedStore)
        written = [(key, bytes.fromhex(value)) for key in keys_of(record)]
        assert await store._commit(Batch(guards={}, mutations=written))
        assert not await store.delete([Change(replace(record, version=78), None)])
        assert await store.delete([Change(record, None)])
        assert not await content(store)
        await store.close()

    on_loop(check)


def test_a_range_is_read_in_order_and_in_pages(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "PAGE", 4)

    async def check() -> None:
        store = make_store()
        runs = [run(9, n, place=100 - n) for n in range(11)]
        await store.apply(PARTITION, None, Cursor(1), [Change(None, r) for r in runs])
        pages = [page async for page in store.scan(writes("orders", 1))]
        assert [len(page) for page in pages] == [4, 4, 3]
        keys = [item[0] for page in pages for item in page]
        assert keys == sorted(keys)
        assert [len(p) async for p in store.scan(writes("orders", 1, 92, 98), 5)] == [4, 1]
        assert [p async for p in store.scan(writes("orders", 2))] == []
        assert await store.operations(TxId(PARTITION, 7, 9)) == runs
        assert await store.operations(TxId(PARTITION, 7, 8)) == []
        await store.close()

    on_loop(check)


def test_a_watch_has_no_gap(make_store: MakeStore) -> None:
    """Watchers that begin while a writer writes see each of its writes once, in order."""

    async def check() -> None:
        store, watched, count = make_store(), prefixed(headers_of(PARTITION).low), 60

        async def writer() -> None:
            before: Cursor | None = None
            for number in range(count):
                known = None if number == 0 else header(1, generation_=number - 1)
                change = Change(known, header(1, generation_=number))
                after = Cursor(number + 1)
                assert await store.apply(PARTITION, before, after, [change])
                before = after
                await asyncio.sleep(0)

        async def watcher(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            seen: list[int] = []
            is_ready = False
            async for events in store.watch(watched):
                for event in events:
                    if event == READY:
                        is_ready = True
                    else:
                        assert event.value is not None
                        seen.append(timeout_of(event))
                if seen and seen[-1] == count - 1 and is_ready:
                    break
            assert seen == list(range(seen[0], count)), seen

        def timeout_of(event: Event) -> int:
            from logtx.coordinator.store.core.codec import decode

            assert event.value is not None
            found = decode(event.key, event.value)
            assert isinstance(found, Header)
            return found.created_ms

        await asyncio.gather(writer(), *(watcher(0.004 * n) for n in range(12)))
        await store.close()

    def header(begin: int, *, generation_: int) -> Header:
        return Header(
            txid=TxId(PARTITION, 7, begin),
            version=generation_,
            state=HeaderState.OPEN,
            producer_id="p",
            generation=1,
            created_ms=generation_,
            timeout_ms=5,
        )

    on_loop(check)


def test_an_entry_that_moves_is_told_as_gone_first(make_store: MakeStore) -> None:
    """So a watcher that knows operations by their sequence keeps it, whatever order keys have."""

    async def check() -> None:
        store = make_store()
        waiting = Operation(
            txid=TxId(PARTITION, 7, 1),
            seq=(2, 0),
            kind=OperationKind.WRITE,
            topic="orders",
            partition=0,
            placed=True,
        )
        assert await store.apply(PARTITION, None, Cursor(3), [Change(None, waiting)])
        events = store.watch(writes("orders", 0))
        told = await anext(events)
        while READY not in told:
            told += await anext(events)
        moved = Change(waiting, replace(waiting, place=9))
        assert await store.apply(PARTITION, Cursor(3), Cursor(4), [moved])
        told = await anext(events)
        while len(told) < 2:
            told += await anext(events)
        assert [event.value is None for event in told] == [True, False]
        await store.close()

    on_loop(check)


def test_a_watch_tells_what_was_there_then_what_changes(make_store: MakeStore) -> None:
    async def check() -> None:
        store = make_store()
        await tells(store, store.watch)
        await store.close()

    on_loop(check)


def test_a_polling_watch_tells_the_same(make_store: MakeStore) -> None:
    async def check() -> None:
        store = make_store()
        await tells(store, PollingWatch(store.scan, 0.01).watch)
        await store.close()

    on_loop(check)


async def tells(store: MetadataStore, watch: Callable[..., AsyncIterator[list[Event]]]) -> None:
    """Checks what a watch tells of a write that gets its place, and of one that goes."""
    waiting, placed = run(9, 0), run(9, 0, place=40)
    await store.apply(PARTITION, None, Cursor(1), [Change(None, waiting)])
    events = watch(writes("orders", 1))
    (first,) = await anext(events)
    assert first.value is not None
    assert await anext(events) == [READY]
    await store.apply(PARTITION, Cursor(1), Cursor(2), [Change(waiting, placed)])
    told = await anext(events)
    assert {e.key: e.value is None for e in told} == {
        first.key: True,
        **{e.key: False for e in told if e.key != first.key},
    }
    assert len(told) == 2
    assert await store.delete([Change(placed, None)])
    (gone,) = await anext(events)
    assert gone.value is None


def test_a_store_is_emptied_of_one_journal_partition(make_store: MakeStore) -> None:
    async def check() -> None:
        journal, store = write(ACTIONS_OF_ONE), make_store()
        other = Header(
            txid=TxId(PARTITION + 1, 7, 1),
            version=1,
            state=HeaderState.OPEN,
            producer_id="p",
            generation=1,
            created_ms=1,
            timeout_ms=9,
        )
        await store.apply(PARTITION + 1, None, Cursor(2), [Change(None, other)])
        await Replaying(store, journal.entries).run()
        await clear(store, PARTITION, await store.cursor(PARTITION))
        assert (await transactions(store)).keys() == {other.txid}
        assert await store.cursor(PARTITION) is None
        await Replaying(store, journal.entries).run()
        assert await transactions(store) == {
            **journal.replay().expected(),
            other.txid: (await transactions(store))[other.txid],
        }
        await store.close()

    on_loop(check)
