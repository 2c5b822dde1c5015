"""The transaction metadata store: every transaction of one journal partition, and its status.

Pure state. An update names the status that it expects, so that a request can never move a
transaction that another request moved first.

Source: PIP-31, "TransactionMetadataStore".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import (
    CoordinatorBusyError,
    OffsetsConflictError,
    RequestTooLargeError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionStateError,
    UnknownTransactionError,
)
from ...journal.records.types import (
    UNKNOWN_OFFSET,
    AbortReason,
    DataPartition,
    OffsetStep,
    PartitionWrites,
    StepIdentity,
)
from ...journal.state import VALID_PREVIOUS, State
from ...journal.txid import TxId
from ..protocol.commands import Outcome
from ..protocol.reasons import because
from .ranges import PackedRanges

OUTCOMES_MAX: Final = 100_000
"""Finished transactions whose outcome is kept in memory; older ones are read from the journal.

More takes memory, about 25 MB at 100,000; fewer makes late questions scan the journal.
"""

_OPEN: Final = State.OPEN
_COMMITTED: Final = State.COMMITTED
# Looked up once: Python 3.11 takes longer for a member of an enumeration than for a whole call, and
# loading a journal would do it ten times for each transaction.
_FINISHED: Final = frozenset(state for state in State if state.finished)


@dataclass(slots=True, kw_only=True)
class TransactionMetadata:
    """What the coordinator knows about one unfinished transaction."""

    txid: TxId
    producer_id: str
    generation: int
    timeout_ms: int
    started_ms: int
    """Wall clock of the coordinator that began it, milliseconds since 1970."""
    began_ms: int = 0
    """Monotonic ms when it began; 0 if it did under another owner. Volatile."""
    state: State = State.OPEN
    partitions: dict[TopicPartition, DataPartition] = field(default_factory=dict)
    """The data partitions that were registered, or that the commit names."""
    offsets: dict[str, dict[TopicPartition, OffsetStep]] = field(default_factory=dict)
    """Consumer group → its steps; steps that continue each other are merged into one."""
    steps: dict[str, set[StepIdentity]] = field(default_factory=dict)
    """Consumer group → every step as it was sent, so that a repeated one is recognized."""
    commit_sequence: int | None = None
    """Journal offset of the decision."""
    branches: Mapping[TopicPartition, Sequence[BranchRange]] = field(default_factory=dict)
    """Data partition → the records that the commit accepts, by branch. While it is open: those that
    its parts have named so far."""
    parts: int = 0
    """Number of its parts (`AddWrites`); 0 for almost all. With parts, all branches are packed."""
    placed: frozenset[TopicPartition] = frozenset()
    """Those of its partitions that get no marker, once it is decided: a commit is placed there, an
    abort is told by the journal alone. Those that are handed over are among them."""
    handed: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partition → home to which it is handed over, once it is decided."""
    since: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Sidecar partition → end of its main partition that was told before the decision, for each
    with records that the commit accepts. In the main partitions it gets pointers. Empty while it
    is open, and for almost all."""
    reason: AbortReason | None = None
    """Why the transaction is aborted."""
    doomed: AbortReason | None = None
    """Why an open transaction can only be aborted. The journal says so before the decision."""

    @property
    def begin(self) -> int:
        """Offset of the BEGIN record."""
        return self.txid.offset


_Kept = tuple[int, int, bool, int | None, str | None]
"""What is kept of a finished transaction: journal partition, incarnation, whether it is committed,
commit sequence, and the word for why it was aborted.

