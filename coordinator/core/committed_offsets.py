"""Committed input offset vectors (IOVs) of consumer groups, moved by compare-and-set alone.

So a group's consumed input has no gap and no overlap, whichever workers commit it. Pure state.

Source: Transactional Messaging in Kafka, "Producer IDs and state groups".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias, TypeVar

from ...journal.control import TopicPartition
from ...journal.errors import ConsumerError, OffsetsPendingError, RequestTooLargeError
from ...journal.position import Passed, Place, Position
from ...journal.records.types import OffsetStep
from ...journal.txid import TxId
from ..protocol.commands import GroupOffsets
from .transactions import TransactionMetadata

IOV_MAX_BYTES: Final = 900_000
"""Largest IOV of one consumer group. It is one record of `__transaction_offsets`, so it must stay
below Kafka's default limit of 1 MiB; less would allow a group fewer partitions."""
SEQUENCES_MAX: Final = 10_000
"""Commit sequences that one position may have, met and delivered together. Bounds what a position
takes in a snapshot, about 300 kB at 10,000; less would refuse readers of many journals."""
STEPS_MAX: Final = 100_000
"""Steps that one transaction may have. Each takes some 300 bytes of memory until it is decided;
fewer would refuse long transactions that send their offsets often."""
_ENTRY_BYTES: Final = 72
"""Upper bound of one partition's entry in the IOV's record, without its topic and sequences. The
numbers are text. Too low, and a commit would be accepted whose IOV does not fit."""
_SEQUENCE_BYTES: Final = 52
"""Upper bound of one delivered sequence in the IOV's record. Sequences met don't count: they are
left out if not all fit."""
_PASSED_BYTES: Final = 60
"""Upper bound of what was passed of a home, in the IOV's record."""

_Arrival: TypeAlias = tuple[TopicPartition, int, int, Passed | None]
"""A partition and a place in it. As a `Place`, it would take four times as long to look up."""
K = TypeVar("K")


class StepsVerdict(Enum):
    """Whether a transaction's input offsets may take effect now."""

    EQUAL = auto()
    """Every `from` is the committed value."""
    WAIT = auto()
    """A `from` is where an earlier undecided transaction of the same producer ends."""
    CONFLICT = auto()
    """A `from` is neither: another worker committed, or an earlier transaction was aborted."""


@dataclass(slots=True)
class _Group:
    offsets: dict[TopicPartition, Position] = field(default_factory=dict)
    size_bytes: int = 0
    """Upper bound of the offsets' size in `__transaction_offsets`, without sequences met."""
    last_commit: TxId | None = None
    commit_sequence: int | None = None
    held: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """Partition → BEGINs of the undecided transactions that would move its offset."""
    to_come: dict[_Arrival, set[int]] = field(default_factory=dict)
    """Place in a partition → BEGINs of the undecided transactions that have a step to it.

    An index, so that hundreds of commits can wait without each looking at all transactions.
    """

    def put(self, partition: TopicPartition, position: Position) -> None:
        """Sets a partition's committed position."""
        self.size_bytes += _growth_bytes(self.offsets.get(partition), partition[0], position)
        self.offsets[partition] = position


