"""Which journal partition places in a topic: what one coordinator has read of all homes. Pure.

A coordinator follows every journal partition, as its owner or as a standby, so it knows the modes
of all topics. It may be behind: a decision that is handed over by old facts is refused by the home,
and one that is marked by old facts is marked.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...journal.control import TopicPartition
from ...journal.modes import Phase
from .modes import TopicModes
from .topics import TopicKnowledge


class TopicHomes:
    """Topics in metadata mode, and their homes."""

    def __init__(self) -> None:
        """Begins without any."""
        self._homes: dict[tuple[str, str], int] = {}
        """(topic, topic id) → its home."""
        self._read: dict[int, tuple[TopicModes, int]] = {}
        """Journal partition → its modes, and how many changes of them were read."""

    def __len__(self) -> int:
        """Returns the number of topics in metadata mode."""
        return len(self._homes)

    @property
    def known(self) -> int:
        """Number of journal partitions whose modes were read."""
        return len(self._read)

    def learn(self, partition: int, modes: TopicModes) -> None:
        """Takes what a journal partition says of its topics, if it has changed."""
        read = self._read.get(partition)
        if read is not None and read[0] is modes and read[1] == modes.changes:
            return
        self._read[partition] = modes, modes.changes
        kept = {topic: home for topic, home in self._homes.items() if home != partition}
        names = modes.in_metadata
        kept |= {(t, mode.topic_id): partition for t, mode in modes.rows() if t in names}
        self._homes = kept

    def knows(self, topic: str) -> bool:
        """Returns whether a topic of this name is in metadata mode."""
        return any(name == topic for name, _ in self._homes)

    def home_of(self, topic: str, topic_id: str) -> int | None:
        """Returns the journal partition that places in a topic; None if it has markers."""
        return self._homes.get((topic, topic_id))

    def foreign(
        self, topics: Iterable[tuple[str, str]], journal: int
    ) -> dict[tuple[str, str], int]:
        """Returns those of some topics, given with their ids, in which another journal partition
        than `journal` places, and which."""
        found = ((topic, self._homes.get(topic)) for topic in topics)
        return {topic: home for topic, home in found if home is not None and home != journal}


def unwritten(
    partitions: Iterable[TopicPartition],
    journal: int,
    modes: TopicModes,
    homes: TopicHomes,
    known: TopicKnowledge,
) -> set[str]:
    """Returns the topics to which a commit writes no markers, or would not if it was certain which
    topic has the name.

    Args:
        partitions: what the commit names.
        journal: the journal partition that decides it.
        modes: of the topics whose home that is.
        homes: of all.
        known: what is known of topics. It is told which of its topics have a mode.
    """
    named = {topic for topic, _ in partitions}
    for topic in named:
        if (placing := modes.placing(topic)) is not None:
            known.assume(topic, placing[0])

    def is_unwritten(topic: str) -> bool:
        if topic in modes.in_metadata and known.is_contested(topic):
            return True
        facts = known.facts.get(topic)
        if facts is None:
            return False
        # A topic that was created anew under the name has markers.
        placed = modes.phase(topic, facts.topic_id) is Phase.METADATA
        return placed or homes.home_of(topic, facts.topic_id) not in (None, journal)

    return {topic for topic in named if is_unwritten(topic)}