Numbers and plain text only, whose tuples the garbage collector skips: with 100,000 objects it would
make pauses.
"""


class TransactionMetadataStore:
    """Transactions of one journal partition, by the offset of their BEGIN."""

    def __init__(self) -> None:
        self.open_count = 0
        """Number of transactions in state OPEN."""
        self.added_count = 0
        """Number of ranges that the parts of unfinished transactions have named."""
        self._unfinished: dict[int, TransactionMetadata] = {}
        self._outcomes: OrderedDict[int, _Kept] = OrderedDict()
        """BEGIN → what is kept of it, oldest first."""

    def __iter__(self) -> Iterator[TransactionMetadata]:
        """Yields the unfinished transactions in TxId order."""
        return iter(self._unfinished.values())

    def __len__(self) -> int:
        """Returns the number of unfinished transactions."""
        return len(self._unfinished)

    def new_transaction(self, transaction: TransactionMetadata) -> None:
        """Adds a new transaction, in state OPEN."""
        assert transaction.state is _OPEN
        self._unfinished[transaction.begin] = transaction
        self.open_count += 1

    def restore(self, transaction: TransactionMetadata) -> None:
        """Adds an unfinished transaction in any state. Must be called in TxId order."""
        assert not transaction.state.finished
        self._unfinished[transaction.begin] = transaction
        self.open_count += transaction.state is State.OPEN
        self.added_count += added_count(transaction)

    def get(self, begin: int) -> TransactionMetadata | None:
        """Returns an unfinished transaction, or None."""
        return self._unfinished.get(begin)

    def outcome(self, begin: int) -> Outcome | None:
        """Returns the outcome of an unfinished or lately finished transaction, else None."""
        transaction = self._unfinished.get(begin)
        if transaction is None:
            kept = self._outcomes.get(begin)
            if kept is None:
                return None
            partition, incarnation, committed, sequence, _ = kept
            state = State.COMMITTED if committed else State.ABORTED
            return Outcome(TxId(partition, incarnation, begin), state, sequence)
        return Outcome(transaction.txid, transaction.state, transaction.commit_sequence)

    def require_open(self, txid: TxId) -> TransactionMetadata:
        """Returns the transaction if it is open.

        Raises:
            UnknownTransactionError: memory has no such transaction.
            TransactionAbortedError, TransactionCommittedError: the transaction is decided.
        """
        transaction = self._unfinished.get(txid.offset)
        if transaction is not None and transaction.state is State.OPEN:
            return transaction
        outcome = self.outcome(txid.offset)
        if outcome is None:
            raise UnknownTransactionError(f"no transaction {txid} is known here")
        if outcome.state.commits:
            raise TransactionCommittedError(f"transaction {txid} is committed")
        reason = self.reason(txid.offset)
        raise TransactionAbortedError(f"transaction {txid} was aborted{because(reason)}")

    def reason(self, begin: int) -> AbortReason | None:
        """Returns why an unfinished or lately finished transaction was aborted; None if it was not,
        or if that is not known."""
        transaction = self._unfinished.get(begin)
        if transaction is not None:
            return transaction.reason
        word = self._outcomes[begin][-1] if begin in self._outcomes else None
        return None if word is None else AbortReason(word)

    def add_produced_partitions(self, begin: int, partitions: Iterable[DataPartition]) -> None:
        """Adds data partitions. Those that it already has keep the topic id they came with.

        The lowest of a partition's first offsets counts: a transaction may have several writers.
        """
        known = self._unfinished[begin].partitions
        for partition in partitions:
            key = partition.topic, partition.partition
            before = known.setdefault(key, partition)
            if before is not partition and _is_earlier(partition.first_offset, before.first_offset):
                known[key] = replace(before, first_offset=partition.first_offset)

    def add_offsets(self, begin: int, group: str, steps: Iterable[OffsetStep]) -> None:
        """Adds input offsets. A step that continues an earlier one extends it."""
        transaction, sent = self._unfinished[begin], tuple(steps)
        offsets = transaction.offsets.get(group)
        if offsets is None:
            offsets = transaction.offsets[group] = {}
            transaction.steps[group] = set()
        known = transaction.steps[group]
        merged, identities = _merge(offsets, known, sent)
        offsets |= merged
        known |= identities

    def add_writes(self, begin: int, writes: Iterable[PartitionWrites]) -> None:
        """Adds what branches wrote, beside what was named before."""
        writes, transaction = tuple(writes), self._unfinished[begin]
        self.add_produced_partitions(begin, [w.partition for w in writes])
        branches = transaction.branches
        assert isinstance(branches, dict)
        for each in writes:
            known = branches.get(each.partition.key)
            if known is None:
                known = branches[each.partition.key] = PackedRanges()
            known.extend(each.branches)
            self.added_count += len(each.branches)

    def forget_writes(self, begin: int) -> None:
        """Drops what the parts of an aborted transaction have named."""
        transaction = self._unfinished[begin]
        self.added_count -= added_count(transaction)
        transaction.branches, transaction.parts = {}, 0

    def update_status(self, begin: int, new: State, expected: State) -> TransactionMetadata:
        """Moves a transaction from `expected` to `new`, and returns it.

        Raises:
            TransactionStateError: it is not in state `expected`, or `new` may not follow that.
        """
        transaction = self._unfinished.get(begin)
        current = State.UNKNOWN if transaction is None else transaction.state
        if transaction is None or current is not expected or expected not in VALID_PREVIOUS[new]:
            raise TransactionStateError(
                f"transaction at {begin} is {current}, not {expected}, and can't become {new}"
            )
        self.open_count -= current is _OPEN
        transaction.state = new
        if new in _FINISHED:
            del self._unfinished[begin]
            if transaction.parts:
                self.added_count -= added_count(transaction)
            txid, committed = transaction.txid, new is _COMMITTED
            sequence = transaction.commit_sequence
            word = None if transaction.reason is None else transaction.reason.value
            self._outcomes[begin] = (txid.partition, txid.incarnation, committed, sequence, word)
            if len(self._outcomes) > OUTCOMES_MAX:
                self._outcomes.popitem(last=False)
        return transaction


def added_count(transaction: TransactionMetadata) -> int:
    """Returns the number of ranges that a transaction with parts holds; 0 without parts."""
    return sum(map(len, transaction.branches.values())) if transaction.parts else 0


def check_added(ranges_max: int, transaction: TransactionMetadata, count: int, added: int) -> None:
    """Refuses a part for which there is no room in memory.

    Args:
        ranges_max: most ranges that all unfinished transactions may have added.
        transaction: to which they are to be added.
        count: number of ranges of the part.
        added: number of ranges that all of them have added.

    Raises:
        RequestTooLargeError: the transaction alone exceeds the limit.
        CoordinatorBusyError: it does so together with others, which will be finished.
    """
    own = added_count(transaction) + count
    if own > ranges_max:
        raise RequestTooLargeError(
            f"transaction {transaction.txid} would name {own} ranges (one branch in one partition),"
            f" and {ranges_max} are allowed (--max-added-ranges): write with fewer tasks, or let"
            " each write to fewer partitions (in Spark: coalesce or repartition)"
        )
    if added + count > ranges_max:
        raise CoordinatorBusyError(
            f"unfinished transactions have named {added} ranges of branches, and {ranges_max} have"
            " room"
        )


def check_parts(transaction: TransactionMetadata, told: int) -> None:
    """Refuses a commit that does not know of exactly the transaction's parts.

    Raises:
        TransactionStateError: it does not.
    """
    if told != transaction.parts:
        raise TransactionStateError(
            f"the commit of transaction {transaction.txid} speaks of {told} parts of what was"
            f" written, and {transaction.parts} are there: abort, and redo its work"
        )


def earlier_starts(
    known: Mapping[TopicPartition, DataPartition], told: Mapping[TopicPartition, int]
) -> Iterator[DataPartition]:
    """Yields a transaction's partitions whose first offset is lower than was known."""
    for key, first_offset in told.items():
        before = known.get(key)
        if before is not None and _is_earlier(first_offset, before.first_offset):
            yield replace(before, first_offset=first_offset)


