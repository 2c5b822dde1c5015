"""What the journal decided: the fate of each transaction, from the records that count.

It also says where transactions are placed, and in which mode each topic is: the first valid PLACED
record that covers a decision in a partition counts.

An OWNER record counts if it replaces the current epoch. After it, records of that epoch count, up
to the first surprise: a record of another writer, or one that is not at its predicted offset. What
follows is void until the next OWNER that counts (docs/decisions/0005).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from .avro import Entry, Kind
from .wire import Range, TxId, read_txid, sidecar_of

Partition = tuple[str, int]
MARKERS, TO_METADATA, METADATA, TO_MARKERS = "markers", "to-metadata", "metadata", "to-markers"
"""Phases of a topic, as MODE records name them."""
GONE: Final = -1
"""Stands for the place in a partition whose topic was deleted."""


class Passed(NamedTuple):
    """How far a reader has delivered what a journal partition places."""

    journal: int
    sequence: int
    """Up to this commit sequence all is delivered."""
    taken: int = 0
    """Records delivered of the next one."""


class Place(NamedTuple):
    """What is read of a partition: claims on a consumer group's input are compared by this."""

    o2: int
    o3: int = 0
    passed: Passed | None = None
    """None where no reader follows a journal."""

    @property
    def key(self) -> tuple[int, int, int, int]:
        """By which places are ordered: what is placed at an offset comes before a marker at it."""
        _, sequence, taken = self.passed or (-1, -1, 0)
        return self.o2, sequence, taken, self.o3

    def __str__(self) -> str:
        """Returns it as text, such as ``118+2``."""
        passed = ""
        if self.passed is not None:
            passed = f"@{self.passed.journal}={self.passed.sequence}"
            passed += f"+{self.passed.taken}" if self.passed.taken else ""
        return f"{self.o2}{f'+{self.o3}' if self.o3 else ''}{passed}"


def has_records(ranges: Iterable[Range]) -> bool:
    """Returns whether a commit accepts records by these ranges. Where it does not, it needs no
    place."""
    return any(stated.records for stated in ranges)


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
    """Offset of the record that says that all markers are written, and all places given."""
    topic_ids: dict[Partition, str] = field(default_factory=dict)
    """Of its partitions, each as it was named first: PLACED names them so."""
    unmarked: set[Partition] = field(default_factory=set)
    """Partitions that get no marker: a commit is placed there, an abort is not told there."""
    places: dict[Partition, int] = field(default_factory=dict)
    """Partition → its place, or `GONE`: the first that a valid record gave. It stands for what lies
    in the partition's sidecar, too."""
    handed: dict[Partition, int] = field(default_factory=dict)
    """Partition → the home to which the decision hands it over."""
    since: dict[Partition, int] = field(default_factory=dict)
    """Sidecar partition → what its pointer must say of the main partition."""
    pointers: dict[Partition, int] = field(default_factory=dict)
    """Sidecar partition → its pointer, or the place that stands for it, as the record says with
    which it is finished."""
    answers: dict[Partition, Adoption] = field(default_factory=dict)
    """Partition that is handed over → what its home said of it: see `adopting`."""

    def aside(self, partition: Partition) -> tuple[Range, ...]:
        """Returns what its commit accepts in the sidecar of a partition."""
        return self.writes.get(sidecar_of(partition), ())

    def lacks_place(self, partition: Partition) -> bool:
        """Returns whether it is to be placed in a partition, and is not."""
        accepted = (*self.writes.get(partition, ()), *self.aside(partition))
        needs_place = partition in self.unmarked and has_records(accepted)
        return needs_place and partition not in self.places


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


class ModeStep(NamedTuple):
    """A MODE record: a topic's switch begins, or is made."""

    offset: int
    topic_id: str
    phase: str
    since: Mapping[int, int]
    """Partition → offset of its mode record."""
    with_records: bool


class PlacedEnd(NamedTuple):
    """The end of a transaction in a partition, by its place."""

    place: int
    sequence: int
    """Commit sequence in the home. Of what that adopted, the offset of its ADOPT record."""
    txid: TxId
    ranges: tuple[Range, ...]
    offset: int
    """Of the PLACED record."""
    topic_id: str
    home: int
    """The journal partition that places it."""
    commit_sequence: int
    """In the journal that decided it."""
    aside: tuple[Range, ...] = ()
    """What it accepts in the partition's sidecar, with offsets there."""


class AdoptedWrites(NamedTuple):
    """What an ADOPT record says of one partition."""

    topic_id: str
    ranges: tuple[Range, ...]
    is_placed: bool
    """False: the home refuses it, and the journal that decided it writes a marker."""


