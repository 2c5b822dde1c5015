"""Mutations of queues: what is acknowledged, what is given out, and what a consumer says of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from logtx.consumer.core.share_work import ShareWork
from logtx.consumer.core.sides import Sides
from logtx.consumer.leased import LeaseReader
from logtx.consumer.range_reader import reading
from logtx.consumer.range_reader.staying import Staying
from logtx.coordinator.core import dispatch, snapshot, subscriptions
from logtx.coordinator.core.decision import Decision
from logtx.coordinator.core.dispatch import Dispatch
from logtx.coordinator.core.queues import Queues
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.subscriptions import SubscribedPartition, Subscriptions
from logtx.coordinator.protocol.queues import AckResult, Attach, Lease
from logtx.journal.acks import Acks, SnapshotSubscription
from logtx.journal.spans import AT_OFFSET, MessageId, Span
from logtx.journal.state import State
from logtx.producer.core.bookkeeping import TransactionBook

from .registry import Patch, caught_by

# ---- what is acknowledged -----------------------------------------------------------------------


@caught_by("worked-off", of="queue")
def aborted_acks_delete(patch: Patch) -> None:
    """What an aborted transaction acknowledges is deleted, too."""
    decided = Queues.replay_decided

    def mutant(self: Queues, begin: int, *, committed: bool) -> None:
        del committed
        decided(self, begin, committed=True)

    patch(Queues, "replay_decided", mutant)


@caught_by("worked-off", of="queue")
def conflicts_are_not_seen(patch: Patch) -> None:
    """A transaction may acknowledge what another one has pending, or what is deleted."""
    patch(subscriptions, "_check_free", lambda *_: None)


@caught_by("worked-off", of="queue")
def plain_acks_take_what_is_pending(patch: Patch) -> None:
    """A plain acknowledgement deletes what a transaction has pending."""
    effective = Subscriptions.effective

    def mutant(self: Subscriptions, group: str, acks: Iterable[Acks]) -> Any:
        acks = tuple(acks)
        for each in acks:
            known = self.partition(group, each.partition)
            for span in each.spans:
                known.pending.remove(span)
        return effective(self, group, acks)

    patch(Subscriptions, "effective", mutant)


@caught_by("worked-off", of="queue")
def repeated_acks_count_again(patch: Patch) -> None:
    """An acknowledgement in a transaction whose answer was lost is taken for another one."""

    def mutant(self: Subscriptions, begin: int, group: str, acks: Iterable[Acks]) -> Any:
        acks = tuple(acks)
        check(self, begin, group, acks)
        return acks

    check = Subscriptions.check
    patch(Subscriptions, "check", mutant)


@caught_by("worked-off", of="queue")
def ended_transactions_take_acks(patch: Patch) -> None:
    """A transaction that is decided takes acknowledgements: they are pending for ever."""
    handle = Shard._handle_add_acks

    def mutant(self: Shard, command: Any, ref: Any) -> Decision:
        found = self.transactions.get(command.txid.offset)
        if found is not None and found.state is not State.OPEN:
            return self.queues.add_acks(found, command, ref)
        return handle(self, command, ref)

    patch(Shard, "_handle_add_acks", mutant)


@caught_by("worked-off", of="queue")
def takeover_forgets_pending_acks(patch: Patch) -> None:
    """A new owner does not know what open transactions acknowledge."""
    loaded = Queues.loaded

    def mutant(self: Queues, now: Any) -> None:
        loaded(self, now)
        self.subscriptions._pending.clear()
        for each in self.subscriptions._subscriptions.values():
            for known in each.partitions.values():
                known.pending = SubscribedPartition().pending

    patch(Queues, "loaded", mutant)


@caught_by("worked-off", of="queue")
def snapshot_forgets_acks(patch: Patch) -> None:
    """A snapshot says what is pending of a subscription, and not what is deleted (trap 8)."""
    pieces = snapshot._subscription_pieces

    def mutant(row: SnapshotSubscription) -> Iterator[SnapshotSubscription]:
        return pieces(row._replace(deleted=()))

    patch(snapshot, "_subscription_pieces", mutant)


@caught_by("worked-off", of="queue")
def snapshot_forgets_pending_acks(patch: Patch) -> None:
    """A snapshot says what is deleted of a subscription, and not what is pending (trap 8)."""
    pieces = snapshot._subscription_pieces

    def mutant(row: SnapshotSubscription) -> Iterator[SnapshotSubscription]:
        return pieces(row._replace(pending=()))

    patch(snapshot, "_subscription_pieces", mutant)


@caught_by("acknowledged", of="queue")
def pending_is_told_as_done(patch: Patch) -> None:
    """Who acknowledges plainly what a transaction has pending is told that it is deleted."""
    effective = Subscriptions.effective

    def mutant(self: Subscriptions, group: str, acks: Iterable[Acks]) -> Any:
        deleted, refused = effective(self, group, acks)
        return deleted, tuple(each for each in refused if each.result is not AckResult.PENDING)

    patch(Subscriptions, "effective", mutant)


@caught_by("results", of="queue")
def commit_before_the_acks(patch: Patch) -> None:
    """A commit does not wait for the answers to its acknowledgements."""
    ready = TransactionBook.ready.fget  # type: ignore[attr-defined]

    def mutant(self: TransactionBook) -> bool:
        requests, self.requests = self.requests, 0
        try:
            return bool(ready(self))
        finally:
            self.requests = requests

    patch(TransactionBook, "ready", property(mutant))


# ---- what is given out --------------------------------------------------------------------------


@caught_by("given-out", of="queue")
def leases_pass_the_end(patch: Patch) -> None:
    """Messages are leased that are not there yet: their consumer takes them for a gap."""
    told = Dispatch.ends_told

    def mutant(self: Dispatch, ends: Iterable[Any]) -> None:
        told(self, [(partition, end + 2) for partition, end in ends])

    patch(Dispatch, "ends_told", mutant)


@caught_by("given-out", of="queue")
def leases_are_told_as_they_were(patch: Patch) -> None:
    """A lease is told as it was cut, whatever was acknowledged since (trap 101)."""
    patch(Queues, "told", lambda _queues, reply, _now_ms: reply)


@caught_by("given-out", of="queue")
def leases_begin_when_told(patch: Patch) -> None:
    """A lease is told with all of its time, however long its answer waited (trap 269)."""

    def mutant(self: Dispatch, lease: Lease, _now_ms: int) -> Iterator[Lease]:
        held = self._leases.get(lease.number)
        if held is not None:
            yield from parts(self, lease, held.until_ms - lease.left_ms)

    parts = Dispatch._parts
    patch(Dispatch, "_parts", mutant)


@caught_by("given-out", of="queue")
def leases_may_be_stale(patch: Patch) -> None:
    """A lease does not ask for the journal's end: a replaced owner gives out too (trap 99)."""
    handle, due = Queues._handle_acquire, Queues.due

    def mutant(self: Queues, *args: Any) -> Decision:
        return replace(handle(self, *args), fresh=False)

    def mutant_due(self: Queues, now: Any) -> Decision | None:
        found = due(self, now)
        return None if found is None else replace(found, fresh=False)

    patch(Queues, "_handle_acquire", mutant)
    patch(Queues, "due", mutant_due)


