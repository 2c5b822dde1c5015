"""One lane as it stands: its state, its markers, and how they look in a data partition.

`lanes` decides what becomes of it, and explains the states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from ...journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    Marker,
    PartitionList,
    TopicPartition,
    encode_marker,
)
from ...journal.places import PartitionId
from ...journal.records.types import DataPartition
from ...journal.state import State
from ...journal.txid import TxId
from .mode_records import MayMark, ModeWrite
from .transactions import TransactionMetadata

Headers = list[tuple[str, bytes | None]]
Finished = Callable[[int, tuple[TopicPartition, ...], Mapping[TopicPartition, int]], None]
"""Called once all markers are written, with the BEGIN offset, the partitions that were gone, and
sidecar partition → offset of its pointer."""


class LaneState(Enum):
    """What a lane may do; `lanes` explains the states."""

    FLOWING = auto()
    CAREFUL = auto()
    FAILED = auto()
    PAUSED = auto()
    DOUBTFUL = auto()


VALID_PREVIOUS: Final[Mapping[LaneState, frozenset[LaneState]]] = {
    LaneState.FLOWING: frozenset({LaneState.PAUSED, LaneState.CAREFUL, LaneState.DOUBTFUL}),
    LaneState.CAREFUL: frozenset({LaneState.PAUSED, LaneState.DOUBTFUL}),
    LaneState.FAILED: frozenset({LaneState.FLOWING, LaneState.CAREFUL}),
    LaneState.PAUSED: frozenset({LaneState.FAILED}),
    LaneState.DOUBTFUL: frozenset({LaneState.FLOWING, LaneState.CAREFUL, LaneState.FAILED}),
}
"""State → states that may precede it; a lane starts FLOWING. Tests and docs derive from it."""


class Failure(Enum):
    """Why a marker was not written, from the least to the most that it says of its partition.

    From `STALLED` on, the partition itself is the cause.
    """

    FULL = 0
    """The producer's queue was full; it goes on."""
    STOPPED = 1
    """The producer stopped, or there was none: the cause may be another partition's marker."""
    STALLED = 2
    """No answer came: its partition has no leader, or the producer hangs."""
    REFUSED = 3
    """The broker refused it."""
    TOO_LARGE = 4
    """The broker refused its batch for its size."""
    NO_TOPIC = 5
    """The broker, or the client's metadata, knows no such topic or partition."""

    @property
    def is_of_the_partition(self) -> bool:
        """Whether the partition is the cause, and not what it shares with others."""
        return self.value >= Failure.STALLED.value


class Producer(Enum):
    """The producer that a marker goes out by."""

    SHARED = auto()
    CAREFUL = auto()


@dataclass(slots=True)
class Reached:
    """How far a tenure has written to a data partition under one topic id."""

    behind: int | None = None
    """The offset behind the last marker or mode record of which an answer told it; None: of none
    yet."""
    is_untold: bool = False
    """Whether an answer did not tell where its marker lies."""
    at_ms: int = 0
    """Monotonic time of the latest acknowledgement."""


@dataclass(slots=True, eq=False)
class Flow:
    """The markers that a lane sends one behind the other, from its start or from its last failure.

    `cut` says that the producer refused one of them before it was sent. The shell sets it, and then
    refuses every further one.
    """

    cut: bool = False


@dataclass(slots=True, eq=False)
class Ending:
    """A decided transaction whose markers are being written."""

    transaction: TransactionMetadata
    epoch: int
    listed: PartitionList
    missing: int
    hw: Callable[[], int]
    finished: Finished | None
    """None: its shard is gone, and the next owner writes its markers again."""
    may_mark: MayMark
    gone: list[TopicPartition] = field(default_factory=list)
    pointers: dict[TopicPartition, int] = field(default_factory=dict)
    """Sidecar partition → offset of its pointer in the main partition."""

    @property
    def txid(self) -> TxId:
        return self.transaction.txid

    @property
    def sequence(self) -> int:
        sequence = self.transaction.commit_sequence
        assert sequence is not None, "it is decided"
        return sequence

    @property
    def is_live(self) -> bool:
        return self.finished is not None

    def abandon(self) -> None:
        self.finished = None


