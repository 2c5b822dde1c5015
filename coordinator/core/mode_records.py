"""Knows which partitions of a switching topic still need their mode record, and when all have it.

A `ModeWrite` stands for one switch (`core.modes`) and one tenure. `MarkerLanes` has the records
themselves: each goes through the lane of its data partition, at the journal offset of the MODE
record, as a marker goes at its commit sequence.

- No marker of a later decision goes before the mode record. A marker may come for a partition of
  which no look-up has told: `before` gives it its mode record first.
- The switch is told to be done only when look-ups found no further partition since the last
  acknowledgement, for so long that no broker is behind. A partition that was there before, and got
  no mode record, would have readers that don't know of places. One that is added later, or while
  the last look-up is answered, is in the topic's new mode from its first offset on.
  What is published tells readers that are assigned it later. One that was assigned it before finds
  it out when it first looks a transaction up. A late mode record would lie behind places, and so
  could not give that transaction its order either.
- Readers are told the offset of each mode record. One that begins at or behind it reads the journal
  at once, so what they are told may be too low, and never too high. It is the acknowledged offset.
  librdkafka can lose a batch's base offset. It then tells None, or the index in the batch, which is
  never above the true offset. After None the record is written again: a second one changes nothing.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from ...journal.control import ModeRecord, encode_mode_record
from ...journal.places import PartitionId
from ...journal.records.types import DataPartition
from ...journal.txid import TxId
from .topics import Existence, TopicKnowledge, may_be_same

MayMark = Callable[[PartitionId, int], bool]
"""`Placer.may_mark`: whether a marker or mode record of a sequence may go out there now."""
Recorded = Callable[[PartitionId, int, Collection[int]], None]
"""Called with a partition, the offset of its mode record, and all partitions of the topic."""


@dataclass(slots=True, eq=False)
class ModeWrite:
    """The mode records of one switch, as one tenure writes them."""

    txid: TxId
    """Names the MODE record: its journal partition, incarnation and offset."""
    topic: str
    topic_id: str
    places: bool
    """Whether transactions are placed behind it, rather than marked."""
    may_mark: MayMark
    recorded: Recorded | None
    """None: its tenure is over, and the next owner writes its records again."""
    asked: set[int] = field(default_factory=set)
    """Partitions whose record was given to a lane."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Partition → offset of its record."""
    whole_ms: int | None = None
    """Since when each partition that is known has its record; monotonic."""

    @property
    def sequence(self) -> int:
        """Where it stands among the markers of its journal partition."""
        return self.txid.offset

    @property
    def is_live(self) -> bool:
        """Whether its tenure still wants the records."""
        return self.recorded is not None

    def abandon(self) -> None:
        """Notes that its tenure is over."""
        self.recorded = None

    def control(self) -> bytes:
        """Returns the value of the header TxCtl."""
        return encode_mode_record(ModeRecord(self.places, self.topic_id))


class ModeRecords:
    """The switches whose mode records are being written, for all lanes of a coordinator."""

    def __init__(self, topics: TopicKnowledge) -> None:
        self._topics = topics
        self._writes: dict[tuple[int, str], ModeWrite] = {}
        """(journal partition, topic) → the switch."""

    def __len__(self) -> int:
        """Returns the number of switches under way."""
        return len(self._writes)

    def begin(self, write: ModeWrite) -> list[DataPartition]:
        """Takes a switch. Returns the partitions that are known: their records may be queued."""
        self._writes[write.txid.partition, write.topic] = write
        return self._new(write)

    def _new(self, write: ModeWrite) -> list[DataPartition]:
        if not self._is_known(write):
            return []
        count = self._topics.facts[write.topic].partition_count
        new = [n for n in range(count) if n not in write.asked]
        write.asked.update(new)
        return [DataPartition(write.topic, n, write.topic_id) for n in new]

    def before(self, journal_partition: int, partition: DataPartition) -> ModeWrite | None:
        """Returns the switch whose record must be queued now, before a marker; None if there is
        none."""
        write = self._writes.get((journal_partition, partition.topic))
        if write is None or partition.partition in write.asked:
            return None
        if not may_be_same(partition.topic_id, write.topic_id):
            return None
        write.asked.add(partition.partition)
        write.whole_ms = None
        return write

    def written(self, write: ModeWrite, partition: int, offset: int, now_ms: int) -> bool:
        """Takes the acknowledgement of a mode record.

        Returns:
            Whether the topic is to be looked up, because none is missing, as far as is known.
        """
        write.offsets.setdefault(partition, offset)
        if not write.is_live or write.whole_ms is not None or write.asked - write.offsets.keys():
            return False
        write.whole_ms = now_ms
        return True

    def looked_up(self, topic: str, now_ms: int) -> Iterator[tuple[ModeWrite, DataPartition]]:
        """Takes what look-ups tell of a topic, and tells the tenure of a switch that is done.

        Yields:
            The records to queue now.
        """
        for key, write in [(k, w) for k, w in self._writes.items() if k[1] == topic]:
            if self._topics.existence(topic, now_ms, write.topic_id) is Existence.GONE:
                del self._writes[key]  # Nobody reads it any more.
                continue
            if new := self._new(write):
                write.whole_ms = None
                yield from ((write, partition) for partition in new)
            elif self._is_done(write):
                del self._writes[key]
                for partition, offset in sorted(write.offsets.items()):
                    if write.recorded is not None:
                        where = PartitionId(topic, partition, write.topic_id)
                        write.recorded(where, offset, write.offsets.keys())

    def _is_done(self, write: ModeWrite) -> bool:
        if write.whole_ms is None or not self._is_known(write):
            return False
        return self._topics.is_confirmed_since(write.topic, write.whole_ms)

    def waits_for(self, topic: str) -> bool:
        """Returns whether a switch goes on only when the topic is looked up."""
        return any(
            write.whole_ms is not None or not self._is_known(write)
            for (_, name), write in self._writes.items()
            if name == topic
        )

    def _is_known(self, write: ModeWrite) -> bool:
        facts = self._topics.facts.get(write.topic)
        return facts is not None and may_be_same(facts.topic_id, write.topic_id)

    def stop(self, journal_partition: int, topic: str) -> ModeWrite | None:
        """Drops a switch that goes on without mode records. Returns it; None if there is none."""
        write = self._writes.pop((journal_partition, topic), None)
        if write is not None:
            write.abandon()
        return write

    def give_up(self, write: ModeWrite) -> None:
        """Drops a switch whose topic is gone."""
        key = write.txid.partition, write.topic
        if self._writes.get(key) is write:
            del self._writes[key]

    def forget(self, journal_partition: int) -> None:
        """Drops the switches of a journal partition that must be loaded again."""
        for key in [key for key in self._writes if key[0] == journal_partition]:
            self._writes.pop(key).abandon()
