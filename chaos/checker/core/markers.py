"""Checks that markers in the data partitions are what the journal decided, and in its order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from .facts import Facts
from .findings import Evidence, Findings, at, decided, ends_at, in_journal, lies
from .journal import GONE, Fate, Partition
from .logs import End, Marker, View
from .wire import Control, TxId, sidecar_of


class _Log(NamedTuple):
    """A partition that gets markers, of a topic or of a sidecar."""

    partition: Partition
    view: View
    """Of the topic's partition."""
    marked: Collection[TxId]
    """Transactions that have a marker in it."""
    start: int
    end: int

    @property
    def bounds(self) -> Evidence:
        """Where there are markers, and how many."""
        topic, number = self.partition
        told = f"{len(self.marked)} markers from {self.start} to {self.end}"
        return Evidence(f"{topic}[{number}]", told)


def _main_log(view: View) -> _Log:
    return _Log(view.partition, view, view.first_markers, view.start, view.end)


def _logs(facts: Facts) -> dict[Partition, _Log]:
    found: dict[Partition, _Log] = {}
    for partition, view in facts.views.items():
        found[partition] = _main_log(view)
        aside = sidecar_of(partition)
        marked = {txid for txid, _ in view.aside_markers}
        found[aside] = _Log(aside, view, marked, view.aside_start, view.aside_end)
    return found


def check_markers(facts: Facts, found: Findings) -> None:
    """Finds marker-mismatch, missing-marker, marker-order and watermark."""
    for view in facts.views.values():
        for txid, marker in (*view.first_markers.items(), *view.later_markers):
            _check_marker(facts, view, txid, marker, found)
        _check_aside(facts, view, found)
        _check_order(facts, view, found)
        _check_watermarks(facts, view, found)
    _check_missing(facts, _logs(facts), found)


def _check_marker(facts: Facts, view: View, txid: TxId, marker: Marker, found: Findings) -> None:
    if _began_below_start(facts, txid):
        facts.unverifiable["marker of a decision that was trimmed"] += 1
        return
    fate = facts.fate(txid)
    wrong = _wrong(view, fate, marker.control)
    if wrong:
        found.add(
            "marker-mismatch",
            f"the marker of {txid} at {at(view.partition, marker.offset)} {wrong}",
            lies(facts, view.partition, marker.offset),
            *((decided(fate),) if fate is not None else ()),
        )


def _began_below_start(facts: Facts, txid: TxId) -> bool:
    journal = facts.journals.get(txid.partition)
    return journal is None or txid.begin < journal.start


def _wrong(view: View, fate: Fate | None, control: Control) -> str:
    partition = view.partition
    if fate is None:
        return "is of a transaction that never began"
    if fate.decided is None:
        return "is of a transaction that is not decided"
    if fate.committed != control.committed:
        return f"says {'COMMITTED' if control.committed else 'ABORTED'}, the journal otherwise"
    if fate.decided != control.commit_sequence:
        return f"has another commit sequence than its decision, {fate.decided}"
    if control.committed and sorted(control.ranges) != sorted(fate.writes.get(partition, ())):
        return "states other records than its decision"
    aside = sidecar_of(partition)
    if control.committed and sorted(control.sidecar) != sorted(fate.writes.get(aside, ())):
        return "states other records of the sidecar than its decision"
    if control.is_pointer and control.since != fate.since.get(aside):
        return f"has another since than its decision, {fate.since.get(aside)}"
    # A transaction of a topic that was made anew gets a marker in the new one.
    if partition in fate.unmarked and fate.committed and fate.places.get(partition) != GONE:
        return "stands in a partition where its transaction is placed"
    return ""


def _check_aside(facts: Facts, view: View, found: Findings) -> None:
    """Compares the markers of a sidecar, and what finishes transactions there, with the pointers
    and the places that stand for them."""
    ends: dict[TxId, set[int]] = {
        txid: {end.offset} for txid, end in view.placed.items() if end.aside
    }
    for txid, marker in (*view.first_markers.items(), *view.later_markers):
        if marker.control.is_pointer:
            ends.setdefault(txid, set()).add(marker.offset)
    topic, number = sidecar_of(view.partition)
    for txid, marker in view.aside_markers:
        fate, known = facts.fate(txid), ends.get(txid, set())
        if not known and _began_below_start(facts, txid):
            # The decision, if it is gone, said whether it is placed.
            facts.unverifiable["marker of a decision that was trimmed"] += 1
            continue
        wrong = _wrong_aside(view, txid, marker.control, known)
        if wrong:
            found.add(
                "marker-mismatch",
                f"the marker of {txid} at {topic}[{number}] offset {marker.offset} {wrong}",
                _main_log(view).bounds,
                *((decided(fate),) if fate is not None else ()),
            )
        told = None if fate is None else fate.pointers.get((topic, number))
        if fate is not None and told is not None and told >= view.start and told not in known:
            found.add(
                "marker-mismatch",
                f"{txid} is finished with an end at {at(view.partition, told)}, where it has no"
                " pointer and no place",
                in_journal(txid.partition, fate.finished or 0, f"COMMITTED {txid}"),
                decided(fate),
            )


