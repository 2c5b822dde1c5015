"""Checks serializable readers: whole transactions, in decision order, over all partitions.

A reader that is given another partition finishes its current transaction, and then begins again
with the earliest that is due. So each stretch between two assignments is checked by itself, from
behind the transaction that it began with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from .facts import Facts
from .findings import Evidence, Findings, decided, name_of
from .history import RESET, Reader
from .wire import TxId


class _Run(NamedTuple):
    """Consecutive records of one transaction."""

    txid: TxId
    value: int
    """Number of the first record's value."""
    line: int
    """Line of the first record in the reader's history."""


def check_serializable(facts: Facts, found: Findings) -> None:
    """Finds transactions torn by others in between, and order-differs from the journal's order."""
    for reader in facts.history.readers:
        if reader.isolation != "serializable":
            continue
        for runs in _stretches(facts, reader):
            _check_interleaved(facts, reader, runs, found)
            _check_order(facts, reader, runs, found)


def _stretches(facts: Facts, reader: Reader) -> Iterator[Sequence[_Run]]:
    runs: list[_Run] = []
    carried = 0
    for value, line in zip(reader.stream, reader.stream_lines, strict=True):
        if value == RESET:
            yield runs[carried:]
            runs = runs[-1:]
            carried = len(runs)
            continue
        op = facts.op_of(value)
        txid = None if op is None else facts.txid(op)
        if txid is not None and (not runs or runs[-1].txid != txid):
            runs.append(_Run(txid, value, line))
    yield runs[carried:]


def _check_interleaved(facts: Facts, reader: Reader, runs: Sequence[_Run], found: Findings) -> None:
    last: dict[TxId, int] = {}
    for index, run in enumerate(runs):
        before = last.get(run.txid)
        last[run.txid] = index
        if before is None:
            continue
        between = runs[before + 1]
        found.add(
            "torn-transaction",
            f"{reader.process} (serializable) was given {between.txid} in the midst of {run.txid}",
            *(_given(facts, reader, each) for each in (runs[before], between, run)),
        )


def _check_order(facts: Facts, reader: Reader, runs: Sequence[_Run], found: Findings) -> None:
    for one, other in pairwise(runs):
        first, second = facts.fate(one.txid), facts.fate(other.txid)
        if one.txid.journal != other.txid.journal or first is None or second is None:
            continue
        if first.decided is None or second.decided is None or first.decided < second.decided:
            continue
        found.add(
            "order-differs",
            f"{reader.process} (serializable) was given {one.txid} before {other.txid}, which was"
            " decided earlier",
            _given(facts, reader, one),
            _given(facts, reader, other),
            decided(second),
            decided(first),
        )


def _given(facts: Facts, reader: Reader, run: _Run) -> Evidence:
    what = f"poll serializable: {name_of(facts, run.value)} of transaction {run.txid}"
    return Evidence(f"{reader.process}.jsonl:{run.line}", what)
