"""Modes of topics: whether a commit writes markers to a topic's partitions, or is placed there.

`coordinator.core.modes` has the rules of a switch from one to the other. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import ClassVar, Final

from .record_type import RecordType
from .value import value

MODES_TOPIC: Final = "__transaction_topics"
"""Compacted topic in which each home publishes the modes of its topics, for consumers."""


def binding_of(topic: str) -> str:
    """Returns the name under which a topic is bound to its transaction group (BIND).

    It is bound like a consumer group, once for ever: in the journal partition of this name's hash.
    """
    return f"&topic&{topic}"


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
