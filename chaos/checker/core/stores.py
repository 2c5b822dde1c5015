"""Compares what metadata stores said with what the journal decided and placed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .facts import Facts
from .findings import Evidence, Findings, decided
from .journal import GONE, Fate, Journal
from .told import Told
from .wire import Range


class _Write(NamedTuple):
    topic: str
    partition: int
    range: Range
    place: int | None


def check_stores(facts: Facts, found: Findings) -> None:
    """Finds store-mismatch."""
    for told in facts.stores:
        journal = facts.journals.get(told.txid.partition)
        fate = None if journal is None else journal.fate(told.txid)
        if journal is None or fate is None or fate.decided is None:
            facts.unverifiable["what a store said of a decision that was trimmed"] += 1
            continue
        for wrong in _wrong(facts, journal, fate, told):
            found.add(
                "store-mismatch",
                f"the store of {told.store} says of {told.txid}: {wrong}",
                Evidence(f"logs/stores.jsonl, {told.store}", str(told.header)),
                decided(fate),
            )


def _wrong(facts: Facts, journal: Journal, fate: Fate, told: Told) -> Iterator[str]:
    header = told.header
    if header is None:
        if fate.finished is None:
            yield "nothing, and it is not finished"
        elif missing := [w for w in _placed(fate) if _is_kept(facts, w)]:
            yield f"nothing, and what is placed at {missing[0]} is there"
        return
    state = "committed" if fate.committed else "aborted"
    if header["state"] != state or header["commit_sequence"] != fate.decided:
        yield f"{header['state']} with sequence {header['commit_sequence']}; it is {state}"
    begun = journal.start <= fate.txid.begin
    if begun and (header["producer_id"], header["generation"]) != (
        fate.producer_id,
        fate.generation,
    ):
        yield f"of producer {header['producer_id']!r}; it is of {fate.producer_id!r}"
    written = {_write(row) for row in told.writes}
    expected = set(_placed(fate))
    marked = {_Write(*p, stated, None) for p, ranges in fate.writes.items() for stated in ranges}
    if unknown := sorted(written - expected - marked, key=str):
        yield f"a write that it did not do, or not there: {unknown[0]}"
    for missing_write in sorted(expected - written, key=str):
        if _is_kept(facts, missing_write):
            yield f"no write that is placed: {missing_write}"
            return


def _placed(fate: Fate) -> Iterator[_Write]:
    for partition in fate.handed:
        # A store follows one journal, and the place is in that of the home.
        for stated in fate.writes.get(partition, ()):
            yield _Write(*partition, stated, stated.last + 1)
    for partition, place in fate.places.items():
        if place == GONE or partition in fate.handed:
            continue
        for stated in fate.writes.get(partition, ()):
            yield _Write(*partition, stated, place)


def _write(row: dict[str, Any]) -> _Write:
    stated = Range(row["branch"] % 2**64, row["first"], row["last"], row["count"])
    return _Write(row["topic"], row["partition"], stated, row["place"])


def _is_kept(facts: Facts, write: _Write) -> bool:
    """Returns whether a reader may begin below a place: so long the write is kept."""
    partition = write.topic, write.partition
    view = facts.views.get(partition)
    anew = write.topic in facts.history.anew
    return not anew and view is not None and write.place is not None and write.place > view.start
