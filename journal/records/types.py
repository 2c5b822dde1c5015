"""The types of journal records, which a coordinator appends as versioned Avro.

A record's value is one byte of format version, one byte of record type, then the Avro body of that
type's schema at that version (``schemas/v<version>.avsc``). Every record carries its writer's epoch
and the incarnation of the journal partition. The schema files of old versions stay for ever, so
that old journals can always be read.

Source: Transactional Messaging in Kafka, "Transaction flow" (BEGIN, PREPARE_COMMIT, COMMITTED …)
and PIP-31, "Transaction Log" (the operations of the transaction metadata store).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple, TypeAlias

from ..acks import Ack, AddAcks, SnapshotSubscription, Subscribe
from ..control import BranchRange, TopicPartition
from ..modes import ModeChange, Phase
from ..places import AdoptedWrites, Adoption, PartitionId, Placed
from ..position import Journal, Place, Position
from ..record_type import RecordType
from ..sidecar import main_partition
from ..state import State
from ..txid import TxId
from ..value import Lazy, value


class AbortReason(StrEnum):
    """Why a transaction was aborted."""

    REQUESTED = "requested"
    """Its producer asked for it."""
    EXPIRED = "expired"
    """Its timeout passed."""
    FENCED = "fenced"
    """A newer producer of the same name took over."""
    DISCONNECTED = "disconnected"
    """Its producer's socket closed and the grace passed."""
    DOUBLE_START = "double_start"
    """Two producers started with the same generation."""
    RETENTION = "retention"
    """The broker's retention threatened its data."""
    OPERATOR = "operator"
    """An operator asked for it."""
    KEY_DELETED = "key_deleted"
    """Its transaction key was deleted."""
    CLAIMED = "claimed"
    """Its input was claimed after it was read: by another consumer, or to be read again."""


UNKNOWN_OFFSET: Final = -1
"""Stands for a first offset that is not known."""
NO_FENCE: Final = -1
"""Stands for the offset of a fence where there is none."""


@value(frozen=True, slots=True)
class DataPartition:
    """A data partition of a transaction, and the id that its topic had then."""

    topic: str
    partition: int
    topic_id: str = ""
    """Kafka's topic id; "" where the log has none. A topic created again has another."""
    first_offset: int = UNKNOWN_OFFSET
    """First offset that the transaction wrote there, for the retention guard."""

    @property
    def key(self) -> TopicPartition:
        """Topic name and partition number, without the topic id."""
        return self.topic, self.partition

    @property
    def identity(self) -> PartitionId:
        """Which partition it is, whatever else has the name."""
        return PartitionId(self.topic, self.partition, self.topic_id)


@value(frozen=True, slots=True)
class PartitionWrites:
    """What the accepted branches wrote to one data partition."""

    partition: DataPartition
    branches: tuple[BranchRange, ...]


@value(frozen=True, slots=True)
class OffsetStep:
    """One entry of an IOV: a compare-and-set of a consumer group's place in a partition."""

    topic: str
    partition: int
    from_place: Place | None
    """What must be committed before the step; None = nothing yet."""
    to: Position
    claim: int | None = field(default=None, compare=False)
    """Number of the claim under which the sender consumed the partition; None: it made no claim.

    The coordinator checks it before it takes the step, and does not keep it in the journal.
    """


@value(frozen=True, slots=True, kw_only=True)
class Owner:
    """A bid for the journal partition: valid if the epoch it replaces is still current.

    The new epoch is this record's own offset.
    """

    type: ClassVar[RecordType] = RecordType.OWNER
    replaces: int
    """Epoch to end; -1 begins the journal partition and its incarnation."""
    address: str
    """host:port at which clients reach this coordinator."""
    process_nonce: int
    """Random 63 bits of this process; distinguishes two processes at one address."""
    partition_count: int = 0
    """Number of partitions of the journal topic, as the writer sees it; 0 = unknown."""


