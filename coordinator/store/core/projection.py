"""The projection of one journal partition: journal entries in, writes of the store out. Pure.

What is unfinished is kept in memory, bounded by what the coordinator lets be unfinished, and is
read back from the store when a projector starts. Records are applied to it at once, and how the
store differs is found out when a write is taken (`unfinished`): so a write costs what it changes in
the end, and not what each record changed on the way.

Feeding a record again that was half written gives what is missing: each operation has a sequence
that its record gives it, and a header changes behind all operations of its record.

What is handed over to the home of another journal has its place in that one's journal. Here it
counts as placed behind its last record, which is at or below that place: so it is kept for as long
as its records can be read.

Begins at the journal's start, at a snapshot that counts, or where a store's cursor stands. From
each of these it knows for certain which entries count.

Source: PIP-471, "Operation records".
"""

from __future__ import annotations

import struct
import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from ....journal.control import OWN_BRANCH, TopicPartition
from ....journal.errors import CorruptRecordError
from ....journal.places import Placed, Unplaced
from ....journal.records.fate import NO_EPOCH
from ....journal.records.snapshots import begins_at
from ....journal.records.types import (
    UNKNOWN_OFFSET,
    Aborted,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Committed,
    DataPartition,
    Entry,
    JournalRecord,
    OffsetStep,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
    Snapshot,
    SnapshotTransaction,
)
from ....journal.state import State
from ....journal.txid import TxId
from ...protocol.metadata import Header, HeaderState, Operation, OperationKind
from .changes import MUTATIONS_MAX, REBUILDING, Cursor, Mutation, Write
from .codec import (
    NONE,
    UNPLACED,
    WHERE,
    beginning_at,
    ending_behind_last,
    ending_by_place,
    first_of,
    pack_place,
    pack_told,
    waits,
    where_of,
)
from .keys import SEQ
from .unfinished import ABORTED, COMMITTED, OPEN, Kept, Unfinished

_STATES: Final = {
    State.OPEN: HeaderState.OPEN,
    State.COMMITTING: HeaderState.COMMITTED,
    State.ABORTING: HeaderState.ABORTED,
}
_seq = SEQ.pack
_OFFSET: Final = struct.Struct(">Q")
_pack_offset = _OFFSET.pack
_FEW: Final = 4
"""Most partitions that are searched one by one; more take longer so than by a set."""


class JournalAnewError(CorruptRecordError):
    """The journal was made anew, or its end was lost: what the store has is of another one."""

    code = 0


