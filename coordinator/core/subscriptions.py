"""What the journal says of subscriptions: which messages are deleted, and which are pending. Pure.

A message of a subscription is in one of four states:

                    lease                      ADD_ACKS (T)
   AVAILABLE ─────────────────▶ PENDING ───────────────────▶ PENDING_ACK (T)
      ▲  ▲      (volatile)       │  │  │                        │      │
      │  └── RELEASE, expiry, ───┘  │  └─ ACK (accept, ──┐      │      │ PREPARE_COMMIT
      │      its consumer's end     │       reject)      ▼      │      ▼
      │                             └── (first ack wins) DELETED ◀─────┘
      └──────────────────────────── PREPARE_ABORT ──────────────┘

PENDING_ACK and DELETED are kept here and come from records alone. AVAILABLE and PENDING are what is
left: `Dispatch` tells them apart, and forgets it with the process.

Why no message is consumed twice. A message is consumed by a commit whose ADD_ACKS names it, or by
an ACK. `check` and `effective` let neither be written for a message that is DELETED, or pending in
another transaction; and they see every record that lies before theirs in the journal, for records
are applied when they are decided, and an append that is not where it was predicted is void. So of
two that want a message, the journal has the first alone, until an abort frees it. A lease has no
part in this argument: a consumer that lost its lease may still be the first.

Why no commit loses a message that it consumed. A producer commits when all its ADD_ACKS were
answered, and they are answered when durable. What is pending leaves that state by the end of its
transaction alone: a plain ack leaves it out, and a release does not know it.

Why nothing stays pending without a transaction: ADD_ACKS is decided while its transaction is open,
and what ends a transaction ends all that is pending under its BEGIN.

An operator may reset a subscription, or delete it: DELETED messages are AVAILABLE again, or the
other way round. Each such record ends an *era*. The next one is named by the offset of that record,
also if the subscription is made anew much later; eras of one name never have one number, for
journal offsets are used once. All of the above holds within an era:

- Whoever acknowledges names the era in which the messages were given out (`require_era`). So an
  acknowledgement that was lost, and is repeated behind the reset, deletes nothing of what begins
  anew. That nobody is attached at a reset is not enough for this: consumers come back.
- An era ends only while nothing is pending. Else a commit would consume messages that are given out
  again, or an abort would free them a second time.
- Who resets names the era that he wants to end. So a reset that is repeated, as its answer was
  lost, does not take back what was acknowledged since.

Source: PIP-31, "Acknowledgements in Transactions" and "New Acknowledgement State".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from ...journal.acks import (
    Ack,
    Acks,
    AddAcks,
    SnapshotSubscription,
    Subscribe,
    SubscribeEffect,
    SubscriptionKind,
)
from ...journal.errors import (
    AckConflictError,
    SubscriptionResetError,
    UnknownSubscriptionError,
)
from ...journal.places import PartitionId
from ...journal.spans import ORIGIN, MessageId, Span, SpanMap
from ..protocol.queues import AckResult, Refused


class MessageState(StrEnum):
    """State of one message of a subscription."""

    AVAILABLE = "available"
    """It may be leased."""
    PENDING = "pending"
    """It is leased to a consumer."""
    PENDING_ACK = "pending_ack"
    """An open or committing transaction acknowledges it."""
    DELETED = "deleted"
    """It is consumed, or rejected."""


VALID_PREVIOUS: Final[Mapping[MessageState, frozenset[MessageState]]] = {
    MessageState.AVAILABLE: frozenset({MessageState.PENDING, MessageState.PENDING_ACK}),
    MessageState.PENDING: frozenset({MessageState.AVAILABLE}),
    MessageState.PENDING_ACK: frozenset({MessageState.AVAILABLE, MessageState.PENDING}),
    MessageState.DELETED: frozenset(
        {MessageState.AVAILABLE, MessageState.PENDING, MessageState.PENDING_ACK}
    ),
}
"""State → states that may precede it; a message begins as AVAILABLE."""


class SubscribedPartition:
    """One partition of a subscription."""

    __slots__ = ("deleted", "pending")

    def __init__(self, start: int = 0) -> None:
        """Begins with nothing acknowledged at or behind an offset."""
        self.deleted: SpanMap[bool] = SpanMap()
        """What is consumed or rejected, and what lies below the subscription's start."""
        self.pending: SpanMap[int] = SpanMap()
        """What transactions acknowledge, by their BEGINs."""
        if start > 0:
            self.deleted.put(Span(ORIGIN, MessageId(start)), True)

    @property
    def start(self) -> MessageId:
        """The bound below which everything is deleted."""
        return self.deleted.skip(ORIGIN)

    @property
    def end(self) -> MessageId:
        """The bound behind everything that was ever acknowledged, as far as is known."""
        return max(self.deleted.end, self.pending.end)

    def begins_at(self, offset: int) -> bool:
        """Returns whether all before an offset is deleted, and nothing else acknowledged."""
        begun = SubscribedPartition(offset)
        return not self.pending and list(self.deleted.rows()) == list(begun.deleted.rows())


