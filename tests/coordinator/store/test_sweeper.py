"""What sweeps delete, and what they must leave: over all back ends, and a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from logtx.coordinator.protocol.metadata import HeaderState
from logtx.coordinator.store.base import MetadataStore
from logtx.coordinator.store.core.changes import Change
from logtx.coordinator.store.core.codec import decode
from logtx.coordinator.store.core.keys import headers_of
from logtx.coordinator.store.counters import StoreCounters
from logtx.coordinator.store.memory import MemoryStore
from logtx.coordinator.store.sweeper import Sweeper
from logtx.integration.inspect.metadata import Expected
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.txid import TxId

from .conftest import MakeStore
from .journals import INCARNATION, PARTITION, TOPICS, Journal, data
from .stores import Replaying, transactions

NOW_MS = 10_000_000
PLACED = TOPICS[1]


@pytest.fixture
def log() -> MemoryLog:
    """A log with the data topics, of 20 records in each partition."""
    made = MemoryLog("swept")
    for topic in TOPICS:
        made.create_topic(topic, partitions=3)
    producer = made.producer({})
    for partition in range(3):
        for _ in range(20):
            producer.produce(PLACED, b"x", partition=partition)
    producer.flush(5)
    return made


def placed_journal(log: MemoryLog, count: int = 3) -> Journal:
    """Returns the journal of some transactions that are placed and finished, 8 offsets apart."""
    journal = Journal(topic_ids=tuple(log.topic_info(topic).topic_id for topic in TOPICS))
    for _ in range(count):
        journal.commit(journal.begin(), [journal.data(1, 0), journal.data(1, 2)])
        journal.place([0, 2])
        journal.finish(0)
    return journal


def run(
    make_store: MakeStore,
    journal: Journal,
    log: MemoryLog,
    test: Callable[[MetadataStore, Sweeper], Coroutine[Any, Any, None]],
    history_ms: int | None = None,
) -> None:
    """Projects a journal, and runs a test with a sweeper of the store."""

    async def whole() -> None:
        async with asyncio.timeout(120):
            store = make_store()
            await Replaying(store, journal.entries).run()
            sweeper = Sweeper(
                log,
                store,
                StoreCounters(),
                mine=lambda: [PARTITION],
                history_ms=history_ms,
                header_retention_ms=60_000,
            )
            await test(store, sweeper)
            sweeper.close()
            await store.close()

    asyncio.run(whole())


def begins(found: dict[TxId, Expected]) -> list[int]:
    """Returns the offsets of the BEGINs of some transactions."""
    assert all(t.journal == (PARTITION, INCARNATION) for t in found)
    return sorted(t.offset for t in found)


def test_what_is_placed_is_kept_while_its_data_is_there(
    make_store: MakeStore, log: MemoryLog
) -> None:
    journal = placed_journal(log)

    async def check(store: MetadataStore, sweeper: Sweeper) -> None:
        before = await transactions(store)
        first, second, third = sorted(before, key=lambda t: t.offset)
        places = [sorted({o.place for o in before[t].operations}) for t in (first, second, third)]
        assert places == [[p] for [p] in places]
        await sweeper.sweep(NOW_MS)
        assert await transactions(store) == before  # long past the header's retention
        (place,) = places[0]
        assert place is not None
        log.delete_records(PLACED, 0, place)
        await sweeper.sweep(NOW_MS)
        assert await transactions(store) == before  # a reader at the log's start is owed it yet
        log.delete_records(PLACED, 0, place + 1)
        await sweeper.sweep(NOW_MS)
        left = (await transactions(store))[first].operations
        assert {o.partition for o in left} == {2}
        log.delete_records(PLACED, 2, place + 1)
        await sweeper.sweep(NOW_MS)
        assert begins(await transactions(store)) == [second.offset, third.offset]

    run(make_store, journal, log, check)


def test_the_operations_of_a_topic_that_is_gone_go(make_store: MakeStore, log: MemoryLog) -> None:
    journal = placed_journal(log)

    async def check(store: MetadataStore, sweeper: Sweeper) -> None:
        log.delete_topic(PLACED)
        await sweeper.sweep(NOW_MS)
        assert await transactions(store) == {}

    run(make_store, journal, log, check)


def test_headers_without_operations_go_when_they_are_old(
    make_store: MakeStore, log: MemoryLog
) -> None:
    journal = Journal()
    journal.commit(journal.begin(), [data(0, 1)])
    journal.finish(0)
    journal.abort(journal.begin())
    journal.finish(0)
    open_ = journal.begin([data(0, 0)])
    unfinished = journal.begin()
    journal.commit(unfinished, [data(0, 2)])

    async def check(store: MetadataStore, sweeper: Sweeper) -> None:
        before = await transactions(store)
        finalized = [e.header.finalized_ms for e in before.values() if e.header.finished]
        await sweeper.sweep(max(finalized) + 60_000)
        states = {e.header.state for e in (await transactions(store)).values()}
        assert HeaderState.ABORTED in states  # the last one is not old enough
        await sweeper.sweep(max(finalized) + 60_001)
        left = await transactions(store)
        assert begins(left) == [open_, unfinished]
        assert left == {t: e for t, e in before.items() if t in left}

    run(make_store, journal, log, check)


def test_a_window_of_time_deletes_what_is_placed_too(make_store: MakeStore, log: MemoryLog) -> None:
    journal = placed_journal(log)
    open_ = journal.begin()

    async def check(store: MetadataStore, sweeper: Sweeper) -> None:
        found = await transactions(store)
        last_ms = max(e.header.finalized_ms for e in found.values())
        await sweeper.sweep(last_ms + 1_000)
        left = await transactions(store)
        assert len(left) == 2  # the last one and the open one
        assert open_ in begins(left)

    run(make_store, journal, log, check, history_ms=1_000)


def test_a_header_that_is_there_says_that_all_operations_are(log: MemoryLog) -> None:
    """While a sweep deletes them one by one: a reader would drop what is committed."""
    journal = placed_journal(log)

    class Small(MemoryStore):
        async def delete(self, changes: Sequence[Change]) -> bool:
            """Deletes, and looks at what is left."""
            done = await super().delete(changes)
            for page in [page async for page in self.scan(headers_of(PARTITION))]:
                for txid in (decode(*item).txid for item in page):
                    assert len(await self.operations(txid)) == len(complete[txid].operations)
            return done

    store = Small(mutations_max=3)
    complete: dict[TxId, Expected] = {}

    async def check(store: MetadataStore, sweeper: Sweeper) -> None:
        complete.update(await transactions(store))
        last_ms = max(e.header.finalized_ms for e in complete.values())
        await sweeper.sweep(last_ms + 1_001)
        assert await transactions(store) == {}

    run(lambda: store, journal, log, check, history_ms=1_000)


def test_a_transaction_that_finishes_late_goes_too(make_store: MakeStore, log: MemoryLog) -> None:
    """It was decided long before what the last sweep looked at."""
    journal = Journal()
    late = journal.begin()
    journal.commit(late, [data(0, 0)])
    for _ in range(3):
        journal.abort(journal.begin())
    while len(journal.decided) > 1:
        journal.finish(1)
    length = journal.end
    journal.finish(0)

    whole, journal.entries = journal.entries, journal.entries[:length]

    async def check(store: MetadataStore, sweeper: Sweeper) -> None:
        await sweeper.sweep(NOW_MS)
        assert begins(await transactions(store)) == [late]
        journal.entries = whole
        await Replaying(store, journal.entries).run()
        for _ in range(60):
            await sweeper.sweep(NOW_MS)
        assert await transactions(store) == {}

    run(make_store, journal, log, check)


def test_a_log_that_does_not_answer_deletes_nothing(
    make_store: MakeStore, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logtx.journal.errors import BrokerError

    def fails(*_: Any, **__: Any) -> None:
        raise BrokerError("no answer")

    monkeypatch.setattr(log, "topics", fails)
    journal = placed_journal(log)

    async def check(store: MetadataStore, sweeper: Sweeper) -> None:
        before = await transactions(store)
        await sweeper.sweep(NOW_MS)
        assert await transactions(store) == before

    run(make_store, journal, log, check)
