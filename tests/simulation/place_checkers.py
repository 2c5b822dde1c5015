"""Checker of places; it sees a `History` and nothing of the simulator."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from logtx.journal.modes import Phase
from logtx.journal.places import GONE
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.sidecar import is_delivered_from_sidecar, is_sidecar, main_partition
from logtx.journal.txid import TxId

from .history import Consumed, History, Resumed
from .reference import Journal, JournalTransaction, Partition, Reading


def may_come_late(
    history: History, reading: Reading, partition: Partition, reader: str
) -> frozenset[TxId]:
    """Returns what a reader may deliver behind its place, as a former leader told an end of the
    past: the owner, or the reader itself. Then order may be lost, and nothing else (decision 26).
    """
    if history.was_told_old_modes(reader):
        # It heard too late that the topic was switched.
        return frozenset(end.txid for end in partition.ends)
    found = set(_of_blind_stretches(history, reading, partition))
    for txid, home, sequence, place in partition.ends:
        transaction = reading.transaction(txid)
        decision = transaction.decision if transaction is not None else None
        assert decision is not None, "what is placed is decided"
        gate = (JOURNAL_TOPIC, home)
        for past in history.past_ends:
            if past.at <= decision.at:
                continue
            is_its_place = past.partition == partition.key and past.end <= place
            is_its_gate = past.to == reader and past.partition == gate and past.end <= sequence
            if is_its_place or is_its_gate:
                found.add(txid)
    return frozenset(found)


def lost_unaware(
    history: History, reader: str, consumed: Consumed, partition: Partition
) -> set[int]:
    """Returns the offsets of records that a reader may lose, as a broker told it of no switch: it
    began in the middle, and was restarted before it heard of it (docs/topics.md, known gaps)."""
    if not history.was_told_old_modes(reader):
        return set()
    lives = [each for each in consumed.events if isinstance(each, Resumed)]
    below = max((each.unaware_below for each in lives), default=0)
    # What has a record from its start on is held, and due from there on (trap 279).
    held = {
        txid
        for offset, txid in partition.txids.items()
        if offset >= consumed.start and not is_delivered_from_sidecar(offset)
    }
    return {
        offset
        for place, offset in partition.expected
        if consumed.start <= place < below
        and (txid := partition.placed.get(offset)) is not None
        and txid not in held
    }


def _of_blind_stretches(history: History, reading: Reading, partition: Partition) -> Iterator[TxId]:
    """Yields what is placed since a switch without mode records: no reader that runs is told of it,
    until it looks one of these up (docs/topics.md)."""
    if not history.counts["topic switched without mode records while it is read"]:
        return
    topic = partition.key[0], partition.topic_id
    for txid, home, sequence, _ in partition.ends:
        switches = [
            told
            for record, told in reading.journals[home].modes
            if (told.topic, told.topic_id) == topic
            and told.phase is Phase.METADATA
            and record.offset < sequence
        ]
        if switches and not switches[-1].with_records:
            yield txid


def placed_order(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 4 in metadata mode: places lie where the rules of decision 24 say."""
    for journal in reading.journals:
        for found in journal.transactions.values():
            yield from _placed(history, reading, found)
        yield from _trimmed(history, journal)
    for key, partition in reading.partitions.items():
        if is_sidecar(key[0]):
            continue  # As for `commit_order`.
        last: dict[int, int] = {}
        # A place is before the record at its offset, so before a marker at it.
        ends = [(place, 0, home, sequence, txid) for txid, home, sequence, place in partition.ends]
        ends += [
            (m.record.offset(), 1, m.txid.partition, m.marker.commit_sequence, m.txid)
            for m in partition.markers
            if m.first and key not in history.former
        ]
        for _, _, home, sequence, txid in sorted(ends):
            if sequence < last.get(home, -1):
                yield f"{key}: {txid} of sequence {sequence} ends behind {last[home]} (R4)"
            last[home] = sequence
        yield from _recorded(reading, key)


def _placed(history: History, reading: Reading, found: JournalTransaction) -> Iterator[str]:
    decision = found.decision
    if decision is None or not decision.committed:
        return
    mains = {main_partition(k) for k in decision.since}
    for key in decision.placed & ({k for k, ranges in decision.writes.items() if ranges} | mains):
        partition = reading.partitions.get(key)
        places = [place for p, place in found.places.items() if p.key == key]
        if not places:
            if found.finished_at is not None:
                yield f"{found.txid} is finished and has no place in {key}"
        elif partition is not None and key not in history.former and places[0] != GONE:
            there = bisect_left(partition.records, decision.at, key=lambda record: record.at)
            pasts = (p for p in history.past_ends if p.partition == key and p.at > decision.at)
            if places[0] < there and not any(p.end <= places[0] for p in pasts):
                yield f"{found.txid} is placed at {places[0]} of {key}, {there} was there (R2)"
            if any(m.txid == found.txid for m in partition.markers):
                yield f"{found.txid} is placed in {key}, and has a marker there"


def _trimmed(history: History, journal: Journal) -> Iterator[str]:
    """What readers of the data that is left may need was not trimmed (R14)."""
    for trim in history.trims[journal.partition]:
        last: dict[tuple[str, int], int] = {}
        for record, placed in journal.placings:
            if record.offset < trim.before:
                last.update((p.key, e) for p, e in placed.ends.items() if e != GONE)
        for found in journal.transactions.values():
            # What lies in the sidecar alone is due where the log starts (trap 167).
            decision = found.decision
            for partition, place in found.places.items() if decision is not None else ():
                is_alone = decision is not None and not decision.writes.get(partition.key)
                if is_alone and last.get(partition.key, -1) == place:
                    last[partition.key] = place + 1
        for key, place in last.items():
            starts = (t.before for t in history.data_trims if t.partition == key and t.at < trim.at)
            gone = any(a.topic == key[0] and a.at <= trim.at for a in history.absent)
            if max(starts, default=0) < place and not gone:
                yield (
                    f"journal {journal.partition} was trimmed to {trim.before}, and {key} has data"
                    f" below its place {place} (R14)"
                )


def _recorded(reading: Reading, key: tuple[str, int]) -> Iterator[str]:
    """Each place lies behind the mode record of its stretch (R15)."""
    partition = reading.partitions[key]
    for journal in reading.journals:
        begun = [
            record.offset
            for record, change in journal.modes
            if (change.topic, change.topic_id) == (key[0], partition.topic_id)
            and change.phase is Phase.TO_METADATA
            and change.with_records
        ]
        for offset in begun:
            firsts = [r.offset() for t, _, r in partition.mode_records if t.offset == offset]
            later = [b for b in begun if b > offset]
            for txid, home, sequence, place in partition.ends:
                is_its = home == journal.partition and sequence > offset
                if is_its and not (later and sequence > later[0]) and firsts and place <= firsts[0]:
                    yield f"{key}: {txid} is placed at {place}, the mode record is at {firsts[0]}"
