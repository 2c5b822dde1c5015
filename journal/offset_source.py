"""The part of a consumer that a producer needs to commit input offsets in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from confluent_kafka import TopicPartition as KafkaPartition

from .records.types import OffsetStep


class OffsetSource(Protocol):
    """A reader of input, such as a `Consumer`: its group, and where it stands.

    Source: Transactional Messaging in Kafka, "Producer IDs and state groups" (the input state of a
    transaction).
    """

    group_id: str
    """The consumer group whose input offset vector is to be committed."""

    def offset_steps(self) -> Sequence[OffsetStep]:
        """Returns what was delivered since the last call: per partition, from where to where.

        Each step continues the one before, whether or not that one's transaction is decided, so
        that transactions can be pipelined. When one aborts, those after it are refused, and the
        source must be rewound to the committed offsets.
        """

    def lose_steps(self) -> Callable[[], None]:
        """Returns what to call, on any thread, if the steps handed out last will not be committed.

        Then the source hands out no steps until it is rewound.
        """


class GroupMetadata(Protocol):
    """What `Producer.send_offsets_to_transaction` needs: a `Consumer`, or its group metadata."""

    group_id: str
    """The consumer group whose input offset vector is to be committed."""

    def offset_steps(
        self, positions: Sequence[KafkaPartition] | None = None
    ) -> Sequence[OffsetStep]:
        """Works like `OffsetSource.offset_steps`, but leads no further than `positions`.

        Raises:
            ConfigError: delivery was never at one of them. Then nothing is handed out.
        """

    def lose_steps(self) -> Callable[[], None]:
        """Works like `OffsetSource.lose_steps`."""
