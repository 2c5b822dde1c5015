"""What a coordinator can be asked, and what it answers: the vocabulary of the shard.

Source: seed 000, "Wire Protocol Changes" (CommandNewTxn, CommandAddPartitionToTxn,
CommandEndTxn …) and seed 001, "Transaction flow". `docs/protocol.md` maps each to its origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ..journal.control import BranchRange, TopicPartition
from ..journal.errors import LogtxError
from ..journal.position import Position
from ..journal.records import OffsetStep
from ..journal.state import State
from ..journal.txid import TxId


class Action(StrEnum):
    """How a transaction is to end. Source: seed 000, "TxnAction"."""

    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Session:
    """Who asks: a producer's name, its fencing epoch and its instance."""

    producer_id: str
    generation: int
    nonce: int
    """Random 63 bits of the client instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Begin or resume the session of a producer; the first message of a stream."""

    producer_id: str
    nonce: int
    generation: int | None = None
    """None: the coordinator assigns the next and fences whoever was before."""
    owner: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Open a transaction; a retry with the same request id gets the same TxId."""

    session: Session
    request_id: int
    answered_below: int
    """The client has the answers of its requests below this number."""
    timeout_ms: int
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Register data partitions, so that they get a marker whatever becomes of the producer."""

    txid: TxId
    partitions: tuple[TopicPartition, ...]
    session: Session | None = None
    """None for a branch, which knows the TxId and has no session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsets:
    """Make a consumer group's input offsets part of a transaction."""

    session: Session
    txid: TxId
    group: str
    steps: tuple[OffsetStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Commit or abort."""

    session: Session
    txid: TxId
    action: Action
    writes: Mapping[TopicPartition, tuple[BranchRange, ...]]
    """Every data partition written to, with what each accepted branch wrote there.

    A partition without accepted records has an empty tuple; it gets a marker all the same.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOutcome:
    """Ask for a transaction's state."""

    txid: TxId


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOffsets:
    """Ask for a consumer group's committed IOV."""

    group: str
    partitions: tuple[TopicPartition, ...] | None = None
    """None: all that the group has committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindGroup:
    """Tie a consumer group to the transaction group that commits its offsets, once for ever."""

    group: str
    transaction_group: str | None
    """None only asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactions:
    """Ask for the transactions that are not finished."""


Command: TypeAlias = (
    Connect
    | Begin
    | AddPartitions
    | AddOffsets
    | End
    | GetOutcome
    | FetchOffsets
    | BindGroup
    | ListTransactions
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """Answer to `Connect`."""

    generation: int
    partition: int
    """Journal partition."""
    incarnation: int
    epoch: int
    """Epoch of the coordinator."""


@dataclass(frozen=True, slots=True)
class Began:
    """Answer to `Begin`."""

    txid: TxId


@dataclass(frozen=True, slots=True)
class Done:
    """Answer to `AddPartitions` and `AddOffsets`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answer to `End` and `GetOutcome`."""

    txid: TxId
    state: State
    commit_sequence: int | None = None
    """Journal offset of the decision; None while there is none."""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Answer to `FetchOffsets`."""

    offsets: Mapping[TopicPartition, Position]
    last_commit: TxId | None = None
    """The transaction that committed this IOV; None where the group never committed."""
    commit_sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """Answer to `BindGroup`."""

    transaction_group: str | None
    """None: not bound yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionInfo:
    """One transaction that is not finished."""

    txid: TxId
    state: State
    producer_id: str
    generation: int
    started_ms: int
    """Wall clock, milliseconds since 1970."""
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]
    """Consumer groups whose offsets it carries."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """Answer to `ListTransactions`."""

    transactions: tuple[TransactionInfo, ...]


Reply: TypeAlias = (
    Connected | Began | Done | Outcome | GroupOffsets | Binding | Transactions | LogtxError
)
