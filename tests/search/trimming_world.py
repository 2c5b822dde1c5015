"""Trimming of a sidecar: every interleaving of two transactions, retention, and one who trims.

Real: `Trimming`, and of each journal partition the `Shard` that its records make, which knows what
is undecided, and what pointers need; `Shard.finish` says it of those that are written. Modelled:
both logs, end records in commit-sequence order, those that a recovering owner or a zombie writes
again (this one not into a topic that is created anew meanwhile: docs/sidecar.md says what comes of
that), late records, retention of the main log, topics that are deleted and created anew, brokers
that tell ends of the past.

In every state the sidecar has what a reader may need: `SidecarWorld` shows that this suffices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.snapshot import SnapshotTaker
from logtx.coordinator.core.trimming import Bound, JournalView, Noted, Trimming
from logtx.journal.control import BranchRange
from logtx.journal.records.codec import decode_entry, encode_entry
from logtx.journal.records.fate import NO_EPOCH
from logtx.journal.records.types import (
    AbortReason,
    Begin,
    DataPartition,
    Entry,
    JournalRecord,
    Owner,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
)

from .explore import Move, State

MAIN, SIDE = ("a", 0), ("a._txnlog", 0)
APART_MS: Final = 10
"""Time between two looks."""
Event = tuple[Any, ...]
"""A record of a journal: what it says, the transaction, and numbers."""


class Txn(NamedTuple):
    """A transaction as it stands."""

    phase: str = "idle"
    written: int = 0
    first: int = -1
    side: int = 0
    """Which sidecar of the name has its records."""
    copies: tuple[tuple[int, int], ...] = ()
    """(which main topic of the name, offset) of each of its pointers."""
    is_finished: bool = False


class Left(NamedTuple):
    """What may still happen."""

    plain: int = 1
    copies: int = 1
    late: int = 0
    retention: int = 1
    anew: int = 0
    """Topics that are deleted and created anew."""
    stale: int = 0
    """Looks at journals' ends that a former leader answers."""
    checkpoints: int = 1


ONE_OF_MOST: Final = Left()


