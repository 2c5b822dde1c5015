"""Subscriptions that are reset or deleted: what begins anew, what counts no more, what is refused.

What must not count is asked of every request that names messages, in every order with the reset: by
a request of before that comes late, by one that is repeated, by a consumer that comes back.
"""

from __future__ import annotations

import pytest

from logtx.coordinator.core import dispatch
from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.snapshot import SnapshotReader, SnapshotTaker
from logtx.coordinator.core.subscriptions import MessageState, Subscriptions
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import OPERATOR, AcknowledgeType, AckResult
from logtx.journal.acks import Subscribe, SubscribeEffect, SubscriptionKind
from logtx.journal.errors import (
    CoordinatorBusyError,
    GroupBoundError,
    NotAllowedError,
    NotAttachedError,
    SubscriptionResetError,
    TransactionAbortedError,
    UnknownSubscriptionError,
    UnknownTopicError,
)
from logtx.journal.places import PartitionId
from logtx.journal.records.codec import WITH_ERAS, WITH_QUEUES, encode_entry
from logtx.journal.spans import MessageId, Span

from ..harness import dump
from .queue_harness import END, GROUP, P0, Queue, acks, message, offsets

AVAILABLE, PENDING, PENDING_ACK, DELETED = MessageState
DONE = commands.Done()
ACCEPT, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.REJECT
RELEASE, RENEW = AcknowledgeType.RELEASE, AcknowledgeType.RENEW
P1 = PartitionId("a", 1, "id-a")


@pytest.fixture
def queue() -> Queue:
    """A consumer, 1, that has acknowledged messages 0, 1 and 5, and left."""
    queue = Queue()
    queue.attach(1)
    queue.acquire(1, END)
    queue.acknowledge(1, ACCEPT, offsets(0, 2), message(5))
    queue.leave(1)
    return queue


def states(queue: Queue) -> str:
    """The state of each message, by its first letter; in capitals if it is pending."""
    letters = {AVAILABLE: "a", PENDING: "l", PENDING_ACK: "P", DELETED: "d"}
    return "".join(letters[queue.state(n)] for n in range(END))


def trim(queue: Queue) -> None:
    """A snapshot is taken, and whoever loads the journal from now on begins there."""
    coordinator, journal = queue.coordinator, queue.coordinator.journal
    first = coordinator.shard.next_offset
    while coordinator.tenure.snapshot():
        pass
    coordinator.ack()

    def load(config: ShardConfig | None = None) -> Shard:
        replica = Replica(0, config or ShardConfig(), first, certain=True)
        for offset in range(first, len(journal.entries)):
            replica.feed(offset, journal.entries[offset])
        return replica.shard

    journal.load = load  # type: ignore[method-assign]


# ---- what begins anew ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "after"), [(0, "aaaaaaaaaa"), (3, "dddaaaaaaa"), (6, "ddddddaaaa"), (END, "d" * END)]
)
def test_all_before_is_deleted_and_all_else_available(
    queue: Queue, offset: int, after: str
) -> None:
    assert states(queue) == "ddaaadaaaa"
    assert queue.reset(offset) == DONE
    assert states(queue) == after
    queue.attach(1)
    lease = queue.acquire(1, END)
    assert (lease is None) == (offset == END)
    if lease is not None:
        assert lease.span == offsets(offset, END)
        assert lease.delivery_count == 1, "nobody was given it in this era"


def test_other_partitions_stay_as_they_are(queue: Queue) -> None:
    queue.attach(2)
    queue.tell_ends(END, P1)
    plain = commands.Acknowledge(
        group=GROUP, consumer=2, type=ACCEPT, acks=acks(message(3), partition=P1)
    )
    assert queue.ask(plain) == commands.AckResults()
    queue.leave(2)
    assert queue.reset(0) == DONE
    of = queue.coordinator.shard.queues
    assert of.state_of(GROUP, P1, message(3).lo) is DELETED
    assert states(queue) == "a" * END


def test_counts_and_delays_are_of_an_era(queue: Queue) -> None:
    queue.attach(1)
    for delay_ms in (0, 60_000):
        assert queue.acquire(1, 1)
        queue.acknowledge(1, RELEASE, offsets(2, END), delay_ms=delay_ms)
    queue.leave(1)
    assert queue.reset(2) == DONE
    queue.attach(1, era=queue.era)
    lease = queue.acquire(1, END)
    assert lease is not None
    assert (lease.span, lease.delivery_count) == (offsets(2, END), 1)


