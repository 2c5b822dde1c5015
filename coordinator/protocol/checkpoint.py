"""The hint that finds a coordinator: a group offset of the journal partition, with metadata.

The offset is where a new owner starts to read, the first chunk of a snapshot that counts (0 where
there is none); the metadata names the owner's epoch and address. The commit is not fenced, so it is
a hint: whoever asks the address learns there whether it still owns the partition.

Source: Transactional Messaging in Kafka, "Transaction coordinator" (the checkpointed high
watermark).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...journal.logs.interface import GroupOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where to read a journal partition from, and whom to ask about it."""

    offset: int
    """Journal offset from which replay gives the whole state."""
    epoch: int
    """Of the owner that wrote this."""
    address: str
    """host:port of that owner."""

    def to_group_offset(self) -> GroupOffset:
        """As it is committed for the group ``logtx-coordinators``."""
        metadata = {"version": 1, "epoch": self.epoch, "address": self.address}
        return GroupOffset(self.offset, json.dumps(metadata, separators=(",", ":")))

    @classmethod
    def from_group_offset(cls, committed: GroupOffset | None) -> Checkpoint | None:
        """Read it back; None where there is none, or none that this version understands."""
        if committed is None:
            return None
        try:
            metadata = json.loads(committed.metadata)
            epoch, address = int(metadata["epoch"]), str(metadata["address"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        return cls(offset=committed.offset, epoch=epoch, address=address)
