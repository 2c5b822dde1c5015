"""What one consumer of a queue works on, and what it has to say to the coordinator of it.

Each part of a lease is said of in one way:

- A message that was given out is the application's to say. What lies between it and the message
  before goes with it.
- What lies behind the last message, up to where reading is final, no message has: the consumer
  accepts it by itself.
- The rest is released. No application got it, so that is no delivery of it. That may be most of
  what a pointer names.

A message that is rejected, or comes once more than it may, becomes a letter: the caller writes it
to the dead-letter topic, or rejects it.

So a message is accepted only if the application said so, and what nobody says is given out again by
its lease's end. A lease that is not this consumer's any more, as its time is over or its owner says
so, is read no further, and accepts no gap: whoever has it now says of that.

What is said and not answered is leased to it still. So it is named when the consumer attaches, up
to the answer (trap 114): what transactions are asked to acknowledge by this core, and the rest by
this core until it is sent, and by `AttachedClient` from then on. What a transaction is refused is
released: nobody else could have it, up to the end of its time.

All that is said names the era of the subscription in which the messages were given out. When the
consumer is told of another one, it holds nothing of before any more. What was said before goes out
as it was said, and is refused: so the application learns that it did not count.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ...coordinator.protocol.queues import AcknowledgeType, Lease, most_at_once
from ...journal.acks import Acks, joined
from ...journal.sidecar import is_delivered_from_sidecar
from ...journal.spans import MessageId, Span
from .holdings import Holdings
from .letters import Letter, over_limit, rejected
from .pending import Record
from .runs import ByRun, Given, RecordKey, Run, acks_of, by_run

UNREADABLE_PAUSE_MS: Final = 1_000
"""Pause before messages that could not be read are given out again. A longer one delays them after
a broker's trouble, a shorter one holds up others more if they can never be read."""
END_PAUSE_MS: Final = 200
"""Pause before the very end of a partition in metadata mode is looked at again. A longer one delays
transactions that are placed there, a shorter one reads for nothing more often."""


class How(NamedTuple):
    """How something is said."""

    type: AcknowledgeType
    delay_ms: int = 0
    unseen: bool = False
    """Of a release: whether no application got the messages."""
    era: int = 0
    """In which they were given out."""


_ACCEPTED: Final = How(AcknowledgeType.ACCEPT)


@dataclass(slots=True)
class Said:
    """What is said in one way."""

    given: ByRun = field(default_factory=dict)
    """The messages that the application said it of."""
    others: list[Acks] = field(default_factory=list)
    """What the consumer says it of by itself: gaps, and what was not given out."""

    def add(self, some: ByRun) -> None:
        """Says it of messages."""
        for of, offsets in some.items():
            self.given.setdefault(of, []).extend(offsets)

    @property
    def acks(self) -> tuple[Acks, ...]:
        """All of it, neighbours as one span."""
        return joined([*acks_of(self.given), *self.others])


Outgoing: TypeAlias = dict[How, Said]
"""Plain acknowledgements that are to be sent."""