class Checkpoint(NamedTuple):
    """What who trims has done."""

    ids: tuple[int, int]
    """Which main topic and which sidecar had the names when the ids were asked for."""
    noted: tuple[int, int] = ()  # type: ignore[assignment]
    """The sidecar's end, and the main log's start."""
    looks: tuple[tuple[int, ...], ...] = ()
    """Ends of the journals, as they were told."""
    bound: int = -1


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What transactions write, and what may happen."""

    name: str
    sizes: tuple[int, int] = (1, 1)
    """Records of each transaction."""
    journals: tuple[int, int] = (0, 0)
    """Journal partition of each."""
    left: Left = ONE_OF_MOST
    length_max: int = 4
    journals_first: bool = False
    """Dropped rule: the ends of the journals are asked for before that of the sidecar (T2)."""
    from_snapshots: bool = False
    """Whether who trims knows the journals from their latest snapshots."""


class TrimmingWorld:
    """See the module."""

    def __init__(self, scenario: Scenario) -> None:
        self.name = scenario.name
        self._scenario = scenario
        self._journals = len(set(scenario.journals))
        self.trims = 0
        """Times that records were deleted, over all states."""
        self.beside_unfinished = 0
        """Those of them at which a decided transaction was not finished."""

    def initial(self) -> State:
        """Returns empty logs: (main, its start, number), (sidecar, its start, number),
        transactions, journals, checkpoint, what is left."""
        return (
            ((), 0, 0),
            ((), 0, 0),
            (tuple(Txn()), tuple(Txn())),
            ((),) * self._journals,
            (),
            tuple(self._scenario.left),
        )

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step."""
        return [((line, False), after) for line, after in self._steps(state)]

    def tell(self, state: State, move: Move, traded: bool) -> str:  # noqa: ARG002
        """Returns a step as a line."""
        return str(move[0])

    def tell_end(self, state: State) -> list[str]:  # noqa: ARG002
        """Returns nothing: the violation says which transaction lost its records."""
        return []

    # ---- what may happen ------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        main, side, txns, journals, checkpoint, left_ = state
        left = Left(*left_)
        log, start, number = main
        if left.plain and len(log) < self._scenario.length_max:
            less = tuple(left._replace(plain=left.plain - 1))
            after = ((*log, -1), start, number), side, txns, journals, checkpoint, less
            yield f"a plain record at {len(log)}", after
        if left.retention:
            less = tuple(left._replace(retention=left.retention - 1))
            for offset in range(start + 1, len(log) + 1):
                after = (log, offset, number), side, txns, journals, checkpoint, less
                yield f"retention: the main log starts at {offset}", after
        if left.anew:
            less = tuple(left._replace(anew=left.anew - 1))
            after = ((), 0, number + 1), side, txns, journals, checkpoint, less
            yield "the main topic is created anew", after
            after = main, ((), 0, side[2] + 1), txns, journals, checkpoint, less
            yield "the sidecar is created anew", after
        for which, row in enumerate(txns):
            yield from self._txn_steps(which, _txn(row), state)
        yield from self._trimmers_steps(state)

    def _txn_steps(self, which: int, txn: Txn, state: State) -> Iterator[tuple[str, State]]:
        main, side, txns, journals, checkpoint, left_ = state
        left, scenario = Left(*left_), self._scenario
        journal = scenario.journals[which]

        def after(
            txn: Txn,
            *events: Event,
            main: tuple[Any, ...] = main,
            side: tuple[Any, ...] = side,
            left: Left = left,
        ) -> State:
            those, logs = [*txns], [*journals]
            those[which] = tuple(txn)
            logs[journal] = (*logs[journal], *events)
            return main, side, tuple(those), tuple(logs), checkpoint, tuple(left)

        if txn.phase == "idle":
            yield f"{which} begins", after(txn._replace(phase="begun"), ("begin", which))
        elif txn.phase == "begun":
            log, start, number = side
            here = txn.side == number or not txn.written
            if txn.written < scenario.sizes[which] and here:
                first = len(log) if not txn.written else txn.first
                wrote = txn._replace(written=txn.written + 1, first=first, side=number)
                grown = (*log, which), start, number
                yield f"{which} writes to the sidecar at {len(log)}", after(wrote, side=grown)
            if txn.written:
                decided = txn._replace(phase="commit")
                said = ("commit", which, txn.first, txn.written)
                yield f"{which} is committed", after(decided, said)
                yield f"{which} is aborted", after(txn._replace(phase="abort"), ("abort", which))
        else:
            yield from self._decided_steps(which, txn, state, after)

    def _decided_steps(
        self, which: int, txn: Txn, state: State, after: Any
    ) -> Iterator[tuple[str, State]]:
        (log, start, number), side, txns, journals, _, left_ = state
        left, scenario = Left(*left_), self._scenario
        if left.late:
            grown = (*side[0], which), *side[1:]
            less = left._replace(late=left.late - 1)
            yield f"a late record of {which}", after(txn, side=grown, left=less)
        if txn.phase == "abort":
            if not txn.is_finished:
                done = txn._replace(is_finished=True)
                yield f"{which} is finished", after(done, ("finish", which, -1))
            return
        room = len(log) < scenario.length_max
        pointed = txn._replace(copies=(*txn.copies, (number, len(log))))
        grown = (*log, which), start, number
        if not txn.copies and room and self._is_next(which, txns, journals):
            yield f"the pointer of {which} is written at {len(log)}", after(pointed, main=grown)
        # An owner that was replaced does not write to a topic that it has never met.
        may_write = not txn.is_finished or txn.copies[0][0] == number
        if txn.copies and left.copies and room and may_write:
            less = left._replace(copies=left.copies - 1)
            yield (
                f"the pointer of {which} is written again at {len(log)}",
                after(pointed, main=grown, left=less),
            )
        if not txn.is_finished:
            # So what is acknowledged last is of the newest topic that has a copy.
            newest = max((topic for topic, _ in txn.copies), default=0)
            for offset in [offset for topic, offset in txn.copies if topic == newest]:
                done = txn._replace(is_finished=True)
                yield (
                    f"{which} is finished, its pointer acknowledged at {offset}",
                    after(done, ("finish", which, offset)),
                )

    def _is_next(self, which: int, txns: Any, journals: Any) -> bool:
        # One lane of a journal partition: pointers in commit-sequence order.
        journal = journals[self._scenario.journals[which]]
        decided = [event[1] for event in journal if event[0] == "commit"]
        before = decided[: decided.index(which)]
        return all(_txn(txns[other]).copies for other in before)

    # ---- who trims ------------------------------------------------------------------------------

    def _trimmers_steps(self, state: State) -> Iterator[tuple[str, State]]:
        main, side, txns, journals, row, left_ = state
        left = Left(*left_)
        checkpoint = Checkpoint(*row) if row else None

        def after(
            checkpoint: Checkpoint | None,
            *,
            left: Left = left,
            side: tuple[Any, ...] = side,
        ) -> State:
            kept = () if checkpoint is None else tuple(checkpoint)
            return main, side, txns, journals, kept, tuple(left)

        if checkpoint is None:
            if left.checkpoints:
                less = left._replace(checkpoints=left.checkpoints - 1)
                ids = main[2], side[2]
                yield "the ids are noted", after(Checkpoint(ids), left=less)
            return
        looks_due = len(checkpoint.looks) < 2
        if not checkpoint.noted and not (self._scenario.journals_first and looks_due):
            noted = len(side[0]), main[1]
            yield (
                f"noted: sidecar to {noted[0]}, main from {noted[1]}",
                after(checkpoint._replace(noted=noted)),
            )
        if looks_due and (checkpoint.noted or self._scenario.journals_first):
            told = tuple(map(len, journals))
            looked = checkpoint._replace(looks=(*checkpoint.looks, told))
            yield f"the journals end at {told}", after(looked)
            if left.stale:
                none = (0,) * len(told)
                looked = checkpoint._replace(looks=(*checkpoint.looks, none))
                less = left._replace(stale=left.stale - 1)
                yield (
                    f"the journals end at {none}, as former leaders tell",
                    after(looked, left=less),
                )
        if checkpoint.noted and checkpoint.bound < 0:
            bound = self._bound(checkpoint, journals)
            if bound is not None and bound.offset > side[1]:
                decided = checkpoint._replace(bound=bound.offset)
                yield f"it may be trimmed to {bound.offset}", after(decided)
        if checkpoint.bound >= 0:
            log, start, number = side
            is_of = _noted(checkpoint).is_of(SIDE[0], _ids(main[2], side[2]))
            if is_of and start < checkpoint.bound <= len(log):
                self.trims += 1
                known = map(_txn, txns)
                self.beside_unfinished += any(
                    t.phase in ("commit", "abort") and not t.is_finished for t in known
                )
                trimmed = log, checkpoint.bound, number
                yield f"the sidecar is trimmed to {checkpoint.bound}", after(None, side=trimmed)
            else:
                yield "nothing is trimmed", after(None)

    def _bound(self, checkpoint: Checkpoint, journals: Any) -> Bound | None:
        early = self._scenario.journals_first
        trimming = Trimming(delay_ms=0, looks_apart_ms=APART_MS)
        trimming.note({SIDE: _noted(checkpoint)}, 0)
        for number, look in enumerate(checkpoint.looks):
            at_ms = number * APART_MS - (3 * APART_MS if early else 0)
            trimming.journals_told(dict(enumerate(look)), at_ms, at_ms)
        views = {
            number: _view(number, events, self._scenario.from_snapshots)
            for number, events in enumerate(journals)
        }
        return trimming.bounds(views, 2 * APART_MS).get(SIDE)

    # ---- what must be there ---------------------------------------------------------------------

    def check(self, state: State) -> str | None:
        """Looks whether what a reader may need was trimmed."""
        (_, start, number), (_, side_start, side_number), txns, *_ = state
        for which, row in enumerate(txns):
            txn = _txn(row)
            if not txn.written or txn.side != side_number or txn.first >= side_start:
                continue
            if txn.phase == "abort":
                continue
            here = [offset for topic, offset in txn.copies if topic == number]
            is_passed = here[0] < start if here else bool(txn.copies)
            if not is_passed:
                return f"the sidecar starts at {side_start}, and {which} is needed from {txn.first}"
        return None


