"""``isolation.level=serializable``: poll and consume deliver in the order of the decisions."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Message, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.consumer.position_store import Taken, TransactionPositions
from logtx.consumer.reading import FETCH_EVERY_S
from logtx.journal.control import TXID_HEADER
from logtx.journal.errors import (
    BrokerError,
    TornTransactionError,
    UnknownRecordError,
    UnknownTopicError,
)
from logtx.journal.logs.interface import GroupOffset
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC
from logtx.journal.records.types import Owner, PartitionWrites, PrepareCommit, Snapshot
from logtx.journal.records.types import SnapshotTransaction as Row
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..waiting import eventually
from .conftest import MakeConsumer
from .logs import INCARNATION, Transactions, nothing_more, read

pytestmark = pytest.mark.usefixtures("quick_looks")

PLACES = [TopicPartition("t", number) for number in range(3)]


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory, so that each test has a journal of its own."""
    memory_log.create_topic("t", partitions=3)
    return memory_log


@pytest.fixture
def serial(make_consumer: MakeConsumer) -> MakeConsumer:
    """Makes consumers of all three partitions, or of the named ones."""

    def make(*partitions: int, **settings: object) -> Consumer:
        consumer = make_consumer(isolation_level="serializable", **settings)
        consumer.assign([PLACES[p] for p in partitions] if partitions else PLACES)
        return consumer

    return make


def across(written: Transactions, name: bytes, *counts: int) -> TxId:
    """Writes `counts` records to partitions 0, 1 and 2, and decides. Writes no marker."""
    txid = written.begin()
    for partition, count in enumerate(counts):
        if count:
            values = [b"%s-%d%d" % (name, partition, n) for n in range(count)]
            written.write(txid, "t", values, partition)
    written.decide(txid)
    return txid


def mark(written: Transactions, txid: TxId, *partitions: int) -> None:
    for partition in partitions:
        written.mark(txid, "t", partition)


def test_trap_23_each_transaction_in_a_row_in_decision_order(
    written: Transactions, serial: MakeConsumer
) -> None:
    first, second = across(written, b"a", 2, 1), across(written, b"b", 1, 0, 1)
    written.append("t", [b"plain"], partition=2)
    mark(written, first, 0)
    mark(written, second, 0, 2)
    consumer = serial()
    assert nothing_more(consumer)
    mark(written, first, 1)
    assert read(consumer, 5) == [b"a-00", b"a-01", b"a-10", b"b-00", b"b-20"]
    assert nothing_more(consumer, 0.1)
    assert consumer.stats()["passed_records"] == 1


def test_decisions_that_are_not_due_here_drop_nothing_of_what_is_being_delivered(
    written: Transactions, serial: MakeConsumer
) -> None:
    consumer = serial(0, 1)
    first = across(written, b"a", 2, 1)
    mark(written, first, 0, 1)
    assert read(consumer, 1) == [b"a-00"]
    mark(written, across(written, b"b", 0, 0, 1), 2)
    time.sleep(FETCH_EVERY_S)  # It reads on, and finds that the second decision is not due.
    assert read(consumer, 2) == [b"a-01", b"a-10"]


def test_other_groups_are_passed_over_and_counted(
    written: Transactions, serial: MakeConsumer
) -> None:
    foreign = TxId(1, INCARNATION, 5)
    written.write(foreign, "t", [b"f1", b"f2"], 0)
    written.sequences[foreign] = 7
    written.mark(foreign, "t", 0)
    written.append("t", [b"p"], partition=0)
    mark(written, across(written, b"a", 1), 0)
    consumer = serial()
    assert read(consumer, 1) == [b"a-00"]
    assert consumer.counters.passed_records == 3
    assert consumer.stats()["pending_transactions"] == 0


def test_trap_18_a_stop_after_every_record_goes_on_exactly(
    written: Transactions, serial: MakeConsumer
) -> None:
    hanging = written.begin()
    written.write(hanging, "t", [b"h"], 1)
    for name in (b"a", b"b", b"c"):
        mark(written, across(written, name, 2, 0, 3), 0, 2)
        mark(written, across(written, name + name, 0, 2, 1), 1, 2)
    consumer = serial()
    want = read(consumer, 24)
    consumer.close()
    group, got = "stops", []
    for _ in want:
        consumer = serial(group_id=group, enable_auto_commit=False)
        got += read(consumer, 1)
        consumer.commit(asynchronous=False)
        consumer.close()
    assert got == want
    consumer = serial(group_id=group)
    assert nothing_more(consumer)
    mark(written, hanging, 1)
    assert read(consumer, 1) == [b"h"]


