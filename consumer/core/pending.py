"""PendingTransactionMap: holds records of transactions without a marker, in memory or on disk.

Each data partition has a dict of its own here, {TxId as raw bytes: `PendingTransaction`}, which its
`PartitionBuffer` fills directly. After every batch the map charges what was added. If memory then
holds more than allowed, it moves the largest transactions of all partitions to a `SpillStore`. It
has no I/O, clock or randomness of its own: the caller passes the store in.

Source: Transactional Messaging in Kafka, "Transactional consumer" (PendingTransactionMap
[TxId-Partition] -> messages, seamlessly spilling to disk beyond a configurable memory limit).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import methodcaller
from typing import Final, Protocol

from ...journal.control import TopicPartition
from ...journal.state import State

RECORD_OVERHEAD_BYTES: Final = 600
"""Memory that a buffered record costs beyond its key and value: message, TxId, list slot. Measured
as resident memory: 560. If this were lower, the process would exceed its limit."""
HEADER_OVERHEAD_BYTES: Final = 200
"""Memory that each header besides the TxId costs beyond its name and value."""
TRANSACTION_OVERHEAD_BYTES: Final = 1_000
"""Memory that a pending transaction costs per partition beyond its records, spilled or not.
Measured: 840 when spilled."""
SPILL_DOWN_TO: Final = 0.75
"""Part of the limit that a spill leaves in memory. It frees a quarter at once, so that not every
batch spills: with many small transactions this keeps the cost of choosing among them linear. A
higher part spills more often, a lower one writes more to disk than must go."""
CHARGE_MIN_BYTES: Final = 256 * 1024
"""Smallest piece in which a transaction is spilled, unless all of it is smaller. Larger pieces
write more than must go, smaller ones are more writes and more entries in `charges`."""

_headers_of = methodcaller("headers")
_key_of = methodcaller("key")

RawTxId = bytes
"""Value of the header TxId, 16 bytes, compared without decoding."""


class Record(Protocol):
    """The part of `confluent_kafka.Message` that the consumer's cores call."""

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Returns the headers in order, or None."""

    def offset(self) -> int:
        """Returns the offset in the data partition."""

    def key(self) -> bytes | None:
        """Returns the key."""

    def value(self) -> bytes | None:
        """Returns the value."""

    def __len__(self) -> int:
        """Returns the number of bytes of the value."""


offset_of: Final = methodcaller("offset")
"""Returns a record's offset."""


def from_offset(batch: Sequence[Record], offset: int) -> Sequence[Record]:
    """Returns those of some records in offset order that lie at or above an offset."""
    if not batch or batch[0].offset() >= offset:
        return batch
    return batch[bisect_left(batch, offset, key=offset_of) :]


class SpillStore(Protocol):
    """Runs of records on disk; a run belongs to one transaction in one partition.

    Every method raises `SpillError` if the disk refuses.
    """

    spilled_bytes: int
    """Bytes written since the start."""

    def append(self, run: int | None, owner: TopicPartition, records: list[Record]) -> int:
        """Appends records of one partition to a run, or begins one. Returns the run's number."""

    def read(self, run: int) -> Iterator[Record]:
        """Returns a run's records in the order they were appended, read a piece at a time."""

    def delete(self, run: int) -> None:
        """Drops a run and frees its space."""


