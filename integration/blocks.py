"""Read, process, write, exactly once: blocks of input, each in a transaction, redone by themselves.

    for block in logtx.process(consumer, producer, max_records=100):
        for message in block:
            block.produce("ledger", key=message.key(), value=message.value())

What happens to a block, and why nothing of the input is lost or doubled:

1. Messages are taken from the consumer, and with them the steps of the group's input offsets that
   they make (`Consumer.offset_steps`). If the group took partitions away meanwhile the block is
   thrown away: whoever has them now reads the same messages.
2. A transaction is begun and sent the steps, which carry the consumer's claim: a worker that lost
   its partitions is refused here at the latest, before it works for nothing.
3. The application has the block.
4. The transaction is asked to commit. With ``in_flight`` > 1 the next block begins meanwhile; its
   steps go on from this one's, so it can't commit unless this one does.
5. A transaction that does not commit: those before it are waited for, those behind it are aborted,
   and the consumer is rewound, which also settles what became of one whose outcome is unknown: the
   claim aborts what is undecided, and what is committed stands in the offsets that it returns.

Source: Transactional Messaging in Kafka, "Producer IDs and state groups".
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException, Message

from ..journal.errors import (
    BrokerError,
    ClaimFencedError,
    ConfigError,
    LogtxError,
    OffsetsConflictError,
    RetriableError,
    TransactionAbortedError,
    TransactionAbortOnlyError,
    TransactionCommittedError,
    TransactionStateError,
    UnknownOutcomeError,
    UnknownTransactionError,
)
from ..producer.transaction import Transaction

if TYPE_CHECKING:
    from ..consumer.consumer import Consumer
    from ..coordinator.protocol.commands import Outcome
    from ..journal.logs.interface import DeliveryCallback
    from ..journal.records.types import OffsetStep
    from ..producer.producer import Producer
    from ..producer.writer import Content, UserHeaders

_LOG = logging.getLogger(__name__)
SLICE_S: Final = 0.1
"""Longest wait for input before signals, `stop` and transactions in flight are looked at."""
PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 5.0
"""Before a block is redone: doubled each time, at random by half."""
REVOCATION_WAIT_S: Final = 5.0
"""How long a rebalance is kept waiting for the commits in flight. What is not decided by then is
aborted by the claim of the partitions' next holder."""
LEAVE_WAIT_S: Final = 30.0
"""How long the end of the loop may take: the abort of the block at hand, the commits in flight."""

_REDONE: Final = (
    RetriableError,
    ClaimFencedError,
    OffsetsConflictError,
    TransactionAbortedError,
    TransactionAbortOnlyError,
    UnknownOutcomeError,
    UnknownTransactionError,
)
"""What a transaction may end with, and its input is redone."""


class _RefusedError(Exception):
    """A block is to be redone, for this reason."""

    def __init__(self, reason: LogtxError) -> None:
        super().__init__(reason)
        self.reason = reason


class Block:
    """Messages to process, and the transaction that their output goes to.

    Iterating gives the messages, in the order in which the consumer delivered them.
    """

    __slots__ = ("_messages", "failure", "redone", "txn")

    def __init__(self, txn: Transaction, messages: Sequence[Message], redone: int) -> None:
        self.txn: Final = txn
        """The transaction, for what `produce` does not do (`branch`, say). It is committed when
        the loop comes back, if the application did not ask for that. Aborted by the application,
        the block comes again."""
        self.redone: Final = redone
        """How many blocks in a row failed just before this one: 0, unless it is redone."""
        self.failure: LogtxError | None = None
        """Why the transaction can't commit any more: what is still produced is not sent."""
        self._messages = messages

    def __iter__(self) -> Iterator[Message]:
        """The messages."""
        return iter(self._messages)

    def __len__(self) -> int:
        """How many messages."""
        return len(self._messages)

    def produce(
        self,
        topic: str,
        value: Content = None,
        key: Content = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: UserHeaders = None,
    ) -> None:
        """Write a record within the block's transaction; arguments as `Transaction.produce`.

        A transaction that failed (expired, say) raises nothing here: the block is redone when the
        loop comes back.

        Raises:
            ProducerFencedError: a newer producer took over.
            ConfigError: a header is named as one of logtx's own.
        """
        if self.failure is not None:
            return
        try:
            self.txn.produce(topic, value, key, partition, on_delivery, timestamp, headers)
        except TransactionStateError as error:
            if not self.txn.is_decided:
                raise
            self.failure = TransactionAbortedError(str(error))
        except _REDONE as error:
            self.failure = error
            # Without this record nobody may commit it, whoever asks for it.
            self.txn.abort_async()


