"""What a producer needs of a consumer to commit its input offsets within a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .records.types import OffsetStep


class OffsetSource(Protocol):
    """Something that consumed input, such as a `Consumer`: its group, and where it stands.

    Source: Transactional Messaging in Kafka, "Producer IDs and state groups" (the input state of a
    transaction).
    """

    group_id: str
    """The consumer group whose input offset vector is to be committed."""

    def offset_steps(self) -> Sequence[OffsetStep]:
        """What was delivered since the last call: per partition, from where to where.

        Each step goes on from the one before, whether that one's transaction is decided or not,
        so that transactions can be pipelined; when one aborts, those after it are refused, and
        the source must be rewound to the committed offsets.
        """