@value(frozen=True, slots=True, kw_only=True)
class ProducerRecord:
    """A producer's generation and session (PRODUCER)."""

    type: ClassVar[RecordType] = RecordType.PRODUCER
    producer_id: str
    generation: int
    session_nonce: int
    """Random 63 bits of the client instance; two of them with one generation are a double start."""
    owner: str
    """The authenticated subject, or "default"."""
    voided: bool = False
    """True after a double start: no producer may use this generation any more."""
    connected_ms: int = 0
    """When this session first connected: wall clock, milliseconds since 1970; 0 = unknown."""


@value(frozen=True, slots=True, kw_only=True)
class Begin:
    """A transaction's first record; its offset is part of the TxId."""

    type: ClassVar[RecordType] = RecordType.BEGIN
    producer_id: str
    generation: int
    session_nonce: int
    request_id: int
    """The client's number for this request: a retry with the same number gets the same TxId."""
    answered_below: int
    """The client has the answer of every request of its below this number."""
    timeout_ms: int
    started_ms: int
    """Wall clock of the coordinator, milliseconds since 1970."""
    partitions: tuple[DataPartition, ...] = ()


@value(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Data partitions that join a transaction."""

    type: ClassVar[RecordType] = RecordType.ADD_PARTITIONS
    begin: int
    """Offset of the transaction's BEGIN; the same in the records below."""
    partitions: tuple[DataPartition, ...]


@value(frozen=True, slots=True, kw_only=True)
class AddOffsets:
    """Input offsets that take effect when the transaction commits."""

    type: ClassVar[RecordType] = RecordType.ADD_OFFSETS
    begin: int
    group: str
    steps: tuple[OffsetStep, ...]


@value(frozen=True, slots=True, kw_only=True)
class AddWrites(Lazy):
    """A part of what the accepted branches of a transaction wrote, if one record can't name it all.

    It takes effect with the decision. The transaction's writes are those of all its parts, and of
    the decision.
    """

    type: ClassVar[RecordType] = RecordType.ADD_WRITES
    begin: int
    part: int
    """0 for the transaction's first part, and so on."""
    writes: tuple[PartitionWrites, ...]


@value(frozen=True, slots=True, kw_only=True)
class PrepareCommit(Lazy):
    """The decision to commit; its offset is the commit sequence.

    It names every data partition of the transaction, in `writes` or in `added`.
    """

    type: ClassVar[RecordType] = RecordType.PREPARE_COMMIT
    begin: int
    writes: tuple[PartitionWrites, ...]
    decided_ms: int
    """Wall clock of the coordinator, milliseconds since 1970."""
    added: tuple[DataPartition, ...] = ()
    """The partitions that `writes` does not name: all that branches wrote there is in the parts
    (`AddWrites`). Every one of them has records. Where the transaction is placed, also those that
    `writes` names and parts name too: no marker tells readers that parts say more."""
    placed: tuple[TopicPartition, ...] = ()
    """Those of its partitions in which it is placed, rather than marked. Where `sidecar_since`
    names the sidecar, too, its records there are delivered at the place, without a pointer."""
    handed: tuple[tuple[TopicPartition, int], ...] = ()
    """(partition, journal partition of its topic's home): where it is handed over to another home,
    which places it or refuses. Not among `placed`."""
    sidecar_since: tuple[tuple[TopicPartition, int], ...] = ()
    """(sidecar partition, end of its main partition that was told before the decision), of each
    with records that the commit accepts: its pointers say so, whoever writes them
    (`Marker.since`)."""

    @property
    def written(self) -> list[TopicPartition]:
        """The partitions in which the transaction has records that count."""
        named = (w.partition.key for w in self.writes if w.branches)
        return list(dict.fromkeys((*named, *(p.key for p in self.added))))

    @property
    def places_sidecars(self) -> bool:
        """Whether a place stands for a pointer in one of its partitions."""
        mains = {main_partition(key) for key, _ in self.sidecar_since}
        return bool(mains) and not mains.isdisjoint(self.placed)

    @property
    def delivered_in(self) -> list[TopicPartition]:
        """The partitions in which it is delivered: `written`, with main partitions in the places of
        their sidecars."""
        if not self.sidecar_since:
            return self.written
        return list(dict.fromkeys(map(main_partition, self.written)))


@value(frozen=True, slots=True, kw_only=True)
class PrepareAbort:
    """The decision to abort."""

    type: ClassVar[RecordType] = RecordType.PREPARE_ABORT
    begin: int
    reason: AbortReason
    decided_ms: int
    handed: tuple[tuple[TopicPartition, int], ...] = ()
    """See `PrepareCommit`."""


class PointerStep(NamedTuple):
    """What a pointer needs of a sidecar partition, or several that lie side by side."""

    sidecar: TopicPartition
    pointer: int
    """Offset in the main partition at which the last of them was acknowledged."""
    first: int
    """The lowest offset in the sidecar that they name."""


@value(frozen=True, slots=True, kw_only=True)
class Committed:
    """Every marker of a committed transaction is acknowledged, or its partition gone."""

    type: ClassVar[RecordType] = RecordType.COMMITTED
    begin: int
    gone: tuple[TopicPartition, ...] = ()
    """Partitions that were deleted before they took their marker."""
    pointers: tuple[PointerStep, ...] = ()
    """Where its pointers were acknowledged, and what they need: a step for each of its sidecar
    partitions with records, but for those whose main topic is gone."""


@value(frozen=True, slots=True, kw_only=True)
class Aborted:
    """Every marker of an aborted transaction is acknowledged, or its partition gone."""

    type: ClassVar[RecordType] = RecordType.ABORTED
    begin: int
    gone: tuple[TopicPartition, ...] = ()


@value(frozen=True, slots=True, kw_only=True)
class Bind:
    """The one transaction group in which a consumer group commits its offsets."""

    type: ClassVar[RecordType] = RecordType.BIND
    group: str
    transaction_group: str


@value(frozen=True, slots=True, kw_only=True)
class Claim:
    """A consumer takes over input partitions of its group; the newest claim of a partition counts.

    Its journal offset is the claim's number. A transaction that is open then and would move the
    offset of one of these partitions is doomed: it can only be aborted. Source: Transactional
    Messaging in Kafka, "Producer IDs and state groups".
    """

    type: ClassVar[RecordType] = RecordType.CLAIM
    group: str
    claimant: int
    """Random 63 bits of one attempt to claim; its retries carry the same."""
    partitions: tuple[TopicPartition, ...]


@value(frozen=True, slots=True, kw_only=True)
class Forget:
    """What nobody used for long, and is forgotten from here on.

    The owner appends one at the end of each hour that it serves: ages are counted in these. So a
    clock that jumps forgets nothing, nor does a time in which nobody served.
    """

    type: ClassVar[RecordType] = RecordType.FORGET
    hours: int
    """Hours of service that it ends: 1, or 0 if an operator asked for it."""
    producers: tuple[str, ...] = ()
    """Producer ids. The highest of their generations becomes the floor of all new ones."""
    groups: tuple[str, ...] = ()
    """Consumer groups whose committed offsets and claims end."""
    bindings: tuple[str, ...] = ()
    """Consumer groups whose bindings end."""
    topics: tuple[tuple[str, str], ...] = ()
    """(consumer group, topic) where committed offsets and claims end."""


class SnapshotProducer(NamedTuple):
    """A producer in a snapshot; if it has very many BEGINs, they are spread over several rows.

    The rows of snapshots are tuples, which are quick to make: 100,000 of them are made in one turn
    of an event loop.
    """

    producer_id: str
    generation: int
    session_nonce: int
    owner: str
    voided: bool
    connected_ms: int
    answered_below: int
    begins: tuple[tuple[int, int], ...]
    """(request id, offset of its BEGIN) of each BEGIN whose answer the client may not have yet."""
    used_hour: int = 0
    """Hour of service in which it was used last, see `Forget`."""


StepIdentity: TypeAlias = tuple[str, int, Place | None, Place]
"""(topic, partition, from, to) of a step."""


class SnapshotSteps(NamedTuple):
    """A transaction's steps for one consumer group."""

    group: str
    steps: tuple[OffsetStep, ...]
    """The steps, with those that continue each other joined into one."""
    sent: tuple[StepIdentity, ...]
    """Every step as it was sent, by its identity."""


class SnapshotTransaction(NamedTuple):
    """An unfinished transaction in a snapshot; a large one's lists are spread over several rows."""

    begin: int
    producer_id: str
    generation: int
    timeout_ms: int
    started_ms: int
    state: State
    commit_sequence: int | None
    reason: AbortReason | None
    partitions: tuple[DataPartition, ...] = ()
    """Registered partitions that `writes` does not name."""
    writes: tuple[PartitionWrites, ...] = ()
    steps: tuple[SnapshotSteps, ...] = ()
    doomed: AbortReason | None = None
    """Why the open transaction can only be aborted; None if it is not doomed."""
    parts: int = 0
    """Number of its `AddWrites`. If there are any, `writes` has what they say, also while it is
    open, and a partition's branches may be spread over several rows."""


class SnapshotGroup(NamedTuple):
    """A consumer group's IOV in a snapshot; a large one is spread over several rows."""

    group: str
    last_commit: int
    """Offset of the BEGIN of the transaction that committed last."""
    commit_sequence: int
    offsets: tuple[tuple[str, int, Position], ...]
    """(topic, partition, position)."""


class SnapshotClaim(NamedTuple):
    """The part of a claim that still counts; a large one is spread over several rows."""

    group: str
    number: int
    """Journal offset of the claim."""
    claimant: int
    partitions: tuple[TopicPartition, ...]
    """Partitions that no newer claim names."""


class SnapshotMode(NamedTuple):
    """The mode of a topic whose home the journal partition is."""

    topic: str
    topic_id: str
    phase: Phase
    offset: int
    """Journal offset of the MODE record with which its latest switch began."""
    since: tuple[tuple[int, int], ...] = ()
    """(partition, offset of its mode record), of the latest switch that was ended."""
    with_records: bool = True
    """See `ModeChange`: a new owner goes on with a switch as the one before began it."""


class SnapshotPlaces(NamedTuple):
    """Where an unfinished transaction is placed; a large one's is spread over several rows.

    Those partitions count too that have their place: a reader that begins at the snapshot may begin
    below it.
    """

    begin: int
    sequence: int
    """Commit sequence."""
    places: tuple[tuple[PartitionId, int, int | None], ...]
    """(partition, offset behind the last record that the commit accepts there, place or `GONE`, or
    None while it has no place).

    (partition, 0, `GONE`) where nothing is delivered, and no marker written: the commit accepts no
    records there, or the transaction is aborted. Where all of its records lie in the sidecar
    (`sidecar_since`), the offset is 0 as well, and it has a place like others.
    """


class SnapshotHanded(NamedTuple):
    """What of an unfinished transaction is handed over; a large one's is spread over rows."""

    begin: int
    partitions: tuple[tuple[TopicPartition, int], ...]
    """See `PrepareCommit.handed`."""


class SnapshotSince(NamedTuple):
    """What the pointers of an unfinished transaction say; a large one's is spread over rows."""

    begin: int
    partitions: tuple[tuple[TopicPartition, int], ...]
    """See `PrepareCommit.sidecar_since`."""


class SnapshotAdopted(NamedTuple):
    """What the journal partition, as a home, has adopted of another one."""

    journal: Journal
    upto: int
    """Commit sequence there up to which all that was handed over is adopted."""
    refused: tuple[tuple[int, tuple[PartitionId, ...]], ...] = ()
    """(commit sequence there, where it was refused), of what is not known as finished."""
    begun: tuple[tuple[int, PartitionId], ...] = ()
    """(commit sequence there, the last partition that is adopted) of what is adopted in part: one,
    or none."""


class SnapshotAdoption(NamedTuple):
    """A transaction of another journal that the home adopted, and that lacks a place; a large one
    is spread over several rows. `Snapshot.places` has its places, under the offset of ADOPT."""

    offset: int
    """Offset of its ADOPT record."""
    txid: TxId
    sequence: int
    """Its commit sequence in its own journal."""
    writes: tuple[AdoptedWrites, ...]


@value(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A chunk of a snapshot: what a coordinator knew just before the snapshot's first chunk.

    The snapshot counts when its last chunk is acknowledged; a void one never counts. A reader that
    has read the journal from before the snapshot learns nothing new from it.
    """

    type: ClassVar[RecordType] = RecordType.SNAPSHOT
    first: int
    """Offset of the first chunk."""
    index: int
    """0 for the first chunk, and so on."""
    last: bool
    replaces: int
    """This and the next three fields repeat the OWNER record it was written under."""
    address: str
    process_nonce: int
    partition_count: int
    past_epochs: tuple[int, ...]
    """The epochs just before this one, oldest first."""
    producers: tuple[SnapshotProducer, ...] = ()
    transactions: tuple[SnapshotTransaction, ...] = ()
    groups: tuple[SnapshotGroup, ...] = ()
    bindings: tuple[tuple[str, str], ...] = ()
    """(consumer group, transaction group)."""
    claims: tuple[SnapshotClaim, ...] = ()
    """The claims, oldest first."""
    hour: int = 0
    """Number of hours of service that ended, see `Forget`."""
    generation_floor: int = -1
    """Highest generation of a producer that was forgotten; -1: none was."""
    group_uses: tuple[tuple[str, int], ...] = ()
    """(consumer group, hour of service in which it was used last)."""
    modes: tuple[SnapshotMode, ...] = ()
    """Topics of this home that were ever switched."""
    last_places: tuple[tuple[PartitionId, int], ...] = ()
    """(partition, its last place): what makes the snapshot a fence."""
    places: tuple[SnapshotPlaces, ...] = ()
    """What unfinished transactions wrote in partitions in which they are placed."""
    fence: int = NO_FENCE
    """Offset of the first chunk of the snapshot to which the journal would be trimmed next, if that
    waits for data to be deleted; `NO_FENCE`: none does."""
    fence_places: tuple[tuple[PartitionId, int], ...] = ()
    """`last_places` of that snapshot."""
    handed: tuple[SnapshotHanded, ...] = ()
    """What unfinished transactions hand over to other homes."""
    adopted: tuple[SnapshotAdopted, ...] = ()
    """What this home adopted, by journal."""
    unplaced: tuple[SnapshotAdoption, ...] = ()
    """What of it lacks a place."""
    sidecar_since: tuple[SnapshotSince, ...] = ()
    subscriptions: tuple[SnapshotSubscription, ...] = ()
    """What became of the messages of the subscriptions that are bound here."""
    pointers: tuple[PointerStep, ...] = ()
    """What the pointers of finished transactions need, by sidecar partition: see
    `Committed.pointers`."""
    last_era: int = 0
    """Offset of the latest record that ended an era of a subscription; 0: none did. What is
    subscribed next begins in this era."""


JournalRecord: TypeAlias = (
    Owner
    | ProducerRecord
    | Begin
    | AddPartitions
    | AddOffsets
    | AddWrites
    | PrepareCommit
    | PrepareAbort
    | Committed
    | Aborted
    | Bind
    | Claim
    | Snapshot
    | Forget
    | Placed
    | ModeChange
    | Adoption
    | Subscribe
    | AddAcks
    | Ack
)


def joined(writes: Iterable[PartitionWrites]) -> tuple[PartitionWrites, ...]:
    """Returns each partition once, with all its branches, in the order of their coming."""
    found: dict[TopicPartition, tuple[DataPartition, list[BranchRange]]] = {}
    for each in writes:
        found.setdefault(each.partition.key, (each.partition, []))[1].extend(each.branches)
    return tuple(PartitionWrites(partition, tuple(ranges)) for partition, ranges in found.values())


NO_PREDICTION: Final = -1
"""Stands for the predicted offset in an `Owner` record: its writer can't know it."""


@value(frozen=True, slots=True)
class Entry:
    """A journal record as it lies in the journal."""

    epoch: int
    """The writer's epoch; an `Owner` record carries the epoch it replaces."""
    incarnation: int
    record: JournalRecord
    predicted: int = NO_PREDICTION
    """Offset for which its writer decided it; at any other offset it is void, see `EpochFilter`."""
