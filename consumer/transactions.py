"""`Consumer.transactions()`: the journal's tail joined to the data partitions.

A thin shell: `WholeOrder` decides what may be delivered. Needs no coordinator, only the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.control import TopicPartition
from ..journal.errors import BrokerError, JournalError
from ..journal.fate import EpochFilter
from ..journal.log import Log, LogConsumer
from ..journal.reader import JOURNAL_TOPIC, journal_partition_of, read_entries
from ..journal.record_codec import decode_entry
from ..journal.records import Committed, Entry, PrepareCommit
from ..journal.txid import TxId
from .config import ConsumerConfig
from .counters import Counters
from .reading import HELD_MAX_RECORDS, OFFSET_TIMEOUT_S, Assigned, Began, Reading, malformed_event
from .whole import Decision, Whole, WholeBuffer, WholeOrder

_LOG = logging.getLogger(__name__)
WAIT_S: Final = 0.005
"""Longest wait for data before the journal is looked at again."""
DECISIONS_MAX: Final = 10_000
"""Decisions read ahead of the first that waits."""
JOURNAL_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A committed transaction, whole as far as this consumer's partitions go.

    Source: seed 001, "What is transactional messaging?", atomicity and ordering.
    """

    txid: TxId
    commit_sequence: int
    """Place in the serial order of the transaction group."""
    timestamp: int
    """Coordinator's wall clock at the decision, milliseconds since 1970."""
    complete: bool
    """Whether all partitions with records of the transaction are among `partitions`."""
    partitions: tuple[TopicPartition, ...]
    """Where the records come from."""
    records: Iterator[Message]
    """The records, partition by partition in offset order; they can be read once, and until the
    next transaction is asked for."""


