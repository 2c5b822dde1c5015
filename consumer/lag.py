"""Tells how far a consumer is behind in a partition, and which transaction holds its offset back.

Both are counted in offsets, which include everything that stands in a partition: also markers, and
records of open and aborted transactions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from ..journal.logs.interface import Log
from ..journal.state import State
from ..journal.txid import TxId
from .assigned import Assigned
from .core.entries import EndedTransaction, EntryState
from .core.looks import OFFSET_TIMEOUT_S
from .core.pending import PendingTransaction, PendingTransactionMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Where a consumer stands in one partition."""

    topic: str
    partition: int
    end_offset: int
    """Kafka's high watermark: the offset after the last record that consumers may read."""
    offset: int
    """o2: everything below is delivered, or pending, or not for the application."""
    first_pending_offset: int
    """o1: what Kafka's own tools show as the group's offset once it is committed."""

    @property
    def lag(self) -> int:
        """Offsets from o2 to the end, 0 when caught up: an open transaction is no lag."""
        return max(0, self.end_offset - self.offset)

    @property
    def held(self) -> int:
        """Offsets from o1 to o2: what a restart reads again."""
        return self.offset - self.first_pending_offset


def lag(assigned: Assigned, log: Log) -> Lag:
    """Returns how far a consumer is behind in a partition.

    Raises:
        BrokerError: the broker did not return the partition's end.
    """
    topic, partition = assigned.key
    place = assigned.buffer.position()
    return Lag(
        topic=topic,
        partition=partition,
        end_offset=log.end_offset(topic, partition, timeout_s=OFFSET_TIMEOUT_S),
        offset=place.o2,
        first_pending_offset=place.o1,
    )


class HeldBy(StrEnum):
    """What the transaction that holds o1 waits for."""

    MARKER = "marker"
    """It is pending: the consumer has not read a marker of it."""
    DELIVERY = "delivery"
    """It is committed; the application has not taken all of it, or of what stands before it."""
    SIDE_READ = "side read"
    """It is committed; a side read fetches the records that the buffer does not hold."""
    PLACING = "placing"
    """It is committed, and its place is not known: the coordinator has not asked for the
    partition's end yet. Records behind it wait, too."""
    ERROR = "error"
    """It can't be delivered: `Consumer.poll` raises the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """The oldest undelivered transaction of a partition, at which o1 stands while o2 goes on."""

    topic: str
    partition: int
    offset: int
    """o1: offset of the transaction's first record."""
    txid: TxId
    held_by: HeldBy
    age_s: float | None
    """Its age in seconds, by the timestamp of its first record. That is from the producer's clock,
    or the broker's if the topic is configured so; None if the record has none."""
    seen_s: float | None
    """Seconds since this consumer first saw it pending; None until then, at most a second."""
    records: int
    """Its records in this partition, in memory and spilled."""
    memory_bytes: int
    """Size of those in memory: keys, values and overhead."""
    spilled_bytes: int
    """Size of those on disk: keys, values, and headers other than the TxId."""
    state: State | None
    """Its state in the journal, as the last look-up found it; None before one. A transaction is
    looked up when it has been pending for ``pending.lookup.age.ms``."""

    def as_dict(self) -> dict[str, object]:
        """Returns the values by name, in plain types."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "txid": str(self.txid),
            "held_by": str(self.held_by),
            "age_s": self.age_s,
            "seen_s": self.seen_s,
            "records": self.records,
            "memory_bytes": self.memory_bytes,
            "spilled_bytes": self.spilled_bytes,
            "state": None if self.state is None else self.state.value,
        }


_HELD_BY: Final = {
    EntryState.READY: HeldBy.DELIVERY,
    EntryState.WAITING: HeldBy.SIDE_READ,
    EntryState.STREAMING: HeldBy.DELIVERY,
    EntryState.FAILED: HeldBy.ERROR,
}


def held_back(
    assigned: Assigned, pending_map: PendingTransactionMap, *, now_s: float, wall_s: float
) -> HeldBack | None:
    """Returns the transaction that holds a partition's o1; None if none does.

    Args:
        assigned: the partition.
        pending_map: where its transactions are kept.
        now_s: the present time on the clock of `PendingTransaction.since`.
        wall_s: the present time in seconds since 1970.

    Raises:
        SpillError: the transaction was spilled and can't be read back.
    """
    holder = assigned.buffer.holding()
    if holder is None:
        return _placing(assigned)
    if isinstance(holder, EndedTransaction):
        held_by, pending = _HELD_BY[holder.state], holder.pending
    else:
        held_by, pending = HeldBy.MARKER, holder
        if assigned.home is not None and assigned.home.is_placing(holder.txid):
            held_by = HeldBy.PLACING
    written_ms = None if pending is None else _written_ms(pending, pending_map)
    since = None if pending is None else pending.since
    return HeldBack(
        topic=assigned.key[0],
        partition=assigned.key[1],
        offset=holder.first_offset,
        txid=TxId.from_bytes(holder.txid),
        held_by=held_by,
        age_s=None if written_ms is None else max(0.0, wall_s - written_ms / 1000),
        seen_s=None if since is None else now_s - since,
        records=0 if pending is None else pending.count,
        memory_bytes=0 if pending is None else pending.charged_bytes,
        spilled_bytes=0 if pending is None else pending.run_bytes,
        state=None if pending is None else pending.state,
    )


def _placing(assigned: Assigned) -> HeldBack | None:
    # Nothing that was passed on holds o1. What was not waits for a place, if for anything.
    home = assigned.home
    due = None if home is None else home.placing()
    if home is None or due is None:
        return None
    return HeldBack(
        topic=assigned.key[0],
        partition=assigned.key[1],
        offset=assigned.buffer.position().o2,
        txid=due.txid or TxId(*home.home, due.begin),
        held_by=HeldBy.PLACING,
        age_s=None,
        seen_s=None,
        records=sum(r.count for r in due.branches),
        memory_bytes=0,
        spilled_bytes=0,
        state=State.COMMITTING,
    )


def _written_ms(pending: PendingTransaction, pending_map: PendingTransactionMap) -> int | None:
    # Kept: for a spilled transaction this reads a piece back from disk.
    if pending.written_ms is None:
        first = next(iter(pending_map.stream(pending)), None)
        if first is not None:
            kind, pending.written_ms = cast(Message, first).timestamp()
            if kind == TIMESTAMP_NOT_AVAILABLE:
                pending.written_ms = None
    return pending.written_ms
