"""Below which offset nothing is placed, whatever end a broker tells (trap 69, trap 296)."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from logtx.coordinator.core.floors import LOOKS_APART_MS, Floors, WrittenBeside
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


@dataclass
class Known:
    """What a tenure knows of writes to partitions."""

    written: dict[PartitionId, int] = field(default_factory=dict)
    """Partition → the offset behind what the tenure wrote."""
    beside: dict[PartitionId, WrittenBeside] = field(default_factory=dict)
    others: set[PartitionId] = field(default_factory=set)
    """Partitions of names that had another topic before."""
    apart_ms: int = LOOKS_APART_MS

    def written_to(self, partition: PartitionId) -> int | None:
        return self.written.get(partition)

    def written_beside(self, partition: PartitionId) -> WrittenBeside | None:
        return self.beside.get(partition)

    def had_others(self, partition: PartitionId) -> bool:
        return partition in self.others

    def looks_apart_ms(self, topic: str) -> int:
        del topic
        return self.apart_ms


@pytest.fixture
def known() -> Known:
    return Known()


@pytest.fixture
def floors(known: Known) -> Floors:
    return Floors(known)


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


def test_a_marker_of_this_tenure_proves_it(floors: Floors, known: Known) -> None:
    known.written[A] = SINCE  # Told too low: it can't lie before the mode record.
    assert floors.raised({A: 5}, shard_of(), 0, 1) == {}
    known.written[A] = SINCE + 7
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
    floors = Floors(Known(apart_ms=0))
    assert floors.raised({A: 50}, shard_of(), 0, 1) == {A: 50}


# ---- what lies under other ids of the name (trap 296) -------------------------------------------


def test_an_end_below_what_lies_under_another_id_is_proved_by_two_looks_behind_it(
    floors: Floors, known: Known
) -> None:
    shard, apart = shard_of(), LOOKS_APART_MS
    known.written[A] = SINCE + 1
    assert floors.raised({A: 26}, shard, 50, 51) == {A: 26}
    # At 26: a place there would be before it.
    known.beside[A] = WrittenBeside(behind=27, at_ms=100)
    assert floors.raised({A: 26}, shard, 100, 101) == {}, "it was asked for no later"
    assert floors.raised({A: 25}, shard, 102, 103) == {}
    assert floors.raised({A: 26}, shard, apart + 102, apart + 103) == {}
    assert floors.raised({A: 25}, shard, apart + 103, apart + 104) == {A: 26}, "of another topic"


def test_an_end_behind_it_needs_no_second_look(floors: Floors, known: Known) -> None:
    shard = shard_of(last=SINCE + 2)
    known.beside[A] = WrittenBeside(behind=27, at_ms=100)
    assert floors.raised({A: 26}, shard, 101, 102) == {}
    assert floors.raised({A: 27}, shard, 103, 104) == {A: 27}


def test_an_offset_under_another_id_is_never_a_floor(floors: Floors, known: Known) -> None:
    shard, apart = shard_of(last=SINCE + 2), LOOKS_APART_MS
    known.beside[A] = WrittenBeside(behind=1_000, at_ms=100)  # In a topic that is no more.
    assert floors.raised({A: 26}, shard, 101, 102) == {}
    assert floors.raised({A: 26}, shard, apart + 102, apart + 103) == {A: 26}
    assert floors.raised({A: 28}, shard, apart + 104, apart + 105) == {A: 28}


def test_what_is_written_under_another_id_later_voids_earlier_looks(
    floors: Floors, known: Known
) -> None:
    shard, apart = shard_of(last=SINCE + 2), LOOKS_APART_MS
    known.beside[A] = WrittenBeside(behind=1_000, at_ms=100)
    floors.raised({A: 26}, shard, 101, 102)
    known.beside[A] = WrittenBeside(behind=1_000, at_ms=103)  # At 26, in the topic of today.
    assert floors.raised({A: 26}, shard, apart + 102, apart + 103) == {}, "the first one is void"
    later = 2 * apart + 103
    assert floors.raised({A: 27}, shard, later, later + 1) == {A: 27}
    known.beside[A] = WrittenBeside(behind=1_000, at_ms=later + 2)
    assert floors.raised({A: 27}, shard, later + 3, later + 4) == {}, "both are void"


def test_nothing_waits_where_the_end_lies_behind_what_is_under_another_id(
    floors: Floors, known: Known
) -> None:
    known.beside[A] = WrittenBeside(behind=27, at_ms=100)
    assert floors.raised({A: 27}, shard_of(last=SINCE + 2), 50, 51) == {A: 27}
    assert floors.raised({A: 5}, shard_of(last=27), 50, 51) == {A: SINCE + 1}, "`place` knows it"
    known.written[A] = 28
    assert floors.raised({A: 5}, shard_of(), 50, 51) == {A: 28}


def test_what_may_lie_anywhere_is_above_each_end(floors: Floors, known: Known) -> None:
    shard, apart = shard_of(last=SINCE + 2), LOOKS_APART_MS
    known.beside[A] = WrittenBeside(behind=None, at_ms=100)
    assert floors.raised({A: 99}, shard, 101, 102) == {}
    assert floors.raised({A: 99}, shard, apart + 102, apart + 103) == {A: 99}


def test_ends_of_a_switch_are_looked_at_behind_what_is_under_another_id(
    floors: Floors, known: Known
) -> None:
    apart = LOOKS_APART_MS
    assert floors.proved({A: 26, B: 3}, 0, 1) is None
    known.beside[A] = WrittenBeside(behind=28, at_ms=100)
    assert floors.proved({A: 27, B: 3}, apart + 1, apart + 2) is None
    assert floors.proved({A: 27, B: 3}, 2 * apart + 2, 2 * apart + 3) == {A: 27, B: 3}


def test_earlier_places_prove_nothing_where_the_name_had_another_topic(
    floors: Floors, known: Known
) -> None:
    # An earlier owner's marker may lie above them, under the former id. This one knows of none.
    shard, apart = shard_of(last=SINCE + 2), LOOKS_APART_MS
    known.others = {A, B}
    assert floors.raised({A: 26, B: 0}, shard, 0, 1) == {}
    assert floors.raised({A: 27, B: 4}, shard, apart + 1, apart + 2) == {A: 27, B: 4}
    assert floors.raised({A: 26, B: 0}, shard, apart + 3, apart + 4) == {A: 27, B: 4}


def test_a_marker_of_this_tenure_proves_it_where_the_name_had_another_topic(
    floors: Floors, known: Known
) -> None:
    # It lies above all that an earlier owner has written.
    known.others = {A, B}
    known.written = {A: SINCE + 7, B: 4}
    assert floors.raised({A: 5, B: 3}, shard_of(), 0, 1) == {A: SINCE + 7, B: 4}
