"""The commands that a coordinator takes and its replies: the vocabulary of the shard.

Source: PIP-31, "Wire Protocol Changes" (CommandNewTxn, CommandAddPartitionToTxn, CommandEndTxn …)
and Transactional Messaging in Kafka, "Transaction flow". `docs/protocol.md` maps each to its
origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Final, TypeAlias

from ...journal.acks import Acks
from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import LogtxError
from ...journal.modes import Mode, Phase
from ...journal.position import Position
from ...journal.records.types import AbortReason, OffsetStep, PointerStep
from ...journal.state import State
from ...journal.txid import TxId
from ...journal.value import value
from .queues import (
    Acknowledge,
    AckResults,
    Acquire,
    Attach,
    Attached,
    DeleteSubscription,
    DescribeSubscriptions,
    Leases,
    ResetSubscription,
    SubscriptionsPage,
)

__all__ = [  # beside its own
    "AckResults",
    "Acknowledge",
    "Acquire",
    "Attach",
    "Attached",
    "DeleteSubscription",
    "DescribeSubscriptions",
    "Leases",
    "ResetSubscription",
    "SubscriptionsPage",
]

PAGE_MAX: Final = 1_000
"""Most entries of one answer to a listing. More would not stay below the limit of 4 MiB a
message; fewer take more requests."""


class Action(StrEnum):
    """How a transaction is to end. Source: PIP-31, "TxnAction"."""

    COMMIT = "commit"
    ABORT = "abort"


@value(frozen=True, slots=True)
class SessionId:
    """Identifies the session that asks: a producer's name, generation and client instance."""

    producer_id: str
    generation: int
    nonce: int
    """Random 63 bits of the client instance."""


@value(frozen=True, slots=True, kw_only=True)
class Connect:
    """Begin or resume the session of a producer: the first message of a stream."""

    producer_id: str
    nonce: int
    """Random 63 bits of the client instance."""
    generation: int | None = None
    """None: the coordinator assigns the next generation and fences the one before.

    For a transaction key: the last epoch that this client was given, -1 before the first.
    """
    owner: str = "default"
    """Owner whose transaction keys the client may use. The field is not sent."""


@value(frozen=True, slots=True, kw_only=True)
class Begin:
    """Open a transaction. A retry with the same request id gets the same TxId."""

    session: SessionId
    request_id: int
    answered_below: int
    """The client has the answers to all its requests with an id below this number."""
    timeout_ms: int
    """How long the transaction may stay open."""
    partitions: tuple[TopicPartition, ...] = ()


