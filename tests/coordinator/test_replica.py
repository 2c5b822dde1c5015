"""A journal that has gaps or holds what can't be: its partition stops, with the offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest

from logtx.coordinator import loading
from logtx.coordinator.decision import ShardConfig
from logtx.coordinator.replica import Replica
from logtx.coordinator.snapshot import SnapshotTaker
from logtx.journal.errors import CorruptRecordError
from logtx.journal.memory_log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC, read_entries
from logtx.journal.record_codec import encode_entry
from logtx.journal.records import Begin, Bind, Entry, Owner, ProducerRecord
from logtx.journal.txid import MAX_INCARNATION

from .harness import INCARNATION, PARTITION, load
from .test_bad_clients import RawStream, connect, still_served
from .test_bad_journals import start

OWNER = Owner(replaces=-1, address="c1", process_nonce=1)
SENSELESS = MAX_INCARNATION + 1
"""It decodes, and no TxId can be made of it."""


def journal(incarnation: int = INCARNATION) -> list[Entry]:
    """A producer's transaction, the first of the journal."""
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


@pytest.mark.parametrize("lost", [1, 2], ids=["within", "at the end"])
def test_a_load_over_a_gap_fails(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1)
    for entry in journal():
        memory_log.append_directly(JOURNAL_TOPIC, 0, encode_entry(entry))

    def without(*args: object, **named: object) -> Iterator[tuple[int, Entry]]:
        """Control records are not handed to readers."""
        read: Iterator[tuple[int, Entry]] = read_entries(*args, **named)  # type: ignore[arg-type]
        yield from (found for found in read if found[0] != lost)

    monkeypatch.setattr(loading, "read_entries", without)
    with pytest.raises(CorruptRecordError, match=f"at offset {lost}: no record"):
        loading.load(memory_log, 0, ShardConfig(), timeout_s=5)


def test_a_senseless_record_stops_its_partition_alone(memory_log: MemoryLog) -> None:
    with start(memory_log):
        pass
    memory_log.truncate(JOURNAL_TOPIC, 0, 0)
    for entry in journal(SENSELESS):
        memory_log.append_directly(JOURNAL_TOPIC, 0, encode_entry(entry))
    with start(memory_log) as running, grpc.insecure_channel(running.address) as channel:
        still_served(channel)
        (reply,) = RawStream(channel, connect(0)).read(1)
    assert reply.error.code == CorruptRecordError.code, reply
    assert "at offset 2" in reply.error.message