class JournalTail:
    """Reads one journal partition on and on, and tells `WholeOrder` what is valid of it."""

    def __init__(
        self, log: Log, partition: int, settings: Mapping[str, Any], order: WholeOrder
    ) -> None:
        """Nothing is read before `start`.

        Args:
            log: where the journal lies.
            partition: journal partition.
            settings: librdkafka's, of the main consumer.
            order: where decisions go.
        """
        self.partition = partition
        self._log = log
        self._settings = dict(settings)
        self._order = order
        self._consumer: LogConsumer | None = None
        self._epochs = EpochFilter()
        self._next = 0
        self._waiting: dict[int, TxId] = {}
        """Decisions told that are not finished, by BEGIN."""

    def end(self) -> tuple[tuple[int, int] | None, int]:
        """((journal partition, incarnation), last offset); None while the journal is empty."""
        start = self._log.start_offset(JOURNAL_TOPIC, self.partition, timeout_s=OFFSET_TIMEOUT_S)
        end = self._log.end_offset(JOURNAL_TOPIC, self.partition, timeout_s=OFFSET_TIMEOUT_S)
        entry = self._entry(start, end)
        return (None, -1) if entry is None else ((self.partition, entry.incarnation), end - 1)

    def _entry(self, offset: int, end: int) -> Entry | None:
        if offset >= end:
            return None
        entries = read_entries(
            self._log, self.partition, offset, offset + 1, timeout_s=OFFSET_TIMEOUT_S
        )
        return next((entry for _, entry in entries), None)

    def start(self) -> None:
        """Read the journal from its start; decisions delivered before are passed by the order.

        Which epochs are valid follows from the first OWNER on. (A journal that was trimmed goes
        on with the epoch of its first record.)
        """
        self._order.clear()
        self._waiting.clear()
        start = self._log.start_offset(JOURNAL_TOPIC, self.partition, timeout_s=OFFSET_TIMEOUT_S)
        end = self._log.end_offset(JOURNAL_TOPIC, self.partition, timeout_s=OFFSET_TIMEOUT_S)
        self._next = start
        first = self._entry(start, end) if start else None
        self._epochs = (
            EpochFilter() if first is None else EpochFilter(first.epoch, first.incarnation)
        )
        if self._consumer is None:
            self._consumer = self._log.consumer(self._settings)
        self._consumer.assign([KafkaPartition(JOURNAL_TOPIC, self.partition, start)])

    def resume(self, sequence: int) -> None:
        """Read the journal from a decision that was delivered: it is valid, so its epoch is.

        Falls back to `start` where that record is not there any more.
        """
        start = self._log.start_offset(JOURNAL_TOPIC, self.partition, timeout_s=OFFSET_TIMEOUT_S)
        end = self._log.end_offset(JOURNAL_TOPIC, self.partition, timeout_s=OFFSET_TIMEOUT_S)
        entry = self._entry(sequence, end) if start <= sequence else None
        self.start()
        if entry is not None and isinstance(entry.record, PrepareCommit):
            assert self._consumer is not None
            self._epochs = EpochFilter(entry.epoch, entry.incarnation)
            self._next = sequence + 1
            place = KafkaPartition(JOURNAL_TOPIC, self.partition, self._next)
            self._consumer.assign([place])

    def poll(self) -> bool:
        """Read what is there, without waiting; True if anything was.

        Raises:
            CorruptRecordError, UnknownRecordError: with the offset.
            BrokerError: what comes next was trimmed before it was read.
        """
        if self._consumer is None or len(self._order) >= DECISIONS_MAX:
            return False
        first = self._consumer.poll(0)
        if first is None:
            return False
        for message in [first, *self._consumer.consume(JOURNAL_BATCH, 0)]:
            error = message.error()
            if error is None:
                self._record(message)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise BrokerError(
                    f"{JOURNAL_TOPIC}[{self.partition}] has no offset {self._next} any more; "
                    "transactions() can't go on from there: start anew with another group.id"
                )
            else:
                _LOG.warning("journal_tail_error partition=%d error=%s", self.partition, error)
        return True

    def _record(self, message: Message) -> None:
        offset = cast(int, message.offset())
        if offset < self._next:
            return
        self._next = offset + 1
        try:
            entry = decode_entry(message.value())
        except JournalError as error:
            where = f"{JOURNAL_TOPIC}[{self.partition}] offset {offset}"
            raise type(error)(f"{where}: {error}") from error
        if not self._epochs.accept(offset, entry):
            return
        record = entry.record
        if isinstance(record, PrepareCommit):
            txid = TxId(self.partition, entry.incarnation, record.begin)
            if record.begin in self._waiting:
                return  # only the first decision counts
            self._waiting[record.begin] = txid
            partitions = tuple(sorted(w.partition.key for w in record.writes if w.branches))
            self._order.decide(Decision(offset, txid, record.decided_ms, partitions))
        elif isinstance(record, Committed):
            done = self._waiting.pop(record.begin, None)
            if done is not None:
                self._order.finish(done)

    def close(self) -> None:
        """Close its consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


class TransactionReader:
    """Joins the tail of a transaction group's journal partition to what `Reading` reads."""

    def __init__(
        self, log: Log, config: ConsumerConfig, reading: Reading, counters: Counters
    ) -> None:
        """From now on `reading` collects whole transactions.

        Raises:
            UnknownTopicError: there is no journal.
        """
        info = log.topic_info(JOURNAL_TOPIC, timeout_s=OFFSET_TIMEOUT_S)
        partition = journal_partition_of(config.transaction_group, info.partition_count)
        self._log = log
        self._config = config
        self._counters = counters
        self._reading = reading
        self._order = WholeOrder(counters)
        self._tail = JournalTail(log, partition, config.librdkafka_quiet, self._order)
        self._buffers: dict[TopicPartition, WholeBuffer] = {}
        self._given: Whole | None = None
        reading.make_buffer = self._make_buffer
        reading.rebuild()

    def _make_buffer(self, assigned: Assigned) -> WholeBuffer:
        buffer = WholeBuffer(
            assigned.key,
            assigned.origin,
            self._reading.pending_map,
            malformed=malformed_event,
            counters=self._counters,
            torn_skip_below=assigned.torn_skip_below(self._config.torn_reset),
        )
        buffer.collect(self._tail.partition)
        if assigned.began is Began.AT_END and not buffer.delivered:
            # What is decided by now is not ours to deliver, wherever its markers will stand.
            journal, last = self._tail.end()
            if journal is not None:
                buffer.delivered[journal] = last
        return buffer

    def _follow_assignment(self) -> None:
        present = {
            key: cast(WholeBuffer, assigned.buffer)
            for key, assigned in self._reading.assigned.items()
        }
        if present == self._buffers:
            return
        self._buffers = present
        # A partition that came may go on from an earlier decision than the others.
        floors = [
            max((s for (p, _), s in b.delivered.items() if p == self._tail.partition), default=-1)
            for b in present.values()
        ]
        if not floors or min(floors) < 0:
            self._tail.start()
        else:
            self._tail.resume(min(floors))

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
                    raise buffer.malformed.popleft()
            whole = self._order.take(self._buffers)
            if whole is not None:
                return self._give(whole)
            busy = self._tail.poll()
            busy = self._reading.work() or busy
            self._ask_for_ends()
            self._balance()
            busy = self._reading.fetch(0 if busy else WAIT_S) or busy
            for event in self._reading.take_events():
                error = event.error()
                if error is not None and error.fatal():
                    raise KafkaException(error)
                _LOG.warning("consumer_event topic=%s error=%s", event.topic(), error)
            if not busy and until is not None and time.monotonic() >= until:
                return None

    def _ask_for_ends(self) -> None:
        missing = self._order.missing(self._buffers)
        if missing and self._order.wants_ends:
            # "Finished" is known: a marker that is there lies below these ends.
            self._order.set_ends(
                {key: self._log.end_offset(*key, timeout_s=OFFSET_TIMEOUT_S) for key in missing}
            )

    def _balance(self) -> None:
        # Partitions that ran ahead are held; never one that the first decision waits for.
        missing = set(self._order.missing(self._buffers))
        for key, assigned in self._reading.assigned.items():
            assigned.urgent = key in missing
            if assigned.held and (
                assigned.urgent or assigned.buffer.queued_records < HELD_MAX_RECORDS // 2
            ):
                self._reading.release(assigned)

    def _give(self, whole: Whole) -> CommittedTransaction:
        self._given = whole
        decision = whole.decision
        partitions = tuple(sorted(whole.entries))
        return CommittedTransaction(
            txid=decision.txid,
            commit_sequence=decision.sequence,
            timestamp=decision.decided_ms,
            complete=set(partitions) == set(decision.partitions),
            partitions=partitions,
            records=self._records(whole),
        )

    def _records(self, whole: Whole) -> Iterator[Message]:
        for key in sorted(whole.entries):
            for record in whole.entries[key].stream:
                if self._given is not whole:
                    return
                self._counters.delivered_records += 1
                yield cast(Message, record)

    def _finish_given(self) -> None:
        given, self._given = self._given, None
        for key, entry in (given.entries if given else {}).items():
            buffer = self._buffers.get(key)
            if buffer is not None:
                buffer.finish(entry)

    def close(self) -> None:
        """Close the journal's consumer."""
        self._finish_given()
        self._tail.close()
