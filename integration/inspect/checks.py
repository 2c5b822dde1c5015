"""The audit's rules: compares what the journal says with what the data holds. Pure.

The order of reading makes the audit correct while others write. It reads the journal (*before*),
asks for the ends of the data, and reads the journal on (*after*). It sums up the data only up to
those ends. So the decision of every marker it meets is in the journal it has read, and each
transaction that was finished *before* has all of its markers below those ends.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from ...coordinator.core.offsets_lanes import OffsetsKey
from ...coordinator.protocol.commands import GroupOffsets
from ...journal.control import (
    BranchRange,
    DataControl,
    Marker,
    ModeRecord,
    TopicPartition,
    decode_control,
)
from ...journal.errors import MalformedHeaderError
from ...journal.places import GONE, PartitionId
from ...journal.position import Place
from ...journal.records.scan import JournalPart, SeenAdoption, SeenTransaction
from ...journal.records.types import Forget
from ...journal.relocation import Relocations
from ...journal.sidecar import SUFFIX
from ...journal.state import State
from ...journal.txid import TxId
from .groups import Group

DETAILS_MAX: Final = 10_000
"""Findings that a report lists, to bound its memory; further ones are only counted."""


class Severity(StrEnum):
    """How serious a finding is."""

    VIOLATION = "violation"
    """A promise was broken."""
    NOTICE = "notice"
    """Allowed, and worth knowing."""
    UNVERIFIABLE = "unverifiable"
    """The records that would prove it were deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of the audit."""

    severity: Severity
    check: str
    topic: str | None = None
    partition: int | None = None
    txid: str | None = None
    count: int = 1
    """Number of records or transactions concerned."""
    detail: str = ""


FINDING_SCHEMA: Final = (
    "severity string, check string, topic string, partition int, txid string, count bigint, "
    "detail string"
)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A sum that is not short of records, but differs from what the commit states of the branch."""

    group: Group
    stated: BranchRange


