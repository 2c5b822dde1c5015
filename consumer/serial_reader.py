"""Delivers in serial order: joins the journal's tail to the data partitions.

Serves ``isolation.level=serializable`` and `Consumer.transactions()`.

This is a thin shell around `SerialOrder`, which decides what may be delivered. `work` reads the
journal and `fetch` the data partitions. There are two ways out: `take` returns the records of the
transaction whose turn it is, a few at a time, and `next` returns that transaction as one. It needs
the log and no coordinator.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

from confluent_kafka import KafkaException, Message

from ..journal.control import TopicPartition
from ..journal.errors import BrokerError, JournalError, LogtxError
from ..journal.logs.interface import Log
from ..journal.position import Position
from ..journal.reader import JOURNAL_TOPIC, RecordsTrimmedError, journal_partition_of
from ..journal.txid import TxId
from ..journal.value import value
from .assigned import Assigned, StartedAt
from .config import ConsumerConfig
from .core.counters import ConsumerCounters
from .core.entries import EndedTransaction
from .core.looks import LOOK_TIMEOUT_S, OFFSET_TIMEOUT_S
from .core.pending import Record
from .core.pointers import PointedTransaction
from .core.serial_buffer import SerialBuffer
from .core.serial_order import CommitDecision, SerialOrder, Whole
from .journal_tail import JournalTail
from .malformed import malformed_event
from .reading import (
    AHEAD_MAX_RECORDS,
    FETCH_EVERY_S,
    FETCH_MAX_RECORDS,
    Reading,
)

_LOG = logging.getLogger(__name__)
WAIT_S: Final = 0.005
"""Longest wait for data before the journal is read again. A longer one delays the delivery of what
the journal has decided, a shorter one costs CPU on an idle consumer."""
STALLED_S: Final = 60.0
"""How long the records of a transaction wait for a sidecar that gives none. With a longer time the
application hears later that its brokers are away, with a shorter one more often."""


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A committed transaction, with all its records in this consumer's partitions.

    Source: Transactional Messaging in Kafka, "What is transactional messaging?", atomicity and
    ordering.
    """

    txid: TxId
    commit_sequence: int
    """Its place in the serial order of the transaction group."""
    timestamp: int
    """The coordinator's wall clock at the decision, in milliseconds since 1970. -1 if reading of
    the journal began above the decision, because the decision was trimmed or the consumer stood
    still for long."""
    complete: bool
    """Whether `partitions` are all partitions with records of the transaction. False also if some
    of them were delivered before, and if that can't be told, with `timestamp` -1."""
    partitions: tuple[TopicPartition, ...]
    """Data partitions that the records come from."""
    records: Iterator[Message]
    """Its records, partition by partition, in offset order. Spilled ones are read from disk a piece
    at a time, and those in sidecars from the brokers. They can be read once, and only until the
    next transaction is asked for."""


@value(frozen=True, slots=True)
class _Share:
    """A transaction's records in one partition."""

    key: TopicPartition
    buffer: SerialBuffer
    entry: EndedTransaction


