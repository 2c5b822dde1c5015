"""Unfinished transactions in the form in which a projection keeps them, and how the store changes.

A transaction that the store has remembers what that is from the moment on at which it changes; one
that is new needs to remember nothing. So what a thousand journal records change is encoded and
written once, and what came and went is not written at all. Writes and states are plain tuples: an
object for each took longer than RocksDB. Whoever changes a transaction that is not dirty calls
`touch` before. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from ....journal.control import TopicPartition
from ....journal.places import GONE, PartitionId
from ...protocol.metadata import Header, HeaderState, Operation, OperationKind
from .changes import Guards, Mutation
from .codec import (
    NONE,
    PLACE,
    UNPLACED,
    Begun,
    Run,
    Status,
    encode,
    encode_header,
    pack_place,
    run_of,
    waits,
)
from .keys import (
    HEADER,
    NO_PLACE,
    OPERATION,
    SEQ,
    entry_of_header,
    keys_of,
    state_code,
)

Kept: TypeAlias = Run | Operation
"""An operation: a write, or an acknowledgement."""
OPEN: Final = state_code(HeaderState.OPEN, finished=False)
COMMITTED: Final = state_code(HeaderState.COMMITTED, finished=False)
ABORTED: Final = state_code(HeaderState.ABORTED, finished=False)
_NO_PLACE: Final = pack_place(NO_PLACE)
_GONE: Final = pack_place(GONE)

Differing: TypeAlias = tuple[list[Mutation], int, int, Guards]
"""(keys to write, by how much the number of operations changes, how many of them are put, the
version of the header that is replaced)."""


class Unfinished:
    """One transaction, as the journal has it; `differing` says how the store differs."""

    __slots__ = (
        "_before",
        "_entry",
        "acks",
        "begun",
        "is_dirty",
        "operations",
        "registered",
        "status",
        "txid",
    )

    def __init__(self, txid: bytes, begun: Begun, status: Status) -> None:
        """Begins a transaction of which the store has nothing."""
        self.txid = txid
        self.begun = begun
        self.status = status
        self.operations: dict[bytes, Kept] = {}
        """Sequence → operation."""
        self.registered: dict[TopicPartition, bytes] | None = None
        """Partition → sequence of what stands for it before the decision."""
        self.acks: dict[tuple[str, str, int], bytes] | None = None
        """(consumer group, topic, partition) → sequence of the step there."""
        self._entry = b""
        """Key of the entry in an index that the store has of the header; empty: it has none."""
        self._before: _Before | None = None
        """What the store has, if it has anything and that differs."""
        self.is_dirty = True
        """Whether the store may differ; one that is new differs."""

    @classmethod
    def of_header(cls, header: Header) -> Unfinished:
        """Returns a transaction of which the store has nothing yet, in the state of a header."""
        sequence = header.commit_sequence
        status = (
            state_code(header.state, finished=header.finished),
            header.version,
            header.timeout_ms,
            header.finalized_ms,
            NONE if sequence is None else sequence,
            header.reason,
        )
        begun = header.producer_id, header.generation, header.created_ms
        return cls(header.txid.to_bytes(), begun, status)

    @classmethod
    def restored(cls, header: Header, operations: Iterable[Operation]) -> Unfinished:
        """Returns a transaction that the store has."""
        made = cls.of_header(header)
        made._entry = made._header_entry()
        made.is_dirty = False
        for operation in operations:
            seq, (topic, partition) = (
                SEQ.pack(*operation.seq),
                (operation.topic, operation.partition),
            )
            if operation.kind is OperationKind.ACK:
                made.operations[seq] = operation
                made.acks = made.acks or {}
                made.acks[operation.subscription, topic, partition] = seq
                continue
            made.operations[seq] = run_of(operation)
            if not operation.count:
                made.registered = made.registered or {}
                made.registered.setdefault((topic, partition), seq)
        return made

    # ---- changing -------------------------------------------------------------------------------

    def touch(self) -> None:
        """Says that it is about to change, of one that is not dirty."""
        self.is_dirty = True
        self._before = _Before(self.status, {})

    def update(self, made: dict[bytes, Kept]) -> None:
        """Adds writes, or changes those that are there. `made` must not change any more."""
        if self._before is not None:
            for seq in made:
                self._before.operations.setdefault(seq, self.operations.get(seq))
        if self.operations:
            self.operations.update(made)
        else:
            self.operations = made

    def put(self, seq: bytes, operation: Kept) -> None:
        """Adds an operation, or changes one."""
        if self._before is not None:
            self._before.operations.setdefault(seq, self.operations.get(seq))
        self.operations[seq] = operation

    def place(self, places: Mapping[PartitionId, bytes]) -> Collection[PartitionId]:
        """Gives the writes that wait the places of their partitions.

        Args:
            places: partition → what `pack_place` returns, of `GONE` too: then its writes go.

        Returns:
            The partitions of those that wait on, as no place is told there.
        """
        left, gone, operations = [], [], self.operations
        for seq, kept in operations.items():
            if not isinstance(kept, tuple) or not waits(kept):
                continue
            where, told, _ = kept
            place = places.get(where.id)
            if place is None:
                left.append(where.id)
            elif place == _GONE:
                gone.append(seq)
            else:
                if self._before is not None:
                    self._before.operations.setdefault(seq, kept)
                operations[seq] = where, told, place
        if gone:
            self.drop(gone)
        return set(left) if left else ()

    def drop(self, seqs: Iterable[bytes]) -> None:
        """Removes operations, those that are there."""
        for seq in seqs:
            known = self.operations.pop(seq, None)
            if known is not None and self._before is not None:
                self._before.operations.setdefault(seq, known)

    def drop_registered(self) -> None:
        """Removes what stood for partitions before the decision."""
        if self.registered:
            self.drop(self.registered.values())
            self.registered = None

    def finish(self, version: int) -> None:
        """Ends it: what ended by markers, and the acknowledgements, go."""
        code, _, timeout_ms, finalized_ms, sequence, reason = self.status
        self.status = code + 1, version, timeout_ms, finalized_ms, sequence, reason
        doomed: list[bytes] = []
        for seq, kept in self.operations.items():
            if not isinstance(kept, tuple) or kept[PLACE] == UNPLACED:
                doomed.append(seq)
        if doomed:
            self.drop(doomed)

    # ---- how the store changes ------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of records of which the store differs, at most: the header, operations."""
        if self._before is not None:
            return 1 + len(self._before.operations)
        return 0 if self._entry else 1 + len(self.operations)

    def differing(self, out: list[Mutation], guards: dict[bytes, bytes | None]) -> tuple[int, int]:
        """Adds all that differs to `out`, and takes the store to have it.

        Args:
            out: takes the keys to write.
            guards: takes the version of the header that is replaced.

        Returns:
            By how much the number of operations changes, and how many are put.
        """
        before, txid = self._before, self.txid
        self.is_dirty = False
        if before is None:
            self._add_header(None, out, guards)
            for seq, kept in self.operations.items():
                _add(txid + seq, kept, out)
            count = len(self.operations)
            return count, count
        self._before = None
        added, put = 0, 0
        if before.status != self.status:
            self._add_header(before.status, out, guards)
        for seq, known in before.operations.items():
            now = self.operations.get(seq)
            if now == known:
                continue  # it came and went, or was written by a projector that was killed then
            _add_changed(txid + seq, known, now, out)
            added += (known is None) - (now is None)
            put += now is not None
        return added, put

    def each(self) -> Iterator[Differing]:
        """Yields the same, record by record.

        A new header comes before its operations, so that a projector that starts finds them; one
        that changes comes behind them, so that a record that is half written finds it as it was.
        """
        before, self._before = self._before, None
        self.is_dirty = False
        if before is None:
            yield self._header_alone(None)
            known = dict.fromkeys(self.operations)
        else:
            known = before.operations
        for seq, was in known.items():
            now = self.operations.get(seq)
            if now == was:
                continue
            out: list[Mutation] = []
            _add_changed(self.txid + seq, was, now, out)
            yield out, (was is None) - (now is None), int(now is not None), {}
        if before is not None and before.status != self.status:
            yield self._header_alone(before.status)

    def _header_alone(self, replaced: Status | None) -> Differing:
        out: list[Mutation] = []
        guards: dict[bytes, bytes | None] = {}
        self._add_header(replaced, out, guards)
        return out, 0, 0, guards

    def _add_header(
        self, replaced: Status | None, out: list[Mutation], guards: dict[bytes, bytes | None]
    ) -> None:
        value, entry = encode_header(self.begun, self.status), self._header_entry()
        key = HEADER + self.txid
        guards[key] = None if replaced is None else encode_header(self.begun, replaced)
        out.append((key, value))
        if self._entry and self._entry != entry:
            out.append((self._entry, None))
        out.append((entry, value))
        self._entry = entry

    def _header_entry(self) -> bytes:
        code, _, timeout_ms, finalized_ms, _, _ = self.status
        return entry_of_header(code, timeout_ms, finalized_ms, self.txid)


