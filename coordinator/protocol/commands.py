"""What a coordinator can be asked, and what it answers: the vocabulary of the shard.

Source: PIP-31, "Wire Protocol Changes" (CommandNewTxn, CommandAddPartitionToTxn, CommandEndTxn …)
and Transactional Messaging in Kafka, "Transaction flow". `docs/protocol.md` maps each to its
origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Final, TypeAlias

from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import LogtxError
from ...journal.position import Position
from ...journal.records.types import AbortReason, OffsetStep
from ...journal.state import State
from ...journal.txid import TxId
from ...journal.value import value

PAGE_MAX: Final = 1_000
"""Most entries of one answer to a listing: such an answer stays below gRPC's 4 MiB."""


class Action(StrEnum):
    """How a transaction is to end. Source: PIP-31, "TxnAction"."""

    COMMIT = "commit"
    ABORT = "abort"


@value(frozen=True, slots=True)
class SessionId:
    """Who asks: a producer's name, its fencing epoch and its instance."""

    producer_id: str
    generation: int
    nonce: int
    """Random 63 bits of the client instance."""


@value(frozen=True, slots=True, kw_only=True)
class Connect:
    """Begin or resume the session of a producer; the first message of a stream."""

    producer_id: str
    nonce: int
    generation: int | None = None
    """None: the coordinator assigns the next and fences whoever was before.

    Of a transaction key the last epoch that this client was given, -1 before the first.
    """
    owner: str = "default"


@value(frozen=True, slots=True, kw_only=True)
class Begin:
    """Open a transaction; a retry with the same request id gets the same TxId."""

    session: SessionId
    request_id: int
    answered_below: int
    """The client has the answers of its requests below this number."""
    timeout_ms: int
    partitions: tuple[TopicPartition, ...] = ()


