"""Reading ranges of a log, the journal, and fates in it, on every transport."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from logtx.journal import reader
from logtx.journal.errors import (
    BrokerError,
    CorruptRecordError,
    UnknownRecordError,
    UnknownTopicError,
)
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import (
    JOURNAL_TOPIC,
    RecordsTrimmedError,
    find_fates,
    journal_partition_of,
    read_entries,
    read_records,
)
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.fate import NO_EPOCH, UNKNOWN_FATE
from logtx.journal.records.types import (
    Aborted,
    AbortReason,
    Begin,
    Committed,
    Entry,
    JournalRecord,
    Owner,
    PrepareAbort,
    PrepareCommit,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

MakeTopic = Callable[..., str]
Append = Callable[..., list[int]]
INCARNATION = 77


def offsets(log: Log, topic: str, start: int, end: int, **options: float) -> list[int | None]:
    options = {"timeout_s": 10.0, **options}
    return [m.offset() for m in read_records(log, topic, 0, start, end, **options)]


@pytest.mark.parametrize(
    ("name", "count", "partition"),
    [("default", 16, 15), ("default", 50, 39), ("ü", 7, 4), ("", 5, 0), ("worker-1", 1, 0)],
)
def test_the_partition_of_a_name_never_changes(name: str, count: int, partition: int) -> None:
    assert journal_partition_of(name, count) == partition


def test_a_range_is_read_exactly(
    log: Log, make_topic: MakeTopic, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic()
    append(topic, 0, [b"x"] * 50)
    assert offsets(log, topic, 0, 50) == list(range(50))
    assert offsets(log, topic, 49, 50) == [49]
    assert offsets(log, topic, 7, 7) == []
    monkeypatch.setattr(reader, "BATCH_MAX", 4)
    assert offsets(log, topic, 20, 31) == list(range(20, 31))


def test_a_reader_may_stop_early(log: Log, make_topic: MakeTopic, append: Append) -> None:
    topic = make_topic()
    append(topic, 0, [b"x"] * 50)
    with closing(read_records(log, topic, 0, 0, 50, timeout_s=10)) as messages:
        assert next(messages).offset() == 0


def test_a_stall_is_an_error_in_bounded_time(
    log: Log, make_topic: MakeTopic, append: Append
) -> None:
    topic = make_topic()
    append(topic, 0, [b"x"] * 2)
    began = time.monotonic()
    with pytest.raises(BrokerError, match="stood at 2 of 3"):
        offsets(log, topic, 0, 3, timeout_s=0.3)
    assert time.monotonic() - began < 5


def test_a_slow_caller_is_no_stall(memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BATCH_MAX", 1)
    memory_log.create_topic("t", partitions=1)
    for _ in range(4):
        memory_log.append_directly("t", 0, b"x")
    for message in read_records(memory_log, "t", 0, 0, 4, timeout_s=0.2):
        if message.offset() == 1:
            time.sleep(0.25)


def test_a_range_beyond_the_end_is_an_error(log: Log, make_topic: MakeTopic) -> None:
    with pytest.raises(BrokerError, match="ends below"):
        offsets(log, make_topic(), 5, 9, timeout_s=5)


def test_an_unknown_partition_is_told_at_once(log: Log, make_topic: MakeTopic) -> None:
    topic = make_topic()
    began = time.monotonic()
    with pytest.raises(UnknownTopicError):
        list(read_records(log, topic, 99, 0, 1, timeout_s=20))
    assert time.monotonic() - began < 10


def test_what_was_trimmed_is_told(
    log: Log, make_topic: MakeTopic, append: Append, transport: str
) -> None:
    if transport == "mock":
        pytest.skip("librdkafka's mock cluster trims nothing")
    topic = make_topic()
    append(topic, 0, [b"x"] * 9)
    log.delete_records(topic, 0, 4)
    with pytest.raises(RecordsTrimmedError, match="begins at 4, not at 3"):
        offsets(log, topic, 3, 9)
    assert offsets(log, topic, 4, 9) == [4, 5, 6, 7, 8]


def test_offsets_without_a_record_are_passed_over(
    log: Log, make_topic: MakeTopic, transport: str
) -> None:
    if transport != "kafka":
        pytest.skip("only a real broker writes control records")
    topic = make_topic()
    producer = log.producer({"transactional.id": topic})
    producer.init_transactions(10)
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=0)
        producer.commit_transaction(10)
    until = time.monotonic() + 10
    while log.end_offset(topic, 0) < 4 and time.monotonic() < until:
        time.sleep(0.01)  # Kafka writes its marker after it has answered
    assert offsets(log, topic, 0, 4) == [0, 2]


class Journal:
    """Writes journal records into a log in memory."""

    def __init__(self, log: MemoryLog, partition: int = 0) -> None:
        self.log = log
        self.partition = partition
        log.create_topic(JOURNAL_TOPIC, partitions=2)

    def add(self, epoch: int, record: JournalRecord) -> int:
        at = self.log.end_offset(JOURNAL_TOPIC, self.partition)
        value = encode_entry(Entry(epoch, INCARNATION, record, at))
        return self.log.append_directly(JOURNAL_TOPIC, self.partition, value)

    def owner(self, replaces: int = NO_EPOCH) -> int:
        return self.add(replaces, Owner(replaces=replaces, address="a:1", process_nonce=1))

    def begin(self, epoch: int) -> TxId:
        record = Begin(
            producer_id="p",
            generation=0,
            session_nonce=1,
            request_id=1,
            answered_below=1,
            timeout_ms=1000,
            started_ms=0,
        )
        return TxId(self.partition, INCARNATION, self.add(epoch, record))

    def commit(self, epoch: int, txid: TxId) -> int:
        return self.add(epoch, PrepareCommit(begin=txid.offset, writes=(), decided_ms=0))

    def abort(self, epoch: int, txid: TxId) -> int:
        reason = AbortReason.EXPIRED
        return self.add(epoch, PrepareAbort(begin=txid.offset, reason=reason, decided_ms=0))


@pytest.fixture
def journal(memory_log: MemoryLog) -> Journal:
    return Journal(memory_log)


def test_entries_come_decoded_and_errors_say_where(journal: Journal) -> None:
    log = journal.log
    journal.owner()
    ((offset, entry),) = read_entries(log, 0, 0, 1, timeout_s=5)
    assert (offset, entry.epoch, entry.incarnation) == (0, NO_EPOCH, INCARNATION)
    log.append_directly(JOURNAL_TOPIC, 0, b"\x01\x03junk")
    log.append_directly(JOURNAL_TOPIC, 0, b"\x7f\x03newer")
    where = f"{JOURNAL_TOPIC}-0 at offset"
    with pytest.raises(CorruptRecordError, match=f"{where} 1"):
        list(read_entries(log, 0, 0, 3, timeout_s=5))
    with pytest.raises(UnknownRecordError, match=f"{where} 2"):
        list(read_entries(log, 0, 2, 3, timeout_s=5))


def test_fates_over_two_journal_partitions_and_an_owner_change(journal: Journal) -> None:
    other = Journal(journal.log, 1)
    first = journal.owner()
    committed, aborted, still_open = (journal.begin(first) for _ in range(3))
    decision = journal.commit(first, committed)
    second = journal.owner(first)
    journal.commit(first, aborted)  # void: of a dead epoch
    second = journal.owner(second)
    journal.add(second, Committed(begin=committed.offset))
    journal.abort(second, aborted)
    journal.add(second, Aborted(begin=aborted.offset))
    elsewhere = other.begin(other.owner())
    never = TxId(0, INCARNATION, 1000)
    no_such_partition = TxId(9, INCARNATION, 0)
    asked = [committed, aborted, still_open, elsewhere, never, no_such_partition, committed]
    fates = find_fates(journal.log, asked, timeout_s=10)
    assert {t: f.state for t, f in fates.items()} == {
        committed: State.COMMITTED,
        aborted: State.ABORTED,
        still_open: State.OPEN,
        elsewhere: State.OPEN,
        never: State.UNKNOWN,
        no_such_partition: State.UNKNOWN,
    }
    assert fates[committed].commit_sequence == decision
    assert find_fates(journal.log, [], timeout_s=10) == {}


def test_a_trimmed_begin_is_unknown_and_never_aborted(journal: Journal) -> None:
    epoch = journal.owner()
    old, new = journal.begin(epoch), journal.begin(epoch)
    journal.abort(epoch, old)
    journal.commit(epoch, new)
    journal.log.delete_records(JOURNAL_TOPIC, 0, new.offset)
    fates = find_fates(journal.log, [old, new], timeout_s=10)
    assert fates[old] == UNKNOWN_FATE
    assert fates[new].state is State.COMMITTING


def test_a_trim_between_question_and_read_is_no_error(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = journal.owner()
    txid = journal.begin(epoch)
    read = reader.read_batches

    def trim_first(*args: object, **options: object) -> object:
        journal.log.delete_records(JOURNAL_TOPIC, 0, 2)
        return read(*args, **options)

    monkeypatch.setattr(reader, "read_batches", trim_first)
    assert find_fates(journal.log, [txid], timeout_s=10) == {txid: UNKNOWN_FATE}


def test_only_what_was_decided_by_the_call_is_waited_for(journal: Journal) -> None:
    epoch = journal.owner()
    txid = journal.begin(epoch)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            journal.begin(epoch)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert find_fates(journal.log, [txid], timeout_s=20)[txid].state is State.OPEN
    finally:
        stop.set()
        writer.join()


def test_no_journal_is_an_error_and_so_is_no_answer(memory_log: MemoryLog) -> None:
    txid = TxId(0, INCARNATION, 0)
    with pytest.raises(UnknownTopicError):
        find_fates(memory_log, [txid], timeout_s=1)
    Journal(memory_log)
    memory_log.unavailable()
    began = time.monotonic()
    with pytest.raises(BrokerError):
        find_fates(memory_log, [txid], timeout_s=0.1)
    assert time.monotonic() - began < 5
