"""The consumer's part of `docs/traps.md`: each sequence that broke a plausible design."""

from __future__ import annotations

import gc
import time
import tracemalloc

import pytest
from confluent_kafka import Message, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.ranges import ControlCache
from logtx.consumer.core.shared import ENDED_MAX_OF_ONE
from logtx.journal.control import TXID_HEADER, DataControl, encode_data_control
from logtx.journal.errors import IntegrityError, TornTransactionError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position

from .core.test_buffer_against_naive import Reader
from .logs import Transactions, read, wait_for
from .records import DATA, INCARNATION, FakeRecord, data, malformed, marker, plain, txid

T1, T2, T3 = txid(1), txid(2), txid(3)


def buffer(start: Position | None = None, *, torn_skip_below: int = 0) -> PartitionBuffer:
    return PartitionBuffer(
        DATA,
        start or Position.at(0),
        PendingTransactionMap(1 << 30),
        malformed=malformed,
        torn_skip_below=torn_skip_below,
    )


def offsets(reader: PartitionBuffer) -> list[int]:
    return [record.offset() for record in reader.take(1000)]


def test_trap_11_hw_of_another_journal_or_incarnation_says_nothing() -> None:
    live = buffer()
    other_journal = txid(50, partition=7)
    other_incarnation = txid(50, incarnation=INCARNATION + 1)
    live.feed(
        [
            data(0, T1),
            data(1, other_journal),
            marker(2, other_journal, 60, (0, 1, 1, 1), hw=50),
            data(3, other_incarnation),
            marker(4, other_incarnation, 60, (0, 3, 3, 1), hw=50),
            data(5, T1),
            marker(6, T1, 10, (0, 0, 5, 2)),
        ]
    )
    assert offsets(live) == [1, 3, 0, 5]
    assert live.counters.late_records == 0


@pytest.mark.parametrize("remembers", [True, False])
def test_trap_14_a_second_marker_behind_the_restart_delivers_nothing(remembers: bool) -> None:
    log = [data(0, T1), marker(1, T1, 10, (0, 0, 0, 1)), plain(2), marker(3, T1, 10, (0, 0, 0, 1))]
    first = Reader(log, Position.at(0))
    first.read(2)
    assert offsets(first.buffer) == [0]
    position = first.buffer.position()
    if not remembers:  # the side read finds the earlier marker
        position = Position.at(position.o2)
    again = Reader(log, position)
    again.read(4)
    assert offsets(again.buffer) == [2]
    assert again.buffer.counters.duplicate_markers == 1
    assert again.buffer.counters.side_reads == (0 if remembers else 1)


def test_trap_15_a_late_record_before_the_marker_is_dropped_by_the_range() -> None:
    live = buffer()
    live.feed([data(0, T1, 7), data(1, T1, 7), data(2, T1, 7), marker(3, T1, 10, (7, 0, 1, 2))])
    assert offsets(live) == [0, 1]
    assert live.counters.late_records == 1
    assert live.failure is None


def test_trap_16_a_look_up_obeys_a_marker_that_is_still_ahead() -> None:
    lagging = buffer()
    lagging.feed([data(0, T1)])
    # The journal is trimmed by now, so the answer is UNKNOWN; the partition's end is 4.
    lagging.resolve(T1.to_bytes(), end_offset=4, ended=True)
    lagging.feed([plain(1)])
    assert offsets(lagging) == [1]
    lagging.feed([marker(2, T1, 10, (0, 0, 0, 1)), plain(3)])
    assert offsets(lagging) == [0, 3]


def test_trap_17_a_verdict_waits_for_the_end_that_was_asked_for_after_it() -> None:
    live = buffer()
    live.feed([data(0, T1)])
    live.resolve(T1.to_bytes(), end_offset=3, ended=True)
    live.feed([plain(1)])
    assert [p.txid for p in live.pending()] == [T1.to_bytes()]
    live.feed([plain(2)])
    assert list(live.pending()) == []
    live.feed([data(3, T1)])
    assert list(live.pending()) == []
    assert live.counters.late_records == 1


