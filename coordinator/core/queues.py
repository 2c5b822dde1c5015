"""Decides what a queue's consumers ask for: joins what is durable of subscriptions with leases.

As everywhere in a shard, `handle` reads what came from the journal and changes none of it, and
`replay` alone does. Leases are volatile, as commits that wait are: a command may change them.

What makes an answer about messages sound, besides the argument of `subscriptions`:

- A lease is *fresh*: a replaced owner would give out what its successor has deleted.
- It is parked behind every append in flight. It may be cut of what an abort has freed; if the abort
  were lost, the message would be with its transaction, and with a consumer.
- It is told as it is then (`told`): an acknowledgement may have come while it waited.
- An acknowledgement in a transaction needs that to be open, and its producer not to be fenced:
  `Shard` checks it as for every request of a transaction. One that comes late would leave messages
  pending for ever.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...journal.acks import Ack, Acks, AddAcks, Subscribe, SubscribeEffect
from ...journal.errors import (
    AckOutOfRangeError,
    CoordinatorBusyError,
    GroupBoundError,
    SubscriptionResetError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from ...journal.places import PartitionId
from ...journal.sidecar import is_sidecar, main_of
from ...journal.spans import AT_OFFSET, MessageId
from ..protocol import commands
from ..protocol.queues import OPERATOR, AcknowledgeType, AckResult, Refused
from .data_partitions import Topics
from .decision import Decision, Instant, Ref
from .dispatch import Dispatch
from .subscriptions import MessageState, Subscriptions
from .transactions import TransactionMetadata


class Queues:
    """The subscriptions of one journal partition, and their consumers."""

    def __init__(self) -> None:
        self.subscriptions = Subscriptions()
        self.dispatch = Dispatch(self.subscriptions)

    def loaded(self, now: Instant) -> None:
        """Begins to serve: the journal is replayed to its end."""
        self.dispatch.loaded(now)

    def follow(self) -> None:
        """Forgets the consumers: another owner serves."""
        self.dispatch = Dispatch(self.subscriptions)

    # ---- commands -------------------------------------------------------------------------------

    def handle(
        self,
        command: commands.Attach | commands.Acquire | commands.Acknowledge,
        ref: Ref,
        now: Instant,
        topics: Topics,
    ) -> Decision:
        """Decides what a consumer asks for.

        Raises:
            UnknownTopicError: a topic to subscribe to does not exist, and never did as far as the
                subscription knows. One that was deleted keeps nobody from the other topics.
            UnsupportedTopicError: a topic to subscribe to is a sidecar.
            UnknownSubscriptionError: of the group, or of a partition.
            SubscriptionResetError: messages were given out before the subscription was reset or
                deleted; or it was deleted since the consumer was attached.
            NotAttachedError: the consumer is not attached.
            AckOutOfRangeError: a partition does not have these messages.
        """
        match command:
            case commands.Attach():
                return self._handle_attach(command, ref, now, topics)
            case commands.Acquire():
                return self._handle_acquire(command, ref, now)
            case commands.Acknowledge():
                return self._handle_acknowledge(command, ref, now)

    def _handle_attach(
        self, command: commands.Attach, ref: Ref, now: Instant, topics: Topics
    ) -> Decision:
        subscription = self.subscriptions.get(command.group)
        if subscription is None and command.era is not None:
            # It would begin at the first messages: where it is to begin, the consumer said when it
            # attached first, and that is long ago.
            raise SubscriptionResetError(
                f"subscription {command.group!r} was deleted: the next poll makes it anew"
            )
        era = self.subscriptions.last_era if subscription is None else subscription.era
        known = {} if subscription is None else subscription.partitions
        named: list[PartitionId] = []
        topic_ids: dict[str, str | None] = {}
        for topic in command.topics:
            if is_sidecar(topic):
                raise UnsupportedTopicError(
                    f"{topic} is a sidecar, whose records come with those of its topic: subscribe"
                    f" to {main_of(topic)}"
                )
            facts = topics.get(topic)
            if facts is None and not any(p.topic == topic for p in known):
                raise UnknownTopicError(f"topic {topic!r} does not exist: create it first")
            topic_ids[topic] = None if facts is None else facts.topic_id
            count = 0 if facts is None else facts.partition_count
            named += [PartitionId(topic, p, topic_ids[topic] or "") for p in range(count)]
        for topic in command.left_topics:
            # Else nobody would say that it is no more, and where it ended be awaited (trap 121).
            facts = topics.get(topic)
            topic_ids[topic] = None if facts is None else facts.topic_id
        # A topic that got more partitions: the first messages of these are of the queue, too.
        topics_before = {(p.topic, p.topic_id) for p in known}
        new = [
            (p, 0 if (p.topic, p.topic_id) in topics_before else command.starts.get(p.key, 0))
            for p in named
            if p not in known
        ]
        record = Subscribe(
            group=command.group,
            kind=command.kind if subscription is None else subscription.kind,
            starts=tuple(new),
        )
        self.dispatch.topics_told(topic_ids)
        if (command.era or 0) != era:
            command = replace(command, held=())  # What was given out before is nobody's.
        leases = self.dispatch.attach(command, now)
        makes_one = bool(new) or subscription is None
        return Decision(
            records=(record,) if makes_one else (),
            replies=((ref, commands.Attached(leases, era)),),
            fresh=not makes_one,
        )

    def _handle_acquire(self, command: commands.Acquire, ref: Ref, now: Instant) -> Decision:
        self.subscriptions.require(command.group)
        self.dispatch.require(command.group, command.consumer)
        self.dispatch.heard(command.group, command.consumer, now)
        lease = self.dispatch.acquire(command, now)
        if lease is not None:
            return Decision(replies=((ref, commands.Leases((lease,))),), fresh=True)
        if command.ahead:
            # What comes later would go to one that is at work, while others have nothing to do.
            return Decision(replies=((ref, commands.Leases()),))
        before = self.dispatch.wait(command, ref, now)
        # A consumer has one request that waits: a second one ends the first.
        return Decision(replies=() if before is None else ((before, commands.Leases()),))

    def _handle_acknowledge(
        self, command: commands.Acknowledge, ref: Ref, now: Instant
    ) -> Decision:
        group = command.group
        self.dispatch.heard(group, command.consumer, now)
        if command.type in (AcknowledgeType.RELEASE, AcknowledgeType.RENEW):
            return self._handle_own(command, ref, now)
        self.subscriptions.require_era(group, command.era)
        self._check_range(group, command.acks, by_operator=command.consumer == OPERATOR)
        deleted, refused = self.subscriptions.effective(group, command.acks)
        rejected = command.type is AcknowledgeType.REJECT
        record = Ack(group=group, acks=deleted, rejected=rejected)
        return Decision(
            records=(record,) if deleted else (),
            replies=((ref, commands.AckResults(refused)),),
            fresh=not deleted,
        )

    def _handle_own(self, command: commands.Acknowledge, ref: Ref, now: Instant) -> Decision:
        """Decides what a consumer says of its own leases."""
        group, consumer = command.group, command.consumer
        subscription = self.subscriptions.require(group)
        self.dispatch.require(group, consumer)
        refused: list[Refused] = []
        for each in command.acks:
            if command.era != subscription.era:
                lost = each.spans  # They ended when the subscription was reset.
            elif command.type is AcknowledgeType.RENEW:
                lost = self.dispatch.renew(group, consumer, each, now)
            else:
                lost = self.dispatch.release(
                    group, consumer, each, now, delay_ms=command.delay_ms, unseen=command.unseen
                )
            if lost:
                refused.append(Refused(AckResult.LOST, Acks(each.partition, lost)))
        return Decision(replies=((ref, commands.AckResults(tuple(refused))),))

    def add_acks(
        self, transaction: TransactionMetadata, command: commands.AddAcks, ref: Ref
    ) -> Decision:
        """Decides what an open transaction acknowledges.

        Raises:
            AckConflictError: a message is deleted, or pending in another transaction.
            UnknownSubscriptionError, SubscriptionResetError, AckOutOfRangeError: as in `handle`.
        """
        begin, group = transaction.begin, command.group
        self.subscriptions.require_era(group, command.era)
        self._check_range(group, command.acks)
        added = self.subscriptions.check(begin, group, command.acks)
        for each in command.acks:
            self.dispatch.pause_if_aborted(group, each, command.delay_ms)
        record = AddAcks(begin=begin, group=group, acks=added)
        return Decision(records=(record,) if added else (), replies=((ref, commands.Done()),))

    def _check_range(self, group: str, acks: Iterable[Acks], *, by_operator: bool = False) -> None:
        for each in acks:
            self.subscriptions.partition(group, each.partition)  # Else no end would ever be told.
            if self.dispatch.is_former(each.partition):
                # A new owner could not learn where it ended (trap 112). No message of it is to
                # come that could be lost by this.
                continue
            end = self.dispatch.end_of(each.partition)
            where = f"{each.partition.topic}[{each.partition.partition}]"
            if end is None:
                self.dispatch.want(each.partition)
                raise CoordinatorBusyError(f"the end of {where} is not known yet")
            last = max(span.hi for span in each.spans) if each.spans else MessageId(0)
            if last > MessageId(end, AT_OFFSET) and by_operator:
                # Nobody may have asked for the end since the consumers left (trap 134).
                self.dispatch.want(each.partition)
                raise CoordinatorBusyError(f"{where} ends at {end}, as far as is known yet")
            if last > MessageId(end, AT_OFFSET):
                raise AckOutOfRangeError(
                    f"{where} ends at {end}, and messages up to {tuple(last)} are acknowledged:"
                    " acknowledge messages as they were given out"
                )

    def check_is_no_subscription(self, group: str) -> None:
        """Refuses to take a subscription for a consumer group.

        Who asks whether a group has offsets, because its binding could end, learns by this error
        that it may not: acknowledgements are kept here.

        Raises:
            GroupBoundError: it is one.
        """
        if group in self.subscriptions:
            raise GroupBoundError(
                f"{group!r} is a subscription, and has no offsets: a consumer group needs another"
                " name"
            )

    # ---- what the journal says ------------------------------------------------------------------

    def replay(self, offset: int, record: Subscribe | AddAcks | Ack) -> None:
        """Applies a record, which stands at this offset."""
        match record:
            case Subscribe():
                self.subscriptions.replay_subscribe(offset, record)
                if record.effect is SubscribeEffect.REPLACES:
                    self.dispatch.begin_anew(record.group, (p for p, _ in record.starts))
                elif record.effect is SubscribeEffect.ENDS:
                    self.dispatch.end(record.group)
                self.dispatch.stir()
            case AddAcks():
                self.subscriptions.replay_add_acks(record)
                for each in record.acks:
                    self.dispatch.taken(record.group, each, deleted=False)
            case Ack():
                self.subscriptions.replay_ack(record)
                for each in record.acks:
                    self.dispatch.taken(record.group, each, deleted=True)
                    if record.rejected:
                        self.dispatch.rejected(record.group, each)

    def replay_decided(self, begin: int, *, committed: bool) -> None:
        """Applies a decision: what the transaction has pending is deleted, or available again."""
        for group, acks in self.subscriptions.replay_decided(begin, committed=committed):
            if committed:
                self.dispatch.taken(group, acks, deleted=True)
            else:
                self.dispatch.aborted(group, acks)

    # ---- what is due, and what is told ----------------------------------------------------------

    def due(self, now: Instant) -> Decision | None:
        """Returns the next answer to a consumer that waited; None if there is none."""
        found = self.dispatch.due(now)
        return None if found is None else Decision(replies=(found,), fresh=True)

    def told(self, reply: commands.Reply, now_ms: int) -> commands.Reply:
        """Returns an answer as it is true at this monotonic time: see `Dispatch.told`."""
        match reply:
            case commands.Leases(leases) if leases:
                return commands.Leases(self.dispatch.told(leases, now_ms))
            case commands.Attached(leases, era) if leases:
                return commands.Attached(self.dispatch.told(leases, now_ms), era)
        return reply

    def untold(self, reply: commands.Reply) -> None:
        """Takes back an answer that its consumer never gets: the leases in it end.

        Without this, the messages would wait for the time of a lease that nobody knows of. One that
        attached has the messages, and attaches again, or is gone soon.
        """
        if isinstance(reply, commands.Leases):
            self.dispatch.untold(reply.leases)

    def state_of(self, group: str, partition: PartitionId, message: MessageId) -> MessageState:
        """Returns the state of one message.

        Raises:
            UnknownSubscriptionError: of the group, or of the partition.
        """
        known = self.subscriptions.partition(group, partition)
        if known.deleted.at(message):
            return MessageState.DELETED
        if known.pending.at(message) is not None:
            return MessageState.PENDING_ACK
        if self.dispatch.holder(group, partition, message) is not None:
            return MessageState.PENDING
        return MessageState.AVAILABLE