def _is_earlier(told: int, known: int) -> bool:
    return told != UNKNOWN_OFFSET and (known == UNKNOWN_OFFSET or told < known)


def _identity(step: OffsetStep) -> StepIdentity:
    return step.topic, step.partition, step.from_place, step.to.place


def merge_steps(
    transaction: TransactionMetadata, group: str, steps: Iterable[OffsetStep]
) -> dict[TopicPartition, OffsetStep]:
    """Returns the steps to set so that `steps` take effect after the transaction's own steps.

    A step that was sent before changes nothing: after a broken connection a client sends all its
    unanswered requests again, including earlier ones of several steps.

    Raises:
        OffsetsConflictError: a step neither repeats nor continues a known one.
    """
    known = transaction.offsets.get(group, {})
    return _merge(known, transaction.steps.get(group, set()), steps)[0]


def _merge(
    known: Mapping[TopicPartition, OffsetStep],
    sent_before: Set[StepIdentity],
    steps: Iterable[OffsetStep],
) -> tuple[dict[TopicPartition, OffsetStep], set[StepIdentity]]:
    """Returns the steps to set, and the identities of the new ones."""
    sent: set[StepIdentity] = set()
    merged: dict[TopicPartition, OffsetStep] = {}
    for step in steps:
        identity = _identity(step)
        if sent_before and identity in sent_before:
            continue
        count = len(sent)
        sent.add(identity)
        if len(sent) == count:
            continue  # Not asked before: to hash two places takes longer than the rest.
        key = step.topic, step.partition
        before = merged.get(key) or known.get(key)
        if before is None:
            merged[key] = step
        elif before.to.place == step.from_place:
            merged[key] = OffsetStep(step.topic, step.partition, before.from_place, step.to)
        else:
            raise OffsetsConflictError(
                f"offsets of {step.topic}[{step.partition}] go from {step.from_place}, but this"
                f" transaction has them at {before.to.place} already"
            )
    return merged, sent
