"""Workers of a queue: messages, what they make of them, and acknowledgements in one transaction.

Each is a producer with a consumer of the queue, as an application has both. What the consumer
holds, reads and says is decided by `ShareWork` and `LeaseReader` as they are; played are
`consumer/share_consumer.py` (its polls) and the application.

An application takes messages and does with each as it likes: it works it off in a transaction,
alone or with others, and commits, aborts or forgets that; it accepts or rejects it plainly;
releases it, or has its time begun anew; or does nothing for longer than it may. It closes its
consumer and makes another one. It dies, is paused and wakes up, and is fenced, as all producers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

from confluent_kafka import Message as KafkaMessage

from logtx.consumer.core.letters import Letter
from logtx.consumer.core.pending import Record
from logtx.consumer.core.runs import Given, RecordKey, by_partition
from logtx.consumer.core.share_work import How, ShareWork
from logtx.consumer.range_reader.errors import SwitchedError
from logtx.consumer.share_consumer import _LASTING, RENEW_SHARE
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.commands import Action
from logtx.coordinator.protocol.queues import AcknowledgeType, AckResult, Lease
from logtx.journal.acks import Acks, SubscriptionKind
from logtx.journal.control import TopicPartition
from logtx.journal.errors import (
    LogtxError,
    RequestTimedOutError,
    SessionClosedError,
    SubscriptionResetError,
    TopicRecreatedError,
)
from logtx.journal.spans import MessageId, Span
from logtx.producer.core.bookkeeping import Phase

from .attaching import Attachment
from .history import Message, Resting, Said, Taken
from .leases import Leases
from .logs import NotYetError
from .producers import Producer
from .topology import OUTPUT, RESULTS, RESULTS_USED, TEMPORARY
from .transaction import Transaction

QUEUE: Final = "jobs"
"""The subscription."""
STEP_MS: Final = (3, 30)
"""Least and most virtual time between two steps."""
ATTACH_AGAIN_MS: Final = 250
"""How often a consumer attaches anew, so that partitions which its topic got join the queue."""
AGAIN_MS: Final = (2, 20)
"""Least and most time until it is tried again to read what was not there."""
AHEAD_SHARE: Final = 0.7
"""Share of the leases behind which the next one is asked for, in histories with such questions."""
PATIENCE: Final = 40
"""Number of those tries in a row after which a lease is given up as one that can't be read."""
STANDS_MS: Final = (100, 900)
"""Least and most time for which an application does nothing at all."""
KEPT_MS: Final = (300, 1_200)
"""Least and most time for which a message is kept where workers dawdle."""
REST_SHARE: Final = 0.03
"""Share of the steps in which an application leaves its queue alone, where they do."""
RESTS_MS: Final = (50, 500)
"""Least and most time for which it does."""
DELAYS_MS: Final = (0, 0, 20, 120)
"""Delays of releases."""
IN_TRANSACTION_SHARE: Final = 0.6
"""Share of the messages that are worked off in transactions."""
EXPLICIT_SHARE: Final = 0.85
"""Share of the consumers whose application says what becomes of each message."""
LETTERS_SHARE: Final = 0.5
"""Share of the consumers that write what they give up to a dead-letter topic."""
POLLS_MAX: Final = 3
"""Consumers ask for less than so many times of what a poll returns."""
LETTER_MS: Final = 600
"""Timeout of the transaction of a dead letter."""
CHANGE_SHARE: Final = 0.3
"""Share of the steps in which an application subscribes anew, if there is reason."""
HELD_MS: Final = (50, 600)
"""Least and most time for which a transaction stays open with messages that it acknowledges."""


@dataclass(frozen=True, slots=True, eq=False)
class Hand:
    """An object that an application was given for a message."""

    key: RecordKey
    message: Message
    record: Record
    """The object."""
    from_ms: int = 0
    """Before, the application does nothing with it."""