@value(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Register data partitions, so that they get a marker even if the producer dies."""

    txid: TxId
    partitions: tuple[TopicPartition, ...]
    session: SessionId | None = None
    """None for a branch, which knows the TxId and has no session."""
    first_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    """First offsets that the transaction wrote, where known. For the retention guard."""


@value(frozen=True, slots=True, kw_only=True)
class AddOffsets:
    """Make a consumer group's input offsets part of a transaction."""

    session: SessionId
    txid: TxId
    group: str
    steps: tuple[OffsetStep, ...]


@value(frozen=True, slots=True, kw_only=True)
class AddAcks:
    """Acknowledge messages of a subscription in a transaction.

    Source: PIP-31, "Acknowledgements in Transactions".
    """

    session: SessionId
    txid: TxId
    group: str
    acks: tuple[Acks, ...]
    delay_ms: int = 0
    """How long nobody gets them if the transaction aborts."""
    era: int = 0
    """The era of the subscription in which they were given out."""


@value(frozen=True, slots=True, kw_only=True)
class ExtendTransaction:
    """Begin a transaction's timeout anew, because the work for it goes on."""

    session: SessionId
    txid: TxId


@value(frozen=True, slots=True, kw_only=True)
class AddWrites:
    """Name a part of what accepted branches wrote, before the commit: it can't name all at once.

    A part may be sent again. It takes effect with the commit, which must know of all parts.
    """

    session: SessionId
    txid: TxId
    part: int
    """0 for the transaction's first part, and so on: each when the one before was answered."""
    writes: Mapping[TopicPartition, tuple[BranchRange, ...]]
    """Data partition → what branches wrote there that neither another part nor the commit names."""


@value(frozen=True, slots=True, kw_only=True)
class End:
    """Commit or abort a transaction."""

    session: SessionId
    txid: TxId
    action: Action
    writes: Mapping[TopicPartition, tuple[BranchRange, ...]]
    """Every data partition written to → what each accepted branch wrote there.

    A partition without accepted records has an empty tuple. It still gets a marker.
    """
    parts: int = 0
    """Number of the parts (`AddWrites`) that name the rest; the coordinator must have them all."""
    main_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Ends of the main partitions of the sidecars that it names, told after it came. Not part of
    the
    request: the coordinator asks for them before it lets the shard decide."""


@value(frozen=True, slots=True, kw_only=True)
class GetOutcome:
    """Ask for a transaction's state."""

    txid: TxId
    until_finished: bool = False
    """Whether the answer of a decided transaction may wait until it is finished. It does not wait
    for ever: one that is not finished is answered as it is, and to be asked for again."""


@value(frozen=True, slots=True, kw_only=True)
class FetchOffsets:
    """Ask for a consumer group's committed IOV."""

    group: str
    partitions: tuple[TopicPartition, ...] | None = None
    """None: all that the group has committed."""


@value(frozen=True, slots=True, kw_only=True)
class ClaimOffsets:
    """Take input partitions of a consumer group over from the consumer that had them before.

    Open transactions that would move their offsets are aborted. A retry is known by its claimant.
    """

    group: str
    partitions: tuple[TopicPartition, ...]
    claimant: int
    """Random 63 bits of this attempt, the same in its retries."""
    expected: Mapping[TopicPartition, int] | None = None
    """Partition → number of the claim that it must have now. One that is not named must have none.

    None: the claim is unconditional and wins.
    """


@value(frozen=True, slots=True, kw_only=True)
class BindGroup:
    """Tie a consumer group to the transaction group that commits its offsets, once for ever."""

    group: str
    transaction_group: str | None
    """None: only ask which one it is bound to."""


@value(frozen=True, slots=True, kw_only=True)
class ListTransactions:
    """Ask for the unfinished transactions, oldest first, a page at a time."""

    states: tuple[State, ...] = ()
    """Only transactions in one of these states; empty: in any."""
    age_min_ms: int = 0
    """Only transactions that began at least this long ago."""
    producer_id: str = ""
    """Only of this producer id, or of this ``transactional.id`` in any group; empty: of any."""
    topic: str = ""
    """Only transactions with a registered partition of this topic; empty: of any."""
    after: int = -1
    """Offset of the last BEGIN on the page before; -1 for the first page."""
    limit: int = PAGE_MAX
    """Most transactions in the answer; at most `PAGE_MAX`."""


@value(frozen=True, slots=True, kw_only=True)
class ForgetProducer:
    """Forget a producer that nobody uses, on an operator's request. A repeat is a success."""

    producer_id: str


@value(frozen=True, slots=True, kw_only=True)
class ForgetGroup:
    """Forget a consumer group's offsets and claims, on an operator's request."""

    group: str
    topics: tuple[str, ...] = ()
    """Only those in these topics; empty: all."""


@value(frozen=True, slots=True, kw_only=True)
class UnbindGroup:
    """End a consumer group's binding, on an operator's request, after `ForgetGroup`."""

    group: str


@value(frozen=True, slots=True, kw_only=True)
class AbortTransaction:
    """Abort a transaction on an operator's request, without its producer's session."""

    txid: TxId
    reason: AbortReason = AbortReason.OPERATOR
    """Other values are for aborts that the coordinator starts itself; the field is not sent."""


@value(frozen=True, slots=True, kw_only=True)
class ListKeys:
    """Ask for the transaction keys by name, a page at a time. Source: Transaction keys, "Admin
    API".
    """

    after: str = ""
    """Name of the last key on the page before; empty for the first page."""
    limit: int = PAGE_MAX
    """Most keys in the answer; at most `PAGE_MAX`."""


@value(frozen=True, slots=True, kw_only=True)
class GetKey:
    """Ask for one transaction key. Source: Transaction keys, "Admin API Endpoints"."""

    name: str
    """``&owner&key``, here and below."""


@value(frozen=True, slots=True, kw_only=True)
class DeleteKey:
    """Delete a transaction key and abort its open transaction. Its epochs stay used up.

    Source: Transaction keys, "Admin API Endpoints".
    """

    name: str


@value(frozen=True, slots=True, kw_only=True)
class SetTopicMode:
    """Begin to switch a topic's mode, on an operator's request. To be asked again until it is done.

    The topic must be bound to the transaction group whose journal partition is asked.
    """

    topic: str
    mode: Mode
    without_records: bool = False
    """Writes no mode records to its partitions: it takes no writes any more, or nobody reads it."""


@value(frozen=True, slots=True, kw_only=True)
class SetTopicRule:
    """Set or remove the rule for topics that are created later and whose names begin so.

    Any coordinator takes it, whatever it serves: see `journal.mode_rules`.
    """

    rule: str
    """How the names begin, and ``*``."""
    mode: Mode | None
    """None removes the rule."""
    transaction_group: str = ""
    """The one whose transactions are placed there; empty without METADATA."""


@value(frozen=True, slots=True, kw_only=True)
class OpenSidecars:
    """Ask for the sidecars of topics, which are created where they are missing.

    Any coordinator takes it, whatever it serves: see `journal.sidecar`. Answered by `Done`.
    """

    topics: tuple[str, ...]
    """The main topics."""


@value(frozen=True, slots=True, kw_only=True)
class DescribeSidecars:
    """Ask what the commits of a journal partition need of sidecars."""

    main_starts: Mapping[TopicPartition, int]
    """Sidecar partition → offset at which its main partition's log starts."""


@value(frozen=True, slots=True, kw_only=True)
class DescribeTopics:
    """Ask for the modes of topics whose home the journal partition is."""

    topics: tuple[str, ...] = ()
    """Only these; empty: all that were ever switched."""
    after: str = ""
    """Name of the last topic on the page before; empty for the first page."""


Command: TypeAlias = (
    Connect
    | Begin
    | AddPartitions
    | AddOffsets
    | ExtendTransaction
    | AddWrites
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
    | ForgetProducer
    | ForgetGroup
    | UnbindGroup
    | SetTopicMode
    | DescribeTopics
    | SetTopicRule
    | OpenSidecars
    | DescribeSidecars
    | AddAcks
    | Attach
    | Acquire
    | Acknowledge
    | DescribeSubscriptions
    | ResetSubscription
    | DeleteSubscription
)


@value(frozen=True, slots=True, kw_only=True)
class Connected:
    """Answer to `Connect`."""

    generation: int
    """The generation that the session speaks for; a transaction key's epoch."""
    partition: int
    """Journal partition."""
    incarnation: int
    epoch: int
    """Epoch under which the coordinator serves the journal partition."""


@value(frozen=True, slots=True)
class Began:
    """Answer to `Begin`."""

    txid: TxId


@value(frozen=True, slots=True)
class Done:
    """Answer to `AddPartitions`, `AddOffsets`, `AddWrites`, `ExtendTransaction`, `DeleteKey`, and
    to requests to forget."""


@value(frozen=True, slots=True)
class Outcome:
    """Answer to `End`, `GetOutcome` and `AbortTransaction`."""

    txid: TxId
    state: State
    commit_sequence: int | None = None
    """Journal offset of the decision; None before it, or if the state is unknown."""
    reason: AbortReason | None = None
    """Why it is being aborted, in answers to `GetOutcome`; None if that is not known any more."""


@value(frozen=True, slots=True)
class Decided:
    """Told on a session's stream without having been asked for: a transaction is decided."""

    txid: TxId
    state: State
    reason: AbortReason | None = None
    """Why it is being aborted; None if it is not, or if this version does not know the reason."""


@value(frozen=True, slots=True)
class GroupOffsets:
    """Answer to `FetchOffsets`."""

    offsets: Mapping[TopicPartition, Position]
    last_commit: TxId | None = None
    """The transaction that committed the latest step; None if the group never committed."""
    commit_sequence: int | None = None
    """Commit sequence of that transaction."""


@value(frozen=True, slots=True)
class Claimed:
    """Answer to `ClaimOffsets`."""

    number: int
    """Number of the claim. It goes into the steps made under the claim, and into `expected`."""
    offsets: GroupOffsets
    """The committed IOV of exactly the claimed partitions; without those never committed.

    No transaction that was open at the claim and would have moved it can be committed any more.
    """


@value(frozen=True, slots=True)
class Binding:
    """Answer to `BindGroup`."""

    transaction_group: str | None
    """The transaction group that it is bound to; None: not bound yet."""


@value(frozen=True, slots=True, kw_only=True)
class TransactionInfo:
    """One unfinished transaction."""

    txid: TxId
    state: State
    producer_id: str
    generation: int
    started_ms: int
    """Wall clock, milliseconds since 1970."""
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]
    """Consumer groups whose offsets it moves."""
    age_ms: int
    """Time since it began, by the coordinator's own clock."""
    reason: AbortReason | None = None
    """Why it is being aborted."""
    placing: bool = False
    """Whether it is decided, and waits for nothing but places in the journal."""


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
    """Time since then, by the coordinator's own clock."""
    transactions: tuple[TxId, ...]
    """Its unfinished transactions: at most one is open, older ones wait for their markers."""


