"""The slow and obvious reading of a history's logs, which the checkers compare everything with.

It shares no code with the cores: it states the rules of the journal and of the data partitions once
more, as plainly as they can be stated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from logtx.journal.acks import Ack, AddAcks, Subscribe
from logtx.journal.control import (
    OWN_BRANCH,
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    DataControl,
    Marker,
    ModeRecord,
    TopicPartition,
    decode_control,
)
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import GONE, Adoption, PartitionId, Placed
from logtx.journal.position import Place
from logtx.journal.records.types import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Bind,
    Claim,
    Committed,
    DataPartition,
    Forget,
    OffsetStep,
    Owner,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
    Snapshot,
)
from logtx.journal.sidecar import (
    in_sidecar,
    is_delivered_from_sidecar,
    is_sidecar,
    sidecar_of,
    to_delivered,
)
from logtx.journal.spans import AT_OFFSET, MessageId
from logtx.journal.txid import TxId

from .history import History, JournalRecord, Record

Places = dict[TopicPartition, Place]


@dataclass(slots=True)
class Decision:
    """The first valid decision about a transaction."""

    sequence: int
    committed: bool
    at: int
    writes: dict[TopicPartition, tuple[BranchRange, ...]]
    placed: frozenset[TopicPartition] = frozenset()
    """Data partitions in which it writes no marker."""
    since: dict[TopicPartition, int] = field(default_factory=dict)
    """Sidecar partition → what its pointer must say of the main partition."""
    handed: frozenset[TopicPartition] = frozenset()
    """Data partitions that it hands over to another home, which may refuse them."""
    reason: AbortReason | None = None
    """Why it is aborted."""

    @property
    def fenced(self) -> bool:
        """Whether a newer producer took over, so that nobody waits for an answer."""
        return self.reason is AbortReason.FENCED


@dataclass(slots=True)
class JournalTransaction:
    """A transaction as its journal tells it."""

    txid: TxId
    record: Begin
    at: int
    partitions: set[TopicPartition] = field(default_factory=set)
    ids: dict[TopicPartition, str] = field(default_factory=dict)
    """Data partition → id of its topic, as it was named last before or with the decision."""
    registered: dict[TopicPartition, int] = field(default_factory=dict)
    """Data partition → when it was registered, before the decision."""
    steps: list[tuple[int, str, OffsetStep]] = field(default_factory=list)
    """(when it landed, consumer group, step), each step once."""
    claimed_at: int | None = None
    """Offset of the first claim that took input from it while it was open."""
    parts: list[AddWrites] = field(default_factory=list)
    decision: Decision | None = None
    places: dict[PartitionId, int] = field(default_factory=dict)
    """Where it is placed, or `GONE`."""
    adopted: dict[PartitionId, tuple[int, int]] = field(default_factory=dict)
    """Where another journal places it → (that home, offset of its ADOPT record there)."""
    finished_at: int | None = None
    gone: tuple[TopicPartition, ...] = ()
    """Partitions that got no marker, for their topic is said to be gone."""


@dataclass(slots=True)
class Commit:
    """A consumer group's IOV after a commit."""

    sequence: int
    at: int
    places: Places


@dataclass(slots=True)
class ClaimRecord:
    """A claim of input partitions."""

    record: Claim
    at: int
    former: dict[TopicPartition, int]
    """Number of the claim that each partition had before, if any."""


