"""What operators ask of topics' modes: to switch one, and how they stand. Pure.

Reads the shard's state and never changes it. `modes` has the steps of a switch.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Final

from ...journal.errors import (
    NotSupportedError,
    RequestTooLargeError,
    TopicModeError,
    UnknownTopicError,
)
from ...journal.mode_rules import is_rule
from ...journal.modes import Mode, ModeChange, Phase
from ...journal.sidecar import is_sidecar
from ..protocol import commands
from .data_partitions import Topics
from .modes import SWITCHING, TopicModes
from .places import Places

_WEIGHT_MAX: Final = 10_000
"""Entries of one page, counted as topics plus the partitions that `since` and `last` name. A page
stops here; its first topic is always given. More makes larger messages and holds the event loop
longer."""
PARTITIONS_MAX: Final = 45_000
"""Partitions of the largest topic that can be switched. The record that ends a switch names an
offset for each, in up to 13 bytes, and must fit one journal record. So there is room for half as
many again, which may be added while the switch is under way. With more than that the switch would
begin, write its mode records, and never end."""
_FINAL: Final = {Mode.METADATA: Phase.METADATA, Mode.MARKERS: Phase.MARKERS}


def check_name(topic: str) -> None:
    """Refuses names that stand for many topics, and sidecars.

    Raises:
        NotSupportedError: it is such a name.
    """
    if is_rule(topic):
        raise NotSupportedError(
            f"{topic!r} would stand for all topics that begin so, which can't be switched together:"
            " switch each by its name"
        )
    if is_sidecar(topic):
        raise NotSupportedError(f"{topic} is a sidecar, which always has markers")


def begin(
    command: commands.SetTopicMode, topics: Topics, modes: TopicModes, published: Set[str]
) -> ModeChange | None:
    """Returns the record that begins a switch, or lets the one that is under way go on without
    mode records; None if there is nothing to begin now.

    No switch begins before readers are told of the one before: what is published late would be
    taken for the news of the later one. Whoever asks repeats it until the phase is final.

    Args:
        command: what is asked.
        topics: what is known of data topics.
        modes: the modes of the home's topics.
        published: topics of whose mode readers are told.

    Raises:
        UnknownTopicError: there is no such topic.
        TopicModeError: the opposite switch is under way, or it is to have markers again without
            mode records.
        RequestTooLargeError: it has too many partitions.
    """
    topic, to = command.topic, _FINAL[command.mode]
    facts = topics.get(topic)
    if facts is None:
        raise UnknownTopicError(f"there is no topic {topic!r}")
    if command.without_records and to is Phase.MARKERS:
        # A reader that heard of no switch would take the first marker for the end of all that was
        # placed before, and drop what is pending (trap 86).
        raise TopicModeError(
            f"topic {topic!r} goes back to markers with mode records only: a partition that takes"
            " no writes takes no markers either. Make its partitions writable, and ask without"
            " --without-records; or leave it in metadata mode"
        )
    if modes.is_opposed(topic, facts.topic_id, to):
        raise TopicModeError(
            f"topic {topic!r} is being switched ({modes.phase(topic, facts.topic_id)}): ask again"
            " when that has ended (logtx topics describe)"
        )
    before = modes.get(topic)
    if before is not None and before.phase not in SWITCHING and topic not in published:
        return None
    change = modes.switch(topic, facts.topic_id, to, with_records=not command.without_records)
    begins = change is not None and change.phase is not modes.phase(topic, facts.topic_id)
    if begins and facts.partition_count > PARTITIONS_MAX:
        raise RequestTooLargeError(
            f"topic {topic!r} has {facts.partition_count} partitions, and the record that ends a"
            f" switch has room for {PARTITIONS_MAX}: it stays as it is. Use a topic with fewer"
        )
    return change


def info_of(
    topic: str, topic_id: str, modes: TopicModes, places: Places, published: Set[str]
) -> commands.TopicModeInfo:
    """Returns how a topic stands. Of one that was never switched readers need not be told."""
    mode = modes.of(topic, topic_id)
    return commands.TopicModeInfo(
        topic=topic,
        topic_id=topic_id,
        phase=mode.phase,
        mode_offset=mode.offset,
        since=mode.since,
        published=modes.get(topic) is None or topic in published,
        waiting=places.waiting_in(topic, topic_id),
    )


def describe(
    command: commands.DescribeTopics, modes: TopicModes, places: Places, published: Set[str]
) -> commands.TopicModes:
    """Returns a page of topics by name: those asked for, or all that were ever switched."""
    known = dict(modes.rows())
    names = sorted(n for n in set(command.topics) or known if n > command.after)
    found: list[commands.TopicModeInfo] = []
    weight = 0
    for name in names:
        topic_id = known[name].topic_id if name in known else ""
        info = info_of(name, topic_id, modes, places, published)
        if command.topics:
            info = replace(info, last=places.last_in(name, topic_id))
        weight += 1 + len(info.since) + len(info.last)
        if found and (weight > _WEIGHT_MAX or len(found) >= commands.PAGE_MAX):
            return commands.TopicModes(tuple(found), more=True)
        found.append(info)
    return commands.TopicModes(tuple(found))