def _wrong_aside(view: View, txid: TxId, control: Control, known: Collection[int]) -> str:
    """Returns what is wrong with a marker of a sidecar.

    Args:
        view: the partition.
        txid: of the marker.
        control: the marker.
        known: where the transaction's pointers lie in the partition, or its place.
    """
    if not control.committed:
        return "says ABORTED, and the topic has a pointer, or a place" if known else ""
    if not known and view.start == 0:
        return "says COMMITTED, and the topic has no pointer and no place"
    if control.pointer is None:
        # Who writes a pointer again may not know where it lies. A place is known to everybody.
        return "names no place, and its transaction has one" if txid in view.placed else ""
    if control.pointer >= view.start and control.pointer not in known:
        return "names a pointer that is none, or a place"
    return ""


def _check_order(facts: Facts, view: View, found: Findings) -> None:
    last: dict[tuple[int, int], Marker] = {}
    for txid, marker in view.first_markers.items():
        if not view.is_first(marker):
            facts.unverifiable["marker before which another may have been trimmed"] += 1
            continue
        before = last.get(txid.journal)
        if before is not None and before.control.commit_sequence > marker.control.commit_sequence:
            found.add(
                "marker-order",
                f"{at(view.partition, marker.offset)}: the first marker of {txid} stands behind one"
                " that was decided later",
                lies(facts, view.partition, before.offset),
                lies(facts, view.partition, marker.offset),
            )
            continue
        last[txid.journal] = marker


def _check_watermarks(facts: Facts, view: View, found: Findings) -> None:
    highest: dict[tuple[int, int], Marker] = {}
    for txid, marker, end in _in_order(view):
        above = highest.get(txid.journal)
        if end is not None and above is not None and txid.begin < above.control.hw:
            found.add(
                "watermark",
                f"{txid} ends at {at(view.partition, end.offset)}, behind a marker that says"
                f" that all below {above.control.hw} are finished",
                lies(facts, view.partition, above.offset),
                ends_at(facts, view, end),
            )
        if marker is not None and (above is None or marker.control.hw > above.control.hw):
            highest[txid.journal] = marker


def _in_order(view: View) -> list[tuple[TxId, Marker | None, End | None]]:
    """Returns all markers and places: its transaction, the marker, and the end, if it is one."""
    found: list[tuple[int, int, TxId, Marker | None, End | None]] = [
        (end.offset, 0, txid, None, end) for txid, end in view.placed.items()
    ]
    for txid, marker in view.first_markers.items():
        end = view.end_of(txid)
        is_end = end is not None and not end.is_place and view.is_first(marker)
        found.append((marker.offset, 1, txid, marker, end if is_end else None))
    found += [(marker.offset, 1, txid, marker, None) for txid, marker in view.later_markers]
    return [row[2:] for row in sorted(found, key=lambda row: row[:2])]


def _check_missing(facts: Facts, logs: Mapping[Partition, _Log], found: Findings) -> None:
    for journal in facts.journals.values():
        for fate in journal.decisions:
            if fate.finished is None or fate.finished >= journal.end_before_data:
                facts.unverifiable["decision whose markers may still be on their way"] += 1
                continue
            unknown = fate.handed.keys() - fate.answers.keys()  # told by the check of adoptions
            for partition in sorted(fate.partitions - fate.gone - fate.unmarked - unknown):
                log = logs.get(partition)
                if log is not None and fate.txid not in log.marked:
                    _check_unmarked(facts, fate, log, found)


def _check_unmarked(facts: Facts, fate: Fate, log: _Log, found: Findings) -> None:
    """Finds missing-marker, unless it may have been where nobody can look."""
    topic, number = log.partition
    if not log.view.judges(fate.txid):
        facts.unverifiable["marker in a topic that was made anew"] += 1
        return
    # A marker comes after the records that it states. If it states none, its place is not known.
    ranges = fate.writes.get(log.partition, ())
    if log.start > 0 and all(stated.last < log.start for stated in ranges):
        facts.unverifiable["marker that may have been trimmed"] += 1
        return
    finished = fate.finished or 0
    found.add(
        "missing-marker",
        f"{fate.txid} is finished, and {topic}[{number}] has no marker of it",
        decided(fate),
        in_journal(fate.txid.partition, finished, "all its markers are written"),
        log.bounds,
    )