class QueueWorker(Producer):
    """One instance of an application that works off a queue."""

    feeds_output = False

    def __init__(self, *args: Any, **how: Any) -> None:
        """Connects; joins the queue as soon as that is bound to its transaction group."""
        super().__init__(*args, **how)
        setting = self.setting
        assert setting.queues is not None
        self._draw = setting.queues
        self._client: Attachment | None = None
        self._plans: dict[Transaction, list[Hand]] = {}
        """What a transaction is to acknowledge as soon as it has begun."""
        self._letters: dict[Transaction, Letter] = {}
        """The message that a transaction gives up."""
        self._stands_until_ms = 0
        self._has_left = False
        """Whether it has left the queue, for an operator wants to reset it."""
        self._new_consumer()

    def _new_consumer(self) -> None:
        draw = self._draw
        self._number = draw.getrandbits(62)
        self._is_explicit = draw.random() < EXPLICIT_SHARE
        self._poll_records = draw.choice((2, 4, 8))
        self._ack_timeout_ms = draw.choice((120, 250, 600))
        self._delivery_limit = draw.choice((0, 0, 2, 4))
        self._writes_letters = draw.random() < LETTERS_SHARE
        self._work = ShareWork(delivery_limit=self._delivery_limit)
        self._hands: list[Hand] = []
        """What the application was given and has not dealt with."""
        self._leases = Leases(self.network, self)
        self._reading: Iterator[tuple[KafkaMessage, MessageId]] | None = None
        self._lease: Lease | None = None
        """The lease that is read."""
        self._tries = 0
        self._read_from_ms = self._attach_from_ms = self._renew_from_ms = 0
        self._topics: tuple[str, ...] = ()
        self._starts: dict[TopicPartition, int] = {}
        self._rests = False
        """Whether the consumer takes nothing up to the next poll."""
        self._rests_until_ms = 0
        self._rest: Resting | None = None
        self._is_deleted = False
        """Whether an operator has deleted the subscription, and the next poll makes it anew."""

    @property
    def idle(self) -> bool:
        """Whether it has nothing left to do or to learn. It always waits for messages, and looks at
        the very ends of partitions again and again."""
        client, lease = self._client, self._lease
        says = client is not None and client.waits_for(commands.Acknowledge)
        reads = lease is not None and lease.span.lo.offset < lease.span.hi.offset
        return super().idle and not (self._hands or reads or says)

    # ---- the consumer's shell -------------------------------------------------------------------

    def _subscribe(self) -> None:
        setting = self.setting
        self._topics = self._wanted_topics
        self._starts = self._first_starts()
        self._attach_from_ms = setting.now_ms + ATTACH_AGAIN_MS
        self._client = Attachment(
            self.network,
            self,
            setting.home(self._group),
            self._attach,
            self._attached,
            self._leased,
        )

    def _first_starts(self) -> dict[TopicPartition, int]:
        setting, truth = self.setting, self.setting.topology.truth
        if not setting.queue_begins_late:
            return {}
        return {
            (topic, p): setting.told_end(topic, p)
            for topic in self._topics
            if topic in truth
            for p in range(truth[topic].partition_count)
        }

    def _attach(self) -> commands.Attach:
        failover = self.setting.queue_is_failover
        return commands.Attach(
            group=QUEUE,
            consumer=self._number,
            kind=SubscriptionKind.FAILOVER if failover else SubscriptionKind.SHARED,
            topics=() if self._rests else self._topics,
            starts=self._starts,
            held=self._work.held(),
            ack_timeout_ms=self._ack_timeout_ms,
            era=self._work.era,
        )

    def _attached(self, attached: commands.Attached) -> None:
        if not self._rests:
            self._starts = {}
        if self._work.attached(attached.leases, self._now_s, attached.era):
            self.setting.history.counts["consumers that came back behind a reset"] += 1
            # What is broken off of its lease is not gone on with.
            self._end(self._work.give_up)

    def _leased(self, leases: tuple[Lease, ...]) -> None:
        if not self._rests:
            self._work.leased(leases, self._now_s)

    @property
    def _now_s(self) -> float:
        return self.setting.now_ms / 1000

    def _poll(self, client: Attachment) -> None:
        """Does what one call of `poll` does, without waiting."""
        self._accept_last()
        self._send(client)
        if self._is_deleted:
            self._make_anew(client)
        self._wake(client)
        found: list[Hand] = []
        if self.setting.now_ms >= self._read_from_ms:
            self._read(client, found)
        if not found and self._lease is None:
            self._send(client)
            self._acquire(client)
        if not self._is_explicit:
            self._work.return_all(hand.key for hand in found)

    def _accept_last(self) -> None:
        if not self._is_explicit:
            for hand in self._hands:
                if self._look(hand) is not None:
                    self._note_said(hand, rejected=False)
            self._hands.clear()
        self._work.accept_returned()

    def _acquire(self, client: Attachment) -> None:
        if client.waits_for(commands.Acquire):
            return
        if self.setting.now_ms >= self._attach_from_ms:
            self._attach_from_ms = self.setting.now_ms + ATTACH_AGAIN_MS
            client.submit(self._attach(), self._ignore)
        self._ask_for(client)

    def _ask_for(self, client: Attachment, *, ahead: bool = False) -> None:
        command = commands.Acquire(
            group=QUEUE,
            consumer=self._number,
            max_offsets=self._poll_records,
            max_new_offsets=self._poll_records * (self._number % POLLS_MAX),
            at_ends=self._leases.may_be_placed(self._topics),
            delivery_limit=self._delivery_limit,
            ahead=ahead,
        )
        client.submit(command, self._acquired)

    def _ask_ahead(self, client: Attachment) -> None:
        draw = self.setting.leasing_ahead
        if draw is None or client.waits_for(commands.Acquire):
            return
        if self.setting.now_ms < self._attach_from_ms and draw.random() < AHEAD_SHARE:
            self.setting.history.counts["leases that were asked for ahead"] += 1
            self._ask_for(client, ahead=True)

    def _acquired(self, reply: commands.Reply) -> None:
        self._is_deleted = self._is_deleted or isinstance(reply, SubscriptionResetError)
        self._ignore(reply)

    def _make_anew(self, client: Attachment) -> None:
        """Makes the subscription anew, as a first consumer does."""
        self._is_deleted = False
        self._work.forget_era()
        self._starts = self._first_starts()
        client.submit(self._attach(), self._ignore)
        self.setting.history.counts["subscriptions that were made anew"] += 1

    def _ignore(self, reply: commands.Reply) -> None:
        if isinstance(reply, LogtxError):
            self.setting.note(self.name, "is told", repr(reply))

    def _send(self, client: Attachment) -> None:
        outgoing, letters = self._work.outgoing(), self._work.letters()
        for how, said in outgoing.items():
            if said.acks:
                client.submit(self._command(how, said.acks), self._ignore)
        for letter in letters:
            self.setting.history.counts["messages that are given up"] += 1
            if self._writes_letters:
                transaction = self.begin(LETTER_MS)
                self._letters[transaction] = letter
                transaction.is_step = True
            else:
                how = How(AcknowledgeType.REJECT, era=letter.given.era)
                client.submit(self._command(how, [letter.given.acks]), self._ignore)

    def _command(self, how: How, acks: Iterable[Acks]) -> commands.Acknowledge:
        return commands.Acknowledge(
            group=QUEUE,
            consumer=self._number,
            type=how.type,
            acks=tuple(acks),
            delay_ms=how.delay_ms,
            unseen=how.unseen,
            era=how.era,
        )

    def _read(self, client: Attachment, found: list[Hand]) -> None:
        while not found:
            if self._lease is None:
                self._lease = self._work.begin(self._now_s)
                if self._lease is None:
                    return
                self._reading, self._tries = self._leases.begin(self._lease), 0
                self._renew_from_ms = 0
                self._ask_ahead(client)
            try:
                self._take(client, found)
                self._send(client)
            except (NotYetError, RequestTimedOutError, SwitchedError) as error:
                if self._wait_for(error):
                    return
            except LogtxError as error:
                self._unreadable(error)

    def _take(self, client: Attachment, found: list[Hand]) -> None:
        lease = self._lease
        assert lease is not None, "one is read"
        if self._reading is None:
            # Broken off: what was given out of it is not read again.
            rest = Span(self._work.holdings._at, lease.span.hi)
            self._reading = self._leases.go_on(replace(lease, span=rest))
        for count, (message, name) in enumerate(self._reading, 1):
            offset, record = message.offset(), cast("Record", message)
            assert offset is not None, "it is of a partition"
            key = lease.partition.topic, lease.partition.partition, offset
            if self._work.give(key, name, record, self._now_s) is None:
                self.setting.history.counts["leases that were lost while they were read"] += 1
                self._end(self._work.give_up)
                return
            hand = Hand(key, Message(lease.partition, name), record, self._kept_until_ms(key[0]))
            self._given(hand)
            if self._work.exhaust(key):
                self._note_said(hand, rejected=True)
            else:
                self._hands.append(hand)
                found.append(hand)
            self._tries = 0
            if self._work.has_enough(key, self._poll_records):
                self.setting.history.counts["leases of which a share was enough"] += 1
                self._end(self._work.give_up)
                return
            if count >= self._poll_records:
                self._renew(client, lease)
                return
        self._end(partial(self._work.finish, self._leases.bound))

    def _kept_until_ms(self, topic: str) -> int:
        draw = self.setting.dawdling
        if draw is None or topic != TEMPORARY:
            return 0
        return self.setting.now_ms + draw.randint(*KEPT_MS)

    def _given(self, hand: Hand) -> None:
        setting, message = self.setting, hand.message
        at, value = setting.history.tick(), hand.record.value()
        setting.history.taken.append(
            Taken(self.name, message, hand.key[2], value, at, setting.now_ms)
        )
        setting.note(self.name, "is given", message.partition, tuple(message.name))

    def _renew(self, client: Attachment, lease: Lease) -> None:
        now_ms, soon_ms = self.setting.now_ms, self._ack_timeout_ms / RENEW_SHARE
        if self._work.holdings.until_s - self._now_s > soon_ms / 1000:
            return
        if now_ms < self._renew_from_ms:
            return
        self._renew_from_ms = now_ms + round(soon_ms)
        until_s, work = self._now_s + self._ack_timeout_ms / 1000, self._work

        def renewed(reply: commands.Reply) -> None:
            if isinstance(reply, commands.AckResults):
                is_lost = reply.of(lease.partition, lease.span) is AckResult.LOST
                work.renewed(lease, until_s, is_lost=is_lost)

        acks = [Acks(lease.partition, (lease.span,))]
        how = How(AcknowledgeType.RENEW, era=work.holdings.era)
        client.submit(self._command(how, acks), renewed)

    def _end(self, end: Callable[[], None]) -> None:
        self._reading, self._lease = None, None
        end()

    def _wait_for(self, error: Exception) -> bool:
        """Waits for records that are not there, or places that are not known, and goes on then;
        returns False if it has waited for too long."""
        setting = self.setting
        self._reading = None
        self._tries += 1
        if self._tries <= PATIENCE:
            setting.history.counts["reads of leases that waited"] += 1
            self._read_from_ms = setting.now_ms + self._draw.randint(*AGAIN_MS)
            return True
        self._unreadable(error)
        return False

    def _unreadable(self, error: Exception) -> None:
        self.setting.history.counts[f"leases not read: {type(error).__name__}"] += 1
        self.setting.history.unread.append(error)
        self.setting.note(self.name, "can't read", self._lease, repr(error))
        if isinstance(error, TopicRecreatedError):
            self._attach_from_ms = 0
            self._end(self._work.gone)
            return
        lease, era, is_lasting = self._lease, self._work.holdings.era, isinstance(error, _LASTING)
        told = self.setting.unreadable
        self._end(partial(self._work.unreadable, is_lasting=is_lasting))
        if is_lasting and lease is not None and lease.span.offset_count == 1 and told is not None:
            told(QUEUE, era, lease, error)

    def _change(self, client: Attachment) -> None:
        """Subscribes to other topics. What was not given out yet goes back."""
        self._end(self._work.put_back)
        self._topics = self._wanted_topics
        self._send(client)
        client.submit(self._attach(), self._ignore)
        self.setting.history.counts["subscriptions that were changed"] += 1

    def _begin_rest(self, client: Attachment) -> None:
        """Leaves the queue alone, as `ShareConsumer.rest` does. Messages that it has not dealt with
        go back as ones that nobody has seen."""
        setting, draw = self.setting, self.setting.resting
        assert draw is not None
        self._work.take_back(hand.key for hand in self._hands if self._look(hand) is not None)
        self._hands.clear()
        self._end(self._work.put_back)
        self._rests, self._rests_until_ms = True, setting.now_ms + draw.randint(*RESTS_MS)
        rest = self._rest = Resting(self._number, 2**63)

        def attached(reply: commands.Reply) -> None:
            if isinstance(reply, commands.Attached):
                rest.since = setting.history.tick()
            self._ignore(reply)

        client.submit(self._attach(), attached)
        self._send(client)
        setting.history.resting.append(rest)
        setting.history.counts["consumers of queues that rest"] += 1

    def _wake(self, client: Attachment) -> None:
        if self._rests:
            self._rests = False
            client.submit(self._attach(), self._ignore)
        if self._rest is not None:
            self._rest.end(self.setting.history.tick())
            self._rest = None

    def _close_consumer(self) -> None:
        """Closes the consumer as an application does; another one follows."""
        client, self._client = self._client, None
        assert client is not None, "it is there"
        self._accept_nothing()
        self._work.let_go()
        self._send(client)
        self._topics = ()
        client.submit(self._attach(), lambda _: client.close(CLOSED))
        self.later(200, lambda: client.close(CLOSED))
        self.setting.history.counts["consumers of queues closed"] += 1

    def _accept_nothing(self) -> None:
        self._hands.clear()
        self._reading, self._lease = None, None

    # ---- the application ------------------------------------------------------------------------

    def step(self) -> None:
        """Polls, and does something with what it has."""
        self.later(self._draw.randint(*STEP_MS), self.step)
        self.transactions = [t for t in self.transactions if not t.over]
        if self.session.failure is not None or self.session.connected is None:
            return
        if not self._binds:
            self._bind()
        if not self._bound or (self._stands_until_ms > self.setting.now_ms and not self.stopping):
            return
        if self.setting.workers_leave and not self.stopping:
            self._leave()
            self._end_some()
            return
        if self._has_left:
            self._has_left = False
            if self._client is not None:
                self._client.go_on()
        if self._client is None:
            self._new_consumer()
            self._subscribe()
            return
        if self._rests_until_ms > self.setting.now_ms and not self.stopping:
            self._end_some()
            return
        self._poll(self._client)
        if self._topics != self._wanted_topics and self._draw.random() < CHANGE_SHARE:
            self._change(self._client)
        self._end_some()
        if self._hands and self._is_explicit:
            self._deal_with_some()
        draw, client = self.setting.resting, self._client
        if draw is not None and client is not None and draw.random() < REST_SHARE:
            self._begin_rest(client)

    def _leave(self) -> None:
        """Leaves the queue as its operator asks: in good order, or as a process whose network is
        cut, and whose application goes on."""
        client = self._client
        if client is not None and not self._has_left:
            if self._draw.random() < 0.4:
                self._close_consumer()
            else:
                client.cut_off()
        self._has_left = True
        if (
            self._client is not None
            and self._hands
            and self._is_explicit
            and self._draw.random() < 0.3
        ):
            self._deal_with_some()

    @property
    def _wanted_topics(self) -> tuple[str, ...]:
        """The topics of the queue that exist."""
        exists = TEMPORARY in self.setting.topology.truth
        has_it = self.setting.queue_has_temporary and exists
        return (OUTPUT, TEMPORARY) if has_it else (OUTPUT,)

    def _ask_cursor(self) -> None:
        """Does nothing: a queue has no input offsets."""

    def _end_some(self) -> None:
        for transaction in self.transactions:
            # One that has not begun yet is to acknowledge something first.
            hangs = transaction.hangs_until_ms > self.setting.now_ms or transaction.txid is None
            if transaction.book.phase is Phase.OPEN and not hangs:
                wants = self.stopping or self._draw.random() < 0.7
                commits = transaction.book.takes_records and wants
                transaction.end(Action.COMMIT if commits else Action.ABORT)

    def _deal_with_some(self) -> None:
        draw, now_ms = self._draw, self.setting.now_ms
        hands = [hand for hand in self._hands if self.stopping or hand.from_ms <= now_ms]
        if not hands:
            return
        if draw.random() < IN_TRANSACTION_SHARE or self.stopping:
            self._work_off(draw.sample(hands, draw.randint(1, min(3, len(hands)))))
            return
        hand, drawn = draw.choice(hands), draw.random()
        if drawn < 0.35:
            self._say(hand, AcknowledgeType.ACCEPT)
        elif drawn < 0.45:
            for each in self._up_to(hand):
                self._note_said(each, rejected=False)
                self._hands.remove(each)
            if self._look(hand) is not None:
                self._work.accept_up_to(hand.key)
        elif drawn < 0.6:
            self._say(hand, AcknowledgeType.RELEASE, draw.choice(DELAYS_MS))
        elif drawn < 0.7:
            self._say(hand, AcknowledgeType.REJECT)
        elif drawn < 0.8:
            self._say(hand, AcknowledgeType.RENEW)
        elif drawn < 0.83:
            self._hands.clear()
            self._work.release_all(draw.choice(DELAYS_MS))
        elif drawn < 0.86:
            self._close_consumer()
        else:
            self.setting.history.counts["workers that stand still"] += 1
            self._stands_until_ms = self.setting.now_ms + draw.randint(*STANDS_MS)

    def _look(self, hand: Hand) -> Given | None:
        """Returns a message that the consumer holds; None if it does not, as it was acknowledged or
        is one of a topic that was created anew since."""
        holdings = self._work.holdings
        return None if holdings.is_another(hand.key, hand.record) else holdings.look(hand.key)

    def _up_to(self, hand: Hand) -> list[Hand]:
        """Returns a message and all before it, as the application has them."""
        if self._look(hand) is None:
            return []
        held = [each.record for each in self._work.holdings.up_to(hand.key).values()]
        return [each for each in self._hands if any(each.record is record for record in held)]

    def _say(self, hand: Hand, type_: AcknowledgeType, delay_ms: int = 0) -> None:
        if type_ is not AcknowledgeType.RENEW:
            self._hands.remove(hand)
        if self._look(hand) is None:
            return
        if type_ in (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT):
            self._note_said(hand, rejected=type_ is AcknowledgeType.REJECT)
        self._work.acknowledge(hand.key, type_, delay_ms)

    def _note_said(self, hand: Hand, *, rejected: bool) -> None:
        history = self.setting.history
        history.said.append(Said(self.name, hand.message, rejected, history.tick()))

    def _work_off(self, hands: list[Hand]) -> None:
        """Begins a transaction for messages; most are committed as soon as it has begun."""
        transaction = self.begin(self._draw.choice((400, 900)))
        self._plans[transaction] = hands
        if self.stopping or self._draw.random() < 0.6:
            transaction.is_step = True
        else:
            transaction.holds_input = True
            transaction.hangs_until_ms = self.setting.now_ms + self._draw.randint(*HELD_MS)

    def move_offsets(self, transaction: Transaction) -> None:
        """Writes the results of messages, and acknowledges these, in a transaction that has begun.

        What the application has dealt with otherwise since is left out.
        """
        letter = self._letters.get(transaction)
        if letter is not None and transaction.book.takes_records:
            self._write_letter(transaction, letter)
            return
        hands = [each for each in self._plans.pop(transaction, ()) if each in self._hands]
        if not transaction.book.takes_records or not hands:
            return
        if self._draw.random() < 0.15:
            hands = self._up_to(hands[0])
            self.setting.history.counts["cumulative acknowledgements in transactions"] += 1
        given: dict[RecordKey, Given] = {}
        for hand in hands:
            held = self._look(hand)
            self._hands.remove(hand)
            if held is not None and hand.key not in given:
                given[hand.key] = held
                self._write_result(transaction, hand.message)
        at_once = self._draw.random() < 0.5
        shares = [[*given.values()]] if at_once else [[each] for each in given.values()]
        for share in shares if given else ():
            self._ask(transaction, by_partition(share), share[0].era)
        self._work.accepted_elsewhere(given)

    def _write_result(self, transaction: Transaction, message: Message) -> None:
        transaction.produce((RESULTS, self._draw.randrange(RESULTS_USED)))
        transaction.work.results[transaction.work.own[-1]] = message

    def _write_letter(self, transaction: Transaction, letter: Letter) -> None:
        name = MessageId(*letter.given.span.hi)._replace(nth=letter.given.span.hi.nth - 1)
        self._write_result(transaction, Message(letter.given.partition, name))
        transaction.send_acks(QUEUE, [letter.given.acks], era=letter.given.era)

    def _ask(self, transaction: Transaction, acks: list[Acks], era: int) -> None:
        work, until_s = self._work, self._now_s + self._ack_timeout_ms / 1000
        number = work.ask(acks, self._now_s, until_s, era)

        def answered(error: LogtxError | None) -> None:
            work.answered(number, is_refused=error is not None)
            self.setting.history.counts["acknowledgements refused"] += error is not None

        delay_ms = self._draw.choice(DELAYS_MS)
        transaction.send_acks(QUEUE, acks, delay_ms=delay_ms, on_reply=answered, era=era)
        self.setting.history.counts["acknowledgements in transactions"] += 1

    def not_committed(self, transaction: Transaction) -> None:
        """Does nothing for messages, which are given out again, to anybody. A letter that was not
        written is written again when its message comes again."""
        letter = self._letters.pop(transaction, None)
        if letter is not None:
            self._work.not_written(letter, self._draw.choice(DELAYS_MS))

    def _closed(self, error: LogtxError) -> None:
        """Ends like an application whose producer is fenced: without a word, or in good order."""
        super()._closed(error)
        client = self._client
        if client is not None and self._draw.random() < 0.5:
            self._close_consumer()
        elif client is not None:
            client.close(CLOSED)
        self._accept_nothing()


CLOSED: Final = SessionClosedError("the consumer was closed")