def test_an_undecided_transaction_is_kept_and_looked_up_again() -> None:
    live = buffer()
    live.feed([data(0, T1)])
    [pending] = live.pending()
    pending.since = 5.0
    live.resolve(T1.to_bytes(), end_offset=1, ended=False)
    assert pending.since is None
    live.feed([marker(1, T1, 10, (0, 0, 0, 1))])
    assert offsets(live) == [0]


def test_trap_18_a_crash_in_the_middle_of_a_long_transaction() -> None:
    log: list[FakeRecord] = [data(n, T1) for n in range(5)]
    log += [plain(5), marker(6, T1, 10, (0, 0, 4, 5)), plain(7)]
    for count in range(8):
        first = Reader(log, Position.at(0))
        first.read(8)
        taken = [r.offset() for r in first.buffer.take(count)]
        position = first.buffer.position()
        if 1 < count < 6:
            assert (position.o1, position.o2, position.o3) == (0, 6, count - 1)
        again = Reader(log, Position.from_metadata(position.o1, position.to_metadata()))
        again.read(8)
        assert taken + offsets(again.buffer) == [5, 0, 1, 2, 3, 4, 7]


def test_trap_19_data_that_never_gets_a_marker_goes_by_a_marker_hw() -> None:
    live = buffer()
    live.feed([data(0, T1), data(1, T3), marker(2, T3, 10, (0, 1, 1, 1), hw=2)])
    assert list(live.pending()) == []
    assert offsets(live) == [1]
    assert live.position().o1 == 3
    assert live.counters.discarded_transactions == 1


def test_trap_215_a_hw_drops_nothing_that_may_be_placed_unheard_of() -> None:
    live = buffer()
    live.looks_up = True
    live.feed([data(0, T1), data(1, T3), marker(2, T3, 10, (0, 1, 1, 1), hw=2)])
    assert offsets(live) == [1]
    assert [p.txid for p in live.pending()] == [T1.to_bytes()]
    assert live.position().o1 == 0
    live.resolve(T1.to_bytes(), end_offset=3, ended=True)
    assert live.position().o1 == 3


def test_trap_20_memory_of_ended_transactions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ENDED_MAX_OF_ONE <= 100_000
    monkeypatch.setattr("logtx.consumer.core.shared.ENDED_MAX_OF_ONE", 10)
    live = buffer()
    hanging = txid(0)
    live.feed([data(0, hanging)])
    at = 1
    for number in range(1, 101):
        owner = txid(number)
        live.feed([data(at, owner), marker(at + 1, owner, 1000 + number, (0, at, at, 1))])
        at += 2
    assert len(offsets(live)) == 100
    assert len(live._ended) == 10
    # Late data of a forgotten transaction is pending until it is looked up. Its marker is still a
    # duplicate.
    live.feed([data(at, T1), marker(at + 1, T1, 1001, (0, 1, 1, 1))])
    assert offsets(live) == []
    live.feed([data(at + 2, T2)])
    live.resolve(T2.to_bytes(), end_offset=at + 3, ended=True)
    assert [p.txid for p in live.pending()] == [hanging.to_bytes()]