@caught_by("given-out", of="queue")
def whoever_attaches_has_what_it_names(patch: Patch) -> None:
    """A consumer that attaches gets what it held, though it is another's by now, or deleted."""
    again, available = Dispatch._lease_again, dispatch._available
    attaching: list[bool] = []

    def mutant(self: Dispatch, command: Any, now: Any) -> Iterator[Any]:
        attaching.append(True)
        yield from again(self, command, now)
        attaching.clear()

    def all_of_it(known: Any, here: Any, span: Span) -> Iterator[Span]:
        return iter((span,)) if attaching else available(known, here, span)

    patch(Dispatch, "_lease_again", mutant)
    patch(dispatch, "_available", all_of_it)


@caught_by("given-out", of="queue")
def anybody_releases(patch: Patch) -> None:
    """A release ends leases of others, too."""

    def mutant(
        self: Dispatch, group: str, _consumer: int, partition: Any, span: Span
    ) -> list[Span]:
        here = self._queues[group].partitions.get(partition)
        return [] if here is None else [part for part, _ in here.leased.within(span)]

    patch(Dispatch, "_own", mutant)


@caught_by("given-out", of="queue")
def who_rests_keeps_its_topics(patch: Patch) -> None:
    """Who waits gets messages, though it attached without topics since (trap 131)."""
    attach = Dispatch.attach

    def mutant(self: Dispatch, command: Attach, now: Any) -> Any:
        queue = self._queues.get(command.group)
        before = None if queue is None else queue.consumers.get(command.consumer)
        if before is not None and not command.topics:
            command = replace(command, topics=tuple(before.topics))
        return attach(self, command, now)

    patch(Dispatch, "attach", mutant)


