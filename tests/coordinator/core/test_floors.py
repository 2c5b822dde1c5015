"""Below which offset nothing is placed, whatever end a broker tells (trap 69)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from logtx.coordinator.core.floors import LOOKS_APART_MS, Floors
from logtx.coordinator.core.modes import TopicModes
from logtx.coordinator.core.shard_state import ShardState
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import GONE, PartitionId

A, B = PartitionId("a", 0, "id"), PartitionId("a", 1, "id")
SINCE = 20


def shard_of(*, with_records: bool = True, back: bool = False, last: int = 0) -> ShardState:
    """Returns a journal partition's state whose topic has one partition with a mode record."""
    modes = TopicModes()
    modes.replay(10, ModeChange("a", "id", Phase.TO_METADATA, with_records=with_records))
    since = {0: SINCE}
    modes.replay(11, ModeChange("a", "id", Phase.METADATA, since, with_records=with_records))
    if back:
        modes.replay(12, ModeChange("a", "id", Phase.TO_MARKERS))
    places = SimpleNamespace(last={A: last} if last else {})
    return cast(ShardState, SimpleNamespace(modes=modes, places=places))


@pytest.fixture
def written() -> dict[PartitionId, int]:
    """Partition → the offset behind what the tenure wrote."""
    return {}


@pytest.fixture
def floors(written: dict[PartitionId, int]) -> Floors:
    return Floors(written.get, lambda _: LOOKS_APART_MS)


def test_an_end_is_proved_by_two_looks(floors: Floors) -> None:
    shard, apart = shard_of(), LOOKS_APART_MS
    assert floors.raised({A: 50}, shard, 0, 1) == {}
    # Neither the first nor the second need be true, and none tells too much.
    assert floors.raised({A: 30}, shard, apart, apart + 1) == {}
    assert floors.raised({A: 30}, shard, apart + 1, apart + 2) == {A: 50}
    assert floors.raised({A: 40}, shard, apart + 3, apart + 4) == {A: 50}
    assert floors.raised({A: 60}, shard, apart + 5, apart + 6) == {A: 60}


def test_a_place_behind_the_mode_record_proves_it(floors: Floors) -> None:
    assert floors.raised({A: 5}, shard_of(last=SINCE + 1), 0, 1) == {}
    assert floors.raised({A: 5}, shard_of(last=SINCE + 2), 0, 1) == {A: SINCE + 1}


def test_a_marker_of_this_tenure_proves_it(floors: Floors, written: dict[PartitionId, int]) -> None:
    written[A] = SINCE  # Told too low: it can't lie before the mode record.
    assert floors.raised({A: 5}, shard_of(), 0, 1) == {}
    written[A] = SINCE + 7
    assert floors.raised({A: 5}, shard_of(), 0, 1) == {A: SINCE + 7}


def test_a_partition_that_came_later_needs_no_proof(floors: Floors) -> None:
    assert floors.raised({B: 0}, shard_of(), 0, 1) == {B: 0}


def test_what_is_gone_stays_so(floors: Floors) -> None:
    assert floors.raised({A: GONE}, shard_of(), 0, 1) == {A: GONE}


def test_the_floor_is_behind_the_mode_record_if_there_is_one() -> None:
    assert shard_of().modes.floor(A) == SINCE + 1
    assert shard_of(with_records=False).modes.floor(A) == SINCE
    assert shard_of(back=True).modes.floor(A) == SINCE
    assert shard_of().modes.floor(A._replace(topic_id="created anew")) == 0


def test_ends_of_a_switch_are_looked_at_twice_together(floors: Floors) -> None:
    assert floors.proved({A: 50, B: 3}, 0, 1) is None
    later = LOOKS_APART_MS + 1
    assert floors.proved({A: 40, B: 4}, later, later + 1) == {A: 50, B: 4}


def test_one_look_is_enough_where_no_answer_can_be_old() -> None:
    floors = Floors({}.get, lambda _: 0)
    assert floors.raised({A: 50}, shard_of(), 0, 1) == {A: 50}
