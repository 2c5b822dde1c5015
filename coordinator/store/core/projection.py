"""The projection of one journal partition: journal entries in, changes of the store out. Pure.

What is unfinished is kept in memory, bounded by what the coordinator lets be unfinished, and is
read back from the store when a projector starts. Feeding a record again that was half written
gives what is missing: each operation has a sequence that its record gives it, and a header changes
behind all operations of its record.

Begins at the journal's start, at a snapshot that counts, or where a store's cursor stands. From
each of these it knows for certain which entries count.

Source: PIP-471, "Operation records".
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from ....journal.control import TopicPartition
from ....journal.errors import CorruptRecordError
from ....journal.places import GONE, PartitionId, Placed, Unplaced
from ....journal.records.snapshots import begins_at
from ....journal.records.types import (
    UNKNOWN_OFFSET,
    Aborted,
    AbortReason,
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
from .changes import REBUILDING, Change, Cursor, Step

_OPEN, _COMMITTED, _ABORTED = HeaderState.OPEN, HeaderState.COMMITTED, HeaderState.ABORTED
_Seq = tuple[int, int]
_WRITE, _ACK = OperationKind.WRITE, OperationKind.ACK
_STATES: Final = {
    State.OPEN: _OPEN,
    State.COMMITTING: _COMMITTED,
    State.ABORTING: _ABORTED,
}


class JournalAnewError(CorruptRecordError):
    """The journal was made anew, or its end was lost: what the store has is of another one."""

    code = 0


class _Unfinished:
    """What the store has of a transaction that is not finished."""

    __slots__ = ("acks", "header", "writes")

    def __init__(self, header: Header) -> None:
        self.header = header
        self.writes: dict[TopicPartition, dict[_Seq, Operation]] = {}
        """Partition → its writes."""
        self.acks: dict[tuple[str, str, int], Operation] = {}
        """(consumer group, topic, partition) → the step there."""

    def keep(self, operation: Operation) -> Operation | None:
        """Keeps an operation, and returns the one that it replaces."""
        topic, partition = operation.topic, operation.partition
        if operation.kind is _WRITE:
            there = self.writes.setdefault((topic, partition), {})
            before = there.get(operation.seq)
            there[operation.seq] = operation
        else:
            key = operation.subscription, topic, partition
            before = self.acks.get(key)
            self.acks[key] = operation
        return before

    def put(self, operation: Operation) -> Change:
        """Keeps an operation, and returns how the store changes."""
        return Change(self.keep(operation), operation)

    def become(self, header: Header) -> Change:
        """Changes the header, and returns how the store changes."""
        before, self.header = self.header, header
        return Change(before, header)

    def drop(self, doomed: Callable[[Operation], bool]) -> Iterator[Change]:
        """Forgets the writes that `doomed` holds for, and yields how the store changes."""
        for key, there in list(self.writes.items()):
            for seq, operation in list(there.items()):
                if doomed(operation):
                    del there[seq]
                    yield Change(operation, None)
            if not there:
                del self.writes[key]

    def drop_acks(self) -> Iterator[Change]:
        """Forgets the steps, and yields how the store changes."""
        for operation in self.acks.values():
            yield Change(operation, None)
        self.acks.clear()

    def registered(self, key: TopicPartition) -> Operation | None:
        """Returns what stands for a partition before the decision."""
        return next((o for o in self.writes.get(key, {}).values() if not o.count), None)

    def operations(self) -> Iterator[Operation]:
        """Yields all operations."""
        for there in self.writes.values():
            yield from there.values()
        yield from self.acks.values()


class Projection:
    """Turns the entries of one journal partition into changes. Feed in order, without gaps."""

    def __init__(self, partition: int, cursor: Cursor) -> None:
        """Begins where a cursor stands.

        Args:
            partition: number of the journal partition.
            cursor: where to go on; with the offset `REBUILDING` the first entry fed must be the
                first chunk of a snapshot that counts.
        """
        self.partition = partition
        self.cursor = cursor
        """Behind what was fed, as it is to be written with the changes that were returned."""
        self.next_offset: int | None = None
        """Journal offset of the entry to feed next; None before the first."""
        self._epochs = cursor.epochs()
        self._transactions: dict[int, _Unfinished] = {}
        self._unplaced: Unplaced[int] = Unplaced()
        self._base: _Base | None = None
        """The snapshot that it begins at, until that is read."""

    def restore(self, header: Header, operations: Iterable[Operation]) -> None:
        """Keeps a transaction that the store has unfinished. Call `restored` behind the last."""
        transaction = self._transactions[header.txid.offset] = _Unfinished(header)
        for operation in operations:
            transaction.keep(operation)

    def restored(self) -> None:
        """Goes on behind what `restore` was given."""
        decided = [t for t in self._transactions.values() if t.header.commit_sequence is not None]
        for transaction in sorted(decided, key=lambda t: t.header.commit_sequence or 0):
            self._await_places(transaction)

    def _await_places(self, transaction: _Unfinished) -> None:
        header = transaction.header
        if header.state is not _COMMITTED:
            return
        assert header.commit_sequence is not None, "it is decided"
        for (topic, partition), there in transaction.writes.items():
            for operation in there.values():
                if operation.placed and operation.place is None:
                    key = PartitionId(topic, partition, operation.topic_id)
                    self._unplaced.add(key, header.commit_sequence, header.txid.offset)
                    break

    @property
    def unfinished(self) -> int:
        """Number of transactions that are kept in memory."""
        return len(self._transactions)

    # ---- feeding --------------------------------------------------------------------------------

    def feed(self, offset: int, entry: Entry) -> Step | None:
        """Takes the next entry.

        Returns:
            What it changes; None while a snapshot is being read, which changes all at once.

        Raises:
            JournalAnewError: the entry is of another journal.
            CorruptRecordError: it does not follow from those before it.
        """
        self.next_offset = offset + 1
        known = self._epochs.incarnation
        if known is not None and entry.incarnation != known:
            raise JournalAnewError(
                f"journal partition {self.partition} at offset {offset}: the record is"
                f" of incarnation {entry.incarnation:012x}, not {known:012x}: the journal was made"
                " anew"
            )
        before = self.cursor
        if before.offset == REBUILDING and self._base is None:
            self._base = _Base(offset, entry)
            self._epochs = Cursor(offset, entry.epoch, entry.incarnation).epochs()
        valid = self._epochs.accept(offset, entry)
        try:
            if self._base is not None:
                changes = self._feed_base(self._base, offset, entry, valid=valid)
                if changes is None:
                    return None
            else:
                changes = self._changes(offset, entry.record) if valid else []
        except (KeyError, AssertionError) as error:
            raise CorruptRecordError(
                f"journal partition {self.partition} at offset {offset}: the record does not follow"
                f" from those before it: {error!r}"
            ) from error
        epochs = self._epochs
        self.cursor = Cursor(offset + 1, epochs.epoch, epochs.incarnation, epochs.surprised)
        return Step(changes, before, self.cursor)

    def _feed_base(
        self, base: _Base, offset: int, entry: Entry, *, valid: bool
    ) -> list[Change] | None:
        if not valid or (begins_at(offset, entry) and offset != base.first):
            raise CorruptRecordError(
                f"journal partition {self.partition} at offset {base.first}: the snapshot that the"
                " projection begins at does not count"
            )
        if not base.feed(offset, entry.record):
            return None
        self._base = None
        changes = list(self._restore_rows(base))
        for between, record in base.between:
            changes += self._changes(between, record)
        return changes

    def _changes(self, offset: int, record: JournalRecord) -> list[Change]:
        out: list[Change] = []
        match record:  # the most frequent first
            case Begin():
                self._begin(offset, record, out)
            case PrepareCommit():
                self._commit(offset, record, out)
            case Committed() | Aborted():
                self._finish(offset, record, out)
            case Placed():
                self._place(record, out)
            case AddPartitions():
                transaction = self._of(record.begin)
                if transaction.header.state is _OPEN:
                    out += _register(transaction, offset, count(), record.partitions)
            case AddOffsets():
                steps, transaction = record.steps, self._of(record.begin)
                out += _move(transaction, offset, count(), record.group, steps)
            case AddWrites():
                out += _write(self._of(record.begin), offset, count(), record.writes)
            case PrepareAbort():
                self._abort(offset, record, out)
        return out

    def _of(self, begin: int) -> _Unfinished:
        return self._transactions[begin]

    def _begin(self, offset: int, record: Begin, out: list[Change]) -> None:
        transaction = self._transactions.get(offset)
        if transaction is None:
            incarnation = self._epochs.incarnation
            assert incarnation is not None, "a valid record has an OWNER before it"
            header = Header(
                txid=TxId(self.partition, incarnation, offset),
                version=offset,
                state=_OPEN,
                producer_id=record.producer_id,
                generation=record.generation,
                created_ms=record.started_ms,
                timeout_ms=record.started_ms + record.timeout_ms,
            )
            transaction = self._transactions[offset] = _Unfinished(header)
            out.append(Change(None, header))
        if record.partitions:
            out += _register(transaction, offset, count(), record.partitions)

    def _commit(self, offset: int, record: PrepareCommit, out: list[Change]) -> None:
        transaction = self._of(record.begin)
        placed = frozenset(record.placed)
        registered = list(transaction.writes.values())
        if record.added:
            # What the parts named is known by now to be placed.
            for operation in [o for k in placed for o in transaction.writes.get(k, {}).values()]:
                out.append(transaction.put(replace(operation, placed=True)))
        out += _write(transaction, offset, count(), record.writes, placed)
        if registered:
            out += transaction.drop(lambda o: not o.count)
        out.append(transaction.become(_decided(transaction.header, offset, record.decided_ms)))
        if placed:
            self._await_places(transaction)

    def _abort(self, offset: int, record: PrepareAbort, out: list[Change]) -> None:
        transaction = self._of(record.begin)
        out += transaction.drop(lambda _: True)
        out += transaction.drop_acks()
        header = _decided(transaction.header, offset, record.decided_ms, record.reason)
        out.append(transaction.become(header))

    def _place(self, record: Placed, out: list[Change]) -> None:
        for partition, place, (_, begin) in self._unplaced.cover(record):
            transaction = self._of(begin)
            there = transaction.writes.get(partition.key, {})
            for seq, operation in list(there.items()):
                if operation.place is not None:
                    continue
                if place == GONE:
                    del there[seq]
                    out.append(Change(operation, None))
                else:
                    after = there[seq] = _placed(operation, place)
                    out.append(Change(operation, after))

    def _finish(self, offset: int, record: Committed | Aborted, out: list[Change]) -> None:
        transaction = self._transactions.pop(record.begin)
        header = transaction.header
        wanted = _COMMITTED if isinstance(record, Committed) else _ABORTED
        assert header.state is wanted, f"it was not decided so: {header}"
        for there in transaction.writes.values():
            for operation in there.values():
                if operation.place is None:
                    out.append(Change(operation, None))
        for operation in transaction.acks.values():
            out.append(Change(operation, None))
        out.append(Change(header, _finished(header, offset)))

    # ---- what a snapshot tells ------------------------------------------------------------------

    def _restore_rows(self, base: _Base) -> Iterator[Change]:
        for begin, rows in base.transactions.items():
            transaction = self._transactions[begin] = self._restore_row(base, rows)
            for operation in transaction.operations():
                yield Change(None, operation)
            yield Change(None, transaction.header)
        self.restored()

    def _restore_row(self, base: _Base, rows: Sequence[SnapshotTransaction]) -> _Unfinished:
        row, first = rows[0], base.first
        incarnation = self._epochs.incarnation
        assert incarnation is not None, "a snapshot tells it"
        decided = row.state is not State.OPEN
        transaction = _Unfinished(
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
        if row.state is State.ABORTING:
            return transaction
        places = base.places.get(row.begin, {})
        # Numbered through: what one transaction wrote may be spread over several rows.
        numbers = count()
        for part in rows:
            exhaust(_write(transaction, first, numbers, part.writes, places))
            if not decided:
                exhaust(_register(transaction, first, numbers, part.partitions))
            for moved in part.steps:
                exhaust(_move(transaction, first, numbers, moved.group, moved.steps))
        for key, place in places.items():
            there = transaction.writes.get(key, {})
            for operation in list(there.values()):
                if place == GONE:
                    del there[operation.seq]
                elif place is not None:
                    transaction.keep(replace(operation, place=place))
        return transaction


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
        self.between: list[tuple[int, JournalRecord]] = []
        """Records between the chunks: they were decided on top of what the rows say."""

    def feed(self, offset: int, record: JournalRecord) -> bool:
        """Takes the next valid record. Returns whether it is the snapshot's last chunk."""
        if not isinstance(record, Snapshot):
            self.between.append((offset, record))
            return False
        for row in record.transactions:
            self.transactions.setdefault(row.begin, []).append(row)
        for placed in record.places:
            there = self.places.setdefault(placed.begin, {})
            there.update({partition.key: place for partition, _, place in placed.places})
        return record.last


