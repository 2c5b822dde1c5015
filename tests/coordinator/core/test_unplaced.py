"""`UnplacedTransactions` tells what `Unplaced` tells, whatever it keeps by transaction."""

from __future__ import annotations

import random

import pytest

from logtx.coordinator.core import unplaced
from logtx.coordinator.core.unplaced import UnplacedTransactions
from logtx.journal.places import PartitionId, Placed, Unplaced

PARTITIONS = [PartitionId("t", n, "id") for n in range(6)]


def run(chance: random.Random) -> int:
    """Adds and covers at random, and compares; returns how often a record left something."""
    plain: Unplaced[int] = Unplaced()
    fast, sequence, left = UnplacedTransactions(), 0, 0
    for _ in range(60):
        if chance.random() < 0.6:
            sequence += chance.randint(1, 3)
            where = chance.sample(PARTITIONS, chance.randint(1, 6))
            fast.add(sequence, sequence + 1_000, dict.fromkeys(where))
            for partition in where:
                plain.add(partition, sequence, sequence + 1_000)
        else:
            ends = dict.fromkeys(chance.sample(PARTITIONS, chance.randint(1, 6)), 7)
            placed = Placed(sequence - chance.randint(0, 4), ends)
            expected = {(p, w.sequence, w.what) for p, _, w in plain.cover(placed)}
            covered = list(fast.cover(placed))
            assert {(p, c.sequence, c.begin) for c in covered for p in c.partitions} == expected
            assert len({c.begin for c in covered}) == len(covered), "each comes once"
            left += bool(len(plain))
        compare(fast, plain, sequence)
    return left


def compare(fast: UnplacedTransactions, plain: Unplaced[int], sequence: int) -> None:
    """Compares all that can be asked."""
    assert len(fast) == len(plain)
    assert set(fast.partitions()) == set(plain.partitions())
    firsts, lasts = fast.firsts(), fast.lasts()
    assert firsts.keys() == lasts.keys() == set(plain.partitions())
    for partition in PARTITIONS:
        waiting = list(plain.of(partition))
        assert fast.of(partition) == waiting
        assert fast.first(partition) == (waiting[0].sequence if waiting else None)
        if waiting:
            assert firsts[partition] == waiting[0].sequence
            assert lasts[partition] == waiting[-1].sequence
    for upto in (sequence - 2, sequence):
        expected = {
            (w.what, p) for p in plain.partitions() for w in plain.of(p) if w.sequence <= upto
        }
        assert {(begin, p) for begin, where in fast.up_to(upto) for p in where} == expected


@pytest.mark.parametrize("whole_max", [unplaced.WHOLE_MAX, 2, 0])
def test_it_tells_the_same_as_what_is_kept_by_partition(
    whole_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unplaced, "WHOLE_MAX", whole_max)
    assert sum(run(random.Random(seed)) for seed in range(60)) > 100


def test_what_a_record_covers_costs_one_comparison_for_each_transaction() -> None:
    class Counted(dict[PartitionId, object]):
        """Counts how often partitions are looked at one by one."""

        looks = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            for key in super().__iter__():
                Counted.looks += 1
                yield key

    fast = UnplacedTransactions()
    for begin in range(50):
        fast.add(100 + begin, begin, Counted.fromkeys(PARTITIONS))
    assert len(list(fast.cover(Placed(200, dict.fromkeys(PARTITIONS, 7))))) == 50
    assert Counted.looks == 0
    assert len(fast) == 0