class Journal:
    """One journal partition, read from its first record."""

    def __init__(self, partition: int, records: list[JournalRecord]) -> None:
        """Reads it."""
        self.partition = partition
        self.records = records
        self.transactions: dict[int, JournalTransaction] = {}
        self.commits: dict[str, list[Commit]] = {}
        self.bindings: dict[str, tuple[str, int]] = {}
        """Consumer group → (transaction group, when)."""
        self.claims: dict[int, ClaimRecord] = {}
        """Claims by number, oldest first."""
        self.generations: dict[str, list[tuple[int, ProducerRecord]]] = {}
        self._forgotten: set[str] = set()
        """Producer id → (when, PRODUCER record)."""
        self.void: dict[int, str] = {}
        """Offset of a record that counts for nothing → why: ``epoch``, ``lost`` or ``owner``."""
        self.wrong: list[tuple[str, str]] = []
        """What no journal may hold: (name of the checker that reports it, what)."""
        self.snapshots: list[tuple[int, int]] = []
        """(when it was complete, first chunk)."""
        self.modes: list[tuple[JournalRecord, ModeChange]] = []
        """Valid MODE records."""
        self.adoptions: list[tuple[int, Adoption]] = []
        """Valid ADOPT records, each with its offset."""
        self.placings: list[tuple[JournalRecord, Placed]] = []
        """Valid PLACED records."""
        self.owners: list[tuple[JournalRecord, Owner]] = []
        """Valid OWNER records."""
        self.of_queues: list[tuple[JournalRecord, Subscribe | AddAcks | Ack]] = []
        """Valid records of subscriptions."""
        self._phases: dict[tuple[str, str], Phase] = {}
        self._chunks = (-1, -1, 0)
        self._hw: list[tuple[int, int]] = []
        self._open: dict[int, int] = {}
        epoch, incarnation, in_place = -1, 0, False
        for record in records:
            offset, entry = record.offset, record.entry
            told = entry.record
            bids = isinstance(told, Owner) and told.replaces == epoch
            if bids and (epoch == -1 or entry.incarnation == incarnation):
                epoch, incarnation, in_place = offset, entry.incarnation, True
                self.owners.append((record, told))
            elif isinstance(told, Owner):
                self.void[offset], in_place = "owner", False
            elif (entry.epoch, entry.incarnation) != (epoch, incarnation):
                self.void[offset], in_place = "epoch", False
            elif entry.predicted != offset or not in_place:
                self.void[offset], in_place = "lost", False
            else:
                self._read(record)
            self._hw.append((record.at, min(self._open, default=offset + 1)))

    def hw(self, at: int) -> int:
        """Returns the oldest unfinished BEGIN at that time, else the journal's end."""
        index = bisect_right(self._hw, (at, 2**63)) - 1
        return self._hw[index][1] if index >= 0 else 0

    def commit_at(self, group: str, at: int) -> Commit | None:
        """Returns the last commit of a group's input offsets at that time."""
        return next((k for k in reversed(self.commits.get(group, ())) if k.at <= at), None)

    def claim_at(self, group: str, partition: TopicPartition, at: int) -> int | None:
        """Returns the number of an input partition's latest claim at that time."""
        return next(
            (
                number
                for number, claim in reversed(self.claims.items())
                if claim.at <= at
                and claim.record.group == group
                and partition in claim.record.partitions
            ),
            None,
        )

    def generation(self, producer_id: str, at: int) -> ProducerRecord | None:
        """Returns the record that says who spoke for a producer id at that time."""
        records = self.generations.get(producer_id, ())
        return next((r for when, r in reversed(records) if when <= at), None)

    def _read(self, record: JournalRecord) -> None:  # noqa: PLR0912
        offset, told = record.offset, record.entry.record
        match told:
            case ProducerRecord():
                former = self.generations.setdefault(told.producer_id, [])
                # One that is admitted after it was forgotten is a newer one (trap 32).
                least = told.generation - (told.producer_id in self._forgotten)
                if former and former[-1][1].generation > least:
                    self.wrong.append(("fenced", f"{offset}: {told} after {former[-1][1]}"))
                former.append((record.at, told))
                self._forgotten.discard(told.producer_id)
            case Forget():
                self._forgotten.update(told.producers)
            case Snapshot():
                self._snapshot(record, told)
            case Begin():
                txid = TxId(self.partition, record.entry.incarnation, offset)
                found = self.transactions[offset] = JournalTransaction(txid, told, record.at)
                self._register(record, found, told.partitions)
                self._open[offset] = offset
                self._check_session(offset, found, "began")
                self._check_key(offset, told)
            case Bind():
                self.bindings.setdefault(told.group, (told.transaction_group, record.at))
            case Claim():
                self._claim(record, told)
            case AddPartitions() | AddOffsets() | AddWrites() | PrepareCommit() | PrepareAbort():
                self._change(record, told)
            case Committed() | Aborted():
                self._finish(record, told)
            case ModeChange():
                self.modes.append((record, told))
                self._phases[told.topic, told.topic_id] = told.phase
            case Adoption():
                self.adoptions.append((offset, told))
            case Placed():
                self.placings.append((record, told))
                self._place(told)
            case Subscribe() | AddAcks() | Ack():
                self.of_queues.append((record, told))
            case _:
                pass

    def _place(self, told: Placed) -> None:
        # The slow way: each PLACED record looks at all transactions.
        for partition, place in told.ends.items():
            for found in self.transactions.values():
                decision = found.decision
                if decision is None or decision.sequence > told.upto:
                    continue
                writes = decision.writes
                accepts = writes.get(partition.key) or writes.get(sidecar_key(partition.key))
                due = partition.key in decision.placed and accepts
                if due and found.ids[partition.key] == partition.topic_id:
                    found.places.setdefault(partition, place)

    def phase_of(self, key: TopicPartition, topic_id: str) -> Phase:
        """Returns the phase of a topic, after all that was read."""
        return self._phases.get((key[0], topic_id), Phase.MARKERS)

    def _claim(self, record: JournalRecord, told: Claim) -> None:
        before = {p: self.claim_at(told.group, p, record.at) for p in told.partitions}
        former = {p: number for p, number in before.items() if number is not None}
        self.claims[record.offset] = ClaimRecord(told, record.at, former)
        for begin in self._open:
            found = self.transactions[begin]
            holds = {(g, (s.topic, s.partition)) for _, g, s in found.steps}
            if found.decision is None and any((told.group, p) in holds for p in told.partitions):
                found.claimed_at = record.offset

    def _snapshot(self, record: JournalRecord, told: Snapshot) -> None:
        if told.first == record.offset:
            self._chunks = (told.first, record.entry.epoch, 0)
        if self._chunks == (told.first, record.entry.epoch, told.index):
            self._chunks = (told.first, record.entry.epoch, told.index + 1)
            if told.last:
                self.snapshots.append((record.at, told.first))

    def _change(  # noqa: PLR0912
        self,
        record: JournalRecord,
        told: AddPartitions | AddOffsets | AddWrites | PrepareCommit | PrepareAbort,
    ) -> None:
        offset, found = record.offset, self.transactions.get(told.begin)
        if found is None:
            self.wrong.append(("decided-once", f"{offset}: {told} is about no transaction"))
            return
        begin = found.record
        is_meant = (begin.producer_id, begin.generation, begin.started_ms)
        if record.meant not in (None, is_meant):
            what = f"{offset}: meant for {record.meant}, hits {found.txid} of {is_meant}"
            self.wrong.append(("decided-once", what))
        if found.decision is not None:
            if isinstance(told, PrepareCommit | PrepareAbort):
                self.wrong.append(("decided-once", f"{offset}: decides {found.txid} again"))
            return
        match told:
            case AddPartitions():
                self._register(record, found, told.partitions)
            case AddOffsets():
                self._check_session(offset, found, "moved offsets")
                for step in told.steps:
                    if all((g, s) != (told.group, step) for _, g, s in found.steps):
                        found.steps.append((record.at, told.group, step))
            case AddWrites():
                self._register(record, found, [w.partition for w in told.writes])
                self._add_part(offset, found, told)
            case PrepareCommit():
                self._check_session(offset, found, "was committed")
                if found.claimed_at is not None:
                    what = f"{offset}: {found.txid}, whose input was claimed, was committed"
                    self.wrong.append(("claims", what))
                writes = self._writes(offset, found, told)
                found.partitions.update(writes)
                found.ids.update({p.key: p.topic_id for p in told.added})
                found.ids.update({w.partition.key: w.partition.topic_id for w in told.writes})
                placed = frozenset(told.placed)
                handed = frozenset(key for key, _ in told.handed)
                since = dict(told.sidecar_since)
                found.decision = Decision(offset, True, record.at, writes, placed, since, handed)
                self._commit(record, found)
            case PrepareAbort():
                if told.reason is AbortReason.CLAIMED and found.claimed_at is None:
                    what = f"{offset}: nobody claimed input of {found.txid}, and it is aborted"
                    self.wrong.append(("claims", what))
                placed = frozenset(
                    k for k in found.partitions if self.phase_of(k, found.ids[k]) is Phase.METADATA
                )
                found.decision = Decision(offset, False, record.at, {}, placed, reason=told.reason)

    @staticmethod
    def _register(
        record: JournalRecord, found: JournalTransaction, partitions: Iterable[DataPartition]
    ) -> None:
        for partition in partitions:
            found.partitions.add(partition.key)
            found.ids.setdefault(partition.key, partition.topic_id)
            found.registered.setdefault(partition.key, record.at)

    def _add_part(self, offset: int, found: JournalTransaction, told: AddWrites) -> None:
        self._check_session(offset, found, "named what it wrote")
        if told.part != len(found.parts):
            what = f"{offset}: part {told.part} of {found.txid}, after {len(found.parts)}"
            self.wrong.append(("decided-once", what))
        found.parts.append(told)
        found.partitions.update(w.partition.key for w in told.writes)

    def _writes(
        self, offset: int, found: JournalTransaction, told: PrepareCommit
    ) -> dict[TopicPartition, tuple[BranchRange, ...]]:
        """Returns what all parts and the decision say together."""
        writes: dict[TopicPartition, tuple[BranchRange, ...]] = {}
        for record in (*found.parts, told):
            for w in record.writes:
                writes[w.partition.key] = writes.get(w.partition.key, ()) + w.branches
        of_parts = writes.keys() - {w.partition.key for w in told.writes}
        # Where no marker says all, the decision names what parts add to, too.
        of_parts |= {*told.placed, *dict(told.handed)} & {
            w.partition.key for part in found.parts for w in part.writes
        }
        if of_parts != {p.key for p in told.added}:
            what = f"{offset}: the commit of {found.txid} does not name what its parts do"
            self.wrong.append(("decided-once", what))
        return writes

    def _check_session(self, offset: int, found: JournalTransaction, what: str) -> None:
        begin = found.record
        now = self.generations.get(begin.producer_id, [(0, None)])[-1][1]
        if now is None or now.voided or now.generation != begin.generation:
            text = f"{offset}: {found.txid} of generation {begin.generation} {what} under {now}"
            self.wrong.append(("fenced", text))

    def _check_key(self, offset: int, told: Begin) -> None:
        if told.producer_id.startswith("&"):
            undecided = [
                t.txid
                for t in self.transactions.values()
                if t.decision is None and t.record.producer_id == told.producer_id
            ]
            if len(undecided) > 1:
                self.wrong.append(("fenced", f"{offset}: one key has {undecided} open"))

    def _commit(self, record: JournalRecord, found: JournalTransaction) -> None:
        moved: dict[str, Places] = {}
        for _, group, step in found.steps:
            last = self.commit_at(group, record.at)
            places = moved.setdefault(group, dict(last.places) if last else {})
            key = step.topic, step.partition
            if places.get(key) != step.from_place:
                text = (
                    f"{record.offset}: the input of {group} in {key} stood at {places.get(key)},"
                    f" and the commit of {found.txid} goes on from {step.from_place}"
                )
                self.wrong.append(("offsets", text))
            places[key] = step.to.place
        for group, places in moved.items():
            self.commits.setdefault(group, []).append(Commit(record.offset, record.at, places))

    def _finish(self, record: JournalRecord, told: Committed | Aborted) -> None:
        found = self.transactions.get(told.begin)
        decision = found.decision if found else None
        if decision is None or decision.committed != isinstance(told, Committed):
            self.wrong.append(("decided-once", f"{record.offset}: {told} follows no such decision"))
        elif found is not None and found.finished_at is None:
            found.finished_at, found.gone = record.at, told.gone
            self._open.pop(told.begin, None)