# ---- what records say of one transaction --------------------------------------------------------
#
# Written out where each transaction needs it: `dataclasses.replace` takes several times as long.


def _decided(
    header: Header, offset: int, decided_ms: int, reason: AbortReason | None = None
) -> Header:
    return Header(
        txid=header.txid,
        version=offset,
        state=_COMMITTED if reason is None else _ABORTED,
        producer_id=header.producer_id,
        generation=header.generation,
        created_ms=header.created_ms,
        finalized_ms=decided_ms,
        commit_sequence=offset,
        reason=reason,
    )


def _finished(header: Header, offset: int) -> Header:
    return Header(
        txid=header.txid,
        version=offset,
        state=header.state,
        finished=True,
        producer_id=header.producer_id,
        generation=header.generation,
        created_ms=header.created_ms,
        finalized_ms=header.finalized_ms,
        commit_sequence=header.commit_sequence,
        reason=header.reason,
    )


def _placed(operation: Operation, place: int) -> Operation:
    return Operation(
        txid=operation.txid,
        seq=operation.seq,
        kind=_WRITE,
        topic=operation.topic,
        partition=operation.partition,
        topic_id=operation.topic_id,
        first_offset=operation.first_offset,
        last_offset=operation.last_offset,
        count=operation.count,
        branch=operation.branch,
        placed=True,
        place=place,
    )


