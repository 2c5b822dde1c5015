"""The measure of stalls, and the judge of what clients were told: it must see every lie."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from logtx.benchmarks.failover import committer as committer_module
from logtx.benchmarks.failover import truth
from logtx.benchmarks.failover.committer import PARTITIONS, Committer, Told, longest_gap_s
from logtx.benchmarks.failover.truth import find_truth
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.txid import TxId


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([], 10),
        ([1, 2, 3], 17),
        ([1, 9, 12, 13, 19.5], 6.5),
        ([1, 2, 19], 17),
        ([1, 9, 11, 30], 9),
    ],
    ids=["none", "none after it", "in the middle", "begun before it", "still going on"],
)
def test_the_longest_gap_around_an_event(times: list[float], gap: float) -> None:
    assert longest_gap_s(times, 10, 20) == gap


@pytest.fixture
def committer(memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Committer]:
    """One that has committed a few transactions, and a coordinator that runs."""
    monkeypatch.setattr(truth, "_QUIET_S", 0.1)
    monkeypatch.setattr(truth, "_READ_TIMEOUT_S", 2.0)
    memory_log.create_topic("data", partitions=PARTITIONS)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=2
    )
    with EmbeddedCoordinator(config):
        made = Committer(memory_log.bootstrap_servers, "data", in_flight=4)
        with made:
            assert made.await_told(10, 20)
        yield made


def test_the_truth_holds(memory_log: MemoryLog, committer: Committer) -> None:
    found = find_truth(memory_log, committer)
    assert found.holds
    assert found.told == committer.begun == len(committer.told) >= 10
    assert found.raised == 0


@pytest.mark.parametrize(
    ("lie", "seen"),
    [
        (lambda told: [*told, Told(0.0, 10**6, TxId(0, 1, 2), 3)], ("lost", 1)),
        (lambda told: [replace(told[0], commit_sequence=10**6), *told[1:]], ("lost", 1)),
        (lambda told: told[1:], ("strange", PARTITIONS)),
        (lambda told: [*told, told[0]], ("doubled", 2)),
    ],
    ids=["never delivered", "another decision than was told", "told nobody", "told twice"],
)
def test_every_lie_is_seen(
    memory_log: MemoryLog,
    committer: Committer,
    monkeypatch: pytest.MonkeyPatch,
    lie: Callable[[list[Told]], list[Told]],
    seen: tuple[str, int],
) -> None:
    told = lie(committer.told)
    monkeypatch.setattr(Committer, "told", property(lambda _self: told))
    name, count = seen
    assert getattr(find_truth(memory_log, committer), name) == count


def test_a_commit_that_gets_no_answer_does_not_end_the_client(
    committer: Committer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "COMMIT_TIMEOUT_S", 0.1)
    flying = deque([(7, Future[object]()), (8, Future[object]())])
    flying[1][1].set_result(None)
    committer._land(flying)
    committer._land(flying)
    assert [(number, str(error)) for number, error in committer.failed] == [
        (7, "no answer within 0.1 s")
    ]
