"""Checks places and modes: what is placed where, in which order, and whether it may be.

A topic's home, the one journal that switches it, places what it decides or adopts while the topic
is in metadata mode. Nothing else may be placed there, and nothing that is may be marked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final

from .facts import Facts
from .findings import (
    Evidence,
    Findings,
    acknowledged,
    asked,
    at,
    decided,
    ends_at,
    in_journal,
    lies,
)
from .history import Append, Op
from .journal import (
    GONE,
    MARKERS,
    METADATA,
    TO_MARKERS,
    TO_METADATA,
    Fate,
    Journal,
    ModeStep,
    Partition,
    PlacedEnd,
)
from .logs import End, View
from .wire import ASIDE_FROM, TxId
from .wire import MARKERS as TO_MARKERS_RECORD
from .wire import PLACES as TO_METADATA_RECORD

_BEFORE: Final[Mapping[str, tuple[str, ...]]] = {
    # The second record of a switch under way says that it goes on without mode records.
    TO_METADATA: (MARKERS, TO_METADATA),
    METADATA: (TO_METADATA,),
    TO_MARKERS: (METADATA, TO_MARKERS),
    MARKERS: (TO_MARKERS,),
}
"""Phase → those that may precede it."""


def check_places(facts: Facts, found: Findings) -> None:
    """Finds missing-place, place-order, misplaced and mode-mismatch."""
    for journal in facts.journals.values():
        for fate in journal.decisions:
            _check_decision(facts, journal, fate, found)
        for topic, steps in journal.modes.items():
            _check_switches(facts, journal, topic, steps, found)
        for partition, placed in journal.placed.items():
            _check_rising(facts, journal, partition, placed, found)
    _check_homes(facts, found)
    acknowledged_in = _by_partition(facts)
    ops = _asked(facts)
    for view in facts.views.values():
        _check_order(facts, view, found)
        known = _Acknowledged(facts, acknowledged_in.get(view.partition, []))
        for end in view.placed.values():
            _check_place(facts, view, end, found)
            known.check(view, end, ops.get(end.txid), found)


# ---- decisions ----------------------------------------------------------------------------------


def _check_decision(facts: Facts, journal: Journal, fate: Fate, found: Findings) -> None:
    if not fate.committed:
        return
    for partition in sorted((fate.unmarked | fate.writes.keys()) - fate.handed.keys()):
        view = facts.views.get(partition)
        if view is None or not view.judges(fate.txid):
            continue
        if not _fits_mode(facts, journal, fate, partition, found):
            continue
        if fate.finished is not None and fate.lacks_place(partition):
            found.add(
                "missing-place",
                f"{fate.txid} is finished, and has no place in {partition[0]}[{partition[1]}]",
                decided(fate),
                in_journal(journal.number, fate.finished, "all its places are given"),
            )


def _fits_mode(
    facts: Facts, journal: Journal, fate: Fate, partition: Partition, found: Findings
) -> bool:
    assert fate.decided is not None
    topic_id = fate.topic_ids.get(partition, "")
    step = journal.mode_at(partition[0], topic_id, fate.decided)
    if step is None and journal.start > 0:
        if partition in fate.unmarked:  # else the topic may never have been switched
            facts.unverifiable["place whose switch was trimmed"] += 1
        return True
    is_placed, in_metadata = partition in fate.unmarked, step is not None and step.phase == METADATA
    if is_placed == in_metadata:
        return True
    found.add(
        "mode-mismatch",
        f"{fate.txid} is {'placed' if is_placed else 'marked'} in {partition[0]}[{partition[1]}],"
        f" and the topic is in {MARKERS if step is None else step.phase} then",
        decided(fate),
        *(() if step is None else (_mode(journal, partition[0], step),)),
    )
    return False


def _mode(journal: Journal, topic: str, step: ModeStep) -> Evidence:
    return in_journal(journal.number, step.offset, f"MODE of {topic}: {step.phase}")


# ---- switches -----------------------------------------------------------------------------------


def _check_homes(facts: Facts, found: Findings) -> None:
    homes: dict[str, Journal] = {}
    for journal in facts.journals.values():
        for topic, steps in journal.modes.items():
            other = homes.setdefault(topic, journal)
            if other is not journal:
                found.add(
                    "mode-mismatch",
                    f"{topic} is switched by two journals",
                    _mode(other, topic, other.modes[topic][0]),
                    _mode(journal, topic, steps[0]),
                )


def _check_switches(
    facts: Facts, journal: Journal, topic: str, steps: list[ModeStep], found: Findings
) -> None:
    before: ModeStep | None = None
    began: ModeStep | None = None
    for step in steps:
        if before is not None and before.topic_id != step.topic_id:
            before = began = None  # the topic was made anew
        phase = before.phase if before is not None else MARKERS
        if phase not in _BEFORE[step.phase] and (before is not None or journal.start == 0):
            evidence = [] if before is None else [_mode(journal, topic, before)]
            evidence.append(_mode(journal, topic, step))
            found.add("mode-mismatch", f"{topic} turns from {phase} to {step.phase}", *evidence)
        if step.phase in (METADATA, MARKERS) and began is not None and step.with_records:
            _check_mode_records(facts, journal, topic, (began, step), found)
        if step.phase in (TO_METADATA, TO_MARKERS) and phase != step.phase:
            began = step
        before = step


def _check_mode_records(
    facts: Facts,
    journal: Journal,
    topic: str,
    switch: tuple[ModeStep, ModeStep],
    found: Findings,
) -> None:
    began, ended = switch
    wanted = TO_METADATA_RECORD if ended.phase == METADATA else TO_MARKERS_RECORD
    for number, offset in ended.since.items():
        view = facts.views.get((topic, number))
        if view is None or topic in facts.history.anew:
            continue
        if offset < view.start:
            facts.unverifiable["mode record that was trimmed"] += 1
            continue
        record = view.records.get(offset)
        control = None if record is None else record.control
        txid = None if record is None else record.txid
        named = txid is not None and (txid.partition, txid.begin) == (journal.number, began.offset)
        if control is None or control.kind != wanted or not named:
            found.add(
                "mode-mismatch",
                f"{at(view.partition, offset)} is no mode record of the switch to {ended.phase}",
                _mode(journal, topic, began),
                _mode(journal, topic, ended),
                lies(facts, view.partition, offset),
            )


# ---- places -------------------------------------------------------------------------------------


def _check_rising(
    facts: Facts,
    journal: Journal,
    partition: Partition,
    placed: list[PlacedEnd],
    found: Findings,
) -> None:
    last: PlacedEnd | None = None
    view = facts.views.get(partition)
    for end in placed:
        if view is not None and view.judges(end.txid) and end.place > view.end:
            found.add(
                "misplaced",
                f"the place of {end.txid} at {at(partition, end.place)} lies behind the log's end,"
                f" {view.end}",
                _given(journal.number, partition, end),
            )
        if end.place == GONE or (last is not None and last.topic_id != end.topic_id):
            last = None if end.place == GONE else end
            continue
        if last is not None and end.place < last.place:
            found.add(
                "place-order",
                f"{end.txid} is placed at {at(partition, end.place)}, below {last.txid}, which was"
                " decided earlier",
                _given(journal.number, partition, last),
                _given(journal.number, partition, end),
            )
        last = end


def _given(journal: int, partition: Partition, end: PlacedEnd) -> Evidence:
    what = f"PLACED: {end.txid}, commit sequence {end.sequence}, at {at(partition, end.place)}"
    return in_journal(journal, end.offset, what)


def _check_order(facts: Facts, view: View, found: Findings) -> None:
    """Checks that markers and places of one journal stand in commit-sequence order."""
    last: dict[tuple[int, int], End] = {}
    for end in _ends(view):
        before = last.get(end.txid.journal)
        last[end.txid.journal] = end
        if before is None or before.commit_sequence <= end.commit_sequence:
            continue
        if before.is_place != end.is_place:
            found.add(
                "place-order",
                f"{end.txid} ends at {at(view.partition, end.offset)}, behind {before.txid}, which"
                " was decided later",
                ends_at(facts, view, before),
                ends_at(facts, view, end),
            )


def _ends(view: View) -> list[End]:
    marked: list[End] = []
    for txid, marker in view.first_markers.items():
        end = view.end_of(txid)
        if end is not None and not end.is_place and view.is_first(marker):
            marked.append(end)
    return sorted(
        (*marked, *view.placed.values()),
        key=lambda end: (end.offset, not end.is_place, end.sequence),
    )


def _check_place(facts: Facts, view: View, end: End, found: Findings) -> None:
    wrong = _wrong_place(facts, view, end)
    if wrong:
        name, why = wrong
        sentence = f"the place of {end.txid} at {at(view.partition, end.offset)} {why}"
        fate = facts.fate(end.txid)
        found.add(
            name,
            sentence,
            *(() if fate is None else (decided(fate),)),
            ends_at(facts, view, end),
        )


def _wrong_place(facts: Facts, view: View, end: End) -> tuple[str, str] | None:
    if any(stated.last >= end.offset for stated in end.ranges):
        return "misplaced", "lies below its own records"
    assert end.placed is not None
    topic, number = view.partition
    switches = facts.journals[end.placed.home].modes.get(topic, [])
    steps = [step for step in switches if step.topic_id == end.placed.topic_id]
    began = [s for s in steps if s.offset < end.sequence and s.phase == METADATA]
    over = [s for s in steps if s.offset > end.sequence and s.phase == MARKERS]
    if began and end.offset <= began[-1].since.get(number, -1) and began[-1].with_records:
        return "mode-mismatch", "does not lie behind the mode record that says that it is placed"
    if over and end.offset > over[0].since.get(number, end.offset) and over[0].with_records:
        return "mode-mismatch", "lies behind the mode record that says that all is marked again"
    return None


class _Acknowledged:
    """What was acknowledged in a partition, and when: a place that is given later lies behind it.

    The end of the partition that becomes a place is asked for after the decision, which comes after
    the commit was asked for.
    """

    def __init__(self, facts: Facts, appends: Iterable[Append]) -> None:
        self._facts = facts
        known = sorted(appends, key=_at)
        self._times = [_at(append) for append in known]
        self._highest = list(accumulate(known, _higher))

    def check(self, view: View, end: End, op: Op | None, found: Findings) -> None:
        """Finds a transaction that is placed below what was there before it was decided."""
        if op is None or op.asked is None:
            return
        count = bisect_left(self._times, op.asked.at)
        if count == 0 or self._highest[count - 1].offset < end.offset:
            return
        found.add(
            "misplaced",
            f"the place of {end.txid} at {at(view.partition, end.offset)} lies below a record that"
            " was there before its commit was asked for",
            acknowledged(self._facts, self._highest[count - 1]),
            asked(op),
            ends_at(self._facts, view, end),
        )


def _by_partition(facts: Facts) -> dict[Partition, list[Append]]:
    found: dict[Partition, list[Append]] = {}
    for append in facts.history.appends.values():
        # A sidecar's offsets say nothing of the partition's end.
        if append.acked is not None and 0 <= append.offset < ASIDE_FROM:
            found.setdefault(append.partition, []).append(append)
    return found


def _asked(facts: Facts) -> dict[TxId, Op]:
    """Returns the operations whose commit was asked for, by TxId."""
    known = ((facts.txid(op), op) for op in facts.history.ops.values() if op.asked is not None)
    return {txid: op for txid, op in known if txid is not None}


def _at(append: Append) -> int:
    return 0 if append.acked is None else append.acked.at


def _higher(one: Append, other: Append) -> Append:
    return max(one, other, key=lambda append: append.offset)
