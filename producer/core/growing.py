"""Counts what a writer writes to each topic, until it goes over to the topic's sidecar. Pure.

A transaction *grows into* its sidecars: up to a size its records go to the topics, and to the
sidecars from there on. Each writer (the transaction's own, each branch) counts for itself, and each
topic for itself.

Why readers deliver what a writer wrote in the order in which it did. A pointer delivers all that
lies in the main partition, and then all that lies in the sidecar (`consumer.core.pointers`). In
each of the two logs a writer's records lie in the order of `produce`. So it is enough that no
record of a writer goes to the topic behind one that went to the sidecar:

1. *It never goes back.* The first record that does not fit ends it, also if a smaller one would fit
   behind it (trap 135), and also if the sidecar can't be opened and the record is refused.
2. *Acknowledgements don't matter.* Records may still be on their way to the topic when the first
   one goes to the sidecar, and get there later. No reader compares offsets of two logs, and the
   commit waits for the reports of both.
3. *A topic, not a partition, goes over.* librdkafka chooses the partition after the topic.

Writers have no order between them: what one writes to the topic may be delivered before what
another had written to the sidecar earlier. So it is with branches that join by ``sidecar=True``.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import length_hint
from typing import Any, Final

_GROWN: Final = -1
"""What is left of a topic's size once its records go to the sidecar: not even an empty one fits."""


class Growing:
    """Says of one writer's records, one after another, which ones their topics still take."""

    def __init__(self, min_bytes: int) -> None:
        """Begins at the first record.

        Args:
            min_bytes: how much each topic takes; above 0.
        """
        self.min_bytes: Final = min_bytes
        self._left: dict[str, int] = {}

    def is_grown(self, topic: str) -> bool:
        """Returns whether all further records of the topic go to its sidecar."""
        return self._left.get(topic) == _GROWN

    def take(self, topic: str, sizes: Iterable[int]) -> int:
        """Returns how many of these records go to the topic; all others go to its sidecar.

        Calls must not overlap.

        Args:
            topic: where the application writes to.
            sizes: bytes of each record, as `size_of` tells them, in the order of `produce`.
        """
        left, taken = self._left.get(topic, self.min_bytes), 0
        for size in sizes:
            if size > left:
                left = _GROWN
                break
            left -= size
            taken += 1
        self._left[topic] = left
        return taken


def size_of(value: Any, key: Any) -> int:
    """Returns the bytes of a record's value and key; 0 for what librdkafka refuses.

    Raises:
        UnicodeEncodeError: a string can't be written as UTF-8. librdkafka would refuse it, too.
    """
    return _length(value) + _length(key)


def _length(content: Any) -> int:
    if isinstance(content, str) and not content.isascii():
        return len(content.encode())
    return length_hint(content)