@value(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Register data partitions, so that they get a marker whatever becomes of the producer."""

    txid: TxId
    partitions: tuple[TopicPartition, ...]
    session: SessionId | None = None
    """None for a branch, which knows the TxId and has no session."""
    first_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    """First offset that the transaction wrote, where that is known: the retention guard's."""


@value(frozen=True, slots=True, kw_only=True)
class AddOffsets:
    """Make a consumer group's input offsets part of a transaction."""

    session: SessionId
    txid: TxId
    group: str
    steps: tuple[OffsetStep, ...]


@value(frozen=True, slots=True, kw_only=True)
class End:
    """Commit or abort."""

    session: SessionId
    txid: TxId
    action: Action
    writes: Mapping[TopicPartition, tuple[BranchRange, ...]]
    """Every data partition written to, with what each accepted branch wrote there.

    A partition without accepted records has an empty tuple; it gets a marker all the same.
    """


@value(frozen=True, slots=True, kw_only=True)
class GetOutcome:
    """Ask for a transaction's state."""

    txid: TxId


@value(frozen=True, slots=True, kw_only=True)
class FetchOffsets:
    """Ask for a consumer group's committed IOV."""

    group: str
    partitions: tuple[TopicPartition, ...] | None = None
    """None: all that the group has committed."""


@value(frozen=True, slots=True, kw_only=True)
class ClaimOffsets:
    """Take input partitions of a consumer group over from whoever consumed them before.

    What is open and would move their offsets is aborted. A retry is known by its claimant.
    """

    group: str
    partitions: tuple[TopicPartition, ...]
    claimant: int
    """Random 63 bits of this attempt, the same in its retries."""
    expected: Mapping[TopicPartition, int] | None = None
    """Each partition's claim must have this number now, and one that is not named none at all.

    None: this claim wins, whoever had them.
    """


@value(frozen=True, slots=True, kw_only=True)
class BindGroup:
    """Tie a consumer group to the transaction group that commits its offsets, once for ever."""

    group: str
    transaction_group: str | None
    """None only asks."""


@value(frozen=True, slots=True, kw_only=True)
class ListTransactions:
    """Ask for the transactions that are not finished, oldest first, a page at a time."""

    states: tuple[State, ...] = ()
    """Those in one of these; empty: in any."""
    age_min_ms: int = 0
    """Begun at least so long ago."""
    producer_id: str = ""
    """Of this producer; empty: of any."""
    topic: str = ""
    """Registered with a partition of this topic; empty: any."""
    after: int = -1
    """Offset of the last BEGIN of the page before."""
    limit: int = PAGE_MAX


@value(frozen=True, slots=True, kw_only=True)
class AbortTransaction:
    """Abort a transaction on an operator's word, without its producer's session."""

    txid: TxId
    reason: AbortReason = AbortReason.OPERATOR
    """Another where the coordinator asks itself; it does not cross the wire."""


@value(frozen=True, slots=True, kw_only=True)
class ListKeys:
    """Ask for the transaction keys by name, a page at a time. Source: Transaction keys, "Admin
    API".
    """

    after: str = ""
    """Name of the last key of the page before."""
    limit: int = PAGE_MAX


@value(frozen=True, slots=True, kw_only=True)
class GetKey:
    """Ask for one transaction key. Source: Transaction keys, "Admin API Endpoints"."""

    name: str
    """``&owner&key``, here and below."""


@value(frozen=True, slots=True, kw_only=True)
class DeleteKey:
    """Delete a transaction key and abort what it has open; its epochs stay used up.

    Source: Transaction keys, "Admin API Endpoints".
    """

    name: str


Command: TypeAlias = (
    Connect
    | Begin
    | AddPartitions
    | AddOffsets
    | End
    | GetOutcome
    | FetchOffsets
    | ClaimOffsets
    | BindGroup
    | ListTransactions
    | AbortTransaction
    | ListKeys
    | GetKey
    | DeleteKey
)


@value(frozen=True, slots=True, kw_only=True)
class Connected:
    """Answer to `Connect`."""

    generation: int
    partition: int
    """Journal partition."""
    incarnation: int
    epoch: int
    """Epoch of the coordinator."""


@value(frozen=True, slots=True)
class Began:
    """Answer to `Begin`."""

    txid: TxId


@value(frozen=True, slots=True)
class Done:
    """Answer to `AddPartitions`, `AddOffsets` and `DeleteKey`."""


@value(frozen=True, slots=True)
class Outcome:
    """Answer to `End`, `GetOutcome` and `AbortTransaction`."""

    txid: TxId
    state: State
    commit_sequence: int | None = None
    """Journal offset of the decision; None while there is none."""


@value(frozen=True, slots=True)
class GroupOffsets:
    """Answer to `FetchOffsets`."""

    offsets: Mapping[TopicPartition, Position]
    last_commit: TxId | None = None
    """The transaction that committed this IOV; None where the group never committed."""
    commit_sequence: int | None = None


@value(frozen=True, slots=True)
class Claimed:
    """Answer to `ClaimOffsets`."""

    number: int
    """Of the claim: goes into the steps of what is consumed under it, and into `expected`."""
    offsets: GroupOffsets
    """The committed IOV of exactly those partitions, where they ever were committed.

    Nothing that was open at the claim and would have moved it can be committed any more.
    """


@value(frozen=True, slots=True)
class Binding:
    """Answer to `BindGroup`."""

    transaction_group: str | None
    """None: not bound yet."""


@value(frozen=True, slots=True, kw_only=True)
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
    age_ms: int
    """By the coordinator's own clock."""
    reason: AbortReason | None = None
    """Why it is being aborted."""


@value(frozen=True, slots=True)
class Transactions:
    """Answer to `ListTransactions`."""

    transactions: tuple[TransactionInfo, ...]
    more: bool = False
    """There is a further page, after the last of these."""


@value(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """Answer to `GetKey`."""

    name: str
    epoch: int
    connected_ms: int
    """When the connection of this epoch was made: wall clock, ms since 1970; 0 = unknown."""
    age_ms: int
    """Since then, by the coordinator's own clock."""
    transactions: tuple[TxId, ...]
    """Its unfinished transactions: at most one is open, older ones wait for their markers."""


@value(frozen=True, slots=True)
class Keys:
    """Answer to `ListKeys`."""

    keys: tuple[KeyInfo, ...]
    more: bool = False
    """There is a further page, after the last of these."""


Reply: TypeAlias = (
    Connected
    | Began
    | Done
    | Outcome
    | GroupOffsets
    | Claimed
    | Binding
    | Transactions
    | KeyInfo
    | Keys
    | LogtxError
)
