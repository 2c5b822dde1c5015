"""Serial order: the journal's tail joined to the data partitions.

For ``isolation.level=serializable`` and for `Consumer.transactions()`.

A thin shell around `SerialOrder`, which decides what may be delivered. There is one way into it and
two ways out: `take` gives the records of the transaction whose turn it is, a few at a time, and
`next` gives the transaction as one. Needs no coordinator, only the log.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

from confluent_kafka import KafkaException, Message

from ..journal.control import TopicPartition
from ..journal.logs.interface import Log
from ..journal.reader import JOURNAL_TOPIC, RecordsTrimmedError, journal_partition_of
from ..journal.txid import TxId
from ..journal.value import value
from .config import ConsumerConfig
from .core.counters import ConsumerCounters
from .core.entries import EndedTransaction
from .core.serial_order import CommitDecision, SerialBuffer, SerialOrder, Whole
from .journal_tail import JournalTail
from .reading import (
    AHEAD_MAX_RECORDS,
    FETCH_EVERY_S,
    OFFSET_TIMEOUT_S,
    Assigned,
    Reading,
    StartedAt,
    malformed_event,
)

_LOG = logging.getLogger(__name__)
WAIT_S: Final = 0.005
"""Longest wait for data before the journal is looked at again."""


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A committed transaction, whole as far as this consumer's partitions go.

    Source: Transactional Messaging in Kafka, "What is transactional messaging?", atomicity and
    ordering.
    """

    txid: TxId
    commit_sequence: int
    """Place in the serial order of the transaction group."""
    timestamp: int
    """Coordinator's wall clock at the decision, milliseconds since 1970; -1 where reading of the
    journal started_at above the decision (it was trimmed, or the consumer stood still for long)."""
    complete: bool
    """Whether `partitions` are all partitions with records of the transaction; False also where
    some of them were delivered before, and, with `timestamp` -1, where that can't be told."""
    partitions: tuple[TopicPartition, ...]
    """Where the records come from."""
    records: Iterator[Message]
    """The records, partition by partition in offset order; what was spilled is read from disk a
    piece at a time. They can be read once, and until the next transaction is asked for."""


@value(frozen=True, slots=True)
class _Share:
    """A transaction's records in one partition."""

    key: TopicPartition
    buffer: SerialBuffer
    entry: EndedTransaction


