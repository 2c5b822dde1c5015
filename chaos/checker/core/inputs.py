"""Read, process, write: checks that one committed transaction processed each committed input.

There are three witnesses, each judged by itself: the outputs, which name their input; the input
that commits claimed to consume; and the journal, where each step must continue the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from .facts import Facts, Truth
from .findings import Evidence, Findings, appended, asked, at, ended, in_journal, lies
from .history import Append, Op
from .journal import Journal, Partition, Place
from .logs import Standing, View

Outputs = dict[tuple[int, int], list[Append]]
"""(partition, offset) of an input → the committed outputs made of it."""


def check_inputs(facts: Facts, found: Findings) -> None:
    """Finds iov-gap, iov-overlap, g1a by processing, and input that was left unseen at the end."""
    _check_outputs(facts, found)
    _check_claims(facts, found)
    for journal in facts.journals.values():
        _check_steps(journal, found)


# ---- outputs ------------------------------------------------------------------------------------


def _check_outputs(facts: Facts, found: Findings) -> None:
    for made, perhaps in _outputs(facts).values():
        if not made and not perhaps:
            continue
        for source, appends in made.items():
            if len(appends) > 1:
                _report_overlap(facts, source, appends, found)
            _check_source(facts, source, appends[0], found)
        for (topic, number), view in facts.views.items():
            if topic == facts.input_topic:
                _check_gaps(facts, view, {o for p, o in made if p == number}, perhaps, found)


def _outputs(facts: Facts) -> dict[str, tuple[Outputs, set[tuple[int, int]]]]:
    """Returns role → what was made of which input, and input whose output is not known.

    Processes of one role share the input; those of another process all of it for themselves.
    """
    found: dict[str, tuple[Outputs, set[tuple[int, int]]]] = {}
    for append in facts.history.appends.values():
        op = append.op
        if append.source is None or op is None:
            continue
        role = append.line.process.partition("-")[0]
        made, perhaps = found.setdefault(role, ({}, set()))
        if facts.committed(op):
            made.setdefault(append.source, []).append(append)
        elif facts.truth(op) is Truth.UNKNOWN and op.outcome == "unknown" and op.asked:
            perhaps.add(append.source)
    return found


def _report_overlap(
    facts: Facts, source: tuple[int, int], appends: list[Append], found: Findings
) -> None:
    one, other = appends[:2]
    assert one.op is not None
    assert other.op is not None
    found.add(
        "iov-overlap",
        f"input {at((facts.input_topic, source[0]), source[1])} was processed by {one.op.name} and"
        f" by {other.op.name}, which both are committed",
        appended(facts, one),
        ended(one.op),
        appended(facts, other),
        ended(other.op),
    )


def _check_source(facts: Facts, source: tuple[int, int], append: Append, found: Findings) -> None:
    partition = facts.input_topic, source[0]
    view = facts.views.get(partition)
    standing = None if view is None else view.standing.get(source[1])
    if standing in (None, Standing.TORN):
        return
    assert append.op is not None
    found.add(
        "g1a" if standing is Standing.ABORTED else "dirty-read",
        f"{append.op.name} processed {at(partition, source[1])}, which is not committed",
        lies(facts, partition, source[1]),
        appended(facts, append),
        ended(append.op),
    )


def _check_gaps(
    facts: Facts,
    view: View,
    made: set[int],
    perhaps: set[tuple[int, int]],
    found: Findings,
) -> None:
    number = view.partition[1]
    missing: list[tuple[int, int | None]] = []
    after: int | None = None
    """The next higher offset of an input that was processed."""
    for offset in reversed(view.committed.offsets):
        if offset in made:
            after = offset
        elif (number, offset) in perhaps:
            facts.unverifiable["input of a worker's transaction of unknown outcome"] += 1
        else:
            missing.append((offset, after))
    for offset, behind in reversed(missing):
        sentence = f"input {at(view.partition, offset)} was never processed"
        evidence = lies(facts, view.partition, offset)
        if behind is None:
            found.add("unseen", sentence, evidence)
        else:
            sentence += ", and what comes behind it was"
            found.add("iov-gap", sentence, evidence, lies(facts, view.partition, behind))


# ---- claims of the history ----------------------------------------------------------------------


class _Stretch(NamedTuple):
    first: int
    """Rank of the first record in it, among what is due."""
    behind: int
    """Rank of the first record behind it."""
    start: Place | None
    end: Place
    op: Op


def _check_claims(facts: Facts, found: Findings) -> None:
    stretches: dict[tuple[str, Partition], list[_Stretch]] = {}
    perhaps: dict[tuple[str, Partition], list[_Stretch]] = {}
    for op in facts.history.ops.values():
        if facts.committed(op):
            where = stretches
        elif facts.truth(op) is Truth.UNKNOWN and op.outcome == "unknown" and op.asked:
            where = perhaps
        else:
            continue
        for claimed in op.claims:
            view = facts.views.get(claimed.partition)
            if view is None:
                continue
            first = 0 if claimed.start is None else view.given_before(claimed.start)
            behind = view.given_before(claimed.end)
            stretch = _Stretch(first, behind, claimed.start, claimed.end, op)
            where.setdefault((claimed.group, claimed.partition), []).append(stretch)
    for key, known in stretches.items():
        known.sort(key=_order)
        view = facts.views[key[1]]
        _check_stretches(facts, key[0], view, known, perhaps.get(key, ()), found)


def _order(stretch: _Stretch) -> tuple[object, ...]:
    start = (-1, 0, 0, 0) if stretch.start is None else stretch.start.key
    return stretch.first, stretch.behind, start, stretch.end.key


def _check_stretches(
    facts: Facts,
    group: str,
    view: View,
    known: Sequence[_Stretch],
    perhaps: Sequence[_Stretch],
    found: Findings,
) -> None:
    due = view.committed.offsets
    for one, other in pairwise(known):
        if other.first < one.behind and other.first < other.behind:
            _report_stretch(
                facts, "iov-overlap", group, view, (one, other), due[other.first], found
            )
        elif one.behind < other.first:
            if any(p.first < other.first and one.behind < p.behind for p in perhaps):
                facts.unverifiable["input of a worker's transaction of unknown outcome"] += 1
            else:
                _report_stretch(facts, "iov-gap", group, view, (one, other), due[one.behind], found)


def _report_stretch(
    facts: Facts,
    name: str,
    group: str,
    view: View,
    stretches: tuple[_Stretch, _Stretch],
    offset: int,
    found: Findings,
) -> None:
    one, other = stretches
    twice = "both of" if name == "iov-overlap" else "neither of"
    found.add(
        name,
        f"group {group}: {at(view.partition, offset)} is in {twice} {one.op.name}"
        f" {_range(one)} and {other.op.name} {_range(other)}, which go on from each other",
        asked(one.op),
        asked(other.op),
        lies(facts, view.partition, offset),
    )


def _range(stretch: _Stretch) -> str:
    return f"[{-1 if stretch.start is None else stretch.start}, {stretch.end})"


# ---- steps of the journal -----------------------------------------------------------------------


def _check_steps(journal: Journal, found: Findings) -> None:
    committed: dict[tuple[str, Partition], tuple[Place, Evidence]] = {}
    for fate in journal.decisions:
        if fate.committed and fate.txid.begin < journal.start:
            committed.clear()  # some of its steps may have been trimmed
        if not fate.committed or fate.txid.begin < journal.start:
            continue
        for key, step in fate.steps.items():
            assert fate.decided is not None
            topic, number = key[1]
            what = (
                f"{fate.txid} takes {key[0]} in {topic}[{number}] from"
                f" {'nothing' if step.start is None else step.start} to {step.end}"
            )
            evidence = in_journal(journal.number, fate.decided, what)
            before = committed.get(key)
            committed[key] = step.end, evidence
            if before is None:
                if step.start is not None and journal.start == 0:
                    sentence = f"{what}, where nothing had been committed"
                    found.add("iov-gap", sentence, evidence)
            elif step.start != before[0]:
                overlap = step.start is None or step.start.key < before[0].key
                found.add(
                    "iov-overlap" if overlap else "iov-gap",
                    f"{what}, where {before[0]} was committed",
                    before[1],
                    evidence,
                )