class PendingTransaction:
    """The records of one transaction in one data partition, in offset order.

    The hot loop appends to `records` directly, so counts are computed from it and not kept.
    """

    __slots__ = (
        "ahead",
        "charged_bytes",
        "charged_records",
        "charges",
        "control",
        "counted",
        "end_offset",
        "ended_s",
        "first_offset",
        "further_headers",
        "not_before_s",
        "owner",
        "pause_s",
        "records",
        "run",
        "run_bytes",
        "run_last_offset",
        "run_records",
        "since",
        "state",
        "txid",
        "uniform",
        "written_ms",
    )

    def __init__(self, owner: TopicPartition, txid: RawTxId, first_offset: int) -> None:
        """Begins without records.

        Args:
            owner: the data partition.
            txid: value of the header TxId.
            first_offset: offset of the first record that will be appended.
        """
        self.owner = owner
        self.txid = txid
        self.first_offset = first_offset
        self.records: list[Record] = []
        """The records in memory: all, or those behind the spilled ones."""
        self.control: bytes | None = None
        """TxCtl of the first record."""
        self.uniform = True
        """Whether all records carry that TxCtl: then they are of one branch, and either they have
        no sequence numbers or there is only one record."""
        self.further_headers = False
        """Whether a record has headers besides the TxId."""
        self.run: int | None = None
        """Number of its run in the `SpillStore`; None if nothing is spilled."""
        self.run_bytes = 0
        """Bytes spilled: keys, values, and headers besides the TxId."""
        self.run_records = 0
        self.run_last_offset = -1
        self.charged_records = 0
        """How many of `records` are charged."""
        self.charged_bytes = 0
        """Bytes of the charged records: what spilling them would free."""
        self.charges: list[tuple[int, int]] = []
        """The charged records in pieces, in offset order: (records, bytes) of each."""
        self.counted = False
        """Whether the transaction itself is charged."""
        self.since: float | None = None
        """When the shell first saw it pending, on the shell's clock in seconds; None = not yet."""
        self.not_before_s = 0.0
        """When it may be looked up, on the shell's clock in seconds."""
        self.pause_s = 0.0
        """Pause in seconds behind its last look-up, if a broker's error kept it unsettled; else 0.
        """
        self.state: State | None = None
        """Its state as the last look-up found it; None before one."""
        self.end_offset = 0
        """Highest end of the data partition that was told since `ended_s`."""
        self.ended_s: float | None = None
        """When a look-up first found it ended, on the shell's clock in seconds; None before."""
        self.ahead = False
        """Whether it was found so only as the journal that was seen ended before its BEGIN."""
        self.written_ms: int | None = None
        """Timestamp of its first record in milliseconds, once it was asked for."""

    @property
    def count(self) -> int:
        """Number of its records, in memory and spilled."""
        return self.run_records + len(self.records)

    def is_due(self, now_s: float, age_s: float) -> bool:
        """Returns whether it is to be looked up.

        Args:
            now_s: the present time on the shell's clock.
            age_s: for how long it must have been pending.
        """
        seen_s = self.since
        return seen_s is not None and now_s >= max(seen_s + age_s, self.not_before_s)

    @property
    def last_offset(self) -> int:
        """Offset of the last record; -1 without records."""
        return self.records[-1].offset() if self.records else self.run_last_offset


