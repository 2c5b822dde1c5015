"""Tells operators what became of subscriptions' messages. Reads, and changes nothing. Pure.

The coordinator sees no message, so it counts offsets: those of markers and of aborted records among
them, as the lag of a consumer group does. It does not know where a partition ends while nobody
waits for messages of it. So it counts up to what was ever leased or acknowledged, and whoever asks
the brokers for the end adds the rest: see `SubscribedPartitionInfo.depth`.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from ...journal.places import PartitionId
from ...journal.spans import ORIGIN, Span
from ...journal.txid import TxId
from ..protocol import commands
from ..protocol.queues import SubscribedPartitionInfo, SubscriptionInfo
from .queues import Queues
from .subscriptions import SubscribedPartition

_WEIGHT_MAX: Final = 5_000
"""Entries of one page, counted as subscriptions plus their partitions and consumers. More make
larger messages and hold the event loop longer. A page has one subscription at least."""
AVAILABLE_MAX: Final = 1_000
"""Most available spans that are told of a partition. More let an operator look further ahead in a
queue that is worked off out of order, and make larger messages."""


def list_subscriptions(
    queues: Queues, command: commands.DescribeSubscriptions, journal: tuple[int, int]
) -> commands.SubscriptionsPage:
    """Returns one page of subscriptions, in the order of their names.

    Args:
        queues: the subscriptions of a journal partition, and their consumers.
        command: which of them.
        journal: number and incarnation of the journal partition.

    Raises:
        UnknownSubscriptionError: one that was asked for by its name is not known here.
    """
    for group in command.groups:
        queues.subscriptions.require(group)
    names = sorted(set(command.groups)) if command.groups else queues.subscriptions.names()
    found: list[SubscriptionInfo] = []
    weight = 0
    for group in names:
        if group <= command.after:
            continue
        if weight >= _WEIGHT_MAX:
            return commands.SubscriptionsPage(tuple(found), more=True)
        most = min(command.available_max, AVAILABLE_MAX)
        found.append(subscription_info(queues, group, journal, available_max=most))
        weight += 1 + len(found[-1].partitions) + len(found[-1].consumers)
        weight += sum(len(part.available) for part in found[-1].partitions)
    return commands.SubscriptionsPage(tuple(found))


def subscription_info(
    queues: Queues, group: str, journal: tuple[int, int], *, available_max: int = 0
) -> SubscriptionInfo:
    """Returns what is known of one subscription.

    Args:
        queues: the subscriptions of a journal partition, and their consumers.
        group: its name.
        journal: number and incarnation of the journal partition.
        available_max: most available spans to tell of each partition.

    Raises:
        UnknownSubscriptionError: there is none of this name here.
    """
    subscription = queues.subscriptions.require(group)
    redelivered, rejected = queues.dispatch.redelivered_and_rejected(group)
    return SubscriptionInfo(
        group=group,
        kind=subscription.kind,
        consumers=queues.dispatch.consumers(group),
        partitions=tuple(
            _partition(queues, group, partition, known, journal, available_max)
            for partition, known in sorted(subscription.partitions.items())
        ),
        redelivered=redelivered,
        rejected=rejected,
        era=subscription.era,
    )


def _partition(
    queues: Queues,
    group: str,
    partition: PartitionId,
    known: SubscribedPartition,
    journal: tuple[int, int],
    available_max: int,
) -> SubscribedPartitionInfo:
    figures = queues.dispatch.figures(group, partition)
    reached = max(known.end, figures.next)
    deleted = sum(span.offset_count for span, _ in known.deleted.rows())
    pending = list(known.pending.rows())
    return SubscribedPartitionInfo(
        partition=partition,
        start=known.start,
        reached=reached,
        left=(Span(ORIGIN, reached).offset_count - deleted),
        pending=sum(span.offset_count for span, _ in pending),
        leased=figures.leased,
        txids=tuple(TxId(*journal, begin) for begin in sorted({begin for _, begin in pending})),
        former=queues.dispatch.is_former(partition),
        available=tuple(
            islice(queues.dispatch.available(group, partition, known, reached), available_max)
        ),
    )
