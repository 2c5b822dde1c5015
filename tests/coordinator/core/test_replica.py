"""A journal with gaps or impossible records: its partition stops, and says at which offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.snapshot import SnapshotTaker
from logtx.coordinator.runtime import loading
from logtx.journal.control import BranchRange
from logtx.journal.errors import CorruptRecordError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC, read_entries
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import (
    Begin,
    Bind,
    Committed,
    DataPartition,
    Entry,
    Owner,
    PartitionWrites,
    PrepareCommit,
    ProducerRecord,
)
from logtx.journal.txid import MAX_INCARNATION

from ..harness import INCARNATION, PARTITION, load

OWNER = Owner(replaces=-1, address="c1", process_nonce=1)
SENSELESS = MAX_INCARNATION + 1
"""An incarnation that decodes, but that no TxId can have."""


def journal(incarnation: int = INCARNATION) -> list[Entry]:
    """Returns a journal with one producer and its first transaction."""
    begin = Begin(
        producer_id="p",
        generation=0,
        session_nonce=1,
        request_id=1,
        answered_below=0,
        timeout_ms=9,
        started_ms=1,
        partitions=(),
    )
    producer = ProducerRecord(producer_id="p", generation=0, session_nonce=1, owner="")
    return [
        Entry(-1, incarnation, OWNER),
        Entry(0, incarnation, producer, 1),
        Entry(0, incarnation, begin, 2),
    ]


@pytest.mark.parametrize("certain", [True, False])
def test_a_gap_is_an_error_with_its_offset(certain: bool) -> None:
    replica = Replica(PARTITION, ShardConfig(), 7, certain=certain)
    bind = Bind(group="g", transaction_group="t")
    replica.feed(7, Entry(0, INCARNATION, bind, 7))
    with pytest.raises(CorruptRecordError, match=f"partition {PARTITION} at offset 8: no record"):
        replica.feed(9, Entry(0, INCARNATION, bind, 9))


def test_a_senseless_record_is_an_error_with_its_offset() -> None:
    replica = Replica(PARTITION, ShardConfig())
    *before, last = journal(SENSELESS)
    for offset, entry in enumerate(before):
        replica.feed(offset, entry)
    with pytest.raises(CorruptRecordError, match="at offset 2: the record does not follow"):
        replica.feed(2, last)


def test_a_senseless_snapshot_is_void_to_who_is_not_certain() -> None:
    shard = load(journal())
    taker = SnapshotTaker(shard)
    good = shard.entry(taker.chunk())
    assert taker.done
    bad = replace(good, incarnation=SENSELESS)
    replica = Replica(PARTITION, ShardConfig(), 3)
    replica.feed(3, bad)
    assert not replica.ready


def test_finding_23_a_checkpoint_that_leads_elsewhere_vouches_for_no_snapshot() -> None:
    """After a restore it may: the snapshot that is met behind it is looked at like any other."""
    shard = load(journal())
    taker = SnapshotTaker(shard)
    chunk = shard.entry(taker.chunk())
    assert taker.done
    void = replace(chunk, predicted=chunk.predicted + 1)
    for certain, ready in ((True, True), (False, False)):
        replica = Replica(PARTITION, ShardConfig(), 3, certain=certain)
        replica.feed(3, chunk if certain else void)
        assert replica.ready is ready
    # It says that a snapshot begins at 2; a plain record lies there, and the void snapshot behind.
    replica = Replica(PARTITION, ShardConfig(), 2, certain=True)
    replica.feed(2, journal()[2])
    replica.feed(3, void)
    assert not replica.certain
    assert not replica.ready


@pytest.mark.parametrize("lost", [1, 2], ids=["within", "at the end"])
def test_a_load_over_a_gap_fails(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1)
    for entry in journal():
        memory_log.append_directly(JOURNAL_TOPIC, 0, encode_entry(entry))

    def without(*args: object, **named: object) -> Iterator[tuple[int, Entry]]:
        """Reads the journal without the lost record, as if it were a control record."""
        read: Iterator[tuple[int, Entry]] = read_entries(*args, **named)  # type: ignore[arg-type]
        yield from (found for found in read if found[0] != lost)

    monkeypatch.setattr(loading, "read_entries", without)
    with pytest.raises(CorruptRecordError, match=f"at offset {lost}: no record"):
        loading.load(memory_log, 0, ShardConfig(), timeout_s=5)


@pytest.mark.parametrize("finished", [False, True])
def test_of_what_is_not_finished_a_load_reads_what_was_decided(
    memory_log: MemoryLog, finished: bool
) -> None:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1)
    writes = (PartitionWrites(DataPartition("data", 3, "id"), (BranchRange(0, 5, 9, 5),)),)
    decision = encode_entry(
        Entry(0, INCARNATION, PrepareCommit(begin=2, writes=writes, decided_ms=7), 3)
    )
    values = [encode_entry(e) for e in journal()]
    if finished:
        # A finished transaction's decision is not needed any more, so it is not decoded.
        end = encode_entry(Entry(0, INCARNATION, Committed(begin=2), 4))
        values += [decision[:-3], end]
    else:
        values.append(decision)
    for value in values:
        memory_log.append_directly(JOURNAL_TOPIC, 0, value=value)
    shard = loading.load(memory_log, 0, ShardConfig(), timeout_s=5).shard
    assert len(shard.transactions) == (0 if finished else 1)
    for found in shard.transactions:
        assert found.branches == {("data", 3): (BranchRange(0, 5, 9, 5),)}
        assert found.partitions == {("data", 3): DataPartition("data", 3, "id")}


def test_what_was_decided_and_does_not_decode_is_an_error_with_its_offset(
    memory_log: MemoryLog,
) -> None:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1)
    decision = Entry(0, INCARNATION, PrepareCommit(begin=2, writes=(), decided_ms=7), 3)
    for value in (*map(encode_entry, journal()), encode_entry(decision)[:-1]):
        memory_log.append_directly(JOURNAL_TOPIC, 0, value=value)
    with pytest.raises(CorruptRecordError, match="at offset 3: the journal record does not decode"):
        loading.load(memory_log, 0, ShardConfig(), timeout_s=5)