@dataclass(slots=True)
class MarkerRecord:
    """A marker in a data partition."""

    txid: TxId
    marker: Marker
    record: Record
    first: bool
    """Whether it is the first marker of its TxId in this partition."""


class PlacedEnd(NamedTuple):
    """Where a transaction is delivered that the journal places."""

    txid: TxId
    home: int
    """Journal partition that places it."""
    sequence: int
    """What its home orders it by: its commit sequence, or the offset of its ADOPT record."""
    place: int


def sidecar_key(key: TopicPartition) -> TopicPartition:
    """Returns the sidecar of a data partition; a sidecar has none."""
    return ("", 0) if is_sidecar(key[0]) else (sidecar_of(key[0]), key[1])


class Partition:
    """One data partition, and what it holds for a reader of committed records."""

    def __init__(  # noqa: PLR0915
        self, key: TopicPartition, records: list[Record], reading: Reading, topic_id: str
    ) -> None:
        """Reads it; it is of the topic with this id."""
        self.key = key
        self.topic_id = topic_id
        self.records = records
        self.markers: list[MarkerRecord] = []
        self.txids: dict[int, TxId] = {}
        """Offset of a transaction's record → its TxId; plain records are absent. Those that lie in
        the sidecar are here by the offsets that they are delivered with."""
        self.sidecar = self._read_sidecar(reading)
        """TxId → (branch, offset) of its records in the sidecar; {} for a sidecar itself."""
        self.expected: list[tuple[int, int]] = []
        """(place, offset) of each record to deliver, in this order. The place is the record's own
        offset, that of its transaction's first marker, or the one that the journal says."""
        self.placed: dict[int, TxId] = {}
        """Offset of each record that is delivered at a place of the journal → its TxId."""
        self.ends: list[PlacedEnd] = []
        """What is placed here, in the order of delivery."""
        self.mode_records: list[tuple[TxId, ModeRecord, Record]] = []
        items: list[tuple[tuple[int, int, int], int, list[int]]] = []
        by_txid = self.by_txid = dict[TxId, list[tuple[int, int]]]()
        """TxId → (branch, offset) of each of its records."""
        ended: set[TxId] = set()
        for record in records:
            offset, headers = record.offset(), dict(record.headers() or ())
            if not headers:
                items.append(((offset, 1, 0), offset, [offset]))
                continue
            if TXID_HEADER not in headers:
                continue  # A copy, in a sidecar: it is delivered with the offset of its original.
            txid = TxId.from_bytes(headers[TXID_HEADER])
            raw = headers.get(TXCTL_HEADER)
            control = decode_control(raw) if raw is not None else DataControl(branch=OWN_BRANCH)
            if isinstance(control, DataControl):
                self.txids[offset] = txid
                by_txid.setdefault(txid, []).append((control.branch, offset))
                continue
            if isinstance(control, ModeRecord):
                self.mode_records.append((txid, control, record))
                continue
            self.markers.append(MarkerRecord(txid, control, record, txid not in ended))
            if txid in ended:
                continue
            ended.add(txid)
            found = reading.transaction(txid)
            if found is not None and found.decision is not None and found.decision.committed:
                ranges = found.decision.writes.get(key, ())
                was_in = PartitionId(*key, found.ids[key]) if key in found.ids else None
                if key in found.decision.placed and found.places.get(was_in) != GONE:
                    continue  # It has a place; `placed-order` says that a marker is too much.
                accepted = _accepted(by_txid.get(txid, ()), ranges)
                aside = found.decision.writes.get(sidecar_key(key), ())
                # What lies in the main partition first, then what lies in the sidecar.
                moved = map(to_delivered, _accepted(self.sidecar.get(txid, ()), aside))
                if len(accepted) < sum(r.count for r in ranges) and key in reading.history.former:
                    continue  # The rest was in the topic that was deleted.
                items.append(((offset, 1, 0), offset, [*accepted, *moved]))
        items += self._at_places(reading, by_txid)
        items.sort()
        self.expected = [(place, each) for _, place, accepted in items for each in accepted]
        self.names = [
            (MessageId(offset, sequence if is_placed else AT_OFFSET, nth), each)
            for (offset, is_at_it, sequence), _, accepted in items
            for is_placed in (not is_at_it,)
            for nth, each in enumerate(accepted)
        ]
        """(name, offset) of the same records: what a queue calls them (decision 31)."""

    def value_of(self, offset: int) -> bytes | None:
        """Returns the value of a record, by the offset that it is delivered with."""
        aside = is_delivered_from_sidecar(offset)
        record = self._aside[in_sidecar(offset)] if aside else self.records[offset]
        return record.value()

    def _read_sidecar(self, reading: Reading) -> dict[TxId, list[tuple[int, int]]]:
        found: dict[TxId, list[tuple[int, int]]] = {}
        self._aside = reading.history.data.get(sidecar_key(self.key), [])
        for record in self._aside:
            headers = dict(record.headers() or ())
            if TXID_HEADER not in headers:
                continue
            raw = headers.get(TXCTL_HEADER)
            control = decode_control(raw) if raw is not None else DataControl(branch=OWN_BRANCH)
            if isinstance(control, DataControl):
                txid = TxId.from_bytes(headers[TXID_HEADER])
                found.setdefault(txid, []).append((control.branch, record.offset()))
                self.txids[to_delivered(record.offset())] = txid
        return found

    def _at_places(
        self, reading: Reading, by_txid: dict[TxId, list[tuple[int, int]]]
    ) -> Iterator[tuple[tuple[int, int, int], int, list[int]]]:
        """Yields what is placed here: (what to sort it by, place, offsets of its records)."""
        ends = []
        for journal in reading.journals:
            for found in journal.transactions.values():
                here = PartitionId(*self.key, self.topic_id)
                place = found.places.get(here, GONE)
                if found.decision is not None and place != GONE:
                    own = (journal.partition, found.decision.sequence)
                    home, sequence = found.adopted.get(here, own)
                    writes = found.decision.writes
                    aside = writes.get(sidecar_key(self.key), ())
                    end = PlacedEnd(found.txid, home, sequence, place)
                    ends.append((end, writes.get(self.key, ()), aside))
        for end, ranges, aside in sorted(ends, key=lambda end: (end[0].place, end[0].sequence)):
            accepted = _accepted(by_txid.get(end.txid, ()), ranges)
            accepted += map(to_delivered, _accepted(self.sidecar.get(end.txid, ()), aside))
            self.ends.append(end)
            self.placed.update(dict.fromkeys(accepted, end.txid))
            # Before the record at its place, and in commit-sequence order with others at it.
            yield (end.place, 0, end.sequence), end.place, accepted


