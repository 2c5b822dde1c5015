"""Histories of many seeds, and that a seed always gives the same one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from logtx.coordinator.core.lane import Finished
from logtx.coordinator.core.lanes import MarkerLanes
from logtx.coordinator.core.transactions import TransactionMetadata
from logtx.journal.control import TopicPartition

from .__main__ import history_of, never_happened, run_seeds, table
from .checkers import violations
from .world import simulate

SEEDS = range(41, 64)
"""They have every kind of fault: each test run has them."""
COMPACTED = range(10)
"""Histories in which sidecars are compacted, of each test run."""
PLACED, MORE_PLACED = range(18, 21), range(16, 24)
"""Histories in which topics with transactions in sidecars are switched, of each test run, and of
`make test-all`; and of those in which such a topic is a queue."""
MANY = 600
"""What `make test-all` runs, and where mutations are looked for. `make simulate` runs more."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(range(MANY), marks=pytest.mark.slow)])
def test_histories(seeds: range) -> None:
    failures, counts = run_seeds(seeds)
    print(table(counts))
    for each in failures[:1]:
        trace = history_of(each.seed, each.kind).trace()
        pytest.fail(f"{trace}\n\nchecker {each.checker}: {each.what}\nagain by: {each.again}")
    assert not never_happened(counts)
    assert counts["consumers crashed within a pointer"]
    assert counts["consumers' sidecar_records"] > counts["consumers' pointers"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", [COMPACTED, pytest.param(range(MANY), marks=pytest.mark.slow)])
def test_histories_with_compactions(seeds: range) -> None:
    failures, counts = run_seeds(seeds, only="compactions")
    print(table(counts))
    for each in failures[:1]:
        trace = history_of(each.seed, each.kind).trace()
        pytest.fail(f"{trace}\n\nchecker {each.checker}: {each.what}\nagain by: {each.again}")
    assert counts["compactions killed"]
    assert counts["ranges copied"]
    assert counts["sidecars trimmed by compactions"]
    assert counts["consumers' relocated_pointers"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["placed", "placed-queues"])
@pytest.mark.parametrize("seeds", [PLACED, pytest.param(MORE_PLACED, marks=pytest.mark.slow)])
def test_histories_with_sidecars_of_topics_that_are_switched(seeds: range, kind: str) -> None:
    failures, counts = run_seeds(seeds, only=kind)
    print(table(counts))
    for each in failures[:1]:
        trace = history_of(each.seed, each.kind).trace()
        pytest.fail(f"{trace}\n\nchecker {each.checker}: {each.what}\nagain by: {each.again}")
    assert counts["sidecars ended at places"]


def test_brokers_are_silent_only_about_what_owners_know() -> None:
    # A topic was deleted and created anew, and a transaction that wrote there before that is open
    # for so long that its commit comes when no look-up is answered: it is rightly put off.
    assert "refused" not in violations(history_of(1234, "placed"))


def test_a_place_that_no_marker_of_a_sidecar_names_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(
        self: MarkerLanes,
        transaction: TransactionMetadata,
        epoch: int,
        hw: Callable[[], int],
        finished: Finished,
        places: Mapping[TopicPartition, int],
    ) -> None:
        end(self, transaction, epoch, hw, finished, dict.fromkeys(places, 0))

    end = MarkerLanes.end_sidecars
    monkeypatch.setattr(MarkerLanes, "end_sidecars", told)
    found = (each for seed in PLACED for each in run_seeds(range(seed, seed + 1), only="placed")[0])
    assert any(each.checker == "sidecars" for each in found)


def _digest(hash_seed: str) -> str:
    program = (
        "import hashlib; from tests.simulation.world import simulate;"
        "print(hashlib.sha256(''.join(simulate(s).trace() for s in range(5)).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_seed_gives_the_same_history_in_every_process() -> None:
    traces = "".join(simulate(seed).trace() for seed in range(5))
    here = hashlib.sha256(traces.encode()).hexdigest()
    assert {_digest("1"), _digest("2")} == {here}
