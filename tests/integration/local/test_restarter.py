"""Who looks after the brokers of `logtx up`, with brokers that only say what they would do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from logtx.integration.local.errors import BrokerStartError, PortInUseError, ProcessDiedError
from logtx.integration.local.restarter import ChildRestarter, Restarter


class FakeBroker:
    """Dies and is ready when a test says so."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.pid = 100 + broker_id
        self.is_running = True
        self.exit_status: int | None = None
        self.log_path = Path(f"broker-{broker_id}.log")
        self.known: frozenset[int] = frozenset()
        self.refusal: Exception | None = None
        self.starts = 0

    def die(self, status: int) -> None:
        self.is_running, self.exit_status, self.known = False, status, frozenset()

    def start(self, *, wait: bool = True) -> None:
        assert not wait
        if self.refusal is not None:
            raise self.refusal
        self.starts += 1
        self.is_running, self.exit_status = True, None
        self.pid += 100

    def known_brokers(self) -> frozenset[int]:
        return self.known

    def log_tail(self) -> list[str]:
        return ["the end"]


class Watched:
    """Some brokers, their restarter, what it said, and the time."""

    def __init__(self, count: int) -> None:
        self.brokers = [FakeBroker(broker_id) for broker_id in range(1, count + 1)]
        self.said: list[str] = []
        self.now_s = 0.0
        self._restarter = Restarter(
            SimpleNamespace(brokers=self.brokers),  # type: ignore[arg-type]
            self.said.append,
            restart_after_s=10,
            clock=lambda: self.now_s,
        )

    def look(self, *, at_s: float) -> list[str]:
        """What is said now, and was not before."""
        self.now_s, before = at_s, len(self.said)
        self._restarter.look()
        return self.said[before:]


def test_all_is_well() -> None:
    assert Watched(3).look(at_s=100) == []


def test_a_killed_broker_is_reported_started_and_reported_again() -> None:
    watched = Watched(3)
    second = watched.brokers[1]
    second.die(-9)
    assert watched.look(at_s=0) == [
        "Broker 2 was killed (SIGKILL); it is started again in 10 s. Its log is broker-2.log."
    ]
    assert watched.look(at_s=9.9) == []
    assert second.starts == 0
    assert watched.look(at_s=10) == []
    assert second.starts == 1
    second.known = frozenset({1, 3})  # it answers, and does not count itself yet
    assert watched.look(at_s=11) == []
    second.known = frozenset({1, 2, 3})
    assert watched.look(at_s=12) == ["Broker 2 is back, as process 202."]
    assert watched.look(at_s=13) == []

    second.die(3)
    (line,) = watched.look(at_s=20)
    assert line.startswith("Broker 2 ended by itself (exit status 3); it is started again")
    watched.look(at_s=30)
    assert second.starts == 2


def test_all_may_die_at_once() -> None:
    watched = Watched(3)
    for broker in watched.brokers:
        broker.die(-9)
    assert len(watched.look(at_s=0)) == 3
    watched.look(at_s=10)
    assert [broker.starts for broker in watched.brokers] == [1, 1, 1]


def test_one_that_dies_while_starting_is_left_alone() -> None:
    watched = Watched(3)
    second = watched.brokers[1]
    second.die(-9)
    watched.look(at_s=0)
    watched.look(at_s=10)
    second.die(1)
    (line,) = watched.look(at_s=11)
    assert line == (
        "Broker 2 ended by itself (exit status 1) while starting; the others go on without it."
        "\n    the end"
    )
    assert watched.look(at_s=100) == []
    assert second.starts == 1

    first = watched.brokers[0]
    first.die(-9)
    watched.look(at_s=101)
    first.refusal = PortInUseError("Port 1 is taken.")
    with pytest.raises(BrokerStartError, match=r"Too few .* broker 1 can't be started\. Port 1"):
        watched.look(at_s=111)


def test_a_single_broker_that_dies_is_the_end() -> None:
    watched = Watched(1)
    watched.brokers[0].die(1)
    with pytest.raises(BrokerStartError, match="Kafka ended by itself") as caught:
        watched.look(at_s=0)
    assert caught.value.details == ("the end",)


