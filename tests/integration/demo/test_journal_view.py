"""What the demo sees in the journal: transactions, and who owns which partition."""

from __future__ import annotations

import pytest

from logtx.integration.demo.journal_view import JournalTail, JournalView, Ownership, key_of
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records import types as r
from logtx.journal.records.codec import encode_entry as encode_journal_entry
from logtx.journal.state import State

from .journals import INCARNATION, Journal, begin_record, commit_record


@pytest.fixture
def journal() -> Journal:
    made = Journal(JournalView("ledger-"))
    made.own()
    return made


def test_a_transaction_from_begin_to_committed(journal: Journal) -> None:
    view, begin = journal.view, journal.begin()
    assert view.open_of("ledger-0") is None  # it has written nothing
    journal.write(begin)
    seen = view.open_of("ledger-0")
    assert seen is not None
    assert (key_of(seen), seen.state) == (begin, State.OPEN)
    assert view.open_of("ledger-1") is None
    journal.commit(begin)
    assert view.open_of("ledger-0") is None
    assert [key_of(s) for s in view.in_state(State.COMMITTING)] == [begin]
    assert (view.committed, view.records_committed) == (1, 4)
    journal.finish(begin)
    assert view.unfinished == []
    assert view[begin].state is State.COMMITTED
    assert not view[begin].outlived_coordinator


def test_the_first_decision_counts(journal: Journal) -> None:
    begin = journal.begin()
    journal.abort(begin)
    journal.commit(begin)
    journal.finish(begin, committed=True)
    assert journal.view[begin].state is State.ABORTING
    journal.finish(begin, committed=False)
    assert journal.view[begin].state is State.ABORTED
    assert (journal.view.committed, journal.view.aborted) == (0, 1)


def test_what_a_replaced_coordinator_appends_is_void(journal: Journal) -> None:
    begin, old = journal.begin(), journal.epoch
    journal.own()
    journal.own(replaces=old)  # lost the race: its epoch never begins
    journal.commit(begin, epoch=old)
    assert journal.view[begin].state is State.OPEN
    journal.own()
    journal.commit(begin)
    assert journal.view[begin].state is State.COMMITTING


def test_a_transaction_that_outlived_its_coordinator(journal: Journal) -> None:
    begin = journal.begin()
    journal.commit(begin)
    journal.own()
    journal.finish(begin)
    assert journal.view[begin].outlived_coordinator


def test_other_producers_are_not_ours(journal: Journal) -> None:
    begin = journal.begin("somebody")
    journal.commit(begin)
    assert list(journal.view) == []
    assert journal.view.committed == 0


def test_who_owns_what(journal: Journal) -> None:
    other = Journal(journal.view, partition=5)
    other.own(address="b:2")
    assert journal.view.partitions_of("a:1") == {0: 0}
    assert journal.view.partitions_of("b:2") == {5: 0}
    journal.begin()
    journal.own(address="b:2")
    journal.own(replaces=0, address="a:1")  # lost the race
    assert journal.view.partitions_of("a:1") == {}
    assert journal.view.partitions_of("b:2") == {0: 2, 5: 0}
    assert journal.view.takeovers == [
        Ownership(0, 0, "a:1"),
        Ownership(5, 0, "b:2"),
        Ownership(0, 2, "b:2"),
    ]


def test_transactions_of_two_partitions_are_told_apart(journal: Journal) -> None:
    other = Journal(journal.view, partition=5)
    other.own()
    first, second = journal.begin("ledger-0"), other.begin("ledger-1")
    assert (first, second) == ((0, 1), (5, 1))
    other.commit(second)
    other.finish(second)
    assert journal.view[first].state is State.OPEN
    assert journal.view[second].state is State.COMMITTED


def test_what_zombie_owners_append_is_counted(journal: Journal) -> None:
    begin, old = journal.begin(), journal.epoch
    journal.own()
    assert journal.view.void_entries == 0
    journal.commit(begin, epoch=old)
    journal.own(replaces=old)  # a bid that comes late decides nothing, and loses nothing
    assert journal.view.void_entries == 1


def test_reading_may_begin_before_any_owner() -> None:
    journal = Journal(JournalView("ledger-"), start=500)
    journal.epoch = 3
    journal.begin()  # of an epoch that began before we read
    assert list(journal.view) == []
    journal.own()
    begin = journal.begin()
    assert [key_of(seen) for seen in journal.view] == [begin]


def test_the_tail_reads_to_the_end(memory_log: MemoryLog) -> None:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1)
    producer = memory_log.producer({})

    def append(record: r.JournalRecord, epoch: int) -> None:
        at = memory_log.end_offset(JOURNAL_TOPIC, 0)
        value = encode_journal_entry(r.Entry(epoch, INCARNATION, record, at))
        producer.produce(JOURNAL_TOPIC, value, partition=0)
        producer.flush(10)

    append(r.Owner(replaces=-1, address="h:1", process_nonce=1), -1)
    for number in range(20):
        append(begin_record(f"ledger-{number % 3}"), 0)
    tail = JournalTail(memory_log, {0: 0}, JournalView("ledger-"))
    tail.read_to_end(0, timeout_s=10)
    assert len(tail.view.unfinished) == 20
    append(commit_record(5), 0)
    assert tail.read_until(lambda: tail.view.committed == 1, timeout_s=10)
    assert not tail.read_until(lambda: tail.view.committed == 2, timeout_s=0.1)
    tail.close()