def test_commit_of_a_message_counts_up_to_it_in_its_partition(
    written: Transactions, serial: MakeConsumer
) -> None:
    mark(written, across(written, b"a", 3, 2), 0, 1)
    mark(written, across(written, b"b", 2), 0)
    consumer = serial(enable_auto_commit=False)
    found: list[Message] = []
    while len(found) < 7:
        found += consumer.consume(7 - len(found), 1)
    by_value = {m.value(): m for m in found}
    for value, rest in (
        (b"a-00", [b"a-01", b"a-02", b"a-10", b"a-11", b"b-00", b"b-01"]),
        (b"a-02", [b"a-10", b"a-11", b"b-00", b"b-01"]),
        (b"b-00", [b"a-10", b"a-11", b"b-01"]),
    ):
        consumer.commit(message=by_value[value], asynchronous=False)
        again = serial(group_id=consumer.group_id, enable_auto_commit=False)
        assert read(again, len(rest)) == rest
        again.close()


def test_steps_of_an_iov_meet_end_to_end(
    written: Transactions, serial: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (b"a", b"b", b"c"):
        mark(written, across(written, name, 2, 1, 1), 0, 1, 2)
    # No coordinator runs: nothing is committed yet.
    monkeypatch.setattr(TransactionPositions, "take", lambda *_: Taken({}, None))
    consumer = serial(offsets_storage="transactions")
    places: dict[tuple[str, int], Position] = {}
    for _ in range(12):
        [message] = consumer.consume(1, 5)
        moved = set()
        for step in consumer.offset_steps():
            key = (step.topic, step.partition)
            before = places.get(key)
            assert step.from_place == (before.place if before else None)
            assert before is None or (step.to.o2, step.to.o3) > (before.o2, before.o3)
            places[key] = step.to
            moved.add(key)
        assert (message.topic(), message.partition()) in moved


def test_what_waits_for_its_turn_is_spilled_and_streams(
    written: Transactions, serial: MakeConsumer, tmp_path: Path
) -> None:
    first = across(written, b"a", 1)
    names = [b"b%02d" % n for n in range(30)]
    for name in names:  # one batch holds all of each, so none is ever pending between batches
        mark(written, across(written, name, 0, 30), 1)
    limit = 200_000
    consumer = serial(pending_memory_max_bytes=limit, pending_dir=str(tmp_path))
    assert nothing_more(consumer)
    # Their markers were read. Together they are more than memory may hold.
    small = consumer.counters.spilled_bytes
    assert small > 0
    large = across(written, b"c", 0, 3_000)
    mark(written, large, 1)
    assert nothing_more(consumer)
    assert consumer.counters.spilled_bytes > small
    # What a batch brought is in memory until the next call.
    assert nothing_more(consumer)
    eventually(lambda: consumer.stats()["pending_memory_bytes"] <= limit)
    mark(written, first, 0)
    assert read(consumer, 901) == [b"a-00"] + [b"%s-1%d" % (n, i) for n in names for i in range(30)]
    assert read(consumer, 3_000) == [b"c-1%d" % n for n in range(3_000)]
    consumer.close()
    again = serial(pending_memory_max_bytes=limit, pending_dir=str(tmp_path))
    found = [
        [r.value() for r in transaction.records]
        for transaction in again.transactions(0.3)
        if again.counters.spilled_bytes
    ]
    assert found[-1] == [b"c-1%d" % n for n in range(3_000)]


def test_what_is_being_delivered_is_not_spilled_away(
    written: Transactions, serial: MakeConsumer, tmp_path: Path
) -> None:
    mark(written, across(written, b"a", 100), 0)
    consumer = serial(pending_memory_max_bytes=100_000, pending_dir=str(tmp_path))
    got = read(consumer, 50)
    for _ in range(10):  # each is smaller than the first; the largest is spilled first
        written.write(written.begin(), "t", [b"h"] * 50, 1)
    while not consumer.counters.spilled_bytes:
        time.sleep(0.01)
        got += read(consumer, 1)  # this reads the new records as well
    got += read(consumer, 100 - len(got))
    assert got == [b"a-0%d" % n for n in range(100)]


def test_a_partition_that_is_paused_holds_the_order_when_its_turn_comes(
    written: Transactions, serial: MakeConsumer
) -> None:
    mark(written, across(written, b"a", 1, 2), 0, 1)
    mark(written, across(written, b"b", 1), 0)
    consumer = serial()
    assert read(consumer, 1) == [b"a-00"]
    consumer.pause([PLACES[1]])
    assert nothing_more(consumer)
    consumer.resume([PLACES[1]])
    assert read(consumer, 3) == [b"a-10", b"a-11", b"b-00"]


def test_a_failure_is_raised_once_and_at_every_time_out_and_stops_the_order(
    written: Transactions, serial: MakeConsumer, log: MemoryLog
) -> None:
    torn = across(written, b"a", 2, 1)
    mark(written, torn, 0, 1)
    mark(written, across(written, b"b", 0, 1), 1)
    log.delete_records("t", 0, 1)
    consumer = serial(torn_reset="error")
    with pytest.raises(TornTransactionError, match=r"t\[0\]"):
        consumer.consume(1, 5)
    with pytest.raises(TornTransactionError):
        consumer.consume(1, 0.05)
    skipping = serial(torn_reset="skip")
    # Its part in the other partition is delivered: "whole or not at all" holds per partition.
    assert read(skipping, 2) == [b"a-10", b"b-10"]


def test_a_malformed_header_is_an_event(written: Transactions, serial: MakeConsumer) -> None:
    written.append("t", [b"bad"], [(TXID_HEADER, b"x")])
    mark(written, across(written, b"a", 1), 0)
    consumer = serial()
    found: list[Message] = []
    while len(found) < 2:
        found += consumer.consume(2, 1)
    assert [m.value() for m in found] == [b"bad", b"a-00"]
    assert found[0].error() is not None


def test_an_exception_while_reading_from_the_end_skips_nothing_more(
    written: Transactions, serial: MakeConsumer
) -> None:
    consumer = serial(auto_offset_reset="latest")
    assert nothing_more(consumer, 0.1)
    first = across(written, b"a", 1, 1)
    mark(written, first, 0, 1)
    with pytest.raises(ValueError, match="interrupted"), consumer._reading.moving():
        raise ValueError("interrupted")
    assert read(consumer, 2) == [b"a-00", b"a-10"]


def test_latest_begins_with_what_is_decided_from_now_on(
    written: Transactions, serial: MakeConsumer
) -> None:
    before, after = across(written, b"a", 1), written.begin()
    written.write(after, "t", [b"new"], 0)
    consumer = serial(auto_offset_reset="latest")
    assert nothing_more(consumer, 0.1)
    consumer.commit(asynchronous=False)
    mark(written, before, 0)
    mark(written, after, 0)
    again = serial(group_id=consumer.group_id)
    for reader in (consumer, again):
        assert read(reader, 1) == [b"new"]
        assert nothing_more(reader, 0.1)


# ---- where the journal is read from -------------------------------------------------------------


def snapshot(written: Transactions, *committing: TxId, last: bool = True) -> int:
    """Writes a snapshot that names these transactions as unfinished. Returns its offset."""
    first = written.log.end_offset(JOURNAL_TOPIC, 0)
    rows = tuple(
        Row(
            begin=t.offset,
            producer_id="p",
            generation=0,
            timeout_ms=60_000,
            started_ms=1,
            state=State.COMMITTING,
            commit_sequence=written.sequences[t],
            reason=None,
            writes=decision_of(t).writes,
        )
        for t in committing
    )
    return written.journal(
        Snapshot(
            first=first,
            index=0,
            last=last,
            replaces=-1,
            address="nowhere:1",
            process_nonce=1,
            partition_count=1,
            past_epochs=(),
            transactions=rows,
        )
    )


def decision_of(txid: TxId) -> PrepareCommit:
    [found] = [w for t, w in DECIDED if t == txid]
    return PrepareCommit(begin=txid.offset, writes=found, decided_ms=2_000)


DECIDED: list[tuple[TxId, tuple[PartitionWrites, ...]]] = []


@pytest.fixture(autouse=True)
def _remember_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    DECIDED.clear()
    journal = Transactions.journal

    def remember(self: Transactions, record: object) -> int:
        if isinstance(record, PrepareCommit):
            DECIDED.append((TxId(0, INCARNATION, record.begin), record.writes))
        return journal(self, record)  # type: ignore[arg-type]

    monkeypatch.setattr(Transactions, "journal", remember)


@pytest.mark.parametrize("hint", ["right", "lost", "trimmed away", "no snapshot there"])
def test_a_trimmed_journal_is_read_from_a_snapshot_and_loses_nothing(
    written: Transactions, serial: MakeConsumer, log: MemoryLog, hint: str
) -> None:
    early, late = across(written, b"a", 2, 1), across(written, b"b", 1, 0, 1)
    open_one = across(written, b"c", 1, 1)
    mark(written, early, 0, 1)
    mark(written, late, 0)
    written.finish(early)
    first = snapshot(written, late, open_one)
    new = across(written, b"d", 0, 0, 2)
    log.delete_records(JOURNAL_TOPIC, 0, first)
    offset = {"right": first, "trimmed away": first - 1, "no snapshot there": first + 1}.get(hint)
    if offset is not None:
        log.commit_group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, 0, GroupOffset(offset, "?"))
    consumer = serial()
    assert read(consumer, 3) == [b"a-00", b"a-01", b"a-10"]
    assert nothing_more(consumer)
    mark(written, late, 2)
    written.finish(late)
    mark(written, open_one, 0, 1)
    mark(written, new, 2)
    assert read(consumer, 6) == [b"b-00", b"b-20", b"c-00", b"c-10", b"d-20", b"d-21"]
    whole = serial(0, 1)
    found = list(whole.transactions(0.3))
    assert [t.txid for t in found] == [early, late, open_one]
    assert [t.complete for t in found] == [True, False, True]
    assert [t.timestamp for t in found] == [-1, -1, -1]


