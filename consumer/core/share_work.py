"""What one consumer of a queue works on, and what it has to say to the coordinator of it.

Each part of a lease is said of in one way:

- A message that was given out is the application's to say. What lies between it and the message
  before goes with it.
- What lies behind the last message, up to where reading is final, no message has: the consumer
  accepts it by itself.
- The rest is released.

So a message is accepted only if the application said so, and what nobody says is given out again by
its lease's end. A lease that is not this consumer's any more, as its time is over or its owner says
so, is read no further, and accepts no gap: whoever has it now says of that.

What is said and not answered is leased to it still. So it is named when the consumer attaches, up
to the answer: by this core until it is sent, and by `AttachedClient` from then on (trap 114).

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from ...coordinator.protocol.queues import AcknowledgeType, Lease
from ...journal.acks import Acks, joined
from ...journal.places import PartitionId
from ...journal.spans import MessageId, SpanMap
from .holdings import Given, Holdings, RecordKey

UNREADABLE_PAUSE_MS: Final = 1_000
"""Pause before messages that could not be read are given out again. A longer one delays them after
a broker's trouble, a shorter one holds up others more if they can never be read."""
END_PAUSE_MS: Final = 200
"""Pause before the very end of a partition in metadata mode is looked at again. A longer one delays
transactions that are placed there, a shorter one reads for nothing more often."""

Outgoing: TypeAlias = dict[tuple[AcknowledgeType, int], list[Acks]]
"""(type, delay in ms) → plain acknowledgements that are to be sent."""


