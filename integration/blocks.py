"""Reads, processes and writes exactly once: a transaction per block of input, redone if it fails.

    for block in logtx.process(consumer, producer, max_records=100):
        for message in block:
            block.produce("ledger", key=message.key(), value=message.value())

What happens to a block, and why no input is lost or processed twice:

1. The pipeline takes messages from the consumer, and the steps of the group's input offsets that
   they make (`Consumer.offset_steps`). If the group took partitions away meanwhile, it drops the
   block: the partitions' new holder reads the same messages.
2. It begins a transaction and sends it the steps, which carry the consumer's claim. A worker that
   lost its partitions is refused here at the latest, before it works in vain.
3. The application processes the block.
4. The pipeline asks for the commit. With ``in_flight`` > 1 the next block begins meanwhile. Its
   steps continue from this block's steps, so it can't commit unless this block does.
5. If a transaction does not commit, the pipeline waits for those before it, aborts those after it,
   and rewinds the consumer. The rewind also settles an unknown outcome: its claim aborts what is
   undecided, and returns offsets that include what is committed.

Source: Transactional Messaging in Kafka, "Producer IDs and state groups".
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import wait
from typing import TYPE_CHECKING, Final, TypeGuard, cast, overload

from confluent_kafka import KafkaException, Message

from ..journal.errors import (
    ClaimFencedError,
    ConfigError,
    LogtxError,
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
    from ..consumer.consumer import Consumer
    from ..consumer.share_consumer import ShareConsumer
    from ..journal.records.types import OffsetStep
    from ..producer.producer import Producer
    from .queue_blocks import QueueBlock

_LOG = logging.getLogger(__name__)
REVOCATION_WAIT_S: Final = 5.0
"""How long a rebalance, and so the whole group, waits for the commits in flight. The claim of the
partitions' next holder aborts those that are undecided by then; they are redone."""


@overload
def process(
    consumer: Consumer,
    producer: Producer,
    *,
    max_records: int = ...,
    in_flight: int = ...,
    timeout: float | None = ...,
    linger: float = ...,
    retries: int = ...,
    stop: threading.Event | None = ...,
) -> Generator[Block, None, None]: ...
@overload
def process(
    consumer: ShareConsumer,
    producer: Producer,
    *,
    max_records: int = ...,
    in_flight: int = ...,
    timeout: float | None = ...,
    linger: float = ...,
    retries: int = ...,
    stop: threading.Event | None = ...,
) -> Generator[QueueBlock, None, None]: ...
def process(
    consumer: Consumer | ShareConsumer,
    producer: Producer,
    *,
    max_records: int = 100,
    in_flight: int = 1,
    timeout: float | None = None,
    linger: float = 0.05,
    retries: int = 10,
    stop: threading.Event | None = None,
) -> Generator[Block, None, None] | Generator[QueueBlock, None, None]:
    """Yields blocks of a consumer's input; each is processed exactly once, in its own transaction.

    When the loop asks for the next block, the output and the input offsets of this one are
    committed. If the commit fails, the same messages come again after a growing pause, possibly cut
    into other blocks; so apart from `Block.produce` the loop's body must do nothing that must not
    happen twice. Leaving the loop (`break`, an exception) aborts the block at hand and waits for
    those in flight; the consumer delivers again what was not committed. Kafka's events, and records
    whose headers don't decode, are logged and left out of the blocks.

    With a queue, acknowledgements are committed in place of offsets, and messages whose block
    failed come again to any of its consumers: see `QueueBlock`.

    Args:
        consumer: a consumer with ``offsets.storage=transactions``, subscribed or assigned; or a
            queue's with ``share.acknowledgement.mode=explicit``, subscribed. Nothing else may read
            from it while the loop runs.
        producer: begins the transactions.
        max_records: most messages in a block.
        in_flight: most undecided transactions, including the one at hand. With more than 1 the
            next block is processed while earlier ones are being committed.
        timeout: ends the loop after this many seconds without input; None never ends it.
        linger: seconds that a block which is not full waits for more messages.
        retries: failures in a row, without a committed block, before the last one is raised.
        stop: when set, the loop ends after the block at hand.

    Raises:
        ConfigError: a bad argument, or a consumer with another setting than these.
        GroupBoundError: the consumer group, or the queue, belongs to another transaction group.
        ProducerFencedError, DoubleStartError: another producer has this name.
        ClaimFencedError: another consumer took over the partitions that `Consumer.assign` named.
        TransactionError, RetriableError, KafkaException: the last failure, once `retries` are used
            up. A failure that a retry can't mend (for example RequestTooLargeError) is raised at
            once.
        ConsumerError, …: as for `Consumer.poll` or `ShareConsumer.poll`.
    """
    if max_records < 1 or in_flight < 1 or retries < 0:
        raise ConfigError("max_records and in_flight must be at least 1, retries at least 0")
    stop = stop or threading.Event()
    if _is_queue(consumer):
        from .queue_blocks import QueuePipeline  # Who has no queue does not pay for it.

        if not consumer.is_explicit:
            raise ConfigError("process() needs a queue with share.acknowledgement.mode=explicit")
        queue = QueuePipeline(consumer, producer, max_records, in_flight, linger, retries)
        return queue.run(timeout, stop)
    reader = cast("Consumer", consumer)
    if reader.offsets_storage != "transactions":
        raise ConfigError("process() needs a consumer with offsets.storage=transactions")
    pipeline = _Pipeline(reader, producer, max_records, in_flight, linger, retries)
    return pipeline.run(timeout, stop)