def test_a_consumer_that_stood_still_while_the_journal_was_trimmed_loses_nothing(
    written: Transactions, serial: MakeConsumer, log: MemoryLog
) -> None:
    mark(written, across(written, b"a", 1, 1), 0, 1)
    consumer = serial(enable_auto_commit=False)
    assert read(consumer, 1) == [b"a-00"]
    consumer.commit(asynchronous=False)
    consumer.close()
    for name in (b"b", b"c", b"d"):
        txid = across(written, name, 1, 1)
        mark(written, txid, 0, 1)
        written.finish(txid)
    first = snapshot(written)
    log.delete_records(JOURNAL_TOPIC, 0, first)
    mark(written, across(written, b"e", 1), 0)
    again = serial(group_id=consumer.group_id)
    names = [b"a-10", b"b-00", b"b-10", b"c-00", b"c-10", b"d-00", b"d-10", b"e-00"]
    assert read(again, 8) == names


def test_a_void_snapshot_misleads_nobody(
    written: Transactions, serial: MakeConsumer, log: MemoryLog
) -> None:
    """A replaced owner's snapshot lands where it was predicted, before one that counts."""
    old = written.epoch
    txid = across(written, b"a", 1)
    mark(written, txid, 0)
    written.finish(txid)
    assert old is not None
    written.epoch = old
    start = log.end_offset(JOURNAL_TOPIC, 0)
    new = written.journal(Owner(replaces=old, address="nowhere:2", process_nonce=2))
    written.epoch = old
    void = snapshot(written)
    never = written.begin()
    written.write(never, "t", [b"void"], 1)
    written.decide(never)
    written.epoch = new
    first = snapshot(written)
    log.delete_records(JOURNAL_TOPIC, 0, void)
    assert start < void < first
    mark(written, across(written, b"b", 1), 0)
    consumer = serial()
    assert read(consumer, 2) == [b"a-00", b"b-00"]
    assert consumer._delivery.serial is not None
    assert consumer._delivery.serial._tail._epochs.epoch == new


