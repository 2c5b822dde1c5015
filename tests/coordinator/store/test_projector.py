"""The projector on a journal in a log: where it begins, and what it does when a store is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from logtx.coordinator.protocol.metadata import HeaderState, Operation
from logtx.coordinator.store import projector as module
from logtx.coordinator.store.base import MetadataStore
from logtx.coordinator.store.core.changes import Change, Cursor, Write
from logtx.coordinator.store.counters import StoreCounters
from logtx.coordinator.store.keyed import Batch, encoded
from logtx.coordinator.store.memory import MemoryStore
from logtx.coordinator.store.projector import Projector, find_base
from logtx.integration.inspect.metadata import Expected
from logtx.journal.errors import CorruptRecordError, MetadataStoreError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.places import PartitionId
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import (
    Owner,
    PartitionWrites,
    Snapshot,
    SnapshotHanded,
    SnapshotPlaces,
    SnapshotSteps,
    SnapshotTransaction,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .journals import GROUP, INCARNATION, PARTITION, TOPICS, Journal, data
from .stores import transactions

TIMEOUT_S = 90.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes pauses short."""
    monkeypatch.setattr(module, "POLL_S", 0.005)
    monkeypatch.setattr(module, "PAUSE_MIN_S", 0.005)
    monkeypatch.setattr(module, "PAUSE_MAX_S", 0.05)


class Written:
    """A journal partition in a log, to which a writer appends."""

    def __init__(self) -> None:
        self.log = MemoryLog("projected")
        self.log.create_topic(JOURNAL_TOPIC, partitions=PARTITION + 1)
        self._producer = self.log.producer({})
        self._written = 0

    def write(self, journal: Journal) -> None:
        """Appends what the writer appended since."""
        for _, entry in journal.entries[self._written :]:
            self.append(encode_entry(entry))
        self._written = len(journal.entries)

    def append(self, raw: bytes) -> None:
        """Appends a record."""
        self._producer.produce(JOURNAL_TOPIC, raw, partition=PARTITION)
        self._producer.flush(5)

    def begin_anew(self) -> None:
        """Deletes the journal, and creates an empty one."""
        self.log.delete_topic(JOURNAL_TOPIC)
        self.log.create_topic(JOURNAL_TOPIC, partitions=PARTITION + 1)
        self._written = 0

    def trim(self, offset: int) -> None:
        """Deletes the journal below an offset."""
        self.log.delete_records(JOURNAL_TOPIC, PARTITION, offset)


@asynccontextmanager
async def projecting(written: Written, store: MetadataStore) -> AsyncIterator[Projector]:
    """Runs a projector of one journal partition."""
    projector = Projector(written.log, store, lambda: [PARTITION], StoreCounters())
    running = asyncio.create_task(projector.run())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield projector
    finally:
        running.cancel()
        await asyncio.wait([running])
        await projector.close()
        assert running.cancelled() or running.exception() is None, running.exception()


async def caught_up(projector: Projector, journal: Journal) -> None:
    """Waits until the store has all of a journal."""
    await projector.projected({PARTITION: journal.end}, TIMEOUT_S)


async def written_up_to(store: MetadataStore, end: int) -> None:
    """Waits until a store has a journal, whatever its projector says of it."""
    for _ in range(2_000):
        cursor = await store.cursor(PARTITION)
        if cursor is not None and cursor.offset >= end:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it was not projected")


def story(journal: Journal) -> None:
    """Appends transactions in all states."""
    first, second = journal.begin([data(0, 1, 3)]), journal.begin()
    journal.move(second, 0)
    journal.commit(first, [data(0, 1), data(1, 2)])
    journal.commit(second, [data(1, 0), data(1, 2), data(2, 1)])
    journal.place([2])
    journal.abort(journal.begin([data(1, 1)]))
    journal.part(journal.begin(), data(1, 1))
    journal.move(journal.begin(), 1)


