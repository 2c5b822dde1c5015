"""Claims: which consumer of a group was given an input partition last.

Safety comes from the compare-and-set of input offsets alone (`offsets.py`); a claim makes taking
over prompt. Whoever is given partitions claims them. What is open then and would move their offsets
can only be aborted from there on, so the claimant starts from what is committed, and waits for
nobody; and steps of an older claim are refused before the transaction does any more work.

Numbers are journal offsets, so claims only rise. An unconditional claim always wins. A consumer
that goes back to what is committed makes a *conditional* one: it holds only if nobody claimed
since. So a zombie that wakes up does not fence its successor, and that the zombie, back and forth
(trap 29).

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
"""Partitions of one consumer group whose claims are remembered: as many as its IOV has room for."""


class Held(NamedTuple):
    """The latest claim of a partition."""

    number: int
    """Journal offset of its record."""
    claimant: int


class Claims:
    """The latest claim of each input partition, by consumer group."""

    def __init__(self) -> None:
        """Nothing is claimed."""
        self._groups: dict[str, dict[TopicPartition, Held]] = {}
        """In the order of their numbers."""

    def decide(self, command: ClaimOffsets) -> int | None:
        """The number of the claim if this is a retry of the latest, else None: it needs a record.

        Raises:
            ClaimFencedError: it is conditional, and a partition was claimed since.
            RequestTooLargeError: more partitions than are remembered.
            NotSupportedError: no partition.
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
        # Before the condition: the first attempt, whose answer was lost, has changed the numbers.
        if not found and held is not None and held.claimant == command.claimant:
            return held.number
        if command.expected is not None:
            for partition in command.partitions:
                held, wanted = known.get(partition), command.expected.get(partition)
                if (None if held is None else held.number) != wanted:
                    raise _fenced(command.group, partition, held)
        return None

    def check(self, group: str, steps: Iterable[OffsetStep]) -> None:
        """Refuse input of a consumer whose partitions were given to another.

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
        """A claim is in the journal."""
        self._take(record.group, record.partitions, Held(offset, record.claimant))

    def restore(self, row: SnapshotClaim) -> None:
        """A claim as a snapshot says it, oldest first."""
        self._take(row.group, row.partitions, Held(row.number, row.claimant))

    def _take(self, group: str, partitions: Iterable[TopicPartition], held: Held) -> None:
        known = self._groups.setdefault(group, {})
        for partition in partitions:
            known.pop(partition, None)
            known[partition] = held
        # The oldest is forgotten, not the newest refused: partitions of topics that are gone must
        # not keep a group from working, and without a claim there still is the compare-and-set.
        while len(known) > CLAIMED_MAX:
            del known[next(iter(known))]

    def rows(self) -> Iterator[SnapshotClaim]:
        """All claims as a snapshot has them, each group's oldest first."""
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
