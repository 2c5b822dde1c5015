"""Checker of readers of uncommitted records; it sees a `History` and nothing of the simulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from logtx.journal.sidecar import is_delivered_from_sidecar

from .history import Consumed, Delivered, History, Resumed
from .reference import Partition, Reading


def shown(history: History, reading: Reading) -> Iterator[str]:
    """Readers of uncommitted records get each record once, those of the topic at their offsets; of
    a sidecar what is committed, in commit-sequence order."""
    for name, consumed in history.shown.items():
        partition = reading.partitions.get(consumed.partition)
        if partition is None:
            continue
        for what in _wrong(history, reading, partition, name, consumed):
            yield f"{name} {what}"


def _wrong(
    history: History, reading: Reading, partition: Partition, name: str, consumed: Consumed
) -> Iterator[str]:
    kept, ever = _kept(consumed)
    own = [offset for offset in kept if not is_delivered_from_sidecar(offset)]
    aside = [offset for offset in kept if is_delivered_from_sidecar(offset)]
    if any(a >= b for a, b in pairwise(own)):
        yield f"got offsets of the topic in the order {own}"
    if twice := [offset for offset, count in Counter(aside).items() if count > 1]:
        yield f"got {twice} more than once"
    hidden = {m.record.offset() for m in partition.markers}
    hidden |= {record.offset() for _, _, record in partition.mode_records}
    if strangers := sorted(hidden & set(own)):
        yield f"got {strangers}, which are no data"
    yield from _of_the_sidecar(reading, partition, aside, ever)
    if consumed.failure:
        yield f"stopped: {consumed.failure}"
    settled = history.settled_ms is not None and not history.unfinished
    # Who is told of the past begins without a home, and holds nothing that would tell it.
    misled = history.was_told_old_modes(name)
    if not settled or consumed.failure:
        return
    start = consumed.start
    due = {r.offset() for r in partition.records if r.offset() >= start} - hidden
    if not misled:
        due |= {o for place, o in partition.expected if place >= start and _is_aside(o)}
    if lost := sorted(due - set(kept)):
        yield f"never got {lost}"


def _of_the_sidecar(
    reading: Reading, partition: Partition, aside: list[int], ever: list[Delivered]
) -> Iterator[str]:
    expected = {offset for _, offset in partition.expected}
    if strangers := sorted(set(aside) - expected):
        yield f"got {strangers} of the sidecar, which nobody may get"
    for delivered in filter(lambda each: _is_aside(each.offset), ever):
        txid = partition.txids[delivered.offset]
        found = reading.transaction(txid)
        decision = found.decision if found else None
        if decision is None or not decision.committed or decision.at > delivered.at:
            yield f"got offset {delivered.offset} of {txid}: {decision}"
    sequences = {end.txid: end.sequence for end in partition.ends}
    placed = [(sequences[txid], o) for o in aside if (txid := partition.placed.get(o)) is not None]
    if any(a > b for a, b in pairwise(placed)):
        yield f"got what is placed in the order {placed}"


def _kept(consumed: Consumed) -> tuple[list[int], list[Delivered]]:
    """Returns the offsets that no later restart took back, and everything that was delivered."""
    kept: list[int] = []
    ever = []
    for event in consumed.events:
        if isinstance(event, Delivered):
            kept.append(event.offset)
            ever.append(event)
        elif isinstance(event, Resumed):
            del kept[event.kept :]
    return kept, ever


def _is_aside(offset: int) -> bool:
    return is_delivered_from_sidecar(offset)