def test_what_is_forgotten_is_made_anew_by_whoever_attaches(queue: Queue) -> None:
    assert queue.reset(None) == DONE
    shard = queue.coordinator.shard
    assert GROUP not in shard.queues.subscriptions
    assert queue.ask(commands.DescribeSubscriptions()) == commands.SubscriptionsPage(())
    told = queue.ask(
        commands.Attach(
            group=GROUP,
            consumer=7,
            topics=("a",),
            starts={("a", 0): 4},
            kind=SubscriptionKind.FAILOVER,
        )
    )
    assert told == commands.Attached((), shard.queues.subscriptions.last_era)
    assert states(queue) == "ddddaaaaaa"
    assert shard.queues.subscriptions.require(GROUP).kind is SubscriptionKind.FAILOVER


def test_the_name_of_what_was_deleted_is_free(queue: Queue) -> None:
    """Its binding may end, and the name be a consumer group's."""
    assert isinstance(queue.ask(commands.FetchOffsets(group=GROUP)), GroupBoundError)
    queue.reset(None)
    assert queue.ask(commands.FetchOffsets(group=GROUP)) == commands.GroupOffsets({})


# ---- what counts no more ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reset", "deleted", "deleted and made anew"])
@pytest.mark.parametrize("then", ["", "fail over", "snapshot"])
def test_what_was_given_out_before_can_not_be_acknowledged(
    queue: Queue, how: str, then: str
) -> None:
    """A request whose answer was lost comes again behind the reset, or a consumer comes back: it
    would delete messages that are to be given out anew (trap 146)."""
    txid, before = queue.begin("t"), queue.era
    assert queue.reset(0 if how == "reset" else None) == DONE
    if then == "snapshot":
        trim(queue)
    if then:
        queue.fail_over()
        queue.coordinator.pass_time(dispatch.HELD_MS)
    if how == "deleted and made anew":
        assert isinstance(queue.attach(9), commands.Attached)
    queue.tell_ends()
    for type_ in (ACCEPT, REJECT):
        for consumer in (1, OPERATOR):
            told = queue.acknowledge(consumer, type_, message(2), era=before)
            assert isinstance(told, SubscriptionResetError), told
    told = queue.add_acks("t", txid, message(2), era=before)
    assert isinstance(told, SubscriptionResetError), told
    assert isinstance(queue.add_acks("t", txid, message(3)), SubscriptionResetError)
    if how == "deleted":
        assert isinstance(queue.attach(1, message(2), era=before), SubscriptionResetError)
    else:
        told = queue.attach(1, message(2), message(3), era=before)
        assert told == commands.Attached((), queue.era)
        assert queue.era > before
        assert states(queue) == "a" * END
        assert queue.add_acks("t", txid, message(2), era=queue.era) == DONE
        assert queue.acknowledge(1, ACCEPT, message(3), era=queue.era) == (AckResult.DONE,)


def test_a_consumer_that_comes_back_releases_nothing_of_what_it_has_now(queue: Queue) -> None:
    before = queue.era
    queue.reset(0)
    queue.attach(1, era=before)
    assert queue.acquire(1, END)
    for type_ in (RELEASE, RENEW):
        told = queue.acknowledge(1, type_, message(2), message(3), era=before)
        assert told == (AckResult.LOST, AckResult.LOST)
    assert states(queue) == "l" * END
    assert queue.acknowledge(1, RELEASE, message(2), era=queue.era) == (AckResult.DONE,)


def test_a_consumer_comes_back_to_what_was_deleted(queue: Queue) -> None:
    """With `latest` it said at first where the queue begins, and does not say it again. So all that
    the topic has would come (trap 149)."""
    before = queue.era
    queue.reset(None)
    for _ in range(2):
        refused = queue.attach(1, message(2), era=before)
        assert isinstance(refused, SubscriptionResetError), refused
    assert GROUP not in queue.coordinator.shard.queues.subscriptions
    assert isinstance(
        queue.ask(commands.Acquire(group=GROUP, consumer=1, max_offsets=1)),
        UnknownSubscriptionError,
    )
    told = queue.attach(1)
    assert told == commands.Attached((), queue.era)


def test_what_never_was_is_unknown_and_was_not_reset() -> None:
    queue = Queue()
    assert isinstance(queue.acknowledge(1, ACCEPT, message(0)), UnknownSubscriptionError)
    assert isinstance(queue.add_acks("t", queue.begin("t"), message(0)), UnknownSubscriptionError)