class ShareWork:
    """The work of one consumer. One thread at a time may call it."""

    def __init__(self, *, delivery_limit: int = 0) -> None:
        """Works on nothing.

        Args:
            delivery_limit: how often a message is given to applications; 0: without end.
        """
        self.holdings = Holdings()
        self._delivery_limit = delivery_limit
        self._outgoing: Outgoing = {}
        self._accepted: ByRun = {}
        """What was accepted last, where it is part of `_outgoing`: most is said in this way."""
        self._letters: list[Letter] = []
        self._asked: dict[int, tuple[float, Sequence[Acks]]] = {}
        """Number → what a transaction was asked to acknowledge, and the time up to which that can
        be this consumer's. Some are never answered."""
        self._asks = 0
        self._returned: list[RecordKey] = []
        """What the last poll returned, where the next one accepts it."""
        self._has_lost = False
        """Whether the lease that is read is not this consumer's any more."""
        self._given_of_lease = 0
        """Number of messages that were given out of the lease that is read."""
        self._gone: set[tuple[str, str]] = set()
        """(name, id) of topics that are no more."""
        self.era: int | None = None
        """The era of the subscription that was told last; None: the consumer was not attached yet,
        or the subscription is to be made anew."""

    # ---- what the coordinator says --------------------------------------------------------------

    def held(self) -> tuple[Acks, ...]:
        """Returns all that it works on, and what it said of that and is to be named by it."""
        own = [said for how, said in self._outgoing.items() if how.era == self.holdings.era]
        unsent = [acks for said in own for acks in said.acks]
        letters = [letter.given.acks for letter in self._letters]
        asked = [acks for _, some in self._asked.values() for acks in some]
        return joined([*self.holdings.held(), *unsent, *letters, *asked])

    def attached(self, leases: Iterable[Lease], now_s: float = 0.0, era: int = 0) -> bool:
        """Takes what it still has, after it attached.

        Returns:
            Whether the era is another one than before: then it holds nothing more.
        """
        is_another, self.era = self.era not in (None, era), era
        if era != self.holdings.era:
            self._begin_anew(era)
        self._has_lost = not self.holdings.attached(leases, now_s) or self._has_lost
        return is_another

    def forget_era(self) -> None:
        """Begins again as a consumer that was never attached: the subscription was deleted."""
        self._begin_anew(self.holdings.era)
        self.era = None

    def _begin_anew(self, era: int) -> None:
        self.holdings.begin_anew(era)
        self._letters.clear()
        self._asked.clear()
        self._returned = []
        self._has_lost = True

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
        outgoing, self._outgoing, self._accepted = self._outgoing, {}, {}
        return outgoing

    def letters(self) -> list[Letter]:
        """Returns the messages that are to be given up; from now on they are the caller's."""
        letters, self._letters = self._letters, []
        return letters

    def keep_letters(self, letters: list[Letter]) -> None:
        """Takes them back: the caller was interrupted."""
        self._letters += letters

    @property
    def only_accepts(self) -> bool:
        """Whether all that is to be sent says that messages are worked off: nobody waits for it."""
        accepts = all(how.type is AcknowledgeType.ACCEPT for how in self._outgoing)
        return accepts and not self._letters

    @property
    def has_letters(self) -> bool:
        """Whether messages are to be given up."""
        return bool(self._letters)

    # ---- reading --------------------------------------------------------------------------------

    def begin(self, now_s: float = 0.0) -> Lease | None:
        """Returns the next lease to read; None if there is none. The one before must be ended."""
        self._has_lost, self._given_of_lease = False, 0
        lease = self.holdings.begin(now_s)
        while lease is not None and _topic(lease) in self._gone:
            # Its owner has not heard of it yet.
            self._end(How(AcknowledgeType.REJECT))
            lease = self.holdings.begin(now_s)
        return lease

    def give(
        self,
        key: RecordKey,
        message: MessageId,
        record: Record | None = None,
        now_s: float = 0.0,
    ) -> Given | None:
        """Notes that the next message of the lease is given out.

        Returns:
            How it is given; None if the lease is another's by now: then `give_up` it.
        """
        topic, partition, offset = key
        is_own = self.give_run(Run(topic, partition, (record,), (offset,), message), now_s)
        return self.holdings.look(key) if is_own else None

    def give_run(self, run: Run, now_s: float = 0.0) -> bool:
        """Notes that the next messages of the lease are given out, one at least.

        Returns:
            Whether they are; if not, the lease is another's by now: then `give_up` it.
        """
        self._has_lost = self._has_lost or now_s >= self.holdings.until_s
        self._given_of_lease += len(run)
        if not self._has_lost:
            self.holdings.give_run(run)
        return not self._has_lost

    def exhaust_run(self, run: Run) -> bool:
        """Does the same as `exhaust` with messages that were just given out: all of a lease were
        given out as often."""
        lease = self.holdings.lease
        if lease is None or not 0 < self._delivery_limit < lease.delivery_count:
            return False
        for key in run.known_by():
            self.exhaust(key)
        return True

    def exhaust(self, key: RecordKey) -> bool:
        """Takes back a message that was just given out, if that was once more than it may be: it
        becomes a letter. Returns whether."""
        given = self.holdings.look(key)
        if given is None or not 0 < self._delivery_limit < given.delivery_count:
            return False
        self.holdings.take(key)
        self._letters.append(over_limit(key, given, self._delivery_limit))
        return True

    def count_of(self, run: Run, most: int) -> int:
        """Returns how many of the next messages are given out, before `has_enough` must be asked.

        Args:
            run: the messages.
            most: as of `has_enough`.
        """
        if not is_delivered_from_sidecar(run.offsets[-1]):
            return len(run)
        pointed = bisect_left(run.offsets, True, key=is_delivered_from_sidecar)
        return max(pointed, self._share(most) - self._given_of_lease - 1) + 1

    def has_enough(self, key: RecordKey, most: int) -> bool:
        """Returns whether the consumer has its share of the lease with the message that was just
        given out: then `give_up` the rest.

        What a pointer names is leased with its one offset, and may be a million messages. So they
        are given out in shares as large as leases of other messages are, also of what comes again.
        Others work on the rest. And a consumer that dies has had no more of them: else the rest
        would come to the limit of deliveries with what nobody works off (trap 161).

        Args:
            key: the message.
            most: most messages of the poll that it is for, and most offsets of a lease.
        """
        if self.holdings.lease is None or not is_delivered_from_sidecar(key[2]):
            return False
        return self._given_of_lease >= self._share(most)

    def _share(self, most: int) -> int:
        lease = self.holdings.lease
        deliveries = 0 if lease is None else lease.delivery_count - 1
        return most_at_once(most, deliveries, self._delivery_limit)

    def finish(self, bound: MessageId) -> None:
        """Ends the lease behind its last message.

        Args:
            bound: up to where reading is final. Behind it, at the very end of a partition, a home
                may still place messages: that part is looked at later.
        """
        gap = self.holdings.pass_gap(bound)
        if gap is not None and not self._has_lost:
            self._say(How(AcknowledgeType.ACCEPT), [gap])
        self.give_up(delay_ms=END_PAUSE_MS)

    def give_up(self, *, delay_ms: int = 0) -> None:
        """Ends the lease, and releases what of it was not given out. Of what is another's by now,
        that changes nothing."""
        self._end(How(AcknowledgeType.RELEASE, delay_ms, unseen=True))

    def unreadable(self, *, is_lasting: bool) -> None:
        """Ends the lease, whose next message can't be read.

        Args:
            is_lasting: whether nobody else can read it, or later, for the reason lies in the log.
                Where in the lease it stands is not known. So the lease is halved, and the half that
                does not have it is read the next time, down to one offset: else it would keep all
                messages behind it from everybody (trap 122).
        """
        rest = self.holdings.end()
        if rest is None:
            return
        (span,) = rest.spans
        middle = MessageId((span.lo.offset + span.hi.offset + 1) // 2)
        bound = middle if is_lasting and span.lo < middle < span.hi else span.hi
        # At once, it would come again before all others.
        halted = How(AcknowledgeType.RELEASE, UNREADABLE_PAUSE_MS, unseen=True)
        self._say(halted, [Acks(rest.partition, (Span(span.lo, bound),))])
        if bound < span.hi:
            again = How(AcknowledgeType.RELEASE, unseen=True)
            self._say(again, [Acks(rest.partition, (Span(bound, span.hi),))])

    def gone(self) -> None:
        """Ends the lease, whose topic is no more: nobody can read it, and ids do not come back."""
        lease = self.holdings.lease
        assert lease is not None, "it is read"
        self._gone.add(_topic(lease))
        self._end(How(AcknowledgeType.REJECT))

    def _end(self, how: How) -> None:
        rest = self.holdings.end()
        if rest is not None:
            self._say(how, [rest])

    def put_back(self) -> None:
        """Releases all that is not given out, and ends the lease that is read."""
        unread = self.holdings.take_unread()
        self._say(How(AcknowledgeType.RELEASE, unseen=True), unread)

    # ---- what the application says --------------------------------------------------------------

    def return_all(self, keys: Iterable[RecordKey]) -> None:
        """Notes what a poll returned: `accept_returned` accepts it."""
        self._returned = list(keys)

    def accept_returned(self) -> None:
        """Accepts what the last poll returned, save what was said of since."""
        returned, self._returned = self._returned, []
        self._say_of(How(AcknowledgeType.ACCEPT), self.holdings.take_some(returned))

    def take_back(self, keys: Iterable[RecordKey]) -> None:
        """Releases what was given out and nobody has seen: that is no delivery of it."""
        taken = self.holdings.take_some(keys)
        self._say(How(AcknowledgeType.RELEASE, unseen=True), acks_of(taken))

    def acknowledge(
        self, key: RecordKey, type_: AcknowledgeType, delay_ms: int, reason: str | None = None
    ) -> None:
        """Says what became of a message; nothing if it is not held. One that is rejected becomes a
        letter."""
        is_renewed = type_ is AcknowledgeType.RENEW
        given = self.holdings.look(key) if is_renewed else self.holdings.take(key)
        if given is None:
            return
        if type_ is AcknowledgeType.REJECT:
            self._letters.append(rejected(key, given, reason))
        else:
            self._say_of(How(type_, delay_ms), by_run([given]))

    def accept(self, topic: str, partition: int, offset: int, record: Record) -> bool:
        """Accepts a message. Returns whether it is held.

        Args:
            topic: its topic.
            partition: its partition.
            offset: what the application knows it by.
            record: the message, as the application has it.
        """
        of = self.holdings.take_own(topic, partition, offset, record)
        if of is None:
            return False
        offsets = self._accepted.get(of)
        if offsets is None:
            # What was given out together was given out in one era.
            self._accepted = self._said(_ACCEPTED).given
            offsets = self._accepted.setdefault(of, [])
        offsets.append(offset)
        return True

    def accept_up_to(self, key: RecordKey) -> None:
        """Accepts a message, and all of its partition that was given out before it; nothing if it
        is not held."""
        found = self.holdings.take_some(self.holdings.up_to(key))
        self._say_of(How(AcknowledgeType.ACCEPT), found)

    def accepted_elsewhere(self, given: Mapping[RecordKey, Given]) -> None:
        """Holds messages no more: a transaction took their acknowledgements. What it refuses is
        held as before, so this is called behind it."""
        # One that was given out again meanwhile, in another era, is not what the transaction took.
        self.holdings.take_some([k for k, each in given.items() if self.holdings.look(k) == each])

    def ask(self, acks: Sequence[Acks], now_s: float, until_s: float, era: int = 0) -> int:
        """Notes that a transaction is asked to acknowledge messages. `answered` takes its answer.

        Args:
            acks: the messages.
            now_s: the time.
            until_s: when the leases of these messages are over, whatever becomes of them.
            era: in which they were given out. If that has ended, they are this consumer's no more.
        """
        self._asked = {n: each for n, each in self._asked.items() if each[0] > now_s}
        self._asks += 1
        if era == self.holdings.era:
            self._asked[self._asks] = until_s, acks
        return self._asks

    def answered(self, number: int, *, is_refused: bool) -> None:
        """Takes the answer of a transaction. If it refuses, as one of the messages is somebody
        else's, or as it has ended, they are released. Of what is another's that changes nothing."""
        _, acks = self._asked.pop(number, (0.0, ()))
        if is_refused:
            self._say(How(AcknowledgeType.RELEASE), acks)

    def not_written(self, letter: Letter, delay_ms: int) -> None:
        """Releases a message whose letter could not be written. If the letter's transaction had
        acknowledged it, this changes nothing."""
        if letter.given.era == self.holdings.era:
            self._say(How(AcknowledgeType.RELEASE, delay_ms), [letter.given.acks])

    def release_all(self, delay_ms: int) -> None:
        """Releases all that was given out and not said of."""
        self._returned = []
        self._say_of(How(AcknowledgeType.RELEASE, delay_ms), self.holdings.take_all())

    def let_go(self) -> None:
        """Holds nothing more. What it does not name when it attaches is free at once."""
        self.holdings.take_all()
        self.put_back()

    def _say_of(self, how: How, some: ByRun) -> None:
        self._said(how).add(some)

    def _say(self, how: How, acks: Iterable[Acks]) -> None:
        self._said(how).others += acks

    def _said(self, how: How) -> Said:
        if self.holdings.era:
            how = how._replace(era=self.holdings.era)
        found = self._outgoing.get(how)
        if found is None:
            found = self._outgoing[how] = Said()
        return found


def _topic(lease: Lease) -> tuple[str, str]:
    return lease.partition.topic, lease.partition.topic_id
