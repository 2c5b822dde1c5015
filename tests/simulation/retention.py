"""Retention of the simulated world's data: deletes what no reader needs.

It deletes no record of a transaction that ends above: a reader that begins at the log's start would
find it torn, which is another matter (`torn.reset`).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from logtx.journal.control import TopicPartition
from logtx.journal.txid import TxId

from .reference import Partition, Reading
from .setting import Setting


def retain(setting: Setting, needed: Mapping[TopicPartition, int], draw: Random) -> None:
    """Deletes the start of some data partitions.

    Args:
        setting: of the world.
        needed: data partition → offset from which on some reader needs it.
        draw: says how much of it.
    """
    reading = Reading(setting.history)
    for key, upto in needed.items():
        start = setting.broker.data_starts.get(key, 0)
        partition = reading.partitions.get(key)
        if partition is None or upto <= start or draw.random() < 0.3:
            continue
        bound = min(upto, len(partition.records))
        wanted = draw.choice((bound, draw.randint(start, bound)))
        setting.broker.trim_data(key, whole_below(partition, reading, wanted))


def whole_below(partition: Partition, reading: Reading, wanted: int) -> int:
    """Returns the highest offset up to `wanted` below which no transaction lies in part."""
    ends = {offset: place for place, offset in partition.expected}
    last = {m.txid: m.record.offset() for m in partition.markers}
    start = wanted
    while True:
        torn = [
            offset
            for offset, txid in partition.txids.items()
            if offset < start
            and not _is_over(reading, txid, ends.get(offset), last.get(txid, -1), start)
        ]
        # A reader that begins between a pointer and its copy delivers at the copy.
        torn += [
            offset
            for m in partition.markers
            if m.marker.is_pointer
            and (offset := m.record.offset()) < start
            and not _is_over(reading, m.txid, offset, last[m.txid], start)
        ]
        if not torn:
            return start
        start = min(torn)


def _is_over(reading: Reading, txid: TxId, place: int | None, marker: int, start: int) -> bool:
    found = reading.transaction(txid)
    decision = found.decision if found is not None else None
    if found is None or decision is None:
        return False
    # One that is committed and has no end yet may still get one above. And as long as it is not
    # finished, its marker may be written again: a reader that begins between the two finds a marker
    # whose records are gone.
    is_over = found.finished_at is not None and place is not None and max(place, marker) < start
    return is_over or not decision.committed
