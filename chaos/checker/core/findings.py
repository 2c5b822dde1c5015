"""What the checks find: anomalies, each with the few lines that show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from .facts import Facts, parse_txid
from .history import Append, Line, Op, Segment, Sighting
from .journal import Fate, Partition
from .logs import NO_VALUE, End, View

KEPT: Final = 20
"""Anomalies of each name that are kept, those with the least evidence; the others are only counted.
A larger value makes the report longer."""

MEANINGS: Final[Mapping[str, str]] = {
    "g1a": "a reader of committed records was given one of an aborted transaction",
    "intermediate-read": "a reader was given a record while its transaction was still writing",
    "dirty-read": "a reader was given a record of a transaction that was not committed yet",
    "lost-write": "an acknowledged write is not there, or was passed over by the last readers",
    "unseen": "a committed write behind all that the last readers were given",
    "duplicate": "one value committed at two offsets, or delivered twice within one assignment",
    "plain-twice": "a record outside of any transaction lies at two offsets of a partition",
    "torn-transaction": "a part of a transaction without the rest, or others in between",
    "g0": "write cycle: partitions disagree on the order of commits",
    "g1c": "cycle of writes and reads: each transaction precedes the next one, and the last the"
    " first",
    "inconsistent-offsets": "two values, or two transactions, at one offset",
    "nonmonotonic-poll": "a reader was given records against the order of the log",
    "skipped-poll": "a reader was not given records that stand between those that it was given",
    "committed-but-aborted": "acknowledged as committed, and the log says otherwise",
    "aborted-but-committed": "committed, though its process was told otherwise or never asked",
    "iov-gap": "input that no committed transaction processed, with processed input behind it",
    "iov-overlap": "input that committed transactions processed twice",
    "order-differs": "two readers were given the same records in different orders",
    "zombie-write": "a write of somebody who was fenced, or behind its transaction's end, counts",
    "marker-mismatch": "a marker says something else than the journal's decision",
    "missing-marker": "the journal calls a transaction finished, and a partition has no marker",
    "marker-order": "the first markers of a partition don't stand in commit-sequence order",
    "watermark": "a marker's high watermark passes over a transaction that ends behind it",
    "missing-place": "the journal calls a transaction finished, and a partition has no place of it",
    "place-order": "places fall, or stand against the order of commits, in a partition",
    "misplaced": "a transaction's place lies where it can't: below its own records, or below what"
    " was there when it was decided, or behind the log's end",
    "mode-mismatch": "a decision, a place or a mode record that does not fit the topic's mode",
    "adoption-mismatch": "a home takes a transaction over that was not handed over to it like that",
    "store-mismatch": "the metadata store says otherwise than the journal",
}
"""Anomaly → what it is. docs/chaos-checker.md says how each is found."""


class Evidence(NamedTuple):
    """A line of the history, or a record of a log."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that must not happen, but did."""

    name: str
    sentence: str
    evidence: tuple[Evidence, ...]


class Findings:
    """Collects anomalies."""

    def __init__(self) -> None:
        """Starts empty."""
        self.counts: Counter[str] = Counter()
        self._kept: dict[str, list[Anomaly]] = {}

    def add(self, name: str, sentence: str, *evidence: Evidence) -> None:
        """Notes an anomaly."""
        assert name in MEANINGS, name
        self.counts[name] += 1
        kept = self._kept.setdefault(name, [])
        if len(kept) < KEPT:
            kept.append(Anomaly(name, sentence, evidence))
            return
        longest = max(range(KEPT), key=lambda index: len(kept[index].evidence))
        if len(evidence) < len(kept[longest].evidence):
            kept[longest] = Anomaly(name, sentence, evidence)

    def anomalies(self) -> tuple[Anomaly, ...]:
        """Returns the anomalies that were kept, by name, those with the shortest evidence first."""
        return tuple(
            anomaly
            for name in MEANINGS
            for anomaly in sorted(self._kept.get(name, ()), key=lambda a: len(a.evidence))
        )


def at(partition: Partition, offset: int) -> str:
    """Returns a place as text, such as ``chaos[3]@118``."""
    return f"{partition[0]}[{partition[1]}]@{offset}"


def _in_history(line: Line, what: str) -> Evidence:
    return Evidence(f"{line.process}.jsonl:{line.number}", what)


def name_of(facts: Facts, value: int) -> str:
    """Returns a value as it was written."""
    return repr(facts.history.names[value]) if value != NO_VALUE else "no value"


