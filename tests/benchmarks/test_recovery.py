"""The benchmark of loading: the journal that it makes up is one that a coordinator loads."""

from __future__ import annotations

from logtx.benchmarks.recovery.history import OPEN, History
from logtx.coordinator.core.shard import Shard
from logtx.journal.records.codec import decode_entry
from logtx.journal.state import State


def test_its_journal_loads() -> None:
    values = [v for taken in History(2 * OPEN + 200, producers=20).values() for v in taken]
    shard = Shard(0)
    for offset, value in enumerate(values):
        shard.replay(offset, decode_entry(value))
    assert shard.next_offset == len(values)
    assert [t.state for t in shard.transactions] == [State.OPEN] * OPEN