def process(
    consumer: Consumer,
    producer: Producer,
    *,
    max_records: int = 100,
    in_flight: int = 1,
    timeout: float | None = None,
    linger: float = 0.05,
    retries: int = 10,
    stop: threading.Event | None = None,
) -> Generator[Block, None, None]:
    """Blocks of a consumer's input, each processed in a transaction of its own, exactly once.

    When the loop comes back for the next block, this one's output and input offsets are committed.
    One that does not commit comes again, alone or cut otherwise, after a growing pause; so the
    loop's body must do nothing but produce that it would mind doing twice. Leaving the loop
    (`break`, an exception) aborts the block at hand, and waits for those in flight; the consumer
    delivers again what was not committed. Kafka's events and records whose headers don't decode are
    logged and not in blocks.

    Args:
        consumer: with ``offsets.storage=transactions``, subscribed or assigned. While the loop runs
            nobody else reads from it.
        producer: whose transactions they are.
        max_records: messages of a block at most.
        in_flight: transactions undecided at most, the one at hand included. With more than 1 the
            next block is processed while the ones before are being committed.
        timeout: end after so many seconds without input; None: never.
        linger: seconds for which a block that is not full waits for more.
        retries: failures in a row, without a block that committed, before the last is raised.
        stop: when it is set, end after the block at hand.

    Raises:
        ConfigError: a bad argument, or a consumer whose offsets no transaction holds.
        GroupBoundError: the consumer group commits its offsets in another transaction group.
        ProducerFencedError, DoubleStartError: another producer has this name.
        ClaimFencedError: another consumer took over the partitions that `Consumer.assign` named.
        TransactionError, RetriableError: the last failure, once `retries` are used up; what could
            not be better the next time (RequestTooLargeError, say) at once.
        ConsumerError: as `Consumer.poll`.
    """
    if max_records < 1 or in_flight < 1 or retries < 0:
        raise ConfigError("max_records and in_flight must be at least 1, retries at least 0")
    if consumer.offsets_storage != "transactions":
        raise ConfigError("process() needs a consumer with offsets.storage=transactions")
    pipeline = _Pipeline(consumer, producer, max_records, in_flight, linger, retries)
    return pipeline.run(timeout, stop or threading.Event())


class _Flying(NamedTuple):
    """A block's transaction that was asked to commit."""

    txn: Transaction
    future: Future[Outcome]


