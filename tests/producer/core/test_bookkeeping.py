"""Every phase of a transaction and every call, and what its commit states."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from logtx.coordinator.protocol.commands import Action, Decided
from logtx.journal.control import BranchRange
from logtx.journal.errors import (
    BrokerError,
    CoordinatorNotAvailableError,
    DoubleStartError,
    GroupBoundError,
    LogtxError,
    OffsetsConflictError,
    ProducerFencedError,
    RequestTimedOutError,
    RequestTooLargeError,
    TransactionAbortedError,
    TransactionAbortOnlyError,
    TransactionCommittedError,
    TransactionError,
    TransactionStateError,
    UnknownOutcomeError,
    UnknownTransactionError,
    UnsupportedTopicError,
)
from logtx.journal.records.types import AbortReason
from logtx.journal.state import State
from logtx.journal.txid import TxId
from logtx.producer.core.bookkeeping import (
    VALID_PREVIOUS,
    EndResult,
    Phase,
    TransactionBook,
    abort_only,
    conflict,
    end_result,
)
from logtx.producer.core.summary import BranchSummary

from .test_tally import Observed, Report

TXID = TxId(3, 0xABC, 17)
COMMIT, ABORT = Action.COMMIT, Action.ABORT


def book(*partitions: tuple[str, int]) -> TransactionBook:
    return TransactionBook(Observed().tally, partitions)


def deliver(own: TransactionBook, topic: str, partition: int, *offsets: int) -> None:
    for offset in offsets:
        own.own.admit()
        own.own.receivers()[topic](None, Report(partition, offset))


def opened() -> TransactionBook:
    return book()


def abort_only_book() -> TransactionBook:
    made = book()
    made.fail(BrokerError("lost"))
    return made


def ending(end: Action) -> TransactionBook:
    made = book()
    made.own.admit()  # A record without a report, or it would be ready at once.
    made.ask(end)
    return made


def sent(end: Action) -> TransactionBook:
    made = book()
    made.ask(end)
    made.sent()
    return made


def unresolved(end: Action) -> TransactionBook:
    made = sent(end)
    made.unresolved()
    return made


def committed() -> TransactionBook:
    made = sent(COMMIT)
    made.decided(committed=True)
    return made


def aborted(end: Action | None) -> TransactionBook:
    made = sent(end) if end else book()
    made.decided(committed=False)
    return made


def told(state: State) -> TransactionBook:
    made = book()
    error = conflict(Decided(TXID, state, AbortReason.EXPIRED if state.aborts else None))
    made.decided(committed=state.commits, conflict=error)
    return made


STATES: Mapping[str, Callable[[], TransactionBook]] = {
    "open": opened,
    "abort-only": abort_only_book,
    "committing": lambda: ending(COMMIT),
    "aborting": lambda: ending(ABORT),
    "commit sent": lambda: sent(COMMIT),
    "abort sent": lambda: sent(ABORT),
    "commit unresolved": lambda: unresolved(COMMIT),
    "abort unresolved": lambda: unresolved(ABORT),
    "committed": committed,
    "aborted": lambda: aborted(ABORT),
    "commit found it aborted": lambda: aborted(COMMIT),
    "expired": lambda: aborted(None),
    "told that it expired": lambda: told(State.ABORTING),
    "told that it is committed": lambda: told(State.COMMITTING),
}
Expected = type[LogtxError] | bool | None

# What each call gives: an error, or what it returns (True starts the end, False repeats it).
TABLE: Mapping[str, tuple[Expected, Expected, Expected]] = {
    #                          records/offsets           commit                     abort
    "open": (None, True, True),
    "abort-only": (TransactionAbortOnlyError, TransactionAbortOnlyError, True),
    "committing": (TransactionStateError, False, True),
    "aborting": (TransactionStateError, TransactionAbortedError, False),
    "commit sent": (TransactionStateError, False, TransactionStateError),
    "abort sent": (TransactionStateError, TransactionAbortedError, False),
    "commit unresolved": (TransactionStateError, False, UnknownOutcomeError),
    "abort unresolved": (TransactionStateError, TransactionAbortedError, False),
    "committed": (TransactionStateError, False, TransactionCommittedError),
    "aborted": (TransactionStateError, TransactionAbortedError, False),
    "commit found it aborted": (TransactionStateError, TransactionAbortedError, False),
    "expired": (TransactionStateError, TransactionAbortedError, False),
    "told that it expired": (TransactionAbortedError, TransactionAbortedError, False),
    "told that it is committed": (TransactionCommittedError, False, TransactionCommittedError),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("call", ["records", "commit", "abort"])
def test_every_state_and_call(state: str, call: str) -> None:
    made = STATES[state]()
    before = (made.phase, made.end)
    calls: Mapping[str, Callable[[], bool | None]] = {
        "records": made.check_open,
        "commit": lambda: made.ask(COMMIT),
        "abort": lambda: made.ask(ABORT),
    }
    expected = TABLE[state][list(calls).index(call)]
    if isinstance(expected, type):
        with pytest.raises(expected):
            calls[call]()
        assert (made.phase, made.end) == before  # A refused call changes nothing.
    else:
        assert calls[call]() is expected


def test_every_phase_has_a_way_in_and_open_is_the_start() -> None:
    assert set(VALID_PREVIOUS) == set(Phase)
    assert opened().phase is Phase.OPEN


@pytest.mark.parametrize("phase", [Phase.COMMITTED, Phase.ABORTED])
def test_a_decision_is_final(phase: Phase) -> None:
    assert all(phase not in before for before in VALID_PREVIOUS.values())


def test_commit_is_ready_when_records_and_offsets_are() -> None:
    seen = Observed()
    made = TransactionBook(seen.tally)
    made.own.admit()
    made.requests += 1
    made.ask(COMMIT)
    assert not made.ready
    seen.deliver("a", 0, 4)
    assert not made.ready
    made.requests -= 1
    assert not made.ready, "whether the commit has room for its own records is not known"
    assert made.next_part() is None
    assert made.ready


def test_abort_waits_for_its_records_and_not_for_offsets() -> None:
    seen = Observed()
    made = TransactionBook(seen.tally)
    made.own.admit()
    made.requests += 1
    made.ask(ABORT)
    assert not made.ready
    seen.deliver("a", 0, 4)
    assert made.ready


def test_a_failure_takes_a_waiting_commit_back_to_be_aborted() -> None:
    made = ending(COMMIT)
    assert made.fail(BrokerError("lost"))
    assert made.phase is Phase.OPEN
    assert not made.takes_records
    with pytest.raises(TransactionAbortOnlyError):
        made.ask(COMMIT)
    assert made.ask(ABORT)


def test_a_failure_does_not_stop_an_abort() -> None:
    made = ending(ABORT)
    assert not made.fail(BrokerError("lost"))
    assert made.phase is Phase.ENDING


def test_a_failure_after_the_commit_was_sent_changes_nothing() -> None:
    made = sent(COMMIT)
    assert not made.fail(BrokerError("late"))
    assert made.cause is None


def test_the_first_cause_stays() -> None:
    made = book()
    made.fail(BrokerError("first"))
    made.fail(BrokerError("second"))
    with pytest.raises(TransactionAbortOnlyError, match="first"):
        made.check_open()


def test_a_refused_commit_can_only_be_aborted() -> None:
    made = sent(COMMIT)
    made.refused(OffsetsConflictError("somebody else"))
    with pytest.raises(OffsetsConflictError):
        made.check_open()
    assert made.ask(ABORT)


@pytest.mark.parametrize(
    ("cause", "raised"),
    [
        (BrokerError("x"), TransactionAbortOnlyError),
        (RequestTimedOutError("x"), TransactionAbortOnlyError),
        (OffsetsConflictError("x"), OffsetsConflictError),
        (GroupBoundError("x"), GroupBoundError),
        (UnsupportedTopicError("x"), UnsupportedTopicError),
        (ProducerFencedError("x"), ProducerFencedError),
    ],
)
def test_a_cause_that_says_what_to_do_is_raised_itself(
    cause: LogtxError, raised: type[LogtxError]
) -> None:
    error = abort_only(cause)
    assert type(error) is raised
    assert error is not cause
    assert error.__cause__ is cause


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (State.COMMITTING, EndResult.COMMITTED),
        (State.COMMITTED, EndResult.COMMITTED),
        (State.ABORTING, EndResult.ABORTED),
        (State.ABORTED, EndResult.ABORTED),
        (State.OPEN, EndResult.UNDECIDED),
        (State.UNKNOWN, EndResult.UNKNOWN),
        (TransactionAbortedError("x"), EndResult.ABORTED),
        (TransactionCommittedError("x"), EndResult.COMMITTED),
        (OffsetsConflictError("x"), EndResult.REFUSED),
        (RequestTooLargeError("x"), EndResult.REFUSED),
        (UnsupportedTopicError("x"), EndResult.REFUSED),
        # A fenced producer's earlier request may have been decided: never an abort by itself.
        (ProducerFencedError("x"), EndResult.UNKNOWN),
        (DoubleStartError("x"), EndResult.UNKNOWN),
        (RequestTimedOutError("x"), EndResult.UNKNOWN),
        (CoordinatorNotAvailableError("x"), EndResult.UNKNOWN),
        (UnknownTransactionError("x"), EndResult.UNKNOWN),
        (BrokerError("x"), EndResult.UNKNOWN),
        (TransactionError("of a newer peer"), EndResult.UNKNOWN),
        (LogtxError("of a newer peer"), EndResult.UNKNOWN),
    ],
    ids=str,
)
def test_what_an_answer_says(reply: State | LogtxError, expected: EndResult) -> None:
    assert end_result(reply) is expected


def test_every_state_has_a_verdict() -> None:
    assert {end_result(state) for state in State} >= {EndResult.COMMITTED, EndResult.ABORTED}


# Partitions and branches.


def summary(branch: int, **writes: tuple[int, int, int]) -> BranchSummary:
    return BranchSummary(
        TXID, branch, {(t, 0): BranchRange(branch, *range_) for t, range_ in writes.items()}
    )


def test_first_offsets_are_told_once_and_again_after_a_failure() -> None:
    made = book(("a", 0))
    deliver(made, "a", 0, 1)
    deliver(made, "a", 1, 7)
    assert made.to_register() == {("a", 0): 1, ("a", 1): 7}, "BEGIN could not name an offset"
    deliver(made, "a", 1, 8)
    assert made.to_register() == {}
    made.not_registered([("a", 1)])
    assert made.to_register() == {("a", 1): 7}


def test_a_commit_states_the_own_records_and_accepted_branches() -> None:
    made = book(("up front", 2))
    deliver(made, "a", 0, 10, 12)
    made.accept(TXID, summary(9, a=(11, 14, 2), b=(0, 5, 6)))
    made.accept(TXID, summary(4, a=(13, 13, 1)))
    made.ask(COMMIT)
    assert made.writes() == {
        ("a", 0): (BranchRange(0, 10, 12, 2), BranchRange(4, 13, 13, 1), BranchRange(9, 11, 14, 2)),
        ("b", 0): (BranchRange(9, 0, 5, 6),),
        ("up front", 2): (),
    }


def test_a_branch_that_was_not_accepted_gets_its_marker_and_nothing_else() -> None:
    made = book()
    stray = Observed(branch=8)
    made.add_branch(stray.tally)
    stray.deliver("a", 0, 3)
    made.ask(COMMIT)
    assert made.writes() == {("a", 0): ()}


def test_an_abort_names_partitions_without_records() -> None:
    made = book()
    deliver(made, "a", 0, 10)
    made.accept(TXID, summary(9, b=(0, 5, 6)))
    made.ask(ABORT)
    assert made.writes() == {("a", 0): (), ("b", 0): ()}


def test_accepting_twice_counts_once() -> None:
    made = book()
    made.accept(TXID, summary(9, a=(1, 1, 1)))
    made.accept(TXID, summary(9, a=(1, 1, 1)))
    made.ask(COMMIT)
    assert made.writes() == {("a", 0): (BranchRange(9, 1, 1, 1),)}


def test_a_branch_cannot_be_accepted_with_other_records() -> None:
    made = book()
    made.accept(TXID, summary(9, a=(1, 1, 1)))
    with pytest.raises(TransactionStateError, match="other records"):
        made.accept(TXID, summary(9, a=(1, 2, 2)))


def test_a_branch_of_another_transaction_is_refused() -> None:
    with pytest.raises(TransactionStateError, match="belongs to"):
        book().accept(TxId(3, 0xABC, 18), summary(9, a=(1, 1, 1)))


def test_branches_come_before_the_end() -> None:
    made = ending(COMMIT)
    with pytest.raises(TransactionStateError):
        made.accept(TXID, summary(9, a=(1, 1, 1)))
    with pytest.raises(TransactionStateError):
        made.add_branch(Observed(branch=3).tally)


@pytest.mark.parametrize("state", State)
def test_only_a_decision_is_a_conflict(state: State) -> None:
    error = conflict(Decided(TXID, state, AbortReason.OPERATOR if state.aborts else None))
    if state.commits:
        assert isinstance(error, TransactionCommittedError)
    elif state.aborts:
        assert isinstance(error, TransactionAbortedError)
        assert str(error) == f"transaction {TXID} was aborted: operator"
    else:
        assert error is None


def test_an_abort_that_was_asked_for_is_no_conflict() -> None:
    # Both may meet on the way: the producer's own abort, and the news of the coordinator's.
    made = ending(ABORT)
    made.decided(committed=False, conflict=TransactionAbortedError("expired"))
    assert made.ask(ABORT) is False
    with pytest.raises(TransactionStateError):
        made.check_open()
