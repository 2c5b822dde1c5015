"""The checker with transactions in sidecars: correct runs have no anomaly, one change is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logtx.chaos.checker import Verdict
from logtx.chaos.checker.errors import BrokenLogError
from logtx.journal.control import BranchRange
from logtx.journal.records.types import AddPartitions, DataPartition
from logtx.journal.sidecar import to_delivered

from .checker_world import IN, Txn, World

P = IN, 0
ASIDE = f"{IN}._txnlog", 0


def told(verdict: Verdict) -> str:
    """All that was found."""
    return "\n".join(f"{a.name}: {a.sentence} {a.evidence}" for a in verdict.anomalies)


def names(verdict: Verdict) -> set[str]:
    return {anomaly.name for anomaly in verdict.anomalies}


def commit_aside(txn: Txn, *, copies: int = 1, **pointer: object) -> Txn:
    """All of a commit with a sidecar, as it should be but for what `pointer` says."""
    txn.ask().decide()
    at = [txn.point(P, **pointer) for _ in range(copies)]
    txn.mark_aside(P, at[0])
    return txn.finish().end("committed")


def a_run() -> tuple[World, Txn]:
    """Two kinds of transactions beside each other, one in both logs, an abort, a plain record."""
    world = World()
    small, large, both, dropped = (world.begin(f"producer-{n}.0") for n in range(4))
    for txn in (large, dropped, large):
        txn.append_aside()
    small.append()
    both.append()
    both.append_aside()
    world.plain()
    small.commit()
    commit_aside(large, copies=2)
    dropped.decide(commit=False)
    dropped.mark_aside(P, None, commit=False)
    dropped.finish(commit=False).end("aborted")
    commit_aside(both)
    return world, large


def test_a_correct_run_has_no_anomaly() -> None:
    world, large = a_run()
    world.finals()
    verdict = world.judge()
    assert verdict.ok, told(verdict)
    assert [to_delivered(0), to_delivered(2)] == world.order[P][2:4]
    del large


def test_a_reader_that_is_not_given_a_record_of_a_sidecar_is_found() -> None:
    world, _ = a_run()
    world.order[P].remove(to_delivered(2))
    world.finals()
    assert "torn-transaction" in names(world.judge())


def test_a_reader_that_is_given_an_aborted_record_of_a_sidecar_is_found() -> None:
    world, _ = a_run()
    world.order[P].insert(3, to_delivered(1))
    world.finals()
    assert "g1a" in names(world.judge())


def test_a_reader_that_is_given_a_sidecar_before_what_was_there_earlier_is_found() -> None:
    world, _ = a_run()
    world.order[P].sort(key=lambda offset: -offset)
    world.finals()
    assert "nonmonotonic-poll" in names(world.judge())


def test_a_sidecar_that_lost_a_record_is_found() -> None:
    world, _ = a_run()
    world.asides[ASIDE] = [record for record in world.asides[ASIDE] if record.offset != 2]
    world.order[P].remove(to_delivered(2))
    world.finals()
    assert "torn-transaction" in names(world.judge())


@pytest.mark.parametrize(
    ("pointer", "sentence"),
    [
        ({"since": 1}, "another since than its decision"),
        ({"sidecar": (BranchRange(0, 0, 1, 2),)}, "states other records of the sidecar"),
        ({"commit_sequence": 1}, "another commit sequence"),
    ],
    ids=["since", "sidecar", "sequence"],
)
def test_a_pointer_that_says_something_else_is_found(
    pointer: dict[str, object], sentence: str
) -> None:
    world = World()
    txn = world.begin()
    txn.append_aside()
    commit_aside(txn, **pointer)
    world.finals()
    found = [a.sentence for a in world.judge().anomalies if a.name == "marker-mismatch"]
    assert any(sentence in each for each in found), found


def no_pointer(world: World, txn: Txn) -> None:
    del world
    txn.mark_aside(P, None)


def another_pointer(world: World, txn: Txn) -> None:
    world.plain()
    txn.point(P)
    txn.mark_aside(P, 0)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [(no_pointer, "has no pointer"), (another_pointer, "names a pointer that is none")],
    ids=["none", "another"],
)
def test_a_marker_of_a_sidecar_without_its_pointer_is_found(
    end: Callable[[World, Txn], None], sentence: str
) -> None:
    world = World()
    txn = world.begin()
    txn.append_aside()
    txn.ask().decide()
    end(world, txn)
    txn.finish().end("committed")
    world.finals()
    found = world.judge()
    assert any(sentence in anomaly.sentence for anomaly in found.anomalies), told(found)


def test_a_pointer_below_the_logs_start_is_not_judged() -> None:
    world = World()
    txn = world.begin()
    txn.append_aside()
    commit_aside(txn)
    world.plain()
    world.starts[P] = 1
    world.order[P] = [1]
    world.finals()
    verdict = world.judge()
    assert verdict.ok, told(verdict)
    assert verdict.unverifiable["transaction of which a part was trimmed"]


def test_a_sidecar_says_nothing_of_what_was_trimmed_in_the_topic() -> None:
    world = World()
    large, small = world.begin(), world.begin("producer-1.0")
    large.append_aside()
    small.append(ack=False)
    commit_aside(large)
    small.commit()
    world.plain()
    world.starts[P] = 3
    world.order[P] = [3]
    world.finals()
    verdict = world.judge()
    assert verdict.ok, told(verdict)
    assert verdict.unverifiable["committed write that may have been trimmed"]


@pytest.mark.parametrize("at_pointer", [True, False])
def test_trap_108_a_reader_of_uncommitted_records_is_given_a_sidecar_at_its_pointer(
    at_pointer: bool,
) -> None:
    world, _ = a_run()
    given = [0, 1, 2, to_delivered(0), to_delivered(2), to_delivered(3)]
    world.assign("consumer-0.0", P, isolation="read_uncommitted")
    if not at_pointer:
        given.sort(key=lambda offset: (offset < to_delivered(0), offset))
    world.poll("consumer-0.0", P, given, "read_uncommitted")
    world.finals()
    verdict = world.judge()
    assert names(verdict) == (set() if at_pointer else {"nonmonotonic-poll"}), told(verdict)


@pytest.mark.parametrize("commits", [True, False])
def test_a_sidecar_that_lacks_a_marker_is_found(commits: bool) -> None:
    world = World()
    txn = world.begin()
    txn.append_aside()
    if commits:
        txn.ask().decide()
        txn.point(P)
        txn.finish().end("committed")
    else:
        registered = AddPartitions(begin=txn.txid.offset, partitions=(DataPartition(*ASIDE),))
        world.journal_append(txn.journal, registered)
        txn.decide(commit=False)
        txn.finish(commit=False).end("aborted")
    world.finals()
    found = [a.sentence for a in world.judge().anomalies if a.name == "missing-marker"]
    assert found
    assert all(ASIDE[0] in each for each in found)


def test_a_sidecar_that_was_not_dumped_is_told() -> None:
    world, _ = a_run()
    world.asides.clear()
    world.finals()
    with pytest.raises(BrokenLogError, match="_txnlog was not dumped"):
        world.judge()
