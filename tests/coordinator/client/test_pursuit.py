"""Whom a client asks for the owner, and when: properties over random worlds, in virtual time."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from logtx.coordinator.client.pursuit import (
    ATTEMPTS_MAX,
    PATIENCE_MAX_S,
    PATIENCE_MIN_S,
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    PAUSE_SHARE,
    Pursuit,
)

LOOK_S = 0.001
"""How long Kafka takes to answer, in these worlds."""


class World:
    """Addresses that each behave in their own way, and a hint; the clock moves with the events."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_s = 0.0
        self.pursuit = Pursuit(0.0, self.random.random)
        self.tried: list[tuple[float, str]] = []
        self.looks: list[float] = []
        self.hint: tuple[str, int] | None = None
        self.names: dict[str, str] = {}
        """Address that sends clients on → where it sends them."""
        self.hanging: set[str] = set()
        self.owner = ""
        self._under_way: set[str] = set()

    def run(self, until_s: float) -> bool:
        """Goes on until the owner is tried, or until `until_s`. Returns whether it was tried."""
        pursuit = self.pursuit
        while self.now_s < until_s:
            for address in pursuit.overdue(self.now_s):
                self._under_way.discard(address)
                pursuit.failed(address, self.now_s)
            looking = pursuit.looking(self.now_s)
            if looking:
                self.looks.append(self.now_s)
            for address in pursuit.attempts(self.now_s):
                self.tried.append((self.now_s, address))
                if address == self.owner:
                    return True
                assert address not in self._under_way
                if address in self.hanging:
                    self._under_way.add(address)
                    assert len(self._under_way) <= ATTEMPTS_MAX
                else:
                    pursuit.named(self.names.get(address, ""), self.now_s)
                    pursuit.failed(address, self.now_s)
            if looking:
                self.now_s += LOOK_S
                pursuit.looked_up(self.hint, self.now_s)
            else:
                wait_s = pursuit.wait_s(self.now_s)
                assert wait_s <= PAUSE_MAX_S * 1.5
                self.now_s += wait_s + 1e-6
        return False


@given(seed=st.integers(0, 2**32), found_s=st.floats(0.01, 20.0))
def test_an_owner_that_publishes_itself_is_found_within_a_fraction_of_the_time_lost(
    seed: int, found_s: float
) -> None:
    world = World(seed)
    world.hint = "dead", 1
    world.pursuit.named(world.random.choice(["dead", "stopped"]), 0.0)
    world.hanging = {"stopped"}
    assert not world.run(found_s)
    world.hint, world.owner = ("owner", 2), "owner"
    lost_s = world.now_s
    assert world.run(lost_s + 60)
    slack_s = min(max(lost_s * PAUSE_SHARE, PAUSE_MIN_S), PAUSE_MAX_S) * 1.5 + 2 * LOOK_S
    assert world.now_s - lost_s <= slack_s * 1.5


@given(seed=st.integers(0, 2**32))
def test_addresses_that_name_each_other_are_asked_ever_more_rarely(seed: int) -> None:
    world = World(seed)
    world.names = {"a": "b", "b": "c", "c": "a"}
    world.hint = "a", 1
    assert not world.run(10.0)
    early = [t for t, _ in world.tried if t < 1.0]
    late = [t for t, _ in world.tried if t >= 5.0]
    assert len(early) < 100
    assert len(late) <= 5.0 / (PAUSE_MAX_S / 2) * 3
    assert len(world.looks) < 80


def test_an_address_that_hangs_is_given_more_time_with_each_attempt() -> None:
    world = World(0)
    world.hint, world.hanging = ("stopped", 1), {"stopped"}
    world.run(30.0)
    times = [t for t, _ in world.tried]
    gaps = [b - a for a, b in pairwise(times)]
    assert PATIENCE_MIN_S <= gaps[0] < PATIENCE_MIN_S + 1
    assert all(gap <= PATIENCE_MAX_S + PAUSE_MAX_S * 1.5 for gap in gaps)
    assert gaps[-1] > PATIENCE_MAX_S


def test_a_coordinator_started_anew_at_its_address_is_tried_at_once() -> None:
    world = World(0)
    world.hint = "home", 1
    world.run(5.0)
    tried = len(world.tried)
    world.hint, world.owner = ("home", 2), "home"
    last_s = world.tried[-1][0]
    assert world.run(world.now_s + 5)
    assert len(world.tried) <= tried + 2
    assert world.now_s - last_s < PAUSE_MAX_S * 1.5 * 2


def test_a_hint_that_a_former_owner_publishes_late_hides_no_newer_one() -> None:
    pursuit = Pursuit(0.0, Random(0).random)
    assert pursuit.looking(0.0)
    pursuit.looked_up(("new", 7), 0.0)
    assert pursuit.attempts(0.0) == ["new"]
    pursuit.failed("new", 0.0)
    assert pursuit.looking(0.1)
    pursuit.looked_up(("former", 3), 0.1)
    assert set(pursuit.attempts(0.1)) == {"new", "former"}
