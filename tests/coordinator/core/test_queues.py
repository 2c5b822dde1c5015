"""Queues at work: each acknowledgement in each state, leases, and what survives an owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Final

import pytest

from logtx.coordinator.core import dispatch, snapshot
from logtx.coordinator.core.snapshot import SnapshotReader, SnapshotTaker
from logtx.coordinator.core.subscriptions import VALID_PREVIOUS, MessageState
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType, AckResult, Refused
from logtx.journal.acks import SubscriptionKind
from logtx.journal.errors import (
    AckConflictError,
    AckOutOfRangeError,
    CoordinatorBusyError,
    CoordinatorLoadingError,
    GroupBoundError,
    NotAttachedError,
    TransactionAbortedError,
    TransactionCommittedError,
    UnknownSubscriptionError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from logtx.journal.places import PartitionId
from logtx.journal.records.types import AbortReason, Entry
from logtx.journal.spans import AT_OFFSET, MessageId, Span

from ..harness import dump, step
from .queue_harness import END, GROUP, P0, Queue, acks, message, offsets

AVAILABLE, PENDING, PENDING_ACK, DELETED = MessageState
DONE = commands.Done()


@pytest.fixture
def queue() -> Queue:
    """Two consumers, 1 and 2, of ten messages."""
    queue = Queue()
    queue.attach(1)
    queue.attach(2)
    return queue


# ---- every state by every acknowledgement -------------------------------------------------------


def available(_: Queue) -> None:
    pass


def pending_here(queue: Queue) -> None:
    assert queue.acquire(1, 1)


def pending_elsewhere(queue: Queue) -> None:
    assert queue.acquire(2, 1)


def pending_in_mine(queue: Queue) -> None:
    queue.mine = queue.begin("t")  # type: ignore[attr-defined]
    assert queue.add_acks("t", queue.mine, message(0)) == DONE  # type: ignore[attr-defined]


def pending_in_another(queue: Queue) -> None:
    assert queue.add_acks("other", queue.begin("other"), message(0)) == DONE


def deleted(queue: Queue) -> None:
    assert queue.acknowledge(1, AcknowledgeType.ACCEPT, message(0)) == (AckResult.DONE,)


Case = Callable[[Queue], None]
CASES: list[tuple[Case, AckResult, MessageState, object, MessageState]] = [
    (available, AckResult.DONE, DELETED, DONE, PENDING_ACK),
    (pending_here, AckResult.DONE, DELETED, DONE, PENDING_ACK),
    (pending_elsewhere, AckResult.DONE, DELETED, DONE, PENDING_ACK),
    (pending_in_mine, AckResult.PENDING, PENDING_ACK, DONE, PENDING_ACK),
    (pending_in_another, AckResult.PENDING, PENDING_ACK, AckConflictError, PENDING_ACK),
    (deleted, AckResult.DELETED, DELETED, AckConflictError, DELETED),
]
"""(what was before, result of a plain ack, state then, answer to an ack in T, state then)."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
@pytest.mark.parametrize("kind", [AcknowledgeType.ACCEPT, AcknowledgeType.REJECT])
def test_a_plain_acknowledgement(queue: Queue, case: tuple, kind: AcknowledgeType) -> None:  # type: ignore[type-arg]
    before, result, state, _, _ = case
    before(queue)
    assert queue.acknowledge(1, kind, message(0)) == (result,)
    assert queue.state(0) is state


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_an_acknowledgement_in_a_transaction(queue: Queue, case: tuple) -> None:  # type: ignore[type-arg]
    before, _, _, answer, state = case
    before(queue)
    txid = getattr(queue, "mine", None) or queue.begin("t")
    told = queue.add_acks("t", txid, message(0))
    assert told == answer if answer == DONE else isinstance(told, answer)
    assert queue.state(0) is state


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
@pytest.mark.parametrize("kind", [AcknowledgeType.RELEASE, AcknowledgeType.RENEW])
def test_a_release_is_about_ones_own_lease_alone(
    queue: Queue,
    case: tuple,  # type: ignore[type-arg]
    kind: AcknowledgeType,
) -> None:
    before = case[0]
    before(queue)
    was = queue.state(0)
    [result] = queue.acknowledge(1, kind, message(0))
    own = before is pending_here
    assert result is (AckResult.DONE if own else AckResult.LOST)
    assert queue.state(0) is (AVAILABLE if own and kind is AcknowledgeType.RELEASE else was)


def test_what_a_cumulative_acknowledgement_names_conflicts_as_each_does(queue: Queue) -> None:
    """It names what its consumer was given: so it passes over nothing of others (trap 98)."""
    one, two = queue.begin("one"), queue.begin("two")
    assert queue.add_acks("one", one, message(1)) == DONE
    told = queue.add_acks("two", two, message(0), message(1), message(2))
    assert isinstance(told, AckConflictError)
    assert [queue.state(n) for n in range(3)] == [AVAILABLE, PENDING_ACK, AVAILABLE]
    assert queue.acknowledge(1, AcknowledgeType.ACCEPT, message(0), message(1)) == (
        AckResult.DONE,
        AckResult.PENDING,
    )
    queue.end("one", one, commit=True)
    assert isinstance(queue.add_acks("two", two, message(0)), AckConflictError)
    assert queue.add_acks("two", two, message(2)) == DONE