@dataclass(slots=True)
class Report:
    """The result of an audit."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of findings by (severity, check)."""
    transactions: int = 0
    markers: int = 0
    records: int = 0
    """Records of transactions; plain records are not checked."""
    suspects: list[Suspect] = field(default_factory=list)
    """Sums to be counted again, within the ranges that their markers state."""

    @property
    def clean(self) -> bool:
        """Whether no promise was broken."""
        return not any(severity == Severity.VIOLATION for severity, _ in self.counts)

    def add(self, finding: Finding) -> None:
        """Adds a finding."""
        self.counts[finding.severity, finding.check] += 1
        if len(self.findings) < DETAILS_MAX:
            self.findings.append(finding)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report in types that JSON can hold."""
        return {
            "clean": self.clean,
            "transactions": self.transactions,
            "markers": self.markers,
            "records": self.records,
            "counts": [
                {"severity": str(s), "check": c, "findings": n}
                for (s, c), n in sorted(self.counts.items())
            ],
            "findings": [asdict(f) for f in self.findings],
        }


Key = tuple[str, int, bytes]
"""Topic, partition, TxId."""
GroupPartition = tuple[str, TopicPartition]
"""Consumer group, and a partition of its input."""
Iovs = Mapping[str, tuple[OffsetsKey, GroupOffsets]]
"""Consumer group → what was written of it to `__transaction_offsets` last."""


@dataclass(slots=True)
class Audit:
    """Checks one log: `feed` it the sums of whole partitions, `check` these, and at last `finish`.

    It holds only the sums that were fed since the last `check`.
    """

    finished_before: Mapping[TxId, SeenTransaction]
    """Transactions that were finished before the ends of the data were asked for."""
    parts: list[JournalPart]
    """The journal as read after the ends of the data were asked for."""
    starts: Mapping[TopicPartition, int]
    """First offset of each data partition."""
    now_ms: int
    """Time of the audit, in milliseconds since 1970."""
    relocations: Callable[[], Relocations] = Relocations
    """Returns what relocations say that were read after the starts were told."""
    report: Report = field(default_factory=Report)
    _seen: dict[TxId, SeenTransaction] = field(init=False)
    _firsts: dict[int, int] = field(init=False)
    _markers: dict[Key, list[tuple[int, Marker]]] = field(default_factory=lambda: defaultdict(list))
    _data: dict[Key, list[tuple[DataControl, Group]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def __post_init__(self) -> None:
        """Indexes the journal's transactions."""
        self._seen = {s.txid: s for part in self.parts for s in part.transactions.values()}
        self._firsts = {part.partition: part.first for part in self.parts}
        self.report.transactions = len(self._seen)
        for part in self.parts:
            for adopted in part.adopted.values():
                self._adopt(adopted)

    def _adopt(self, adopted: SeenAdoption) -> None:
        """Gives a transaction the places that the home of another journal says."""
        seen = self._seen.get(adopted.txid)
        if seen is None or seen.commit_sequence is None:
            return  # Trimmed, or its journal was read before it was decided.
        if (adopted.sequence, adopted.committed) == (seen.commit_sequence, seen.state.commits):
            seen.places |= adopted.places
            return
        self._find(
            Severity.VIOLATION,
            "adoption",
            None,
            f"journal partition {adopted.home[0]} adopted {adopted.txid} at {adopted.offset} as"
            f" {_word(adopted.committed)} in commit {adopted.sequence}, and its own journal says"
            f" {_word(seen.state.commits)} in {seen.commit_sequence}",
        )

    # ---- data -----------------------------------------------------------------------------------

    def feed(self, groups: Iterable[Group]) -> None:
        """Takes the sums of some data; reports headers that don't decode."""
        for group in groups:
            key = group.topic, group.partition, group.raw_txid
            try:
                control = _control(group)
            except MalformedHeaderError as error:
                self._find(
                    Severity.VIOLATION,
                    "headers",
                    group,
                    f"offset {group.first}: {error}",
                    count=group.records,
                )
                continue
            if isinstance(control, ModeRecord):
                continue  # It is of no transaction.
            if isinstance(control, Marker):
                self._markers[key].append((group.first, control))
                self.report.markers += group.records
                if group.records > 1:
                    self._duplicate(group, group.records - 1)
            else:
                self._data[key].append((control, group))
                self.report.records += group.records

    def _find(
        self, severity: Severity, check: str, at: Group | Key | None, detail: str, count: int = 1
    ) -> None:
        topic, partition, raw = at[:3] if at is not None else (None, None, None)
        self.report.add(
            Finding(
                severity=severity,
                check=check,
                topic=topic,
                partition=partition,
                txid=None if raw is None else _name(raw),
                count=count,
                detail=detail,
            )
        )

    def _duplicate(self, at: Group | Key, count: int) -> None:
        self._find(Severity.NOTICE, "duplicate_markers", at, "written again after a crash", count)

    # ---- rules ----------------------------------------------------------------------------------

    def check(self, partitions: Collection[TopicPartition]) -> None:
        """Checks and then forgets what was fed, which must be everything in these partitions."""
        for key, markers in self._markers.items():
            markers.sort(key=lambda m: m[0])
            if len(markers) > 1:
                self._duplicate(key, len(markers) - 1)
            self._check_marker(key, *markers[0])
        self._check_order()
        self._check_finished(partitions)
        self._check_handed(partitions)
        self._check_placed(partitions)
        self._check_places(partitions)
        self._check_data()
        self._markers.clear()
        self._data.clear()

    def finish(self, iovs: Iovs) -> Report:
        """Checks the journal itself: open transactions and committed steps.

        Args:
            iovs: consumer group → its IOV in `__transaction_offsets`, read after the journal.

        Returns:
            The report, whose `suspects` are still to be counted (`resolve`).
        """
        self._check_open()
        self._check_steps(iovs)
        return self.report

    def _check_marker(self, key: Key, offset: int, marker: Marker) -> None:
        """Checks that the marker's decision is in the journal, and that both agree."""
        txid = TxId.from_bytes(key[2])
        found = self._seen.get(txid)
        if found is None:
            if marker.commit_sequence < self._firsts.get(txid.partition, 0):
                self._find(
                    Severity.UNVERIFIABLE,
                    "marker_decision",
                    key,
                    "the journal was trimmed above it",
                )
            else:
                self._find(
                    Severity.VIOLATION,
                    "marker_decision",
                    key,
                    f"the marker at {offset} has no transaction in the journal",
                )
            return
        if found.commit_sequence is None or found.state.commits != marker.committed:
            self._find(
                Severity.VIOLATION,
                "marker_decision",
                key,
                f"the marker at {offset} says {_word(marker.committed)}, the journal {found.state}",
            )
            return
        if found.commit_sequence != marker.commit_sequence:
            self._find(
                Severity.VIOLATION,
                "marker_sequence",
                key,
                f"the marker says {marker.commit_sequence}, the journal {found.commit_sequence}",
            )
        stated = {w.partition.key: w.branches for w in found.writes}.get(key[:2], ())
        if found.writes and sorted(stated, key=_branch) != sorted(marker.branches, key=_branch):
            self._find(
                Severity.VIOLATION,
                "marker_counts",
                key,
                f"the marker says {marker.branches}, the decision {stated}",
            )
        self._check_pointer(key, offset, marker, found)

    def _check_pointer(self, key: Key, offset: int, marker: Marker, found: SeenTransaction) -> None:
        """Checks what the first marker in a main partition says of the sidecar.

        What the sidecar holds is compared with the decision at its own marker, and the decision
        with the pointer here.
        """
        sidecar = key[0] + SUFFIX, key[1]
        written = {w.partition.key: w.branches for w in found.writes}
        if not found.state.commits:
            if key[:2] not in found.partitions and sidecar in found.partitions:
                detail = f"aborted, wrote to the sidecar alone, and has a marker at {offset}"
                self._find(Severity.VIOLATION, "aborted_in_main", key, detail)
            return
        stated = written.get(sidecar, ())
        if found.writes and sorted(stated, key=_branch) != sorted(marker.sidecar, key=_branch):
            detail = f"the pointer says {marker.sidecar} of the sidecar, the decision {stated}"
            self._find(Severity.VIOLATION, "pointer_decision", key, detail)
        if not marker.is_pointer:
            return
        since = found.since.get(sidecar, marker.since)
        if since != marker.since:
            detail = f"the pointer says that the partition ended at {marker.since}, the decision"
            self._find(Severity.VIOLATION, "pointer_decision", key, f"{detail} at {since}")
        start = self.starts[key[:2]]
        for step in found.pointers:
            if step.sidecar == sidecar and start <= step.pointer < offset:
                detail = f"the first one stands at {offset}, the journal has one at {step.pointer}"
                self._find(Severity.VIOLATION, "pointer_place", key, detail)
        # As for readers: a copy of one that retention took, perhaps.
        self._check_sidecar(key, marker.sidecar, is_sure=marker.since >= start)

    def _check_sidecar(self, key: Key, branches: Iterable[BranchRange], *, is_sure: bool) -> None:
        """Checks that the sidecar still has what a pointer names, or a place that stands for one.

        Args:
            key: the transaction in the main partition.
            branches: what lies in the sidecar.
            is_sure: whether the first pointer is in the main partition, or the place.
        """
        begins = self.starts.get((key[0] + SUFFIX, key[1]))
        first = min(branch.first_offset for branch in branches)
        if begins is not None and begins <= first:
            return
        if begins is not None and begins:
            sidecar = key[0] + SUFFIX, key[1]
            if self.relocations().find(sidecar, "", key[2], begins) is not None:
                return  # It was copied, and trimmed where it lay.
        what = "there is none" if begins is None else f"it begins at {begins}"
        detail = f"it names the sidecar from {first} on, and {what}"
        severity = Severity.VIOLATION if is_sure else Severity.UNVERIFIABLE
        self._find(severity, "pointer_records", key, detail)

    def _check_order(self) -> None:
        """Checks that the first COMMITTED markers of each lane are in commit-sequence order."""
        lanes: dict[tuple[str, int, bytes], list[tuple[int, int, Key]]] = defaultdict(list)
        for key, markers in self._markers.items():
            offset, marker = markers[0]
            if marker.committed:
                lanes[key[0], key[1], key[2][:8]].append((offset, marker.commit_sequence, key))
        for lane in lanes.values():
            highest = -1
            for offset, sequence, key in sorted(lane):
                if sequence <= highest:
                    self._find(
                        Severity.VIOLATION,
                        "marker_order",
                        key,
                        f"the marker at {offset} of commit {sequence} stands behind {highest}",
                    )
                highest = max(highest, sequence)

    def _check_finished(self, partitions: Collection[TopicPartition]) -> None:
        """Checks that finished transactions have a marker in each partition that must get one."""
        fed = set(partitions)
        for txid, seen in self.finished_before.items():
            raw = txid.to_bytes()
            marked = (seen.partitions & fed) - set(seen.gone) - seen.placed - seen.handed
            for topic, partition in sorted(marked):
                key = topic, partition, raw
                start = self.starts[topic, partition]
                if key in self._markers:
                    continue
                if start > 0:
                    self._find(
                        Severity.UNVERIFIABLE,
                        "decision_markers",
                        key,
                        f"the partition begins at {start}; its marker may lie below",
                    )
                else:
                    self._find(
                        Severity.VIOLATION,
                        "decision_markers",
                        key,
                        f"{seen.state} in the journal, and there is no marker",
                    )

    def _check_handed(self, partitions: Collection[TopicPartition]) -> None:
        """Checks that finished commits have a place or a marker where they were handed over."""
        fed = set(partitions)
        for txid, seen in self.finished_before.items():
            if not (seen.handed and seen.state.commits):
                continue
            written = {w.partition.key for w in seen.writes if w.branches}
            placed = {p.key for p in self._seen[txid].places} if txid in self._seen else set()
            for topic, partition in sorted(seen.handed & written & fed - placed - set(seen.gone)):
                key = topic, partition, txid.to_bytes()
                homes = [first for home, first in self._firsts.items() if home != txid.partition]
                if key in self._markers:
                    continue
                if max(homes, default=0) > 0 or self.starts[topic, partition] > 0:
                    self._find(
                        Severity.UNVERIFIABLE,
                        "decision_places",
                        key,
                        "a home's journal or the partition was trimmed; its place may lie below",
                    )
                else:
                    self._find(
                        Severity.VIOLATION,
                        "decision_places",
                        key,
                        "it was handed over to the topic's home, which neither placed nor refused"
                        " it",
                    )

    def _check_placed(self, partitions: Collection[TopicPartition]) -> None:
        """Checks that all records of placed transactions are there that their decisions state."""
        fed = set(partitions)
        for txid, seen in self.finished_before.items():
            for written in seen.writes:
                named = written.partition
                is_placed = named.key in seen.placed and named.key not in seen.gone
                if named.key in seen.handed:
                    # What its home refused has a marker, which is checked as others are.
                    is_placed = (*named.key, txid.to_bytes()) not in self._markers
                if is_placed and named.key in fed and seen.state.commits:
                    key = *named.key, txid.to_bytes()
                    self._check_counts(key, written.branches, self._data.get(key, []))
                    self._check_missing(key, written.branches)

    def _check_places(self, partitions: Collection[TopicPartition]) -> None:
        """Checks where transactions are placed (decision 0024).

        No place may lie below the records that it places (R3). What one journal ends in a
        partition, by places or markers, must keep its commit-sequence order (R4). What is placed at
        an offset comes before the marker there. What lies in the sidecar is needed as long as the
        log does not start behind its place (decision 0040).
        """
        fed = set(partitions)
        lanes: dict[tuple[PartitionId, bytes], list[tuple[int, bool, int, Key]]] = defaultdict(list)
        for txid, seen in self._seen.items():
            for named, place in seen.places.items():
                if place is None or place == GONE or named.key not in fed:
                    continue
                key = *named.key, txid.to_bytes()
                lanes[named, key[2][:8]].append((place, False, seen.commit_sequence or 0, key))
                self._check_above(key, place, seen)
                aside = {w.partition.key: w.branches for w in seen.writes}.get(
                    (key[0] + SUFFIX, key[1])
                )
                if aside and place >= self.starts[named.key]:
                    self._check_sidecar(key, aside, is_sure=True)
        for part in self.parts:
            for adopted in part.adopted.values():
                # In the home's lane it has the home's own sequence.
                home = TxId(*adopted.home, 0).to_bytes()[:8]
                for named, place in adopted.places.items():
                    if place is not None and place != GONE and named.key in fed:
                        key = *named.key, adopted.txid.to_bytes()
                        lanes[named, home].append((place, False, adopted.offset, key))
        for key, markers in self._markers.items():
            offset, marker = markers[0]
            lane = PartitionId(*key[:2], marker.topic_id), key[2][:8]
            if marker.committed and lane in lanes:
                lanes[lane].append((offset, True, marker.commit_sequence, key))
        for ends in lanes.values():
            self._check_ends(sorted(ends))

    def _check_above(self, key: Key, place: int, seen: SeenTransaction) -> None:
        lasts = [
            branch.last_offset
            for written in seen.writes
            if written.partition.key == key[:2]
            for branch in written.branches
        ]
        if lasts and place <= max(lasts):
            self._find(
                Severity.VIOLATION,
                "place_records",
                key,
                f"placed at {place}, and its last record lies at {max(lasts)}",
            )

    def _check_ends(self, ends: list[tuple[int, bool, int, Key]]) -> None:
        """Checks the order of one journal's ends in a partition: (offset, is a marker, commit
        sequence, key)."""
        highest, by_marker = -1, False
        for offset, is_marker, sequence, key in ends:
            # `_check_order` tells of two markers.
            if sequence <= highest and not (is_marker and by_marker):
                word = "the marker" if is_marker else "the place"
                self._find(
                    Severity.VIOLATION,
                    "place_order",
                    key,
                    f"{word} at {offset} of commit {sequence} stands behind {highest}",
                )
            if sequence > highest:
                highest, by_marker = sequence, is_marker

    def _check_data(self) -> None:
        for key, groups in self._data.items():
            txid = TxId.from_bytes(key[2])
            found = self._seen.get(txid)
            markers = self._markers.get(key)
            records = sum(g.records for _, g in groups)
            if markers:
                if markers[0][1].committed:
                    self._check_counts(key, markers[0][1].branches, groups)
                continue
            if found is not None and key[:2] in found.placed | found.handed:
                continue  # `_check_placed` checks what is committed; nothing else is delivered
            if found is None and txid.offset < self._firsts.get(txid.partition, 0):
                severity, text = Severity.UNVERIFIABLE, "the journal was trimmed above its BEGIN"
            elif found is None:
                severity, text = Severity.VIOLATION, "no BEGIN in the journal"
            elif txid in self.finished_before:
                # The producer died before it registered the partition: consumers drop the records.
                severity, text = Severity.NOTICE, f"{found.state}, and this partition was not its"
                if key[:2] in found.partitions:
                    continue  # `_check_finished` reports it
            else:
                continue  # not finished when the journal was read first
            self._find(severity, "orphaned_records", key, text, count=records)
        for key, markers in self._markers.items():
            if markers[0][1].committed:
                self._check_missing(key, markers[0][1].branches)

    def _check_counts(
        self,
        key: Key,
        branches: Iterable[BranchRange],
        groups: list[tuple[DataControl, Group]],
    ) -> None:
        """Checks that all records that a commit states are there; any others are late."""
        stated = {r.branch: r for r in branches}
        late = 0
        for control, group in groups:
            wanted = stated.get(control.branch)
            if wanted is None:
                late += group.records
            elif (group.records, group.first, group.last) == (
                wanted.count,
                wanted.first_offset,
                wanted.last_offset,
            ):
                continue
            elif group.records < wanted.count:
                self._too_few(key, wanted.first_offset, f"{wanted} stated, {group.records} there")
            else:
                self.report.suspects.append(Suspect(group, wanted))
        if late:
            self._find(
                Severity.NOTICE, "late_records", key, "of branches that do not count", count=late
            )

    def _too_few(self, key: Key, first_offset: int, detail: str) -> None:
        torn = first_offset < self.starts.get(key[:2], 0)
        severity = Severity.UNVERIFIABLE if torn else Severity.VIOLATION
        self._find(severity, "record_counts", key, detail)

    def _check_missing(self, key: Key, branches: Iterable[BranchRange]) -> None:
        """Reports branches that a commit states and that have no record at all."""
        there = {control.branch for control, _ in self._data.get(key, ())}
        for stated in branches:
            if stated.branch not in there:
                self._too_few(key, stated.first_offset, f"{stated} stated, nothing there")

    def resolve(self, suspect: Suspect, within: int) -> None:
        """Settles a suspect.

        Args:
            suspect: the suspect.
            within: number of its records within the range that its marker states.
        """
        group, stated = suspect.group, suspect.stated
        key = group.topic, group.partition, group.raw_txid
        if within == stated.count:
            extra = group.records - within
            self._find(Severity.NOTICE, "late_records", key, "outside of the range", count=extra)
        elif within < stated.count:
            detail = f"{stated.count} stated, {within} there"
            self._too_few(key, stated.first_offset, detail)
        else:
            detail = f"{stated.count} stated, {within} there"
            self._find(Severity.VIOLATION, "record_counts", key, detail)

    def _check_open(self) -> None:
        for txid, transaction in self._seen.items():
            late_ms = self.now_ms - transaction.started_ms - transaction.timeout_ms
            if transaction.state is State.OPEN and late_ms > 0:
                self._find(
                    Severity.NOTICE,
                    "open_past_timeout",
                    (None, None, txid.to_bytes()),  # type: ignore[arg-type]
                    f"by {late_ms / 1000:.0f} s: is a coordinator running?",
                )

    def _check_steps(self, iovs: Iovs) -> None:
        """Checks that each committed step continues from the one before, and that IOVs have all
        steps of finished transactions."""
        for part in self.parts:
            last: dict[GroupPartition, tuple[Place, SeenTransaction | None]] = {
                (group, key): (at.place, None)
                for group, offsets in part.offsets.items()
                for key, at in offsets.items()
            }
            latest: dict[str, int] = {}
            """Consumer group → commit sequence of its last commit."""
            for sequence, event in _events(part):
                if isinstance(event, Forget):
                    last = {k: v for k, v in last.items() if not _is_forgotten(k, event)}
                    continue
                for group, place, begin in _joined(event):
                    key = group, place[0]
                    before = last[key][0] if key in last else None
                    if begin != before:
                        self._find(
                            Severity.VIOLATION,
                            "iov_steps",
                            (*place[0], event.txid.to_bytes()),
                            f"group {group} goes on from {begin}, and {before} was committed",
                        )
                    last[key] = place[1], event
                    latest[group] = sequence
            self._check_committed(part.partition, last, latest, iovs)

    def _check_committed(
        self,
        journal_partition: int,
        last: Mapping[GroupPartition, tuple[Place, SeenTransaction | None]],
        latest: Mapping[str, int],
        iovs: Iovs,
    ) -> None:
        for (group, partition), (step, by) in last.items():
            written, found = iovs.get(group, (None, None))
            if written is None or found is None or by is None or by.state is not State.COMMITTED:
                continue
            newer = (found.commit_sequence or 0) > latest[group]
            if written.partition != journal_partition or newer or partition not in found.offsets:
                continue
            committed = found.offsets[partition].place
            if committed != step:
                self._find(
                    Severity.VIOLATION,
                    "iov_committed",
                    None,
                    f"group {group} {partition[0]}[{partition[1]}]: {committed} in "
                    f"__transaction_offsets, {step} in the journal",
                )


