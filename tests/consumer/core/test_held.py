"""Transactions that wait for their turn in serial order, beside a sorted list."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from logtx.consumer.core.entries import EndedTransaction
from logtx.consumer.core.held import HeldTransactions
from logtx.journal.control import BranchRange, Marker

ONE_RECORD = BranchRange(branch=0, first_offset=0, last_offset=0, count=1)


def ended(journal: int, sequence: int) -> EndedTransaction:
    """A committed transaction of a journal."""
    raw = journal.to_bytes(2, "big") + b"\0" * 6 + sequence.to_bytes(8, "big")
    marker = Marker(committed=True, commit_sequence=sequence, hw=0, epoch=0, branches=(ONE_RECORD,))
    return EndedTransaction(raw, marker, 10 * sequence)


@pytest.mark.parametrize("seed", range(20))
def test_what_comes_next_is_the_lowest_commit_sequence_of_its_journal(seed: int) -> None:
    chance, held = random.Random(seed), HeldTransactions()
    naive: dict[bytes, EndedTransaction] = {}
    for _ in range(300):
        entry = ended(chance.randrange(2), chance.randrange(40))
        if entry.txid in held:
            assert held.pop(entry.txid) is naive.pop(entry.txid)
        else:
            held.add(entry)
            naive[entry.txid] = entry
        firsts = {}
        for each in sorted(naive.values(), key=lambda e: e.marker.commit_sequence):
            firsts.setdefault(each.journal, each)
        assert {e.journal: e for e in held.firsts()} == firsts
        assert all(held.first(journal) is each for journal, each in firsts.items())
        assert sorted(e.txid for e in held) == sorted(naive)
        assert held.records == sum(e.stated for e in naive.values())


def test_an_exception_within_leaves_nothing_that_never_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, entry, later = HeldTransactions(), ended(0, 1), ended(0, 2)
    held.add(later)
    by_journal = held._by_journal
    monkeypatch.setattr(held, "_by_journal", cast(Any, None))
    with pytest.raises(AttributeError):
        held.add(entry)
    monkeypatch.setattr(held, "_by_journal", by_journal)
    assert held.first(later.journal) is later
    held.add(entry)
    assert held.first(later.journal) is entry
    held.pop(entry.txid)
    held.pop(later.txid)
    assert held.first(later.journal) is None