def test_a_journal_is_followed_from_its_start() -> None:
    async def check() -> None:
        written, store, journal = Written(), MemoryStore(), Journal()
        async with projecting(written, store) as projector:
            for _ in range(3):
                story(journal)
                written.write(journal)
                await caught_up(projector, journal)
                assert await transactions(store) == journal.replay().expected()
            assert projector.describe({PARTITION: journal.end + 2})[0].lag_records == 2

    asyncio.run(check())


# ---- snapshots ----------------------------------------------------------------------------------


def snapshot(
    journal: Journal, *, fence: int = -1, chunks: int = 2, between: Callable[[], None] | None = None
) -> int:
    """Appends what the owner would say of the transactions that are not finished."""
    first = journal.end
    expected = journal.replay().expected()
    unfinished = [e for e in expected.values() if not e.header.finished]
    rows = [row for each in unfinished for row in _rows(each)]
    places = [p for each in unfinished if (p := _places(each)) is not None]
    handed = [h for each in unfinished if (h := _handed(each)) is not None]
    for index in range(chunks):
        last = index == chunks - 1
        share = slice(index * len(rows) // chunks, (index + 1) * len(rows) // chunks)
        journal.append(
            Snapshot(
                first=first,
                index=index,
                last=last,
                replaces=-1,
                address="a:1",
                process_nonce=1,
                partition_count=8,
                past_epochs=(),
                transactions=tuple(rows[share]),
                places=tuple(places) if last else (),
                handed=tuple(handed) if last else (),
                fence=fence,
            )
        )
        if between is not None and not last:
            between()
    return first


def _rows(expected: Expected) -> list[SnapshotTransaction]:
    """Returns the rows of one transaction: its writes apart from the rest of it."""
    header, states = (
        expected.header,
        {
            HeaderState.OPEN: State.OPEN,
            HeaderState.COMMITTED: State.COMMITTING,
            HeaderState.ABORTED: State.ABORTING,
        },
    )
    runs = [o for o in expected.operations if o.count]
    bare = SnapshotTransaction(
        begin=header.txid.offset,
        producer_id=header.producer_id,
        generation=header.generation,
        timeout_ms=60_000,
        started_ms=header.created_ms,
        state=states[header.state],
        commit_sequence=header.commit_sequence,
        reason=header.reason,
    )
    registered = [o for o in expected.operations if not o.count and o.to is None]
    steps = [o for o in expected.operations if o.to is not None]
    return [
        bare._replace(
            partitions=tuple(
                data(TOPICS.index(o.topic), o.partition, o.first_offset) for o in registered
            ),
            steps=(SnapshotSteps(GROUP, tuple(map(_step, steps)), ()),) if steps else (),
        ),
        bare._replace(writes=tuple(map(_writes, runs))),
    ]


def _step(operation: Operation) -> Any:
    from logtx.journal.records.types import OffsetStep

    assert operation.to is not None
    return OffsetStep(operation.topic, operation.partition, operation.from_place, operation.to)


def _writes(operation: Operation) -> PartitionWrites:
    from logtx.journal.control import BranchRange

    first, last = operation.first_offset, operation.last_offset
    run = BranchRange(operation.branch, first, last, operation.count)
    partition = data(TOPICS.index(operation.topic), operation.partition)
    return PartitionWrites(partition, (run,))


def _places(expected: Expected) -> SnapshotPlaces | None:
    header = expected.header
    rows = tuple(
        (PartitionId(o.topic, o.partition, o.topic_id), o.last_offset + 1, o.place)
        for o in expected.operations
        if o.placed and o.topic != TOPICS[2]
    )
    if not rows or header.commit_sequence is None:
        return None
    return SnapshotPlaces(header.txid.offset, header.commit_sequence, tuple(dict.fromkeys(rows)))


def _handed(expected: Expected) -> SnapshotHanded | None:
    found = {(o.topic, o.partition): 4 for o in expected.operations if o.topic == TOPICS[2]}
    return SnapshotHanded(expected.header.txid.offset, tuple(found.items())) if found else None


def forms(found: dict[TxId, Expected]) -> dict[TxId, tuple[Any, ...]]:
    """Returns what does not depend on where a projection began."""
    return {
        txid: (
            each.header.state,
            each.header.finished,
            each.header.commit_sequence,
            each.header.timeout_ms,
            sorted(
                (o.kind, o.topic, o.partition, o.first_offset, o.count, o.place or -1, str(o.to))
                for o in each.operations
            ),
        )
        for txid, each in found.items()
    }


def test_a_trimmed_journal_is_begun_at_a_snapshot() -> None:
    """What it lists is restored; what lies between its chunks comes on top."""

    async def check() -> None:
        written, store, journal = Written(), MemoryStore(), Journal()
        story(journal)
        first = snapshot(journal, between=lambda: journal.place([0, 2]))
        story(journal)
        journal.finish(0)
        written.write(journal)
        written.trim(first)
        expected = {
            t: e
            for t, e in journal.replay().expected().items()
            if t.offset >= first or not e.header.finished or e.header.version > first
        }
        async with projecting(written, store) as projector:
            await caught_up(projector, journal)
            assert forms(await transactions(store)) == forms(expected)

    asyncio.run(check())


def test_the_earliest_fence_is_where_it_begins() -> None:
    written, journal = Written(), Journal()
    story(journal)
    zero = snapshot(journal)
    story(journal)
    one = snapshot(journal, fence=zero)
    story(journal)
    snapshot(journal, fence=one)
    written.write(journal)
    assert find_base(written.log, PARTITION) == 0
    written.trim(1)
    assert find_base(written.log, PARTITION) == zero
    written.trim(zero + 1)
    assert find_base(written.log, PARTITION) == one


def test_trap_137_the_snapshot_that_the_journal_was_trimmed_to_is_where_it_begins() -> None:
    written, journal = Written(), Journal()
    story(journal)
    zero = snapshot(journal)
    story(journal)
    one = snapshot(journal)
    story(journal)
    # The journal was trimmed to `zero`, and now `one` waits: nobody names `zero`.
    snapshot(journal, fence=one)
    written.write(journal)
    written.trim(zero)
    assert find_base(written.log, PARTITION) == zero


def test_a_journal_without_a_snapshot_where_it_begins_is_refused() -> None:
    written, journal = Written(), Journal()
    story(journal)
    written.write(journal)
    written.trim(4)
    with pytest.raises(CorruptRecordError, match="restore the journal"):
        find_base(written.log, PARTITION)


def test_a_store_behind_the_journals_start_is_made_again() -> None:
    async def check() -> None:
        written, store, journal = Written(), MemoryStore(), Journal()
        story(journal)
        written.write(journal)
        async with projecting(written, store) as projector:
            await caught_up(projector, journal)
        while journal.decided:
            journal.place([0, 1, 2])
            journal.finish(0)
        for begin in list(journal.open):
            journal.abort(begin)
            journal.finish(0)
        first = snapshot(journal)
        last = journal.begin()
        written.write(journal)
        written.trim(first)
        async with projecting(written, store) as projector:
            await caught_up(projector, journal)
            assert [t.offset for t in await transactions(store)] == [last]

    asyncio.run(check())


def test_a_journal_that_was_made_anew_empties_the_store() -> None:
    async def check() -> None:
        written, store, journal = Written(), MemoryStore(), Journal()
        for _ in range(2):
            journal.begin()
        written.write(journal)
        async with projecting(written, store) as projector:
            await caught_up(projector, journal)
        written.begin_anew()
        another = Journal(incarnation=INCARNATION + 1)
        story(another)
        written.write(another)
        replay = another.replay()
        async with projecting(written, store) as projector:
            await caught_up(projector, another)
            assert await transactions(store) == replay.expected()

    asyncio.run(check())


# ---- faults -------------------------------------------------------------------------------------


class Flaky(MemoryStore):
    """A store that fails when told, before or after it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[str] = []
        self.calls = 0

    async def write(self, partition: int, expected: Cursor | None, write: Write) -> bool:
        """Fails before or after it has written, as the next failure says."""
        self.calls += 1
        what = self.failures.pop(0) if self.failures else ""
        if what == "before":
            raise MetadataStoreError("nothing was written")
        done = await super().write(partition, expected, write)
        if what == "after":
            raise MetadataStoreError("the answer was lost")
        return done


def test_a_store_that_fails_is_tried_again() -> None:
    async def check() -> None:
        written, store, journal = Written(), Flaky(), Journal()
        async with projecting(written, store) as projector:
            for failures in (["before"] * 5, ["after"], ["before", "after", "after", "before"]):
                store.failures = failures
                story(journal)
                written.write(journal)
                await caught_up(projector, journal)
                assert await transactions(store) == journal.replay().expected()
            assert projector.store_problem == ""

    asyncio.run(check())


def test_a_store_that_keeps_failing_is_told_to_those_who_wait() -> None:
    async def check() -> None:
        written, store, journal = Written(), Flaky(), Journal()
        store.failures = ["before"] * 10_000
        story(journal)
        written.write(journal)
        async with projecting(written, store) as projector:
            with pytest.raises(MetadataStoreError, match=r"nothing was written.*fresh=False"):
                await projector.projected({PARTITION: journal.end}, 0.5)
        assert store.calls < 150  # the pauses grow

    asyncio.run(check())


def test_a_store_that_is_lost_while_it_is_written_is_made_again() -> None:
    async def check() -> None:
        written, store, journal = Written(), MemoryStore(), Journal()
        async with projecting(written, store) as projector:
            story(journal)
            written.write(journal)
            await caught_up(projector, journal)
            store._keys.clear()
            store._values.clear()
            store._operations = 0
            story(journal)
            written.write(journal)
            await written_up_to(store, journal.end)
            assert await transactions(store) == journal.replay().expected()

    asyncio.run(check())


def test_a_store_in_which_a_header_is_another_one_is_made_again() -> None:
    """Somebody else wrote it: the projector must not take it for what it wrote."""

    async def check() -> None:
        written, store, journal = Written(), MemoryStore(), Journal()
        async with projecting(written, store) as projector:
            begin = journal.begin()
            written.write(journal)
            await caught_up(projector, journal)
            known = await store.header(TxId(PARTITION, INCARNATION, begin))
            assert known is not None
            other = replace(known, state=HeaderState.ABORTED, timeout_ms=0, finalized_ms=3)
            foreign, _ = encoded([Change(known, other)])
            assert await store._commit(Batch(guards={}, mutations=foreign))
            story(journal)
            journal.abort(begin)
            written.write(journal)
            await written_up_to(store, journal.end)
            assert await transactions(store) == journal.replay().expected()

    asyncio.run(check())


def test_a_record_that_does_not_decode_is_told_and_does_not_end_it() -> None:
    async def check() -> None:
        written, store, journal = Written(), MemoryStore(), Journal()
        story(journal)
        written.write(journal)
        async with projecting(written, store) as projector:
            await caught_up(projector, journal)
            written.append(b"\x05\xfenonsense")
            with pytest.raises(MetadataStoreError, match="upgrade"):
                await projector.projected({PARTITION: journal.end + 1}, 1)
            assert await transactions(store) == journal.replay().expected()
            assert "upgrade" in projector.describe({})[0].problem

    asyncio.run(check())


def test_a_cursor_remembers_that_its_epoch_was_surprised() -> None:
    """A projector that is killed behind the surprise must not take what follows for valid."""

    async def check() -> None:
        written, store, journal = Written(), MemoryStore(), Journal()
        journal.begin()
        journal.append(Owner(replaces=77, address="b:1", process_nonce=2), predicted=-1)
        written.write(journal)
        async with projecting(written, store) as projector:
            await caught_up(projector, journal)
        void = journal.begin()
        written.write(journal)
        async with projecting(written, store) as projector:
            await caught_up(projector, journal)
            assert void not in [t.offset for t in await transactions(store)]

    asyncio.run(check())
