"""Unfinished transactions in the form in which a projection keeps them, and how the store changes.

A transaction that the store has remembers what that is from the moment on at which it changes; one
that is new needs to remember nothing. So what a thousand journal records change is encoded and
written once, and what came and went is not written at all. Writes and states are plain tuples: an
object for each took longer than RocksDB. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from ....journal.control import TopicPartition
from ...protocol.metadata import Header, HeaderState, Operation, OperationKind
from .changes import Mutation
from .codec import (
    COUNT,
    NONE,
    PLACE,
    WHERE,
    Begun,
    Run,
    Status,
    encode,
    encode_header,
    encode_run,
    run_of,
)
from .keys import (
    HEADER,
    NO_PLACE,
    OPERATION,
    SEQ,
    entry_of_header,
    entry_of_write,
    keys_of,
    state_code,
)

Kept: TypeAlias = Run | Operation
"""An operation: a write, or an acknowledgement."""
OPEN: Final = state_code(HeaderState.OPEN, finished=False)
COMMITTED: Final = state_code(HeaderState.COMMITTED, finished=False)
ABORTED: Final = state_code(HeaderState.ABORTED, finished=False)
_TIME: Final = struct.Struct(">Q")
_pack_time: Final = _TIME.pack

Differing: TypeAlias = tuple[list[Mutation], int, int]
"""(keys to write, by how much the number of operations changes, how many of them are put)."""


class Unfinished:
    """One transaction, as the journal has it; `differing` says how the store differs."""

    __slots__ = ("_before", "_entry", "acks", "begun", "operations", "registered", "status", "txid")

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
            made.operations[seq] = run = run_of(operation)
            if not run[COUNT]:
                made.registered = made.registered or {}
                made.registered.setdefault((topic, partition), seq)
        return made

    # ---- changing -------------------------------------------------------------------------------

    def touch(self) -> bool:
        """Says that it is about to change. Returns whether the store had all of it until now."""
        if self._before is not None or not self._entry:
            return False
        self._before = _Before(self.status, {})
        return True

    def update(self, made: dict[bytes, Run]) -> None:
        """Adds writes, or changes those that are there. Call `touch` before."""
        if self._before is not None:
            for seq in made:
                self._before.operations.setdefault(seq, self.operations.get(seq))
        self.operations.update(made)

    def put(self, seq: bytes, operation: Kept) -> None:
        """Adds an operation, or changes one. Call `touch` before."""
        if self._before is not None:
            self._before.operations.setdefault(seq, self.operations.get(seq))
        self.operations[seq] = operation

    def place(self, seq: bytes, place: int) -> None:
        """Gives a write its place. Call `touch` before.

        Raises:
            KeyError: there is no such write, or it went when the transaction was finished.
        """
        run = self.operations[seq]
        assert isinstance(run, tuple), "acknowledgements have no places"
        if self._before is not None:
            self._before.operations.setdefault(seq, run)
        self.operations[seq] = (*run[:PLACE], place)

    def drop(self, seqs: Iterable[bytes]) -> None:
        """Removes operations, those that are there. Call `touch` before."""
        for seq in seqs:
            known = self.operations.pop(seq, None)
            if known is not None and self._before is not None:
                self._before.operations.setdefault(seq, known)

    def drop_registered(self) -> None:
        """Removes what stood for partitions before the decision. Call `touch` before."""
        if self.registered:
            self.drop(self.registered.values())
            self.registered = None

    def finish(self, version: int) -> None:
        """Ends it: what ended by markers, and the acknowledgements, go. Call `touch` before."""
        code, _, timeout_ms, finalized_ms, sequence, reason = self.status
        self.status = code + 1, version, timeout_ms, finalized_ms, sequence, reason
        doomed = [s for s, k in self.operations.items() if not isinstance(k, tuple) or k[PLACE] < 0]
        if doomed:
            self.drop(doomed)

    # ---- how the store changes ------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of records of which the store differs, at most: the header, operations."""
        if self._before is not None:
            return 1 + len(self._before.operations)
        return 0 if self._entry else 1 + len(self.operations)

    def differing(self, out: list[Mutation]) -> tuple[int, int]:
        """Adds all that differs to `out`, and takes the store to have it.

        Returns:
            By how much the number of operations changes, and how many are put.
        """
        before, txid = self._before, self.txid
        if before is None:
            self._add_header(out)
            for seq, kept in self.operations.items():
                _add(txid + seq, kept, out)
            count = len(self.operations)
            return count, count
        self._before = None
        added, put = 0, 0
        if before.status != self.status:
            self._add_header(out)
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
        if before is None:
            yield self._header_alone()
            known = dict.fromkeys(self.operations)
        else:
            known = before.operations
        for seq, was in known.items():
            now = self.operations.get(seq)
            if now == was:
                continue
            out: list[Mutation] = []
            _add_changed(self.txid + seq, was, now, out)
            yield out, (was is None) - (now is None), int(now is not None)
        if before is not None and before.status != self.status:
            yield self._header_alone()

    def _header_alone(self) -> Differing:
        out: list[Mutation] = []
        self._add_header(out)
        return out, 0, 0

    def _add_header(self, out: list[Mutation]) -> None:
        value, entry = encode_header(self.begun, self.status), self._header_entry()
        out.append((HEADER + self.txid, value))
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
        value, place = encode_run(kept), kept[PLACE]
        entry = kept[WHERE].segment + _pack_time(place if place >= 0 else NO_PLACE) + last
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
    return entry_of_write(kept[WHERE].segment, kept[PLACE], last)
