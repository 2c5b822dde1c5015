"""Checker of sidecars: what pointers say, and what was trimmed; it sees a `History` alone."""

from __future__ import annotations

from collections.abc import Iterator

from logtx.journal.control import TopicPartition
from logtx.journal.places import GONE
from logtx.journal.relocation import decode_relocation, origin_of
from logtx.journal.sidecar import is_sidecar, to_delivered
from logtx.journal.txid import TxId

from .history import DataTrim, History
from .reference import JournalTransaction, MarkerRecord, Partition, Reading, sidecar_key


def sidecars(history: History, reading: Reading) -> Iterator[str]:
    """A pointer says what the decision says, in the main partition; aborts leave it alone."""
    for key, partition in reading.partitions.items():
        if is_sidecar(key[0]):
            yield from _ends(reading, key, partition)
            yield from _trimmed(history, reading, key)
            continue
        yield from _in_the_order_written(history, key, partition)
        for marked in partition.markers:
            for what in _said(history, reading, key, marked):
                yield f"{key} {marked.record.offset()}: {marked.marker} of {marked.txid}: {what}"


def _in_the_order_written(
    history: History, key: TopicPartition, partition: Partition
) -> Iterator[str]:
    """Yields what is delivered behind a record that its writer wrote later."""
    inside, aside = partition.records, history.data.get(sidecar_key(key), ())
    values = {record.offset(): record.value() for record in inside}
    values |= {to_delivered(record.offset()): record.value() for record in aside}
    writers = {o: (txid, b) for txid, found in partition.by_txid.items() for b, o in found}
    writers |= {
        to_delivered(o): (txid, b) for txid, found in partition.sidecar.items() for b, o in found
    }
    newest: dict[tuple[TxId, int], int] = {}
    for _, offset in partition.expected:
        writer = writers.get(offset)
        if writer is None:
            continue  # A plain record.
        # A producer numbers its values.
        number = int((values[offset] or b"").rpartition(b"/")[2])
        if number < newest.get(writer, -1):
            yield f"{key} {offset}: {writer} wrote it earlier than what is delivered before it"
        newest[writer] = number


def _said(
    history: History, reading: Reading, key: TopicPartition, marked: MarkerRecord
) -> Iterator[str]:
    found, marker = reading.transaction(marked.txid), marked.marker
    decision = found.decision if found else None
    if found is None or decision is None:
        return  # `durable` says so.
    aside = decision.writes.get(sidecar_key(key), ())
    if not decision.committed:
        if marker.is_pointer:
            yield "it is aborted"
        touched = marked.txid in reading.partitions[key].by_txid or key in found.registered
        if not touched and sidecar_key(key) in found.partitions:
            yield "it wrote to the sidecar alone, and an abort leaves the main partition alone"
        return
    if {*marker.sidecar} != {*aside}:
        yield f"the decision says {aside} of the sidecar"
    if not marker.is_pointer:
        return
    since = decision.since.get(sidecar_key(key))
    if marker.since != since:
        yield f"the decision says since {since}"
    decided_at = decision.at
    end = sum(record.at < decided_at for record in history.data.get(key, ()))
    if marker.since > end:
        yield f"the partition ended at {end} when it was decided"


def _ends(reading: Reading, key: TopicPartition, partition: Partition) -> Iterator[str]:
    """Yields what is wrong with the markers of a sidecar."""
    main = next(k for k in reading.partitions if sidecar_key(k) == key)
    pointers = reading.partitions[main].markers
    for marked in partition.markers:
        if not marked.marker.committed:
            continue
        found = reading.transaction(marked.txid)
        where = f"{key} {marked.record.offset()}: {marked.marker} of {marked.txid}"
        places = [at for p, at in found.places.items() if p.key == main] if found else []
        if places and places != [GONE]:
            if marked.marker.pointer not in places:
                yield f"{where} does not name its place {places}"
            continue
        own = [p.record for p in pointers if p.txid == marked.txid and p.marker.is_pointer]
        before = [record for record in own if record.at < marked.record.at]
        if not before:
            yield f"{where} stands before its pointer"
        elif marked.marker.pointer not in {None, *(record.offset() for record in own)}:
            yield f"{where} names no pointer of it: {[r.offset() for r in own]}"


def _trimmed(history: History, reading: Reading, key: TopicPartition) -> Iterator[str]:
    """Yields what was trimmed, and named by a pointer that was still there, or was to come."""
    trims = [trim for trim in history.data_trims if trim.partition == key]
    main = next(k for k in reading.partitions if sidecar_key(k) == key)
    firsts: dict[TxId, MarkerRecord] = {}
    for marked in reading.partitions[main].markers:
        if marked.marker.is_pointer:
            firsts.setdefault(marked.txid, marked)
    for found in (t for j in reading.journals for t in j.transactions.values()) if trims else ():
        decision = found.decision
        if decision is None or not decision.committed or not decision.writes.get(key):
            continue
        needed = min(r.first_offset for r in decision.writes[key])
        for trim in trims:
            starts = (
                t.before for t in history.data_trims if t.partition == main and t.at < trim.at
            )
            pointer, start = firsts.get(found.txid), max(starts, default=0)
            is_passed = pointer is not None and pointer.record.at < trim.at
            is_passed = is_passed and pointer is not None and pointer.record.offset() < start
            places = [at for p, at in found.places.items() if p.key == main]
            is_passed = is_passed or (bool(places) and max(places) < start)
            if trim.before <= needed or is_passed or key in found.gone:
                continue
            if not _is_copied(history, reading, key, found, trim):
                yield f"{key} was trimmed to {trim.before}, and {found.txid} needs {needed}"


def _is_copied(
    history: History,
    reading: Reading,
    key: TopicPartition,
    found: JournalTransaction,
    trim: DataTrim,
) -> bool:
    """Whether a whole copy lay behind a trim by then, and a relocation said so."""
    assert found.decision is not None
    ranges = found.decision.writes[key]
    due = {
        offset
        for branch, offset in reading.partitions[key].by_txid.get(found.txid, ())
        if any(r.branch == branch and r.first_offset <= offset <= r.last_offset for r in ranges)
    }
    for record in history.relocations:
        said = decode_relocation(record.key(), record.value())
        if said is None or record.at > trim.at or said.sidecar != key:
            continue
        if said.txid != found.txid.to_bytes() or said.first < trim.before:
            continue
        copies = history.data[key][said.first : said.last + 1]
        origins = [origin_of(c.headers() or ()) for c in copies if c.at < trim.at]
        own = {o.offset for o in origins if o and (o.copy_id, o.txid) == (said.copy_id, said.txid)}
        if due <= own:
            return True
    return False
