"""Works a queue off exactly once: a transaction per block of messages, given out again if it fails.

    for block in logtx.process(queue, producer, max_records=100):
        for message in block:
            block.produce("invoices", value=invoice(message))

What happens to a block, and why no message is lost or worked off twice:

1. The pipeline takes messages from the queue. One that was given out before is a block of its own.
   So if it fails again, it takes no other one along, and none reaches the limit of deliveries
   because of its neighbours.
2. It begins a transaction and acknowledges the messages in it. From then on nobody else gets them
   while the transaction lives, however long the work takes. If one of them was acknowledged by
   somebody else meanwhile, nothing of the block can commit.
3. The application processes the block. What it rejects becomes a dead letter in the same
   transaction.
4. The pipeline asks for the commit: one decision makes the outputs count, deletes the messages, and
   makes the dead letters count. With ``in_flight`` > 1 the next block begins meanwhile.
5. If a transaction does not commit, its messages are free as soon as it is aborted, and come again
   after a pause that grows with their deliveries. No other block depends on it: acknowledgements,
   unlike offsets, have no order. An unknown outcome needs no answer either: what is committed does
   not come again.

Source: PIP-31, "Acknowledgements in Transactions".
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, Message

from ..consumer.acknowledger import key_of
from ..consumer.core.letters import check_reason
from ..coordinator.protocol.queues import AcknowledgeType
from ..journal.errors import (
    AckConflictError,
    LogtxError,
    NotHeldError,
    SubscriptionResetError,
    TransactionStateError,
)
from ..producer.transaction import Transaction
from .block import (
    LEAVE_WAIT_S,
    REDONE,
    SLICE_S,
    Block,
    Flying,
    RefusedError,
    abort,
    pause_s,
    taking_input,
)

if TYPE_CHECKING:
    from ..consumer.core.runs import Given, RecordKey
    from ..consumer.share_consumer import ShareConsumer
    from ..producer.producer import Producer

_LOG = logging.getLogger(__name__)


class QueueBlock(Block):
    """Holds messages of a queue, and the transaction of their outputs and acknowledgements.

    ``redone`` is how often its messages were given out before.
    """

    __slots__ = ("_given", "_queue", "released")

    def __init__(
        self,
        txn: Transaction,
        messages: Sequence[Message],
        queue: ShareConsumer,
        given: Mapping[RecordKey, Given],
    ) -> None:
        super().__init__(txn, messages, max(each.delivery_count for each in given.values()) - 1)
        self.released = False
        """Whether the application gave the messages back."""
        self._queue, self._given = queue, dict(given)

    def reject(self, message: Message, reason: str | None = None) -> None:
        """Gives up a message of the block: nobody can work it off. The others go on.

        Within the block's transaction it becomes a dead letter; without a dead-letter topic it is
        deleted, and logged. What was produced for it is not taken back.

        Args:
            message: one of the block's.
            reason: why, for the dead letter.

        Raises:
            NotHeldError: it is no message of the block, or rejected already.
            TypeError: `reason` is no text.
            TransactionStateError, ConfigError, …: as `produce`.
        """
        check_reason(reason)
        key = key_of(message)
        given = self._given.pop(key, None)
        if given is None:
            raise NotHeldError(
                f"{key[0]}[{key[1]}] at {key[2]} is no message of this block, or rejected already"
            )
        if self.failure is not None:
            return
        try:
            self._queue.reject_within(self.txn, key, given, reason)
        except TransactionStateError as error:
            self._came_late(error)
        except REDONE as error:
            self._must_not_commit(error)

    def release(self, delay: float | None = None) -> None:
        """Gives all messages of the block back: its transaction is aborted, and they come again.

        Unlike `Transaction.abort` this is no failure of the loop.

        Args:
            delay: how long nobody gets them, in seconds; None: as ``redelivery.delay.ms`` says.
        """
        self.released = True
        # If the transaction has failed, it is aborted anyway.
        with suppress(*REDONE):
            if delay is not None and self.txn.is_open:
                self._queue.delay_within(self.txn, self._given.values(), delay)
        self.txn.abort_async()


class QueuePipeline:
    """Runs the blocks of one loop: one at hand, some in flight."""

    def __init__(
        self,
        queue: ShareConsumer,
        producer: Producer,
        max_records: int,
        in_flight: int,
        linger_s: float,
        retries: int,
    ) -> None:
        """Begins nothing. The arguments are those of `process`."""
        self._queue = queue
        self._producer = producer
        self._max_records = max_records
        self._in_flight = in_flight
        self._linger_s = linger_s
        self._retries = retries
        self._waiting: deque[Message] = deque()
        """Messages that the queue gave, and that are in no block yet."""
        self._renew_s = 0.0
        """Monotonic time at which their leases are to begin anew."""
        self._at_hand: QueueBlock | None = None
        self._flying: deque[Flying] = deque()
        """Transactions that were asked to commit and have no answer yet, oldest first."""
        self._failures = 0
        """Failures in a row since a block was committed."""

    def run(
        self, timeout_s: float | None, stop: threading.Event
    ) -> Generator[QueueBlock, None, None]:
        """Yields the loop's blocks."""
        self._producer.bind_group(self._queue.group_id)
        try:
            while True:
                try:
                    block = self._next(timeout_s, stop)
                    if block is None:
                        self._reap(0)
                        return
                    yield block
                    self._commit(block)
                except RefusedError as refused:
                    self._fail(refused.reason, stop)
        finally:
            self._leave()

    # Steps 1 and 2.

    def _next(self, timeout_s: float | None, stop: threading.Event) -> QueueBlock | None:
        try:
            messages = self._fill(timeout_s, stop)
        except SubscriptionResetError as error:
            self._drop_lost()
            raise RefusedError(error) from error
        if not messages:
            return None
        try:
            txn = self._producer.begin_transaction()
            try:
                given = self._queue.acknowledge_all(messages, txn=txn)
            except BaseException:
                txn.abort_async()
                raise
        except BaseException as error:
            self._waiting.extendleft(reversed(messages))
            self._drop_lost()
            if isinstance(error, REDONE):
                raise RefusedError(error) from error
            raise
        self._at_hand = block = QueueBlock(txn, messages, self._queue, given)
        return block

    def _drop_lost(self) -> None:
        """Drops what waits and is not the queue's any more: an operator has reset it."""
        self._waiting = deque(each for each in self._waiting if self._queue.is_held(each))

    def _fill(self, timeout_s: float | None, stop: threading.Event) -> list[Message]:
        now_s = time.monotonic()
        until_s = float("inf") if timeout_s is None else now_s + timeout_s
        if self._waiting:
            until_s = now_s + self._linger_s
        while not stop.is_set():
            block = self._cut(at_once=now_s >= until_s)
            if block or now_s >= until_s:
                return block
            is_first = not self._waiting
            self._waiting += self._poll(max(0.0, min(until_s - now_s, SLICE_S)))
            now_s = time.monotonic()
            if is_first and self._waiting:
                until_s = now_s + self._linger_s
            # A failed commit must be noticed while there is no input, too.
            self._reap(self._in_flight)
        return []

    def _cut(self, *, at_once: bool) -> list[Message]:
        """Takes the next block; nothing if there is none yet, or it may still become larger."""
        self._keep()
        waiting = self._waiting
        if waiting and self._comes_alone(waiting[0]):
            return [waiting.popleft()]
        next_ones = islice(waiting, self._max_records)
        together = list(takewhile(lambda each: not self._comes_alone(each), next_ones))
        is_full = len(together) >= self._max_records or len(together) < len(waiting)
        if not (is_full or at_once):
            return []
        return [waiting.popleft() for _ in together]

    def _comes_alone(self, message: Message) -> bool:
        return self._queue.delivery_count(message) > 1 or self._queue.delivery_limit == 1

    def _keep(self) -> None:
        """Begins the time of what waits anew, when half of it is over."""
        now_s = time.monotonic()
        if self._waiting and now_s >= self._renew_s:
            self._renew_s = now_s + self._queue.ack_timeout / 2
            for message in self._waiting:
                self._queue.acknowledge(message, AcknowledgeType.RENEW)
            self._queue.commit_async()

    def _poll(self, wait_s: float) -> list[Message]:
        if not self._waiting:
            self._renew_s = time.monotonic() + self._queue.ack_timeout / 2
        with taking_input():
            return self._queue.poll(wait_s, max_records=self._max_records)

    # Step 4.

    def _commit(self, block: QueueBlock) -> None:
        if block.released:
            self._at_hand = None
            return
        if block.failure is not None:
            raise RefusedError(block.failure)
        future = block.txn.commit_async()
        self._at_hand = None
        self._flying.append(Flying(block.txn, future))
        self._reap(self._in_flight - 1)

    def _reap(self, left: int) -> None:
        """Waits until at most `left` are in flight; also removes the oldest that are decided."""
        while self._flying:
            txn, future = self._flying[0]
            if len(self._flying) <= left and not future.done():
                return
            self._flying.popleft()
            try:
                # Returns the answer to the commit asked for; asks again if its outcome is unknown.
                txn.commit()
            except AckConflictError as error:
                # Somebody else worked them off, or is to do it again: that is no failure.
                _LOG.info("block_thrown_away reason=%s", error)
                abort(txn, _LOG, LEAVE_WAIT_S)
            except REDONE as error:
                abort(txn, _LOG, LEAVE_WAIT_S)
                raise RefusedError(error) from error
            else:
                self._failures = 0

    # Step 5.

    def _fail(self, reason: KafkaException, stop: threading.Event) -> None:
        block, self._at_hand = self._at_hand, None
        if block is not None:
            abort(block.txn, _LOG, LEAVE_WAIT_S)
        if isinstance(reason, AckConflictError):
            _LOG.info("block_thrown_away reason=%s", reason)
            return
        self._failures += 1
        _LOG.warning("block_refused failures=%d reason=%r", self._failures, reason)
        if self._failures > self._retries:
            raise reason
        stop.wait(pause_s(self._failures))

    def _leave(self) -> None:
        """Commits what was asked to, aborts what is at hand, and gives back what waits."""
        deadline_s = time.monotonic() + LEAVE_WAIT_S
        block, self._at_hand = self._at_hand, None
        if block is not None:
            abort(block.txn, _LOG, LEAVE_WAIT_S)
        while self._flying:
            txn = self._flying.popleft().txn
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                txn.commit(left_s)
            except LogtxError as error:
                _LOG.info("commit_failed error=%r", error)
                abort(txn, _LOG, max(0.0, deadline_s - time.monotonic()))
        waiting, self._waiting = self._waiting, deque()
        try:
            self._queue.rest(waiting)
        except LogtxError as error:
            # It is closed, or another thread polls: then that one gives it back.
            _LOG.info("not_given_back_at_once error=%r", error)
