"""Keys of the store: the same in every back end, and sorted as what they stand for. Pure.

Numbers are big-endian, so that bytes sort as they do. A name ends in a zero byte, which no topic
has in it, nor a consumer group.

    h TxId(16)                                        header
    o TxId(16) seq(12)                                operation
    w topic\\0 partition(4) place(8) TxId(16) seq(12)  writes by segment; no place: 2^63-1
    a topic\\0 partition(4) group\\0 TxId(16) seq(12)   acknowledgements by segment and subscription
    d deadline_ms(8) TxId(16)                         transactions by deadline, while open
    f state(1) finalized_ms(8) TxId(16)               transactions by final state
    c journal partition(2)                            cursor
    n                                                 number of operations

All keys of a transaction begin with the bytes of its TxId. An entry of an index has the value of
what it stands for, so that a range of an index is read by one scan. The state in `f` is twice the
header's, and one more for a finished transaction: so a sweep finds the finished ones, and a
projector that starts those that are decided and not finished.

Source: PIP-471, "Secondary indexes".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from ....journal.txid import MAX_OFFSET, TXID_BYTES, TxId
from ...protocol.metadata import (
    Header,
    HeaderState,
    Index,
    OfAcks,
    OfDeadlines,
    OfFinalState,
    OfHeader,
    OfOperations,
    OfWrites,
    Operation,
    OperationKind,
    Question,
)
from .changes import Change

HEADER: Final = b"h"
OPERATION: Final = b"o"
WRITES: Final = b"w"
ACKS: Final = b"a"
DEADLINE: Final = b"d"
FINAL: Final = b"f"
CURSOR: Final = b"c"
COUNT: Final = b"n"
"""First bytes of the keys."""
INDEX_OF: Final = {
    WRITES: Index.WRITES_BY_SEGMENT,
    ACKS: Index.ACKS_BY_SEGMENT_SUBSCRIPTION,
    DEADLINE: Index.TXN_BY_DEADLINE,
    FINAL: Index.TXN_BY_FINAL_STATE,
}
NO_PLACE: Final = 2**63 - 1
"""Stands for the place of a write without one."""
_END: Final = b"\0"
SEQ: Final = struct.Struct(">QL")
"""The sequence of an operation: journal offset, index."""
_SEGMENT: Final = struct.Struct(">LQ")
_PARTITION: Final = struct.Struct(">L")
_TIME: Final = struct.Struct(">Q")
_FINAL: Final = struct.Struct(">BQ")
_JOURNAL: Final = struct.Struct(">H")
SEQ_BYTES: Final = SEQ.size

Value: TypeAlias = bytes


class Span(NamedTuple):
    """The keys from `low` on, and below `high`."""

    low: bytes
    high: bytes

    def covers(self, key: bytes) -> bool:
        """Returns whether a key is one of them."""
        return self.low <= key < self.high

    @property
    def of_index(self) -> Index | None:
        """The index that it lies in; None: it lies in none."""
        return INDEX_OF.get(self.low[:1])


def after(prefix: bytes) -> bytes:
    """Returns the first key behind all that begin with a prefix, of which one byte is not 255."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,))


def prefixed(prefix: bytes) -> Span:
    """Returns the keys that begin with a prefix."""
    return Span(prefix, after(prefix))


# ---- keys ---------------------------------------------------------------------------------------


def header_key(txid: TxId) -> bytes:
    """Returns the key of a header."""
    return HEADER + txid.to_bytes()


def cursor_key(partition: int) -> bytes:
    """Returns the key of a journal partition's cursor."""
    return CURSOR + _JOURNAL.pack(partition)


def state_code(state: HeaderState, *, finished: bool) -> int:
    """Returns how a state is told on disk: twice its number, and one more if it is finished."""
    return 2 * state + finished


def entry_of_header(code: int, timeout_ms: int, finalized_ms: int, txid: bytes) -> bytes:
    """Returns the key of a header's entry in its index, from its parts; see `state_code`."""
    if code <= _OPEN_MAX:
        return DEADLINE + _TIME.pack(timeout_ms) + txid
    return FINAL + _pack_final(code, finalized_ms) + txid


_pack_final: Final = _FINAL.pack
_OPEN_MAX: Final = 2 * HeaderState.OPEN + 1


def header_entry(header: Header) -> bytes:
    """Returns the key of a header's entry in its index."""
    code = state_code(header.state, finished=header.finished)
    return entry_of_header(code, header.timeout_ms, header.finalized_ms, header.txid.to_bytes())


def _entry_begin(operation: Operation) -> bytes:
    """Returns how the key of an operation's entry in its index begins."""
    if operation.kind is OperationKind.ACK:
        group = operation.subscription.encode() + _END
        return _segment(ACKS, operation.topic, operation.partition) + group
    place = NO_PLACE if operation.place is None else operation.place
    return _segment(WRITES, operation.topic, operation.partition) + _TIME.pack(place)


@lru_cache(maxsize=4_096)
def _segment(kind: bytes, topic: str, partition: int) -> bytes:
    return kind + topic.encode() + _END + _PARTITION.pack(partition)