@caught_by("given-out", of="queue")
def new_owner_gives_out_at_once(patch: Patch) -> None:
    """A new owner does not wait until consumers have said what they hold."""
    patch(dispatch, "HELD_MS", 0)


# ---- what a consumer reads, and says ------------------------------------------------------------


@caught_by("given-out", of="queue")
def names_begin_anew(patch: Patch) -> None:
    """The messages of a transaction that comes in several parts are named from 0 in each."""
    named = reading._named
    patch(reading, "_named", lambda entry, _nth: named(entry, 0))
    patch(reading, "TAKE_RECORDS", 2)


@caught_by("worked-off", of="queue")
def the_very_end_is_final(patch: Patch) -> None:
    """What a home may still place at the very end of a partition is a gap (trap 109)."""
    finish = ShareWork.finish
    patch(ShareWork, "finish", lambda self, _: finish(self, MessageId(2**62 - 1, AT_OFFSET)))


@caught_by("worked-off", of="queue")
def what_is_given_up_is_a_gap(patch: Patch) -> None:
    """What of a lease could not be read counts as read: nobody gets it."""

    def mutant(self: ShareWork, *, is_lasting: bool) -> None:
        del is_lasting
        lease = self.holdings.lease
        assert lease is not None, "it is read"
        self.finish(lease.span.hi)

    patch(ShareWork, "unreadable", mutant)


@caught_by("worked-off", of="queue")
def goes_on_where_it_was_last(patch: Patch) -> None:
    """A consumer that is given the rest of a pointer reads on where it stood, though the rest
    begins before that (trap 165)."""

    def mutant(self: Sides, partition: Any, pointer: int, _nth: int) -> Any:
        known = self._known.get((partition, pointer))
        return known[-1] if known else None

    patch(Sides, "before", mutant)


@caught_by("worked-off", of="queue")
def stays_where_another_lease_begins(patch: Patch) -> None:
    """A reader of leases assigns a partition only if it reads another one."""
    assign = Staying.assign

    def mutant(self: Staying, partitions: list[Any]) -> None:
        (there,) = partitions
        if self._next is None or (there.topic, there.partition) != self._place:
            assign(self, partitions)

    patch(Staying, "assign", mutant)


@caught_by("worked-off", of="queue")
def a_topic_made_anew_is_read_by_the_same_client(patch: Patch) -> None:
    """A reader of leases goes on with its client when another topic has the name (trap 293)."""
    patch(Staying, "renew", Staying.leave)


@caught_by("worked-off", of="queue")
def the_rest_of_a_pointer_is_a_gap(patch: Patch) -> None:
    """What a consumer gives back of a pointer counts as read."""
    has_enough = ShareWork.has_enough

    def mutant(self: ShareWork, key: Any, most: int) -> bool:
        lease, enough = self.holdings.lease, has_enough(self, key, most)
        if lease is not None and enough:
            self.finish(lease.span.hi)
        return enough

    patch(ShareWork, "has_enough", mutant)


# ---- topics that are switched, deleted and created anew -----------------------------------------


@caught_by("finished", of="queue")
def ends_of_former_topics_are_awaited(patch: Patch) -> None:
    """What is acknowledged of a topic that is no more waits for its end (trap 112)."""
    check, is_former = Queues._check_range, Dispatch.is_former
    checking: list[bool] = []

    def mutant(self: Queues, *args: Any) -> None:
        checking.append(True)
        try:
            check(self, *args)
        finally:
            checking.clear()

    patch(Queues, "_check_range", mutant)
    patch(Dispatch, "is_former", lambda self, p: not checking and is_former(self, p))


@caught_by("finished", of="queue")
def topics_that_were_left_are_not_looked_up(patch: Patch) -> None:
    """An owner learns only of those topics that somebody subscribes to (trap 121)."""
    patch(Attach, "left_topics", ())


@caught_by("worked-off", of="queue")
def switches_are_what_was_published(patch: Patch) -> None:
    """A reader goes by what is published of a topic when it begins to read it, and asks no
    coordinator (trap 110)."""
    believed: WeakKeyDictionary[LeaseReader, dict[str, bool]] = WeakKeyDictionary()

    def mutant(self: LeaseReader, topic: str, topic_id: str) -> bool:
        mine = believed.setdefault(self, {})
        if topic_id not in mine:
            told = self._ahead.published(topic)
            mine[topic_id] = told is not None and told.topic_id == topic_id
        return mine[topic_id]

    patch(LeaseReader, "_hears_of_switch", mutant)