@dataclass(slots=True, eq=False)
class Job:
    """One marker of one transaction, or one mode record."""

    lane: Lane
    part_of: Ending | ModeWrite
    partition: DataPartition
    size: int = 0
    """Upper bound of its bytes in a batch, from when it is sent."""
    points_to: DataPartition | None = None
    """The sidecar partition whose records are delivered here: the marker is a pointer."""
    pointer: int | None = None
    """Of a marker in a sidecar: the offset at which its pointer was written; None: the main topic
    is gone, and it has none."""
    doubted_ms: int | None = None
    """When a look-up was answered first while it waited because its topic may be gone."""

    @property
    def txid(self) -> TxId:
        """The transaction that it ends, or the MODE record that it follows from."""
        return self.part_of.txid

    @property
    def sequence(self) -> int:
        """Its place in the order of its lane: commit sequence, or offset of the MODE record."""
        return self.part_of.sequence

    @property
    def may_go(self) -> bool:
        """Whether all that was decided before it is placed in its partition (R4)."""
        p = self.partition
        return self.part_of.may_mark(
            PartitionId(p.topic, p.partition, p.topic_id), self.part_of.sequence
        )


@dataclass(slots=True, eq=False)
class Target:
    """A data partition: what its lanes have in flight together."""

    bytes_in_flight: int = 0
    known: tuple[int, str, str] | None = None
    """(number of the shared producer, topic id, id that a look-up told) of the marker that was
    acknowledged last: from then on the broker knows which number of that producer comes next."""
    held_back: dict[Lane, None] = field(default_factory=dict)
    """Lanes with markers that wait until others are answered, in the order of their coming."""


@dataclass(slots=True, eq=False)
class Lane:
    """The markers of one journal partition for one data partition, in commit-sequence order."""

    target: Target
    state: LaneState = LaneState.FLOWING
    queue: deque[Job] = field(default_factory=deque)
    in_flight: deque[Job] = field(default_factory=deque)
    flow: Flow = field(default_factory=Flow)
    producer: int = 0
    """Number of the shared producer that has what is in flight; 0: the careful one."""
    failure: Failure | None = None
    """What is known of the first failure, while FAILED or PAUSED or DOUBTFUL."""
    answered: int = 0
    """Number of markers in flight that were answered since that failure."""
    pause_ms: int = 0
    """Latest pause after a failure."""
    doubted: bool = False
    """Whether it came to doubt its topic after the latest failure that spoke of one. The next one
    makes it pause: else it would ask for ever, and as fast as it is answered."""
    refused_bytes: int | None = None
    """Size of a batch that was too large, since the latest marker that was written; 0: a look-up
    told a limit below it. CAREFUL lasts until one does, or until no marker waits."""
    watched: tuple[Job, int] | None = None
    """The oldest marker in flight, and `answered`, when the lanes were watched last."""


def headers_of(job: Job) -> Headers:
    """Returns the headers of the marker or mode record, as of now."""
    ending = job.part_of
    if isinstance(ending, ModeWrite):
        return [(TXID_HEADER, ending.txid.to_bytes()), (TXCTL_HEADER, ending.control())]
    transaction = ending.transaction
    branches = tuple(transaction.branches.get(job.partition.key, ()))
    sidecar: tuple[BranchRange, ...] = ()
    since, sidecar_id = 0, ""
    if job.points_to is not None:
        sidecar = tuple(transaction.branches[job.points_to.key])
        since = transaction.since[job.points_to.key]
        sidecar_id = job.points_to.topic_id
    marker = Marker(
        committed=transaction.state in (State.COMMITTING, State.COMMITTED),
        commit_sequence=ending.sequence,
        hw=ending.hw(),
        epoch=ending.epoch,
        branches=branches,
        topic_id=job.partition.topic_id if branches else "",
        sidecar=sidecar,
        since=since,
        sidecar_id=sidecar_id,
        pointer=job.pointer,
    )
    control = encode_marker(marker, ending.listed)
    return [(TXID_HEADER, transaction.txid.to_bytes()), (TXCTL_HEADER, control)]


def count(job: Job, *, gone: bool) -> None:
    """Counts a marker as written, or given up with its topic, and tells of the last one."""
    ending = job.part_of
    assert isinstance(ending, Ending), "mode records are counted elsewhere"
    ending.missing -= 1
    if gone:
        ending.gone.append(job.partition.key)
    if ending.missing == 0 and ending.finished is not None:
        ending.finished(ending.transaction.begin, tuple(ending.gone), ending.pointers)