class CommittedOffsets:
    """The IOVs of all consumer groups bound to one transaction group's journal partition."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def groups(self) -> list[str]:
        """Returns the names of the groups that have committed offsets."""
        return [name for name, group in self._groups.items() if group.last_commit is not None]

    def knows(self, group: str) -> bool:
        """Returns whether a group has offsets, or an undecided transaction that would move some."""
        return group in self._groups

    def forget(self, group: str) -> None:
        """Drops a group's offsets, which no undecided transaction holds."""
        self._groups.pop(group, None)

    def forget_topic(self, group: str, topic: str) -> None:
        """Drops a group's offsets in a topic, which no undecided transaction holds."""
        former = self._groups.pop(group, None)
        if former is None:
            return
        left = [(t, n, o) for (t, n), o in former.offsets.items() if t != topic]
        if left and former.last_commit is not None and former.commit_sequence is not None:
            self.restore(group, left, former.last_commit, former.commit_sequence)

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> GroupOffsets:
        """Returns a group's IOV as it stands, even if pending transactions may still move it.

        `partitions` limits it to some; None means all.
        """
        state = self._groups.get(group)
        if state is None:
            return GroupOffsets({})
        offsets = (
            dict(state.offsets)
            if partitions is None
            else {p: state.offsets[p] for p in partitions if p in state.offsets}
        )
        return GroupOffsets(offsets, state.last_commit, state.commit_sequence)

    def holders(self, group: str, partitions: Iterable[TopicPartition]) -> set[int]:
        """Returns the BEGINs of the undecided transactions that would move one of these offsets."""
        state = self._groups.get(group)
        if state is None:
            return set()
        return {begin for p in partitions for begin in state.held.get(p, ())}

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None) -> GroupOffsets:
        """Returns a group's IOV, limited to some partitions or, with None, of all.

        Source: Transactional Messaging in Kafka, "Producer IDs and state groups" (an offset fetch
        of a group with a pending transaction is an error).

        Raises:
            OffsetsPendingError: a pending transaction may still move one of the offsets.
        """
        state = self._groups.get(group)
        if state is None:
            return GroupOffsets({})
        known = set(state.offsets) | set(state.held)
        wanted = sorted(known if partitions is None else set(partitions))
        for partition in wanted:
            if state.held.get(partition):
                raise OffsetsPendingError(
                    f"a pending transaction holds the offset of {partition[0]}[{partition[1]}]"
                    f" for group {group!r}; it ends by commit, abort or its timeout"
                )
        return self.committed(group, wanted)

    def hold(self, begin: int, group: str, steps: Iterable[OffsetStep]) -> None:
        """Notes that an undecided transaction would move these offsets."""
        state = self._groups.setdefault(group, _Group())
        for step in steps:
            partition = step.topic, step.partition
            state.held.setdefault(partition, set()).add(begin)
            state.to_come.setdefault(_arrival(partition, step.to), set()).add(begin)

    def restore(
        self,
        group: str,
        offsets: Iterable[tuple[str, int, Position]],
        last_commit: TxId,
        sequence: int,
    ) -> None:
        """Adds a share of a group's IOV from a snapshot."""
        state = self._groups.setdefault(group, _Group())
        for topic, partition, to in offsets:
            state.put((topic, partition), to)
        state.last_commit, state.commit_sequence = last_commit, sequence

    def restore_held(self, transaction: TransactionMetadata) -> None:
        """Notes which offsets an open transaction of a snapshot would move."""
        for group, sent in transaction.steps.items():
            state = self._groups.setdefault(group, _Group())
            for topic, number, _, place in sent:
                partition = topic, number
                state.held.setdefault(partition, set()).add(transaction.begin)
                state.to_come.setdefault(_arrival(partition, place), set()).add(transaction.begin)

    def release(self, transaction: TransactionMetadata) -> None:
        """Lets go of the offsets of a transaction that was decided."""
        for group, steps in transaction.steps.items():
            state = self._groups[group]
            for topic, number, _, place in steps:
                partition = topic, number
                _discard(state.held, partition, transaction.begin)
                _discard(state.to_come, _arrival(partition, place), transaction.begin)
            if state.last_commit is None and not state.held:
                del self._groups[group]  # It never committed: such names would pile up.

    def evaluate(
        self, transaction: TransactionMetadata, open_now: Mapping[int, TransactionMetadata]
    ) -> tuple[StepsVerdict, tuple[int, ...]]:
        """Compares each step's `from` with the committed position.

        A commit waits only for a lower TxId of its own producer. So there are no cycles, and no
        producer waits for another.

        Args:
            transaction: the transaction to commit.
            open_now: undecided transactions of the same producer.

        Returns:
            The verdict; and if it is to wait, the BEGINs of transactions to wait for: when one of
            them is decided, the verdict may be another.
        """
        blockers: list[int] = []
        for group, steps in transaction.offsets.items():
            state = self._groups[group]
            for partition, step in steps.items():
                position = state.offsets.get(partition)
                place = step.from_place
                if (position.place if position else None) == place:
                    continue
                earlier = () if place is None else state.to_come.get(_arrival(partition, place), ())
                # A transaction with further steps from that place no longer ends there.
                ending_there = (
                    begin
                    for begin in earlier
                    if begin < transaction.begin
                    and begin in open_now
                    and open_now[begin].offsets[group][partition].to.place == place
                )
                blocker = min(ending_there, default=None)
                if blocker is None:
                    return StepsVerdict.CONFLICT, ()
                blockers.append(blocker)
        return (StepsVerdict.WAIT if blockers else StepsVerdict.EQUAL), tuple(blockers)

    @staticmethod
    def check_steps(transaction: TransactionMetadata, steps: Sequence[OffsetStep]) -> None:
        """Refuses steps that a transaction has no room for.

        Raises:
            RequestTooLargeError: it would have more than `STEPS_MAX`, or a position is too large.
        """
        for step in steps:
            _check_position_fits(step)
        count = len(steps) + sum(map(len, transaction.steps.values()))
        if count > STEPS_MAX:
            raise RequestTooLargeError(
                f"the transaction would have {count} steps of input offsets, and {STEPS_MAX} are"
                " allowed: send offsets less often, or commit"
            )

    def check_fits(self, transaction: TransactionMetadata) -> None:
        """Refuses a commit whose IOV would not fit into `__transaction_offsets`.

        Called before the decision, for a decided commit can't be refused any more.

        Raises:
            RequestTooLargeError: a consumer group's IOV would be too large for one record.
        """
        for group, steps in transaction.offsets.items():
            state = self._groups[group]
            size = state.size_bytes
            for partition, step in steps.items():
                size += _growth_bytes(state.offsets.get(partition), partition[0], step.to)
            if size > IOV_MAX_BYTES:
                raise RequestTooLargeError(
                    f"with {len(state.offsets.keys() | steps.keys())} partitions the offsets of"
                    f" consumer group {group!r} would take up to {size} bytes in one record of"
                    f" __transaction_offsets, which has {IOV_MAX_BYTES}: use more groups"
                )

    def commit(self, group: str, steps: Iterable[OffsetStep], txid: TxId, sequence: int) -> None:
        """Moves a group's offsets by the steps of a committed transaction."""
        state = self._groups.setdefault(group, _Group())
        for step in steps:
            state.put((step.topic, step.partition), step.to)
        state.last_commit, state.commit_sequence = txid, sequence