class _Pipeline:
    """The blocks of one loop: one at hand, some in flight."""

    def __init__(
        self,
        consumer: Consumer,
        producer: Producer,
        max_records: int,
        in_flight: int,
        linger_s: float,
        retries: int,
    ) -> None:
        self._consumer = consumer
        self._producer = producer
        self._max_records = max_records
        self._in_flight = in_flight
        self._linger_s = linger_s
        self._retries = retries
        self._at_hand: Block | None = None
        self._flying: deque[_Flying] = deque()
        """Asked to commit and not known to be, oldest first."""
        self._failures = 0
        """In a row, since a block was committed."""

    def run(self, timeout_s: float | None, stop: threading.Event) -> Generator[Block, None, None]:
        """The loop's blocks."""
        # Before partitions are claimed, which goes to the group's own coordinator.
        self._producer.bind_group(self._consumer.group_id)
        self._consumer.before_revocation(self._await_decisions)
        # What was delivered before and not committed is input too.
        self._consumer.rewind(wait=False)
        clean = False
        try:
            while True:
                try:
                    block = self._next(timeout_s, stop)
                    if block is None:
                        self._reap(0)
                        clean = True
                        return
                    yield block
                    self._commit(block)
                except _RefusedError as refused:
                    self._redo(refused.reason, stop)
        finally:
            self._consumer.before_revocation(None)
            if not clean:
                self._leave()

    # Steps 1 and 2.

    def _next(self, timeout_s: float | None, stop: threading.Event) -> Block | None:
        while True:
            messages = self._fill(timeout_s, stop)
            if not messages:
                return None
            try:
                steps: list[OffsetStep] = self._consumer.offset_steps()
                break
            except ClaimFencedError as error:
                # Nothing failed; what is in flight of partitions that stayed is not disturbed.
                _LOG.info("block_thrown_away messages=%d reason=%s", len(messages), error)
                self._reap(0)
                self._consumer.rewind(wait=False)
        try:
            txn = self._producer.begin_transaction()
            self._at_hand = block = Block(txn, messages, self._failures)
            txn.send_offsets(self._consumer.group_id, steps)
        except _REDONE as error:
            raise _RefusedError(error) from error
        return block

    def _fill(self, timeout_s: float | None, stop: threading.Event) -> list[Message]:
        found: list[Message] = []
        now_s = time.monotonic()
        until_s = float("inf") if timeout_s is None else now_s + timeout_s
        while not stop.is_set():
            wait_s = max(0.0, min(until_s - now_s, SLICE_S))
            messages = self._consume(self._max_records - len(found), wait_s)
            now_s = time.monotonic()
            if messages and not found:
                until_s = now_s + self._linger_s
            found += messages
            # Commits that fail are noticed while there is no input, too.
            self._reap(self._in_flight)
            if len(found) >= self._max_records or now_s >= until_s:
                break
        return found

    def _consume(self, limit: int, wait_s: float) -> list[Message]:
        try:
            messages = self._consumer.consume(limit, wait_s)
        except (RetriableError, BrokerError) as error:
            raise _RefusedError(error) from error
        found = []
        for message in messages:
            event = message.error()
            if event is None:
                found.append(message)
            elif event.fatal():
                raise KafkaException(event)
            else:
                _LOG.warning("consumer_event topic=%s error=%s", message.topic(), event)
        return found

    # Step 4.

    def _commit(self, block: Block) -> None:
        if block.failure is not None:
            raise _RefusedError(block.failure)
        future = block.txn.commit_async()
        self._at_hand = None
        self._flying.append(_Flying(block.txn, future))
        self._reap(self._in_flight - 1)

    def _reap(self, left: int) -> None:
        """Wait until at most `left` are in flight; those that are decided are taken off anyway."""
        while self._flying:
            txn, future = self._flying[0]
            if len(self._flying) <= left and not future.done():
                return
            try:
                # The commit that was asked for; of one whose outcome is unknown it asks again.
                txn.commit()
            except _REDONE as error:
                raise _RefusedError(error) from error
            self._flying.popleft()
            self._failures = 0

    def _await_decisions(self) -> None:
        """Partitions are about to be given back: what is in flight of them first."""
        wait([flying.future for flying in self._flying], timeout=REVOCATION_WAIT_S)

    # Step 5.

    def _redo(self, reason: LogtxError, stop: threading.Event) -> None:
        # Those in flight before it may commit, which begins the count anew.
        self._undo(time.monotonic() + LEAVE_WAIT_S)
        self._failures += 1
        _LOG.warning("block_refused failures=%d reason=%r", self._failures, reason)
        self._consumer.rewind(wait=False)
        if self._failures > self._retries:
            raise reason
        pause_s = min(PAUSE_MIN_S * 2 ** (self._failures - 1), PAUSE_MAX_S)
        stop.wait(pause_s * (0.5 + random.random() / 2))

    def _undo(self, deadline_s: float) -> bool:
        """See all to their ends: commits as long as they succeed in order, aborts from there on.

        Returns:
            Whether all were committed.
        """
        aborting = False
        while self._flying:
            txn = self._flying.popleft().txn
            if not aborting:
                try:
                    txn.commit(max(0.0, deadline_s - time.monotonic()))
                    self._failures = 0
                except LogtxError as error:
                    _LOG.info("commit_failed error=%r", error)
                    aborting = True
                    # The coordinator refuses what goes on from it; what was not sent is given up.
                    for later in self._flying:
                        later.txn.abort_async()
            if aborting:
                self._abort(txn, deadline_s)
        block_at_hand, self._at_hand = self._at_hand, None
        if block_at_hand is not None:
            self._abort(block_at_hand.txn, deadline_s)
        return not aborting and block_at_hand is None

    def _abort(self, txn: Transaction, deadline_s: float) -> None:
        for _ in range(2):
            try:
                txn.abort(max(0.0, deadline_s - time.monotonic()))
            except TransactionCommittedError:
                # It goes on from nothing that was aborted: input of other partitions.
                return
            except TransactionStateError:
                # Its commit is on its way, and is decided by what became of those before it.
                with suppress(LogtxError):
                    txn.commit(max(0.0, deadline_s - time.monotonic()))
            except LogtxError as error:
                # Then the rewind's claim aborts it, or its timeout.
                _LOG.warning("abort_not_confirmed error=%r", error)
                return
            else:
                return

    def _leave(self) -> None:
        if not self._undo(time.monotonic() + LEAVE_WAIT_S):
            _LOG.info("left_before_the_block_was_committed group=%s", self._consumer.group_id)
        self._consumer.rewind(wait=False)