class FakeCoordinator:
    """Dies and is ready when a test says so."""

    def __init__(self, number: int) -> None:
        self.name = f"coordinator-{number}"
        self.log = Path(f"{self.name}.log")
        self.pid = 100 + number
        self.is_running = True
        self.exit_status: int | None = None
        self.ready: bool | ProcessDiedError = False
        self.starts = 0

    @property
    def is_ready(self) -> bool:
        if isinstance(self.ready, ProcessDiedError):
            raise self.ready
        return self.ready

    def die(self, status: int) -> None:
        self.is_running, self.exit_status, self.ready = False, status, False

    def start(self) -> None:
        self.starts += 1
        self.is_running, self.exit_status = True, None
        self.pid += 100

    def last_lines(self, _count: int) -> list[str]:
        return ["the end"]


class WatchedCoordinators:
    """Some coordinators, their restarter, what it said, and the time."""

    def __init__(self, count: int) -> None:
        self.children = [FakeCoordinator(number) for number in range(1, count + 1)]
        self.said: list[str] = []
        self.now_s = 0.0
        self._restarter = ChildRestarter(
            self.children,  # type: ignore[arg-type]
            self.said.append,
            restart_after_s=2,
            restarts_max=3,
            restarts_within_s=60,
            clock=lambda: self.now_s,
        )

    def look(self, *, at_s: float) -> list[str]:
        """What is said now, and was not before."""
        self.now_s, before = at_s, len(self.said)
        self._restarter.look()
        return self.said[before:]

    def die_and_come_back(self, child: FakeCoordinator, *, at_s: float) -> None:
        child.die(-9)
        self.look(at_s=at_s)
        self.look(at_s=at_s + 2)
        child.ready = True
        self.look(at_s=at_s + 3)


def test_a_killed_coordinator_is_reported_started_and_reported_again() -> None:
    watched = WatchedCoordinators(3)
    assert watched.look(at_s=0) == []
    second = watched.children[1]
    second.die(-9)
    (line,) = watched.look(at_s=0)
    assert line == (
        "The coordinator-2 was killed (SIGKILL); it is started again in 2 s. "
        "Its log is coordinator-2.log."
    )
    assert watched.look(at_s=1.9) == []
    assert second.starts == 0
    assert watched.look(at_s=2) == []
    assert second.starts == 1
    assert watched.look(at_s=3) == []
    second.ready = True
    assert watched.look(at_s=4) == ["The coordinator-2 is back, as process 202."]
    assert watched.look(at_s=5) == []


def test_a_coordinator_that_dies_again_and_again_is_the_end() -> None:
    watched = WatchedCoordinators(3)
    second = watched.children[1]
    for number in range(3):
        watched.die_and_come_back(second, at_s=10.0 * number)
    watched.die_and_come_back(watched.children[0], at_s=35)  # each has its own count
    second.die(3)
    with pytest.raises(ProcessDiedError, match=r"exit status 3.* 4 times within 60 s") as caught:
        watched.look(at_s=50)
    assert caught.value.details == ("the end",)


def test_deaths_of_a_coordinator_long_ago_do_not_count() -> None:
    watched = WatchedCoordinators(1)
    for number in range(20):
        watched.die_and_come_back(watched.children[0], at_s=25.0 * number)
    assert watched.children[0].starts == 20


def test_a_coordinator_that_dies_while_it_starts_is_started_again_but_not_for_ever() -> None:
    watched = WatchedCoordinators(2)
    first = watched.children[0]
    first.die(-9)
    for number in range(3):
        watched.look(at_s=3 * number)
        watched.look(at_s=3 * number + 2)
        first.die(1)
    with pytest.raises(ProcessDiedError, match="4 times within 60 s"):
        watched.look(at_s=9)
    assert first.starts == 3
    assert watched.said[1].startswith("The coordinator-1 ended by itself (exit status 1)")


def test_a_coordinator_that_is_not_ready_again_in_time_is_the_end() -> None:
    watched = WatchedCoordinators(2)
    first = watched.children[0]
    first.die(-9)
    watched.look(at_s=0)
    watched.look(at_s=2)
    first.ready = ProcessDiedError("The coordinator-1 was not ready within 60 s.")
    with pytest.raises(ProcessDiedError, match="not ready within"):
        watched.look(at_s=62)
