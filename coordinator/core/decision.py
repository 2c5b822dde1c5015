"""What the shard takes besides commands, and gives besides replies: facts, records, effects.
Values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...journal.control import TopicPartition
from ...journal.errors import LogtxError
from ...journal.places import Placed
from ...journal.records.types import JournalRecord
from ...journal.txid import TxId
from ...journal.value import value
from ..protocol.commands import GroupOffsets, Reply
from .adopting import ADOPT_BYTES, Handed
from .placing import PlaceWrites
from .transactions import TransactionMetadata


@value(frozen=True, slots=True)
class Instant:
    """The time as the caller sees it."""

    monotonic_ms: int
    """Monotonic clock, which never jumps. Deadlines are measured by it."""
    wall_ms: int
    """Wall clock, milliseconds since 1970. For records and displayed ages, never for a deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardConfig:
    """Limits of one shard."""

    max_timeout_ms: int = 900_000
    """Longest timeout that a transaction may ask for."""
    session_grace_ms: int = 3_000
    """How long after its socket closed a producer may come back before its work is aborted."""
    reload_grace_ms: int = 10_000
    """The same after this coordinator loaded the journal, when no producer is connected yet."""
    max_open_transactions_per_producer: int = 10_000
    """Transactions that one producer may have open."""
    max_open_transactions: int = 100_000
    """Transactions that may be open in the journal partition."""
    producer_retention_hours: int = 7 * 24
    """Hours of service after which a producer that nobody used is forgotten."""
    group_retention_hours: int = 30 * 24
    """Hours of service after which a consumer group's offsets are forgotten if it has no member."""
    max_added_ranges: int = 4_000_000
    """Ranges (one branch in one data partition) that the parts of a journal partition's unfinished
    transactions may have named together. Each takes 32 bytes of memory until the markers are there.
    """
    max_waiting_bytes: int = 32 * 1024 * 1024
    """Bytes of one producer's commits that may wait for an earlier transaction's input offsets.

    Half of what its stream may have under way. If waiting commits filled the stream's window, the
    commit that they wait for would never be read.
    """
    adopt_bytes: int = ADOPT_BYTES
    """What one ADOPT record may take, about; the rest of a transaction goes on in the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """What the shard must know of a data topic. The caller looks it up beforehand."""

    topic_id: str
    partition_count: int
    record_max_bytes: int
    """The topic's ``max.message.bytes``."""
    told: tuple[tuple[int, str], ...] = ()
    """(when it was told first in monotonic ms, id) of the topics that had the name, in this order;
    empty if only this one is known."""
    is_settled: bool = field(default=True, compare=False)
    """Whether answers told of this topic for long enough. Else it may be a former one of the name,
    of which a broker tells that is behind."""

    def id_at(self, at_ms: int) -> str:
        """Returns the id of the topic that had the name at a time, as far as was known then.

        A topic that was not known yet had it if no other one is known.
        """
        if len(self.told) < 2:  # Nearly always, and asked for each commit.
            return self.told[0][1] if self.told else self.topic_id
        ids = [topic_id for _, topic_id in self.told]
        return ids[max(0, sum(told_ms <= at_ms for told_ms, _ in self.told) - 1)]


@value(frozen=True, slots=True)
class WriteMarkers:
    """Effect: the decision is durable; write its markers, then call `Shard.finish`.

    The partitions of `TransactionMetadata.placed` get none.
    """

    transaction: TransactionMetadata


@value(frozen=True, slots=True)
class WriteOffsets:
    """Effect: publish a consumer group's IOV as of a commit."""

    group: str
    begin: int
    """BEGIN of the committing transaction, which is finished only when this is written too.

    `NO_EPOCH` if a new owner publishes the IOV again.
    """
    offsets: GroupOffsets
    """What the commit moved. A new owner first publishes the whole IOV of each group."""


@value(frozen=True, slots=True)
class ClearOffsets:
    """Effect: a consumer group's IOV is forgotten, remove its copy."""

    group: str


@value(frozen=True, slots=True)
class PlacesGiven:
    """Effect: a PLACED record is durable. The tenure takes it itself."""

    placed: Placed


@value(frozen=True, slots=True)
class WriteLateMarkers:
    """Effect: a transaction has no place in some partitions after all; write markers there.

    Their home refused it, or their topic is gone. Then another topic may have the name by now, and
    have the records: they were written when this coordinator did not know that yet. Its partition
    gets the marker, which states the id that the records were thought to be in. Only if no topic
    has the name is the marker given up (trap 12).
    """

    transaction: TransactionMetadata
    partitions: tuple[TopicPartition, ...]


@value(frozen=True, slots=True)
class EndSidecars:
    """Effect: a transaction has its place in main partitions; end it in their sidecars."""

    transaction: TransactionMetadata
    places: Mapping[TopicPartition, int]
    """Sidecar partition → the place in its main partition, which stands for its pointer."""


@value(frozen=True, slots=True)
class WriteModeRecords:
    """Effect: a switch began; write a mode record to each partition of the topic, by its lane.

    `Tenure.mode_recorded` is then told of each. Without records: give up those that an earlier
    effect of the switch asked for, ask for the partitions' ends, and tell them to
    `Tenure.mode_ends`.
    """

    topic: str
    topic_id: str
    offset: int
    """Journal offset of the MODE record: where the mode record stands in its lane."""
    places: bool
    """Whether the mode record says that transactions are placed from here on, or marked."""
    with_records: bool


@value(frozen=True, slots=True)
class PublishMode:
    """Effect: a topic's mode is final; tell readers of it, then call `Tenure.mode_published`.

    Of a switch that begins, readers are told before the first mode record (`WriteModeRecords`).
    """

    topic: str


@value(frozen=True, slots=True)
class HandOver:
    """Effect: the decision is durable; wait for what the homes of these partitions answer.

    The tenure takes it itself. What a home refuses is marked, by `WriteLateMarkers`.
    """

    handed: Handed


@value(frozen=True, slots=True)
class HandedFinished:
    """Effect: a transaction is finished of which something was handed over. The tenure takes it
    itself."""

    begin: int


Effect = (
    WriteMarkers
    | WriteOffsets
    | ClearOffsets
    | PlaceWrites
    | PlacesGiven
    | WriteLateMarkers
    | EndSidecars
    | WriteModeRecords
    | PublishMode
    | HandOver
    | HandedFinished
)
Ref = Any
"""The caller's own token for a request, given back with its reply."""


@value(frozen=True, slots=True)
class Fenced:
    """A session that loses its producer to a newer one, or to the deletion of its key."""

    producer_id: str
    nonce: int
    error: LogtxError
    """The error that the session is closed with."""


@value(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from a command."""

    records: tuple[JournalRecord, ...] = ()
    replies: tuple[tuple[Ref, Reply], ...] = ()
    fresh: bool = False
    """Whether the replies would be stale if this coordinator was replaced.

    The caller then asks for the journal's end before it gives them.
    """
    fenced: tuple[Fenced, ...] = ()
    """Sessions to close."""
    look_up: TxId | None = None
    """The transaction whose fate only the journal knows: find it, then call `answer_fate`."""
