"""Mutations of queues that are reset or deleted: what of before may count, and what may not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from logtx.consumer.core.share_work import ShareWork
from logtx.coordinator.core import shard, snapshot
from logtx.coordinator.core.decision import Decision
from logtx.coordinator.core.queues import Queues
from logtx.coordinator.core.subscriptions import Subscriptions
from logtx.journal.acks import SnapshotSubscription

from .registry import Patch, caught_by


def _of_now(queues: Queues, command: Any) -> Any:
    subscription = queues.subscriptions.get(command.group)
    return command if subscription is None else replace(command, era=subscription.era)


@caught_by("worked-off", of="resets")
def plain_acks_of_before_count(patch: Patch) -> None:
    """What was acknowledged before a reset counts behind it (trap 146)."""
    handle = Queues._handle_acknowledge

    def mutant(self: Queues, command: Any, *rest: Any) -> Decision:
        return handle(self, _of_now(self, command), *rest)

    patch(Queues, "_handle_acknowledge", mutant)


@caught_by("given-out", of="resets")
def acks_of_before_count(patch: Patch) -> None:
    """What a transaction acknowledges of before a reset counts behind it (trap 146)."""
    add_acks = Queues.add_acks

    def mutant(self: Queues, transaction: Any, command: Any, ref: Any) -> Decision:
        return add_acks(self, transaction, _of_now(self, command), ref)

    patch(Queues, "add_acks", mutant)


@caught_by("given-out", of="resets")
def consumers_keep_what_was_reset(patch: Patch) -> None:
    """A consumer that is told of another era goes on with what it had (trap 146)."""

    def mutant(self: ShareWork, era: int) -> None:
        self.holdings.era = era

    patch(ShareWork, "_begin_anew", mutant)


@caught_by("worked-off", of="resets")
def resets_may_be_repeated(patch: Patch) -> None:
    """A reset whose answer was lost resets once more (trap 147)."""
    ends = shard.end_era

    def mutant(queues: Queues, command: Any, *rest: Any) -> Decision:
        return ends(queues, _of_now(queues, command), *rest)

    patch(shard, "end_era", mutant)


@caught_by("worked-off", of="resets")
def eras_end_while_messages_are_pending(patch: Patch) -> None:
    """A subscription is reset though an open transaction acknowledges messages of it."""
    patch(Subscriptions, "pending_in", lambda *_: [])


@caught_by("worked-off", of="resets")
def each_subscription_counts_its_eras(patch: Patch) -> None:
    """What is made anew begins with the era that it had first (trap 150)."""
    join = Subscriptions._join

    def mutant(self: Subscriptions, record: Any) -> None:
        is_new = record.group not in self
        join(self, record)
        if is_new:
            self.require(record.group).era = 0

    patch(Subscriptions, "_join", mutant)


@caught_by("worked-off", of="resets")
def snapshot_forgets_eras(patch: Patch) -> None:
    """Who begins at a snapshot takes what was given out before a reset for given out now
    (trap 8)."""
    pieces = snapshot._subscription_pieces

    def mutant(row: SnapshotSubscription) -> Iterator[SnapshotSubscription]:
        return pieces(row._replace(era=0))

    patch(snapshot, "_subscription_pieces", mutant)