class ShareWork:
    """The work of one consumer. One thread at a time may call it."""

    def __init__(self) -> None:
        """Works on nothing."""
        self.holdings = Holdings()
        self._outgoing: Outgoing = {}
        self._returned: list[RecordKey] = []
        """What the last poll returned, where the next one accepts it."""
        self._has_lost = False
        """Whether the lease that is read is not this consumer's any more."""
        self._gone: set[tuple[str, str]] = set()
        """(name, id) of topics that are no more."""

    # ---- what the coordinator says --------------------------------------------------------------

    def held(self) -> tuple[Acks, ...]:
        """Returns all that it works on, and what it said of that and was not sent yet."""
        unsent = (acks for some in self._outgoing.values() for acks in some)
        return joined([*self.holdings.held(), *unsent])

    def attached(self, leases: Iterable[Lease], now_s: float = 0.0) -> None:
        """Takes what it still has, after it attached."""
        self._has_lost = not self.holdings.attached(leases, now_s) or self._has_lost

    def leased(self, leases: Iterable[Lease], now_s: float = 0.0) -> None:
        """Takes leases. Each is this consumer's for the time that is left of it from `now_s` on."""
        self.holdings.leased(leases, now_s)

    def renewed(self, lease: Lease, until_s: float, *, is_lost: bool) -> None:
        """Takes the answer to the renewal of a lease, which may have ended since.

        Args:
            lease: as `begin` returned it.
            until_s: until when it is this consumer's by it.
            is_lost: whether none of it was this consumer's any more.
        """
        if self.holdings.lease is lease:
            self._has_lost = self._has_lost or is_lost
            self.holdings.until_s = max(self.holdings.until_s, until_s)

    def outgoing(self) -> Outgoing:
        """Returns what is to be sent; from now on that is the caller's."""
        outgoing, self._outgoing = self._outgoing, {}
        return outgoing

    # ---- reading --------------------------------------------------------------------------------

    def begin(self, now_s: float = 0.0) -> Lease | None:
        """Returns the next lease to read; None if there is none. The one before must be ended."""
        self._has_lost = False
        lease = self.holdings.begin(now_s)
        while lease is not None and _topic(lease) in self._gone:
            # Its owner has not heard of it yet.
            self._end(AcknowledgeType.REJECT, 0)
            lease = self.holdings.begin(now_s)
        return lease

    def give(
        self, key: RecordKey, message: MessageId, identity: int = 0, now_s: float = 0.0
    ) -> bool:
        """Notes that the next message of the lease is given out, as the object of this `id`.

        Returns:
            Whether it may be. If not, the lease is another's by now: `give_up` it.
        """
        self._has_lost = self._has_lost or now_s >= self.holdings.until_s
        if not self._has_lost:
            self.holdings.give(key, message, identity)
        return not self._has_lost

    def finish(self, bound: MessageId) -> None:
        """Ends the lease behind its last message.

        Args:
            bound: up to where reading is final. Behind it, at the very end of a partition, a home
                may still place messages: that part is looked at later.
        """
        gap = self.holdings.pass_gap(bound)
        if gap is not None and not self._has_lost:
            self._say(AcknowledgeType.ACCEPT, 0, [gap])
        self.give_up(delay_ms=END_PAUSE_MS)

    def give_up(self, *, delay_ms: int = 0) -> None:
        """Ends the lease, and releases what of it was not given out. Of what is another's by now,
        that changes nothing."""
        self._end(AcknowledgeType.RELEASE, delay_ms)

    def unreadable(self) -> None:
        """Ends the lease, whose next message can't be read now."""
        # At once, it would come again before all others.
        self.give_up(delay_ms=UNREADABLE_PAUSE_MS)

    def gone(self) -> None:
        """Ends the lease, whose topic is no more: nobody can read it, and ids do not come back."""
        lease = self.holdings.lease
        assert lease is not None, "it is read"
        self._gone.add(_topic(lease))
        self._end(AcknowledgeType.REJECT, 0)

    def _end(self, type_: AcknowledgeType, delay_ms: int) -> None:
        rest = self.holdings.end()
        if rest is not None:
            self._say(type_, delay_ms, [rest])

    # ---- what the application says --------------------------------------------------------------

    def return_all(self, keys: Iterable[RecordKey]) -> None:
        """Notes what a poll returned: `accept_returned` accepts it."""
        self._returned = list(keys)

    def accept_returned(self) -> None:
        """Accepts what the last poll returned, save what was said of since."""
        returned, self._returned = self._returned, []
        self._say_held(AcknowledgeType.ACCEPT, returned)

    def take_back(self, keys: Iterable[RecordKey]) -> None:
        """Releases what was given out and nobody will see: the application has no word for it."""
        self._say_held(AcknowledgeType.RELEASE, keys)

    def acknowledge(self, key: RecordKey, type_: AcknowledgeType, delay_ms: int) -> None:
        """Says what became of a message; nothing if it is not held."""
        is_renewed = type_ is AcknowledgeType.RENEW
        given = self.holdings.look(key) if is_renewed else self.holdings.take(key)
        if given is not None:
            self._say(type_, delay_ms, by_partition([given]))

    def accept_up_to(self, key: RecordKey) -> None:
        """Accepts a message, and all of its partition that was given out before it; nothing if it
        is not held."""
        self._say_held(AcknowledgeType.ACCEPT, self.holdings.up_to(key))

    def accepted_elsewhere(self, keys: Iterable[RecordKey]) -> None:
        """Holds messages no more: a transaction took their acknowledgements. What it refuses is
        held as before, so this is called behind it."""
        for key in keys:
            self.holdings.take(key)

    def release_all(self, delay_ms: int) -> None:
        """Releases all that was given out and not said of."""
        self._returned = []
        self._say(AcknowledgeType.RELEASE, delay_ms, by_partition(self.holdings.take_all()))

    def let_go(self) -> None:
        """Holds nothing more. What it does not name when it attaches is free at once."""
        self.holdings.take_all()
        self.holdings.take_unread()

    def _say_held(self, type_: AcknowledgeType, keys: Iterable[RecordKey]) -> None:
        taken = map(self.holdings.take, keys)
        self._say(type_, 0, by_partition(each for each in taken if each is not None))

    def _say(self, type_: AcknowledgeType, delay_ms: int, acks: Iterable[Acks]) -> None:
        self._outgoing.setdefault((type_, delay_ms), []).extend(acks)


def _topic(lease: Lease) -> tuple[str, str]:
    return lease.partition.topic, lease.partition.topic_id


def by_partition(given: Iterable[Given]) -> list[Acks]:
    """Returns the spans of messages, by partition."""
    spans: dict[PartitionId, SpanMap[bool]] = {}
    for each in given:
        spans.setdefault(each.partition, SpanMap()).put(each.span, True)
    return [Acks(p, tuple(span for span, _ in found.rows())) for p, found in spans.items()]
