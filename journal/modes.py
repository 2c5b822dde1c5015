"""Modes of topics: whether a commit writes markers to a topic's partitions, or is placed there.

`coordinator.core.modes` has the rules of a switch from one to the other. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from itertools import accumulate
from typing import ClassVar, Final

from .record_type import RecordType
from .value import value

MODES_TOPIC: Final = "__transaction_topics"
"""Compacted topic in which each home publishes the modes of its topics, for consumers."""


TOPIC_BINDING: Final = "&topic&"
"""Begins the name by which a topic is bound to its transaction group, as consumer groups are."""


def binding_of(topic: str) -> str:
    """Returns the name under which a topic is bound to its transaction group (BIND).

    It is bound like a consumer group, once for ever: in the journal partition of this name's hash.
    """
    return TOPIC_BINDING + topic


def is_topic_binding(name: str) -> bool:
    """Returns whether a name among those of consumer groups stands for a topic."""
    return name.startswith(TOPIC_BINDING)


def topic_of_binding(name: str) -> str:
    """Returns the topic that such a name stands for."""
    return name.removeprefix(TOPIC_BINDING)


class Mode(StrEnum):
    """How transactions end in the partitions of a topic."""

    MARKERS = "markers"
    """By a marker in each partition."""
    METADATA = "metadata"
    """By places in the journal: nothing is written to the partitions."""


class Phase(StrEnum):
    """What is true of a topic between two MODE records."""

    MARKERS = "markers"
    TO_METADATA = "to-metadata"
    METADATA = "metadata"
    TO_MARKERS = "to-markers"


EARLIER_MAX: Final = 16
"""Switches of a topic that are remembered before its latest one. A reader that begins below all of
them follows the home in marker mode, too, and keeps in memory what it does not meet. More make
snapshots larger."""
EARLIER_OFFSETS_MAX: Final = 5_000
"""Offsets of mode records that are remembered of these switches together: 65 kB. They share a
record with those of the latest switch."""


@value(frozen=True, slots=True)
class EndedSwitch:
    """A switch of a topic that is over, before its latest one."""

    offset: int
    """Journal offset of the MODE record with which it began."""
    phase: Phase
    """METADATA or MARKERS: what it led to."""
    since: Mapping[int, int]
    """See `ModeChange.since`."""
    with_records: bool


def remembered(switches: Sequence[EndedSwitch]) -> tuple[EndedSwitch, ...]:
    """Returns those of a topic's switches, in their order, that are to be remembered.

    If some are left out, the first that is left leads to markers: a reader that begins below it
    knows that there may have been places.
    """
    sizes = accumulate(len(each.since) for each in reversed(switches[-EARLIER_MAX:]))
    count = sum(size <= EARLIER_OFFSETS_MAX for size in sizes)
    kept = tuple(switches[len(switches) - count :])
    is_cut = 0 < count < len(switches) and kept[0].phase is Phase.METADATA
    return kept[1:] if is_cut else kept


@value(frozen=True, slots=True)
class ModeChange:
    """A step of a topic's switch from one mode to the other (MODE)."""

    type: ClassVar[RecordType] = RecordType.MODE
    topic: str
    topic_id: str
    phase: Phase
    since: Mapping[int, int] = field(default_factory=dict)
    """Partition → offset of its mode record; empty while the topic is switching. A partition that
    is not named came later: it is in the topic's mode from offset 0 on."""
    with_records: bool = True
    """Whether its partitions get mode records. A topic that takes no writes any more gets none:
    `since` then has its partitions' ends, asked for after the switch began."""
