"""What became of writes: acknowledged otherwise than the log says, there twice, or gone."""

from __future__ import annotations

from collections.abc import Iterator

from .facts import KAFKA, Facts, Truth
from .findings import (
    Evidence,
    Findings,
    appended,
    asked,
    at,
    decided,
    ended,
    ends_at,
    lies,
    name_of,
)
from .history import Op
from .journal import Partition
from .logs import NO_VALUE, Standing, View


def check_outcomes(facts: Facts, found: Findings) -> None:
    """Finds committed-but-aborted and aborted-but-committed."""
    for op in facts.history.ops.values():
        truth = facts.truth(op)
        if op.acknowledged and truth in (Truth.ABORTED, Truth.UNDECIDED):
            what = "aborted" if truth is Truth.ABORTED else "undecided"
            found.add(
                "committed-but-aborted",
                f"{op.name} was acknowledged as committed, and the log has it {what}",
                ended(op),
                *_by_the_log(facts, op),
            )
        elif truth is Truth.COMMITTED and op.outcome == "aborted":
            found.add(
                "aborted-but-committed",
                f"{op.name} was told to be aborted, and the log has it committed",
                ended(op),
                *_by_the_log(facts, op),
            )
        elif truth is Truth.COMMITTED and op.asked is None and not op.acknowledged:
            found.add(
                "aborted-but-committed",
                f"{op.name} is committed, and nobody asked for it",
                asked(op),
                *_by_the_log(facts, op),
            )
        elif op.acknowledged:
            _check_sequence(facts, op, found)


def _check_sequence(facts: Facts, op: Op, found: Findings) -> None:
    txid = facts.txid(op)
    fate = None if txid is None else facts.fate(txid)
    if fate is None or fate.decided is None or op.commit_sequence is None:
        return
    if fate.decided != op.commit_sequence:
        found.add(
            "committed-but-aborted",
            f"{op.name} was acknowledged with a commit sequence that is not its decision's",
            ended(op),
            decided(fate),
        )


def _by_the_log(facts: Facts, op: Op) -> Iterator[Evidence]:
    txid = facts.txid(op)
    fate = None if txid is None else facts.fate(txid)
    if fate is not None:
        yield decided(fate)
        return
    for append in op.appends:
        if append.value in facts.where:
            yield lies(facts, *facts.where[append.value])
            return


def check_duplicates(facts: Facts, found: Findings) -> None:
    """Finds duplicate and plain-twice: one value at two offsets, both to be delivered."""
    places: dict[int, tuple[tuple[str, int], int]] = {}
    for view, offset, value in facts.delivered_order():
        if value == NO_VALUE:
            continue
        before = places.setdefault(value, (view.partition, offset))
        if before != (view.partition, offset):
            found.add(
                "plain-twice" if _are_plain(view, before, offset) else "duplicate",
                f"{name_of(facts, value)} is committed at {at(*before)} and at"
                f" {at(view.partition, offset)}",
                lies(facts, *before),
                lies(facts, view.partition, offset),
            )


def _are_plain(view: View, before: tuple[Partition, int], offset: int) -> bool:
    partition, first = before
    return partition == view.partition and all(
        record is not None and record.txid is None and record.op is None
        for record in (view.records.get(first), view.records.get(offset))
    )


def check_whole(facts: Facts, found: Findings) -> None:
    """Finds torn-transaction in the logs themselves."""
    for op_name, txids in facts.txids.items():
        op = facts.history.ops.get(op_name)
        if op is not None and len(txids) > 1:
            found.add(
                "torn-transaction",
                f"{op_name} is one transaction, and its records carry two TxIds:"
                f" {txids[0]} and {txids[1]}",
                ended(op),
                *_with_txids(facts, op),
            )
    for view in facts.views.values():
        for end, stated, present in view.broken:
            found.add(
                "torn-transaction",
                f"the end of {end.txid} at {at(view.partition, end.offset)} states {stated}"
                f" records, and the log holds {present}",
                ends_at(facts, view, end),
            )
    if facts.system == KAFKA:
        _check_visible(facts, found)
    else:
        _check_markers_agree(facts, found)


def _with_txids(facts: Facts, op: Op) -> Iterator[Evidence]:
    shown = set()
    for append in op.appends:
        place = facts.where.get(append.value)
        if place is None:
            continue
        txid = facts.views[place[0]].records[place[1]].txid
        if txid not in shown:
            shown.add(txid)
            yield lies(facts, *place)


def _check_visible(facts: Facts, found: Findings) -> None:
    for op in facts.history.ops.values():
        if facts.truth(op) is not Truth.COMMITTED:
            continue
        inside, outside = [], []
        for append in op.appends:
            place = facts.where.get(append.value)
            if place is not None:
                view = facts.views[place[0]]
                if place[1] in view.committed.rank:
                    inside.append(append)
                elif view.standing.get(place[1]) is Standing.ABORTED:
                    outside.append(append)
        if inside and outside:
            found.add(
                "torn-transaction",
                f"of {op.name} some records are committed and others are not",
                appended(facts, inside[0]),
                lies(facts, *facts.where[inside[0].value]),
                appended(facts, outside[0]),
                lies(facts, *facts.where[outside[0].value]),
            )


def _check_markers_agree(facts: Facts, found: Findings) -> None:
    kinds: dict[object, tuple[tuple[str, int], int, bool]] = {}
    for view in facts.views.values():
        for txid, marker in view.first_markers.items():
            here = view.partition, marker.offset, marker.control.committed
            before = kinds.setdefault(txid, here)
            if before[2] != here[2]:
                found.add(
                    "torn-transaction",
                    f"{txid} is committed in one partition and aborted in another",
                    lies(facts, *before[:2]),
                    lies(facts, *here[:2]),
                )
