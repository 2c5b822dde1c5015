"""A coordinator with a queue of one partition, and what its clients say, in few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from logtx.coordinator.core.dispatch import GONE_MS
from logtx.coordinator.core.subscriptions import MessageState
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType, Lease
from logtx.journal.acks import Acks, SubscriptionKind
from logtx.journal.places import PartitionId
from logtx.journal.spans import AT_OFFSET, MessageId, Span

from ..harness import Coordinator, Journal

GROUP: Final = "q"
P0: Final = PartitionId("a", 0, "id-a")
END: Final = 10
"""End of each partition: offsets 0 to 9 are plain records."""


def message(offset: int) -> Span:
    """Returns the span of a plain record, and of the gap before it."""
    return Span(MessageId(offset), MessageId(offset, AT_OFFSET).behind)


def offsets(first: int, end: int) -> Span:
    """Returns the span of all that stands at offsets from `first` on and before `end`."""
    return Span(MessageId(first), MessageId(end))


def acks(*spans: Span, partition: PartitionId = P0) -> tuple[Acks, ...]:
    """Returns messages of a partition."""
    return (Acks(partition, spans),)


class Queue:
    """A coordinator of one subscription, whose appends land at once unless told otherwise."""

    def __init__(self, kind: SubscriptionKind = SubscriptionKind.SHARED, *, grace: bool = False):
        self.coordinator = Coordinator(Journal())
        self.coordinator.take_over()
        self.kind = kind
        self.refs = 0
        self.sessions: dict[str, commands.SessionId] = {}
        if not grace:
            self.coordinator.pass_time(1_000)
        self.tell_ends()

    def tell_ends(self, end: int = END, partition: PartitionId = P0) -> None:
        self.coordinator.tenure.queue_ends_told({partition: end}, self.coordinator.now)
        self.coordinator._tell_end()

    def fail_over(self) -> None:
        """The coordinator dies, and another one loads the journal."""
        self.coordinator.lose()
        for producer in self.sessions:
            self.coordinator.attach(producer)

    # ---- asking ---------------------------------------------------------------------------------

    def send(self, command: commands.Command) -> int:
        """Sends a command; its answer may wait."""
        self.refs += 1
        self.coordinator.submit(command, self.refs)
        return self.refs

    def ask(self, command: commands.Command) -> Any:
        """Returns the answer to a command, whose records land at once."""
        ref = self.send(command)
        self.coordinator.ack()
        return self.coordinator.replies.get(ref)

    def attach(
        self,
        consumer: int,
        *held: Span,
        topics: Sequence[str] = ("a",),
        timeout_ms: int = 30_000,
        era: int | None = None,
    ) -> Any:
        return self.ask(
            commands.Attach(
                group=GROUP,
                consumer=consumer,
                kind=self.kind,
                topics=tuple(topics),
                held=acks(*held) if held else (),
                ack_timeout_ms=timeout_ms,
                era=era,
            )
        )

    def leave(self, *consumers: int) -> None:
        """Consumers' streams break, and they are not back in time."""
        for consumer in consumers:
            self.coordinator.tenure.consumer_gone(GROUP, consumer, self.coordinator.now)
        self.coordinator.pass_time(GONE_MS)

    def reset(
        self, offset: int | None = 0, *, era: int | None = None, partition: PartitionId = P0
    ) -> Any:
        """An operator lets a partition begin anew at an offset; with None forgets the subscription.

        Args:
            offset: where it begins.
            era: the one that this ends; None: the one that is now.
            partition: which one.
        """
        ends = self.era if era is None else era
        if offset is None:
            return self.ask(commands.DeleteSubscription(group=GROUP, era=ends))
        starts = {partition: offset}
        return self.ask(commands.ResetSubscription(group=GROUP, era=ends, starts=starts))

    @property
    def era(self) -> int:
        """The subscription's era; that of the next one if there is none."""
        subscriptions = self.coordinator.shard.queues.subscriptions
        found = subscriptions.get(GROUP)
        return subscriptions.last_era if found is None else found.era

    def acquire(
        self, consumer: int, count: int = 100, *, limit: int = 0, new: int = 0, ahead: bool = False
    ) -> Lease | None:
        """Returns the first lease of the answer; None without an answer, or without leases."""
        answer = self.ask(
            commands.Acquire(
                group=GROUP,
                consumer=consumer,
                max_offsets=count,
                delivery_limit=limit,
                max_new_offsets=new,
                ahead=ahead,
            )
        )
        if answer is None:
            return None
        assert isinstance(answer, commands.Leases), answer
        return answer.leases[0] if answer.leases else None

    def acknowledge(
        self,
        consumer: int,
        type_: AcknowledgeType,
        *spans: Span,
        delay_ms: int = 0,
        unseen: bool = False,
        era: int = 0,
    ) -> Any:
        answer = self.ask(
            commands.Acknowledge(
                group=GROUP,
                consumer=consumer,
                type=type_,
                acks=acks(*spans),
                delay_ms=delay_ms,
                unseen=unseen,
                era=era,
            )
        )
        if isinstance(answer, commands.AckResults):
            return tuple(answer.of(each.partition, s) for each in acks(*spans) for s in each.spans)
        return answer

    def acknowledge_in(self, partition: PartitionId, *spans: Span) -> None:
        """Accepts messages of a partition, whoever has them."""
        named = acks(*spans, partition=partition)
        accepts = AcknowledgeType.ACCEPT
        self.ask(commands.Acknowledge(group=GROUP, consumer=1, type=accepts, acks=named))

    def release_in(self, partition: PartitionId, consumer: int, *spans: Span) -> None:
        """Releases messages of a partition that a consumer has."""
        named = acks(*spans, partition=partition)
        releases = AcknowledgeType.RELEASE
        self.ask(commands.Acknowledge(group=GROUP, consumer=consumer, type=releases, acks=named))

    def begin(self, producer: str, timeout_ms: int = 60_000) -> Any:
        """Returns the TxId of a new transaction."""
        if producer not in self.sessions:
            nonce = len(self.sessions) + 1
            told = self.ask(commands.Connect(producer_id=producer, nonce=nonce))
            self.sessions[producer] = commands.SessionId(producer, told.generation, nonce)
        self.refs += 1
        began = self.ask(
            commands.Begin(
                session=self.sessions[producer],
                request_id=self.refs,
                answered_below=0,
                timeout_ms=timeout_ms,
            )
        )
        return began.txid

    def add_acks(
        self, producer: str, txid: Any, *spans: Span, delay_ms: int = 0, era: int = 0
    ) -> Any:
        return self.ask(
            commands.AddAcks(
                session=self.sessions[producer],
                txid=txid,
                group=GROUP,
                acks=acks(*spans),
                delay_ms=delay_ms,
                era=era,
            )
        )

    def end(self, producer: str, txid: Any, *, commit: bool) -> Any:
        action = commands.Action.COMMIT if commit else commands.Action.ABORT
        session = self.sessions[producer]
        return self.ask(commands.End(session=session, txid=txid, action=action, writes={}))

    def state(self, offset: int) -> MessageState:
        """Returns the state of the plain record at an offset."""
        return self.coordinator.shard.queues.state_of(GROUP, P0, MessageId(offset, AT_OFFSET))