def test_of_neighbours_that_are_named_as_one_the_answer_names_what_did_not_count(
    queue: Queue,
) -> None:
    txid = queue.begin("t")
    queue.attach(1)
    queue.acknowledge(1, AcknowledgeType.ACCEPT, message(1))
    assert queue.add_acks("t", txid, message(3)) == commands.Done()
    told = queue.ask(
        commands.Acknowledge(
            group=GROUP, consumer=1, type=AcknowledgeType.ACCEPT, acks=acks(offsets(0, 5))
        )
    )
    assert told == commands.AckResults(
        (
            Refused(AckResult.PENDING, *acks(message(3))),
            Refused(AckResult.DELETED, *acks(message(1))),
        )
    )
    assert queue.state(2) is DELETED
    named = [told.of(P0, message(n)) for n in range(5)]
    done = AckResult.DONE
    assert named == [done, AckResult.DELETED, done, AckResult.PENDING, done]


def test_one_row_per_state_may_precede_another() -> None:
    assert set(VALID_PREVIOUS) == set(MessageState)
    assert all(state not in before for state, before in VALID_PREVIOUS.items())
    assert DELETED not in set().union(*VALID_PREVIOUS.values()), "nothing comes back"


# ---- transactions -------------------------------------------------------------------------------


def test_a_commit_deletes_and_an_abort_frees(queue: Queue) -> None:
    for commit, state in ((True, DELETED), (False, AVAILABLE)):
        txid = queue.begin("t")
        offset = int(commit)
        assert queue.add_acks("t", txid, message(offset)) == DONE
        queue.end("t", txid, commit=commit)
        assert queue.state(offset) is state


@pytest.mark.parametrize("reason", ["expired", "fenced", "operator", "disconnected"])
def test_every_abort_frees_what_is_pending(queue: Queue, reason: str) -> None:
    txid = queue.begin("t")
    assert queue.add_acks("t", txid, message(0)) == DONE
    coordinator = queue.coordinator
    match reason:
        case "expired":
            coordinator.pass_time(61_000)
        case "fenced":
            queue.ask(commands.Connect(producer_id="t", nonce=99))
        case "operator":
            queue.ask(commands.AbortTransaction(txid=txid, reason=AbortReason.OPERATOR))
        case "disconnected":
            coordinator.detach("t", queue.sessions["t"].nonce)
            coordinator.pass_time(5_000)
    coordinator.ack()
    assert queue.state(0) is AVAILABLE


def test_what_is_pending_in_one_transaction_is_not_freed_by_another(queue: Queue) -> None:
    one, two = queue.begin("one"), queue.begin("two")
    assert queue.add_acks("one", one, message(0)) == DONE
    assert isinstance(queue.add_acks("two", two, message(0)), AckConflictError)
    queue.end("two", two, commit=False)
    assert queue.state(0) is PENDING_ACK
    queue.end("one", one, commit=True)
    assert queue.state(0) is DELETED


@pytest.mark.parametrize("commit", [True, False])
def test_an_ended_transaction_takes_no_acknowledgement(queue: Queue, commit: bool) -> None:
    """A request that comes once more, late, would leave its messages pending for ever (trap 97)."""
    txid = queue.begin("t")
    queue.end("t", txid, commit=commit)
    error = TransactionCommittedError if commit else TransactionAbortedError
    assert isinstance(queue.add_acks("t", txid, message(0)), error)
    assert queue.state(0) is AVAILABLE


def test_a_lost_acknowledgement_is_asked_again_at_the_next_owner(queue: Queue) -> None:
    """The owner dies between ADD_ACKS and its reply: with the record in the journal, or without."""
    txid = queue.begin("t")
    for landed in (0, 1):
        command = commands.AddAcks(
            session=queue.sessions["t"], txid=txid, group=GROUP, acks=acks(message(landed))
        )
        ref = queue.send(command)
        queue.coordinator.lose(landed=landed)
        assert queue.coordinator.replies.get(ref) is None
        queue.tell_ends()
        assert queue.state(landed) is (PENDING_ACK if landed else AVAILABLE)
        assert queue.add_acks("t", txid, message(landed)) == DONE
        assert queue.state(landed) is PENDING_ACK
    queue.end("t", txid, commit=True)
    assert {queue.state(0), queue.state(1)} == {DELETED}


def test_a_reply_waits_for_its_record(queue: Queue) -> None:
    txid = queue.begin("t")
    command = commands.AddAcks(
        session=queue.sessions["t"], txid=txid, group=GROUP, acks=acks(message(0))
    )
    first, again = queue.send(command), queue.send(command)
    plain = queue.send(
        commands.Acknowledge(
            group=GROUP, consumer=1, type=AcknowledgeType.ACCEPT, acks=acks(message(1))
        )
    )
    assert not {first, again, plain} & queue.coordinator.replies.keys()
    queue.coordinator.ack()
    assert {first, again, plain} <= queue.coordinator.replies.keys()


# ---- leases -------------------------------------------------------------------------------------


