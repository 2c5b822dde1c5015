"""Places of one journal partition: the part of its state that decisions and PLACED records change.

`Shard.replay` feeds it. What it holds is in each snapshot, so a new owner has it as the old one
had.

Three of the rules of order are kept here (the others: `placing`, `modes`):

- A place is never below the partition's last place (R3): so places rise with the commit sequence,
  whatever end a broker tells. Nor is it below what the transaction wrote: a reader that comes to a
  place has read all that is to be delivered there.
- The first valid PLACED that covers a transaction in a partition counts (R6). Replay hands over
  valid records only; a second one finds nothing to cover.
- A fence (a snapshot, seen as a place to begin reading at) holds the last place of each partition,
  and all that is unfinished (R13). The journal is trimmed to a fence only when every partition's
  log starts at or behind its last place there (R14): then no reader of what is left of the data
  needs anything that lies before the fence. Of what is handed over to other homes, the end behind
  its last record counts like a place: readers in this journal's order learn of it here alone.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...journal.control import TopicPartition
from ...journal.places import GONE, PartitionId, Placed
from ...journal.value import value
from .unplaced import UnplacedTransactions


@value(frozen=True, slots=True)
class Fence:
    """A snapshot, as those see it who begin to read the journal there."""

    offset: int
    """Journal offset of its first chunk: records from there on are read."""
    last: Mapping[PartitionId, int]
    """Partition → its last place at that moment, or the end of what was handed over there."""

    def passed(self, log_starts: Mapping[PartitionId, int]) -> bool:
        """Returns whether the journal may be trimmed to it, as far as places go (R14).

        Args:
            log_starts: first offset of each partition's log; `GONE` if its topic was deleted. One
                that is not known must be left out: nothing is trimmed before it is.
        """
        return all(
            partition in log_starts
            and (log_starts[partition] == GONE or log_starts[partition] >= place)
            for partition, place in self.last.items()
        )


@dataclass(frozen=True, slots=True)
class PlacedWrites:
    """What an unfinished transaction wrote and is placed, not marked: a row of a snapshot."""

    begin: int
    sequence: int
    ends: Mapping[PartitionId, int]
    """Partition → the offset behind the last record that the commit accepts there; 0 where all of
    them lie in the sidecar."""
    places: Mapping[PartitionId, int]
    """Partition → place, or `GONE`, where it has one."""


class _Placing:
    """A decided, unfinished transaction."""

    __slots__ = ("ends", "places", "sequence")

    def __init__(self, sequence: int, ends: Mapping[PartitionId, int]) -> None:
        self.sequence = sequence
        self.ends = dict(ends)
        self.places: dict[PartitionId, int] = {}


class Places:
    """What is decided and not placed, and where everything else of it stands."""

    def __init__(self) -> None:
        self.unplaced = UnplacedTransactions()
        self.last: dict[PartitionId, int] = {}
        """Partition → the highest place given there; of another home's, the end behind the last
        record of what was handed over."""
        self._unfinished: dict[int, _Placing] = {}

    # ---- what the journal says ------------------------------------------------------------------

    def replay_commit(self, begin: int, sequence: int, ends: Mapping[PartitionId, int]) -> None:
        """Applies a decision.

        Args:
            begin: offset of the transaction's BEGIN.
            sequence: offset of the decision.
            ends: partition in which it is to be placed → the offset behind the last record that the
                commit accepts there; 0 where it accepts records in the sidecar alone. A partition
                without either needs no place.
        """
        if not ends:
            return
        placing = self._unfinished[begin] = _Placing(sequence, ends)
        self.unplaced.add(sequence, begin, placing.ends)

    def replay_handed(self, ends: Mapping[PartitionId, int]) -> None:
        """Notes where what was decided here ends, in partitions in which other homes placed it.

        Call it when that is finished: until then, snapshots list it.

        Args:
            ends: partition → the offset behind the last record that a commit accepts there.
        """
        for partition, end in ends.items():
            self.last[partition] = max(end, self.last.get(partition, 0))

    def replay_placed(self, placed: Placed) -> list[int]:
        """Applies a valid PLACED record.

        Returns:
            BEGINs of the transactions that now have all their places, by commit sequence.
        """
        ends, whole = placed.ends, []
        touched: dict[PartitionId, object] = {}
        for sequence, begin, partitions in self.unplaced.cover(placed):
            transaction = self._unfinished[begin]
            transaction.places.update(
                zip(partitions, map(ends.__getitem__, partitions), strict=True)
            )
            touched.update(dict.fromkeys(partitions))
            if len(transaction.places) == len(transaction.ends):
                whole.append((sequence, begin))
        for partition, place in ends.items():
            if partition in touched and place == GONE:
                self.last.pop(partition, None)
            elif partition in touched:
                self.last[partition] = max(place, self.last.get(partition, 0))
        return [begin for _, begin in sorted(whole)]

    def replay_finished(self, begin: int) -> None:
        """Forgets a finished transaction."""
        self._unfinished.pop(begin, None)

    # ---- what others ask ------------------------------------------------------------------------

    def of(self, begin: int) -> PlacedWrites | None:
        """Returns where an unfinished transaction is placed; None if it is placed nowhere."""
        t = self._unfinished.get(begin)
        return None if t is None else PlacedWrites(begin, t.sequence, dict(t.ends), dict(t.places))

    @property
    def unfinished_count(self) -> int:
        """Number of decided, unfinished transactions that are placed somewhere."""
        return len(self._unfinished)

    def is_waiting(self, begin: int) -> bool:
        """Returns whether an unfinished transaction lacks a place."""
        t = self._unfinished.get(begin)
        return t is not None and len(t.places) < len(t.ends)

    def gone(self, begin: int) -> tuple[TopicPartition, ...]:
        """Returns the partitions of an unfinished transaction that have no place, as their topic is
        gone. They get a marker, if another topic has the name.

        PLACED says it, and nothing else need: a marker that was written already may be written
        again. So a new owner writes those of all that are unfinished.
        """
        t = self._unfinished.get(begin)
        return () if t is None else tuple(p.key for p, at in t.places.items() if at == GONE)

    def gone_by(self, placed: Placed) -> dict[int, tuple[TopicPartition, ...]]:
        """Returns BEGIN → the partitions that a PLACED record says are gone, by commit sequence.

        Ask before the record is replayed: what it covers waits until then.
        """
        gone: dict[int, list[TopicPartition]] = {}
        for partition in (p for p, place in placed.ends.items() if place == GONE):
            for sequence, begin in self.unplaced.of(partition):
                if sequence <= placed.upto:
                    gone.setdefault(begin, []).append(partition.key)
        by_sequence = sorted(gone, key=lambda begin: self._unfinished[begin].sequence)
        return {begin: tuple(gone[begin]) for begin in by_sequence}

    def waiting_in(self, topic: str, topic_id: str) -> int:
        """Returns the number of (transaction, partition) of a topic that lack a place."""
        found = (
            p for p in self.unplaced.partitions() if (p.topic, p.topic_id) == (topic, topic_id)
        )
        return sum(len(self.unplaced.of(partition)) for partition in found)

    def last_in(self, topic: str, topic_id: str) -> dict[int, int]:
        """Returns partition → last place, of a topic."""
        found = (
            (p, at) for p, at in self.last.items() if (p.topic, p.topic_id) == (topic, topic_id)
        )
        return {p.partition: at for p, at in found}

    # ---- what an owner decides ------------------------------------------------------------------

    def place(self, upto: int, ends: Mapping[PartitionId, int]) -> Placed | None:
        """Returns the PLACED record that places what waits at these ends; None if nothing does.

        Args:
            upto: commit sequence of the last decision that was acknowledged before the ends were
                asked for.
            ends: ends of partitions as their leaders told them, or `GONE`.
        """
        written: dict[PartitionId, int] = {}
        for begin, partitions in self.unplaced.up_to(upto):
            behind = self._unfinished[begin].ends
            for partition in partitions:
                if behind[partition] > written.get(partition, -1):
                    written[partition] = behind[partition]
        places = {
            p: GONE if end == GONE else max(end, written[p], self.last.get(p, 0))
            for p, end in ends.items()
            if p in written
        }
        return Placed(upto, places) if places else None

    # ---- snapshots ------------------------------------------------------------------------------

    def fence(self, offset: int) -> Fence:
        """Returns what a snapshot whose first chunk lies at `offset` says of places."""
        return Fence(offset, dict(self.last))

    def rows(self) -> list[PlacedWrites]:
        """Returns the unfinished transactions with writes to place, by commit sequence.

        Those that have places count too: a reader that begins at this snapshot may begin below one.
        """
        found = (self.of(begin) for begin in self._unfinished)
        return sorted((row for row in found if row is not None), key=lambda row: row.sequence)

    @classmethod
    def restore(cls, fence: Fence, rows: Iterable[PlacedWrites]) -> Places:
        """Returns the places as they were when `fence` and `rows` gave them."""
        places = cls()
        places.last = dict(fence.last)
        for row in sorted(rows, key=lambda row: row.sequence):
            transaction = _Placing(row.sequence, row.ends)
            transaction.places = dict(row.places)
            places._unfinished[row.begin] = transaction
            left = {p: end for p, end in row.ends.items() if p not in row.places}
            if left:
                places.unplaced.add(row.sequence, row.begin, left)
        return places