class Adoption(NamedTuple):
    """An ADOPT record: the home takes a transaction of another journal over."""

    offset: int
    """Its commit sequence in the home."""
    txid: TxId
    commit_sequence: int
    """In the journal that decided it."""
    committed: bool
    writes: Mapping[Partition, AdoptedWrites]
    places: dict[Partition, int]
    """As those of `Fate`."""
    more: bool
    """Whether another record follows with further partitions of it."""

    def is_unmarked(self, partition: Partition) -> bool:
        """Returns whether it gets no marker in a partition."""
        writes = self.writes.get(partition)
        # What was to be placed in a topic that is gone by then is left to the deciding journal.
        gone = self.places.get(partition) == GONE
        return writes is not None and writes.is_placed and not gone


class Waiting(NamedTuple):
    """What is to be placed in a partition."""

    sequence: int
    """Commit sequence in the home."""
    txid: TxId
    commit_sequence: int
    """In the journal that decided it."""
    ranges: tuple[Range, ...]
    places: dict[Partition, int]
    """Takes its place."""
    aside: tuple[Range, ...] = ()
    """See `PlacedEnd`."""


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
    modes: dict[str, list[ModeStep]] = field(default_factory=dict)
    """Topic → the steps of its switches."""
    placed: dict[Partition, list[PlacedEnd]] = field(default_factory=dict)
    """What is placed in each partition, in the order of the journal."""
    waiting: dict[tuple[Partition, str], deque[Waiting]] = field(default_factory=dict)
    """(partition, topic id) → what is decided or adopted, and not placed there."""
    adopted: dict[TxId, Adoption] = field(default_factory=dict)
    """What it took over of other journals; the last record, if there are several."""
    adoptions: list[Adoption] = field(default_factory=list)
    """All ADOPT records, but for those in `adopted_again`, in their order."""
    adopted_again: list[Adoption] = field(default_factory=list)

    def placed_in(self, partition: Partition) -> list[PlacedEnd]:
        """Returns what is placed in a partition, in the order of the journal."""
        return self.placed.get(partition, [])

    def mode_at(self, topic: str, topic_id: str, offset: int) -> ModeStep | None:
        """Returns the last step of a topic before an offset of the journal; None: there is none.

        A topic that was made anew begins without one.
        """
        steps = [s for s in self.modes.get(topic, ()) if s.offset < offset]
        known = not topic_id or not steps or steps[-1].topic_id == topic_id
        return steps[-1] if steps and known else None

    def is_placed_at(self, partition: Partition, topic_id: str, offset: int) -> bool:
        """Returns whether what is decided at an offset is placed in a partition."""
        step = self.mode_at(partition[0], topic_id, offset)
        return step is not None and step.phase == METADATA

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
        journal.modes = _modes_at(start, entries)
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


def _modes_at(start: int, entries: Iterable[tuple[int, Entry]]) -> dict[str, list[ModeStep]]:
    """Returns the topics that are in metadata mode at the start of a trimmed journal, each with a
    step that stands for those which were trimmed.

    What is told first of a topic says so: that something is placed there, or that it is switched
    back.
    """
    first: dict[str, tuple[str, bool]] = {}
    for _, entry in entries:
        body = entry.body
        if entry.kind is Kind.MODE:
            is_placed = body["phase"] in (TO_MARKERS, MARKERS)
            first.setdefault(body["topic"], (body["topic_id"], is_placed))
        elif entry.kind is Kind.PLACED:
            for row in body["ends"]:
                first.setdefault(row["topic"], (row["topic_id"], True))
    return {
        topic: [ModeStep(start - 1, topic_id, METADATA, {}, with_records=True)]
        for topic, (topic_id, is_placed) in first.items()
        if is_placed
    }


def _apply(journal: Journal, offset: int, entry: Entry) -> None:
    body = entry.body
    match entry.kind:
        case Kind.BEGIN:
            fate = Fate(
                TxId(journal.number, entry.incarnation, offset),
                body["producer_id"],
                body["generation"],
                set(_partitions(body["partitions"])),
                topic_ids=_ids(body["partitions"]),
            )
            journal.fates[offset] = fate
        case Kind.PRODUCER:
            known = journal.generations.setdefault(body["producer_id"], [])
            known.append(Generation(offset, body["generation"], body["voided"]))
        case Kind.CLAIM:
            claimed = frozenset(_partitions(body["partitions"]))
            journal.claims.append(Claimed(offset, body["group"], claimed))
        case Kind.MODE:
            since = {row["partition"]: row["offset"] for row in body["since"]}
            step = ModeStep(offset, body["topic_id"], body["phase"], since, body["with_records"])
            journal.modes.setdefault(body["topic"], []).append(step)
        case Kind.ADOPT:
            _adopt(journal, offset, body)
        case Kind.PLACED:
            _place(journal, offset, body)
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
            for row in body.get("pointers", ()):
                told = zip(row["partitions"], row["pointers"], strict=True)
                fate.pointers |= {(row["topic"], number): offset for number, offset in told}
        case _ if fate.decided is not None:
            return  # records after the decision change nothing
        case Kind.ADD_PARTITIONS:
            fate.partitions.update(_partitions(body["partitions"]))
            fate.topic_ids = _ids(body["partitions"]) | fate.topic_ids
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
            _add_writes(fate, body.get("columns", ()))
            for row in body.get("sidecar_since", ()):
                told = zip(row["partitions"], row["ends"], strict=True)
                fate.since |= {(row["topic"], number): end for number, end in told}
            for row in body.get("handed", ()):
                fate.handed |= dict.fromkeys(_partitions([row]), row["home"])
            journal.decisions.append(fate)
            _wait_for_places(journal, fate, body)


