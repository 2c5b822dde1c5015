"""Modes of the topics whose home this journal partition is: does a commit mark or place there?

A topic is in mode `markers` or `metadata`. Its home is the one journal partition that may place
there (R1): two of them could not agree on the order of what they place at one offset. Transactions
of other journal partitions are marked there, as ever.

A switch takes two MODE records, with mode records in the data partitions between them (R15):

- markers → metadata: MODE says TO_METADATA. Decisions are still marked. A mode record goes to each
  partition by its marker lane, so behind this journal's earlier markers. When all are written, MODE
  says METADATA, with their offsets. From here on decisions are placed. So a reader that comes to
  the mode record reads the journal from the first MODE record on, and misses no placed transaction.
- metadata → markers: MODE says TO_MARKERS. Decisions are marked from here on, but no marker goes
  out in a partition, nor its mode record, before all that is decided earlier is placed there (R4).
  When all mode records are written, MODE says MARKERS. So behind a mode record nothing is placed.

In its lane a mode record stands at the journal offset of its MODE record, as a marker stands at its
commit sequence. A new owner that finds a switch under way writes all mode records again. A mode
record counts for a reader if it names a later MODE record than all that the reader knows of the
topic; so a second one, or one of a replaced owner, changes nothing.

Pure. `replay` alone changes what comes from the journal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ...journal.errors import CorruptRecordError
from ...journal.modes import ModeChange, Phase
from ...journal.places import PartitionId

VALID_PREVIOUS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.MARKERS: frozenset({Phase.TO_MARKERS}),
    Phase.TO_METADATA: frozenset({Phase.MARKERS}),
    Phase.METADATA: frozenset({Phase.TO_METADATA}),
    Phase.TO_MARKERS: frozenset({Phase.METADATA}),
}
"""Phase → phases that may precede it; a topic starts in MARKERS. A switch is not turned round: it
is short, and half of its mode records may be written."""
_NEXT: Final = {old: new for new, before in VALID_PREVIOUS.items() for old in before}
_SWITCHING: Final = frozenset({Phase.TO_METADATA, Phase.TO_MARKERS})
_TOWARDS: Final = {
    Phase.METADATA: frozenset({Phase.TO_METADATA, Phase.METADATA}),
    Phase.MARKERS: frozenset({Phase.TO_MARKERS, Phase.MARKERS}),
}


@dataclass(slots=True)
class TopicMode:
    """The mode of a topic, as the journal says it."""

    topic_id: str
    phase: Phase = Phase.MARKERS
    offset: int = -1
    """Journal offset of the MODE record with which the latest switch began."""
    since: Mapping[int, int] = field(default_factory=dict)
    recorded: dict[int, int] = field(default_factory=dict)
    """Partition → offset of the mode record that this owner wrote for the switch under way.
    Volatile."""


class TopicModes:
    """The modes of all topics whose home a journal partition is."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicMode] = {}

    def replay(self, offset: int, change: ModeChange) -> None:
        """Applies a MODE record.

        Raises:
            CorruptRecordError: it does not follow from the phase that the topic is in.
        """
        mode = self._of(change.topic, change.topic_id)
        if mode.phase not in VALID_PREVIOUS[change.phase]:
            raise CorruptRecordError(
                f"the MODE record at {offset} says that topic {change.topic} is {change.phase}, and"
                f" it was {mode.phase}"
            )
        mode.phase, mode.recorded = change.phase, {}
        if change.phase in _SWITCHING:
            mode.offset = offset
        else:
            mode.since = dict(change.since)
        self._topics[change.topic] = mode

    def _of(self, topic: str, topic_id: str) -> TopicMode:
        mode = self._topics.get(topic)
        # A topic that was created anew starts with markers.
        return mode if mode is not None and mode.topic_id == topic_id else TopicMode(topic_id)

    def phase(self, topic: str, topic_id: str) -> Phase:
        """Returns the phase of a topic."""
        return self._of(topic, topic_id).phase

    def is_placed(self, partition: PartitionId) -> bool:
        """Returns whether what is decided now is placed in a partition, rather than marked."""
        return self.phase(partition.topic, partition.topic_id) is Phase.METADATA

    def switch(self, topic: str, topic_id: str, to: Phase) -> ModeChange | None:
        """Returns the record that begins a switch; None if it is made, or under way.

        While the opposite switch is under way it is to be asked again later: see `phase`.

        Args:
            topic: name of the topic.
            topic_id: its id.
            to: METADATA or MARKERS.
        """
        now = self.phase(topic, topic_id)
        if now in _TOWARDS[to] or now in _SWITCHING:
            return None
        return ModeChange(topic, topic_id, _NEXT[now])

    def recorded(
        self, partition: PartitionId, offset: int, partitions: Collection[int]
    ) -> ModeChange | None:
        """Notes that a mode record is written.

        Args:
            partition: the data partition.
            offset: offset of the mode record in it.
            partitions: all partitions of the topic.

        Returns:
            The record that ends the switch, when all partitions have their mode record.
        """
        mode = self._of(partition.topic, partition.topic_id)
        if mode.phase not in _SWITCHING:
            return None
        mode.recorded[partition.partition] = offset
        if not mode.recorded.keys() >= set(partitions):
            return None
        since = dict(mode.recorded)
        return ModeChange(partition.topic, partition.topic_id, _NEXT[mode.phase], since)

    def under_way(self) -> Iterator[tuple[str, TopicMode]]:
        """Yields the topics that are switching: a new owner writes their mode records again."""
        for topic, mode in self._topics.items():
            if mode.phase in _SWITCHING:
                yield topic, mode

    # ---- snapshots ------------------------------------------------------------------------------

    def rows(self) -> list[tuple[str, TopicMode]]:
        """Returns the topics that were ever switched: rows of a snapshot."""
        return [(t, TopicMode(m.topic_id, m.phase, m.offset, m.since)) for t, m in self._items()]

    def _items(self) -> list[tuple[str, TopicMode]]:
        return sorted(self._topics.items())

    @classmethod
    def restore(cls, rows: Collection[tuple[str, TopicMode]]) -> TopicModes:
        """Returns the modes as they were when `rows` gave them."""
        modes = cls()
        modes._topics = dict(rows)
        return modes
