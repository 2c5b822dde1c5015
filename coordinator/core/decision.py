"""What goes into the shard beside commands, and what comes out beside replies. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...journal.errors import LogtxError
from ...journal.records.types import JournalRecord
from ...journal.txid import TxId
from ...journal.value import value
from ..protocol.commands import GroupOffsets, Reply
from .transactions import TransactionMetadata


@value(frozen=True, slots=True)
class Instant:
    """The time as the caller sees it."""

    monotonic_ms: int
    """Never jumps; deadlines are counted by it."""
    wall_ms: int
    """Milliseconds since 1970; goes into records for people and for reloading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardConfig:
    """Limits of one shard."""

    max_timeout_ms: int = 900_000
    """Longest timeout that a transaction may ask for."""
    session_grace_ms: int = 3_000
    """How long after its socket closed a producer may come back before its work is aborted."""
    reload_grace_ms: int = 10_000
    """The same after this coordinator started, when every socket is closed."""
    max_open_transactions_per_producer: int = 10_000
    """Transactions that one producer may have open."""
    max_open_transactions: int = 100_000
    """Transactions that may be open in the journal partition."""
    max_waiting_bytes: int = 32 * 1024 * 1024
    """Commits of one producer that may wait for another's input offsets: half of what its stream
    may have under way, or the one that they wait for would not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """What the shard must know of a data topic; the caller looks it up beforehand."""

    topic_id: str
    partition_count: int
    record_max_bytes: int
    """The topic's ``max.message.bytes``."""


@value(frozen=True, slots=True)
class WriteMarkers:
    """Effect: the decision is durable; write its markers, then say `finish`."""

    transaction: TransactionMetadata


@value(frozen=True, slots=True)
class WriteOffsets:
    """Effect: publish a consumer group's whole IOV as of a commit."""

    group: str
    begin: int
    """The committing transaction, which is finished only when this was written too."""
    offsets: GroupOffsets


Effect = WriteMarkers | WriteOffsets
Ref = Any
"""The caller's own token for a request; given back with its reply."""


@value(frozen=True, slots=True)
class Fenced:
    """A session that loses its producer to a newer one, or to the deletion of its key."""

    producer_id: str
    nonce: int
    error: LogtxError
    """What the session is closed with."""


@value(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from a command."""

    records: tuple[JournalRecord, ...] = ()
    replies: tuple[tuple[Ref, Reply], ...] = ()
    fresh: bool = False
    """The replies could be stale if this coordinator was replaced: ask for the journal's end."""
    fenced: tuple[Fenced, ...] = ()
    """Sessions to close."""
    look_up: TxId | None = None
    """The answer lies in the journal only: find its fate, then ask `answer_fate`."""