def _wait_for_places(journal: Journal, fate: Fate, body: Mapping[str, Any]) -> None:
    assert fate.decided is not None
    if not fate.committed:
        fate.unmarked = {
            p
            for p in fate.partitions
            if journal.is_placed_at(p, fate.topic_ids.get(p, ""), fate.decided)
        }
        return
    fate.unmarked = set(_partitions(body.get("placed", ())))
    for partition in fate.unmarked:
        topic_id, ranges = fate.topic_ids.get(partition, ""), fate.writes.get(partition, ())
        _wait(
            journal,
            partition,
            topic_id,
            Waiting(
                fate.decided,
                fate.txid,
                fate.decided,
                ranges,
                fate.places,
                fate.aside(partition),
            ),
        )


def _wait(journal: Journal, partition: Partition, topic_id: str, waiting: Waiting) -> None:
    if has_records((*waiting.ranges, *waiting.aside)):
        journal.waiting.setdefault((partition, topic_id), deque()).append(waiting)


def _adopt(journal: Journal, offset: int, body: Mapping[str, Any]) -> None:
    writes = {
        (row["topic"], row["partition"]): AdoptedWrites(
            row["topic_id"], _ranges(row["branches"]), row["placed"]
        )
        for row in body["writes"]
    }
    txid, sequence = read_txid(body["txid"]), body["sequence"]
    more = body.get("more", False)
    adoption = Adoption(offset, txid, sequence, body["committed"], writes, {}, more)
    before = journal.adopted.get(txid)
    if before is not None and not (before.more and min(writes) > max(before.writes)):
        journal.adopted_again.append(adoption)
        return
    journal.adopted[txid] = adoption
    journal.adoptions.append(adoption)
    for partition, each in writes.items():
        if each.is_placed:
            waiting = Waiting(offset, txid, sequence, each.ranges, adoption.places)
            _wait(journal, partition, each.topic_id, waiting)


def _place(journal: Journal, offset: int, body: Mapping[str, Any]) -> None:
    """Places what waits in the partitions that a PLACED record names, up to its sequence."""
    for row in body["ends"]:
        for number, place in zip(row["partitions"], row["offsets"], strict=True):
            partition = row["topic"], number
            waiting = journal.waiting.get((partition, row["topic_id"]))
            while waiting and waiting[0].sequence <= body["upto"]:
                each = waiting.popleft()
                each.places[partition] = place
                end = PlacedEnd(
                    place,
                    each.sequence,
                    each.txid,
                    each.ranges,
                    offset,
                    row["topic_id"],
                    journal.number,
                    each.commit_sequence,
                    each.aside,
                )
                journal.placed.setdefault(partition, []).append(end)


def _add_writes(fate: Fate, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        partition = row["topic"], row["partition"]
        fate.partitions.add(partition)
        fate.topic_ids.setdefault(partition, row["topic_id"])
        fate.writes[partition] = (*fate.writes.get(partition, ()), *_ranges(row["branches"]))


def _ranges(rows: Iterable[Mapping[str, Any]]) -> tuple[Range, ...]:
    return tuple(
        Range(b["branch"] % 2**64, b["first_offset"], b["last_offset"], b["count"]) for b in rows
    )


def _add_step(fate: Fate, offset: int, group: str, row: Mapping[str, Any]) -> None:
    key = group, (row["topic"], row["partition"])
    start = None
    if row["from_o2"] is not None:
        start = Place(row["from_o2"], row["from_o3"], _passed(row.get("from_passed")))
    end = Place(row["o2"], row["o3"], _passed(row.get("passed")))
    before = fate.steps.get(key)
    if before is None:
        fate.steps[key] = Step(start, end, offset)
    elif start == before.end:  # otherwise it repeats one that was sent before
        fate.steps[key] = before._replace(end=end)


def _passed(row: Mapping[str, Any] | None) -> Passed | None:
    return None if row is None else Passed(row["partition"], row["sequence"], row["taken"])


def _ids(rows: Iterable[Mapping[str, Any]]) -> dict[Partition, str]:
    return {(row["topic"], number): row["topic_id"] for row in rows for number in row["partitions"]}


def _partitions(rows: Iterable[Mapping[str, Any]]) -> Iterable[Partition]:
    return ((row["topic"], number) for row in rows for number in row["partitions"])
