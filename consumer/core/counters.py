"""What a consumer counts, for `Consumer.stats`."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class ConsumerCounters:
    """Plain counts since the consumer was made; only ever added to."""

    delivered_records: int = 0
    """Records handed to the application."""
    late_records: int = 0
    """Records dropped: outside what their marker states, or of a transaction that had ended."""
    duplicate_markers: int = 0
    """Markers of a transaction that had ended before in the same partition."""
    malformed_headers: int = 0
    """Records whose TxId or TxCtl does not decode."""
    torn_transactions: int = 0
    """Committed transactions skipped, for retention had taken part of their records."""
    discarded_transactions: int = 0
    """Pending transactions dropped without a marker: below a marker's HW, or looked up."""
    skipped_transactions: int = 0
    """Decisions that `transactions()` skipped: their markers lie before this consumer's start."""
    passed_records: int = 0
    """Plain records, and records of other transaction groups, that a serializable consumer or
    `transactions()` passed over: they have no place in the group's serial order."""
    side_reads: int = 0
    """Transactions that a side read was asked for."""
    look_ups: int = 0
    """Pending transactions whose fate was asked of the journal."""
    spilled_bytes: int = 0
    """Bytes of pending records written to disk."""

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)
