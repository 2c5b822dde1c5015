"""Compaction of a sidecar: every interleaving of transactions, copiers, retention, and a reader.

Real: `Scan`, `Compaction` and `Relocations`. Modelled: the logs, checkpoints (`TrimmingWorld` has
them), the coordinators' trimming, copiers that die at each step, topics that are created anew,
brokers that tell an end of the past of the relocations, and a reader that reads by record.

In every state the sidecar has what pointers need, as far as readers can find it. The reader gets
each record once, in order, with the offset of its original.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from logtx.coordinator.core.compacting import Compaction, Needed, Plan, Scan
from logtx.coordinator.core.trimming import Noted
from logtx.journal.control import BranchRange, Marker
from logtx.journal.relocation import Relocation, Relocations

from .explore import Move, State

SIDE = ("a._txnlog", 0)


def txid_of(which: int) -> bytes:
    """Returns the TxId of a transaction."""
    return bytes([which] * 16)


class Txn(NamedTuple):
    """A transaction as it stands."""

    phase: str = "idle"
    """Or begun, commit, abort."""
    offsets: tuple[int, ...] = ()
    """Of its records in the sidecar."""
    side: int = 0
    """Which sidecar of the name has them."""
    pointer: int = -1
    is_marked: bool = False
    """Whether the sidecar has its end record."""


class Fact(NamedTuple):
    """A relocation."""

    side: int
    txn: int
    copy: int
    first: int
    last: int
    count: int
    pointer: int


class Copier(NamedTuple):
    """A run of the command."""

    step: str = "idle"
    side: int = 0
    end: int = 0
    main_start: int = 0
    start: int = -1
    facts: int = -1
    """How many relocations it has read."""
    bound: int = -1
    copies: tuple[tuple[int, int, int], ...] = ()
    """(transaction, the copy that it lies in or -1, pointer) of what is still to copy."""
    offsets: tuple[int, ...] = ()
    """Of the copied records of the first of these."""
    last_fact: int = 0
    """Number of relocations when it read them, or wrote its last one."""
    copy: int = 0
    """The id of its copies."""


class Reader(NamedTuple):
    """Reads transaction 0 at its pointer."""

    next: int = 0
    """Number of its next record."""
    start: int = -1
    """Where the sidecar was told to start; -1: it is to be asked."""
    copy: int = -2
    """Which copy it reads; -1: the original; -2: it is to be looked up."""
    facts: int = -1
    """How many relocations it read before it asked, if that rule is dropped."""


class Left(NamedTuple):
    """What may still happen."""

    retention: int = 1
    trims: int = 1
    """Times that coordinators trim."""
    anew: int = 0
    runs: int = 2
    kills: int = 1
    stale: int = 0
    """Readings of the relocations that a former leader answers."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What transactions write, and what may happen."""

    name: str
    sizes: tuple[int, ...] = (2, 1)
    commits: tuple[bool, ...] = (True, False)
    """Whether each may be committed; it may always be aborted, but for the first."""
    left: Left = Left()  # noqa: RUF009
    copiers: int = 1
    reads: bool = True
    length_max: int = 9
    dropped: str = ""
    """A rule of the shell that is dropped."""


