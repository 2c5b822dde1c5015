"""Decides what is copied out of the head of a sidecar partition, and when the head may go. Pure.

One run works on one partition. Any number of runs may work on it at once, and each may die
anywhere: none knows of the others but by relocations, which are facts (`journal.relocation`). A run
has these steps, in this order:

K1. It notes the ids of both topics, the partition's end, and where the main partition starts. What
    is still to come lies behind that end.
K2. It notes where the partition starts, and reads the relocations then. What another run has
    trimmed up to there has a relocation from before that.
K3. It reads the partition from its start to its end, markers that came behind the noted end
    included; to the noted end at least, whatever end it is told then (trap 206). If records were
    trimmed meanwhile, the run ends: it may have missed some.
K4. A transaction whose marker it has not met holds the head back, from its first record on: it may
    be open, or committed and its pointer not written yet. So nobody is asked what is decided, and
    nothing is waited for: the sidecar's marker comes behind the pointer. A commit whose marker does
    not say where its pointer is holds it back, too.
K5. A committed range is needed while its pointer lies at or above the start of the main partition
    that was noted. The marker names the pointer that was acknowledged last, so this is late, and
    never too early (`staircases`). A range has moved where the last copy of it lies that is there.
K6. It copies each needed range that begins below the bound, in commit order, wholly, to the
    partition's end. Copies lie behind the noted end, so no run's own trim takes its own copies.
K7. When all records of a copy are acknowledged, and not before, it writes the relocation.
K8. When all relocations are acknowledged, and the grace period has passed since, it trims up to the
    bound. The period counts from its reading of relocations at least: what another run has copied
    needs no second copy, and that one may have said so a moment ago. A broker that leads the
    relocations' partition no more tells an end of the past for that long: who looks a range up
    there would not find it, and take it for lost.
K9. Before that, the ids of both topics are compared (`trimming`, T5).

Coordinators go on trimming, and know nothing of copies. They never pass the first offset of a range
that a pointer needs, whether it lies there or has moved; a copy lies behind its original. So they
stand still before copies until retention took the pointers (trap 194).

Readers look a range up when the partition starts above what they need of it: first the start is
asked for, then relocations are read. A copy has the offsets of its originals, so a reader goes on
in it at the very record that comes next, also if that copy goes meanwhile.

Source: PIP-31, "Sidecar Approach" (the sidecar is compacted in commit order).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...journal.control import Marker, TopicPartition
from ...journal.errors import BrokerError, IntegrityError
from ...journal.relocation import Relocation, Relocations
from ...journal.value import value
from .trimming import Noted

NEEDED_SHARE: float = 0.5
"""Share of the offsets of the head that may be copied. With more, a run writes more for each offset
that it frees; with less it leaves more."""


@value(frozen=True, slots=True, kw_only=True)
class Needed:
    """A committed range that a pointer needs, and where it lies."""

    txid: bytes
    """The TxId as bytes."""
    pointer: int
    first: int
    last: int
    count: int
    """Number of its records that the pointer names."""
    copy_id: bytes | None
    """Of the copy that lies there; None: it has not moved."""


@value(frozen=True, slots=True)
class Plan:
    """What a run will do."""

    start: int
    """Where the partition starts."""
    bound: int
    """Up to where it will be trimmed; `start`: it is not worth it, or nothing may go."""
    copies: tuple[Needed, ...]
    """What is copied before, in commit order."""
    held_by: bytes | None
    """The TxId of the transaction that holds the head back; None: the noted end does."""

    @property
    def copied(self) -> int:
        """Number of records that are copied."""
        return sum(each.count for each in self.copies)


@dataclass(slots=True)
class _Seen:
    """What was met of a transaction."""

    first: int
    is_ended: bool = False
    marker: Marker | None = None
    """Its COMMITTED marker, the one that names the highest pointer."""


class Scan:
    """One reading of a sidecar partition (K3)."""

    def __init__(
        self, key: TopicPartition, noted: Noted, start: int, relocations: Iterable[Relocation]
    ) -> None:
        """Begins at the partition's start.

        Args:
            key: the sidecar partition.
            noted: what was noted of it (K1).
            start: where it starts, asked for behind that.
            relocations: all that are known, read behind that (K2).
        """
        self._key, self._noted, self._start = key, noted, start
        self._relocations = Relocations(relocations)
        self._seen: dict[bytes, _Seen] = {}

    def record(self, offset: int, txid: bytes) -> None:
        """Takes a record with this TxId, in offset order."""
        if offset < self._noted.end:
            self._seen.setdefault(txid, _Seen(offset))

    def marker(self, txid: bytes, marker: Marker) -> None:
        """Takes a transaction's marker."""
        seen = self._seen.setdefault(txid, _Seen(self._noted.end))
        seen.is_ended = True
        before = -1 if seen.marker is None else seen.marker.pointer
        if marker.committed and (seen.marker is None or _is_later(marker.pointer, before)):
            seen.marker = marker

    def plan(self, share: float = NEEDED_SHARE) -> Plan:
        """Returns what is to be done.

        Args:
            share: of the head's offsets, how many may be copied at most, 0 to 1.
        """
        limit, held_by = self._limit()
        needed = sorted(self._needed(), key=lambda each: each.first)
        bound, chosen, cost = self._start, 0, 0
        ends = [each.first for each in needed if each.first < limit] + [limit]
        for count, end in enumerate(ends):
            if end > self._start and cost <= share * (end - self._start):
                bound, chosen = end, count
            if count < len(needed):
                cost += needed[count].count
        copies = sorted(needed[:chosen], key=lambda each: each.pointer)
        return Plan(self._start, bound, tuple(copies), held_by)

    def _limit(self) -> tuple[int, bytes | None]:
        # K1, K4.
        limit, held_by = self._noted.end, None
        for txid, seen in self._seen.items():
            marker = seen.marker
            is_unsaid = marker is not None and marker.branches and marker.pointer is None
            if seen.first < limit and (not seen.is_ended or is_unsaid):
                limit, held_by = seen.first, txid
        return limit, held_by

    def _needed(self) -> Iterable[Needed]:
        # K5.
        noted, moved = self._noted, self._relocations
        told = moved.of(self._key, noted.topic_id)
        for txid in dict.fromkeys([*self._seen, *(each.txid for each in told)]):
            seen = self._seen.get(txid)
            marker = None if seen is None else seen.marker
            copy = moved.find(self._key, noted.topic_id, txid, self._start)
            if copy is not None:
                found = Needed(
                    txid=txid,
                    pointer=copy.pointer,
                    first=copy.first,
                    last=copy.last,
                    count=copy.count,
                    copy_id=copy.copy_id,
                )
            elif marker is not None and marker.branches and marker.pointer is not None:
                found = Needed(
                    txid=txid,
                    pointer=marker.pointer,
                    first=min(b.first_offset for b in marker.branches),
                    last=max(b.last_offset for b in marker.branches),
                    count=sum(b.count for b in marker.branches),
                    copy_id=None,
                )
            else:
                continue
            if found.pointer >= noted.main_start and found.first >= self._start:
                yield found