def test_what_is_deleted_pending_or_leased_is_not_given_out(queue: Queue) -> None:
    queue.acknowledge(1, AcknowledgeType.ACCEPT, message(1))
    queue.add_acks("t", queue.begin("t"), message(3))
    given = [queue.acquire(n % 2 + 1, 2) for n in range(20)]
    spans = [lease.span for lease in given if lease is not None]
    named = [n for n in range(END) if any(s.lo <= MessageId(n, AT_OFFSET) < s.hi for s in spans)]
    assert named == [0, 2, 4, 5, 6, 7, 8, 9]
    assert all(a.hi <= b.lo for a, b in pairwise(spans))


def test_a_request_waits_until_there_is_something(queue: Queue) -> None:
    assert queue.acquire(1)
    ref = queue.send(commands.Acquire(group=GROUP, consumer=2, max_offsets=5))
    assert ref not in queue.coordinator.replies
    assert queue.coordinator.shard.queues.dispatch.wanted()
    queue.tell_ends(END + 3)
    reply = queue.coordinator.replies[ref]
    assert isinstance(reply, commands.Leases)
    assert [lease.span for lease in reply.leases] == [offsets(END, END + 3)]


def test_a_request_does_not_wait_for_ever_and_a_second_one_ends_the_first(queue: Queue) -> None:
    queue.acquire(1)
    ask = commands.Acquire(group=GROUP, consumer=2, max_offsets=5)
    first, second = queue.send(ask), queue.send(ask)
    assert queue.coordinator.replies[first] == commands.Leases()
    queue.coordinator.pass_time(dispatch.WAIT_MS)
    assert queue.coordinator.replies[second] == commands.Leases()
    forgotten = queue.send(ask)
    queue.coordinator.tenure.forget([forgotten])
    queue.coordinator.pass_time(dispatch.WAIT_MS)
    assert forgotten not in queue.coordinator.replies


def test_a_lease_ends_with_its_time_and_counts(queue: Queue) -> None:
    queue.attach(1, timeout_ms=1_000)
    first = queue.acquire(1, 3)
    assert first is not None
    assert (first.delivery_count, first.left_ms) == (1, 1_000)
    queue.coordinator.pass_time(900)
    assert queue.acknowledge(1, AcknowledgeType.RENEW, message(0)) == (AckResult.DONE,)
    queue.coordinator.pass_time(900)
    assert queue.state(0) is PENDING
    queue.coordinator.pass_time(100)
    assert queue.state(0) is AVAILABLE
    again = queue.acquire(2, 100)
    assert again is not None
    assert (again.span, again.delivery_count) == (first.span, 2), "no further than what counts 1"
    new = queue.acquire(2, 100)
    assert new is not None
    assert (new.span.lo, new.delivery_count) == (first.span.hi, 1)


def test_a_released_message_waits_for_its_delay(queue: Queue) -> None:
    lease = queue.acquire(1)
    assert lease is not None
    assert queue.acknowledge(1, AcknowledgeType.RELEASE, message(4), delay_ms=500) == (
        AckResult.DONE,
    )
    ref = queue.send(commands.Acquire(group=GROUP, consumer=2, max_offsets=5))
    queue.coordinator.pass_time(499)
    assert ref not in queue.coordinator.replies
    queue.coordinator.pass_time(1)
    told = queue.coordinator.replies[ref]
    assert isinstance(told, commands.Leases)
    assert [(x.span, x.delivery_count) for x in told.leases] == [(message(4), 2)]


def test_an_aborted_message_comes_again_with_its_count(queue: Queue) -> None:
    lease, txid = queue.acquire(1), queue.begin("t")
    assert lease is not None
    assert queue.add_acks("t", txid, message(0)) == DONE
    assert queue.acquire(2) is None
    queue.end("t", txid, commit=False)
    told = [r for r in queue.coordinator.replies.values() if isinstance(r, commands.Leases)]
    assert [(x.span, x.delivery_count) for x in told[-1].leases] == [(message(0), 2)]


def test_what_an_aborted_transaction_had_waits_for_its_delay(queue: Queue) -> None:
    """From the abort on, and not from the acknowledgement. Otherwise a failure that lasts a moment
    takes messages to their limit of deliveries at once (trap 124)."""
    assert queue.acquire(1)
    txid = queue.begin("t")
    assert queue.add_acks("t", txid, message(0), delay_ms=900) == DONE
    assert queue.add_acks("t", txid, message(1)) == DONE
    queue.acknowledge(1, AcknowledgeType.ACCEPT, offsets(2, END))
    queue.coordinator.pass_time(1_000)
    queue.end("t", txid, commit=False)
    at_once = queue.acquire(2)
    assert at_once is not None
    assert at_once.span == message(1), "it was acknowledged without a delay"
    ref = queue.send(commands.Acquire(group=GROUP, consumer=2, max_offsets=5))
    queue.coordinator.pass_time(899)
    assert ref not in queue.coordinator.replies
    assert queue.state(0) is AVAILABLE, "whoever wants to may acknowledge it"
    queue.coordinator.pass_time(1)
    told = queue.coordinator.replies[ref]
    assert [(x.span, x.delivery_count) for x in told.leases] == [(message(0), 2)]


