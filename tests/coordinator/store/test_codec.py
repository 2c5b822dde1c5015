"""Values, keys and messages: what is written is read again, and keys sort as what they mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.coordinator.protocol import metadata_pb2 as pb
from logtx.coordinator.protocol.metadata import (
    Found,
    Header,
    HeaderState,
    Horizon,
    OfAcks,
    OfDeadlines,
    OfFinalState,
    OfHeader,
    OfOperations,
    OfWrites,
    Operation,
    OperationKind,
    Projected,
    StoreStatus,
)
from logtx.coordinator.protocol.metadata_wire import (
    horizon_from_wire,
    horizon_to_wire,
    page_from_wire,
    page_to_wire,
    question_from_wire,
    question_to_wire,
    status_from_wire,
    status_to_wire,
)
from logtx.coordinator.store.core.changes import Cursor
from logtx.coordinator.store.core.codec import (
    decode,
    decode_cursor,
    deleted,
    encode,
    encode_cursor,
)
from logtx.coordinator.store.core.keys import keys_of, spans_of, writes
from logtx.journal.errors import (
    ConfigError,
    MalformedHeaderError,
    MetadataStoreError,
    NotSupportedError,
)
from logtx.journal.position import Passed, Place, Position
from logtx.journal.records.types import AbortReason
from logtx.journal.txid import MAX_OFFSET, TxId

OFFSETS = st.integers(0, 2**62)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
TXIDS = st.builds(TxId, st.integers(0, 2**16 - 1), st.integers(0, 2**48 - 1), OFFSETS)
PASSED = st.none() | st.builds(
    Passed, st.tuples(st.integers(0, 99), st.integers(0, 2**48 - 1)), OFFSETS, st.integers(0, 9)
)
PLACES = st.builds(Place, OFFSETS, st.integers(0, 9), PASSED)
MET = st.dictionaries(st.tuples(st.integers(0, 99), st.integers(0, 2**48 - 1)), OFFSETS, max_size=3)
POSITIONS = st.builds(
    Position,
    o1=OFFSETS,
    o2=OFFSETS,
    o3=OFFSETS,
    met=MET,
    delivered=MET,
    passed=PASSED,
    topic_id=st.text(max_size=3),
)
HEADERS = st.builds(
    Header,
    txid=TXIDS,
    version=OFFSETS,
    state=st.sampled_from(HeaderState),
    finished=st.booleans(),
    producer_id=NAMES,
    generation=st.integers(-1, 2**40),
    created_ms=OFFSETS,
    timeout_ms=OFFSETS,
    finalized_ms=OFFSETS,
    commit_sequence=st.none() | OFFSETS,
    reason=st.none() | st.sampled_from(AbortReason),
)
SEQUENCES = st.tuples(OFFSETS, st.integers(0, 2**32 - 1))
WRITES = st.builds(
    Operation,
    txid=TXIDS,
    seq=SEQUENCES,
    kind=st.just(OperationKind.WRITE),
    topic=NAMES,
    partition=st.integers(0, 2**31 - 1),
    topic_id=st.text(max_size=3),
    first_offset=st.integers(-1, 2**62),
    last_offset=st.integers(-1, 2**62),
    count=OFFSETS,
    branch=st.integers(0, 2**64 - 1),
    placed=st.booleans(),
    place=st.none() | OFFSETS,
)
ACKS = st.builds(
    Operation,
    txid=TXIDS,
    seq=SEQUENCES,
    kind=st.just(OperationKind.ACK),
    topic=NAMES,
    partition=st.integers(0, 2**31 - 1),
    topic_id=st.text(max_size=3),
    subscription=NAMES,
    from_place=st.none() | PLACES,
    to=POSITIONS,
)
RECORDS = st.one_of(HEADERS, WRITES, ACKS)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written_at_both_of_its_keys(record: Any) -> None:
    value = encode(record)
    for key in keys_of(record):
        assert decode(key, value) == record


OLD = {
    "01019a0104010670c3a40880a0abfef96200e8a7abfef9628c010e65787069726564": Header(
        txid=TxId(3, 0x1A7E, 9),
        version=77,
        state=HeaderState.ABORTED,
        finished=True,
        producer_id="pä",
        generation=4,
        created_ms=1_700_000_000_000,
        finalized_ms=1_700_000_000_500,
        commit_sequence=70,
        reason=AbortReason.EXPIRED,
    ),
    "01020c6f72646572730a046964c80190030e0501f403": Operation(
        txid=TxId(3, 0x1A7E, 9),
        seq=(70, 2),
        kind=OperationKind.WRITE,
        topic="orders",
        partition=5,
        topic_id="id",
        first_offset=100,
        last_offset=200,
        count=7,
        branch=2**64 - 3,
        placed=True,
        place=250,
    ),
}
"""Values of version 1, as stores of then hold them, and what they say."""


@pytest.mark.parametrize("value", OLD)
def test_what_an_older_program_wrote_is_read(value: str) -> None:
    record = OLD[value]
    for key in keys_of(record):
        assert decode(key, bytes.fromhex(value)) == record


@given(RECORDS)
def test_a_key_tells_what_went(record: Any) -> None:
    for key in keys_of(record):
        assert deleted(key).txid == record.txid
    if isinstance(record, Operation):
        told = deleted(keys_of(record)[1])
        assert isinstance(told, Operation)
        assert (told.seq, told.topic, told.partition) == (
            record.seq,
            record.topic,
            record.partition,
        )
        assert (told.place, told.subscription) == (record.place, record.subscription)


@given(WRITES, WRITES)
def test_writes_of_a_partition_sort_by_place(one: Any, two: Any) -> None:
    from dataclasses import replace

    two = replace(two, topic=one.topic, partition=one.partition)
    keys = sorted([keys_of(one)[1], keys_of(two)[1]])
    places = [float("inf") if o.place is None else o.place for o in (one, two)]
    told = [decode(k, encode(one if k == keys_of(one)[1] else two)) for k in keys]
    assert [float("inf") if t.place is None else t.place for t in told] == sorted(places)  # type: ignore[union-attr]
    for operation in (one, two):
        assert writes(one.topic, one.partition).covers(keys_of(operation)[1])
        if operation.place is not None:
            span = writes(one.topic, one.partition, operation.place, operation.place + 1)
            assert span.covers(keys_of(operation)[1])


@pytest.mark.parametrize(
    "cursor", [Cursor(0), Cursor(-1, 3, 7, True, 12), Cursor(2**62, 2**61, 2**48 - 1)]
)
def test_a_cursor_is_read_as_it_was_written(cursor: Cursor) -> None:
    assert decode_cursor(encode_cursor(cursor)) == cursor
    assert decode_cursor(None) is None


@pytest.mark.parametrize("raw", [b"", b"\x01", b"\x02\x01abc", b"\x01\x09abc", b"\x01\x01"])
def test_a_value_that_is_none_of_ours_is_told(raw: bytes) -> None:
    key = b"h" + TxId(1, 2, 3).to_bytes()
    with pytest.raises(MetadataStoreError, match=r"newer program|does not decode"):
        decode(key, raw)


# ---- messages -----------------------------------------------------------------------------------


@given(st.lists(st.builds(Found, st.one_of(HEADERS, WRITES), st.booleans()), max_size=5))
def test_a_page_crosses_the_wire(found: list[Found]) -> None:
    assert page_from_wire(page_to_wire(found)) == found


def test_a_step_crosses_the_wire() -> None:
    to = Position(o1=1, o2=5, o3=2, met={(1, 2): 3}, delivered={(4, 5): 6}, topic_id="t")
    ack = Operation(
        txid=TxId(1, 2, 3),
        seq=(4, 0),
        kind=OperationKind.ACK,
        topic="orders",
        partition=1,
        subscription="g",
        from_place=Place(3, 1),
        to=to,
    )
    assert page_from_wire(page_to_wire([Found(ack)])) == [Found(ack)]


QUESTIONS = [
    OfHeader(TxId(1, 2, 3)),
    OfOperations(TxId(1, 2, 3)),
    OfWrites(topic="orders", partition=3),
    OfWrites(topic="orders", partition=3, from_place=4, to_place=9),
    OfAcks(topic="orders", partition=0),
    OfAcks(topic="orders", partition=0, subscription="g"),
    OfDeadlines(),
    OfDeadlines(before_ms=5),
    OfFinalState(state=HeaderState.ABORTED),
    OfFinalState(state=HeaderState.COMMITTED, from_ms=3, to_ms=9),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_a_question_crosses_the_wire(question: Any) -> None:
    assert question_from_wire(question_to_wire(question)) == question
    spans = spans_of(question)
    assert all(span.low < span.high for span in spans)


def nonsense() -> dict[str, tuple[pb.MetadataQuery, type[Exception]]]:
    """Returns questions that make no sense, and what they are refused with."""
    segment = pb.MetadataQuery.Writes
    return {
        "a long name": (
            pb.MetadataQuery(writes_by_segment=segment(topic="t" * 250)),
            ConfigError,
        ),
        "a zero byte": (pb.MetadataQuery(writes_by_segment=segment(topic="a\0b")), ConfigError),
        "a huge place": (
            pb.MetadataQuery(writes_by_segment=segment(topic="t", to_place=MAX_OFFSET + 1)),
            ConfigError,
        ),
        "open is not final": (
            pb.MetadataQuery(txn_by_final_state=pb.MetadataQuery.Final()),
            ConfigError,
        ),
        "no TxId": (pb.MetadataQuery(header=b"short"), MalformedHeaderError),
        "nothing": (pb.MetadataQuery(), NotSupportedError),
    }


@pytest.mark.parametrize("which", nonsense())
def test_a_question_that_makes_no_sense_is_refused(which: str) -> None:
    wire, error = nonsense()[which]
    with pytest.raises(error):
        question_from_wire(wire)


def test_horizons_and_states_of_a_store_cross_the_wire() -> None:
    horizon = Horizon(max_read_position=-1, end_offset=7, undecided=2, exact=False)
    assert horizon_from_wire(horizon_to_wire(horizon)) == horizon
    status = StoreStatus(
        back_end="etcd",
        shared=True,
        operations=5,
        partitions=(
            Projected(partition=0, next_offset=-1, lag_records=None, problem="it begins"),
            Projected(partition=1, next_offset=9, lag_records=0),
        ),
        swept_ms=4,
        swept_operations=3,
        swept_headers=2,
        history_ms=600_000,
        problem="none",
    )
    assert status_from_wire(status_to_wire(status)) == status