class PendingTransactionMap:
    """[data partition, TxId] → records, with one memory limit for all partitions of a consumer.

    Source: Transactional Messaging in Kafka, "Transactional consumer", READ_COMMITTED.
    """

    def __init__(self, memory_max_bytes: int, store: SpillStore | None = None) -> None:
        """Begins empty.

        Args:
            memory_max_bytes: limit in memory for keys, values, headers and overhead together.
            store: where to spill; None = nowhere, memory then grows without bound.
        """
        self.memory_max_bytes = memory_max_bytes
        self.memory_bytes = 0
        """Bytes charged now: of pending transactions, and committed ones until delivered."""
        self._store = store
        self._partitions: dict[int, dict[RawTxId, PendingTransaction]] = {}
        """The dicts of all readers, by their `id`."""

    def view(self) -> dict[RawTxId, PendingTransaction]:
        """Returns a new dict for one reader of one partition, which fills and empties it itself."""
        view: dict[RawTxId, PendingTransaction] = {}
        self._partitions[id(view)] = view
        return view

    def drop(self, view: dict[RawTxId, PendingTransaction]) -> None:
        """Forgets a reader's dict and discards what it holds."""
        for pending in view.values():
            self.discard(pending)
        view.clear()
        self._partitions.pop(id(view), None)

    def charge(self, touched: Sequence[PendingTransaction]) -> None:
        """Charges the records that a batch added to transactions that are still pending.

        A transaction that begins and ends within one batch is never charged. A batch is bounded, so
        what it adds uncharged is bounded too.
        """
        for pending in touched:
            fresh = pending.records[pending.charged_records :]
            if not fresh:
                continue
            size = len(fresh) * RECORD_OVERHEAD_BYTES + _content_bytes(fresh)
            if pending.further_headers:
                size += _further_headers_bytes(fresh)
            if not pending.counted:
                pending.counted = True
                self.memory_bytes += TRANSACTION_OVERHEAD_BYTES
            pending.charged_records += len(fresh)
            pending.charged_bytes += size
            self.memory_bytes += size
            count, before = len(fresh), 0
            if pending.charges and pending.charges[-1][1] < CHARGE_MIN_BYTES:
                last, before = pending.charges.pop()
                count += last
            pending.charges.append((count, before + size))

    def enforce(self) -> None:
        """Spills the largest pending transactions if memory is over its limit.

        Raises:
            SpillError: the disk refused. Nothing is lost: what was not spilled is still in
                memory, and positions never passed it.
        """
        if self.memory_bytes <= self.memory_max_bytes or self._store is None:
            return
        target = self.memory_max_bytes * SPILL_DOWN_TO
        candidates = [p for v in self._partitions.values() for p in v.values() if p.charged_bytes]
        # The largest first, for the fewest and longest writes. Among equals the oldest first: the
        # one that has been open longest is the least likely to end next.
        candidates.sort(key=lambda pending: -pending.charged_bytes)
        for pending in candidates:
            excess_bytes = self.memory_bytes - target
            if excess_bytes <= 0:
                return
            self._spill(self._store, pending, excess_bytes)

    def _spill(self, store: SpillStore, pending: PendingTransaction, excess_bytes: float) -> None:
        # From a large transaction only the first records: all partitions wait for the write.
        count = size = charges = 0
        for count_of_charge, size_of_charge in pending.charges:
            if size >= excess_bytes:
                break
            count += count_of_charge
            size += size_of_charge
            charges += 1
        spilled = pending.records[:count]
        # The store first: if it raises, the records are still here.
        pending.run = store.append(pending.run, pending.owner, spilled)
        pending.run_records += count
        pending.run_bytes += size - count * RECORD_OVERHEAD_BYTES
        pending.run_last_offset = spilled[-1].offset()
        del pending.records[:count]
        del pending.charges[:charges]
        pending.charged_records -= count
        pending.charged_bytes -= size
        self.memory_bytes -= size

    def stream(self, pending: PendingTransaction) -> Iterator[Record]:
        """Returns all records in offset order, spilled ones read a piece at a time."""
        if pending.run is not None and self._store is not None:
            return chain(self._store.read(pending.run), pending.records)
        return iter(pending.records)

    def discard(self, pending: PendingTransaction) -> None:
        """Drops a transaction's records, in memory and on disk. Repeating it changes nothing."""
        if pending.run is not None and self._store is not None:
            run, pending.run = pending.run, None
            pending.run_records = pending.run_bytes = 0
            self._store.delete(run)
        pending.records = []
        self._uncharge(pending)
        if pending.counted:
            pending.counted = False
            self.memory_bytes -= TRANSACTION_OVERHEAD_BYTES

    def _uncharge(self, pending: PendingTransaction) -> None:
        self.memory_bytes -= pending.charged_bytes
        pending.charged_bytes = 0
        pending.charged_records = 0
        pending.charges = []


def _content_bytes(records: list[Record]) -> int:
    count: Callable[[list[Record]], int | None] | None
    count = getattr(type(records[0]), "content_bytes", None)  # of the extension's messages, in C
    counted: int | None = None if count is None else count(records)
    if counted is not None:
        return counted
    return sum(map(len, records)) + sum(map(len, filter(None, map(_key_of, records))))


def _further_headers_bytes(records: Sequence[Record]) -> int:
    # The TxId is part of `RECORD_OVERHEAD_BYTES`.
    found = list(map(_headers_of, records))
    first = found[0] or ()
    if len(found) > 1 and found[-1] == first and found.count(found[0]) == len(found):
        return len(found) * _header_bytes(first)
    return sum(_header_bytes(headers) for headers in found if headers and len(headers) > 1)


def _header_bytes(headers: Sequence[tuple[str, bytes | None]]) -> int:
    return sum(len(name) + len(raw or b"") + HEADER_OVERHEAD_BYTES for name, raw in headers[1:])