@value(frozen=True, slots=True)
class Keys:
    """Answer to `ListKeys`."""

    keys: tuple[KeyInfo, ...]
    more: bool = False
    """There is a further page, after the last of these."""


@value(frozen=True, slots=True, kw_only=True)
class TopicModeInfo:
    """The mode of one topic, as its home has it."""

    topic: str
    topic_id: str
    phase: Phase
    mode_offset: int
    """Journal offset of the MODE record with which its latest switch began; -1: it had none."""
    since: Mapping[int, int] = field(default_factory=dict)
    """Partition → offset of its mode record."""
    published: bool = False
    """Whether readers are told of it: the topic `__transaction_topics` has it."""
    waiting: int = 0
    """Number of (transaction, partition) that are decided and not placed."""
    last: Mapping[int, int] = field(default_factory=dict)
    """Partition → its last place. Told only where topics are asked for by name."""


@value(frozen=True, slots=True)
class TopicModes:
    """Answer to `SetTopicMode`, `SetTopicRule` and `DescribeTopics`."""

    topics: tuple[TopicModeInfo, ...]
    """By name."""
    more: bool = False
    """There is a further page, after the last of these."""


@value(frozen=True, slots=True, kw_only=True)
class SidecarNeeds:
    """Answer to `DescribeSidecars`."""

    undecided: int
    """All that was begun below is decided. The transaction that began here is not, unless it is
    `end`."""
    end: int
    """All that was begun before the question lies below it."""
    incarnation: int
    steps: tuple[PointerStep, ...] = ()
    """Of each partition that was asked for, and of which something is needed: see
    `JournalView.needed`."""


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
    | TopicModes
    | SidecarNeeds
    | Attached
    | Leases
    | AckResults
    | SubscriptionsPage
    | LogtxError
)
