"""Modes of topics: which switches are remembered before the latest one."""

from __future__ import annotations

from logtx.coordinator.core.modes import TopicModes
from logtx.journal.modes import EARLIER_MAX, EndedSwitch, ModeChange, Phase

TURNS = {
    Phase.METADATA: (Phase.TO_METADATA, Phase.METADATA),
    Phase.MARKERS: (Phase.TO_MARKERS, Phase.MARKERS),
}


def switch(modes: TopicModes, offset: int, to: Phase, topic_id: str = "id") -> EndedSwitch:
    """A whole switch, whose MODE record stands at an offset; as it is remembered later."""
    begins, ends = TURNS[to]
    modes.replay(offset, ModeChange("orders", topic_id, begins))
    modes.replay(offset + 1, ModeChange("orders", topic_id, ends, {0: offset}))
    return EndedSwitch(offset, to, {0: offset}, with_records=True)


def earlier(modes: TopicModes) -> tuple[EndedSwitch, ...]:
    mode = modes.get("orders")
    assert mode is not None
    return mode.published("orders", (3, 7)).earlier


def test_a_switch_is_remembered_when_the_next_one_begins() -> None:
    modes = TopicModes()
    first = switch(modes, 10, Phase.METADATA)
    assert earlier(modes) == ()
    modes.replay(20, ModeChange("orders", "id", Phase.TO_MARKERS))
    assert earlier(modes) == (first,)
    modes.replay(21, ModeChange("orders", "id", Phase.TO_MARKERS, with_records=False))
    modes.replay(22, ModeChange("orders", "id", Phase.MARKERS, {0: 5}, with_records=False))
    assert earlier(modes) == (first,)
    switch(modes, 30, Phase.METADATA)
    second = EndedSwitch(20, Phase.MARKERS, {0: 5}, with_records=False)
    assert earlier(modes) == (first, second)


def test_a_topic_made_anew_remembers_no_switch_of_the_former_one() -> None:
    modes = TopicModes()
    switch(modes, 10, Phase.METADATA)
    switch(modes, 20, Phase.METADATA, "another id")
    assert earlier(modes) == ()


def test_the_number_of_remembered_switches_is_bounded() -> None:
    modes = TopicModes()
    for number in range(100):
        switch(modes, 10 * number, (Phase.METADATA, Phase.MARKERS)[number % 2])
    assert EARLIER_MAX - 1 <= len(earlier(modes)) <= EARLIER_MAX
