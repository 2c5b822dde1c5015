"""Claims: which consumer of a group was given an input partition last.

Safety comes from the compare-and-set of input offsets alone (`committed_offsets.py`). A claim makes
taking over prompt: a consumer that is given partitions claims them. From then on, open transactions
that would move their offsets can only be aborted. So the claimant starts from the committed offsets
at once and waits for no other consumer. Steps made under an older claim are refused before their
transaction does any more work.

A claim's number is a journal offset, so numbers only rise. An unconditional claim always wins. A
consumer that goes back to the committed offsets makes a *conditional* claim, which holds only if no
other consumer has claimed since. So a zombie that wakes up does not fence its successor, which
would then fence the zombie, back and forth (trap 29).

Pure state: `decide` and `check` read it, `replay` alone changes it.

Source: Transactional Messaging in Kafka, "Producer IDs and state groups" (fencing of the input
state).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

from ...journal.control import TopicPartition
from ...journal.errors import ClaimFencedError, NotSupportedError, RequestTooLargeError
from ...journal.records.types import Claim, OffsetStep, SnapshotClaim
from ..protocol.commands import ClaimOffsets

CLAIMED_MAX: Final = 10_000
"""Partitions of one consumer group whose claims are kept, about as many as its IOV has room for.

Beyond it the oldest claims are forgotten, which leaves their partitions to the compare-and-set.
"""


class Held(NamedTuple):
    """The latest claim of a partition."""

    number: int
    """Journal offset of the CLAIM record."""
    claimant: int
    """Random 63 bits that identify the attempt to claim."""


class Claims:
    """The latest claim of each input partition, by consumer group."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, Held]] = {}
        """Consumer group → the claims of its partitions, in the order of their numbers."""

    def decide(self, command: ClaimOffsets) -> int | None:
        """Decides whether a claim holds.

        Returns:
            The claim's number if this is a retry of the latest claim; None if it needs a record.

        Raises:
            ClaimFencedError: the claim is conditional, and a partition was claimed since.
            RequestTooLargeError: it names more than `CLAIMED_MAX` partitions.
            NotSupportedError: it names no partition.
        """
        known = self._groups.get(command.group, {})
        if not command.partitions:
            raise NotSupportedError("a claim of no partition: name those that were assigned")
        if len(command.partitions) > CLAIMED_MAX:
            raise RequestTooLargeError(
                f"a claim of {len(command.partitions)} partitions, of which a consumer group has"
                f" {CLAIMED_MAX} at most"
            )
        found = {known.get(partition) for partition in command.partitions}
        held = found.pop()
        # Checked before the condition: the first attempt, whose answer was lost, already changed
        # the numbers.
        if not found and held is not None and held.claimant == command.claimant:
            return held.number
        if command.expected is not None:
            for partition in command.partitions:
                held, wanted = known.get(partition), command.expected.get(partition)
                if (None if held is None else held.number) != wanted:
                    raise _fenced(command.group, partition, held)
        return None

    def check(self, group: str, steps: Iterable[OffsetStep]) -> None:
        """Refuses the input of a consumer whose partitions were given to another consumer.

        A step without a claim is subject to the compare-and-set alone.

        Raises:
            ClaimFencedError: a step's claim is older than the latest.
        """
        known = self._groups.get(group, {})
        for step in steps:
            partition = step.topic, step.partition
            held = known.get(partition)
            if step.claim is not None and held is not None and step.claim < held.number:
                raise _fenced(group, partition, held)

    def replay(self, offset: int, record: Claim) -> None:
        """Applies a CLAIM record."""
        self._take(record.group, record.partitions, Held(offset, record.claimant))

    def restore(self, row: SnapshotClaim) -> None:
        """Adds a claim from a snapshot; a group's oldest claims must come first."""
        self._take(row.group, row.partitions, Held(row.number, row.claimant))

    def _take(self, group: str, partitions: Iterable[TopicPartition], held: Held) -> None:
        known = self._groups.setdefault(group, {})
        for partition in partitions:
            known.pop(partition, None)
            known[partition] = held
        # Forgets the oldest instead of refusing the newest: partitions of deleted topics must not
        # keep a group from working, and without a claim the compare-and-set still protects it.
        while len(known) > CLAIMED_MAX:
            del known[next(iter(known))]

    def forget(self, group: str) -> None:
        """Drops all claims of a consumer group."""
        self._groups.pop(group, None)

    def forget_topic(self, group: str, topic: str) -> None:
        """Drops a consumer group's claims in a topic."""
        left = {p: held for p, held in self._groups.get(group, {}).items() if p[0] != topic}
        if left:
            self._groups[group] = left
        else:
            self._groups.pop(group, None)

    def groups(self) -> list[str]:
        """Returns the consumer groups that have claims."""
        return list(self._groups)

    def __contains__(self, group: str) -> bool:
        """Returns whether a consumer group has claims."""
        return group in self._groups

    def rows(self) -> Iterator[SnapshotClaim]:
        """Yields all claims as rows of a snapshot, each group's oldest first."""
        for group, known in self._groups.items():
            for held, partitions in groupby(known, known.__getitem__):
                yield SnapshotClaim(group, held.number, held.claimant, tuple(partitions))


def _fenced(group: str, partition: TopicPartition, held: Held | None) -> ClaimFencedError:
    topic, number = partition
    now = "nobody claims it" if held is None else f"the latest claim is {held.number}"
    return ClaimFencedError(
        f"this consumer's partitions were given to another: {topic}[{number}] of consumer group"
        f" {group!r} is not under the claim that was named ({now}). Abort, and go on with what the"
        " group assigns"
    )
