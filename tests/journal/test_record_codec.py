"""Journal records: golden bytes that every later version must still read, and round trips."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.control import BranchRange
from logtx.journal.errors import CorruptRecordError, UnknownRecordError
from logtx.journal.position import Place, Position
from logtx.journal.record_codec import FORMAT_VERSION, decode_entry, encode_entry
from logtx.journal.records import (
    NO_PREDICTION,
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    Begin,
    Bind,
    Committed,
    DataPartition,
    Entry,
    JournalRecord,
    OffsetStep,
    Owner,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
    RecordType,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "journal_v1.txt"
"""Lines `<name> <hex>`; never edited, only added to."""

IDS = (
    DataPartition("delays", 0, "W2ifJDqPQsqSLJHrGjYeEQ"),
    DataPartition("delays", 3, "W2ifJDqPQsqSLJHrGjYeEQ"),
    DataPartition("fares", 1),
)
MET = {(0, 0x9F3AC1D2E4B7): 17042, (3, 1): 5}
SAMPLES: dict[str, JournalRecord] = {
    "owner_first": Owner(replaces=-1, address="host:7070", process_nonce=2**63 - 1),
    "owner": Owner(replaces=16000, address="[::1]:7070", process_nonce=1),
    "producer": ProducerRecord(
        producer_id="worker-1", generation=7, session_nonce=42, owner="default", voided=True
    ),
    "begin": Begin(
        producer_id="worker-1",
        generation=7,
        session_nonce=42,
        request_id=12,
        answered_below=11,
        timeout_ms=60_000,
        started_ms=1_700_000_000_000,
        partitions=IDS,
    ),
    "begin_bare": Begin(
        producer_id="ü",
        generation=0,
        session_nonce=0,
        request_id=0,
        answered_below=0,
        timeout_ms=1,
        started_ms=0,
    ),
    "add_partitions": AddPartitions(begin=17042, partitions=IDS),
    "add_offsets": AddOffsets(
        begin=17042,
        group="audit",
        steps=(
            OffsetStep("fares", 1, None, Position.at(5)),
            OffsetStep("fares", 2, Place(9, 3), Position(o1=7, o2=12, o3=2, met=MET)),
            OffsetStep("fares", 3, Place(9), Position(o1=9, o2=9, met=MET, delivered={(3, 1): 4})),
        ),
    ),
    "prepare_commit": PrepareCommit(
        begin=17042,
        writes=(
            PartitionWrites(IDS[0], (BranchRange(0, 10, 19, 7), BranchRange(2**64 - 1, 3, 3, 1))),
            PartitionWrites(IDS[2], ()),
        ),
        decided_ms=1_700_000_000_123,
    ),
    "prepare_abort": PrepareAbort(
        begin=17042, reason=AbortReason.EXPIRED, decided_ms=1_700_000_000_123
    ),
    "committed": Committed(begin=17042),
    "committed_gone": Committed(begin=17042, gone=(("fares", 1), ("fares", 2))),
    "aborted": Aborted(begin=17042, gone=(("fares", 1),)),
    "bind": Bind(group="audit", transaction_group="default"),
}

LONG = st.integers(0, 2**63 - 1)
INT = st.integers(0, 2**31 - 1)
NAME = st.text(max_size=12)


def grouped(found: list[DataPartition]) -> tuple[DataPartition, ...]:
    """In the order that decoding gives: partitions of one topic and id side by side."""
    order: dict[tuple[str, str], list[DataPartition]] = {}
    for p in found:
        order.setdefault((p.topic, p.topic_id), []).append(p)
    return tuple(p for ps in order.values() for p in ps)


DATA_PARTITION = st.builds(DataPartition, NAME, INT, NAME)
PARTITIONS = st.lists(DATA_PARTITION, max_size=4).map(grouped)
GONE = PARTITIONS.map(lambda ps: tuple(p.key for p in grouped([DataPartition(*q.key) for q in ps])))
BRANCH = st.builds(
    lambda branch, first, count: BranchRange(branch, first, first + count, count),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**62),
    st.integers(1, 1000),
)
SEQUENCES = st.dictionaries(st.tuples(INT, LONG), LONG, max_size=3)
POSITION = st.builds(Position, o1=LONG, o2=LONG, o3=LONG, met=SEQUENCES, delivered=SEQUENCES)
STEP = st.builds(OffsetStep, NAME, INT, st.none() | st.builds(Place, LONG, LONG), POSITION)
RECORD: st.SearchStrategy[JournalRecord] = st.one_of(
    st.builds(Owner, replaces=st.integers(-1, 2**62), address=NAME, process_nonce=LONG),
    st.builds(
        ProducerRecord,
        producer_id=NAME,
        generation=INT,
        session_nonce=LONG,
        owner=NAME,
        voided=st.booleans(),
    ),
    st.builds(
        Begin,
        producer_id=NAME,
        generation=INT,
        session_nonce=LONG,
        request_id=LONG,
        answered_below=LONG,
        timeout_ms=INT,
        started_ms=LONG,
        partitions=PARTITIONS,
    ),
    st.builds(AddPartitions, begin=LONG, partitions=PARTITIONS),
    st.builds(AddOffsets, begin=LONG, group=NAME, steps=st.lists(STEP, max_size=2).map(tuple)),
    st.builds(
        PrepareCommit,
        begin=LONG,
        writes=st.lists(
            st.builds(PartitionWrites, DATA_PARTITION, st.lists(BRANCH, max_size=2).map(tuple)),
            max_size=2,
        ).map(tuple),
        decided_ms=LONG,
    ),
    st.builds(PrepareAbort, begin=LONG, reason=st.sampled_from(AbortReason), decided_ms=LONG),
    st.builds(Committed, begin=LONG, gone=GONE),
    st.builds(Aborted, begin=LONG, gone=GONE),
    st.builds(Bind, group=NAME, transaction_group=NAME),
)
ENTRY = st.builds(
    Entry, st.integers(-1, 2**62), st.integers(0, 2**48 - 1), RECORD, st.integers(-1, 2**62)
)


def golden() -> dict[str, bytes]:
    lines = (line.split() for line in GOLDEN.read_text().splitlines())
    return {name: bytes.fromhex(raw) for name, raw in lines}


def sample(name: str) -> Entry:
    record = SAMPLES[name]
    predicted = NO_PREDICTION if isinstance(record, Owner) else 17042
    return Entry(16000, 0x9F3AC1D2E4B7, record, predicted)


@pytest.mark.parametrize("name", SAMPLES)
def test_golden(name: str) -> None:
    assert decode_entry(golden()[name]) == sample(name)
    assert encode_entry(sample(name)).hex() == golden()[name].hex()


def test_every_type_has_a_golden_record() -> None:
    assert {r.type for r in SAMPLES.values()} == set(RecordType)
    assert golden().keys() == SAMPLES.keys()


@given(ENTRY)
def test_round_trip(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@given(st.integers(0, 20), st.binary(max_size=60))
def test_random_bytes_decode_or_raise_the_typed_error(code: int, body: bytes) -> None:
    for raw in (body, bytes((FORMAT_VERSION, code)) + body):
        with suppress(CorruptRecordError, UnknownRecordError):
            decode_entry(raw)


@given(ENTRY, st.data())
def test_a_cut_or_changed_record_never_crashes(entry: Entry, data: st.DataObject) -> None:
    raw = bytearray(encode_entry(entry))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises((CorruptRecordError, UnknownRecordError)):
        decode_entry(cut)
    with pytest.raises(CorruptRecordError):
        decode_entry(bytes(raw) + b"\0")
    raw[data.draw(st.integers(2, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(CorruptRecordError, UnknownRecordError):
        decode_entry(bytes(raw))


@pytest.mark.parametrize("raw", [None, b"", b"\x01"])
def test_an_empty_record_is_corrupt(raw: bytes | None) -> None:
    with pytest.raises(CorruptRecordError):
        decode_entry(raw)


@pytest.mark.parametrize("head", [b"\x02\x03", b"\x01\x10", b"\x00\x01"])
def test_newer_records_ask_for_an_upgrade(head: bytes) -> None:
    with pytest.raises(UnknownRecordError, match="upgrade"):
        decode_entry(head + b"anything")
