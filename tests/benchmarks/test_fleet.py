"""Producers in threads: every transaction is counted, and a failure ends the round."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from logtx.benchmarks.scenarios import fleet
from logtx.benchmarks.scenarios.fleet import PARTITIONS, TOPICS, ConnectedCrew, Counted, Crew
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.logs.memory.log import MemoryLog

SECONDS = 0.2


@pytest.fixture
def servers(memory_log: MemoryLog) -> Iterator[str]:
    """A log with a coordinator."""
    memory_log.create_topic(TOPICS["logtx"], partitions=PARTITIONS)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=1
    )
    with EmbeddedCoordinator(config):
        yield memory_log.bootstrap_servers


@pytest.mark.parametrize(("producers", "in_flight"), [(1, 1), (1, 8), (3, 1), (2, 4)])
def test_every_transaction_is_counted(
    servers: str, memory_log: MemoryLog, producers: int, in_flight: int
) -> None:
    crew = Crew(kind="logtx", name="crew", producers=producers, in_flight=in_flight)
    connected = ConnectedCrew(crew, servers)
    try:
        counted = connected.run(SECONDS)
    finally:
        connected.close()
    sample = counted.sample()
    done = int(sample.notes["transactions"]) + fleet.WARM_UP * producers
    # A record and a marker of each; the last markers may still be on their way.
    end = memory_log.end_offset(TOPICS["logtx"], 0)
    assert done <= end <= 2 * done
    assert counted.ended_ns - counted.started_ns >= SECONDS * 1e9
    assert sample.notes["p50 ms"] <= sample.notes["p99.9 ms"]


def test_a_producer_that_fails_ends_the_round(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the others don't wait for it: it is told in time."""
    connected = ConnectedCrew(Crew(kind="logtx", name="crew", producers=2), servers)
    failing = connected._producers[0]

    def fail() -> None:
        raise RuntimeError("it fails")

    monkeypatch.setattr(failing, "begin_transaction", fail)
    with pytest.raises((RuntimeError, fleet.threading.BrokenBarrierError)):
        connected.run(SECONDS)
    connected.close()


def test_crews_side_by_side_are_one() -> None:
    one, other = Counted([0.001] * 3, 100, 2_000_000_100), Counted([0.003], 50, 1_000)
    joined = one.joined(other)
    assert (joined.started_ns, joined.ended_ns) == (50, 2_000_000_100)
    sample = joined.sample(in_ms=True)
    assert sample.value == sample.notes["p50 ms"] == 1
    assert sample.notes["p99 ms"] == 3
    assert joined.sample().value == pytest.approx(2, rel=1e-6)