def test_eras_of_a_name_never_have_one_number(queue: Queue) -> None:
    """If each subscription counted its own, one that is made anew would begin with a number that it
    had, and take acknowledgements of then (trap 150)."""
    seen = [queue.era]
    for offset in (0, None, 3, None, None, END):
        if GROUP not in queue.coordinator.shard.queues.subscriptions:
            queue.attach(1)
            queue.leave(1)
            assert queue.era >= seen[-1]
        assert queue.reset(offset) == DONE
        seen.append(queue.era)
        if len(seen) % 2:
            trim(queue)
        queue.fail_over()
        queue.coordinator.pass_time(dispatch.HELD_MS)
        queue.tell_ends()
        assert queue.era == seen[-1]
    assert seen == sorted(set(seen))


def test_an_era_of_another_subscription_is_none_of_this_one(queue: Queue) -> None:
    queue.ask(commands.Attach(group="other", consumer=5, topics=("a",)))
    before = queue.era
    queue.coordinator.tenure.consumer_gone("other", 5, queue.coordinator.now)
    queue.coordinator.pass_time(dispatch.GONE_MS)
    starts = {P0: 0}
    reset = commands.ResetSubscription(group="other", era=before, starts=starts)
    assert queue.ask(reset) == DONE
    assert queue.era == before
    queue.attach(1, era=before)
    assert queue.acknowledge(1, ACCEPT, message(2), era=before) == (AckResult.DONE,)


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, None])
def test_while_a_consumer_is_attached_or_may_come_back(queue: Queue, offset: int | None) -> None:
    queue.attach(1, era=queue.era)
    assert isinstance(refused := queue.reset(offset), NotAllowedError)
    assert "1 consumers, 0 of which left a moment ago: stop its consumers first" in str(refused)
    queue.coordinator.tenure.consumer_gone(GROUP, 1, queue.coordinator.now)
    queue.coordinator.pass_time(dispatch.GONE_MS - 1)
    assert isinstance(refused := queue.reset(offset), NotAllowedError)
    assert "1 of which left" in str(refused)
    queue.coordinator.pass_time(1)
    assert queue.reset(offset) == DONE


@pytest.mark.parametrize("offset", [0, None])
def test_while_consumers_may_say_to_a_new_owner_what_they_hold(
    queue: Queue, offset: int | None
) -> None:
    queue.attach(1, era=queue.era)
    queue.fail_over()
    queue.coordinator.pass_time(dispatch.HELD_MS - 1)
    assert isinstance(queue.reset(offset), CoordinatorBusyError)
    queue.coordinator.pass_time(1)
    assert queue.reset(offset) == DONE


@pytest.mark.parametrize("offset", [0, None])
@pytest.mark.parametrize("commit", [True, False])
def test_while_a_transaction_acknowledges(queue: Queue, offset: int | None, commit: bool) -> None:
    """It could not be committed any more. What it has acknowledged in one partition keeps all
    others from a reset, too: with another era it could acknowledge no further message."""
    one, two = queue.begin("one"), queue.begin("two")
    assert queue.add_acks("one", one, message(2)) == DONE
    assert queue.add_acks("two", two, message(3)) == DONE
    for producer, txid in (("one", one), ("two", two)):
        for partition in (P0, P1):
            refused = queue.reset(offset, partition=partition)
            assert isinstance(refused, NotAllowedError), refused
            assert str(txid) in str(refused)
        assert f"logtx txn abort {txid}" in str(refused)
        queue.end(producer, txid, commit=commit)
    assert queue.reset(offset) == DONE


def test_where_a_partition_has_no_such_offset(queue: Queue) -> None:
    """The coordinator knows the end of when somebody waited last, and asks again (trap 134)."""
    wanted = queue.coordinator.shard.queues.dispatch.wanted
    assert P0 not in wanted()
    assert isinstance(refused := queue.reset(END + 3), CoordinatorBusyError)
    assert "is 10, as far as is known yet, and 13 is asked for" in str(refused)
    assert P0 in wanted()
    queue.tell_ends(END + 3)
    assert queue.reset(END + 3) == DONE
    assert isinstance(refused := queue.reset(1, partition=P1), CoordinatorBusyError)
    assert "is not known yet" in str(refused)
    assert queue.reset(0, partition=P1) == DONE, "each has that"


