"""Says in words why a transaction was aborted. Pure."""

from __future__ import annotations

from typing import Final

from ...journal.records.types import AbortReason

_REASONS: Final = {
    AbortReason.EXPIRED: "it was open for longer than its transaction.timeout.ms",
    AbortReason.CLAIMED: (
        "its input partitions were claimed since, by another consumer or to read them again"
    ),
}
"""Texts of the reasons that their own word does not explain."""


def because(reason: AbortReason | None) -> str:
    """Returns an abort's reason as the end of a sentence, "" if there is none."""
    return "" if reason is None else f": {_REASONS.get(reason, reason)}"
