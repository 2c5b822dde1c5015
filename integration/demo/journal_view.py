"""What the journal says of the demo's transactions, followed while it grows.

`JournalView` is pure: entries in, states out. `JournalTail` reads the journal into one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, TopicPartition

from ...journal.errors import BrokerError
from ...journal.fate import NO_EPOCH, EpochFilter
from ...journal.log import Log
from ...journal.reader import JOURNAL_TOPIC
from ...journal.record_codec import decode_entry
from ...journal.records import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    Begin,
    Committed,
    Entry,
    Owner,
    PrepareAbort,
    PrepareCommit,
)
from ...journal.state import VALID_PREVIOUS, State

_BATCH: Final = 1000
_CONSUMER_CONFIG: Final = {
    "group.id": "logtx-demo-journal",  # librdkafka insists on one; nothing is committed or joined
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 5,
}


@dataclass(slots=True, kw_only=True)
class Seen:
    """One transaction as the journal shows it."""

    begin: int
    """Offset of its BEGIN."""
    producer_id: str
    state: State = State.OPEN
    reason: AbortReason | None = None
    has_written: bool = False
    """A data partition is registered, or input offsets were sent, which workers do last."""
    records: int = 0
    """Data records of all branches; known from the decision to commit."""
    decided_in: int | None = None
    """Epoch of the coordinator that decided."""
    finished_in: int | None = None
    """Epoch of the coordinator that wrote the last marker."""

    @property
    def outlived_coordinator(self) -> bool:
        """Decided by one coordinator and finished by a later one."""
        return self.finished_in is not None and self.finished_in != self.decided_in


class JournalView:
    """Transactions of one journal partition whose producer ids begin with `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._epochs: EpochFilter | None = None
        self._unfinished: dict[int, Seen] = {}
        self._all: dict[int, Seen] = {}
        self.committed = 0
        """Transactions decided so, whether or not finished."""
        self.aborted = 0
        self.records_committed = 0
        """Data records of committed transactions."""

    def __iter__(self) -> Iterator[Seen]:
        """All transactions, by BEGIN."""
        return iter(self._all.values())

    def __getitem__(self, begin: int) -> Seen:
        """The transaction whose BEGIN lies at this offset."""
        return self._all[begin]

    def feed(self, offset: int, entry: Entry) -> None:
        """Take the next entry. Reading may begin anywhere before an OWNER that is valid."""
        record = entry.record
        if self._epochs is None:
            if not isinstance(record, Owner):
                return
            first = record.replaces == NO_EPOCH
            self._epochs = EpochFilter(record.replaces, None if first else entry.incarnation)
        if not self._epochs.accept(offset, entry):
            return
        match record:
            case Begin() if record.producer_id.startswith(self._prefix):
                seen = Seen(
                    begin=offset,
                    producer_id=record.producer_id,
                    has_written=bool(record.partitions),
                )
                self._all[offset] = self._unfinished[offset] = seen
            case AddPartitions() | AddOffsets() if record.begin in self._unfinished:
                self._unfinished[record.begin].has_written = True
            case PrepareCommit() | PrepareAbort() if record.begin in self._unfinished:
                self._decide(self._unfinished[record.begin], record, entry.epoch)
            case Committed() | Aborted() if record.begin in self._unfinished:
                seen = self._unfinished[record.begin]
                state = State.COMMITTED if isinstance(record, Committed) else State.ABORTED
                if seen.state in VALID_PREVIOUS[state]:
                    seen.state, seen.finished_in = state, entry.epoch
                    del self._unfinished[record.begin]
            case _:
                pass

    def _decide(self, seen: Seen, record: PrepareCommit | PrepareAbort, epoch: int) -> None:
        if seen.state is not State.OPEN:
            return
        seen.decided_in = epoch
        if isinstance(record, PrepareCommit):
            seen.state = State.COMMITTING
            seen.records = sum(b.count for w in record.writes for b in w.branches)
            self.committed += 1
            self.records_committed += seen.records
        else:
            seen.state, seen.reason = State.ABORTING, record.reason
            self.aborted += 1

    @property
    def unfinished(self) -> list[Seen]:
        """Open, or decided and without the last marker."""
        return list(self._unfinished.values())

    def in_state(self, state: State) -> list[Seen]:
        """Unfinished transactions in this state, oldest first."""
        return [seen for seen in self._unfinished.values() if seen.state is state]

    def open_of(self, producer_id: str) -> Seen | None:
        """A transaction of this producer that is open and has written, or None."""
        for seen in self._unfinished.values():
            if seen.producer_id == producer_id and seen.state is State.OPEN and seen.has_written:
                return seen
        return None


class JournalTail:
    """Reads one journal partition into a view, from `start` on. One thread at a time."""

    def __init__(self, log: Log, partition: int, start: int, view: JournalView) -> None:
        self._log = log
        self._partition = partition
        self._next = start
        self.view: Final = view
        self._consumer = log.consumer(_CONSUMER_CONFIG)
        self._consumer.assign([TopicPartition(JOURNAL_TOPIC, partition, start)])

    def read(self, timeout_s: float) -> None:
        """Take what is there; wait up to `timeout_s` for a first entry.

        Raises:
            BrokerError: the journal can't be read.
            JournalError: an entry does not decode.
        """
        first = self._consumer.poll(timeout_s)
        for message in [] if first is None else [first, *self._consumer.consume(_BATCH, 0)]:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise BrokerError(f"the journal has no offset {self._next}: {error.str()}")
                continue  # a broker that is away; librdkafka connects again by itself
            offset = message.offset()
            assert offset is not None
            self.view.feed(offset, decode_entry(message.value()))
            self._next = offset + 1

    def read_to_end(self, *, timeout_s: float) -> None:
        """Read up to the journal's end as of now.

        Raises:
            BrokerError: not within `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        end = self._log.end_offset(JOURNAL_TOPIC, self._partition, timeout_s=timeout_s)
        while self._next < end:
            if time.monotonic() > deadline_s:
                raise BrokerError(f"reading the journal stood at {self._next} of {end}")
            self.read(0.05)

    def read_until(self, condition: Callable[[], bool], *, timeout_s: float) -> bool:
        """Read until `condition` holds; False if it does not within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                return False
            self.read(0.05)
        return True

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
