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

A switch whose mode records can't all be written, as a partition takes no writes any more, may go on
without them. A second MODE record of the same phase says so. The switch keeps the offset of the
first one: mode records of both owners and readers name it, and one that lands late is no news.

In its lane a mode record stands at the journal offset of its MODE record, as a marker stands at its
commit sequence. A new owner that finds a switch under way writes all mode records again. A mode
record counts for a reader if it names a later MODE record than all that the reader knows of the
topic; so a second one, or one of a replaced owner, changes nothing.

Pure. `replay` alone changes what comes from the journal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from ...journal.errors import CorruptRecordError
from ...journal.mode_registry import TopicModeRecord
from ...journal.modes import EndedSwitch, ModeChange, Phase, remembered
from ...journal.places import PartitionId
from ...journal.position import Journal

VALID_PREVIOUS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.MARKERS: frozenset({Phase.TO_MARKERS}),
    Phase.TO_METADATA: frozenset({Phase.MARKERS}),
    Phase.METADATA: frozenset({Phase.TO_METADATA}),
    Phase.TO_MARKERS: frozenset({Phase.METADATA}),
}
"""Phase → phases that may precede it; a topic starts in MARKERS. A switch is not turned round: it
is short, and half of its mode records may be written."""
_NEXT: Final = {old: new for new, before in VALID_PREVIOUS.items() for old in before}
SWITCHING: Final = frozenset({Phase.TO_METADATA, Phase.TO_MARKERS})
"""Phases between the two records of a switch."""
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
    """Partition → offset of its mode record, of the latest switch that was ended."""
    with_records: bool = True
    """Whether the latest switch wrote mode records to the partitions."""
    earlier: tuple[EndedSwitch, ...] = ()
    """The switches before the latest one, in their order: see `remembered`."""
    recorded: dict[int, int] = field(default_factory=dict)
    """Partition → offset of the mode record that this owner wrote for the switch under way.
    Volatile."""

    @property
    def ended(self) -> EndedSwitch | None:
        """The latest switch, if it is over."""
        if self.offset < 0 or self.phase in SWITCHING:
            return None
        return EndedSwitch(self.offset, self.phase, self.since, self.with_records)

    def published(self, topic: str, home: Journal) -> TopicModeRecord:
        """Returns what the home publishes of a topic."""
        return TopicModeRecord(
            topic=topic,
            topic_id=self.topic_id,
            phase=self.phase,
            home=home,
            mode_offset=self.offset,
            # Between two switches lie two MODE records at least.
            offset=self.offset + (self.phase not in SWITCHING),
            since=self.since,
            with_records=self.with_records,
            earlier=self.earlier,
        )


