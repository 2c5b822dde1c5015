"""The half of a queue's consumer that any thread may call: what became of its messages."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, cast

from confluent_kafka import Message, Producer

from ..coordinator.protocol.queues import AcknowledgeType
from ..journal.acks import Acks
from ..journal.errors import (
    AckConflictError,
    ConfigError,
    GroupBoundError,
    LogtxError,
    NotHeldError,
    SubscriptionResetError,
)
from .core.counters import ShareCounters
from .core.letters import check_reason, pause_ms, rejected
from .core.pending import Record
from .core.runs import Given, RecordKey, by_partition
from .core.share_work import ShareWork
from .dead_letters import Acknowledging, Beginning, DeadLetters
from .lifetime import weakly
from .outbox import Outbox
from .share_config import ShareConfig

REDELIVERY_MAX_MS: Final = 60_000
"""Longest pause before what an aborted transaction had is given out again. A longer one delays what
waits for somebody's repair, a shorter one tries more often in vain."""
DELAY_MAX_S: Final = 30 * 86_400
"""Longest delay that an application may name. A longer one is most likely another unit."""
_NUMBERS: Final = {1: "ACCEPT", 2: "RELEASE", 3: "REJECT", 4: "RENEW"}
"""Kafka's numbers of acknowledgement types."""
_ACCEPT: Final = AcknowledgeType.ACCEPT


