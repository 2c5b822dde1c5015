"""What the metadata store knows, as values: headers, operations, questions about them. Pure.

The store holds a header for each transaction, and an operation for each run of writes of a branch
in a partition, and for each consumer group's step. `metadata_wire` has their form on the wire.

Source: PIP-471, "Data Model".
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

from ...journal.control import OWN_BRANCH
from ...journal.position import Place, Position
from ...journal.records.types import UNKNOWN_OFFSET, AbortReason
from ...journal.state import State
from ...journal.txid import MAX_OFFSET, TxId
from ...journal.value import value

NO_LIMIT: Final = 0
"""Stands for any number of entries."""


class Index(StrEnum):
    """The secondary indexes."""

    WRITES_BY_SEGMENT = "writes-by-segment"
    ACKS_BY_SEGMENT_SUBSCRIPTION = "acks-by-segment-subscription"
    TXN_BY_DEADLINE = "txn-by-deadline"
    TXN_BY_FINAL_STATE = "txn-by-final-state"


class HeaderState(IntEnum):
    """What is decided of a transaction. Its number is the one on disk and on the wire."""

    OPEN = 0
    COMMITTED = 1
    ABORTED = 2


class OperationKind(IntEnum):
    """What an operation stands for. Its number is the one on disk and on the wire."""

    WRITE = 0
    """A run of writes of one branch to one partition; or, before the decision, that the transaction
    writes there."""
    ACK = 1
    """A step of a consumer group's committed offset in one partition."""


@value(frozen=True, slots=True, kw_only=True)
class Header:
    """What became of one transaction."""

    txid: TxId
    version: int
    """Journal offset of the record that it was made from."""
    state: HeaderState
    finished: bool = False
    """Whether it is decided, and every partition has its marker or place."""
    producer_id: str
    generation: int
    created_ms: int
    timeout_ms: int = 0
    """When it is aborted, milliseconds since 1970, if its producer never asked for more time; 0
    once it is decided."""
    finalized_ms: int = 0
    """When it was decided; 0 before. If only a snapshot told of it: when it was begun."""
    commit_sequence: int | None = None
    """Journal offset of the decision."""
    reason: AbortReason | None = None
    """Why it was aborted."""

    @property
    def known_as(self) -> State:
        """The state of the transaction in the coordinator's words."""
        if self.state is HeaderState.OPEN:
            return State.OPEN
        if self.state is HeaderState.COMMITTED:
            return State.COMMITTED if self.finished else State.COMMITTING
        return State.ABORTED if self.finished else State.ABORTING


@value(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one transaction does in one partition."""

    txid: TxId
    seq: tuple[int, int]
    """(journal offset, index): rises in the order in which the operations came."""
    kind: OperationKind
    topic: str
    partition: int
    topic_id: str = ""
    first_offset: int = UNKNOWN_OFFSET
    """Of a write: first offset of the run; before the decision, as far as it was told."""
    last_offset: int = UNKNOWN_OFFSET
    """Of a write: last offset of the run."""
    count: int = 0
    """Of a write: records in the run. 0: the partition is registered, and nothing is decided."""
    branch: int = OWN_BRANCH
    """Of a write: nonce of the branch."""
    placed: bool = False
    """Of a write: whether it ends by a place, rather than by a marker."""
    place: int | None = None
    """Of a write: where it is delivered; None: nowhere yet, or it ends by a marker. Where the home
    of another journal places it: the offset behind its last record, which is no higher."""
    subscription: str = ""
    """Of an acknowledgement: the consumer group."""
    from_place: Place | None = None
    """Of an acknowledgement: what must be committed before; None: nothing."""
    to: Position | None = None
    """Of an acknowledgement: what is committed then."""


Record: TypeAlias = Header | Operation


# ---- questions ----------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class OfHeader:
    """Asks for the header of a transaction."""

    txid: TxId


@value(frozen=True, slots=True)
class OfOperations:
    """Asks for the operations of a transaction, in their order."""

    txid: TxId


@value(frozen=True, slots=True, kw_only=True)
class OfWrites:
    """Asks for the writes in a partition, by place; what has no place comes last."""

    topic: str
    partition: int
    from_place: int = 0
    to_place: int = MAX_OFFSET
    """Places at and above it are left out; at its default nothing is, nor what has no place."""


@value(frozen=True, slots=True, kw_only=True)
class OfAcks:
    """Asks for the steps of consumer groups in a partition."""

    topic: str
    partition: int
    subscription: str | None = None
    """The consumer group; None: all."""


@value(frozen=True, slots=True, kw_only=True)
class OfDeadlines:
    """Asks for the open transactions, by deadline."""

    before_ms: int = MAX_OFFSET
    """Deadlines at and above it are left out."""


@value(frozen=True, slots=True, kw_only=True)
class OfFinalState:
    """Asks for the decided transactions of one state, finished ones behind the others, by time."""

    state: HeaderState
    from_ms: int = 0
    to_ms: int = MAX_OFFSET
    """Those that were decided then and later are left out."""


Question: TypeAlias = OfHeader | OfOperations | OfWrites | OfAcks | OfDeadlines | OfFinalState


@value(frozen=True, slots=True)
class Found:
    """A record that is there, or one that went."""

    record: Record
    """Of one that went, what its key tells: the other fields have their defaults."""
    deleted: bool = False


READY: Final = "ready"
"""Comes once in a watch: what was there is told, and changes follow."""


@value(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Up to where a partition is settled, for readers that are not logtx's."""

    max_read_position: int
    """Every offset up to it belongs to no undecided transaction that was registered here."""
    end_offset: int
    """Offset behind the last record, asked for before the journal was read."""
    undecided: int
    """Number of undecided transactions that are registered here."""
    exact: bool
    """Whether all of these told where they began. If not, `max_read_position` may be too high."""


@value(frozen=True, slots=True, kw_only=True)
class Projected:
    """How far the store has one journal partition."""

    partition: int
    next_offset: int
    """Journal offset of the record to come next; -1: it begins."""
    lag_records: int | None
    """Journal records that are not projected; None: the journal's end is not known."""
    problem: str = ""
    """Why it does not go on; "" if it does."""


@value(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """What a coordinator says of its metadata store."""

    back_end: str
    shared: bool
    """Whether all coordinators use one store."""
    operations: int
    """Number of operations in it."""
    partitions: tuple[Projected, ...] = field(default=())
    swept_ms: int = 0
    """When the last sweep ended; 0: none has."""
    swept_operations: int = 0
    """Operations deleted by sweeps since the coordinator started."""
    swept_headers: int = 0
    history_ms: int = 0
    """How long a finished transaction is kept at most; 0: for as long as it is needed."""
    problem: str = ""
    """Why the store does not work; "" if it does."""