class SerialReader:
    """Delivers what `Reading` reads, in the serial order of a transaction group."""

    def __init__(
        self, log: Log, config: ConsumerConfig, reading: Reading, counters: ConsumerCounters
    ) -> None:
        """Finds the journal partition. `reading` must make its buffers by `make_buffer`.

        Raises:
            UnknownTopicError: there is no journal.
            BrokerError: the broker did not answer.
        """
        info = log.topic_info(JOURNAL_TOPIC, timeout_s=OFFSET_TIMEOUT_S)
        partition = journal_partition_of(config.transaction_group, info.partition_count)
        self._log = log
        self._config = config
        self._counters = counters
        self._reading = reading
        self._order = SerialOrder(counters)
        self._tail = JournalTail(
            log, partition, config.librdkafka_quiet, self._order, reading.following.homes_of
        )
        self._buffers: dict[TopicPartition, SerialBuffer] = {}
        self._changes = -1
        """Value of `Reading.changes` for which `_buffers` was made."""
        self._shares: deque[_Share] = deque()
        """What `take` has left of the transaction whose turn it is."""
        self._given: list[tuple[_Share, Position]] = []
        """Shares of the transaction that `next` returned last, or is about to return, and where
        delivery from their partitions was before."""
        self._failure_raised = False
        """Whether the failure of the next transaction was raised once."""
        self._fetched_s = 0.0
        self._journal_failure: JournalError | None = None
        """Why the journal can't be read on."""
        self._idle = False
        """Whether the last slice of work and the last fetch brought nothing."""

    # ---- partitions -----------------------------------------------------------------------------

    def make_buffer(self, assigned: Assigned) -> SerialBuffer:
        """Returns a buffer for a partition that is being assigned.

        Raises:
            BrokerError, JournalError: the journal's last decision could not be read.
        """
        buffer = SerialBuffer(
            assigned.key,
            assigned.start,
            self._reading.pending_map,
            journal_partition=self._tail.partition,
            malformed=malformed_event,
            counters=self._counters,
            torn_skip_below=assigned.torn_skip_below(self._config.torn_reset),
            shared=self._reading.shared,
        )
        begins_at_end = assigned.started_at is StartedAt.AT_END and not assigned.was_interrupted
        if begins_at_end and not buffer.delivered:
            # What is decided by now is not delivered, even if its markers come later.
            last = self._tail.last_decision()
            if last is not None:
                buffer.skip_to(*last)
        return buffer

    def _follow_assignment(self) -> None:
        changes = self._reading.changes
        if changes == self._changes:
            return
        present = {
            key: cast(SerialBuffer, assigned.buffer)
            for key, assigned in self._reading.assigned.items()
        }
        # Finish the transaction that was begun first, in the partitions that are still ours. Then
        # begin the order again: a new partition may go on from an earlier decision than the others.
        shares = deque(s for s in self._shares if present.get(s.key) is s.buffer)
        if shares and shares[0] is not self._shares[0]:
            shares[0].buffer.let_through(shares[0].entry.txid)
        self._shares = shares
        self._begin(present)
        self._changes = changes

    def _begin(self, present: dict[TopicPartition, SerialBuffer]) -> None:
        self._tail.begin({key: buffer.delivered for key, buffer in present.items()}, present)
        self._journal_failure = None
        self._buffers = present

    # ---- in -------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Reads the journal on, and does the side reads and look-ups that are due.

        Returns:
            True if there may be more to do at once.

        Raises:
            BrokerError: the log does not answer.
        """
        self._follow_assignment()
        busy = False
        try:
            self._journal_failure = None
            busy = self._tail.poll()
        except RecordsTrimmedError as error:
            _LOG.warning("journal_read_again reason=%s", error)
            self._begin(self._buffers)
            busy = True
        except JournalError as error:
            # What was decided before can still be delivered; `raise_failure` raises this after it.
            self._journal_failure = error
        # Whose turn it is changes without anything read there: its sidecar may be wanted now. The
        # order is not asked while shares are left: it would pass over decisions that are not due
        # here, and drop what is held of lower sequence.
        shares = [share.key for share in self._shares]
        for key in shares or self._order.due_in(self._buffers):
            self._reading.wake(key)
        busy = self._reading.work() or busy
        if not self._shares:
            wanted = self._order.wants_ends(self._buffers, time.monotonic())
            if wanted:
                self._look(wanted)
                busy = True
        self._balance()
        self._idle = not busy
        return busy

    def _look(self, wanted: Sequence[TopicPartition]) -> None:
        # The journal's end comes first: what is finished below it has its markers below the others.
        journal = JOURNAL_TOPIC, self._tail.partition
        told = self._log.each_end_offset([journal], timeout_s=LOOK_TIMEOUT_S)[journal]
        journal_end = max(self._tail.next_offset, told if isinstance(told, int) else 0)
        asked_s = time.monotonic()
        found = self._log.each_end_offset(wanted, timeout_s=LOOK_TIMEOUT_S)
        ends: dict[TopicPartition, int | None] = {}
        for key, end in found.items():
            ends[key] = end if isinstance(end, int) else None
            if not isinstance(end, int):
                _LOG.warning("end_not_told topic=%s partition=%d error=%s", *key, end)
        self._order.set_ends(ends, journal_end, asked_s, time.monotonic())

    def _balance(self) -> None:
        # Partitions that ran ahead stay throttled, but never one that the first decision waits for.
        missing = set() if self._shares else set(self._order.missing(self._buffers))
        for key, assigned in self._reading.assigned.items():
            assigned.urgent = key in missing
            if assigned.throttled and (
                assigned.urgent or assigned.buffer.queued_records < AHEAD_MAX_RECORDS // 2
            ):
                self._reading.release(assigned)

    def fetch(self, timeout_s: float) -> bool:
        """Reads one batch, as `Reading.fetch`, but waits at most `WAIT_S`. True if any was read."""
        self._fetched_s = time.monotonic()
        fetched = self._reading.fetch(min(timeout_s, WAIT_S))
        self._idle = self._idle and not fetched
        return fetched

    def tend(self) -> None:
        """Does the other work now and then while there is something to deliver."""
        if time.monotonic() - self._fetched_s >= FETCH_EVERY_S:
            self.work()
            self.fetch(0)

    # ---- out, record by record ------------------------------------------------------------------

    def take(self, limit: int) -> list[Message]:
        """Returns up to `limit` records that can be delivered now, in serial order.

        Events come first, with those for records whose headers don't decode.
        """
        self._follow_assignment()
        taken = self._take_events(limit)
        touched: set[TopicPartition] = set()
        while len(taken) < limit and self._turn():
            share = self._shares[0]
            if self._reading.assigned[share.key].paused:
                break
            self._reading.takes_from(share.buffer)
            records = share.buffer.take(limit - len(taken), more=share.key in touched)
            touched.add(share.key)
            self._reading.assigned[share.key].unsent = True
            self._counters.delivered_records += len(records)
            taken += cast(list[Message], records)
            if not share.buffer.delivering:
                self._shares.popleft()
                if self._shares:
                    self._shares[0].buffer.let_through(self._shares[0].entry.txid)
            elif not records:
                break  # the records can't be read back: `raise_failure` raises that
        return taken

    def _take_events(self, limit: int) -> list[Message]:
        taken: list[Message] = []
        for buffer in self._buffers.values():
            while buffer.malformed and len(taken) < limit:
                taken.append(cast(Message, buffer.malformed.popleft()[0]))
        return taken + self._reading.take_events(limit - len(taken))

    def _turn(self) -> bool:
        # Returns whether a transaction can be delivered now.
        if self._shares:
            return True
        self._follow_assignment()
        whole = self._order.take(self._buffers)
        if whole is None:
            return False
        self._shares.extend(self._shares_of(whole))
        self._shares[0].buffer.let_through(self._shares[0].entry.txid)
        self._failure_raised = False
        return True

    def _shares_of(self, whole: Whole) -> list[_Share]:
        return [
            _Share(key, self._buffers[key], whole.entries[key]) for key in sorted(whole.entries)
        ]

    def raise_failure(self, *, again: bool) -> None:
        """Raises why the next transaction can't be delivered; with `again` also a second time.

        Raises:
            IntegrityError, TornTransactionError, SpillError, JournalError: what failed.
        """
        error: LogtxError | None
        if self._shares:
            error = self._shares[0].buffer.failure
        else:
            error = self._order.failure(self._buffers)
            # A decision before the damage may wait for its records, which are on their way, or for
            # what the journal says behind the damage, which never comes. What has ended here needs
            # nothing more of the journal, and may wait for its sidecar for long.
            if error is None and self._idle and not self._order.has_ended(self._buffers):
                error = self._journal_failure
        if error is not None and (again or not self._failure_raised):
            self._failure_raised = True
            raise error.with_traceback(None)

    # ---- out, transaction by transaction --------------------------------------------------------

    def next(self, timeout_s: float | None) -> CommittedTransaction | None:
        """Returns the next transaction, or None if there is none within `timeout_s` seconds.

        Call `received` before it.

        Args:
            timeout_s: None waits for ever.

        Raises:
            MalformedHeaderError: once for each record whose TxId or TxCtl does not decode.
            IntegrityError, TornTransactionError: the next transaction can't be delivered whole.
            JournalError: the journal does not decode.
            SpillError: pending transactions can't be spilled.
        """
        self._idle = False
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._follow_assignment()
            for buffer in self._buffers.values():
                if buffer.malformed:
                    raise buffer.malformed.popleft()[1]
            paused = {key for key, a in self._reading.assigned.items() if a.paused}
            whole = self._order.take(self._buffers, paused)
            if whole is not None:
                return self._give(whole)
            self.raise_failure(again=True)
            busy = self.work()
            busy = self.fetch(0 if busy else WAIT_S) or busy
            for event in self._reading.take_events(FETCH_MAX_RECORDS):
                error = event.error()
                if error is not None and error.fatal():
                    raise KafkaException(error)
                _LOG.warning("consumer_event topic=%s error=%s", event.topic(), error)
            if not busy and until is not None and time.monotonic() >= until:
                return None

    def _give(self, whole: Whole) -> CommittedTransaction:
        decision: CommitDecision = whole.decision
        shares = self._shares_of(whole)
        self._given = given = [(share, share.buffer.position()) for share in shares]
        for share in shares:
            share.buffer.hand_over(share.entry.txid)
            self._reading.assigned[share.key].unsent = True
        partitions = tuple(share.key for share in shares)
        return CommittedTransaction(
            txid=decision.txid,
            commit_sequence=decision.sequence,
            timestamp=decision.decided_ms,
            complete=partitions == decision.partitions and not decision.unnamed,
            partitions=partitions,
            records=self._records(given),
        )

    def _records(self, given: list[tuple[_Share, Position]]) -> Iterator[Message]:
        try:
            for share, _ in given:
                for record in self._read(share, given):
                    if self._given is not given:
                        return
                    self._counters.delivered_records += 1
                    yield cast(Message, record)
                if self._given is not given:
                    return
        except GeneratorExit:
            raise
        except BaseException:
            # The application did not get all of it: it does not count as delivered any more.
            if self._given is given:
                self.take_back()
            raise

    def _read(self, share: _Share, given: list[tuple[_Share, Position]]) -> Iterator[Record]:
        buffer, entry = share.buffer, share.entry
        progress_s, reached = time.monotonic(), -1
        while self._given is given:  # Of one that was left, nothing is read any more.
            records = buffer.stream(entry)
            yield from records
            if entry.error is not None:
                raise entry.error.with_traceback(None)
            if not isinstance(entry, PointedTransaction) or entry.taken == entry.total:
                return
            if records or entry.next_side != reached:
                # Records of other transactions count, too: there may be many in between.
                progress_s, reached = time.monotonic(), entry.next_side
            elif time.monotonic() - progress_s > STALLED_S:
                topic, partition = entry.sidecar
                raise BrokerError(
                    f"{topic}[{partition}] gave no record for {STALLED_S:.0f} s, of transaction"
                    f" {TxId.from_bytes(entry.txid)}: ask for the next transaction again, which"
                    " will be this one"
                )
            # By itself: it goes on if the group takes the partition away meanwhile, for then the
            # position behind the transaction is committed, and nobody else delivers the rest.
            busy = bool(records) or self._reading.read_sidecar(buffer)
            if not busy or time.monotonic() - self._reading.fetched_s >= FETCH_EVERY_S:
                self._reading.fetch(0 if busy else WAIT_S)

    def received(self) -> None:
        """Drops the transaction that `next` returned last: the application has got it."""
        given, self._given = self._given, []
        for share, _ in given:
            share.buffer.finish(share.entry)

    def take_back(self) -> None:
        """Takes back the transaction that `next` returned, or was about to: it comes again."""
        for share, before in self._given:
            share.buffer.take_back(before)
            self._reading.interrupted = True

    def close(self) -> None:
        """Drops the transaction that `next` returned last, and closes the journal's consumer."""
        self.received()
        self._tail.close()
