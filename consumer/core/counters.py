"""Counters of consumers, for `Consumer.stats` and `ShareConsumer.stats`."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class ConsumerCounters:
    """Counts since the consumer was made. They never decrease."""

    delivered_records: int = 0
    """Records handed to the application."""
    late_records: int = 0
    """Records dropped because their marker does not accept them or their transaction had ended."""
    duplicate_markers: int = 0
    """Markers of transactions that had already ended in the same partition."""
    foreign_markers: int = 0
    """Markers passed over because the records that they claim were in a deleted topic of that name:
    they claim offsets at their own or behind it, or name that topic's id."""
    malformed_headers: int = 0
    """Records whose TxId or TxCtl does not decode."""
    torn_transactions: int = 0
    """Committed transactions skipped because retention had deleted a part of their records."""
    discarded_transactions: int = 0
    """Pending transactions dropped without a marker: below a marker's HW, or after a look-up."""
    skipped_transactions: int = 0
    """Decisions skipped in serial order because their markers lie before this consumer's start."""
    passed_records: int = 0
    """Plain records, and records of other transaction groups, that a serializable consumer or
    `transactions()` passed over: they have no place in the group's serial order."""
    misplaced_transactions: int = 0
    """Transactions delivered behind their place: a broker told an end of the past. Readers that
    come later deliver them before records that came here first."""
    pointers: int = 0
    """Committed transactions whose records are, wholly or in part, in a sidecar."""
    sidecar_records: int = 0
    """Records of theirs that were read in sidecars."""
    sidecar_passed: int = 0
    """Records that were read in sidecars and passed over: those of other transactions between them,
    and late ones."""
    relocated_pointers: int = 0
    """Times that a pointer's records were read in a copy, for they were trimmed where they lay: the
    sidecar was compacted."""
    copied_pointers: int = 0
    """Pointers passed over because the sidecar has lost what they name, and retention the place
    where a first one may have been."""
    side_reads: int = 0
    """Transactions that needed a side read."""
    look_ups: int = 0
    """Look-ups of pending transactions in the journal."""
    spilled_bytes: int = 0
    """Bytes of pending records written to disk."""

    def as_dict(self) -> dict[str, int]:
        """Returns the counts by name."""
        return asdict(self)


@dataclass(slots=True)
class ShareCounters:
    """Counts since a queue's consumer was made. They never decrease."""

    delivered_records: int = 0
    """Messages handed to the application."""
    redelivered_records: int = 0
    """Those of them that were given out before."""
    rejected_records: int = 0
    """Messages that the application rejected."""
    exhausted_records: int = 0
    """Messages that came once more than ``share.delivery.count.limit`` allows: given up."""
    gone_transactions: int = 0
    """Committed transactions passed over because retention had taken their places in the topic, or
    what they have there."""
    dead_letters: int = 0
    """Dead letters that this consumer wrote and committed. Those that are part of a transaction of
    the application are not counted."""
    conflicts: int = 0
    """Acknowledgements in transactions that were refused: another one came first."""

    def as_dict(self) -> dict[str, int]:
        """Returns the counts by name."""
        return asdict(self)