def _is_later(pointer: int | None, than: int | None) -> bool:
    return pointer is not None and (than is None or pointer > than)


@dataclass(slots=True)
class Compaction:
    """One run, from its plan on."""

    key: TopicPartition
    topic_id: str
    plan: Plan
    copy_id: bytes
    """Of all copies of this run; 16 bytes that no other run has."""
    grace_s: float
    durable_s: float
    """When relocations were read, or the last one of this run was acknowledged."""
    durable: set[bytes] = field(default_factory=set)
    """TxIds of the ranges whose relocation is acknowledged."""

    def copied(self, needed: Needed, offsets: Sequence[int]) -> Relocation:
        """Returns the relocation to write, when all records of a copy are acknowledged (K7).

        Args:
            needed: what was copied.
            offsets: of the copied records.

        Raises:
            IntegrityError: there are fewer than the pointer names.
            BrokerError: a record lies below the noted end: it was not told where it lies.
        """
        if len(offsets) < needed.count:
            raise IntegrityError(
                f"{self.key[0]}[{self.key[1]}] holds {len(offsets)} of the {needed.count} records"
                f" of a range from {needed.first} to {needed.last}: nothing is trimmed. Look with"
                " `logtx audit`"
            )
        if min(offsets) < self.plan.bound:
            raise BrokerError("it is not known where copies lie: run it again")
        return Relocation(
            sidecar=self.key,
            topic_id=self.topic_id,
            txid=needed.txid,
            copy_id=self.copy_id,
            first=min(offsets),
            last=max(offsets),
            count=needed.count,
            pointer=needed.pointer,
        )

    def acknowledged(self, relocation: Relocation, now_s: float) -> None:
        """Notes that a relocation is durable."""
        self.durable.add(relocation.txid)
        self.durable_s = now_s

    def due_s(self) -> float | None:
        """Returns when the head may go; None if relocations are missing (K8)."""
        if any(each.txid not in self.durable for each in self.plan.copies):
            return None
        return self.durable_s + self.grace_s


def obsolete(relocations: Iterable[Relocation], start: int) -> list[Relocation]:
    """Returns those of a partition whose copy is trimmed: nobody reads it any more.

    A start only rises, so what is said here stays true.
    """
    return [each for each in relocations if each.first < start]