def _accepted(
    records: list[tuple[int, int]] | tuple[()], ranges: tuple[BranchRange, ...]
) -> list[int]:
    by_branch = {r.branch: r for r in ranges}
    return [
        offset
        for branch, offset in records
        if (r := by_branch.get(branch)) and r.first_offset <= offset <= r.last_offset
    ]


class Reading:
    """All logs of a history, read."""

    def __init__(self, history: History) -> None:
        """Reads the journals; data partitions are read when they are asked for."""
        self.history = history
        self.journals = [Journal(p, records) for p, records in enumerate(history.journals)]
        for home in self.journals:
            self._adopt(home)

    def _adopt(self, home: Journal) -> None:
        """Notes what a home says of the transactions of other journals."""
        before: dict[TxId, Adoption] = {}
        for offset, told in home.adoptions:
            found = self.transaction(told.txid)
            decision = None if found is None else found.decision
            if found is None or decision is None or decision.sequence != told.sequence:
                home.wrong.append(("decided-once", f"{offset}: {told} is of no decision"))
                continue
            share = before.get(told.txid)
            again = share is not None and not (
                share.more
                and min(w.partition for w in told.writes) > max(w.partition for w in share.writes)
            )
            if decision.committed != told.committed or again:
                home.wrong.append(("decided-once", f"{offset}: {told} is not what was decided"))
            before[told.txid] = told
            for each in (w for w in told.writes if w.placed):
                partition = each.partition
                decision.placed |= {partition.key}
                found.adopted[partition] = (home.partition, offset)
                if each.branches and each.branches != decision.writes.get(partition.key):
                    home.wrong.append(("decided-once", f"{offset}: {told} accepts other records"))
                ends = (
                    placed.ends[partition]
                    for record, placed in home.placings
                    if record.offset > offset <= placed.upto and partition in placed.ends
                )
                place = next(ends, None) if each.branches else None
                if place is not None:
                    found.places[partition] = place

    def transaction(self, txid: TxId) -> JournalTransaction | None:
        """Returns a transaction if its journal knows it, else None."""
        found = self.journals[txid.partition].transactions.get(txid.offset)
        return found if found is not None and found.txid == txid else None

    @cached_property
    def partitions(self) -> dict[TopicPartition, Partition]:
        """All data partitions."""
        data, former = self.history.data, self.history.former
        return {
            key: Partition(key, records, self, f"{'new-' if key in former else ''}id-{key[0]}")
            for key, records in data.items()
        }

    @cached_property
    def former(self) -> dict[TopicPartition, Partition]:
        """Data partitions of topics that were deleted."""
        data = self.history.former
        return {key: Partition(key, records, self, f"id-{key[0]}") for key, records in data.items()}
