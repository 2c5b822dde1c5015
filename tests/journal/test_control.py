"""TxCtl: golden bytes, round trips, room for fields to come, and refusal of everything else."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.control import (
    PARTITION_LIST_MAX_BYTES,
    VERSION,
    BranchRange,
    DataControl,
    Marker,
    ModeRecord,
    PartitionList,
    decode_control,
    encode_data_control,
    encode_marker,
    encode_mode_record,
    group_by_topic,
)
from logtx.journal.errors import MalformedHeaderError

UINT64 = st.integers(0, 2**63 - 1)
BRANCHES = st.builds(
    lambda branch, first, gap, count: BranchRange(branch, first, first + count - 1 + gap, count),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**62),
    st.integers(0, 1000),
    st.integers(1, 1000),
)
PARTITIONS = st.lists(
    st.tuples(st.text("abc.-_", min_size=1, max_size=9), st.integers(0, 999)), unique=True
).map(lambda found: tuple(sorted(found)))
MARKERS = st.builds(
    lambda partitions, **rest: Marker(
        partitions=partitions, partition_count=len(partitions), **rest
    ),
    PARTITIONS.filter(lambda found: len(found) < 30),
    committed=st.booleans(),
    commit_sequence=UINT64,
    hw=UINT64,
    epoch=UINT64,
    branches=st.lists(BRANCHES, max_size=5).map(tuple),
) | st.builds(
    Marker,
    committed=st.just(True),
    commit_sequence=UINT64,
    hw=UINT64,
    epoch=UINT64,
    branches=st.lists(BRANCHES, max_size=2).map(tuple),
    sidecar=st.lists(BRANCHES, max_size=3).map(tuple),
    since=UINT64,
    sidecar_id=st.text(max_size=22),
    pointer=st.none() | UINT64,
)
DATA = st.builds(
    DataControl, branch=st.integers(0, 2**64 - 1), sequence=st.none() | st.integers(0, 2**63)
)

MODES = st.builds(ModeRecord, st.booleans(), st.text(max_size=22))
Control = Marker | DataControl | ModeRecord

COMMIT = Marker(
    committed=True,
    commit_sequence=17050,
    hw=17000,
    epoch=16000,
    partition_count=3,
    partitions=(("delays", 0), ("delays", 2), ("fares", 1)),
    branches=(BranchRange(0, 10, 19, 7), BranchRange(2**64 - 1, 11, 11, 1)),
)
ABORT = Marker(committed=False, commit_sequence=5, hw=0, epoch=0)
POINTER = Marker(
    committed=True,
    commit_sequence=17050,
    hw=17000,
    epoch=16000,
    partition_count=1,
    partitions=(("delays._txnlog", 0),),
    branches=(BranchRange(3, 40, 41, 2),),
    sidecar=(BranchRange(0, 10, 19, 7),),
    since=42,
)
POINTER_TO_KNOWN = Marker(
    committed=True,
    commit_sequence=17050,
    hw=17000,
    epoch=16000,
    sidecar=(BranchRange(0, 10, 19, 7),),
    since=42,
    sidecar_id="W2ifJDqPQsqSLJHrGjYeEQ",
)
OF_SIDECAR = Marker(
    committed=True,
    commit_sequence=17050,
    hw=17000,
    epoch=16000,
    branches=(BranchRange(0, 10, 19, 7),),
    pointer=0,
)
GOLDEN = {
    "commit": (
        "010801209a850128e8840130033a0c0a0664656c617973120200023a0a0a05666172657312010142"
        "06100a18132007420f09ffffffffffffffff100b180b200148807d"
    ),
    "abort": "0108022005",
    "branch": "0111eeffc000efbeadde",
    "sequence": "011101000000000000001800",
    "pointer": (
        "010805209a850128e8840130013a130a0e64656c6179732e5f74786e6c6f67120100420f090300"
        "00000000000010281829200248807d820106100a1813200788012a"
    ),
    "pointer_to_known": (
        "010805209a850128e8840148807d820106100a1813200788012a9a0116573269664a447150517371534c4a4872"
        "476a59654551"
    ),
    "sidecar": "010801209a850128e884014206100a1813200748807d900100",
    "places": "0108035216573269664a447150517371534c4a4872476a59654551",
    "markers": "010804",
}
SAMPLES: dict[str, Control] = {
    "commit": COMMIT,
    "abort": ABORT,
    "pointer": POINTER,
    "pointer_to_known": POINTER_TO_KNOWN,
    "sidecar": OF_SIDECAR,
    "branch": DataControl(branch=0xDEADBEEF00C0FFEE),
    "sequence": DataControl(branch=1, sequence=0),
    "places": ModeRecord(True, "W2ifJDqPQsqSLJHrGjYeEQ"),
    "markers": ModeRecord(False),
}


def encode(control: Control) -> bytes:
    match control:
        case Marker():
            return encode_marker(control)
        case ModeRecord():
            return encode_mode_record(control)
        case DataControl():
            return encode_data_control(control)


@pytest.mark.parametrize("name", SAMPLES)
def test_golden(name: str) -> None:
    assert encode(SAMPLES[name]).hex() == GOLDEN[name]
    assert decode_control(bytes.fromhex(GOLDEN[name])) == SAMPLES[name]


@given(MARKERS | DATA | MODES)
def test_round_trip(control: Control) -> None:
    assert decode_control(encode(control)) == control


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda raw: bytes((VERSION,)) + raw))
def test_random_bytes_decode_or_are_malformed(raw: bytes) -> None:
    with suppress(MalformedHeaderError):
        decode_control(raw)


@given(MARKERS | DATA | MODES, st.data())
def test_a_cut_or_changed_header_never_crashes(control: Control, data: st.DataObject) -> None:
    raw = bytearray(encode(control))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for mangled in (bytes(raw), bytes(raw[: data.draw(st.integers(0, len(raw)))])):
        with suppress(MalformedHeaderError):
            decode_control(mangled)


@pytest.mark.parametrize("name", SAMPLES)
def test_fields_of_later_versions_are_skipped(name: str) -> None:
    # Field 100 as a varint, field 101 as bytes: what an old reader must pass over.
    later = bytes.fromhex(GOLDEN[name]) + bytes.fromhex("a00601aa0603616263")
    assert decode_control(later) == SAMPLES[name]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (None, "empty"),
        (b"", "empty"),
        (b"\x02", "version 2"),
        (b"\x01\x08\x07", "unknown kind 7"),
        (b"\x01\xff", "does not decode"),
        # One record between offsets 5 and 4.
        (bytes.fromhex("0108014206100518042001"), "count"),
    ],
)
def test_refusals_say_why(raw: bytes | None, why: str) -> None:
    with pytest.raises(MalformedHeaderError, match=why):
        decode_control(raw)


def test_a_count_must_fit_its_range() -> None:
    for first, last, count in ((5, 4, 1), (5, 5, 2), (5, 9, 0)):
        with pytest.raises(ValueError, match="can't lie"):
            BranchRange(0, first, last, count)


def test_a_long_partition_list_is_left_out_but_counted() -> None:
    many = [(f"a-topic-with-a-long-name-{n}", n) for n in range(100)]
    listed = PartitionList.of(many)
    assert (listed.count, listed.wire) == (100, ())
    marker = decode_control(encode_marker(ABORT, listed))
    assert isinstance(marker, Marker)
    assert (marker.partition_count, marker.partitions) == (100, ())
    assert len(encode_marker(ABORT, listed)) < PARTITION_LIST_MAX_BYTES


def test_a_partition_list_is_sorted_and_without_repetitions() -> None:
    assert group_by_topic([("b", 1), ("a", 2), ("b", 0), ("b", 1)]) == {"a": [2], "b": [0, 1]}
    assert list(group_by_topic([("b", 1), ("a", 2)])) == ["a", "b"]