class _Before(NamedTuple):
    """What the store has of a transaction, where that differs."""

    status: Status
    operations: dict[bytes, Kept | None]
    """Sequence → the operation there, or None: there is none."""


def _add(last: bytes, kept: Kept, out: list[Mutation]) -> None:
    if isinstance(kept, tuple):
        where, told, place = kept
        value = told + place
        entry = where.segment + (_NO_PLACE if place == UNPLACED else place) + last
    else:
        value, entry = encode(kept), keys_of(kept)[1]
    out += ((OPERATION + last, value), (entry, value))


def _add_changed(last: bytes, known: Kept | None, now: Kept | None, out: list[Mutation]) -> None:
    """Adds to `out` how the store changes if an operation that it has becomes another one.

    Args:
        last: TxId and sequence.
        known: what the store has, or None.
        now: what it becomes, or None.
        out: takes the keys to write.
    """
    old = None if known is None else _entry(known, last)
    if now is None:
        if old is not None:
            out.append((OPERATION + last, None))
            out.append((old, None))
        return
    if old is not None and old != _entry(now, last):
        out.append((old, None))
    _add(last, now, out)


def _entry(kept: Kept, last: bytes) -> bytes:
    if isinstance(kept, Operation):
        return keys_of(kept)[1]
    where, _, place = kept
    return where.segment + (_NO_PLACE if place == UNPLACED else place) + last