def _register(
    transaction: _Unfinished,
    offset: int,
    numbers: Iterator[int],
    partitions: Iterable[DataPartition],
) -> Iterator[Change]:
    for named in partitions:
        number, known = next(numbers), transaction.registered(named.key)
        if known is None:
            yield transaction.put(
                Operation(
                    txid=transaction.header.txid,
                    seq=(offset, number),
                    kind=_WRITE,
                    topic=named.topic,
                    partition=named.partition,
                    topic_id=named.topic_id,
                    first_offset=named.first_offset,
                )
            )
        elif _is_earlier(named.first_offset, known.first_offset):
            yield transaction.put(replace(known, first_offset=named.first_offset))


def _write(
    transaction: _Unfinished,
    offset: int,
    numbers: Iterator[int],
    writes: Iterable[PartitionWrites],
    placed: Container[TopicPartition] = (),
) -> Iterator[Change]:
    txid = transaction.header.txid
    for each in writes:
        partition = each.partition
        is_placed = partition.key in placed
        for run in each.branches:
            yield transaction.put(
                Operation(
                    txid=txid,
                    seq=(offset, next(numbers)),
                    kind=_WRITE,
                    topic=partition.topic,
                    partition=partition.partition,
                    topic_id=partition.topic_id,
                    first_offset=run.first_offset,
                    last_offset=run.last_offset,
                    count=run.count,
                    branch=run.branch,
                    placed=is_placed,
                )
            )


def _move(
    transaction: _Unfinished,
    offset: int,
    numbers: Iterator[int],
    group: str,
    steps: Iterable[OffsetStep],
) -> Iterator[Change]:
    for step in steps:
        number, known = next(numbers), transaction.acks.get((group, step.topic, step.partition))
        if known is None:
            yield transaction.put(
                Operation(
                    txid=transaction.header.txid,
                    seq=(offset, number),
                    kind=_ACK,
                    topic=step.topic,
                    partition=step.partition,
                    topic_id=step.to.topic_id,
                    subscription=group,
                    from_place=step.from_place,
                    to=step.to,
                )
            )
        elif known.to is not None and known.to.place == step.from_place:
            yield transaction.put(replace(known, to=step.to))
        # A step that does not go on from there was sent before.


def _is_earlier(told: int, known: int) -> bool:
    return told != UNKNOWN_OFFSET and (known == UNKNOWN_OFFSET or told < known)


def exhaust(changes: Iterable[Change]) -> None:
    """Makes changes whose effect on the store is told otherwise."""
    for _ in changes:
        pass