class Acknowledger:
    """Keeps the messages that were given to the application, until it says what became of them.

    Any thread may call it.
    """

    def __init__(self, config: ShareConfig, producer: Beginning | None) -> None:
        """Holds nothing.

        Args:
            config: the settings.
            producer: begins the transactions of dead letters.

        Raises:
            ConfigError: a dead-letter topic is named without a producer.
        """
        self._config = config
        self.group_id = config.group_id
        self._number = random.SystemRandom().getrandbits(63)
        self._counters = ShareCounters()
        self._dead_letters: DeadLetters | None = None
        topic = config.dead_letter_topic
        if topic is not None:
            if producer is None:
                raise ConfigError(
                    "errors.deadletterqueue.topic.name needs a producer, which writes there: make"
                    " it ShareConsumer(config, producer=logtx.Producer(…))"
                )
            if isinstance(producer, Producer):
                raise TypeError("dead letters are written in transactions: make a logtx.Producer")
            self._dead_letters = DeadLetters(topic, self.group_id, producer, self._counters)
        self._lock = threading.Lock()
        """Guards the work, and what `ShareConsumer` adds. Nothing that holds it waits."""
        self._work = ShareWork(delivery_limit=config.delivery_limit)
        self._outbox = Outbox(
            self.group_id, self._number, self._work, self._lock, self._dead_letters
        )

    def delivery_count(self, message: Message) -> int:
        """Returns how often a message was given out, this time included, as far as the coordinator
        knows: a new one begins to count anew.

        Raises:
            NotHeldError: the message is not this consumer's, or acknowledged.
            SubscriptionResetError: the subscription was reset since it was given out.
        """
        with self._lock:
            given = self._work.holdings.look(self._key_of(message))
        if given is None:
            raise self._not_held(key_of(message))
        return given.delivery_count

    def is_held(self, message: Message) -> bool:
        """Returns whether a message is this consumer's, and not acknowledged."""
        key, holdings = key_of(message), self._work.holdings
        with self._lock:
            is_another = holdings.is_another(key, cast("Record", message))
            return not is_another and holdings.look(key) is not None

    @property
    def is_explicit(self) -> bool:
        """Whether the application says of each message what became of it."""
        return self._config.is_explicit

    @property
    def delivery_limit(self) -> int:
        """How often a message is given to applications; 0: without end."""
        return self._config.delivery_limit

    @property
    def ack_timeout(self) -> float:
        """How long a message is a consumer's, in seconds."""
        return self._config.ack_timeout_ms / 1000

    def stats(self) -> dict[str, int]:
        """Returns what this consumer did, by name: see `ShareCounters`."""
        return self._counters.as_dict()

    # ---- acknowledgements -----------------------------------------------------------------------

    def acknowledge(
        self,
        message: Message,
        ack_type: AcknowledgeType | Enum | int = AcknowledgeType.ACCEPT,
        *,
        txn: Acknowledging | None = None,
        delay: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Says what became of a message.

        Args:
            message: one that `poll` returned.
            ack_type: ACCEPT: it is worked off. REJECT: it can't be, by nobody, so it becomes a dead
                letter. RELEASE: give it out again. RENEW: it is being worked on, so its time begins
                anew. Or confluent-kafka's, or its number.
            txn: accept or reject it in this transaction: it counts with the commit, and if that
                aborts, it is given out again. Without it, what was said is sent by the next `poll`,
                or a moment behind it, `commit_sync` or `commit_async`.
            delay: with RELEASE, and with a transaction if that aborts: how long nobody gets it, in
                seconds. None: with RELEASE 0, else as ``redelivery.delay.ms`` says.
            reason: with REJECT: why, for the dead letter.

        Raises:
            NotHeldError: the message is not this consumer's, or acknowledged.
            SubscriptionResetError: the subscription was reset or deleted since it was given out.
            ValueError: these arguments don't go together, or not with the implicit mode.
            TypeError: an argument is of another type.
            GroupBoundError: the transaction is of another transaction group than the subscription.
            AckConflictError, TransactionStateError, …: as `Transaction.send_acks`.
        """
        if ack_type is _ACCEPT and txn is None and delay is None and reason is None:
            # Most are said in this way, one by one: so little is called for each.
            it: Any = message
            try:
                with self._lock:
                    is_held = self._work.accept(it.topic(), it.partition(), it.offset(), it)
            except AttributeError:
                key_of(message)  # Says so if it is no message.
                raise
            if not is_held:
                raise self._not_held(key_of(message))
            return
        type_ = self._check_type(ack_type, txn, delay, reason)
        with self._lock:
            key = self._key_of(message)
        self._acknowledge(key, type_, txn, delay, reason)

    def acknowledge_offset(
        self,
        topic: str,
        partition: int,
        offset: int,
        ack_type: AcknowledgeType | Enum | int = AcknowledgeType.ACCEPT,
        *,
        txn: Acknowledging | None = None,
        delay: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Says what became of the message that is at an offset. See `acknowledge`.

        Raises:
            NotHeldError: there is none that is this consumer's, or it is acknowledged.
            SubscriptionResetError, ValueError, TypeError, AckConflictError, …: as `acknowledge`.
        """
        type_ = self._check_type(ack_type, txn, delay, reason)
        if not isinstance(topic, str) or not all(type(n) is int for n in (partition, offset)):
            raise TypeError(f"a message is a topic, a partition and an offset, not {topic!r}, …")
        if partition < 0 or offset < 0:
            raise ValueError(f"no message of {topic}[{partition}] is at {offset}")
        self._acknowledge((topic, partition, offset), type_, txn, delay, reason)

    def _check_type(
        self,
        ack_type: AcknowledgeType | Enum | int,
        txn: Acknowledging | None,
        delay: float | None,
        reason: str | None,
    ) -> AcknowledgeType:
        type_ = _type_of(ack_type)
        accepts, releases, rejects = (
            type_ is each
            for each in (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
        )
        if (
            (txn is not None and not (accepts or rejects))
            or (delay is not None and not (releases or txn is not None))
            or (reason is not None and not rejects)
        ):
            raise ValueError(
                "ACCEPT and REJECT go with a transaction, a delay with RELEASE or a transaction,"
                " and a reason with REJECT"
            )
        if delay is not None and not 0 <= delay <= DELAY_MAX_S:
            raise ValueError(f"a delay is 0 to {DELAY_MAX_S:,} seconds")
        check_reason(reason)
        if txn is not None:
            self._check_txn(txn)
        elif type_ is AcknowledgeType.RENEW:
            self._check_explicit()
        return type_

    def _acknowledge(
        self,
        key: RecordKey,
        type_: AcknowledgeType,
        txn: Acknowledging | None,
        delay: float | None,
        reason: str | None,
    ) -> None:
        with self._lock:
            given = self._work.holdings.look(key)
            # What a transaction refuses is held as before.
            if txn is None:
                self._work.acknowledge(key, type_, round((delay or 0) * 1000), reason)
        if given is None:
            raise self._not_held(key)
        if txn is None:
            self._counters.rejected_records += type_ is AcknowledgeType.REJECT
            return
        if type_ is AcknowledgeType.REJECT:
            self.reject_within(txn, key, given, reason)
        self._send_acks(txn, {key: given}, delay)

    def acknowledge_cumulative(self, message: Message, *, txn: Acknowledging | None = None) -> None:
        """Accepts a message, and all of its partition that this consumer was given before it.

        Passes over what others have: it names what this consumer holds.

        Raises:
            NotHeldError: the message is not this consumer's, or acknowledged.
            SubscriptionResetError, AckConflictError, …: as `acknowledge`.
        """
        if txn is not None:
            self._check_txn(txn)
        with self._lock:
            key = self._key_of(message)
            found = self._work.holdings.up_to(key)
            if txn is None:
                self._work.accept_up_to(key)
        if not found:
            raise self._not_held(key)
        if txn is not None:
            self._send_acks(txn, found, None)

    def acknowledge_all(
        self, messages: Iterable[Message], *, txn: Acknowledging
    ) -> Mapping[RecordKey, Given]:
        """Accepts messages in a transaction, all of them or none. See `acknowledge`.

        Returns:
            How they were given out.

        Raises:
            NotHeldError: one of them is not this consumer's, or acknowledged.
            ValueError: it does not go with the implicit mode.
            SubscriptionResetError, AckConflictError, …: as `acknowledge`.
        """
        self._check_txn(txn)
        with self._lock:
            keys = list(map(self._key_of, messages))
            looked = ((key, self._work.holdings.look(key)) for key in keys)
            found = {key: given for key, given in looked if given is not None}
        for key in keys:
            if key not in found:
                raise self._not_held(key)
        self._send_acks(txn, found, None)
        return found

    def reject_within(
        self, txn: Acknowledging, key: RecordKey, given: Given, reason: str | None
    ) -> None:
        """Writes a dead letter in a transaction that acknowledges its message; without a topic for
        them, logs that the message is given up.

        Raises:
            TransactionStateError, …: as `Transaction.produce`.
        """
        self._counters.rejected_records += 1
        letter = rejected(key, given, reason)
        if self._dead_letters is None:
            self._outbox.log_given_up(letter)
        else:
            self._dead_letters.put(txn, letter)

    def delay_within(self, txn: Acknowledging, given: Iterable[Given], delay: float) -> None:
        """Says how long nobody gets messages that a transaction has acknowledged, if it aborts.

        Args:
            txn: the transaction.
            given: the messages.
            delay: seconds.

        Raises:
            TransactionStateError, …: as `Transaction.send_acks`.
        """
        for era, some in _by_era(given).items():
            txn.send_acks(self.group_id, by_partition(some), delay=delay, era=era)

    def _key_of(self, message: Message) -> RecordKey:
        """Returns the name of a message that the application has. Call it with the lock.

        Raises:
            NotHeldError: it is of a topic that was created anew since.
            SubscriptionResetError: it was given out before the subscription was reset.
        """
        key = key_of(message)
        if self._work.holdings.is_another(key, cast("Record", message)):
            raise self._not_held(key)
        return key

    def _not_held(self, key: RecordKey) -> LogtxError:
        topic, partition, offset = key
        what = f"the message of {topic}[{partition}] at {offset}"
        if self._work.holdings.was_dropped(key):
            return SubscriptionResetError(
                f"{what} was given out before subscription {self.group_id!r} was reset or deleted:"
                " it can't be acknowledged any more"
            )
        return NotHeldError(
            f"{what} is not held here: it was acknowledged, or not given to this consumer"
        )

    def _check_explicit(self) -> None:
        # The next poll would accept what the transaction did not get, or what is still worked on.
        if not self._config.is_explicit:
            raise ValueError(
                "set share.acknowledgement.mode=explicit: in implicit mode the next poll accepts"
                " what this one returned, whatever becomes of the transaction"
            )

    def _check_txn(self, txn: Acknowledging) -> None:
        """Checks that a transaction may acknowledge messages of this consumer.

        Raises:
            ValueError: not with the implicit mode.
            TypeError: it is none of logtx.
            GroupBoundError: the subscription belongs to another transaction group.
        """
        if not hasattr(txn, "send_acks"):
            raise TypeError(f"txn is a transaction of a logtx.Producer, not {txn!r}")
        self._check_explicit()
        ours, theirs = self._config.transaction_group, txn.transaction_group
        if theirs != ours:
            raise GroupBoundError(
                f"subscription {self.group_id!r} belongs to transaction group {ours!r}, this"
                f" transaction to {theirs!r}: set the producer's transaction.group to {ours!r}"
            )

    def _send_acks(
        self, txn: Acknowledging, given: Mapping[RecordKey, Given], delay: float | None
    ) -> None:
        asked: dict[tuple[int, float], list[Given]] = {}
        for each in given.values():
            pause_s = self._pause_s(each) if delay is None else delay
            asked.setdefault((each.era, pause_s), []).append(each)
        for (era, pause_s), some in asked.items():
            self._ask(txn, by_partition(some), pause_s, era)
        with self._lock:
            self._work.accepted_elsewhere(given)

    def _ask(self, txn: Acknowledging, acks: list[Acks], delay: float, era: int) -> None:
        now_s = time.monotonic()
        with self._lock:
            number = self._work.ask(acks, now_s, now_s + self.ack_timeout, era)
        answered = partial(weakly(self._answered), number)
        try:
            txn.send_acks(self.group_id, acks, delay=delay, on_reply=answered, era=era)
        except BaseException:
            # It was not asked. The messages are held as before.
            with self._lock:
                self._work.answered(number, is_refused=False)
            raise

    def _answered(self, number: int, error: LogtxError | None) -> None:
        with self._lock:
            self._counters.conflicts += isinstance(error, AckConflictError)
            self._work.answered(number, is_refused=error is not None)

    def _pause_s(self, given: Given) -> float:
        count, delay_ms = given.delivery_count, self._config.redelivery_delay_ms
        return pause_ms(count, delay_ms, REDELIVERY_MAX_MS) / 1000

    def release_all(self, delay: float = 0.0) -> None:
        """Gives back all that it was given and has not acknowledged.

        Args:
            delay: how long nobody gets it, in seconds.
        """
        with self._lock:
            self._work.release_all(round(delay * 1000))

    def give_back(self, messages: Iterable[Message]) -> None:
        """Releases messages that nobody has looked at: this delivery of them does not count."""
        with self._lock:
            self._work.take_back(map(key_of, messages))


def key_of(message: Message) -> RecordKey:
    """Returns the name of a message that was polled.

    Raises:
        TypeError: it is none.
    """
    try:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
    except AttributeError:
        raise _no_message(message) from None
    if topic is None or partition is None or offset is None:
        raise _no_message(message)
    return topic, partition, offset


def _no_message(it: object) -> TypeError:
    return TypeError(f"a message is one that poll returned, not {it!r}")


def _by_era(given: Iterable[Given]) -> dict[int, list[Given]]:
    """Returns era → messages that were given out in it: nearly always there is one."""
    found: dict[int, list[Given]] = {}
    for each in given:
        found.setdefault(each.era, []).append(each)
    return found


def _type_of(ack_type: AcknowledgeType | Enum | int) -> AcknowledgeType:
    """Returns a type of ours for one of ours, confluent-kafka's, or its number.

    Raises:
        TypeError, ValueError: it is none.
    """
    if isinstance(ack_type, AcknowledgeType):
        return ack_type
    if isinstance(ack_type, bool) or not isinstance(ack_type, int | Enum):
        raise TypeError(f"an acknowledgement has an AcknowledgeType, not {ack_type!r}")
    name = ack_type.name if isinstance(ack_type, Enum) else _NUMBERS.get(ack_type, "")
    if name not in AcknowledgeType.__members__:
        raise ValueError(f"no type of acknowledgements is {ack_type!r}: take an AcknowledgeType")
    return AcknowledgeType[name]