def _is_queue(consumer: Consumer | ShareConsumer) -> TypeGuard[ShareConsumer]:
    # Not by the class, which would have to be loaded.
    return not hasattr(consumer, "offset_steps")


class _Pipeline:
    """Runs the blocks of one loop: one at hand, some in flight."""

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
        self._flying: deque[Flying] = deque()
        """Transactions that were asked to commit and have no answer yet, oldest first."""
        self._failures = 0
        """Failures in a row since a block was committed."""

    def run(self, timeout_s: float | None, stop: threading.Event) -> Generator[Block, None, None]:
        """Yields the loop's blocks."""
        # Before partitions are claimed: a claim goes to the transaction group that the consumer
        # group is bound to.
        self._producer.bind_group(self._consumer.group_id)
        self._consumer.before_revocation(self._await_decisions)
        # Messages that were delivered earlier and not committed are input, too.
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
                except RefusedError as refused:
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
                # This is no failure: blocks in flight of partitions that stayed may still commit.
                _LOG.info("block_thrown_away messages=%d reason=%s", len(messages), error)
                self._reap(0)
                self._consumer.rewind(wait=False)
        try:
            txn = self._producer.begin_transaction()
            self._at_hand = block = Block(txn, messages, self._failures)
            txn.send_offsets(self._consumer.group_id, steps)
        except REDONE as error:
            raise RefusedError(error) from error
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
            # A failed commit must be noticed while there is no input, too.
            self._reap(self._in_flight)
            if len(found) >= self._max_records or now_s >= until_s:
                break
        return found

    def _consume(self, limit: int, wait_s: float) -> list[Message]:
        with taking_input():
            messages = self._consumer.consume(limit, wait_s)
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
            try:
                # Returns the answer to the commit asked for; asks again if its outcome is unknown.
                txn.commit()
            except REDONE as error:
                raise RefusedError(error) from error
            self._flying.popleft()
            self._failures = 0

    def _await_decisions(self) -> None:
        """Waits for the commits in flight, since the group is about to take partitions away."""
        wait([flying.future for flying in self._flying], timeout=REVOCATION_WAIT_S)

    # Step 5.

    def _redo(self, reason: KafkaException, stop: threading.Event) -> None:
        # Transactions in flight before the failed one may still commit, which resets the count.
        self._undo(time.monotonic() + LEAVE_WAIT_S)
        self._failures += 1
        _LOG.warning("block_refused failures=%d reason=%r", self._failures, reason)
        self._consumer.rewind(wait=False)
        if self._failures > self._retries:
            raise reason
        stop.wait(pause_s(self._failures))

    def _undo(self, deadline_s: float) -> bool:
        """Ends all transactions: commits in order until one fails, aborts that one and all later.

        Returns:
            Whether all were committed, and no block was at hand.
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
                    # The coordinator refuses commits that continue from the failed one; those not
                    # sent yet are given up here.
                    for later in self._flying:
                        later.txn.abort_async()
            if aborting:
                self._abort(txn, deadline_s)
        block_at_hand, self._at_hand = self._at_hand, None
        if block_at_hand is not None:
            self._abort(block_at_hand.txn, deadline_s)
        return not aborting and block_at_hand is None

    def _abort(self, txn: Transaction, deadline_s: float) -> None:
        abort(txn, _LOG, max(0.0, deadline_s - time.monotonic()))

    def _leave(self) -> None:
        if not self._undo(time.monotonic() + LEAVE_WAIT_S):
            _LOG.info("left_before_the_block_was_committed group=%s", self._consumer.group_id)
        self._consumer.rewind(wait=False)
