"""The hint by which a coordinator is found: a group offset of the journal partition, with metadata.

The offset is where a new owner starts to read: the first chunk of a snapshot that counts, or 0 if
there is none. The metadata names the owner's epoch and address. The commit is not fenced, so it is
only a hint: a client that asks at the address learns there whether it still owns the partition.

Source: Transactional Messaging in Kafka, "Transaction coordinator" (the checkpointed high
watermark).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...journal.logs.interface import GroupOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where to start reading a journal partition, and which coordinator to ask about it."""

    offset: int
    """Journal offset from which replay gives the whole state."""
    epoch: int
    """Epoch of the owner that wrote the checkpoint."""
    address: str
    """host:port of that owner."""

    def to_group_offset(self) -> GroupOffset:
        """Returns the group offset to commit for the group ``logtx-coordinators``."""
        metadata = {"version": 1, "epoch": self.epoch, "address": self.address}
        return GroupOffset(self.offset, json.dumps(metadata, separators=(",", ":")))

    @classmethod
    def from_group_offset(cls, committed: GroupOffset | None) -> Checkpoint | None:
        """Reads a checkpoint back.

        Returns None if nothing is committed, or nothing that this version understands.
        """
        if committed is None:
            return None
        try:
            metadata = json.loads(committed.metadata)
            epoch, address = int(metadata["epoch"]), str(metadata["address"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        return cls(offset=committed.offset, epoch=epoch, address=address)