class SerialReader:
    """Gives out what `Reading` reads in the serial order of a transaction group."""

    def __init__(
        self, log: Log, config: ConsumerConfig, reading: Reading, counters: ConsumerCounters
    ) -> None:
        """Read nothing yet: `reading` is to make its buffers by `make_buffer`.

        Raises:
            UnknownTopicError: there is no journal.
        """
        info = log.topic_info(JOURNAL_TOPIC, timeout_s=OFFSET_TIMEOUT_S)
        partition = journal_partition_of(config.transaction_group, info.partition_count)
        self._log = log
        self._config = config
        self._counters = counters
        self._reading = reading
        self._order = SerialOrder(counters)
        self._tail = JournalTail(log, partition, config.librdkafka_quiet, self._order)
        self._buffers: dict[TopicPartition, SerialBuffer] = {}
        self._changes = -1
        """`Reading.changes` that `_buffers` is of."""
        self._shares: deque[_Share] = deque()
        """Of the transaction whose turn it is: in `take`, what is left of it."""
        self._given: list[_Share] = []
        """Of the one that `next` gave last."""
        self._failure_raised = False
        """The failure of the next one was raised once."""
        self._fetched_s = 0.0

    # ---- partitions -----------------------------------------------------------------------------

    def make_buffer(self, assigned: Assigned) -> SerialBuffer:
        """A buffer of a partition that is being assigned.

        Raises:
            BrokerError, JournalError: the last decision could not be learnt.
        """
        buffer = SerialBuffer(
            assigned.key,
            assigned.origin,
            self._reading.pending_map,
            journal_partition=self._tail.partition,
            malformed=malformed_event,
            counters=self._counters,
            torn_skip_below=assigned.torn_skip_below(self._config.torn_reset),
        )
        if assigned.started_at is StartedAt.AT_END and not buffer.delivered:
            # What is decided by now is not ours to deliver, wherever its markers will stand.
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
        # What was begun is finished first, as far as it is still ours. Then the order begins anew:
        # a partition that came may go on from an earlier decision than the others.
        shares = deque(s for s in self._shares if present.get(s.key) is s.buffer)
        if shares and shares[0] is not self._shares[0]:
            shares[0].buffer.let_through(shares[0].entry.txid)
        self._shares = shares
        self._begin(present)
        self._changes = changes

    def _begin(self, present: dict[TopicPartition, SerialBuffer]) -> None:
        self._tail.begin({key: buffer.delivered for key, buffer in present.items()})
        self._buffers = present

    # ---- in -------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Read the journal on, side reads, look-ups; True where there may be more at once.

        Raises:
            JournalError: the journal does not decode.
            BrokerError: the log does not answer.
        """
        self._follow_assignment()
        try:
            busy = self._tail.poll()
        except RecordsTrimmedError as error:
            _LOG.warning("journal_read_again reason=%s", error)
            self._begin(self._buffers)
            busy = True
        busy = self._reading.work() or busy
        if not self._shares:
            wanted = self._order.wants_ends(self._buffers)
            if wanted:
                # "Finished" is known: a marker that is there lies below these ends.
                self._order.set_ends(
                    {key: self._log.end_offset(*key, timeout_s=OFFSET_TIMEOUT_S) for key in wanted}
                )
                busy = True
        self._balance()
        return busy

    def _balance(self) -> None:
        # Partitions that ran ahead are held; never one that the first decision waits for.
        missing = set() if self._shares else set(self._order.missing(self._buffers))
        for key, assigned in self._reading.assigned.items():
            assigned.urgent = key in missing
            if assigned.throttled and (
                assigned.urgent or assigned.buffer.queued_records < AHEAD_MAX_RECORDS // 2
            ):
                self._reading.release(assigned)

    def fetch(self, timeout_s: float) -> bool:
        """Read one batch, as `Reading.fetch`; True if there was any."""
        self._fetched_s = time.monotonic()
        return self._reading.fetch(min(timeout_s, WAIT_S))

    def tend(self) -> None:
        """See to the rest although there is something to deliver, now and then."""
        if time.monotonic() - self._fetched_s >= FETCH_EVERY_S:
            self.work()
            self.fetch(0)

    # ---- out, record by record ------------------------------------------------------------------

    def take(self, limit: int) -> list[Message]:
        """Records that can be delivered now, at most `limit`, in serial order.

        Events come first, a record whose headers don't decode among them.
        """
        self._follow_assignment()
        taken = self._take_events(limit)
        touched: set[TopicPartition] = set()
        while len(taken) < limit and self._turn():
            share = self._shares[0]
            if self._reading.assigned[share.key].paused:
                break
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
                break  # it can't be read back: `raise_failure` says so
        return taken

    def _take_events(self, limit: int) -> list[Message]:
        taken: list[Message] = []
        for buffer in self._buffers.values():
            while buffer.malformed and len(taken) < limit:
                taken.append(cast(Message, buffer.malformed.popleft()[0]))
        return taken + self._reading.take_events()

    def _turn(self) -> bool:
        # Whether it is a transaction's turn.
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
        """Raise why the next transaction can't be delivered; `again` also if it was raised before.

        Raises:
            IntegrityError, TornTransactionError, SpillError: by what failed.
        """
        if self._shares:
            error = self._shares[0].buffer.failure
        else:
            error = self._order.failure(self._buffers)
        if error is not None and (again or not self._failure_raised):
            self._failure_raised = True
            raise error.with_traceback(None)

    # ---- out, transaction by transaction --------------------------------------------------------

    def next(self, timeout_s: float | None) -> CommittedTransaction | None:
        """The next transaction, or None after `timeout_s` seconds (None: never).

        Raises:
            MalformedHeaderError: once for each record whose TxId or TxCtl does not decode.
            IntegrityError, TornTransactionError: the next one can't be delivered whole.
            JournalError: the journal does not decode.
            SpillError: pending transactions can't be spilled.
        """
        self._finish_given()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._follow_assignment()
            for buffer in self._buffers.values():
                if buffer.malformed:
                    raise buffer.malformed.popleft()[1]
            whole = self._order.take(self._buffers)
            if whole is not None:
                return self._give(whole)
            self.raise_failure(again=True)
            busy = self.work()
            busy = self.fetch(0 if busy else WAIT_S) or busy
            for event in self._reading.take_events():
                error = event.error()
                if error is not None and error.fatal():
                    raise KafkaException(error)
                _LOG.warning("consumer_event topic=%s error=%s", event.topic(), error)
            if not busy and until is not None and time.monotonic() >= until:
                return None

    def _give(self, whole: Whole) -> CommittedTransaction:
        decision: CommitDecision = whole.decision
        self._given = given = self._shares_of(whole)
        for share in given:
            share.buffer.hand_over(share.entry.txid)
            self._reading.assigned[share.key].unsent = True
        partitions = tuple(share.key for share in given)
        return CommittedTransaction(
            txid=decision.txid,
            commit_sequence=decision.sequence,
            timestamp=decision.decided_ms,
            complete=partitions == decision.partitions and not decision.unnamed,
            partitions=partitions,
            records=self._records(given),
        )

    def _records(self, given: list[_Share]) -> Iterator[Message]:
        for share in given:
            if self._given is not given:
                return
            for record in share.buffer.stream(share.entry):
                if self._given is not given:
                    return
                self._counters.delivered_records += 1
                yield cast(Message, record)

    def _finish_given(self) -> None:
        given, self._given = self._given, []
        for share in given:
            share.buffer.finish(share.entry)

    def close(self) -> None:
        """Close the journal's consumer."""
        self._finish_given()
        self._tail.close()