def test_a_delay_is_of_one_transaction(queue: Queue) -> None:
    """The last one to acknowledge says it; neither a commit nor another owner leaves it behind."""
    for delay_ms in (5_000, 0):
        txid = queue.begin("t")
        assert queue.add_acks("t", txid, message(0), delay_ms=delay_ms) == DONE
        queue.end("t", txid, commit=False)
    lease = queue.acquire(1)
    assert lease is not None
    assert lease.span == offsets(0, END)
    txid = queue.begin("t")
    assert queue.add_acks("t", txid, message(1), delay_ms=5_000) == DONE
    queue.fail_over()
    queue.tell_ends()
    queue.attach(2)
    queue.coordinator.pass_time(dispatch.HELD_MS)
    queue.end("t", txid, commit=False)
    lease = queue.acquire(2)
    assert lease is not None
    assert lease.span == offsets(0, END), "a delay is lost with its owner"


def test_each_delivery_makes_leases_shorter_and_the_last_one_is_alone(queue: Queue) -> None:
    """Neighbours of a message that kills its consumers are not counted to the end with it
    (trap 119)."""
    queue.tell_ends(2_000)
    given = []
    for _ in range(5):
        lease = queue.acquire(1, 500, limit=5)
        assert lease is not None
        given.append((lease.delivery_count, lease.span))
        queue.acknowledge(1, AcknowledgeType.RELEASE, lease.span)
    assert given == [(n, offsets(0, end)) for n, end in enumerate((500, 125, 31, 7, 1), 1)]
    rest = []
    for _ in range(8):
        lease = queue.acquire(2, 500, limit=5)
        assert lease is not None
        rest.append((lease.delivery_count, lease.span))
    alone = [(5, offsets(n, n + 1)) for n in range(1, 7)]
    assert rest == [(6, offsets(0, 1)), *alone, (4, offsets(7, 14))]


def test_more_of_what_is_new_may_be_asked_for_than_of_what_comes_again(queue: Queue) -> None:
    """A message that kills its consumer takes no more along the second time (trap 187)."""
    queue.tell_ends(20_000)
    asked = {"limit": 5, "new": 3_000}
    first = queue.acquire(1, 500, **asked)
    assert first is not None
    assert first.span == offsets(0, 3_000)
    queue.acknowledge(1, AcknowledgeType.RELEASE, first.span)
    again = queue.acquire(1, 500, **asked)
    assert again is not None
    assert again.span == offsets(0, 125)
    queue.acknowledge(1, AcknowledgeType.ACCEPT, offsets(0, 3_000))
    most = queue.acquire(1, 500, limit=5, new=2**31)
    assert most is not None
    assert most.span == offsets(3_000, 3_000 + dispatch.LEASE_OFFSETS_MAX)
    once = queue.acquire(1, 500, limit=1, new=3_000)
    assert once is not None
    assert once.span.offset_count == 500, "it would be the only delivery"


PARTITIONS: Final = tuple(PartitionId("b", n, "id-b") for n in range(4))


@pytest.fixture
def wide(queue: Queue) -> Queue:
    """Consumers 1 and 2, of a topic of four partitions with backlogs."""
    for consumer in (1, 2):
        queue.attach(consumer, topics=("b",))
    for partition in PARTITIONS:
        queue.tell_ends(10_000, partition)
    return queue


def partition_for(queue: Queue, consumer: int) -> int:
    """Returns the number of the partition of a consumer's next lease, of 10 messages."""
    lease = queue.acquire(consumer, 10)
    assert lease is not None
    return lease.partition.partition