class CompactingWorld:
    """See the module."""

    def __init__(self, scenario: Scenario) -> None:
        self.name, self._scenario = scenario.name, scenario
        self.trims = self.read_copies = 0
        """Times that a run trimmed, and records that were read in copies, over all states."""

    def initial(self) -> State:
        """Returns (sidecar, its start, number), (main end, start), transactions, relocations,
        how many of them every broker tells, copiers, the reader, what is left."""
        scenario = self._scenario
        return (
            ((), 0, 0),
            (0, 0),
            tuple(tuple(Txn()) for _ in scenario.sizes),
            (),
            0,
            tuple(tuple(Copier()) for _ in range(scenario.copiers)),
            tuple(Reader()),
            tuple(scenario.left),
        )

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step."""
        return [((line, False), after) for line, after in self._steps(state)]

    def tell(self, state: State, move: Move, traded: bool) -> str:  # noqa: ARG002
        """Returns a step as a line."""
        return str(move[0])

    def tell_end(self, state: State) -> list[str]:  # noqa: ARG002
        """Returns nothing: the violation says it."""
        return []

    def _steps(self, state: State) -> Iterator[tuple[str, State | str]]:
        side, main, txns, facts, settled, copiers, reader, left_ = state
        left = Left(*left_)
        for which, row in enumerate(txns):
            yield from self._txn_steps(which, Txn(*row), state)
        if left.retention and main[1] < main[0]:
            less = tuple(left._replace(retention=left.retention - 1))
            after = main[0], main[1] + 1
            yield (
                f"retention: the main log starts at {after[1]}",
                (*(side, after, txns, facts, settled, copiers, reader, less),),
            )
        if left.anew:
            less = tuple(left._replace(anew=left.anew - 1))
            after = (), 0, side[2] + 1
            yield (
                "the sidecar is created anew",
                (*(after, main, txns, facts, settled, copiers, reader, less),),
            )
        if settled < len(facts):
            yield (
                "every broker tells all relocations",
                (*(side, main, txns, facts, len(facts), copiers, reader, left_),),
            )
        if left.trims:
            yield from self._coordinators(state)
        for number, row in enumerate(copiers):
            yield from self._copier_steps(number, Copier(*row), state)
        if self._scenario.reads:
            yield from self._reader_steps(Reader(*reader), state)

    # ---- transactions ---------------------------------------------------------------------------

    def _txn_steps(self, which: int, txn: Txn, state: State) -> Iterator[tuple[str, State]]:
        (log, start, number), main, txns, *rest = state
        scenario = self._scenario

        def after(changed: Txn, entry: Any = None, pointer: bool = False) -> State:
            those = [*txns]
            those[which] = tuple(changed)
            grown = log if entry is None else (*log, entry)
            return (grown, start, number), (main[0] + pointer, main[1]), tuple(those), *rest

        here = txn.side == number
        if txn.phase == "idle" and scenario.sizes[which]:
            yield f"{which} begins", after(txn._replace(phase="begun", side=number))
        elif txn.phase == "begun" and here:
            if len(txn.offsets) < scenario.sizes[which]:
                at = len(log)
                wrote = txn._replace(offsets=(*txn.offsets, at))
                yield f"{which} writes at {at}", after(wrote, ("r", which, at))
            elif scenario.commits[which]:
                yield f"{which} is committed", after(txn._replace(phase="commit"))
            if which and txn.offsets:
                yield f"{which} is aborted", after(txn._replace(phase="abort"))
        elif txn.phase == "commit" and txn.pointer < 0:
            pointed = txn._replace(pointer=main[0])
            yield f"the pointer of {which} is written at {main[0]}", after(pointed, pointer=True)
        elif txn.phase in ("commit", "abort") and not txn.is_marked and here:
            marked = txn._replace(is_marked=True)
            yield f"the sidecar gets the marker of {which}", after(marked, ("m", which))

    def _coordinators(self, state: State) -> Iterator[tuple[str, State]]:
        # What their checkpoints and staircases come to.
        side, main, txns, facts, settled, copiers, reader, left_ = state
        log, start, number = side
        bound = len(log)
        for row in txns:
            txn = Txn(*row)
            if txn.phase == "begun":
                return
            is_gone = self._scenario.dropped == "copies" and txn.offsets[:1] < (start,)
            if txn.phase == "commit" and _is_needed(txn, main[1]) and not is_gone:
                bound = min(bound, txn.offsets[0])
        if bound > start:
            left = Left(*left_)
            less = tuple(left._replace(trims=left.trims - 1))
            yield (
                f"coordinators trim to {bound}",
                (*((log, bound, number), main, txns, facts, settled, copiers, reader, less),),
            )

    # ---- copiers --------------------------------------------------------------------------------

    def _copier_steps(
        self, number: int, copier: Copier, state: State
    ) -> Iterator[tuple[str, State]]:
        side, main, txns, facts, settled, copiers, reader, left_ = state
        left, dropped = Left(*left_), self._scenario.dropped
        log, start, incarnation = side

        def after(
            changed: Copier,
            *,
            side: Any = side,
            facts: Any = facts,
            left: Left = left,
        ) -> State:
            those = [*copiers]
            those[number] = tuple(changed)
            return side, main, txns, facts, settled, tuple(those), reader, tuple(left)

        def told(does: str) -> str:
            return f"copier {number} {does}"

        if copier.step == "idle":
            if left.runs:
                noted = Copier("noted", incarnation, len(log), main[1])
                noted = noted._replace(copy=self._scenario.left.runs - left.runs + 1)
                less = left._replace(runs=left.runs - 1)
                yield (
                    told(f"notes: sidecar to {len(log)}, main from {main[1]}"),
                    after(noted, left=less),
                )
            return
        if left.kills:
            yield told("dies"), after(Copier(), left=left._replace(kills=left.kills - 1))
        if copier.step == "noted":
            is_late = dropped == "facts first"
            if copier.start < 0 and not (is_late and copier.facts < 0):
                yield told(f"sees that it starts at {start}"), after(copier._replace(start=start))
            if copier.facts < 0 and (copier.start >= 0 or is_late):
                waits = 0 if dropped == "grace of others" else len(facts)
                read = copier._replace(facts=len(facts), last_fact=waits)
                yield told("reads the relocations"), after(read)
                if left.stale and settled < len(facts):
                    less = left._replace(stale=left.stale - 1)
                    read = copier._replace(facts=settled, last_fact=waits)
                    yield told("reads relocations of the past"), after(read, left=less)
            if copier.start >= 0 and copier.facts >= 0:
                if start != copier.start and dropped != "trimmed meanwhile":
                    yield told("finds it trimmed meanwhile"), after(Copier())
                else:
                    planned = self._planned(copier, state)
                    yield told(f"will trim to {planned.bound}"), after(planned)
        elif copier.step == "planned":
            yield from self._planned_steps(copier, state, after, told)

    def _planned_steps(
        self, copier: Copier, state: State, after: Any, told: Any
    ) -> Iterator[tuple[str, State]]:
        side, _, txns, facts, settled, *_ = state
        log, start, incarnation = side
        dropped = self._scenario.dropped
        if copier.bound <= copier.start:
            yield told("has nothing to do"), after(Copier())
            return
        copy = copier.copy
        if copier.copies:
            which, source, pointer = copier.copies[0]
            originals = Txn(*txns[which]).offsets
            done = len(copier.offsets)
            is_early = dropped == "relocation first"
            if done < len(originals):
                read = _find(log, start, which, source, originals[done])
                if read is None and dropped != "loses its source":
                    yield told("finds its source trimmed"), after(Copier())
                elif len(log) < self._scenario.length_max:
                    at = len(log)
                    grown = (*log, ("c", which, originals[done], copy)), start, incarnation
                    copied = copier._replace(offsets=(*copier.offsets, at))
                    yield told(f"copies {originals[done]} to {at}"), after(copied, side=grown)
            if done == len(originals) or (is_early and done):
                relocation = self._relocation(copier, which, copy, pointer)
                fact = tuple(
                    Fact(
                        copier.side, which, copy, relocation.first, relocation.last,
                        len(originals), pointer,
                    )
                )  # fmt: skip
                wrote = copier._replace(
                    copies=copier.copies[1:], offsets=(), last_fact=len(facts) + 1
                )
                yield (
                    told(f"writes that {which} lies at {relocation.first}"),
                    after(wrote, facts=(*facts, fact)),
                )
        if not copier.copies or dropped == "trims first":
            is_due = settled >= copier.last_fact or dropped == "grace"
            if incarnation != copier.side and dropped != "ids":
                yield told("finds another sidecar"), after(Copier())
            elif is_due and start < copier.bound <= len(log):
                self.trims += 1
                trimmed = log, copier.bound, incarnation
                done_ = Copier() if not copier.copies else copier
                yield told(f"trims to {copier.bound}"), after(done_, side=trimmed)
            elif is_due:
                yield told("ends"), after(Copier())

    def _planned(self, copier: Copier, state: State) -> Copier:
        (log, start, _), _, txns, facts, *_ = state
        plan = _plan(log, start, tuple(txns), tuple(copier), facts[: copier.facts], _ids_of(copier))
        copies = tuple(
            (each.txid[0], -1 if each.copy_id is None else each.copy_id[0], each.pointer)
            for each in plan.copies
        )
        return copier._replace(step="planned", bound=plan.bound, copies=copies)

    def _relocation(self, copier: Copier, which: int, copy: int, pointer: int) -> Relocation:
        plan = Plan(copier.start, copier.bound, (), None)
        run = Compaction(SIDE, _ids_of(copier), plan, bytes([copy] * 16), 0.0, 0.0)
        count = len(copier.offsets)
        needed = Needed(
            txid=txid_of(which), pointer=pointer, first=0, last=0, count=count, copy_id=None
        )
        return run.copied(needed, copier.offsets)

    # ---- the reader -----------------------------------------------------------------------------

    def _reader_steps(self, reader: Reader, state: State) -> Iterator[tuple[str, State | str]]:
        side, main, txns, facts, settled, copiers, _, left_ = state
        log, start, incarnation = side
        left, txn = Left(*left_), Txn(*txns[0])
        is_taken = txn.pointer < main[1] or txn.side != incarnation
        if txn.pointer < 0 or reader.next >= len(txn.offsets) or is_taken:
            return  # Retention took the pointer, or somebody the sidecar: it may end anyhow.

        def after(changed: Reader, left: Left = left) -> State:
            return side, main, txns, facts, settled, copiers, tuple(changed), tuple(left)

        is_early = self._scenario.dropped == "reader's facts first"
        if reader.start < 0 and is_early and reader.facts < 0:
            yield "the reader reads the relocations", after(reader._replace(facts=len(facts)))
        elif reader.start < 0:
            yield (
                f"the reader hears that it starts at {start}",
                after(reader._replace(start=start, copy=-2)),
            )
        elif reader.copy == -2:
            if reader.start <= txn.offsets[reader.next]:
                yield "the reader begins with the original", after(reader._replace(copy=-1))
                return
            seen = facts[: reader.facts] if is_early else facts
            yield self._looked_up(reader, seen, incarnation, after)
            if left.stale and settled < len(facts):
                less = left._replace(stale=left.stale - 1)
                yield self._looked_up(
                    reader, facts[:settled], incarnation, lambda r: after(r, less)
                )
        else:
            found = _find(log, start, 0, reader.copy, txn.offsets[reader.next])
            if found is None and _copied_from(facts, 0, reader.copy) >= start:
                yield (
                    "the reader reads on",
                    f"record {reader.next} is not where copy {reader.copy} is said to lie",
                )
                return
            if found is None:
                yield (
                    "the reader is told that it was trimmed",
                    after(reader._replace(start=-1, copy=-2, facts=-1)),
                )
                return
            self.read_copies += reader.copy >= 0
            yield (
                f"the reader delivers record {reader.next}",
                after(reader._replace(next=reader.next + 1)),
            )

    def _looked_up(
        self, reader: Reader, facts: Any, incarnation: int, after: Any
    ) -> tuple[str, State | str]:
        known = Relocations(map(_relocation_of, facts))
        found = known.find(SIDE, f"side {incarnation}", txid_of(0), reader.start)
        if found is None:
            return "the reader looks it up", "the reader takes a committed range for lost"
        which = found.copy_id[0]
        return f"the reader finds copy {which}", after(reader._replace(copy=which))

    # ---- what must be there ---------------------------------------------------------------------

    def check(self, state: State) -> str | None:
        """Looks whether the sidecar has what pointers need, where readers find it."""
        (log, start, number), main, txns, facts, *_ = state
        for which, row in enumerate(txns):
            txn = Txn(*row)
            if txn.phase != "commit" or txn.side != number or not _is_needed(txn, main[1]):
                continue
            if start <= txn.offsets[0]:
                continue
            known = Relocations(map(_relocation_of, facts))
            found = known.find(SIDE, f"side {number}", txid_of(which), start)
            if found is None:
                return f"{which} is needed, and lies nowhere: the sidecar starts at {start}"
            for original in txn.offsets:
                at = _find(log, start, which, found.copy_id[0], original)
                if at is None or not found.first <= at <= found.last:
                    return f"record {original} of {which} is not in copy {found.copy_id[0]}"
        return None


def _is_needed(txn: Txn, main_start: int) -> bool:
    return txn.pointer < 0 or txn.pointer >= main_start


def _ids_of(copier: Copier) -> str:
    return f"side {copier.side}"


def _relocation_of(row: Any) -> Relocation:
    fact = Fact(*row)
    return Relocation(
        sidecar=SIDE,
        topic_id=f"side {fact.side}",
        txid=txid_of(fact.txn),
        copy_id=bytes([fact.copy] * 16),
        first=fact.first,
        last=fact.last,
        count=fact.count,
        pointer=fact.pointer,
    )


def _copied_from(facts: Any, which: int, copy: int) -> int:
    # Where a copy begins, as the relocations say it; -1: the original is read.
    those = [Fact(*row) for row in facts]
    return next((f.first for f in those if (f.txn, f.copy) == (which, copy)), -1)


def _find(log: Any, start: int, which: int, source: int, original: int) -> int | None:
    """Returns where a record of a transaction lies: in its original (-1), or in a copy."""
    for offset in range(start, len(log)):
        kind, txn, *said = log[offset]
        wanted = ("r", [original]) if source < 0 else ("c", [original, source])
        if txn == which and (kind, said) == wanted:
            return offset
    return None


@lru_cache(200_000)
def _plan(log: Any, start: int, txns: Any, copier_: Any, facts: Any, topic_id: str) -> Plan:
    copier = Copier(*copier_)
    noted = Noted(end=copier.end, main_start=copier.main_start, topic_id=topic_id, main_id="main")
    scan = Scan(SIDE, noted, copier.start, map(_relocation_of, facts))
    for offset in range(max(start, copier.start), len(log)):
        entry = log[offset]
        if entry[0] == "r":
            scan.record(offset, txid_of(entry[1]))
        elif entry[0] == "m":
            scan.marker(txid_of(entry[1]), _marker(Txn(*txns[entry[1]])))
    return scan.plan(1.0)


def _marker(txn: Txn) -> Marker:
    is_committed = txn.phase == "commit"
    ranges = BranchRange(0, txn.offsets[0], txn.offsets[-1], len(txn.offsets))
    return Marker(
        committed=is_committed,
        commit_sequence=txn.pointer + 1,
        hw=0,
        epoch=0,
        branches=(ranges,) if is_committed else (),
        pointer=txn.pointer if is_committed else None,
    )