def appended(facts: Facts, append: Append) -> Evidence:
    """Returns the line before a value was produced."""
    topic, number = append.partition
    by = "plain" if append.op is None else f"in {append.op.name}"
    source = "" if append.source is None else f", made of input {append.source}"
    what = f"append {name_of(facts, append.value)} to {topic}[{number}], {by}{source}"
    return _in_history(append.line, what)


def acknowledged(facts: Facts, append: Append) -> Evidence:
    """Returns the line with the broker's acknowledgement of a value."""
    assert append.acked is not None
    where = at(append.partition, append.offset) if append.offset >= 0 else "its partition"
    return _in_history(append.acked, f"acked {name_of(facts, append.value)} at {where}")


def asked(op: Op) -> Evidence:
    """Returns the line where an operation's commit was requested, or says that it never was."""
    if op.asked is None:
        return _in_history(op.begun, f"begin {op.name}; its commit is never asked for")
    return _in_history(op.asked, f"commit of {op.name} is asked for")


def ended(op: Op) -> Evidence:
    """Returns the line where a process was told an operation's end, or says that it never was."""
    if op.ended is None:
        return _in_history(op.begun, f"begin {op.name}; its end is never told")
    sequence = "" if op.commit_sequence is None else f", commit sequence {op.commit_sequence}"
    return _in_history(op.ended, f"end {op.name}: {op.outcome}{sequence}")


def delivered(facts: Facts, segment: Segment, index: int) -> Evidence:
    """Returns the line where a reader was given a record."""
    value, offset = segment.values[index], segment.offsets[index]
    op = facts.op_of(value)
    by = "plain" if op is None else f"of {op.name}"
    where = at(segment.partition, offset)
    what = f"poll {segment.reader.isolation}: {where} {name_of(facts, value)} {by}"
    return _in_history(segment.line(index), what)


def seen_at(facts: Facts, partition: Partition, offset: int, sighting: Sighting) -> Evidence:
    """Returns the line where a process was told of an offset."""
    of = "" if sighting.txid is None else f" of transaction {parse_txid(sighting.txid)}"
    sequence = sighting.commit_sequence
    with_it = "" if sequence is None else f", commit sequence {sequence}"
    what = f"{at(partition, offset)} is {name_of(facts, sighting.value)}{of}{with_it}"
    return _in_history(sighting.line, what)


def lies(facts: Facts, partition: Partition, offset: int) -> Evidence:
    """Returns what the log has at an offset."""
    view = facts.views[partition]
    record = view.records.get(offset)
    if record is None:
        what = f"nothing; the log was dumped from {view.start} to {view.end}"
        return Evidence(at(partition, offset), what)
    of = "" if record.txid is None else f" of transaction {record.txid}"
    if record.control is not None and record.control.is_marker:
        kind = "COMMITTED" if record.control.committed else "ABORTED"
        what = f"marker {kind}{of}, commit sequence {record.control.commit_sequence}"
        return Evidence(at(partition, offset), what)
    if record.control is not None and record.control.is_mode_record:
        return Evidence(
            at(partition, offset), f"mode record of a switch that began at {record.txid}"
        )
    standing = view.standing.get(offset)
    note = "" if standing is None else f", {standing.name.lower()}"
    by = "" if record.op is None else f", written by {record.op}"
    return Evidence(at(partition, offset), f"{name_of(facts, record.value)}{of}{by}{note}")


def ends_at(facts: Facts, view: View, end: End) -> Evidence:
    """Returns what says where a transaction ends: its marker, or the PLACED record."""
    if end.placed is None:
        return lies(facts, view.partition, end.offset)
    what = f"PLACED: {end.txid} ends before {at(view.partition, end.offset)}"
    what += f", commit sequence {end.commit_sequence}"
    return Evidence(f"journal[{end.placed.home}]@{end.placed.offset}", what)


def decided(fate: Fate) -> Evidence:
    """Returns what the journal says of a transaction."""
    number = fate.txid.partition
    if fate.decided is None:
        return Evidence(f"journal[{number}]@{fate.txid.begin}", f"BEGIN {fate.txid}; undecided")
    what = "PREPARE_COMMIT" if fate.committed else f"PREPARE_ABORT ({fate.reason})"
    return Evidence(f"journal[{number}]@{fate.decided}", f"{what} of {fate.txid}")


def in_journal(number: int, offset: int, what: str) -> Evidence:
    """Returns any other record of the journal."""
    return Evidence(f"journal[{number}]@{offset}", what)
