"""Checker of serializable readers; it sees a `History` and nothing of the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise

from logtx.journal.txid import TxId

from .history import Given, History, Resumed, Serial
from .reference import Reading

Place = tuple[tuple[str, int], int]
"""Data partition and offset."""
Due = dict[int, tuple[TxId, list[Place]]]
"""Commit sequence → transaction, and its records in the order of delivery."""


def serial_order(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 4: one group's transactions in commit-sequence order, each whole and once."""
    for name, seen in history.serial.items():
        if seen.failure:
            yield f"{name} stopped: {seen.failure}"
        for what in _wrong(history, reading, seen):
            yield f"{name} {what}"


def _wrong(history: History, reading: Reading, seen: Serial) -> Iterator[str]:
    due = _due(reading, seen)
    kept: list[tuple[int, Place]] = []
    is_restarted = False
    for event in seen.events:
        if isinstance(event, Resumed):
            del kept[event.kept :]
            is_restarted = True
            continue
        sequence = _sequence(reading, event)
        if sequence is None:
            yield f"got {event}, whose transaction was not committed"
            return
        kept.append((sequence, (event.partition, event.offset)))
    if is_restarted:
        kept = [
            each for each in kept if each[0] in due or not _is_placed_below(reading, seen, each)
        ]
    got = [(s, [place for _, place in items]) for s, items in groupby(kept, lambda item: item[0])]
    for (before, _), (after, _) in pairwise(got):
        if after <= before:
            yield f"got the transaction of sequence {after} behind that of {before}"
            return
    for number, (sequence, places) in enumerate(got):
        wanted = due.get(sequence, (None, []))[1]
        # It may have got only a part of the last transaction so far.
        if places != (wanted if number < len(got) - 1 else wanted[: len(places)]):
            yield f"got {places} of the transaction of sequence {sequence}, not {wanted}"
    last = got[-1][0] if got else -1
    delivered = {sequence for sequence, _ in got}
    missing = [s for s in due if s < last and s not in delivered]
    if missing:
        yield f"got nothing of the transactions of sequences {missing}, and {last}"
    is_over = history.settled_ms is not None and not history.unfinished
    if is_over and history.crash is None:
        rest = sum(len(places) for _, places in due.values()) - len(kept)
        if rest:
            yield f"never got {rest} records that were due"


def _due(reading: Reading, seen: Serial) -> Due:
    due: Due = {}
    given = {(e.partition, e.offset) for e in seen.events if isinstance(e, Given)}
    for key, start in sorted(seen.starts.items()):
        partition = reading.partitions.get(key)
        records: dict[TxId, list[int]] = {}
        for _, offset in partition.expected if partition else ():
            txid = partition.txids.get(offset) if partition else None
            if txid is not None:
                records.setdefault(txid, []).append(offset)
        for place, offset in partition.expected if partition else ():
            txid = partition.txids.get(offset) if partition else None
            if txid is None or txid.partition != seen.journal:
                continue
            found = reading.transaction(txid)
            assert found is not None
            assert found.decision is not None
            is_due = place >= start
            if key in found.decision.handed:
                # It ends behind its last record, for this reader, also if the home refuses it and
                # its marker comes later. Where the decision is trimmed, the marker ends it.
                by_marker = any((key, each) in given for each in records[txid])
                is_due = max(records[txid]) >= start or (is_due and by_marker)
            if is_due:
                due.setdefault(found.decision.sequence, (txid, []))[1].append((key, offset))
    return due


def _is_placed_below(reading: Reading, seen: Serial, given: tuple[int, Place]) -> bool:
    """Returns whether a record was placed below the reader's start. It may get such a one where it
    was restarted in front of a record from below its start: it can't tell it from one of which a
    broker told too low an end, which it held when it was restarted."""
    _, (key, offset) = given
    return any(
        o == offset and place < seen.starts[key] for place, o in reading.partitions[key].expected
    )


def _sequence(reading: Reading, given: Given) -> int | None:
    """Returns the commit sequence of a record's transaction; None if not committed by then."""
    txid = reading.partitions[given.partition].txids.get(given.offset)
    found = reading.transaction(txid) if txid is not None else None
    decision = found.decision if found else None
    if decision is None or not decision.committed or decision.at > given.at:
        return None
    return decision.sequence