def test_what_is_not_there(queue: Queue) -> None:
    nobody = PartitionId("a", 99, "id-a")
    assert isinstance(queue.reset(0, partition=nobody), UnknownSubscriptionError)
    anew = P0._replace(topic_id="another")
    assert isinstance(queue.reset(0, partition=anew), UnknownSubscriptionError)
    command = commands.ResetSubscription(group="nobody", era=0, starts={P0: 0})
    assert isinstance(queue.ask(command), UnknownSubscriptionError)
    del queue.coordinator.topics["a"]
    queue.attach(1, era=queue.era)
    queue.leave(1)
    refused = queue.reset(0)
    assert isinstance(refused, UnknownTopicError)
    assert "'id-a' is no more: leave it out" in str(refused)
    assert queue.reset(None) == DONE, "it may be forgotten all the same"


# ---- answers that are lost ----------------------------------------------------------------------


def test_a_reset_that_is_repeated_takes_nothing_back(queue: Queue) -> None:
    """Its answer was lost, and consumers have begun since: what they have acknowledged would come
    again (trap 147)."""
    before = queue.era
    assert queue.reset(3, era=before) == DONE
    after, end = queue.era, queue.coordinator.shard.next_offset
    assert queue.reset(3, era=before) == DONE, "it is as it was asked for"
    assert (queue.era, queue.coordinator.shard.next_offset) == (after, end)
    assert isinstance(queue.reset(4, era=before), SubscriptionResetError), "this one is not"
    queue.attach(1)
    queue.acknowledge(1, ACCEPT, message(7), era=after)
    queue.leave(1)
    refused = queue.reset(3, era=before)
    assert isinstance(refused, SubscriptionResetError)
    assert f"see logtx subscription show {GROUP}" in str(refused)
    assert states(queue) == "dddaaaadaa"
    assert queue.reset(3, era=after) == DONE


def test_the_same_reset_of_a_later_era_is_another_one(queue: Queue) -> None:
    """It stands there already, and a late acknowledgement must not count all the same."""
    assert queue.reset(3) == DONE
    before = queue.era
    assert queue.reset(3) == DONE
    assert queue.era > before
    told = queue.acknowledge(1, ACCEPT, message(4), era=before)
    assert isinstance(told, SubscriptionResetError)


def test_a_deletion_that_is_repeated_forgets_nothing_else(queue: Queue) -> None:
    before = queue.era
    assert queue.reset(None, era=before) == DONE
    assert queue.reset(None, era=before) == DONE
    queue.attach(1)
    queue.leave(1)
    assert isinstance(queue.reset(None, era=before), SubscriptionResetError)
    assert GROUP in queue.coordinator.shard.queues.subscriptions


@pytest.mark.parametrize("landed", [0, 1])
@pytest.mark.parametrize("offset", [0, None])
def test_the_owner_dies_between_the_record_and_the_answer(
    queue: Queue, landed: int, offset: int | None
) -> None:
    before = queue.era
    starts = {P0: 0}
    command = (
        commands.DeleteSubscription(group=GROUP, era=before)
        if offset is None
        else commands.ResetSubscription(group=GROUP, era=before, starts=starts)
    )
    ref = queue.send(command)
    late = queue.send(
        commands.Acknowledge(group=GROUP, consumer=1, type=ACCEPT, acks=acks(message(4)))
    )
    queue.coordinator.lose(landed=landed)
    assert ref not in queue.coordinator.replies, "nobody was told"
    assert late not in queue.coordinator.replies
    queue.coordinator.pass_time(dispatch.HELD_MS)
    queue.tell_ends()
    assert (queue.era > before) == bool(landed)
    assert queue.ask(command) == DONE
    if offset is not None:
        assert states(queue) == "a" * END


# ---- the journal --------------------------------------------------------------------------------


def versions(queue: Queue) -> set[int]:
    """The versions of all records in the journal."""
    return {encode_entry(entry)[0] for entry in queue.coordinator.journal.entries}


def test_only_who_resets_writes_the_newest_version(queue: Queue) -> None:
    trim(queue)
    assert max(versions(queue)) == WITH_QUEUES
    queue.reset(0)
    assert max(versions(queue)) == WITH_ERAS