class Projection:
    """Turns the entries of one journal partition into writes. Feed in order, without gaps.

    One that raised is of no use any more.
    """

    def __init__(self, partition: int, cursor: Cursor, mutations_max: int) -> None:
        """Begins where a cursor stands.

        Args:
            partition: number of the journal partition.
            cursor: where to go on; with the offset `REBUILDING` the first entry fed must be the
                first chunk of a snapshot that counts.
            mutations_max: most keys of a write, the cursor's not counted.
        """
        self.partition = partition
        self.next_offset: int | None = None
        """Journal offset of the entry to feed next; None before the first."""
        self._began = cursor
        self._epochs = cursor.epochs()
        self._room = max(1, mutations_max // MUTATIONS_MAX)
        """Most records, headers and operations, of a write."""
        self._transactions: dict[int, Unfinished] = {}
        self._decided: deque[Unfinished] = deque()
        """Those that may wait for places, and that no PLACED record has covered, in the order of
        their commit sequences."""
        self._left: Unplaced[Unfinished] = Unplaced()
        """Those of lower sequences that a PLACED record covered and left unplaced in a partition,
        for its end could not be asked for."""
        self._dirty: list[Unfinished] = []
        """Those of which the store differs."""
        self._size = 0
        """Number of records of which it differs; at times more than that."""
        self._due_from: int | None = None
        """Offset of the first entry that no write has; `next_offset` if there is none."""
        self._journal_bytes = b""
        """How the TxIds of the journal begin."""
        self._full: list[Write] = []
        self._apart: Cursor | None = None
        """Before the record that was fed last, if it may fill more than a write."""
        self._base: _Base | None = None
        """The snapshot that it begins at, until that is read."""
        self._is_basing = cursor.offset == REBUILDING

    def restore(self, header: Header, operations: Iterable[Operation]) -> None:
        """Keeps a transaction that the store has unfinished. Call `restored` behind the last."""
        self._transactions[header.txid.offset] = Unfinished.restored(header, operations)

    def restored(self) -> None:
        """Goes on behind what `restore` was given."""
        decided = [t for t in self._transactions.values() if t.status[0] == COMMITTED]
        self._decided.extend(sorted(decided, key=_sequence_of))

    @property
    def unfinished(self) -> int:
        """Number of transactions that are kept in memory."""
        return len(self._transactions)

    @property
    def cursor(self) -> Cursor:
        """Behind what was fed, as it is to be written with it."""
        at, epochs = self.next_offset, self._epochs
        if at is None or self._is_basing or at == self._began.offset:
            return self._began
        return Cursor(at, epochs.epoch, epochs.incarnation, epochs.surprised)

    # ---- feeding --------------------------------------------------------------------------------

    def feed(self, entries: Sequence[tuple[int, Entry]]) -> list[Write]:
        """Takes the next entries, each with its offset.

        Returns:
            What they change, in the order in which it is to be written.

        Raises:
            JournalAnewError: an entry is of another journal.
            CorruptRecordError: one does not follow from those before it.
        """
        if self.next_offset is None:
            first = entries[0] if entries else None
            self.next_offset = self._due_from = self._began.offset if first is None else first[0]
        rest = iter(entries)
        while self._is_basing and (first := next(rest, None)) is not None:
            self._feed_base(*first)
        changes, accept, offset = _CHANGES, self._epochs.accept, self.next_offset - 1
        for offset, entry in rest:
            self.next_offset, record = offset, entry.record
            if not accept(offset, entry):
                self._check(offset, entry)
            elif (change := changes.get(type(record))) is not None:
                try:
                    change(self, offset, record)
                except (KeyError, AssertionError) as error:
                    raise self._inconsistent(offset, error) from error
                if self._apart is not None:
                    self.next_offset = offset + 1
                    self._take_apart(self._apart)
        self.next_offset = offset + 1
        if not self._is_basing:
            self._take()
        full, self._full = self._full, []
        return full

    def _check(self, offset: int, entry: Entry) -> None:
        known = self._epochs.incarnation
        # One that claims no epoch says nothing of the journal: a bid for the empty partition that
        # came second has an incarnation of its own, and what fills a lost tail has none.
        if known is not None and entry.incarnation != known and entry.epoch != NO_EPOCH:
            raise JournalAnewError(
                f"journal partition {self.partition} at offset {offset}: the record is of"
                f" incarnation {entry.incarnation:012x}, not {known:012x}: the journal was made"
                " anew"
            )

    def _inconsistent(self, offset: int, error: Exception) -> CorruptRecordError:
        return CorruptRecordError(
            f"journal partition {self.partition} at offset {offset}: the record does not follow"
            f" from those before it: {error!r}"
        )

    def _make_room(self, size: int) -> None:
        """Makes room for what a record may change; called before it changes anything.

        A record that fills more than a write is written in several, alone: it is fed again if it is
        left half written, and then finds what is written. If other records lay in the same write,
        feeding them again would find their effects too.
        """
        self._size = size + sum(t.size for t in self._dirty)
        if self._size > self._room:
            self._take()
            self._size = size
        if size > self._room:
            self._apart = self.cursor

    def _take(self) -> None:
        """Ends the write that what was fed is due in."""
        if self.next_offset == self._due_from:
            return
        mutations: list[Mutation] = []
        guards: dict[bytes, bytes | None] = {}
        added, put = 0, 0
        for transaction in self._dirty:
            more, new = transaction.differing(mutations, guards)
            added += more
            put += new
        self._full.append(Write(mutations, added, put, self.cursor, guards))
        self._written()

    def _take_apart(self, before: Cursor) -> None:
        """Ends as many writes as it takes for what the record behind a cursor changed."""
        self._apart = None
        mutations: list[Mutation] = []
        guards: dict[bytes, bytes | None] = {}
        added, put, count, part = 0, 0, 0, before.part
        for transaction in self._dirty:
            for found, more, new, guarded in transaction.each():
                if count == self._room:
                    # The cursor stays before the record. It changes all the same, so that of two
                    # projectors one alone wins each part.
                    part += 1
                    filled = replace(before, part=part)
                    self._full.append(Write(mutations, added, put, filled, guards))
                    mutations, guards, added, put, count = [], {}, 0, 0, 0
                mutations += found
                guards.update(guarded)
                added, put, count = added + more, put + new, count + 1
        self._full.append(Write(mutations, added, put, self.cursor, guards))
        self._written()

    def _written(self) -> None:
        self._dirty.clear()
        self._size = 0
        self._due_from = self.next_offset

    # ---- what a snapshot tells ------------------------------------------------------------------

    def _feed_base(self, offset: int, entry: Entry) -> None:
        base = self._base
        if base is None:
            base = self._base = _Base(offset, entry)
            self._epochs = Cursor(offset, entry.epoch, entry.incarnation).epochs()
        self.next_offset = offset + 1
        valid = self._epochs.accept(offset, entry)
        if not valid or (begins_at(offset, entry) and offset != base.first):
            raise CorruptRecordError(
                f"journal partition {self.partition} at offset {base.first}: the snapshot that the"
                " projection begins at does not count"
            )
        if not base.feed(offset, entry.record):
            return
        before, self._base, self._is_basing = self._began, None, False
        self._restore_rows(base)
        # No room is asked for: all of it is one step, however large.
        room, self._room = self._room, sys.maxsize
        for between, record in base.between:
            if (change := _CHANGES.get(type(record))) is not None:
                try:
                    change(self, between, record)
                except (KeyError, AssertionError) as error:
                    raise self._inconsistent(between, error) from error
        self._room = room
        self._size = sum(t.size for t in self._dirty)
        if self._size > room:
            self._take_apart(before)

    def _restore_rows(self, base: _Base) -> None:
        for begin, rows in base.transactions.items():
            self._transactions[begin] = self._restore_row(base, rows)
        self.restored()

    def _restore_row(self, base: _Base, rows: Sequence[SnapshotTransaction]) -> Unfinished:
        row, first = rows[0], base.first
        incarnation = self._epochs.incarnation
        assert incarnation is not None, "a snapshot tells it"
        decided = row.state is not State.OPEN
        transaction = Unfinished.of_header(
            Header(
                txid=TxId(self.partition, incarnation, row.begin),
                version=first,
                state=_STATES[row.state],
                producer_id=row.producer_id,
                generation=row.generation,
                created_ms=row.started_ms,
                timeout_ms=0 if decided else row.started_ms + row.timeout_ms,
                finalized_ms=row.started_ms if decided else 0,
                commit_sequence=row.commit_sequence,
                reason=row.reason,
            )
        )
        self._dirty.append(transaction)
        if row.state is State.ABORTING:
            return transaction
        places = base.places.get(row.begin, {})
        # Numbered through: what one transaction wrote may be spread over several rows.
        number = 0
        for part in rows:
            made = _runs(first, number, part.writes, places, base.handed.get(row.begin, ()))
            transaction.update(made)
            number += len(made)
            if not decided:
                number = _register(transaction, first, number, part.partitions)
            for moved in part.steps:
                number = _move(transaction, first, number, moved.group, moved.steps)
        runs = [kept for kept in transaction.operations.values() if isinstance(kept, tuple)]
        told = {run[WHERE].id: places[run[WHERE].key] for run in runs if waits(run)}
        transaction.place({p: pack_place(place) for p, place in told.items() if place is not None})
        return transaction

    # ---- what records change --------------------------------------------------------------------

    def _of(self, begin: int) -> Unfinished:
        """Returns a transaction that is about to change."""
        transaction = self._transactions[begin]
        if not transaction.is_dirty:
            self._touch(transaction)
        return transaction

    def _touch(self, transaction: Unfinished) -> None:
        transaction.touch()
        self._dirty.append(transaction)

    def _begin(self, offset: int, record: Begin) -> None:
        partitions = record.partitions
        self._size += 1 + len(partitions)
        if self._size > self._room:
            self._make_room(1 + len(partitions))
        if offset not in self._transactions:
            started_ms = record.started_ms
            transaction = self._transactions[offset] = Unfinished(
                (self._journal_bytes or self._begin_of_txids()) + _pack_offset(offset),
                (record.producer_id, record.generation, started_ms),
                (OPEN, offset, started_ms + record.timeout_ms, 0, NONE, None),
            )
            self._dirty.append(transaction)
        if partitions:
            _register(self._of(offset), offset, 0, partitions)

    def _begin_of_txids(self) -> bytes:
        incarnation = self._epochs.incarnation
        assert incarnation is not None, "a valid record has an OWNER before it"
        self._journal_bytes = TxId(self.partition, incarnation, 0).to_bytes()[: -_OFFSET.size]
        return self._journal_bytes

    def _add_partitions(self, offset: int, record: AddPartitions) -> None:
        self._reserve(1 + len(record.partitions))
        transaction = self._of(record.begin)
        if transaction.status[0] == OPEN:
            _register(transaction, offset, 0, record.partitions)

    def _add_offsets(self, offset: int, record: AddOffsets) -> None:
        self._reserve(1 + len(record.steps))
        _move(self._of(record.begin), offset, 0, record.group, record.steps)

    def _add_writes(self, offset: int, record: AddWrites) -> None:
        made = _runs(offset, 0, record.writes)
        self._reserve(1 + len(made))
        self._of(record.begin).update(made)

    def _commit(self, offset: int, record: PrepareCommit) -> None:
        placed: Container[TopicPartition] = record.placed
        if len(record.placed) > _FEW:
            placed = frozenset(record.placed)
        handed = dict(record.handed) if record.handed else {}
        made = _runs(offset, 0, record.writes, placed, handed)
        transaction = self._transactions[record.begin]
        size = 1 + len(made) + len(transaction.operations)
        self._size += size
        if self._size > self._room:
            self._make_room(size)
        if not transaction.is_dirty:
            self._touch(transaction)
        if record.added:
            # What the parts named is known by now to be placed.
            for seq, kept in list(transaction.operations.items()):
                if not isinstance(kept, tuple):
                    continue
                if kept[WHERE].key in placed:
                    transaction.put(seq, ending_by_place(kept))
                elif kept[WHERE].key in handed:
                    transaction.put(seq, ending_behind_last(kept))
        transaction.update(made)
        if transaction.registered:
            transaction.drop_registered()
        transaction.status = COMMITTED, offset, 0, record.decided_ms, offset, None
        if placed:
            self._decided.append(transaction)

    def _abort(self, offset: int, record: PrepareAbort) -> None:
        self._reserve(1 + len(self._transactions[record.begin].operations))
        transaction = self._of(record.begin)
        transaction.drop(list(transaction.operations))
        transaction.registered = transaction.acks = None
        transaction.status = ABORTED, offset, 0, record.decided_ms, offset, record.reason

    def _place(self, _offset: int, record: Placed) -> None:
        places = {partition: pack_place(place) for partition, place in record.ends.items()}
        again = dict.fromkeys(transaction for _, _, (_, transaction) in self._left.cover(record))
        covered, decided = [], self._decided
        while decided and _sequence_of(decided[0]) <= record.upto:
            covered.append(decided.popleft())
        self._reserve(sum([1 + len(each.operations) for each in (*again, *covered)]))
        for transaction in (*again, *covered):
            if not transaction.is_dirty:
                self._touch(transaction)
        for transaction in again:
            transaction.place(places)  # where it waits on, it is among those left already
        for transaction in covered:
            for partition in transaction.place(places):
                self._left.add(partition, _sequence_of(transaction), transaction)

    def _finish(self, offset: int, record: Committed | Aborted) -> None:
        transaction = self._transactions.pop(record.begin)
        wanted = COMMITTED if type(record) is Committed else ABORTED
        assert transaction.status[0] == wanted, f"it was not decided so: {transaction.status}"
        size = 1 + len(transaction.operations)
        self._size += size
        if self._size > self._room:
            self._make_room(size)
        if not transaction.is_dirty:
            self._touch(transaction)
        transaction.finish(offset)

    def _reserve(self, size: int) -> None:
        self._size += size
        if self._size > self._room:
            self._make_room(size)


_Change: TypeAlias = Callable[[Projection, int, Any], None]
_CHANGES: Final[Mapping[type, _Change]] = {
    Begin: Projection._begin,
    AddPartitions: Projection._add_partitions,
    AddOffsets: Projection._add_offsets,
    AddWrites: Projection._add_writes,
    PrepareCommit: Projection._commit,
    PrepareAbort: Projection._abort,
    Placed: Projection._place,
    Committed: Projection._finish,
    Aborted: Projection._finish,
}
"""Type of a record → what it changes."""


class _Base:
    """The snapshot that a projection begins at."""

    def __init__(self, offset: int, entry: Entry) -> None:
        """Begins before its first chunk.

        Raises:
            CorruptRecordError: no snapshot begins there.
        """
        if not begins_at(offset, entry):
            raise CorruptRecordError(f"no snapshot begins at offset {offset} of the journal")
        self.first = offset
        self.transactions: dict[int, list[SnapshotTransaction]] = {}
        """BEGIN → the rows of the transaction."""
        self.places: dict[int, dict[TopicPartition, int | None]] = {}
        """BEGIN → partition in which it is placed → its place there."""
        self.handed: dict[int, set[TopicPartition]] = {}
        """BEGIN → partitions in which the home of another journal places it."""
        self.between: list[tuple[int, JournalRecord]] = []
        """Records between the chunks: they were decided on top of what the rows say."""

    def feed(self, offset: int, record: JournalRecord) -> bool:
        """Takes the next valid record. Returns whether it is the snapshot's last chunk."""
        if not isinstance(record, Snapshot):
            self.between.append((offset, record))
            return False
        for row in record.transactions:
            self.transactions.setdefault(row.begin, []).append(row)
        for over in record.handed:
            self.handed.setdefault(over.begin, set()).update(key for key, _ in over.partitions)
        for placed in record.places:
            there = self.places.setdefault(placed.begin, {})
            there.update({partition.key: place for partition, _, place in placed.places})
        return record.last


# ---- what records say of one transaction --------------------------------------------------------
#
# Each numbers the operations that it makes, and returns the number of the next one.


def _register(
    transaction: Unfinished, offset: int, number: int, partitions: Iterable[DataPartition]
) -> int:
    registered = transaction.registered
    if registered is None:
        registered = transaction.registered = {}
    for named in partitions:
        seq, first = registered.get(named.key), named.first_offset
        if seq is None:
            seq = registered[named.key] = _seq(offset, number)
            where = where_of(named.topic, named.partition, named.topic_id)
            told = where.head + pack_told(first, UNKNOWN_OFFSET, 0, OWN_BRANCH, False)
            transaction.put(seq, (where, told, UNPLACED))
        else:
            known = transaction.operations[seq]
            assert isinstance(known, tuple), "acknowledgements are not registered"
            if _is_earlier(first, first_of(known)):
                transaction.put(seq, beginning_at(known, first))
        number += 1
    return number


def _runs(
    offset: int,
    number: int,
    writes: Iterable[PartitionWrites],
    placed: Container[TopicPartition] = (),
    handed: Container[TopicPartition] = (),
) -> dict[bytes, Kept]:
    """Returns the writes that a record names, by their sequences from `number` on."""
    made: dict[bytes, Kept] = {}
    for each in writes:
        partition = each.partition
        where = where_of(partition.topic, partition.partition, partition.topic_id)
        is_handed = where.key in handed
        is_placed = is_handed or where.key in placed
        for run in each.branches:
            first, last = run.first_offset, run.last_offset
            told = where.head + pack_told(first, last, run.count, run.branch, is_placed)
            place = pack_place(last + 1) if is_handed else UNPLACED
            made[_seq(offset, number)] = where, told, place
            number += 1
    return made


def _move(
    transaction: Unfinished, offset: int, number: int, group: str, steps: Iterable[OffsetStep]
) -> int:
    acks = transaction.acks
    if acks is None:
        acks = transaction.acks = {}
    for step in steps:
        key = group, step.topic, step.partition
        seq = acks.get(key)
        if seq is None:
            seq = acks[key] = _seq(offset, number)
            transaction.put(
                seq,
                Operation(
                    txid=TxId.from_bytes(transaction.txid),
                    seq=(offset, number),
                    kind=OperationKind.ACK,
                    topic=step.topic,
                    partition=step.partition,
                    topic_id=step.to.topic_id,
                    subscription=group,
                    from_place=step.from_place,
                    to=step.to,
                ),
            )
        else:
            known = transaction.operations[seq]
            assert isinstance(known, Operation), "a step is an acknowledgement"
            if known.to is not None and known.to.place == step.from_place:
                transaction.put(seq, replace(known, to=step.to))
            # A step that does not go on from there was sent before.
        number += 1
    return number


def _sequence_of(transaction: Unfinished) -> int:
    return transaction.status[4]


def _is_earlier(told: int, known: int) -> bool:
    return told != UNKNOWN_OFFSET and (known == UNKNOWN_OFFSET or told < known)