def test_a_journal_without_a_snapshot_that_somebody_trimmed_is_refused(
    written: Transactions, serial: MakeConsumer, log: MemoryLog
) -> None:
    mark(written, across(written, b"a", 1), 0)
    log.delete_records(JOURNAL_TOPIC, 0, 2)
    with pytest.raises(BrokerError, match="no snapshot"):
        serial().consume(1, 1)


# ---- groups -------------------------------------------------------------------------------------


def test_trap_24_partitions_that_move_in_the_middle_of_a_transaction(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    for name in (b"a", b"b"):
        mark(written, across(written, name, 2, 2, 2), 0, 1, 2)
    settings = {"isolation_level": "serializable", "group_id": "moving"}
    first = make_consumer(**settings)
    first.subscribe(["t"])
    got = read(first, 3)
    assert got == [b"a-00", b"a-01", b"a-10"]
    second = make_consumer(**settings)
    second.subscribe(["t"])
    for _ in range(200):
        for consumer in (first, second):
            got += [m.value() for m in consumer.consume(2, 0.02)]
        if len(got) == 12:
            break
    # Each partition goes on exactly where it was, and each member keeps the order of its own
    # partitions.
    assert sorted(map(bytes, filter(None, got))) == sorted(
        b"%s-%d%d" % (n, p, i) for n in (b"a", b"b") for p in range(3) for i in range(2)
    )
    for partition in range(3):
        own = [v for v in got if v is not None and v[2:3] == b"%d" % partition]
        assert own == sorted(own)
    assert nothing_more(first, 0.1)
    assert nothing_more(second, 0.1)


def test_a_partition_that_comes_brings_its_earlier_decisions(
    written: Transactions, serial: MakeConsumer
) -> None:
    mark(written, across(written, b"a", 1, 1), 0, 1)
    mark(written, across(written, b"b", 2, 1), 0, 1)
    consumer = serial(0)
    assert read(consumer, 2) == [b"a-00", b"b-00"]
    consumer.incremental_assign([TopicPartition("t", 1)])
    # The transaction that was begun is finished first. Then the order begins again with the
    # earliest one that is due.
    assert read(consumer, 3) == [b"b-01", b"a-10", b"b-10"]


def test_a_partition_that_goes_in_the_middle_of_its_part_leaves_the_rest(
    written: Transactions, serial: MakeConsumer
) -> None:
    mark(written, across(written, b"a", 2, 2, 1), 0, 1, 2)
    mark(written, across(written, b"b", 1, 1), 0, 1)
    consumer = serial()
    assert read(consumer, 1) == [b"a-00"]
    consumer.incremental_unassign([TopicPartition("t", 0)])
    assert read(consumer, 4) == [b"a-10", b"a-11", b"a-20", b"b-10"]
    assert nothing_more(consumer, 0.1)


def test_levels_may_be_changed_between_two_lives(
    written: Transactions, make_consumer: MakeConsumer, serial: MakeConsumer
) -> None:
    for name in (b"a", b"b", b"c"):
        mark(written, across(written, name, 3), 0)
    got: list[bytes | None] = []
    for level in ("serializable", "read_committed") * 2:
        consumer = make_consumer(isolation_level=level, group_id="changing")
        consumer.assign(PLACES)
        got += read(consumer, 2)
        consumer.close()
    got += read(serial(group_id="changing"), 1)
    assert got == [b"%s-0%d" % (name, n) for name in (b"a", b"b", b"c") for n in range(3)]


def test_assigned_before_there_is_a_journal(log: MemoryLog, serial: MakeConsumer) -> None:
    consumer = serial()
    with pytest.raises(UnknownTopicError):
        consumer.poll(0)
    written = Transactions(log)
    written.with_journal()
    written.finish(written.transaction("t", [b"a"]))
    assert read(consumer, 1) == [b"a"]


def test_damage_in_the_journal_is_told_again_and_again(
    written: Transactions, serial: MakeConsumer
) -> None:
    written.finish(written.transaction("t", [b"a"]))
    written.append(JOURNAL_TOPIC, [b"\x7fnot a record of this version"])
    consumer = serial()
    assert read(consumer, 1) == [b"a"]
    for _ in range(3):
        with pytest.raises(UnknownRecordError, match="upgrade this program"):
            consumer.poll(0.3)
