"""Places: where in a data partition a transaction is delivered that writes no marker there.

A place is an offset: the transaction is delivered before the record at it, and behind all below.
Both sides read the same of a journal: its owner, to know what is still to be placed, and consumers,
to know what to deliver where. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from .control import BranchRange, TopicPartition
from .record_type import RecordType
from .txid import TxId
from .value import value

GONE: Final = -1
"""Stands for the place in a partition whose topic was deleted: nothing is delivered there."""


class PartitionId(NamedTuple):
    """A data partition of one topic of that name. A topic that is created anew has another id."""

    topic: str
    partition: int
    topic_id: str = ""
    """Kafka's topic id; "" where the log has none."""

    @property
    def key(self) -> TopicPartition:
        """Topic name and partition number, without the topic id."""
        return self.topic, self.partition


@value(frozen=True, slots=True)
class Placed:
    """Ends of partitions (PLACED), asked for after the decisions that it covers.

    In each partition named, it places every transaction that is decided up to `upto`, has writes to
    be placed there, and is not placed there yet. It says nothing of other partitions, so one whose
    end can't be asked for delays only itself.
    """

    type: ClassVar[RecordType] = RecordType.PLACED
    upto: int
    """Commit sequence of the last decision that it covers."""
    ends: Mapping[PartitionId, int]
    """Partition → the place there, or `GONE`."""


@value(frozen=True, slots=True)
class AdoptedWrites:
    """What a home says of a foreign transaction's writes in one of its partitions."""

    partition: PartitionId
    branches: Sequence[BranchRange]
    """What the decision accepts there; none of an aborted one."""
    placed: bool
    """Whether the home places it. If not, the journal that decided it marks it there."""


@value(frozen=True, slots=True)
class Adoption:
    """A transaction of another journal, as the home of a topic takes it over (ADOPT).

    From its own offset on it is a decision of the home like any other: that offset is the
    transaction's commit sequence in the home.

    What does not fit one record comes in several, which share out the partitions: each is a
    decision of its own, of its partitions alone.
    """

    type: ClassVar[RecordType] = RecordType.ADOPT
    txid: TxId
    sequence: int
    """Its commit sequence in its own journal."""
    committed: bool
    writes: tuple[AdoptedWrites, ...]
    settled: tuple[int, ...] = ()
    """Commit sequences, in that journal, of what the home refused earlier and is finished now."""
    more: bool = False
    """Whether another record follows with further partitions of it, all behind these in order."""


T = TypeVar("T")


class Waiting(NamedTuple, Generic[T]):
    """A transaction that is decided and not placed in a partition."""

    sequence: int
    what: T


class Unplaced(Generic[T]):
    """What is decided and not placed, by partition, in commit-sequence order."""

    def __init__(self) -> None:
        self._waiting: dict[PartitionId, deque[Waiting[T]]] = {}

    def __len__(self) -> int:
        """Returns the number of (transaction, partition) that wait."""
        return sum(map(len, self._waiting.values()))

    def add(self, partition: PartitionId, sequence: int, what: T) -> None:
        """Adds a transaction. Must be called in commit-sequence order."""
        waiting = self._waiting.get(partition)
        if waiting is None:
            waiting = self._waiting[partition] = deque()
        waiting.append(Waiting(sequence, what))

    def cover(self, placed: Placed) -> Iterator[tuple[PartitionId, int, Waiting[T]]]:
        """Removes what a PLACED record covers, and yields it: partition, place, transaction.

        What an earlier one covered is not there any more, so the first one counts.
        """
        for partition, place in placed.ends.items():
            waiting = self._waiting.get(partition)
            while waiting and waiting[0].sequence <= placed.upto:
                yield partition, place, waiting.popleft()
            if waiting is not None and not waiting:
                del self._waiting[partition]

    def drop(self, partition: PartitionId) -> None:
        """Forgets what waits in a partition."""
        self._waiting.pop(partition, None)

    def of(self, partition: PartitionId) -> Sequence[Waiting[T]]:
        """Returns what waits in a partition, in commit-sequence order."""
        return self._waiting.get(partition, ())

    def partitions(self) -> list[PartitionId]:
        """Returns the partitions in which something waits."""
        return list(self._waiting)