@pytest.mark.parametrize("offset", [0, None])
def test_a_snapshot_behind_an_era_says_what_the_journal_says(
    queue: Queue, offset: int | None
) -> None:
    queue.ask(commands.Attach(group="before", consumer=5, topics=("b",)))
    queue.reset(offset)
    queue.ask(commands.Attach(group="since", consumer=5, topics=("b",)))
    shard = queue.coordinator.shard
    taker = SnapshotTaker(shard)
    entry = shard.entry(taker.chunk())
    assert taker.done
    reader = SnapshotReader(0, shard.config, shard.next_offset, entry)
    read = reader.feed(shard.next_offset, entry)
    assert read is not None
    assert dump(read)["subscriptions"] == dump(shard)["subscriptions"]
    found = read.queues.subscriptions
    assert found.last_era == shard.queues.subscriptions.last_era > 0
    assert found.require("before").era == 0
    assert found.require("since").era == found.last_era


def test_an_era_that_ends_is_replayed_as_it_was_handled(queue: Queue) -> None:
    for offset in (0, 4, None):
        queue.reset(offset)
        loaded = queue.coordinator.journal.load().queues.subscriptions
        kept = queue.coordinator.shard.queues.subscriptions
        assert list(loaded.rows()) == list(kept.rows())
        assert loaded.last_era == kept.last_era
        record = queue.coordinator.journal.entries[kept.last_era].record
        assert isinstance(record, Subscribe)
        assert record.effect is not SubscribeEffect.JOINS


def test_leases_of_an_era_end_with_it() -> None:
    """Nobody has any then; who does, by another rule's fault, has them no more."""
    queue = Queue()
    queue.attach(1)
    assert queue.acquire(1, 4)
    leases = queue.coordinator.shard.queues.dispatch
    leases.begin_anew(GROUP, [P0, P1])
    assert leases.consumers(GROUP)[0].leased == 0
    assert queue.state(0) is AVAILABLE
    queue.coordinator.pass_time(60_000)
    leases.end(GROUP)
    leases.end("nobody")
    asked = queue.ask(commands.Acquire(group=GROUP, consumer=1, max_offsets=1))
    assert isinstance(asked, NotAttachedError)


def test_a_transaction_of_before_aborts_and_nothing_comes_twice(queue: Queue) -> None:
    txid = queue.begin("t")
    queue.reset(0)
    assert isinstance(queue.add_acks("t", txid, message(2)), SubscriptionResetError)
    queue.end("t", txid, commit=False)
    told = queue.add_acks("t", txid, message(2), era=queue.era)
    assert isinstance(told, TransactionAbortedError)
    assert states(queue) == "a" * END


# ---- what may be given out ----------------------------------------------------------------------


def test_operators_are_told_the_first_spans_that_may_be_given_out(queue: Queue) -> None:
    def available(most: int) -> tuple[Span, ...]:
        ask = commands.DescribeSubscriptions(groups=(GROUP,), available_max=most)
        (info,) = queue.ask(ask).subscriptions
        (part,) = (each for each in info.partitions if each.partition == P0)
        assert info.era == queue.era
        found: tuple[Span, ...] = part.available
        return found

    first = offsets(2, 5)
    assert available(0) == ()
    assert available(1) == (first,)
    assert available(9) == (first, Span(message(5).hi, MessageId(END)))
    queue.attach(2, era=queue.era)
    assert queue.acquire(2, 8)
    queue.add_acks("t", queue.begin("t"), message(7))
    queue.acknowledge(2, RELEASE, offsets(3, 4), delay_ms=9_000)
    assert available(9) == (
        offsets(4, 5),
        Span(message(5).hi, message(7).lo),
        Span(message(7).hi, MessageId(END)),
    )


def test_a_queue_that_was_never_given_out_has_nothing_before_what_was_reached() -> None:
    queue = Queue()
    queue.attach(1)
    ask = commands.DescribeSubscriptions(groups=(GROUP,), available_max=9)
    (info,) = queue.ask(ask).subscriptions
    for part in info.partitions:
        assert part.available == ()
        assert part.reached == MessageId(0)


def test_a_reset_of_a_subscription_that_a_snapshot_has_no_row_of_is_replayed() -> None:
    for effect in (SubscribeEffect.REPLACES, SubscribeEffect.ENDS):
        known = Subscriptions()
        known.replay_subscribe(
            7, Subscribe(group="jobs", kind=SubscriptionKind.SHARED, starts=(), effect=effect)
        )
        assert ("jobs" in known) is (effect is SubscribeEffect.REPLACES)
        assert known.last_era == 7
