"""Lost records, lost answers, fencing, outages: on the log in memory, with faults on demand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import KafkaError

from logtx.journal.acks import Acks
from logtx.journal.control import BranchRange
from logtx.journal.errors import (
    AckConflictError,
    BrokerError,
    CoordinatorNotAvailableError,
    GroupBoundError,
    LogtxError,
    OffsetsConflictError,
    ProducerFencedError,
    RequestTimedOutError,
    SessionClosedError,
    TransactionAbortedError,
    TransactionAbortOnlyError,
    TransactionStateError,
    UnknownOutcomeError,
    UnsupportedTopicError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.places import PartitionId
from logtx.journal.position import Place, Position
from logtx.journal.records.types import OffsetStep
from logtx.journal.spans import MessageId, Span
from logtx.journal.state import State
from logtx.producer.core.bookkeeping import Phase
from logtx.producer.core.tally import BranchTally
from logtx.producer.producer import Producer
from logtx.producer.transaction import Transaction
from logtx.producer.writer import Writer

from ..waiting import eventually
from .conftest import MakeProducer, read_topic
from .fake import FakeCoordinators

T = "t"


@pytest.fixture
def producer(memory_log: MemoryLog, make_memory_producer: MakeProducer) -> Producer:
    memory_log.create_topic(T, partitions=2)
    return make_memory_producer()


def begun(producer: Producer, *values: bytes) -> Transaction:
    txn = producer.begin_transaction()
    assert txn.txid
    for value in values:
        txn.produce(T, value, partition=0)
    return txn


def commits(producer: Producer, coordinators: FakeCoordinators) -> bool:
    txn = begun(producer, b"next")
    txn.commit()
    return coordinators.transactions[txn.txid].state is State.COMMITTED


# Records.


class Report:
    """A delivery report without an offset."""

    def partition(self) -> int:
        return 0

    def offset(self) -> None:
        return None


def test_what_lies_beside_a_record_without_an_offset_never_commits_trap_233(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    beside, begun_before, refused = (producer.begin_transaction(current=False) for _ in range(3))
    assert beside.txid
    beside.produce(T, b"beside", partition=0)
    branch = begun_before.branch()
    branch.produce(T, b"beside", partition=0)
    assert producer.flush(10) == 0
    assert isinstance(refused, Writer)
    assert refused.txid
    # As of a batch that a broker acknowledges as a duplicate.
    refused._own_receivers[T](None, Report())
    with pytest.raises(TransactionAbortOnlyError, match="at offset None"):
        refused.commit(10)
    with pytest.raises(TransactionAbortOnlyError, match="beside it"):
        beside.commit(10)
    with pytest.raises(BrokerError, match="beside it"):
        branch.finish(10)
    with pytest.raises(BrokerError, match="beside it"):
        branch.finish(10)
    for txn in (refused, beside, begun_before):
        assert txn.abort(10).state is State.ABORTED
    assert coordinators.count("commit") == 0
    assert commits(producer, coordinators)


def test_a_lost_middle_record_makes_it_abort_only(
    producer: Producer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    txn = begun(producer, b"first")
    producer.flush(5)
    memory_log.fail_appends(T, 0, KafkaError.INVALID_RECORD)
    # The record in the middle is lost, another writer's takes its place in the log.
    txn.produce(T, b"middle", partition=0)
    memory_log.append_directly(T, 0, b"somebody else's")
    txn.produce(T, b"last", partition=0)
    with pytest.raises(TransactionAbortOnlyError):
        txn.commit()
    with pytest.raises(TransactionAbortOnlyError):
        txn.commit()
    with pytest.raises(TransactionAbortOnlyError):
        txn.produce(T, b"more", partition=0)
    assert txn.abort().state.aborts
    assert coordinators.count("commit") == 0
    assert commits(producer, coordinators)


def test_a_lost_acknowledgement_makes_it_abort_only(
    producer: Producer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    memory_log.lose_acknowledgements(T, 0)
    txn = begun(producer, b"there", b"too")
    with pytest.raises(TransactionAbortOnlyError) as caught:
        txn.commit()
    assert "_MSG_TIMED_OUT" in str(caught.value.__cause__)
    txn.abort()
    assert commits(producer, coordinators)


def test_a_failure_while_the_commit_waits(
    producer: Producer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    memory_log.hold_appends(T, 0)
    txn = begun(producer, b"a", b"b")
    future = txn.commit_async()
    memory_log.fail_appends(T, 0, KafkaError.INVALID_RECORD)
    memory_log.release_appends(T, 0)
    with pytest.raises(TransactionAbortOnlyError):
        future.result(5)
    assert txn.abort().state.aborts
    assert coordinators.count("commit") == 0


def test_the_context_manager_aborts_after_a_failed_commit(
    producer: Producer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    memory_log.fail_appends(T, 0, KafkaError.INVALID_RECORD)
    txn = producer.begin_transaction()
    with pytest.raises(TransactionAbortOnlyError), txn:
        txn.produce(T, b"lost", partition=0)
    assert coordinators.transactions[txn.txid].state is State.ABORTED


def test_commit_waits_for_its_own_records_alone(
    producer: Producer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    memory_log.hold_appends(T, 1)
    stuck = producer.begin_transaction()
    stuck.produce(T, b"held", partition=1)
    future = stuck.commit_async()
    assert commits(producer, coordinators)
    assert not future.done()
    memory_log.release_appends(T, 1)
    assert future.result(5).state is State.COMMITTED


def test_abort_waits_for_its_own_records_and_purges_nobodys(
    producer: Producer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    memory_log.hold_appends(T, 0)
    memory_log.hold_appends(T, 1)
    other = producer.begin_transaction()
    other.produce(T, b"other", partition=1)
    txn = begun(producer, b"own")
    future = txn.abort_async()
    time.sleep(0.1)
    assert coordinators.count("abort") == 0
    memory_log.release_appends(T, 0)
    assert future.result(5).state.aborts
    memory_log.release_appends(T, 1)
    assert other.commit().state is State.COMMITTED
    assert coordinators.transactions[other.txid].writes == {(T, 1): (BranchRange(0, 0, 0, 1),)}


def test_a_broker_glitch_aborts_nothing(
    producer: Producer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    memory_log.unavailable()
    futures = [begun(producer, b"a", b"b").commit_async() for _ in range(5)]
    time.sleep(0.2)
    memory_log.unavailable(False)
    assert all(f.result(5).state is State.COMMITTED for f in futures)
    assert coordinators.count("abort") == 0


def test_an_outage_longer_than_the_delivery_timeout_is_abort_only(
    memory_log: MemoryLog, make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    memory_log.create_topic(T, partitions=2)
    producer = make_memory_producer(delivery__timeout__ms=200)
    memory_log.unavailable()
    txn = begun(producer, b"a")
    began_s = time.monotonic()
    with pytest.raises(TransactionAbortOnlyError):
        txn.commit()
    assert time.monotonic() - began_s < 3
    txn.abort()
    memory_log.unavailable(False)
    assert commits(producer, coordinators)


def test_a_full_queue_is_waited_for_no_longer_than_a_delivery(
    memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    memory_log.create_topic(T, partitions=2)
    producer = make_memory_producer(queue__buffering__max__messages=3, delivery__timeout__ms=300)
    txn = begun(producer)
    memory_log.hold_appends(T, 0)
    began_s = time.monotonic()
    for _ in range(3):
        txn.produce(T, b"x", partition=0)
    with pytest.raises((RequestTimedOutError, TransactionAbortOnlyError)):
        txn.produce(T, b"x", partition=0)
    assert time.monotonic() - began_s < 3


def test_a_commit_with_a_time_out_goes_on_and_can_be_waited_for_again(
    producer: Producer, memory_log: MemoryLog
) -> None:
    memory_log.hold_appends(T, 0)
    txn = begun(producer, b"held")
    with pytest.raises(RequestTimedOutError):
        txn.commit(timeout=0.05)
    memory_log.release_appends(T, 0)
    assert txn.commit(timeout=5).state is State.COMMITTED


def test_a_commit_that_waits_for_records_can_be_given_up(
    producer: Producer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    memory_log.hold_appends(T, 0)
    txn = begun(producer, b"held")
    committing = txn.commit_async()
    aborting = txn.abort_async()
    with pytest.raises(TransactionAbortedError):
        committing.result(1)
    memory_log.release_appends(T, 0)
    assert aborting.result(5).state.aborts
    assert coordinators.count("commit") == 0


# Answers.


def test_a_lost_commit_reply_is_resolved_by_asking(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    coordinators.lose_reply("commit")
    txn = begun(producer, b"x")
    outcome = txn.commit()
    assert (outcome.txid, outcome.state) == (txn.txid, State.COMMITTED)
    assert coordinators.count("commit") == 1


def test_a_lost_commit_request_is_sent_again(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    coordinators.lose_request("commit", 2, SessionClosedError("gone"))
    assert begun(producer, b"x").commit().state is State.COMMITTED
    assert coordinators.count("commit") == 3


def test_an_abort_behind_a_lost_commit_reply_is_told(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    coordinators.lose_request("commit")
    txn = begun(producer, b"x")
    coordinators.expire(txn.txid)
    with pytest.raises(TransactionAbortedError):
        txn.commit()


def test_an_outcome_that_cannot_be_learnt_is_unknown_in_bounded_time(
    memory_log: MemoryLog, make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    memory_log.create_topic(T, partitions=2)
    producer = make_memory_producer(coordinator__timeout__ms=300)
    coordinators.lose_reply("commit")
    coordinators.lose_request("outcome", 1_000)
    txn = begun(producer, b"x")
    began_s = time.monotonic()
    with pytest.raises(UnknownOutcomeError, match=str(txn.txid)):
        txn.commit()
    assert time.monotonic() - began_s < 3
    with pytest.raises(UnknownOutcomeError):
        txn.abort()
    # Asked again, with the coordinator back: it was committed all along.
    coordinators._faults["outcome"].clear()
    assert txn.commit().state is State.COMMITTED
    assert producer.outcome(str(txn.txid)).state is State.COMMITTED
    assert commits(producer, coordinators)


def test_an_outage_during_the_commit_is_waited_out(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    txn = begun(producer, b"x")
    coordinators.reachable = False
    future = txn.commit_async()
    time.sleep(0.2)
    assert not future.done()
    coordinators.reachable = True
    assert future.result(5).state is State.COMMITTED


def test_many_unknown_outcomes_share_one_bound(
    memory_log: MemoryLog, make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    memory_log.create_topic(T, partitions=2)
    producer = make_memory_producer(coordinator__timeout__ms=400)
    transactions = [begun(producer, b"x") for _ in range(30)]
    coordinators.reachable = False
    began_s = time.monotonic()
    futures = [txn.commit_async() for txn in transactions]
    for future in futures:
        with pytest.raises(UnknownOutcomeError):
            future.result(5)
    assert time.monotonic() - began_s < 3
    coordinators.reachable = True


def test_a_lost_abort_is_confirmed_or_an_error_in_bounded_time(
    memory_log: MemoryLog, make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    memory_log.create_topic(T, partitions=2)
    producer = make_memory_producer(coordinator__timeout__ms=300)
    coordinators.lose_reply("abort")
    assert begun(producer, b"x").abort().state.aborts
    txn = begun(producer, b"x")
    coordinators.reachable = False
    with pytest.raises(CoordinatorNotAvailableError):
        txn.abort()
    with pytest.raises(TransactionAbortedError):
        txn.commit()
    coordinators.reachable = True
    assert txn.abort().state.aborts


def test_no_coordinator_is_an_error_in_bounded_time(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    coordinators.reachable = False
    with pytest.raises(CoordinatorNotAvailableError):
        producer.begin_transaction()
    with pytest.raises(CoordinatorNotAvailableError):
        producer.init_transactions()
    coordinators.reachable = True
    producer.init_transactions()
    assert commits(producer, coordinators)


def test_a_begin_without_answer_fails_everything_of_it_and_not_the_next(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    producer.init_transactions()
    coordinators.lose_request("begin")
    txn = producer.begin_transaction()
    txn.produce(T, b"kept", partition=0)
    with pytest.raises(RequestTimedOutError):
        txn.commit()
    with pytest.raises(RequestTimedOutError):
        assert txn.txid
    with pytest.raises(RequestTimedOutError):
        txn.produce(T, b"more", partition=0)
    assert commits(producer, coordinators)


def test_an_expired_transaction_is_told_at_the_next_request(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    txn = begun(producer)
    coordinators.expire(txn.txid)
    txn.produce(T, b"x", partition=0)  # Its registration finds the transaction aborted.

    def refused() -> bool:
        try:
            txn.produce(T, b"more", partition=0)
        except TransactionAbortedError:
            return True
        return False

    eventually(refused)
    with pytest.raises(TransactionAbortedError):
        txn.commit()
    assert txn.abort().state.aborts


def test_a_compacted_topic_makes_it_abort_only_with_the_reason(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    coordinators.lose_request("commit", 1, UnsupportedTopicError("compacted"))
    txn = begun(producer, b"x")
    with pytest.raises(UnsupportedTopicError):
        txn.commit()
    with pytest.raises(UnsupportedTopicError):
        txn.commit()
    assert txn.abort().state.aborts


# Fencing.


def test_fenced_in_every_call_after(producer: Producer, coordinators: FakeCoordinators) -> None:
    txn = begun(producer, b"x")
    current = producer.begin_transaction()
    assert current.txid
    coordinators.fence("p")
    for call in (
        lambda: txn.produce(T, b"y"),
        txn.commit,
        txn.abort,
        producer.begin_transaction,
        producer.init_transactions,
        lambda: producer.produce(T, b"z"),
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: txn.send_offsets("g", []),
        lambda: txn.send_acks("q", ACKS),
    ):
        with pytest.raises(ProducerFencedError):
            call()


def test_fenced_while_the_commit_waits_for_records(
    producer: Producer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    memory_log.hold_appends(T, 0)
    future = begun(producer, b"held").commit_async()
    coordinators.fence("p")
    with pytest.raises(ProducerFencedError):
        future.result(2)
    memory_log.release_appends(T, 0)


@pytest.mark.parametrize("committed", [True, False])
def test_fenced_while_the_commit_is_sent_tells_the_decision(
    producer: Producer, coordinators: FakeCoordinators, committed: bool
) -> None:
    # A fencing answer to a commit may stand behind an earlier copy of it that was decided.
    fenced = ProducerFencedError("a newer generation took over")
    txn = begun(producer, b"x")
    if committed:
        coordinators.lose_reply("commit", 1, fenced)
        assert txn.commit().state is State.COMMITTED
    else:
        coordinators.lose_request("commit", 1, fenced)
        coordinators.expire(txn.txid)
        with pytest.raises(ProducerFencedError):
            txn.commit()


def test_a_session_closed_for_good_does_not_decide_a_commit(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    fenced = ProducerFencedError("a newer generation took over")
    txn = begun(producer, b"x")
    held = coordinators.hold("commit")
    coordinators.lose_reply("commit", 1, fenced)
    future = txn.commit_async()
    eventually(lambda: txn._book.phase is Phase.SENT)
    producer._engine._on_closed(fenced)
    held.set()
    assert future.result(5).state is State.COMMITTED


def test_records_stop_before_the_tally_is_closed(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other way round, a record sent in between would be in nobody's count, and lost.
    txn = begun(producer, b"x")
    open_at_close: list[bool] = []
    close = BranchTally.close

    def watched(tally: BranchTally) -> None:
        open_at_close.append(txn._direct)
        close(tally)

    monkeypatch.setattr(BranchTally, "close", watched)
    txn.commit()
    assert open_at_close
    assert not any(open_at_close)


def test_kept_records_stay_in_order_while_the_queue_is_full(
    memory_log: MemoryLog, make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    memory_log.create_topic(T, partitions=2)
    memory_log.hold_appends(T, 0)
    producer = make_memory_producer(queue__buffering__max__messages=5)
    held = coordinators.hold("begin")
    txn = producer.begin_transaction()
    for i in range(15):
        txn.produce(T, b"%d" % i, partition=0)
    held.set()
    eventually(lambda: memory_log.held_appends(T, 0) == 5)
    for i in range(15, 20):
        txn.produce(T, b"%d" % i, partition=0)
    memory_log.release_appends(T, 0)
    txn.commit()
    values = [message.value() for message in read_topic(memory_log, T, 2)]
    assert values == [b"%d" % i for i in range(20)]


# Offsets.


def step(at: int | None, to: int) -> Sequence[OffsetStep]:
    return [OffsetStep("in", 0, None if at is None else Place(at), Position.at(to))]


def test_offsets_take_effect_with_the_commit(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    with producer.begin_transaction() as txn:
        txn.send_offsets("g", step(None, 5))
        txn.produce(T, b"x", partition=0)
    assert coordinators.committed["g"]["in", 0].o2 == 5
    with producer.begin_transaction() as txn:
        txn.send_offsets("g", step(5, 9))
        txn.abort()
    assert coordinators.committed["g"]["in", 0].o2 == 5
    assert coordinators.count("bind_group") == 1


def test_a_conflict_is_told_by_its_name_and_the_transaction_can_be_aborted(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    txn = producer.begin_transaction()
    txn.send_offsets("g", step(3, 5))
    with pytest.raises(OffsetsConflictError):
        txn.commit()
    with pytest.raises(OffsetsConflictError):
        txn.commit()
    assert txn.abort().state.aborts
    assert commits(producer, coordinators)


def test_offsets_refused_when_sent_never_commit(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    coordinators.lose_request("add_offsets", 1, OffsetsConflictError("at once"))
    txn = begun(producer, b"x")
    txn.send_offsets("g", step(None, 5))
    with pytest.raises(OffsetsConflictError):
        txn.commit()
    assert coordinators.count("commit") == 0


def test_offsets_without_answer_never_commit(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    coordinators.lose_request("add_offsets")
    txn = begun(producer, b"x")
    txn.send_offsets("g", step(None, 5))
    with pytest.raises(TransactionAbortOnlyError):
        txn.commit()
    assert coordinators.count("commit") == 0


ACKS = (Acks(PartitionId("in", 0, "id"), (Span(MessageId(0), MessageId(5)),)),)


def test_acknowledgements_are_of_the_transaction(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    with producer.begin_transaction() as txn:
        txn.send_acks("q", ACKS)
        told: list[LogtxError | None] = []
        txn.send_acks("q", ACKS, delay=1.5, on_reply=told.append, era=7)
        txid = txn.txid
    assert coordinators.transactions[txid].acks == [("q", ACKS, 0, 0), ("q", ACKS, 1_500, 7)]
    assert told == [None]
    assert coordinators.count("bind_group") == 0, "the subscription was bound when it was made"


@pytest.mark.parametrize(
    ("answer", "error"),
    [(AckConflictError("taken"), AckConflictError), (None, TransactionAbortOnlyError)],
)
def test_acknowledgements_that_are_refused_or_unanswered_never_commit(
    producer: Producer,
    coordinators: FakeCoordinators,
    answer: AckConflictError | None,
    error: type[Exception],
) -> None:
    coordinators.lose_request("add_acks", 1, *([] if answer is None else [answer]))
    txn = begun(producer, b"x")
    told: list[LogtxError | None] = []
    txn.send_acks("q", ACKS, on_reply=told.append)
    with pytest.raises(error):
        txn.commit()
    assert coordinators.count("commit") == 0
    assert txn.abort().state.aborts
    assert [type(each) for each in told] == [AckConflictError if answer else RequestTimedOutError]


def test_another_transaction_groups_consumer_group_is_refused_by_name(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    coordinators.bindings["g"] = "billing"
    txn = begun(producer, b"x")
    with pytest.raises(GroupBoundError, match="billing"):
        txn.send_offsets("g", step(None, 5))
    assert txn.commit().state is State.COMMITTED  # Refused before anything was sent.


class Source:
    """A consumer, for the producer."""

    group_id = "g"

    def __init__(self, *batches: Sequence[OffsetStep]) -> None:
        self._batches = list(batches)

    def offset_steps(self) -> Sequence[OffsetStep]:
        return self._batches.pop(0)

    def lose_steps(self) -> Callable[[], None]:
        return lambda: None


def test_a_consumer_gives_its_own_steps(producer: Producer, coordinators: FakeCoordinators) -> None:
    source = Source(step(None, 4), step(4, 6), [])
    for _ in range(3):
        with producer.begin_transaction() as txn:
            txn.send_offsets(source)
    assert coordinators.committed["g"]["in", 0].o2 == 6
    assert coordinators.count("add_offsets") == 2  # Nothing delivered, nothing sent.


# Closing.


def test_close_aborts_what_is_open_and_finishes_what_commits(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    opened, committing = begun(producer, b"x"), begun(producer, b"y")
    future = committing.commit_async()
    producer.produce(T, b"into the last")
    producer.close(5)
    assert coordinators.transactions[opened.txid].state is State.ABORTED
    assert future.result(0).state is State.COMMITTED
    for call in (producer.begin_transaction, lambda: opened.produce(T, b"z")):
        with pytest.raises(TransactionStateError):
            call()
    producer.close()


def test_close_is_bounded_and_leaves_no_future_open(
    producer: Producer, coordinators: FakeCoordinators, memory_log: MemoryLog
) -> None:
    memory_log.hold_appends(T, 0)
    waiting = begun(producer, b"held").commit_async()
    held = coordinators.hold("commit")
    sent = begun(producer).commit_async()
    began_s = time.monotonic()
    producer.close(0.2)
    assert time.monotonic() - began_s < 8
    with pytest.raises((RequestTimedOutError, TransactionAbortOnlyError)):
        waiting.result(0)
    with pytest.raises(UnknownOutcomeError):
        sent.result(0)
    held.set()


def test_more_transactions_than_allowed_wait_in_bounded_time(
    make_memory_producer: MakeProducer,
) -> None:
    producer = make_memory_producer(transactions__in__flight__max=2, coordinator__timeout__ms=200)
    first, second = producer.begin_transaction(), producer.begin_transaction()
    with pytest.raises(RequestTimedOutError, match=r"in\.flight"):
        producer.begin_transaction()
    first.abort()
    producer.begin_transaction().commit()
    second.abort()


def test_a_binding_that_ended_is_made_again(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    """A consumer group that was unused for long is forgotten, with its binding."""
    with producer.begin_transaction() as txn:
        txn.send_offsets("g", step(None, 5))
    ended = GroupBoundError("it is bound to no transaction group")
    coordinators.lose_request("add_offsets", error=ended)
    with pytest.raises(GroupBoundError), producer.begin_transaction() as txn:
        txn.send_offsets("g", step(5, 6))
    with producer.begin_transaction() as txn:
        txn.send_offsets("g", step(5, 6))
    assert coordinators.count("bind_group") == 2