def _events(part: JournalPart) -> list[tuple[int, SeenTransaction | Forget]]:
    """Returns what moved or ended offsets of consumer groups, in the journal's order."""
    events: list[tuple[int, SeenTransaction | Forget]] = list(part.forgotten)
    for seen in part.transactions.values():
        # The snapshot at the beginning has the steps of commits below it.
        if seen.state.commits and seen.offsets and (seen.commit_sequence or 0) >= part.first:
            events.append((seen.commit_sequence or 0, seen))
    return sorted(events, key=lambda event: event[0])


def _is_forgotten(key: GroupPartition, event: Forget) -> bool:
    group, (topic, _) = key
    return group in event.groups or (group, topic) in event.topics


def _joined(
    seen: SeenTransaction,
) -> Iterator[tuple[str, tuple[TopicPartition, Place], Place | None]]:
    """Joins steps that continue each other. Yields (group, (partition, to), from)."""
    joined: dict[tuple[str, TopicPartition], tuple[Place | None, Place]] = {}
    for group, step in seen.offsets:
        key = group, (step.topic, step.partition)
        begin = joined[key][0] if key in joined else step.from_place
        joined[key] = begin, step.to.place
    for (group, partition), (begin, end) in joined.items():
        yield group, (partition, end), begin


def _control(group: Group) -> Marker | DataControl | ModeRecord:
    TxId.from_bytes(group.raw_txid)
    control = decode_control(group.ctl) if group.ctl else DataControl()
    if not isinstance(control, DataControl) and group.blank != group.records:
        raise MalformedHeaderError("a marker or mode record with a key or a value")
    return control


def _branch(stated: Any) -> int:
    return int(stated.branch)


def _word(committed: bool) -> str:
    return "committed" if committed else "aborted"


def _name(raw: bytes) -> str:
    try:
        return str(TxId.from_bytes(raw))
    except MalformedHeaderError:
        return raw.hex()