def _txn(row: Any) -> Txn:
    return Txn(*row)


def _ids(main: int, side: int) -> Mapping[str, str]:
    return {MAIN[0]: f"main {main}", SIDE[0]: f"side {side}"}


def _noted(checkpoint: Checkpoint) -> Noted:
    ids, (end, main_start) = _ids(*checkpoint.ids), checkpoint.noted
    return Noted(end=end, main_start=main_start, topic_id=ids[SIDE[0]], main_id=ids[MAIN[0]])


# ---- journals -----------------------------------------------------------------------------------

_FIRST: Final = 2
"""Records before the first event: OWNER and PRODUCER."""


def _view(number: int, events: tuple[Event, ...], from_snapshot: bool) -> JournalView:
    # The world's ends count from the first event.
    view = JournalView.of(_shard(number, events, from_snapshot))
    return replace(view, undecided=view.undecided - _FIRST)


@lru_cache(maxsize=100_000)
def _shard(number: int, events: tuple[Event, ...], from_snapshot: bool) -> Shard:
    shard = Shard(number, ShardConfig())
    shard.replay(0, Entry(NO_EPOCH, 7, Owner(replaces=NO_EPOCH, address="", process_nonce=1)))
    producer = ProducerRecord(producer_id="p", generation=0, session_nonce=1, owner="default")
    _append(shard, producer)
    begins: dict[int, int] = {}
    for event in events:
        kind, which = event[0], event[1]
        if kind == "begin":
            begins[which] = shard.next_offset
            _append(shard, _begin(which))
        elif kind == "commit":
            _append(shard, _commit(begins[which], event[2], event[3]))
        elif kind == "abort":
            reason = AbortReason.REQUESTED
            _append(shard, PrepareAbort(begin=begins[which], reason=reason, decided_ms=0))
        else:
            pointers = {} if event[2] < 0 else {SIDE: event[2]}
            for record in shard.finish(begins[which], (), pointers).records:
                _append(shard, record)
    return _restored(shard) if from_snapshot else shard


def _append(shard: Shard, record: JournalRecord) -> None:
    shard.replay(shard.next_offset, decode_entry(encode_entry(shard.entry(record))))


def _restored(shard: Shard) -> Shard:
    taker, first = SnapshotTaker(shard), shard.next_offset
    replica = Replica(shard.partition, shard.config, first, certain=True)
    while not taker.done:
        entry = decode_entry(encode_entry(shard.entry(taker.chunk())))
        replica.feed(shard.next_offset, entry)
        shard.replay(shard.next_offset, entry)
    return replica.shard


def _begin(which: int) -> Begin:
    return Begin(
        producer_id="p",
        generation=0,
        session_nonce=1,
        request_id=which,
        answered_below=0,
        timeout_ms=1,
        started_ms=0,
    )


def _commit(begin: int, first: int, count: int) -> PrepareCommit:
    # The second record of a transaction may lie behind others.
    branches = (BranchRange(0, first, first + 3, count),)
    writes = (
        PartitionWrites(DataPartition(*SIDE), branches),
        PartitionWrites(DataPartition(*MAIN), ()),
    )
    return PrepareCommit(begin=begin, writes=writes, decided_ms=0, sidecar_since=((SIDE, 0),))
