"""What a consumer knows of one assigned partition: where it began, and what holds it up."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.control import TopicPartition
from ..journal.position import Place, Position
from .core.before_sidecar import BeforeSidecar
from .core.buffer import PartitionBuffer
from .followed import Followed


class StartedAt(Enum):
    """How the first position in a partition was chosen."""

    ELSEWHERE = "elsewhere"
    """It was committed, or the application named it."""
    AT_START = "start"
    AT_END = "end"


class Assigned:
    """One assigned partition."""

    __slots__ = (
        *("active", "ahead_bytes", "asked", "before", "buffer", "checks_headers", "claim"),
        *("counted_from", "cut_s", "eof", "failure_raised", "home", "key", "marked", "origin"),
        *("paused", "sides"),
        *("start", "started_at", "stored", "throttled", "topic_id", "unsent", "urgent"),
    )

    def __init__(
        self, key: TopicPartition, origin: Position, stored: Position | None, started_at: StartedAt
    ) -> None:
        self.key = key
        self.origin = origin
        """Position at which reading began: a rewind without a commit leads there."""
        self.start = origin
        """Position at which its buffer began: further on, if reading was interrupted since."""
        self.buffer: PartitionBuffer
        self.home: Followed | None = None
        """Follows its home, in front of the buffer; None where transactions end by markers."""
        self.before: BeforeSidecar | None = None
        """Stands in front of the buffer until its topic has a sidecar, where uncommitted records
        are read and a home places."""
        self.counted_from: int | None = None
        """What is placed below this offset counts as delivered, if not its start is meant."""
        self.stored = stored
        """The committed position, None if it is not known for certain; with an IOV, the end of the
        last step handed out."""
        self.eof: Message | None = None
        """Kafka's event that all was read, until all that was read is delivered or pending."""
        self.asked: Position | None = None
        """The position in a commit that is not answered yet."""
        self.started_at = started_at
        self.claim: int | None = None
        """Number of the claim under which it is read; None if nothing had to be claimed."""
        self.topic_id = ""
        """Id of the topic, as it was when the partition was begun; "" if it is not known."""
        self.unsent = False
        """Whether records were delivered since steps of an IOV were last handed out."""
        self.marked: Position | None = None
        """Position that `Consumer.store_offsets` chose."""
        self.paused = False
        """Whether the application paused it."""
        self.sides: dict[Place, int] = {}
        """End of a step that was handed out → `Position.side` there: no transaction commits it."""
        self.throttled = False
        """Whether we paused it, until what is read ahead is delivered."""
        self.active = False
        """Whether it is in `Reading`'s queue of partitions that may have something to deliver."""
        self.ahead_bytes = 0
        """Bytes of the values read while something waits for delivery."""
        self.urgent = False
        """Whether other partitions wait for its next records: then it is never throttled."""
        self.failure_raised = False
        """Whether its failure was raised once."""
        self.cut_s: float | None = None
        """When a broker first told an end below where it is read; None if none does."""
        self.checks_headers = False
        """Whether a record was met whose headers can't be read: then each record's are tried."""

    @property
    def was_interrupted(self) -> bool:
        """Whether its buffer began further on, or again, after reading had begun."""
        return self.start is not self.origin

    def kafka(self) -> KafkaPartition:
        """Returns it as confluent-kafka's type, with the offset at which reading goes on."""
        return KafkaPartition(self.key[0], self.key[1], self.input.next_offset)

    @property
    def front(self) -> Followed | BeforeSidecar | None:
        """What stands in front of the buffer, and may hold records back; None: nothing."""
        return self.before if self.home is None else self.home

    @property
    def input(self) -> PartitionBuffer | Followed | BeforeSidecar:
        """What its records are fed to."""
        return self.front or self.buffer

    @property
    def waiting_records(self) -> int:
        """Number of records that are read and can't be pending: they wait for delivery, or until it
        is known what is placed before them."""
        held = 0 if self.front is None else self.front.held_records
        return held + self.buffer.queued_records

    def torn_skip_below(self, torn_reset: str | None) -> int:
        """Returns what ``torn.reset`` means here, as `PartitionBuffer`'s argument of that name."""
        began_at = self.origin.o1 if self.started_at is StartedAt.AT_START else 0
        return {"skip": 2**63, "error": 0}.get(torn_reset or "", began_at)


MakeBuffer: TypeAlias = Callable[[Assigned], PartitionBuffer]
"""Makes the buffer of a partition that is being assigned."""