def keys_of(record: Header | Operation) -> tuple[bytes, bytes]:
    """Returns the key of a record, and that of its entry in its index."""
    if isinstance(record, Header):
        return header_key(record.txid), header_entry(record)
    last = record.txid.to_bytes() + SEQ.pack(*record.seq)
    return OPERATION + last, _entry_begin(record) + last


def mutations(change: Change, value: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
    """Yields the keys that a change writes, each with its value, or None to delete it.

    Args:
        change: what changes.
        value: the value of `change.after`, encoded; None if it is a deletion.
    """
    before, record = change
    if record is None:
        assert before is not None, "a change of nothing"
        for key in keys_of(before):
            yield key, None
        return
    key, entry = keys_of(record)
    yield key, value
    if before is not None:
        old = (
            header_entry(before)
            if isinstance(before, Header)
            else _entry_begin(before) + key[len(OPERATION) :]
        )
        if old != entry:
            yield old, None
    yield entry, value


# ---- ranges -------------------------------------------------------------------------------------


def headers_of(partition: int) -> Span:
    """Returns the headers of a journal partition, of each of its incarnations."""
    return prefixed(HEADER + _JOURNAL.pack(partition))


def operations_of_journal(partition: int) -> Span:
    """Returns the operations of the transactions of a journal partition."""
    return prefixed(OPERATION + _JOURNAL.pack(partition))


def operations_of(txid: TxId) -> Span:
    """Returns the operations of a transaction."""
    return prefixed(OPERATION + txid.to_bytes())


def segment(topic: str, partition: int) -> bytes:
    """Returns how the entries of a partition's writes begin."""
    return _segment(WRITES, topic, partition)


def writes(topic: str, partition: int, from_place: int = 0, to_place: int = MAX_OFFSET) -> Span:
    """Returns the writes in a partition with places in [from, to); all, up to `MAX_OFFSET`."""
    begin = segment(topic, partition)
    high = after(begin) if to_place >= MAX_OFFSET else begin + _TIME.pack(to_place)
    return Span(begin + _TIME.pack(from_place), high)


def unplaced(topic: str, partition: int) -> Span:
    """Returns the writes in a partition that have no place."""
    return prefixed(segment(topic, partition) + _TIME.pack(NO_PLACE))


def deadlines(before_ms: int = MAX_OFFSET) -> Span:
    """Returns the open transactions with deadlines below a time."""
    return Span(DEADLINE, DEADLINE + _TIME.pack(before_ms))


def final(state: HeaderState, *, finished: bool, from_ms: int, to_ms: int) -> Span:
    """Returns the transactions of one state that were decided in [from, to)."""
    code = state_code(state, finished=finished)
    return Span(FINAL + _FINAL.pack(code, from_ms), FINAL + _FINAL.pack(code, to_ms))


def spans_of(question: Question) -> list[Span]:
    """Returns the ranges that answer a question, in the order of their answers."""
    match question:
        case OfHeader():
            return [prefixed(header_key(question.txid))]
        case OfOperations():
            return [operations_of(question.txid)]
        case OfWrites():
            begins, ends = question.from_place, question.to_place
            return [writes(question.topic, question.partition, begins, ends)]
        case OfAcks():
            begin = _segment(ACKS, question.topic, question.partition)
            if question.subscription is not None:
                begin += question.subscription.encode() + _END
            return [prefixed(begin)]
        case OfDeadlines():
            return [deadlines(question.before_ms)]
        case OfFinalState():
            between = {"from_ms": question.from_ms, "to_ms": question.to_ms}
            return [final(question.state, finished=each, **between) for each in (False, True)]


# ---- what a key tells ---------------------------------------------------------------------------


class Parsed(NamedTuple):
    """What a key tells of the record that it stands for."""

    txid: TxId
    seq: tuple[int, int] | None = None
    """Of an operation."""
    topic: str = ""
    partition: int = 0
    place: int | None = None
    subscription: str = ""
    """Of an entry in an index of operations."""


def parse(key: bytes) -> Parsed:
    """Returns what a key tells, of a header, an operation or an entry of an index."""
    kind = key[:1]
    if kind in (HEADER, DEADLINE, FINAL):
        return Parsed(TxId.from_bytes(key[-TXID_BYTES:]))
    seq = SEQ.unpack(key[-SEQ_BYTES:])
    txid = TxId.from_bytes(key[-SEQ_BYTES - TXID_BYTES : -SEQ_BYTES])
    if kind == OPERATION:
        return Parsed(txid, seq)
    at = key.index(_END)
    topic = key[1:at].decode()
    if kind == WRITES:
        partition, place = _SEGMENT.unpack_from(key, at + 1)
        return Parsed(txid, seq, topic, partition, None if place == NO_PLACE else place)
    (partition,) = _PARTITION.unpack_from(key, at + 1)
    group = key[at + 1 + _PARTITION.size : -SEQ_BYTES - TXID_BYTES - len(_END)].decode()
    return Parsed(txid, seq, topic, partition, subscription=group)