def _arrival(partition: TopicPartition, where: Place | Position) -> _Arrival:
    return partition, where.o2, where.o3, where.passed


def _growth_bytes(before: Position | None, topic: str, position: Position) -> int:
    if before is None:
        return _ENTRY_BYTES + len(topic.encode()) + _kept_bytes(position)
    return _kept_bytes(position) - _kept_bytes(before)


def _kept_bytes(position: Position) -> int:
    kept = _SEQUENCE_BYTES * len(position.delivered)
    return kept if position.passed is None else kept + _PASSED_BYTES


def _check_position_fits(step: OffsetStep) -> None:
    position, where = step.to, f"{step.topic}[{step.partition}]"
    sequences = len(position.met) + len(position.delivered)
    if sequences > SEQUENCES_MAX:
        raise RequestTooLargeError(
            f"the position in {where} has {sequences} commit sequences, and {SEQUENCES_MAX} are"
            " allowed"
        )
    if position.delivered:
        try:
            position.to_metadata()
        except ConsumerError as error:
            raise RequestTooLargeError(f"the position in {where}: {error}") from error


def _discard(index: dict[K, set[int]], key: K, begin: int) -> None:
    begins = index.get(key)
    if begins is not None:
        begins.discard(begin)
        if not begins:
            del index[key]