class Subscription:
    """A queue's name, and what became of its messages."""

    __slots__ = ("era", "kind", "partitions")

    def __init__(self, kind: SubscriptionKind, era: int) -> None:
        self.kind = kind
        self.era = era
        """Offset of the latest record that ended an era before this one, of any subscription of the
        journal partition; 0: none did."""
        self.partitions: dict[PartitionId, SubscribedPartition] = {}


class Subscriptions:
    """The subscriptions of one journal partition."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, Subscription] = {}
        self.last_era = 0
        """Offset of the latest record that ended an era; 0: none did. What is subscribed next
        begins in it. One number for all, for no list of former names could ever end."""
        self._pending: dict[int, dict[tuple[str, PartitionId], None]] = {}
        """BEGIN → where its transaction has something pending."""

    def __contains__(self, group: str) -> bool:
        """Returns whether a subscription has this name."""
        return group in self._subscriptions

    def names(self) -> list[str]:
        """Returns the names of all subscriptions, in order."""
        return sorted(self._subscriptions)

    def __len__(self) -> int:
        """Returns the number of subscriptions."""
        return len(self._subscriptions)

    def get(self, group: str) -> Subscription | None:
        """Returns a subscription, or None."""
        return self._subscriptions.get(group)

    def require(self, group: str) -> Subscription:
        """Returns a subscription.

        Raises:
            UnknownSubscriptionError: there is none of this name here.
        """
        found = self._subscriptions.get(group)
        if found is None:
            raise UnknownSubscriptionError(
                f"no subscription {group!r} is known here: a ShareConsumer that subscribes makes it"
            )
        return found

    def require_era(self, group: str, era: int) -> Subscription:
        """Returns a subscription whose messages were given out in an era.

        Raises:
            SubscriptionResetError: that era has ended: the subscription was reset or deleted since.
            UnknownSubscriptionError: there is none of this name here, and there was none.
        """
        found = self._subscriptions.get(group)
        if found is None and not (era or self.last_era):
            return self.require(group)
        if found is None:
            raise SubscriptionResetError(
                f"subscription {group!r} was deleted since its messages were given out: a"
                " ShareConsumer that subscribes makes it anew"
            )
        if found.era != era:
            raise SubscriptionResetError(
                f"subscription {group!r} was reset or deleted since these messages were given out:"
                " go on with the next poll"
            )
        return found

    def partition(self, group: str, partition: PartitionId) -> SubscribedPartition:
        """Returns one partition of a subscription.

        Raises:
            UnknownSubscriptionError: of the group, or of the partition.
        """
        found = self.require(group).partitions.get(partition)
        if found is None:
            raise UnknownSubscriptionError(
                f"subscription {group!r} has no partition {partition.topic}[{partition.partition}]"
                f" of topic id {partition.topic_id!r}: subscribe to the topic first; one that was"
                " created anew has other messages"
            )
        return found

    # ---- what may be acknowledged ---------------------------------------------------------------

    def check(self, begin: int, group: str, acks: Iterable[Acks]) -> tuple[Acks, ...]:
        """Returns what a transaction has to add, to have all these messages pending.

        What it has pending already is left out: a request may come twice.

        Raises:
            AckConflictError: one of them is deleted, or pending in another transaction.
            UnknownSubscriptionError: of the group, or of a partition.
        """
        added: list[Acks] = []
        for each in acks:
            known = self.partition(group, each.partition)
            wanted: list[Span] = []
            for span in each.spans:
                _check_free(known, begin, each.partition, span)
                wanted += known.pending.free(span)
            if wanted:
                added.append(Acks(each.partition, tuple(wanted)))
        return tuple(added)

    def effective(
        self, group: str, acks: Iterable[Acks]
    ) -> tuple[tuple[Acks, ...], tuple[Refused, ...]]:
        """Returns what a plain acknowledgement deletes, and what of it does not count.

        What a transaction has pending stays as it is, and is told.

        Raises:
            UnknownSubscriptionError: of the group, or of a partition.
        """
        deleted: list[Acks] = []
        refused: list[Refused] = []
        for each in acks:
            known = self.partition(group, each.partition)
            wanted: SpanMap[bool] = SpanMap()
            for span in each.spans:
                for piece in known.deleted.free(span):
                    for part in known.pending.free(piece):
                        wanted.put(part, True)
            if wanted:
                deleted.append(Acks(each.partition, tuple(span for span, _ in wanted.rows())))
            for result, rows in (
                (AckResult.PENDING, [known.pending.within(span) for span in each.spans]),
                (AckResult.DELETED, [known.deleted.within(span) for span in each.spans]),
            ):
                parts = tuple(part for found in rows for part, _ in found)
                if parts:
                    refused.append(Refused(result, Acks(each.partition, parts)))
        return tuple(deleted), tuple(refused)

    # ---- what the journal says ------------------------------------------------------------------

    def replay_subscribe(self, offset: int, record: Subscribe) -> None:
        """Applies a SUBSCRIBE record, which stands at this offset."""
        match record.effect:
            case SubscribeEffect.JOINS:
                self._join(record)
            case SubscribeEffect.REPLACES:
                # A snapshot has no row of a subscription without partitions: it may be new here.
                found = self._of(record)
                found.era = self.last_era = offset
                for partition, start in record.starts:
                    found.partitions[partition] = SubscribedPartition(start)
            case SubscribeEffect.ENDS:
                self._subscriptions.pop(record.group, None)
                self.last_era = offset

    def _join(self, record: Subscribe) -> None:
        """Makes a subscription, or adds partitions. Those that it has keep their state."""
        found = self._of(record)
        for partition, start in record.starts:
            if partition not in found.partitions:
                found.partitions[partition] = SubscribedPartition(start)

    def _of(self, record: Subscribe) -> Subscription:
        """Returns the subscription of a record, made if it is new."""
        made = Subscription(record.kind, self.last_era)
        return self._subscriptions.setdefault(record.group, made)

    def replay_add_acks(self, record: AddAcks) -> None:
        """Applies an ADD_ACKS record."""
        for each in record.acks:
            known = self.partition(record.group, each.partition)
            for span in each.spans:
                known.pending.put(span, record.begin)
            self._pending.setdefault(record.begin, {})[record.group, each.partition] = None

    def replay_ack(self, record: Ack) -> None:
        """Applies an ACK record."""
        for each in record.acks:
            known = self.partition(record.group, each.partition)
            for span in each.spans:
                known.deleted.put(span, True)

    def replay_decided(self, begin: int, *, committed: bool) -> list[tuple[str, Acks]]:
        """Ends what a transaction has pending. Returns it, by subscription."""
        ended: list[tuple[str, Acks]] = []
        for group, partition in self._pending.pop(begin, ()):
            known = self.partition(group, partition)
            spans = tuple(span for span, owner in known.pending.rows() if owner == begin)
            for span in spans:
                known.pending.remove(span)
                if committed:
                    known.deleted.put(span, True)
            ended.append((group, Acks(partition, spans)))
        return ended

    # ---- snapshots ------------------------------------------------------------------------------

    def pending_of(self, begin: int) -> list[tuple[str, Acks]]:
        """Returns what a transaction has pending, by subscription."""
        found: list[tuple[str, Acks]] = []
        for group, partition in self._pending.get(begin, ()):
            rows = self.partition(group, partition).pending.rows()
            found.append((group, Acks(partition, tuple(s for s, owner in rows if owner == begin))))
        return found

    def pending_in(self, group: str) -> list[int]:
        """Returns the BEGINs of the transactions that acknowledge messages of a subscription."""
        parts = self.require(group).partitions.values()
        return sorted({begin for known in parts for _, begin in known.pending.rows()})

    def rows(self) -> Iterator[SnapshotSubscription]:
        """Yields the state as rows of a snapshot, which later changes leave as they are."""
        for group, subscription in self._subscriptions.items():
            for partition, known in subscription.partitions.items():
                deleted = tuple(span for span, _ in known.deleted.rows())
                pending = tuple((begin, span) for span, begin in known.pending.rows())
                yield SnapshotSubscription(
                    group, subscription.kind, partition, deleted, pending, subscription.era
                )

    def restore(self, row: SnapshotSubscription) -> None:
        """Adds a row of a snapshot, or a share of one."""
        group, kind, partition, deleted, pending, era = row
        subscription = self._subscriptions.setdefault(group, Subscription(kind, era))
        known = subscription.partitions.setdefault(partition, SubscribedPartition())
        for span in deleted:
            known.deleted.put(span, True)
        for begin, span in pending:
            known.pending.put(span, begin)
            self._pending.setdefault(begin, {})[group, partition] = None


def _check_free(known: SubscribedPartition, begin: int, partition: PartitionId, span: Span) -> None:
    where = f"{partition.topic}[{partition.partition}] at {span.hi.offset}"
    if known.deleted.touches(span):
        raise AckConflictError(
            f"a message of {where} was acknowledged before: abort, and go on with other messages"
        )
    others = {owner for _, owner in known.pending.within(span)} - {begin}
    if others:
        raise AckConflictError(
            f"a message of {where} is acknowledged by the transaction that began at offset"
            f" {min(others)} of its journal: abort, and go on with other messages"
        )