@pytest.mark.parametrize("isolation", ["read_committed", "serializable"])
def test_finding_26_partitions_share_what_a_consumer_may_remember(
    isolation: str, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.consumer.core.shared.ENDED_MAX", 40)
    memory_log.create_topic("t", partitions=8)
    written = Transactions(memory_log)
    written.with_journal()
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "isolation.level": isolation}
    with Consumer(settings, log=memory_log) as consumer:
        for partitions in (1, 2, 8):
            consumer.assign([TopicPartition("t", number, 0) for number in range(partitions)])
            for number in range(8 * 6):
                written.transaction("t", [b"v"], number % 8)
            ends = [memory_log.end_offset("t", number) for number in range(partitions)]
            read(consumer, sum(ends) // 2)
            buffers = [assigned.buffer for assigned in consumer._reading.assigned.values()]
            assert sum(len(b._ended) for b in buffers) <= 40
            assert len(buffers[-1]._ended) == min(40 // partitions, ends[-1] // 2)
            assert len({id(b._controls) for b in buffers}) == 1
        assert consumer._reading._side_reader._controls is buffers[0]._controls


def test_finding_26_what_is_remembered_shrinks_when_partitions_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("logtx.consumer.core.shared.ENDED_MAX", 40)
    live = buffer()
    live._shared.divide(1)
    live.feed([marker(at, txid(at + 1), at + 1) for at in range(60)])
    assert len(live._ended) == 40
    live._shared.divide(10)
    other = txid(1, partition=1)
    live.feed([marker(60, other, 1)])
    # It is the oldest of the journal with most of them that goes, not what came just now.
    assert len(live._ended) == 4
    assert live.has_ended(other.to_bytes())


def test_finding_26_decoded_headers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logtx.consumer.core.ranges.CONTROL_CACHE_MAX", 10)
    cache = ControlCache()
    for sequence in range(100):
        raw = encode_data_control(DataControl(branch=1, sequence=sequence))
        assert cache.decode(raw) == (1, sequence)
        assert len(cache._decoded) <= 10


def test_finding_27_a_forged_marker_is_believed_as_the_docs_say() -> None:
    live = buffer()
    live.feed([data(0, T2), marker(1, T1, 2**62), marker(2, T2, 10, (0, 0, 0, 1))])
    assert offsets(live) == []
    assert live.counters.duplicate_markers == 1
    # Of other journals it says nothing.
    other = txid(1, partition=1)
    live.feed([data(3, other), marker(4, other, 11, (0, 3, 3, 1))])
    assert offsets(live) == [3]


@pytest.mark.parametrize(("raw", "event"), [(b"0123456\x00\x00bcdefgh", 0), (b"of a span", 1)])
def test_finding_28_a_foreign_header_of_our_name_does_what_the_docs_say(
    raw: bytes, event: int, memory_log: MemoryLog
) -> None:
    memory_log.create_topic("t", partitions=1)
    written = Transactions(memory_log)
    written.with_journal()
    written.append("t", [b"foreign"], [(TXID_HEADER, raw)])
    written.append("t", [b"plain"])
    settings: dict[str, object] = {"group.id": "g", "auto.offset.reset": "earliest"}
    with Consumer({**settings, "pending.lookup.age.ms": 20}, log=memory_log) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        found: list[Message] = []
        deadline_s = time.monotonic() + 10
        while len(found) < 1 + event or consumer.position(consumer.assignment())[0].offset < 2:
            assert time.monotonic() < deadline_s
            found += consumer.consume(2, 0.1)
        assert [m.error() is not None for m in found] == [True] * event + [False]
        wait_for(lambda: not consumer.stats()["pending_transactions"], consumer)
        assert consumer.counters.discarded_transactions == 1 - event
        assert consumer.counters.malformed_headers == event


def test_trap_20_hours_behind_an_open_transaction_take_no_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("logtx.consumer.core.shared.ENDED_MAX_OF_ONE", 500)
    live = buffer()
    hanging = [txid(0, partition=journal) for journal in range(3)]
    live.feed([data(at, owner) for at, owner in enumerate(hanging)])

    def pass_by(first: int, count: int) -> int:
        for number in range(first, first + count):
            # The HW stays at the open transaction of that journal.
            at, owner = 10 + 3 * number, txid(1 + number, partition=number % 3)
            live.feed([data(at, owner), marker(at + 1, owner, 1000 + number, (0, at, at, 1))])
            live.feed([data(at + 2, owner)])  # late
            assert offsets(live) == [at]
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = pass_by(0, 2_000)
        # A TxId that is kept takes 80 bytes. Threads that other tests left allocate a little.
        assert pass_by(2_000, 4_000) - before < 4_000 * 40
    finally:
        tracemalloc.stop()
    assert live.counters.late_records == 6_000
    assert [p.txid for p in live.pending()] == [owner.to_bytes() for owner in hanging]


def test_trap_21_the_oldest_transaction_of_a_retained_topic_is_torn() -> None:
    log = [data(3, T1), plain(4), marker(5, T1, 10, (0, 1, 3, 3)), plain(6)]
    for skip_below, failure in ((3, None), (0, TornTransactionError)):
        live = buffer(Position.at(3), torn_skip_below=skip_below)
        live.feed(log)
        assert offsets(live) == [4]
        [request] = live.side_reads()
        assert (request.first_offset, request.marker_offset) == (1, 5)
        live.answer_side_read(request, None, duplicate=False, torn=True)
        if failure is None:
            assert offsets(live) == [6]
            assert live.counters.torn_transactions == 1
        else:
            assert isinstance(live.failure, failure)
            assert offsets(live) == []
            assert live.position().o2 == 5


def test_a_whole_log_that_lacks_committed_records_is_an_integrity_error() -> None:
    live = buffer(torn_skip_below=2**63)
    live.feed([data(0, T1), marker(1, T1, 10, (0, 0, 0, 1)), marker(2, T2, 11, (0, 0, 1, 2))])
    offsets(live)
    [request] = live.side_reads()
    live.answer_side_read(request, None, duplicate=False, torn=False)
    assert isinstance(live.failure, IntegrityError)


def test_trap_12_a_marker_of_a_deleted_topic_of_that_name_delivers_nothing() -> None:
    # T1 wrote at 40 and 41 of a topic that was deleted. Its marker landed in the new one, where
    # 40 and 41 are still to come. That is not a loss which any reader could mend.
    live = buffer()
    live.feed([plain(0), marker(1, T1, 10, (0, 40, 41, 2)), plain(2)])
    assert offsets(live) == [0, 2]
    assert live.side_reads() == []
    assert live.failure is None
    assert live.counters.foreign_markers == 1
    live.feed([data(3, T2), marker(4, T2, 11, (0, 3, 3, 1))])
    assert offsets(live) == [3]
    assert live.position().o2 == 5


def test_a_log_that_was_copied_with_other_offsets_is_an_integrity_error() -> None:
    # Its records are here, so the marker is no other topic's: nothing is dropped without a word.
    live = buffer()
    live.feed([data(0, T1), marker(1, T1, 10, (0, 40, 40, 1)), plain(2)])
    assert offsets(live) == []
    [request] = live.side_reads()
    live.answer_side_read(request, None, duplicate=False, torn=False)
    assert isinstance(live.failure, IntegrityError)
    assert live.counters.foreign_markers == 0


def test_trap_22_stray_attempts_and_partitions_without_an_accepted_branch() -> None:
    live = buffer()
    live.feed(
        [
            data(0, T1, 7),
            data(1, T1, 8),
            data(2, T1, 7),
            marker(3, T1, 10, (7, 0, 2, 2)),
            data(4, T2, 9),
            marker(5, T2, 11),
            plain(6),
        ]
    )
    assert offsets(live) == [0, 2, 6]
    assert live.counters.late_records == 2


def test_duplicates_within_a_branch_go_by_their_sequence_numbers() -> None:
    live = buffer()
    live.feed([data(0, T1, 7, 0), data(1, T1, 7, 1), data(2, T1, 7, 1), data(3, T1, 7, 2)])
    live.feed([marker(4, T1, 10, (7, 0, 3, 3))])
    assert offsets(live) == [0, 1, 3]
    assert live.side_reads() == []


def test_duplicates_without_sequence_numbers_are_an_integrity_error() -> None:
    live = buffer()
    live.feed([data(0, T1), data(1, T1), data(2, T1), marker(3, T1, 10, (0, 0, 2, 2)), plain(4)])
    assert offsets(live) == []
    assert isinstance(live.failure, IntegrityError)
    assert "delays[0], marker 3" in str(live.failure)
    assert live.position().o2 == 3
