"""What single deliveries show: aborted, intermediate and dirty reads, records of zombies."""

from __future__ import annotations

from .facts import Facts, Truth, parse_txid
from .findings import (
    Evidence,
    Findings,
    acknowledged,
    appended,
    asked,
    at,
    decided,
    delivered,
    ended,
    ends_at,
    lies,
    name_of,
    seen_at,
)
from .history import Op, Segment
from .journal import Partition
from .logs import Standing, View

_NEVER = 2**63


def check_reads(facts: Facts, found: Findings) -> None:
    """Finds g1a, dirty-read, intermediate-read and zombie-write."""
    due = _due(facts)
    for reader in facts.history.readers:
        if reader.isolation == "read_uncommitted":
            continue
        for segment in reader.segments:
            _check_segment(facts, segment, due, found)


def _due(facts: Facts) -> list[int]:
    """Returns, by value, the time before which no reader of committed records may get it."""
    due = [_NEVER] * len(facts.history.names)
    for value, append in facts.history.appends.items():
        op = append.op
        if op is None:
            due[value] = append.line.at
        elif _may_be_committed(facts, op):
            # If no commit was requested, it is aborted-but-committed: once, and not per delivery.
            due[value] = append.line.at if op.asked is None else op.asked.at
    return due


def _may_be_committed(facts: Facts, op: Op) -> bool:
    truth = facts.truth(op)
    if truth is Truth.UNKNOWN:
        return op.outcome != "aborted" and (op.asked is not None or op.acknowledged)
    return truth is Truth.COMMITTED


def _check_segment(facts: Facts, segment: Segment, due: list[int], found: Findings) -> None:
    view = facts.views[segment.partition]
    for index, value in enumerate(segment.values):
        if segment.ats[index] < due[value]:
            _report(facts, segment, index, found)
        elif view.standing.get(segment.offsets[index]) is Standing.LATE:
            offset = segment.offsets[index]
            found.add(
                "zombie-write",
                f"{segment.reader.process} was given {name_of(facts, value)} at"
                f" {at(segment.partition, offset)}, which its transaction's end does not cover",
                delivered(facts, segment, index),
                *_end_of(facts, view, offset),
                lies(facts, segment.partition, offset),
            )


def _end_of(facts: Facts, view: View, offset: int) -> tuple[Evidence, ...]:
    txid = view.records[offset].txid
    end = None if txid is None else view.end_of(txid)
    return () if end is None else (ends_at(facts, view, end),)


def _report(facts: Facts, segment: Segment, index: int, found: Findings) -> None:
    value, when = segment.values[index], segment.ats[index]
    op, who = facts.op_of(value), segment.reader.process
    what = f"{who} was given {name_of(facts, value)}"
    delivery = delivered(facts, segment, index)
    if op is None:
        sentence = f"{what}, which nobody had appended"
        found.add("dirty-read", sentence, delivery)
        return
    append = facts.history.appends[value]
    evidence = appended(facts, append), delivery, ended(op), *_decision(facts, op)
    truth = facts.truth(op)
    if truth is Truth.ABORTED or (truth is Truth.UNKNOWN and op.outcome == "aborted"):
        found.add("g1a", f"{what} of {op.name}, which was aborted", *evidence)
        return
    if last := next((a for a in reversed(op.appends) if a.line.at > when), None):
        found.add(
            "intermediate-read",
            f"{what} while {op.name} was still writing",
            delivery,
            appended(facts, last),
        )
    elif op.asked is None or op.asked.at > when:
        sentence = f"{what} before the commit of {op.name} was asked for"
        found.add("dirty-read", sentence, delivery, asked(op))
    else:
        found.add("dirty-read", f"{what} of {op.name}, which is not decided", *evidence)


def _decision(facts: Facts, op: Op) -> tuple[Evidence, ...]:
    txid = facts.txid(op)
    fate = None if txid is None else facts.fate(txid)
    return () if fate is None else (decided(fate),)


def check_offsets(facts: Facts, found: Findings) -> None:
    """Finds inconsistent-offsets: two processes, or one and the log, disagree on an offset."""
    for partition, offset, one, other in facts.history.contradictions:
        found.add(
            "inconsistent-offsets",
            f"two things at {at(partition, offset)}: {one.line.process} and {other.line.process}"
            " disagree",
            seen_at(facts, partition, offset, one),
            seen_at(facts, partition, offset, other),
        )
    for partition, seen in facts.history.sightings.items():
        view = facts.views[partition]
        for offset, sighting in seen.items():
            if offset < view.start:
                facts.unverifiable["offset below the log's start"] += 1
                continue
            if difference := _differs(facts, view, offset):
                found.add(
                    "inconsistent-offsets",
                    f"{at(partition, offset)}: {sighting.line.process} was told {difference}",
                    seen_at(facts, partition, offset, sighting),
                    lies(facts, partition, offset),
                )


def _differs(facts: Facts, view: View, offset: int) -> str | None:
    sighting = facts.history.sightings[view.partition][offset]
    record = view.records.get(offset)
    if record is None:
        return None if view.is_beyond(offset) else "of a record where the log has none"
    if record.value != sighting.value:
        return "another value than the log has"
    if sighting.txid is not None and parse_txid(sighting.txid) != record.txid:
        return "another transaction than the log has"
    end = None if record.txid is None else view.end_of(record.txid)
    sequence = sighting.commit_sequence
    if sequence is not None and end and sequence != end.commit_sequence:
        return f"another commit sequence than the {'place' if end.is_place else 'marker'} has"
    return None


def check_acknowledged(facts: Facts, found: Findings) -> None:
    """Finds lost-write: a log ends below an offset that was acknowledged or delivered."""
    lost: dict[Partition, int] = {}
    for partition, seen in facts.history.sightings.items():
        view = facts.views[partition]
        beyond = sorted(offset for offset in seen if view.is_beyond(offset))
        lost.update({partition: beyond[0]} if beyond else {})
    for partition, offset in lost.items():
        sighting = facts.history.sightings[partition][offset]
        append = facts.history.appends.get(sighting.value)
        evidence = [seen_at(facts, partition, offset, sighting), lies(facts, partition, offset)]
        if append is not None and append.acked is not None:
            evidence.insert(0, acknowledged(facts, append))
        found.add(
            "lost-write",
            f"{name_of(facts, sighting.value)} was at {at(partition, offset)}, and the log ends"
            f" at {facts.views[partition].end}",
            *evidence,
        )
