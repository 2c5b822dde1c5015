"""Resets and deletes subscriptions, as operators ask for: each ends an era. Pure.

`subscriptions` says why nothing of before counts in the era that begins. What is refused here is
what an operator did not mean:

- While a consumer is attached, or may come back to what it works on: it would lose that, and work
  on with others' messages.
- While a transaction acknowledges something: it could not be committed any more.
- Where a partition has no such offset yet: what comes before it would never be given out.
- Where another era is there than the operator looked at (trap 147). One whose answer was lost asks
  again, and consumers may have begun meanwhile.
"""

from __future__ import annotations

from ...journal.acks import Subscribe, SubscribeEffect
from ...journal.errors import (
    CoordinatorBusyError,
    NotAllowedError,
    SubscriptionResetError,
    UnknownTopicError,
)
from ...journal.places import PartitionId
from ...journal.txid import TxId
from ..protocol import commands
from .decision import Decision, Instant, Ref
from .queues import Queues
from .subscriptions import Subscription


def end_era(
    queues: Queues,
    command: commands.ResetSubscription | commands.DeleteSubscription,
    ref: Ref,
    now: Instant,
    journal: tuple[int, int],
) -> Decision:
    """Decides a reset or a deletion.

    Args:
        queues: the subscriptions of a journal partition, and their consumers.
        command: what an operator asks.
        ref: the caller's token, given back with the reply.
        now: the time.
        journal: number and incarnation of the journal partition.

    Raises:
        UnknownSubscriptionError: there is no such subscription, or no such partition of it.
        SubscriptionResetError: it was reset, or made anew, since the operator looked at it.
        NotAllowedError: a consumer is attached, or a transaction acknowledges messages.
        UnknownTopicError: a topic is no more, as far as is known.
        CoordinatorBusyError: it is not known yet whether a partition reaches so far, or whether
            consumers come back.
    """
    subscription = queues.subscriptions.get(command.group)
    if subscription is None and isinstance(command, commands.DeleteSubscription):
        return Decision(replies=((ref, commands.Done()),), fresh=True)
    subscription = queues.subscriptions.require(command.group)
    if isinstance(command, commands.ResetSubscription):
        for partition in command.starts:
            queues.subscriptions.partition(command.group, partition)
    if subscription.era != command.era:
        if _is_done(subscription, command):
            return Decision(replies=((ref, commands.Done()),), fresh=True)
        raise SubscriptionResetError(
            f"subscription {command.group!r} was reset or made anew since it was looked at, by"
            " somebody else or by this request, if its answer was lost: see logtx subscription"
            f" show {command.group}"
        )
    _check_is_idle(queues, command.group, now, journal)
    effect, starts = SubscribeEffect.ENDS, tuple[tuple[PartitionId, int], ...]()
    if isinstance(command, commands.ResetSubscription):
        _check_ends(queues, command)
        effect, starts = SubscribeEffect.REPLACES, tuple(command.starts.items())
    record = Subscribe(group=command.group, kind=subscription.kind, starts=starts, effect=effect)
    return Decision(records=(record,), replies=((ref, commands.Done()),))


def _is_done(
    subscription: Subscription, command: commands.ResetSubscription | commands.DeleteSubscription
) -> bool:
    """Returns whether a repeated reset finds what it is to make, and nothing acknowledged since."""
    if isinstance(command, commands.DeleteSubscription):
        return False
    parts = subscription.partitions
    return all(parts[p].begins_at(offset) for p, offset in command.starts.items())


def _check_is_idle(queues: Queues, group: str, now: Instant, journal: tuple[int, int]) -> None:
    if queues.dispatch.is_opening(now):
        raise CoordinatorBusyError(
            "this coordinator has just taken over: consumers may still say what they work on"
        )
    queues.dispatch.expire(now)
    consumers = queues.dispatch.consumers(group)
    if consumers:
        gone = sum(each.gone for each in consumers)
        raise NotAllowedError(
            f"subscription {group!r} has {len(consumers)} consumers, {gone} of which left a moment"
            f" ago: stop its consumers first (logtx subscription show {group} lists them)"
        )
    begins = queues.subscriptions.pending_in(group)
    if begins:
        txids = [str(TxId(*journal, begin)) for begin in begins]
        raise NotAllowedError(
            f"messages of subscription {group!r} are acknowledged by transactions that have not"
            f" ended: {', '.join(txids)}. Wait for them, or abort them first (logtx txn abort"
            f" {txids[0]})"
        )


def _check_ends(queues: Queues, command: commands.ResetSubscription) -> None:
    dispatch = queues.dispatch
    for partition, offset in command.starts.items():
        where = f"{partition.topic}[{partition.partition}]"
        if dispatch.is_former(partition):
            raise UnknownTopicError(
                f"the topic of {where} with id {partition.topic_id!r} is no more: leave it out"
            )
        end = dispatch.end_of(partition)
        if offset > (end or 0):
            # Nobody may have asked for the end since the consumers left (trap 134).
            dispatch.want(partition)
            told = "is not known yet" if end is None else f"is {end}, as far as is known yet"
            raise CoordinatorBusyError(f"the end of {where} {told}, and {offset} is asked for")
