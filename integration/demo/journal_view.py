"""What the journal says of the demo's transactions and of its owners, followed while it grows.

`JournalView` is pure: entries in, states out. `JournalTail` reads the journal into one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

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


Key: TypeAlias = tuple[int, int]
"""Names a transaction: journal partition, and offset of its BEGIN there."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """A valid OWNER record: one coordinator serves one journal partition."""

    partition: int
    epoch: int
    """Its offset."""
    address: str


@dataclass(slots=True, kw_only=True)
class Seen:
    """One transaction as the journal shows it."""

    key: Key
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
    """Owners of all journal partitions, and transactions of producer ids that begin so."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._epochs: dict[int, EpochFilter] = {}
        self._unfinished: dict[Key, Seen] = {}
        self._all: dict[Key, Seen] = {}
        self.owners: dict[int, Ownership] = {}
        """Who serves each partition."""
        self.takeovers: list[Ownership] = []
        """All of them, in the order they were read."""
        self.void_entries = 0
        """Entries that an owner appended after another had replaced it."""
        self.committed = 0
        """Transactions decided so, whether or not finished."""
        self.aborted = 0
        self.records_committed = 0
        """Data records of committed transactions."""

    def __iter__(self) -> Iterator[Seen]:
        """All transactions; those of one partition by BEGIN."""
        return iter(self._all.values())

    def __getitem__(self, key: Key) -> Seen:
        """The transaction of that name."""
        return self._all[key]

    def feed(self, partition: int, offset: int, entry: Entry) -> None:
        """Take a partition's next entry. Reading may begin anywhere before a valid OWNER."""
        record = entry.record
        epochs = self._epochs.get(partition)
        if epochs is None:
            if not isinstance(record, Owner):
                return
            first = record.replaces == NO_EPOCH
            epochs = EpochFilter(record.replaces, None if first else entry.incarnation)
            self._epochs[partition] = epochs
        if not epochs.accept(offset, entry):
            self.void_entries += entry.epoch < epochs.epoch and not isinstance(record, Owner)
            return
        match record:
            case Owner() if epochs.epoch == offset:
                taken = Ownership(partition, offset, record.address)
                self.owners[partition] = taken
                self.takeovers.append(taken)
            case Begin() if record.producer_id.startswith(self._prefix):
                key = (partition, offset)
                self._all[key] = self._unfinished[key] = Seen(
                    key=key,
                    producer_id=record.producer_id,
                    has_written=bool(record.partitions),
                )
            case AddPartitions() | AddOffsets() | PrepareCommit() | PrepareAbort():
                seen = self._unfinished.get((partition, record.begin))
                if seen is not None:
                    self._advance(seen, record, entry.epoch)
            case Committed() | Aborted():
                seen = self._unfinished.get((partition, record.begin))
                if seen is not None:
                    self._finish(seen, isinstance(record, Committed), entry.epoch)
            case _:
                pass

    def _advance(
        self,
        seen: Seen,
        record: AddPartitions | AddOffsets | PrepareCommit | PrepareAbort,
        epoch: int,
    ) -> None:
        if isinstance(record, AddPartitions | AddOffsets):
            seen.has_written = True
            return
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

    def _finish(self, seen: Seen, committed: bool, epoch: int) -> None:
        state = State.COMMITTED if committed else State.ABORTED
        if seen.state in VALID_PREVIOUS[state]:
            seen.state, seen.finished_in = state, epoch
            del self._unfinished[seen.key]

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

    def partitions_of(self, address: str) -> dict[int, int]:
        """Journal partitions that this coordinator owns, and its epoch in each."""
        owned = self.owners.values()
        return {o.partition: o.epoch for o in owned if o.address == address}


class JournalTail:
    """Reads the journal into a view. One thread at a time."""

    def __init__(self, log: Log, starts: Mapping[int, int], view: JournalView) -> None:
        """Begin.

        Args:
            log: the cluster.
            starts: each partition to read, and the offset to begin at.
            view: what is read goes there.
        """
        self._log = log
        self._next = dict(starts)
        self.view: Final = view
        self._consumer = log.consumer(_CONSUMER_CONFIG)
        places = [TopicPartition(JOURNAL_TOPIC, p, start) for p, start in starts.items()]
        self._consumer.assign(places)

    def read(self, timeout_s: float) -> None:
        """Take what is there; wait up to `timeout_s` for a first entry.

        Raises:
            BrokerError: the journal can't be read.
            JournalError: an entry does not decode.
        """
        first = self._consumer.poll(timeout_s)
        for message in [] if first is None else [first, *self._consumer.consume(_BATCH, 0)]:
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None:
                if error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise BrokerError(
                        f"journal partition {partition} has no offset {offset}: {error.str()}"
                    )
                continue  # a broker that is away; librdkafka connects again by itself
            assert partition is not None
            assert offset is not None
            self.view.feed(partition, offset, decode_entry(message.value()))
            self._next[partition] = offset + 1

    def read_to_end(self, partition: int, *, timeout_s: float) -> None:
        """Read up to the partition's end as of now.

        Raises:
            BrokerError: not within `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        end = self._log.end_offset(JOURNAL_TOPIC, partition, timeout_s=timeout_s)
        while self._next[partition] < end:
            if time.monotonic() > deadline_s:
                at = self._next[partition]
                raise BrokerError(f"reading journal partition {partition} stood at {at} of {end}")
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