def test_within_a_backlog_a_consumer_stays_for_a_while(wide: Queue) -> None:
    found = []
    for _ in range(13):
        found.append(partition_for(wide, 1))
        wide.coordinator.pass_time(dispatch.STAY_MS // 4)
    assert found == [0] * 4 + [1] * 4 + [2] * 4 + [3]


def test_trap_200_a_backlog_that_never_ends_keeps_no_consumer_from_the_others(wide: Queue) -> None:
    waited_ms, longest_ms, lease_ms = dict.fromkeys(range(4), 0), 0, 50
    for _ in range(100):
        partition = partition_for(wide, 1)
        wide.coordinator.pass_time(lease_ms)
        longest_ms = max(longest_ms, waited_ms[partition])
        waited_ms = {p: ms + lease_ms if p != partition else 0 for p, ms in waited_ms.items()}
    assert longest_ms <= 3 * (dispatch.STAY_MS + lease_ms)


def test_trap_200_where_messages_come_one_by_one_nobody_stays(wide: Queue) -> None:
    """There is always one more: those of other partitions would wait for the while."""
    first = PARTITIONS[0]
    wide.acknowledge_in(first, offsets(0, 10_000))
    found = []
    for number in range(5):
        wide.tell_ends(10_001 + number, first)
        found.append(partition_for(wide, 1))
        if found[-1] != 0:
            wide.coordinator.pass_time(dispatch.STAY_MS)
    assert found == [0, 1, 2, 3, 0]


def test_consumers_that_stay_are_in_partitions_of_their_own(wide: Queue) -> None:
    for _ in range(20):
        assert partition_for(wide, 1) != partition_for(wide, 2)
        wide.coordinator.pass_time(dispatch.STAY_MS // 2)


def test_who_stays_where_nothing_is_left_goes_on_elsewhere(wide: Queue) -> None:
    assert partition_for(wide, 1) == 0
    wide.acknowledge_in(PARTITIONS[0], offsets(0, 10_000))
    assert partition_for(wide, 1) == 1


def test_ahead_comes_only_what_was_never_given_out(queue: Queue) -> None:
    first, second = queue.acquire(1, 2), queue.acquire(1, 2, new=3, ahead=True)
    assert first is not None
    assert second is not None
    assert (second.span, second.delivery_count) == (offsets(2, 5), 1)
    queue.acknowledge(1, AcknowledgeType.RELEASE, first.span)
    assert queue.acquire(1, 2, ahead=True) is None, "the first that is free comes again"
    assert queue.acquire(2, 2, ahead=False) is not None


def test_ahead_comes_nothing_at_the_end_and_nobody_waits_for_it(queue: Queue) -> None:
    """The last messages go to who has nothing to work on."""
    assert queue.acquire(1, 6)
    command = commands.Acquire(group=GROUP, consumer=1, max_offsets=4, ahead=True)
    assert queue.ask(command) == commands.Leases(), "it is answered"
    lease = queue.acquire(2, 4)
    assert lease is not None
    assert lease.span == offsets(6, 10)


@pytest.mark.parametrize("what", ["comes again", "is the last"])
def test_trap_229_what_does_not_come_ahead_has_its_turn_all_the_same(
    wide: Queue, what: str
) -> None:
    """Other partitions have backlogs, so there would always be something to lease ahead."""
    first = PARTITIONS[0]
    lease = wide.acquire(2, 10)
    assert lease is not None
    assert lease.partition == first
    wide.acknowledge_in(first, offsets(10, 10_000))
    if what == "comes again":
        wide.release_in(first, 2, lease.span)
    else:
        wide.acknowledge_in(first, lease.span)
        wide.tell_ends(10_005, first)
    found = []
    for _ in range(100):
        wide.coordinator.pass_time(50)
        got = wide.acquire(1, 10, ahead=True) or wide.acquire(1, 10)
        assert got is not None
        found.append(got.partition)
    assert first in found[: 4 * dispatch.STAY_MS // 50 + 4]


def test_ahead_comes_nothing_whose_first_delivery_is_the_last(queue: Queue) -> None:
    assert queue.acquire(1, 2, limit=1)
    assert queue.acquire(1, 2, limit=1, ahead=True) is None
    assert queue.acquire(1, 2, limit=2, ahead=True)


def test_what_is_beyond_the_limit_comes_in_whole_leases(queue: Queue) -> None:
    """Nobody works on it any more."""
    for limit, end in ((1, 6), (0, 1)):
        lease = queue.acquire(1, 6)
        assert lease is not None
        queue.acknowledge(1, AcknowledgeType.RELEASE, lease.span)
        lease = queue.acquire(2, 6, limit=limit)
        assert lease is not None
        assert (lease.span, lease.delivery_count) == (offsets(0, end), 2)
        queue.fail_over()
        queue.tell_ends()
        queue.attach(1)
        queue.attach(2)
        queue.coordinator.pass_time(dispatch.HELD_MS)


def test_who_lets_a_message_be_given_out_once_gets_whole_leases(queue: Queue) -> None:
    lease = queue.acquire(1, 6, limit=1)
    assert lease is not None
    assert lease.span == offsets(0, 6)


def test_what_no_application_got_does_not_count(queue: Queue) -> None:
    """Its consumer failed to read it, or left: a broker's outage would use up all deliveries
    (trap 123)."""
    for _ in range(3):
        lease = queue.acquire(1, 4)
        assert lease is not None
        assert (lease.span, lease.delivery_count) == (offsets(0, 4), 1)
        queue.acknowledge(1, AcknowledgeType.RELEASE, lease.span, unseen=True)
    lease = queue.acquire(1, 4)
    assert lease is not None
    queue.acknowledge(1, AcknowledgeType.RELEASE, offsets(0, 2))
    queue.acknowledge(1, AcknowledgeType.RELEASE, offsets(2, 4), unseen=True)
    queue.acknowledge(2, AcknowledgeType.RELEASE, offsets(0, 4), unseen=True)
    counts = [queue.acquire(2, 8) for _ in range(2)]
    assert [(x.span, x.delivery_count) for x in counts if x] == [
        (offsets(0, 2), 2),
        (offsets(2, END), 1),
    ]


def test_to_attach_again_is_no_delivery(queue: Queue) -> None:
    """Each consumer does so once a minute: work that takes long would reach the limit."""
    lease = queue.acquire(1, 4)
    assert lease is not None
    for _ in range(5):
        (again,) = queue.attach(1, lease.span).leases
        assert (again.span, again.delivery_count) == (lease.span, 1)
    queue.acknowledge(1, AcknowledgeType.RELEASE, lease.span)
    lease = queue.acquire(2, 100)
    assert lease is not None
    assert lease.delivery_count == 2


def test_a_dead_consumers_messages_return_after_a_grace(queue: Queue) -> None:
    lease = queue.acquire(1)
    now = queue.coordinator.now
    queue.coordinator.tenure.consumer_gone(GROUP, 1, now)
    assert isinstance(
        queue.ask(commands.Acquire(group=GROUP, consumer=1, max_offsets=1)), NotAttachedError
    )
    assert queue.acquire(2) is None
    queue.coordinator.pass_time(dispatch.GONE_MS)
    told = [r for r in queue.coordinator.replies.values() if isinstance(r, commands.Leases)]
    assert lease is not None
    assert told[-1].leases[0].span == lease.span


def test_one_that_attaches_again_keeps_what_it_names(queue: Queue) -> None:
    queue.acquire(1)
    queue.coordinator.tenure.consumer_gone(GROUP, 1, queue.coordinator.now)
    attached = queue.attach(1, message(2), message(3))
    assert [lease.span for lease in attached.leases] == [message(2), message(3)]
    assert queue.state(2) is queue.state(3) is PENDING
    assert queue.state(0) is AVAILABLE


def test_after_a_failover_each_keeps_what_it_works_on(queue: Queue) -> None:
    one, two = queue.acquire(1, 3), queue.acquire(2, 3)
    assert one is not None
    assert two is not None
    queue.fail_over()
    queue.tell_ends()
    first = queue.attach(1, one.span)
    waits = queue.send(commands.Acquire(group=GROUP, consumer=1, max_offsets=100))
    assert [lease.span for lease in first.leases] == [one.span]
    assert waits not in queue.coordinator.replies, "others may still say what they hold"
    assert [lease.span for lease in queue.attach(2, two.span, one.span).leases] == [two.span]
    queue.coordinator.pass_time(dispatch.HELD_MS)
    told = queue.coordinator.replies[waits]
    assert isinstance(told, commands.Leases)
    assert told.leases[0].span.lo == two.span.hi


def test_a_lease_waits_for_the_abort_that_freed_it(queue: Queue) -> None:
    """If the abort were lost, the message would be pending, and with a consumer (trap 100)."""
    txid = queue.begin("t")
    queue.add_acks("t", txid, offsets(0, END))
    ref = queue.send(commands.Acquire(group=GROUP, consumer=1, max_offsets=5))
    action = commands.Action.ABORT
    queue.send(commands.End(session=queue.sessions["t"], txid=txid, action=action, writes={}))
    queue.coordinator.catch_up()
    assert queue.state(0) is PENDING, "it is leased at once"
    assert ref not in queue.coordinator.replies
    queue.coordinator.lose()
    assert ref not in queue.coordinator.replies
    assert queue.state(0) is PENDING_ACK


def test_a_lease_that_is_never_told_is_none(queue: Queue) -> None:
    """The journal does not answer: its consumer would wait for a lease of its own (trap 103)."""
    tenure = queue.coordinator.tenure
    lease = queue.acquire(1, 2)
    assert lease is not None
    queue.acknowledge(1, AcknowledgeType.RELEASE, lease.span)
    ask = commands.Acquire(group=GROUP, consumer=1, max_offsets=100)
    tenure.submit(ask, "lost", queue.coordinator.now, queue.coordinator.topics)
    assert queue.state(0) is PENDING
    tenure.end_told(None, queue.coordinator.now.monotonic_ms, "no answer")
    assert isinstance(queue.coordinator.replies["lost"], CoordinatorLoadingError)
    assert queue.state(0) is AVAILABLE
    again = queue.acquire(2, 2)
    assert again is not None
    assert again.delivery_count == 2, "what was not told does not count"


def test_a_replaced_owner_gives_nothing_out(queue: Queue) -> None:
    """It would lease what its successor has deleted (trap 99)."""
    other = Queue()
    other.coordinator = type(queue.coordinator)(queue.coordinator.journal, name="c2")
    other.coordinator.take_over()
    other.tell_ends()
    other.acknowledge(1, AcknowledgeType.ACCEPT, offsets(0, END))
    ref = queue.send(commands.Acquire(group=GROUP, consumer=1, max_offsets=5))
    assert ref not in queue.coordinator.replies
    assert not queue.coordinator.serving


def test_a_lease_is_told_as_it_is_then(queue: Queue) -> None:
    """An acknowledgement may come while the answer waits for the journal's end (trap 101)."""
    tenure = queue.coordinator.tenure
    ask = commands.Acquire(group=GROUP, consumer=1, max_offsets=100)
    tenure.submit(ask, "lease", queue.coordinator.now, queue.coordinator.topics)
    txid = commands.Acknowledge(
        group=GROUP, consumer=2, type=AcknowledgeType.ACCEPT, acks=acks(message(4))
    )
    tenure.submit(txid, "ack", queue.coordinator.now, queue.coordinator.topics)
    queue.coordinator.ack()
    queue.coordinator._tell_end()
    told = queue.coordinator.replies["lease"]
    assert isinstance(told, commands.Leases)
    assert [lease.span for lease in told.leases] == [
        Span(MessageId(0), MessageId(4)),
        Span(MessageId(4, AT_OFFSET, 1), MessageId(END)),
    ]
    assert len({lease.number for lease in told.leases}) == 1


def test_a_window_bounds_how_far_acknowledgements_run_ahead(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "WINDOW_OFFSETS", 4)
    assert queue.acquire(1, 1)
    for _ in range(3):
        lease = queue.acquire(2, 1)
        assert lease is not None
        queue.acknowledge(2, AcknowledgeType.ACCEPT, lease.span)
    assert queue.acquire(2, 1) is None
    queue.acknowledge(1, AcknowledgeType.RELEASE, message(0))
    told = [r for r in queue.coordinator.replies.values() if isinstance(r, commands.Leases)]
    assert told[-1].leases[0].span == message(0), "what was given out before may be, again"


def test_a_failover_subscription_gives_a_partition_to_one_at_a_time() -> None:
    queue = Queue(SubscriptionKind.FAILOVER)
    queue.attach(1)
    queue.attach(2)
    first = queue.acquire(1, 3)
    assert first is not None
    assert queue.acquire(2, 3) is None
    more = queue.acquire(1, 3)
    assert more is not None
    assert more.span.lo == first.span.hi
    queue.coordinator.tenure.consumer_gone(GROUP, 1, queue.coordinator.now)
    queue.coordinator.pass_time(dispatch.GONE_MS)
    told = [r for r in queue.coordinator.replies.values() if isinstance(r, commands.Leases)]
    assert told[-1].leases[0].span.lo == first.span.lo, "what returns comes first"


def test_what_is_placed_at_the_end_is_leased_if_asked_for(queue: Queue) -> None:
    """No record stands there yet, and none may come: it would wait for one (trap 109)."""
    assert queue.acknowledge(1, AcknowledgeType.ACCEPT, offsets(0, END)) == (AckResult.DONE,)
    waiting = queue.send(commands.Acquire(group=GROUP, consumer=1, max_offsets=5))
    at_end = commands.Acquire(group=GROUP, consumer=2, max_offsets=5, at_ends=True)
    (lease,) = queue.ask(at_end).leases
    assert lease.span == Span(MessageId(END), MessageId(END, AT_OFFSET))
    placed = Span(MessageId(END), MessageId(END, 7, 2))
    assert queue.acknowledge(2, AcknowledgeType.ACCEPT, placed) == (AckResult.DONE,)
    rest = Span(placed.hi, lease.span.hi)
    assert queue.acknowledge(2, AcknowledgeType.RELEASE, rest) == (AckResult.DONE,)
    (again,) = queue.ask(at_end).leases
    assert (again.span, again.delivery_count) == (rest, 1), "it was no message before"
    queue.acknowledge(2, AcknowledgeType.RELEASE, rest, delay_ms=100)
    queue.tell_ends(END + 1)
    (lease,) = queue.coordinator.replies[waiting].leases
    assert lease.span.lo == MessageId(END, AT_OFFSET), "the record there comes behind"
    beyond = Span(MessageId(END), MessageId(END + 1, AT_OFFSET, 1))
    assert isinstance(queue.acknowledge(1, AcknowledgeType.ACCEPT, beyond), AckOutOfRangeError)


def test_an_idle_consumer_costs_nothing_until_something_happens(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command ends with a look at what is due: a thousand consumers may wait."""
    queue.acquire(1)
    waiting = queue.send(commands.Acquire(group=GROUP, consumer=2, max_offsets=5))
    given = queue.coordinator.shard.queues.dispatch
    looks: list[object] = []
    acquire = given.acquire
    monkeypatch.setattr(given, "acquire", lambda *args: looks.append(args) or acquire(*args))
    queue.coordinator.pass_time(100)
    looks.clear()
    for _ in range(5):
        queue.coordinator.pass_time(100)
    assert not looks
    queue.acknowledge(1, AcknowledgeType.RELEASE, message(3))
    assert looks
    assert queue.coordinator.replies[waiting].leases[0].span.lo <= message(3).lo


def test_what_was_held_back_and_nobody_wants_costs_nothing(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All who wait for other messages would be looked at each time, for good."""
    lease = queue.acquire(1)
    assert lease is not None
    queue.acknowledge(1, AcknowledgeType.RELEASE, lease.span, delay_ms=50)
    for consumer in (1, 2):
        queue.attach(consumer, topics=("b",))
    queue.send(commands.Acquire(group=GROUP, consumer=2, max_offsets=5))
    queue.coordinator.pass_time(100)
    given = queue.coordinator.shard.queues.dispatch
    looks: list[object] = []
    acquire = given.acquire
    monkeypatch.setattr(given, "acquire", lambda *args: looks.append(args) or acquire(*args))
    for _ in range(5):
        queue.coordinator.pass_time(100)
    assert not looks
    queue.attach(2)
    again = queue.acquire(2)
    assert again is not None
    assert again.delivery_count == 2


# ---- bad input ----------------------------------------------------------------------------------


def test_what_nobody_could_mean_is_refused(queue: Queue) -> None:
    txid = queue.begin("t")
    beyond = offsets(0, END + 1)
    assert isinstance(queue.add_acks("t", txid, beyond), AckOutOfRangeError)
    assert isinstance(queue.acknowledge(1, AcknowledgeType.ACCEPT, beyond), AckOutOfRangeError)
    assert isinstance(queue.attach(3, topics=("nowhere",)), UnknownTopicError)
    assert isinstance(queue.acknowledge(9, AcknowledgeType.RELEASE, message(0)), NotAttachedError)
    elsewhere = P0._replace(topic_id="of a former topic")
    named = acks(message(0), partition=elsewhere)
    queue.tell_ends(END, elsewhere)
    for command in (
        commands.AddAcks(session=queue.sessions["t"], txid=txid, group=GROUP, acks=named),
        commands.AddAcks(session=queue.sessions["t"], txid=txid, group="?", acks=acks(message(0))),
        commands.Acquire(group="?", consumer=1, max_offsets=1),
        commands.Acknowledge(group=GROUP, consumer=1, type=AcknowledgeType.ACCEPT, acks=named),
    ):
        assert isinstance(queue.ask(command), UnknownSubscriptionError)
    assert queue.coordinator.shard.queues.subscriptions.get(GROUP) is not None
    assert {queue.state(n) for n in range(END)} == {AVAILABLE}


def test_an_end_that_is_not_known_yet_is_waited_for(queue: Queue) -> None:
    queue.fail_over()
    told = queue.acknowledge(1, AcknowledgeType.ACCEPT, message(0))
    assert isinstance(told, CoordinatorBusyError)
    assert queue.coordinator.shard.queues.dispatch.wanted() == [P0]
    queue.tell_ends()
    assert queue.acknowledge(1, AcknowledgeType.ACCEPT, message(0)) == (AckResult.DONE,)


def test_a_name_is_a_consumer_group_or_a_subscription(queue: Queue) -> None:
    txid = queue.begin("t")
    session = queue.sessions["t"]
    steps = (step(("a", 0), None, 1),)
    for command in (
        commands.AddOffsets(session=session, txid=txid, group=GROUP, steps=steps),
        commands.ClaimOffsets(group=GROUP, partitions=(("a", 0),), claimant=1),
    ):
        assert isinstance(queue.ask(command), GroupBoundError)
    assert (
        queue.ask(commands.AddOffsets(session=session, txid=txid, group="group", steps=steps))
        == DONE
    )
    queue.end("t", txid, commit=True)
    told = queue.ask(commands.Attach(group="group", consumer=1, topics=("a",)))
    assert isinstance(told, GroupBoundError)


# ---- the journal --------------------------------------------------------------------------------


def test_a_subscription_begins_where_it_is_told_and_grows_with_its_topics(queue: Queue) -> None:
    told = queue.ask(commands.Attach(group="late", consumer=1, topics=("a",), starts={("a", 0): 7}))
    assert told == commands.Attached(())
    queue.ask(commands.Attach(group="late", consumer=1, topics=("a", "b"), starts={("a", 0): 9}))
    subscription = queue.coordinator.shard.queues.subscriptions.require("late")
    assert subscription.partitions[P0].start == MessageId(7), "what it has keeps its state"
    assert len(subscription.partitions) == 8


def test_a_snapshot_says_what_the_journal_says(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", 300)
    txid = queue.begin("t")
    queue.add_acks("t", txid, *(message(n) for n in (0, 2, 4)))
    queue.acknowledge(1, AcknowledgeType.ACCEPT, *(message(n) for n in (1, 5, 7, 9)))
    shard = queue.coordinator.shard
    taker = SnapshotTaker(shard)
    reader = None
    while not taker.done:
        entry: Entry = shard.entry(taker.chunk())
        offset = shard.next_offset
        reader = reader or SnapshotReader(0, shard.config, offset, entry)
        read = reader.feed(offset, entry)
        shard.replay(offset, entry)
    assert read is not None
    rows = {**dump(read), "outcomes": None}
    assert rows == {**dump(shard), "outcomes": None}
    assert taker._index > 5, "it takes several chunks"
    read.queues.replay_decided(txid.offset, committed=True)
    shard.queues.replay_decided(txid.offset, committed=True)
    assert dump(read)["subscriptions"] == dump(shard)["subscriptions"]


def test_partitions_that_a_topic_got_begin_with_their_first_message(queue: Queue) -> None:
    """A consumer that begins at the end says where that is, and it may be the second one."""
    known = queue.coordinator.topics["a"]
    count = known.partition_count
    queue.coordinator.topics["a"] = replace(known, partition_count=count + 1)
    starts = {("a", 0): 5, ("a", count): 5, ("b", 0): 5}
    command = commands.Attach(group=GROUP, consumer=3, topics=("a", "b"), starts=starts)
    assert queue.ask(command) == commands.Attached(())
    subscription = queue.coordinator.shard.queues.subscriptions.require(GROUP)
    begins = {p.key: each.start for p, each in subscription.partitions.items()}
    assert begins["a", 0] == begins["a", count] == MessageId(0)
    assert begins["b", 0] == MessageId(5), "the topic is new to the subscription"


def test_a_sidecar_is_no_queue(queue: Queue) -> None:
    assert isinstance(queue.attach(3, topics=("a._txnlog",)), UnsupportedTopicError)
