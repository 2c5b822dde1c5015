"""Committed input offset vectors (IOVs) of consumer groups, moved by compare-and-set alone.

Pure state. Source: seed 001, "Producer IDs and state groups"; DESIGN.md calls the result
"offsets with outputs": no gap and no overlap, whoever commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from ..journal.control import TopicPartition
from ..journal.errors import OffsetsPendingError
from ..journal.position import Place, Position
from ..journal.records import OffsetStep
from ..journal.txid import TxId
from .commands import GroupOffsets
from .metadata import Transaction


class Verdict(Enum):
    """Whether a transaction's input offsets may take effect now."""

    EQUAL = auto()
    """Every `from` is the committed value."""
    WAIT = auto()
    """A `from` is still to come, from an earlier undecided transaction of the same producer."""
    CONFLICT = auto()
    """A `from` is neither: somebody else committed, or an earlier transaction was aborted."""


@dataclass(slots=True)
class _Group:
    offsets: dict[TopicPartition, Position] = field(default_factory=dict)
    last_commit: TxId | None = None
    commit_sequence: int | None = None
    held: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """BEGINs of the undecided transactions that would move a partition's offset."""


class CommittedOffsets:
    """The IOVs of all consumer groups bound to one transaction group's journal partition."""

    def __init__(self) -> None:
        """Start with none."""
        self._groups: dict[str, _Group] = {}

    def groups(self) -> list[str]:
        """Groups that have committed offsets."""
        return [name for name, group in self._groups.items() if group.last_commit is not None]

    def committed(self, group: str) -> GroupOffsets:
        """A group's whole IOV as it stands, pending transactions or not."""
        state = self._groups.get(group)
        if state is None:
            return GroupOffsets({})
        return GroupOffsets(dict(state.offsets), state.last_commit, state.commit_sequence)

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None) -> GroupOffsets:
        """A group's IOV, of some partitions or all.

        Raises:
            OffsetsPendingError: a pending transaction may still move one of them. (Seed 001,
                "Producer IDs and state groups": an offset fetch of such a group is an error.)
        """
        state = self._groups.get(group)
        if state is None:
            return GroupOffsets({})
        wanted = set(state.offsets) | set(state.held) if partitions is None else set(partitions)
        for partition in sorted(wanted):
            if state.held.get(partition):
                raise OffsetsPendingError(
                    f"a pending transaction holds the offset of {partition[0]}[{partition[1]}]"
                    f" for group {group!r}; it ends by commit, abort or its timeout"
                )
        offsets = {p: o for p, o in state.offsets.items() if p in wanted}
        return GroupOffsets(offsets, state.last_commit, state.commit_sequence)

    def hold(self, begin: int, group: str, steps: Iterable[OffsetStep]) -> None:
        """A transaction would move these offsets."""
        held = self._groups.setdefault(group, _Group()).held
        for step in steps:
            held.setdefault((step.topic, step.partition), set()).add(begin)

    def release(self, begin: int, offsets: Mapping[str, Mapping[TopicPartition, object]]) -> None:
        """A transaction is decided and holds its offsets no longer."""
        for group, partitions in offsets.items():
            held = self._groups[group].held
            for partition in partitions:
                held[partition].discard(begin)
                if not held[partition]:
                    del held[partition]

    def evaluate(self, transaction: Transaction, open_now: Mapping[int, Transaction]) -> Verdict:
        """Compare each step's `from` with what is committed.

        A commit waits only for a lower TxId of its own producer, so there are no cycles, and no
        producer waits for another.

        Args:
            transaction: the one to commit.
            open_now: undecided transactions of the same producer.
        """
        verdict = Verdict.EQUAL
        for group, steps in transaction.offsets.items():
            state = self._groups[group]
            for partition, step in steps.items():
                position = state.offsets.get(partition)
                if (position.place if position else None) == step.from_place:
                    continue
                if not self._is_to_come(step.from_place, group, partition, transaction, open_now):
                    return Verdict.CONFLICT
                verdict = Verdict.WAIT
        return verdict

    @staticmethod
    def _is_to_come(
        place: Place | None,
        group: str,
        partition: TopicPartition,
        transaction: Transaction,
        open_now: Mapping[int, Transaction],
    ) -> bool:
        for begin, earlier in open_now.items():
            if begin >= transaction.begin:
                continue
            step = earlier.offsets.get(group, {}).get(partition)
            if step is not None and step.to.place == place:
                return True
        return False

    def commit(self, group: str, steps: Iterable[OffsetStep], txid: TxId, sequence: int) -> None:
        """Let a committed transaction's steps take effect."""
        state = self._groups.setdefault(group, _Group())
        for step in steps:
            state.offsets[step.topic, step.partition] = step.to
        state.last_commit, state.commit_sequence = txid, sequence
