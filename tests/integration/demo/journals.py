"""A journal written by hand into a view of the demo."""

from __future__ import annotations

from logtx.integration.demo.journal_view import JournalView, Key
from logtx.journal.control import BranchRange
from logtx.journal.position import Position
from logtx.journal.records import types as r

INCARNATION = 7
LEDGER = r.DataPartition("airport_ledger", 0)
STEP = r.OffsetStep("flights", 0, None, Position.at(1))


class Journal:
    """Writes one partition of a journal into a view."""

    def __init__(self, view: JournalView, start: int = 0, partition: int = 0) -> None:
        self.view = view
        self.partition = partition
        self.offset = start
        self.epoch = -1

    def append(self, record: r.JournalRecord, epoch: int | None = None) -> int:
        offset, self.offset = self.offset, self.offset + 1
        at = self.epoch if epoch is None else epoch
        self.view.feed(self.partition, offset, r.Entry(at, INCARNATION, record, offset))
        return offset

    def own(self, replaces: int | None = None, address: str = "a:1") -> None:
        replaced = self.epoch if replaces is None else replaces
        owner = r.Owner(replaces=replaced, address=address, process_nonce=1)
        offset = self.append(owner, replaced)
        if self.view.owners[self.partition].epoch == offset:
            self.epoch = offset

    def begin(self, producer_id: str = "ledger-0") -> Key:
        return self.partition, self.append(begin_record(producer_id))

    def write(self, key: Key) -> None:
        self.append(r.AddOffsets(begin=key[1], group="g", steps=(STEP,)))

    def commit(self, key: Key, epoch: int | None = None, count: int = 4) -> None:
        self.append(commit_record(key[1], count), epoch)

    def abort(self, key: Key, reason: r.AbortReason = r.AbortReason.FENCED) -> None:
        self.append(r.PrepareAbort(begin=key[1], reason=reason, decided_ms=0))

    def finish(self, key: Key, committed: bool = True) -> None:
        begin = key[1]
        self.append(r.Committed(begin=begin) if committed else r.Aborted(begin=begin))


def begin_record(producer_id: str) -> r.Begin:
    return r.Begin(
        producer_id=producer_id,
        generation=0,
        session_nonce=1,
        request_id=1,
        answered_below=1,
        timeout_ms=60_000,
        started_ms=0,
    )


def commit_record(begin: int, count: int = 4) -> r.PrepareCommit:
    writes = r.PartitionWrites(LEDGER, (BranchRange(0, 0, count - 1, count),))
    return r.PrepareCommit(begin=begin, writes=(writes,), decided_ms=0)
