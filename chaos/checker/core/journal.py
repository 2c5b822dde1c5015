"""What the journal decided: the fate of each transaction, from the records that count.

An OWNER record counts if it replaces the current epoch. After it, records of that epoch count, up
to the first surprise: a record of another writer, or one that is not at its predicted offset. What
follows is void until the next OWNER that counts (docs/decisions/0005).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .avro import Entry, Kind
from .wire import Range, TxId

Partition = tuple[str, int]
Place = tuple[int, int]
"""(o2, o3): claims on a consumer group's input are compared by this."""


class Step(NamedTuple):
    """Where a transaction moves a consumer group's offset."""

    start: Place | None
    """None if nothing was committed before."""
    end: Place
    offset: int
    """Offset of its journal record; of the first, if it was sent in several."""


@dataclass(slots=True)
class Fate:
    """One transaction, as its journal partition tells it."""

    txid: TxId
    producer_id: str = ""
    """Empty if the BEGIN was trimmed."""
    generation: int = 0
    partitions: set[Partition] = field(default_factory=set)
    """Partitions registered, or named by the commit: all get a marker."""
    gone: set[Partition] = field(default_factory=set)
    writes: dict[Partition, tuple[Range, ...]] = field(default_factory=dict)
    """Records that the commit accepts, by partition; before the decision, what its parts named."""
    steps: dict[tuple[str, Partition], Step] = field(default_factory=dict)
    """Steps by consumer group and input partition."""
    decided: int | None = None
    """Offset of the decision: the commit sequence."""
    committed: bool = False
    reason: str = ""
    """Why it was aborted."""
    finished: int | None = None
    """Offset of the record that says that all markers are written."""


class Generation(NamedTuple):
    """A producer was given a generation, or lost it."""

    offset: int
    number: int
    voided: bool


class Claimed(NamedTuple):
    """A consumer claimed input partitions of its group."""

    offset: int
    group: str
    partitions: frozenset[Partition]


@dataclass(slots=True)
class Journal:
    """One journal partition."""

    number: int
    start: int = 0
    """Everything below this offset was trimmed."""
    end: int = 0
    end_before_data: int = 0
    """Its end before the data partitions were dumped: markers that it reports as written below this
    are in the dump."""
    incarnation: int | None = None
    fates: dict[int, Fate] = field(default_factory=dict)
    """Offset of BEGIN → fate."""
    decisions: list[Fate] = field(default_factory=list)
    """Decided transactions, in commit-sequence order."""
    generations: dict[str, list[Generation]] = field(default_factory=dict)
    claims: list[Claimed] = field(default_factory=list)

    def fate(self, txid: TxId) -> Fate | None:
        """Returns the fate of a transaction of this journal partition; None if it never began."""
        found = self.fates.get(txid.begin)
        return found if found is not None and found.txid == txid else None


def read_journal(
    number: int, start: int, end: int, entries: Iterable[tuple[int, Entry]]
) -> Journal:
    """Replays a journal partition.

    Args:
        number: of the partition.
        start: its first offset.
        end: the offset behind its last record.
        entries: (offset, record), in order.
    """
    journal = Journal(number, start, end, end)
    current = -1
    if start > 0:  # only here all entries are held in memory at once
        entries = list(entries)
        current, journal.incarnation = _owner_at(start, entries)
    surprised = False
    for offset, entry in entries:
        owner = entry.kind is Kind.OWNER and entry.body["replaces"] == current
        # If a trimmed journal begins with an OWNER, the incarnation is not known yet.
        if owner and (current < 0 or journal.incarnation in (None, entry.incarnation)):
            journal.incarnation = entry.incarnation
            current, surprised = offset, False
            continue
        surprised = (
            surprised
            or entry.epoch != current
            or entry.predicted != offset
            or entry.incarnation != journal.incarnation
        )
        if not surprised:
            _apply(journal, offset, entry)
    return journal


def _owner_at(start: int, entries: Iterable[tuple[int, Entry]]) -> tuple[int, int | None]:
    """Returns epoch and incarnation at the start of a trimmed journal.

    The owner at that point either wrote more records, or was replaced by an OWNER record that names
    it. Zombies may name older epochs too, but no record names a younger one.
    """
    epoch = -1
    incarnation: int | None = None
    for _, entry in entries:
        named = entry.body["replaces"] if entry.kind is Kind.OWNER else entry.epoch
        if epoch < named < start:
            epoch, incarnation = named, entry.incarnation
    return epoch, incarnation


def _apply(journal: Journal, offset: int, entry: Entry) -> None:
    body = entry.body
    match entry.kind:
        case Kind.BEGIN:
            fate = Fate(
                TxId(journal.number, entry.incarnation, offset),
                body["producer_id"],
                body["generation"],
                set(_partitions(body["partitions"])),
            )
            journal.fates[offset] = fate
        case Kind.PRODUCER:
            known = journal.generations.setdefault(body["producer_id"], [])
            known.append(Generation(offset, body["generation"], body["voided"]))
        case Kind.CLAIM:
            claimed = frozenset(_partitions(body["partitions"]))
            journal.claims.append(Claimed(offset, body["group"], claimed))
        case _:
            if "begin" in body:
                begin = body["begin"]
                found = journal.fates.get(begin)
                if found is None:  # the BEGIN was trimmed
                    found = Fate(TxId(journal.number, entry.incarnation, begin))
                    journal.fates[begin] = found
                _apply_to(journal, found, offset, entry.kind, body)


def _apply_to(
    journal: Journal, fate: Fate, offset: int, kind: Kind, body: Mapping[str, Any]
) -> None:
    match kind:
        case Kind.COMMITTED | Kind.ABORTED:
            fate.finished = offset
            fate.gone.update(_partitions(body["gone"]))
        case _ if fate.decided is not None:
            return  # records after the decision change nothing
        case Kind.ADD_PARTITIONS:
            fate.partitions.update(_partitions(body["partitions"]))
        case Kind.ADD_WRITES:
            _add_writes(fate, body["writes"])
        case Kind.ADD_OFFSETS:
            for row in body["steps"]:
                _add_step(fate, offset, body["group"], row)
        case Kind.PREPARE_COMMIT | Kind.PREPARE_ABORT:
            fate.decided = offset
            fate.committed = kind is Kind.PREPARE_COMMIT
            fate.reason = body.get("reason", "")
            if not fate.committed:
                fate.writes.clear()
            _add_writes(fate, body.get("writes", ()))
            journal.decisions.append(fate)


def _add_writes(fate: Fate, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        partition = row["topic"], row["partition"]
        fate.partitions.add(partition)
        fate.writes[partition] = (
            *fate.writes.get(partition, ()),
            *(
                Range(b["branch"] % 2**64, b["first_offset"], b["last_offset"], b["count"])
                for b in row["branches"]
            ),
        )


def _add_step(fate: Fate, offset: int, group: str, row: Mapping[str, Any]) -> None:
    key = group, (row["topic"], row["partition"])
    start = None if row["from_o2"] is None else (row["from_o2"], row["from_o3"])
    end = row["o2"], row["o3"]
    before = fate.steps.get(key)
    if before is None:
        fate.steps[key] = Step(start, end, offset)
    elif start == before.end:  # otherwise it repeats one that was sent before
        fate.steps[key] = before._replace(end=end)


def _partitions(rows: Iterable[Mapping[str, Any]]) -> Iterable[Partition]:
    return ((row["topic"], number) for row in rows for number in row["partitions"])