class TopicModes:
    """The modes of all topics whose home a journal partition is."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicMode] = {}
        self._in_metadata: set[str] = set()
        self.changes = 0
        """Number of changes that were replayed since this was made. Volatile."""

    @property
    def places_any(self) -> bool:
        """Whether what is decided now may be placed anywhere. Where not, nothing need be read."""
        return bool(self._in_metadata)

    @property
    def in_metadata(self) -> Set[str]:
        """Names of the topics that are in metadata mode."""
        return self._in_metadata

    def replay(self, offset: int, change: ModeChange) -> None:
        """Applies a MODE record.

        Raises:
            CorruptRecordError: it does not follow from the phase that the topic is in.
        """
        mode = self._of(change.topic, change.topic_id)
        if _gives_records_up(mode, change):
            mode.with_records, mode.recorded = False, {}
            return
        if mode.phase not in VALID_PREVIOUS[change.phase]:
            raise CorruptRecordError(
                f"the MODE record at {offset} says that topic {change.topic} is {change.phase}, and"
                f" it was {mode.phase}"
            )
        if mode.ended is not None:
            mode.earlier = remembered((*mode.earlier, mode.ended))
        mode.phase, mode.recorded = change.phase, {}
        if change.phase in SWITCHING:
            mode.offset, mode.with_records = offset, change.with_records
        else:
            mode.since = dict(change.since)
        self._keep(change.topic, mode)

    def _keep(self, topic: str, mode: TopicMode) -> None:
        self.changes += 1
        self._topics[topic] = mode
        if mode.phase is Phase.METADATA:
            self._in_metadata.add(topic)
        else:
            self._in_metadata.discard(topic)

    def _of(self, topic: str, topic_id: str) -> TopicMode:
        mode = self._topics.get(topic)
        # A topic that was created anew starts with markers.
        return mode if mode is not None and mode.topic_id == topic_id else TopicMode(topic_id)

    def of(self, topic: str, topic_id: str) -> TopicMode:
        """Returns a copy of a topic's mode; one that was never switched has markers."""
        return replace(self._of(topic, topic_id))

    def get(self, topic: str) -> TopicMode | None:
        """Returns a copy of the mode of the topic that was switched last under this name."""
        mode = self._topics.get(topic)
        return None if mode is None else replace(mode)

    def placing(self, topic: str) -> tuple[str, int] | None:
        """Returns the id of a topic in metadata mode, and the offset of the MODE record with which
        the switch to it began; None if there is none of this name."""
        if topic not in self._in_metadata:
            return None
        mode = self._topics[topic]
        return mode.topic_id, mode.offset

    def phase(self, topic: str, topic_id: str) -> Phase:
        """Returns the phase of a topic."""
        return self._of(topic, topic_id).phase

    def is_placed(self, partition: PartitionId) -> bool:
        """Returns whether what is decided now is placed in a partition, rather than marked."""
        return self.phase(partition.topic, partition.topic_id) is Phase.METADATA

    def wrote_records(self, partition: PartitionId) -> bool:
        """Returns whether the latest switch wrote mode records, which tell readers that run."""
        return self._of(partition.topic, partition.topic_id).with_records

    def floor(self, partition: PartitionId) -> int:
        """Returns the offset below which nothing is placed: behind its mode record, or where the
        switch to metadata ended without one. 0 if there is none, as the partition came later."""
        mode = self._of(partition.topic, partition.topic_id)
        since = mode.since.get(partition.partition)
        if since is None or mode.phase not in (Phase.METADATA, Phase.TO_MARKERS):
            return 0
        # While it is switched back, `with_records` is that of the way back.
        return since + (mode.phase is Phase.METADATA and mode.with_records)

    def is_opposed(self, topic: str, topic_id: str, to: Phase) -> bool:
        """Returns whether the switch that is under way leads elsewhere than `to`."""
        now = self.phase(topic, topic_id)
        return now in SWITCHING and now not in _TOWARDS[to]

    def switch(
        self, topic: str, topic_id: str, to: Phase, *, with_records: bool = True
    ) -> ModeChange | None:
        """Returns the record that begins a switch; None if it is made, or under way.

        One that is under way with mode records goes on without them, if that is asked for. While
        the opposite switch is under way it is to be asked again later: see `phase`.

        Args:
            topic: name of the topic.
            topic_id: its id.
            to: METADATA or MARKERS.
            with_records: whether the partitions get mode records.
        """
        mode = self._of(topic, topic_id)
        now = mode.phase
        if now in SWITCHING and now in _TOWARDS[to] and mode.with_records and not with_records:
            return ModeChange(topic, topic_id, now, with_records=False)
        if now in _TOWARDS[to] or now in SWITCHING:
            return None
        return ModeChange(topic, topic_id, _NEXT[now], with_records=with_records)

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
        if mode.phase not in SWITCHING or not mode.with_records:
            return None
        mode.recorded[partition.partition] = offset
        if not mode.recorded.keys() >= set(partitions):
            return None
        since = dict(mode.recorded)
        return ModeChange(partition.topic, partition.topic_id, _NEXT[mode.phase], since)

    def ended(self, topic: str, topic_id: str, since: Mapping[int, int]) -> ModeChange | None:
        """Returns the record that ends a switch without mode records; None if none is under way.

        Args:
            topic: name of the topic.
            topic_id: its id.
            since: partition → its end, asked for after the switch began.
        """
        mode = self._of(topic, topic_id)
        if mode.phase not in SWITCHING or mode.with_records:
            return None
        return ModeChange(topic, topic_id, _NEXT[mode.phase], dict(since), with_records=False)

    def forget_recorded(self) -> None:
        """Forgets which mode records are written: the tenure that wrote them is over."""
        for mode in self._topics.values():
            mode.recorded = {}

    def under_way(self) -> Iterator[tuple[str, TopicMode]]:
        """Yields the topics that are switching: a new owner writes their mode records again."""
        for topic, mode in self._topics.items():
            if mode.phase in SWITCHING:
                yield topic, mode

    # ---- snapshots ------------------------------------------------------------------------------

    def rows(self) -> list[tuple[str, TopicMode]]:
        """Returns the topics that were ever switched: rows of a snapshot."""
        topics = sorted(self._topics.items())
        return [(topic, replace(mode, recorded={})) for topic, mode in topics]

    @classmethod
    def restore(cls, rows: Iterable[tuple[str, TopicMode]]) -> TopicModes:
        """Returns the modes as they were when `rows` gave them."""
        modes = cls()
        for topic, mode in rows:
            modes._keep(topic, mode)
        return modes


def _gives_records_up(mode: TopicMode, change: ModeChange) -> bool:
    """Returns whether a MODE record says that the switch under way goes on without mode records."""
    under_way = mode.phase in SWITCHING and mode.phase is change.phase
    return under_way and mode.with_records and not change.with_records
