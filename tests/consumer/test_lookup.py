"""Look-ups and side reads of a whole Consumer, over a journal and retention in memory."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer import lookup, topic_ids
from logtx.consumer.consumer import Consumer
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.lookup import LookedUp, answer
from logtx.journal.errors import BrokerError, TornTransactionError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.position import Position
from logtx.journal.records.fate import Fate
from logtx.journal.records.types import DataPartition
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .conftest import LOOKS_APART_S, MakeConsumer
from .logs import Transactions, nothing_more, read, wait_for
from .places import Places
from .records import DATA, data, malformed, marker
from .records import txid as made_up

pytestmark = pytest.mark.usefixtures("quick_looks")

PLACE = TopicPartition("t", 0)


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    memory_log.create_topic("t", partitions=1)
    return memory_log


@pytest.fixture
def consumer(make_consumer: MakeConsumer) -> Consumer:
    made = make_consumer(pending_lookup_age_ms=20)
    made.assign([PLACE])
    return made


def pending(consumer: Consumer) -> int:
    return consumer.stats()["pending_transactions"]


@pytest.mark.parametrize("commit", [False, True])
def test_trap_19_data_without_a_marker_goes_when_the_journal_says_finished(
    written: Transactions, consumer: Consumer, commit: bool
) -> None:
    # The producer died before it registered the partition, or a stray attempt wrote there.
    txid = written.begin()
    written.write(txid, "t", [b"orphan"], accepted=False)
    written.append("t", [b"plain"])
    assert read(consumer, 1) == [b"plain"]
    wait_for(lambda: consumer.counters.look_ups, consumer)
    assert pending(consumer) == 1
    written.decide(txid, commit=commit)
    written.finish(txid, commit=commit)
    wait_for(lambda: pending(consumer) == 0, consumer)
    assert consumer.counters.discarded_transactions == 1
    consumer.commit(asynchronous=False)
    stored = written.log.group_offset(consumer.group_id, "t", 0)
    assert stored is not None
    assert stored.offset == 2


def place_stray(written: Transactions, *, anew: bool = False) -> TxId:
    """Places a transaction where nothing says that anything is placed. Returns its TxId.

    Args:
        written: the journal.
        anew: whether it is placed in a former topic, and has its record in the next one.
    """
    home = Places(written, "t")
    home.switch(Phase.METADATA, records=False, publish=False)
    if anew:
        written.log.delete_topic("t")
        written.log.create_topic("t", partitions=1)
    txid = written.begin()
    written.write(txid, "t", [b"stray"])
    home.decide(txid)
    home.place()
    return txid


@pytest.mark.parametrize("is_told", [True, False], ids=["nothing published", "no answer"])
def test_what_is_placed_where_nothing_says_so_is_looked_up_now_and_then(
    written: Transactions,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_told: bool,
) -> None:
    """As where a broker has not heard yet of what the home publishes."""
    place_stray(written)
    consumer = make_consumer(pending_lookup_age_ms=300)
    consumer.assign([PLACE])
    if not is_told:

        def fails(*_: object) -> None:
            raise BrokerError("no answer in time")

        monkeypatch.setattr(consumer._reading.following, "found_placed", fails)
    wait_for(lambda: consumer.counters.look_ups, consumer)
    until_s = time.monotonic() + 1.0
    while time.monotonic() < until_s:
        assert nothing_more(consumer, 0.02)
    assert consumer.counters.look_ups <= 5
    wait_for(lambda: consumer.counters.look_ups >= 2, consumer)
    assert pending(consumer) == 1


def test_trap_297_what_is_placed_in_a_former_topic_ends(
    written: Transactions, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_ids, "CONFIRM_S", 0.05)
    written.finish(place_stray(written, anew=True))
    written.append("t", [b"plain"])
    assert read(consumer, 1) == [b"plain"]
    wait_for(lambda: pending(consumer) == 0, consumer)
    assert consumer.counters.discarded_transactions == 1
    consumer.commit(asynchronous=False)
    stored = written.log.group_offset(consumer.group_id, "t", 0)
    assert stored is not None
    assert stored.offset == written.log.end_offset("t", 0)


def test_after_an_error_of_the_broker_it_is_looked_up_again_soon_and_then_more_seldom(
    written: Transactions, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    age_s = 600.0
    txid = place_stray(written)
    consumer = make_consumer(pending_lookup_age_ms=int(age_s * 1000))
    consumer.assign([PLACE])
    wait_for(lambda: pending(consumer), consumer)
    reading, failed_s = consumer._reading, [0.0]

    def fails(*_: object) -> None:
        failed_s.append(now_s)
        raise BrokerError("no answer in time")

    monkeypatch.setattr(reading.following, "found_placed", fails)
    stray = reading.assigned["t", 0].buffer.find(txid.to_bytes())
    assert stray is not None
    stray.since = now_s = 1_000_000.0
    for expected_s in (age_s, *(2.0**n for n in range(10)), age_s):
        looked_up = consumer.counters.look_ups
        now_s += expected_s - 0.5
        reading._look_up(now_s)
        assert consumer.counters.look_ups == looked_up
        now_s += 0.5
        reading._look_up(now_s)
        assert consumer.counters.look_ups == looked_up + 1
        count, until_s = len(failed_s), time.monotonic() + 10
        while len(failed_s) == count and time.monotonic() < until_s:
            reading._look_up(now_s)
        assert failed_s[-1] == now_s
    assert pending(consumer) == 1


def test_trap_16_trimmed_or_made_up_goes_open_stays(
    written: Transactions, consumer: Consumer, log: MemoryLog
) -> None:
    trimmed = written.begin()
    written.write(trimmed, "t", [b"x"])
    still_open = written.begin()
    written.write(still_open, "t", [b"y"])
    log.delete_records("__transaction_control", 0, still_open.offset)
    wait_for(lambda: consumer.counters.discarded_transactions == 1, consumer)
    written.mark(still_open, "t")
    assert read(consumer, 1) == [b"y"]


def test_a_decided_transaction_is_kept_until_its_marker_comes(
    written: Transactions, consumer: Consumer
) -> None:
    txid = written.begin()
    written.write(txid, "t", [b"x"])
    written.decide(txid)
    wait_for(lambda: consumer.counters.look_ups > 1, consumer)
    written.mark(txid, "t")
    written.finish(txid)
    assert read(consumer, 1) == [b"x"]
    assert consumer.counters.discarded_transactions == 0


def test_trap_17_the_fate_is_taken_before_the_end(
    written: Transactions, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    txid = written.begin()
    written.write(txid, "t", [b"x"])
    written.decide(txid)
    asked: list[str] = []
    real = log.end_offset

    def end_offset(topic: str, partition: int, *, timeout_s: float = 10) -> int:
        asked.append(topic)
        found = real(topic, partition, timeout_s=timeout_s)
        if topic == "__transaction_control":
            # The marker and COMMITTED are written between the two requests.
            written.mark(txid, "t")
            written.finish(txid)
        return found

    monkeypatch.setattr(log, "end_offset", end_offset)
    [found] = answer(log, [(("t", 0), txid.to_bytes())], timeout_s=5)
    assert asked == ["__transaction_control", "t"]
    assert not found.ended
    assert found.end_offset == 2


@pytest.mark.parametrize("met", [False, True])
def test_trap_63_a_former_leaders_end_drops_nothing(
    written: Transactions,
    log: MemoryLog,
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    met: bool,
) -> None:
    if met:
        written.finish(written.transaction("t", [b"met"]))
        assert read(consumer, 1) == [b"met"]
        # However long the former leader believes that it leads, what lies ahead is waited for.
        monkeypatch.setattr(lookup, "LOOKS_APART_S", 0)
    txid = written.begin()
    written.write(txid, "t", [b"x"])
    wait_for(lambda: pending(consumer) == 1, consumer)
    end = log.end_offset("t", 0)
    until_s = time.monotonic() + LOOKS_APART_S / 2
    real = log.end_offset

    def end_offset(topic: str, partition: int, *, timeout_s: float = 10) -> int:
        is_former = topic == "t" and (met or time.monotonic() < until_s)
        return end if is_former else real(topic, partition, timeout_s=timeout_s)

    consumer.pause([PLACE])
    monkeypatch.setattr(log, "end_offset", end_offset)
    written.mark(txid, "t")
    written.finish(txid)
    before = consumer.counters.look_ups
    wait_for(lambda: consumer.counters.look_ups > before + 2, consumer)
    consumer.resume([PLACE])
    assert read(consumer, 1) == [b"x"]
    assert consumer.counters.discarded_transactions == 0


def test_trap_63_a_true_end_is_not_forgotten_for_one_of_the_past(
    written: Transactions,
    log: MemoryLog,
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    txid = written.begin()
    written.write(txid, "t", [b"x"])
    wait_for(lambda: pending(consumer) == 1, consumer)
    before, real = log.end_offset("t", 0), log.end_offset
    consumer.pause([PLACE])
    written.mark(txid, "t")
    written.finish(txid)
    looked = consumer.counters.look_ups
    wait_for(lambda: consumer.counters.look_ups > looked + 1, consumer)

    def end_offset(topic: str, partition: int, *, timeout_s: float = 10) -> int:
        return before if topic == "t" else real(topic, partition, timeout_s=timeout_s)

    monkeypatch.setattr(log, "end_offset", end_offset)
    looked = consumer.counters.look_ups
    until_s = time.monotonic() + 2 * LOOKS_APART_S
    wait_for(lambda: time.monotonic() > until_s, consumer)
    consumer.resume([PLACE])
    assert read(consumer, 1) == [b"x"]
    assert consumer.counters.discarded_transactions == 0


def test_trap_63_a_txid_behind_the_journals_end_is_kept(
    written: Transactions, log: MemoryLog, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    txid = written.begin()
    written.write(txid, "t", [b"x"])
    real = log.end_offset

    def end_offset(topic: str, partition: int, *, timeout_s: float = 10) -> int:
        return txid.offset if topic != "t" else real(topic, partition, timeout_s=timeout_s)

    monkeypatch.setattr(log, "end_offset", end_offset)
    wait_for(lambda: consumer.counters.look_ups > 2, consumer, 2 * LOOKS_APART_S + 20)
    written.mark(txid, "t")
    assert read(consumer, 1) == [b"x"]


def test_trap_63_a_journal_of_the_past_is_no_look_at_what_was_finished(
    written: Transactions, log: MemoryLog, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    txid = written.begin()
    written.write(txid, "t", [b"x"])
    wait_for(lambda: pending(consumer) == 1, consumer)
    real, before = log.end_offset, log.end_offset("t", 0)
    journal_is_past = True

    def end_offset(topic: str, partition: int, *, timeout_s: float = 10) -> int:
        if topic == "t":
            return before  # true while the journal is of the past, and of the past afterwards
        return txid.offset if journal_is_past else real(topic, partition, timeout_s=timeout_s)

    monkeypatch.setattr(log, "end_offset", end_offset)
    looked = consumer.counters.look_ups
    until_s = time.monotonic() + 2 * LOOKS_APART_S
    wait_for(lambda: time.monotonic() > until_s, consumer)
    assert consumer.counters.look_ups > looked
    consumer.pause([PLACE])
    written.mark(txid, "t")
    written.finish(txid)
    journal_is_past = False
    looked = consumer.counters.look_ups
    wait_for(lambda: consumer.counters.look_ups > looked + 1, consumer)
    monkeypatch.setattr(log, "end_offset", real)
    consumer.resume([PLACE])
    assert read(consumer, 1) == [b"x"]
    assert consumer.counters.discarded_transactions == 0


def test_trap_188_what_is_handed_over_is_not_passed_over_for_a_marker_that_was_met() -> None:
    handed, other = made_up(1), made_up(2)
    reader = PartitionBuffer(
        DATA, Position.at(0), PendingTransactionMap(2**20), malformed=malformed
    )
    reader.feed([data(0, handed), data(1, other), marker(2, other, 20, (0, 1, 1, 1))])
    fate = Fate(State.COMMITTED, 10, partitions=(DataPartition(*DATA),), handed=frozenset({DATA}))
    # Nothing was told to be published of its topic, so it seems to be refused, and marked.
    found = LookedUp(DATA, handed.to_bytes(), 3, fate, asked_s=0.0)
    found.tell(reader, 1.0)
    assert reader.find(handed.to_bytes()) is not None
    assert reader.position().o1 == 0
    replace(found, asked_s=2.0).tell(reader, 3.0)
    assert reader.find(handed.to_bytes()) is None


def test_without_a_journal_nothing_is_discarded(
    log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    transactions = Transactions(log)
    txid = transactions.begin()
    transactions.write(txid, "t", [b"x"])
    consumer = make_consumer(pending_lookup_age_ms=10)
    consumer.assign([PLACE])
    wait_for(lambda: consumer.counters.look_ups > 1, consumer)
    transactions.mark(txid, "t")
    assert read(consumer, 1) == [b"x"]


@pytest.mark.parametrize("torn", [None, "skip", "error"])
@pytest.mark.parametrize("start", ["earliest", "middle"])
def test_trap_21_retention_took_the_first_records(
    written: Transactions, make_consumer: MakeConsumer, log: MemoryLog, torn: str, start: str
) -> None:
    old = written.begin()
    written.write(old, "t", [b"1", b"2", b"3"])
    written.append("t", [b"plain"])
    written.mark(old, "t")
    written.append("t", [b"after"])
    log.delete_records("t", 0, 2)
    consumer = make_consumer(**({"torn_reset": torn} if torn else {}))
    consumer.assign([PLACE if start == "earliest" else TopicPartition("t", 0, 3)])
    assert read(consumer, 1) == [b"plain"]
    if torn == "skip" or (torn is None and start == "earliest"):
        assert read(consumer, 1) == [b"after"]
        assert consumer.counters.torn_transactions == 1
        return
    for _ in range(2):
        with pytest.raises(TornTransactionError, match=r"torn\.reset"):
            read(consumer, 1)
    assert consumer.position([PLACE])[0].offset == 4
    consumer.seek(TopicPartition("t", 0, 5))
    assert read(consumer, 1) == [b"after"]


@pytest.mark.parametrize("cut", [False, True])
def test_trap_63_a_log_that_ends_below_the_position_is_asked_twice(
    written: Transactions, make_consumer: MakeConsumer, cut: bool
) -> None:
    written.append("t", [b"0", b"1", b"2"])
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, 5)])
    assert nothing_more(consumer, LOOKS_APART_S / 2)
    if cut:
        assert read(consumer, 3) == [b"0", b"1", b"2"]
        return
    # The leader answers again: it has what its former one had not.
    written.append("t", [b"3", b"4", b"5"])
    assert read(consumer, 1) == [b"5"]


def test_trap_63_a_doubt_that_ended_well_is_forgotten(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    # Else the next single answer of the past would be believed at once.
    written.append("t", [b"0", b"1", b"2"])
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, 5)])
    assert nothing_more(consumer, LOOKS_APART_S / 2)
    written.append("t", [b"3", b"4"])
    (assigned,) = consumer._reading.assigned.values()
    wait_for(lambda: assigned.cut_s is None, consumer)
    assert nothing_more(consumer, LOOKS_APART_S)


def test_a_failed_partition_does_not_stop_the_others(
    written: Transactions, make_consumer: MakeConsumer, log: MemoryLog
) -> None:
    log.create_topic("u", partitions=1)
    old = written.begin()
    written.write(old, "t", [b"1", b"2"])
    written.mark(old, "t")
    log.delete_records("t", 0, 1)
    consumer = make_consumer(torn_reset="error")
    consumer.assign([PLACE, TopicPartition("u", 0)])
    with pytest.raises(TornTransactionError):
        read(consumer, 1)
    written.append("u", [b"a"])
    assert read(consumer, 1) == [b"a"]
    written.transaction("u", [b"b"])
    assert read(consumer, 1) == [b"b"]


def test_trap_14_after_a_restart_without_memory_side_reads_tell_duplicates(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    three = [written.begin() for _ in range(3)]
    for number, txid in enumerate(three):
        written.write(txid, "t", [b"%d" % number] * 3)
        written.decide(txid)
    for txid in three:
        written.mark(txid, "t")
    end = written.append("t", [b"plain"])[0]
    for txid in three:  # a recovery writes the markers again
        written.mark(txid, "t")
    written.append("t", [b"last"])
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, end)])
    assert read(consumer, 2) == [b"plain", b"last"]
    assert consumer.counters.duplicate_markers == 3
    assert consumer.counters.side_reads == 3


def test_trimmed_o1_goes_on_from_o2_by_side_reads(
    written: Transactions, make_consumer: MakeConsumer, log: MemoryLog
) -> None:
    hanging = written.begin()
    written.write(hanging, "t", [b"h"])
    for number in range(3):
        written.transaction("t", [b"%d" % number])
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign([PLACE])
    assert read(consumer, 2) == [b"0", b"1"]
    consumer.commit(asynchronous=False)
    consumer.close()
    log.delete_records("t", 0, 3)
    again = make_consumer(group_id=consumer.group_id, auto_offset_reset="error")
    again.assign([PLACE])
    assert read(again, 1) == [b"2"]
    written.mark(hanging, "t")
    with pytest.raises(TornTransactionError):
        read(again, 1)


def test_trimmed_beyond_the_position_resets_as_the_user_says(
    written: Transactions, make_consumer: MakeConsumer, log: MemoryLog
) -> None:
    written.append("t", [b"%d" % n for n in range(10)])
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign([PLACE])
    read(consumer, 2)
    consumer.commit(asynchronous=False)
    log.delete_records("t", 0, 5)
    earliest = make_consumer(group_id=consumer.group_id)
    earliest.assign([PLACE])
    assert read(earliest, 5) == [b"%d" % n for n in range(5, 10)]
    latest = make_consumer(group_id=consumer.group_id, auto_offset_reset="latest")
    latest.assign([PLACE])
    assert nothing_more(latest)
    error = make_consumer(group_id=consumer.group_id, auto_offset_reset="error")
    error.assign([PLACE])
    event = error.poll(5)
    assert event is not None
    assert event.error() is not None


def test_side_reads_hold_up_their_own_partition_only(
    written: Transactions, make_consumer: MakeConsumer, log: MemoryLog
) -> None:
    log.create_topic("u", partitions=1)
    big = written.begin()
    written.write(big, "t", [b"x"] * 30_000)
    start = written.append("t", [b"between"])[0]
    written.mark(big, "t")
    written.append("u", [b"%d" % n for n in range(50)])
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, start), TopicPartition("u", 0, 0)])
    first = read(consumer, 51)
    assert b"x" not in first
    began = time.monotonic()
    assert read(consumer, 30_000) == [b"x"] * 30_000
    assert time.monotonic() - began < 15
