"""`__transaction_topics`: its codecs, and which of several values counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.errors import CorruptRecordError, UnknownRecordError
from logtx.journal.mode_registry import (
    ModeKey,
    Published,
    TopicModeRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    latest,
)
from logtx.journal.modes import EARLIER_MAX, EARLIER_OFFSETS_MAX, EndedSwitch, Phase, remembered

LONG: Final = st.integers(0, 2**63 - 1)
INT: Final = st.integers(0, 2**31 - 1)
NAME: Final = st.text(max_size=12)
KEY: Final = st.builds(ModeKey, NAME, st.integers(0, 65_535), st.integers(0, 2**48 - 1), LONG)
MODE: Final = st.builds(
    TopicModeRecord,
    topic=NAME,
    topic_id=NAME,
    phase=st.sampled_from(Phase),
    home=st.tuples(INT, LONG),
    mode_offset=LONG,
    offset=LONG,
    since=st.dictionaries(INT, LONG, max_size=3),
    with_records=st.booleans(),
    earlier=st.lists(
        st.builds(
            EndedSwitch, LONG, st.sampled_from(Phase), st.dictionaries(INT, LONG), st.booleans()
        ),
        max_size=2,
    ).map(tuple),
)
HOME: Final = (3, 0x9F3AC1D2E4B7)
ORDERS: Final = TopicModeRecord(
    topic="orders",
    topic_id="W2ifJDqPQsqSLJHrGjYeEQ",
    phase=Phase.METADATA,
    home=HOME,
    mode_offset=900,
    offset=902,
    since={0: 1000, 3: 0},
)


def published(mode: TopicModeRecord, epoch: int, written_ms: int = 0) -> Published:
    key = ModeKey(mode.topic, *mode.home, epoch)
    return Published(encode_key(key), encode_value(mode), written_ms)


@given(KEY)
def test_keys_round_trip(key: ModeKey) -> None:
    assert decode_key(encode_key(key)) == key


@given(MODE, LONG)
def test_values_round_trip(mode: TopicModeRecord, epoch: int) -> None:
    key = ModeKey(mode.topic, *mode.home, epoch)
    assert decode_value(key, encode_value(mode)) == mode


KEY_BYTES: Final = "010c6f726465727306ee92979dd8ce4f80fa01"
VALUE_BYTES: Final = (
    "012c573269664a447150517371534c4a4872476a59654551106d65746164617461880e8c0e010400d00f060000"
)
VALUE_BYTES_2: Final = (
    "022c573269664a447150517371534c4a4872476a59654551106d65746164617461960e9a0e010400d00f060000"
    "04106d65746164617461880e010400d00f0600000e6d61726b657273920e000000"
)
SWITCHING_BYTES: Final = (
    "012c573269664a447150517371534c4a4872476a5965455114746f2d6d61726b657273880e8c0e0000"
)


def test_the_bytes_of_version_1_stay() -> None:
    assert encode_key(ModeKey("orders", *HOME, 16000)).hex() == KEY_BYTES
    assert encode_value(ORDERS).hex() == VALUE_BYTES
    switching = replace(ORDERS, phase=Phase.TO_MARKERS, since={}, with_records=False)
    assert encode_value(switching).hex() == SWITCHING_BYTES


def decode_orders(raw: bytes | None) -> TopicModeRecord:
    return decode_value(ModeKey("orders", *HOME, 16000), raw)


@pytest.mark.parametrize("decode", [decode_key, decode_orders])
@pytest.mark.parametrize("raw", [None, b"", b"\x01", b"\x01\xff"])
def test_what_does_not_decode_is_corrupt(decode: Callable[[Any], Any], raw: bytes | None) -> None:
    with pytest.raises(CorruptRecordError):
        decode(raw)


@pytest.mark.parametrize(("decode", "version"), [(decode_key, 2), (decode_orders, 3)])
def test_a_newer_version_asks_for_an_upgrade(decode: Callable[[Any], Any], version: int) -> None:
    with pytest.raises(UnknownRecordError, match="upgrade"):
        decode(bytes((version,)) + b"anything")


def test_the_bytes_of_version_2_stay() -> None:
    switches = (
        EndedSwitch(900, Phase.METADATA, {0: 1000, 3: 0}, with_records=True),
        EndedSwitch(905, Phase.MARKERS, {}, with_records=False),
    )
    told = replace(ORDERS, mode_offset=907, offset=909, earlier=switches)
    assert encode_value(told).hex() == VALUE_BYTES_2
    assert decode_orders(bytes.fromhex(VALUE_BYTES_2)) == told


def test_of_many_switches_the_latest_are_remembered_from_one_to_markers_on() -> None:
    def turn(number: int) -> EndedSwitch:
        phase = Phase.MARKERS if number % 2 else Phase.METADATA
        return EndedSwitch(number, phase, {}, with_records=True)

    wide = replace(turn(1), since=dict.fromkeys(range(EARLIER_OFFSETS_MAX), 7))
    assert remembered([replace(turn(0), since={0: 7}), wide]) == (wide,)
    assert remembered([turn(0), wide, wide]) == (wide,)
    wider = replace(wide, since=dict.fromkeys(range(EARLIER_OFFSETS_MAX + 1), 7))
    assert remembered([turn(0), wider]) == ()
    for count in range(EARLIER_MAX + 1):
        switches = [turn(number) for number in range(count)]
        assert remembered(switches) == tuple(switches)
    for count in (EARLIER_MAX + 1, EARLIER_MAX + 2):
        switches = [turn(number) for number in range(count)]
        kept = remembered(switches)
        assert kept == tuple(switches[-len(kept) :])
        assert kept[0].phase is Phase.MARKERS
        assert len(kept) >= EARLIER_MAX - 1


def test_a_newer_phase_asks_for_an_upgrade() -> None:
    raw = encode_value(ORDERS).replace(b"metadata", b"sideways")
    with pytest.raises(UnknownRecordError, match=r"orders is in the phase 'sideways'; upgrade"):
        decode_orders(raw)


def test_bytes_left_over_are_corrupt() -> None:
    with pytest.raises(CorruptRecordError, match="left over"):
        decode_orders(encode_value(ORDERS) + b"\0")


def test_a_late_write_of_a_replaced_owner_changes_nothing() -> None:
    """Whatever compaction keeps, and in whatever order they come (trap 27)."""
    former = replace(ORDERS, phase=Phase.TO_METADATA, offset=900, since={})
    written = [published(former, 100), published(ORDERS, 100), published(ORDERS, 200)]
    late = [published(former, 100), published(ORDERS, 200)]
    for records in (*permutations(written), *permutations(late)):
        assert latest(records) == {"orders": ORDERS}


def test_a_topic_that_was_created_anew_has_the_later_mode() -> None:
    anew = replace(ORDERS, topic_id="another", phase=Phase.TO_METADATA, mode_offset=950, offset=950)
    for records in permutations([published(ORDERS, 100), published(anew, 200)]):
        assert latest(records) == {"orders": anew}


def test_what_is_removed_does_not_count() -> None:
    other = replace(ORDERS, topic="fares")
    removed = published(ORDERS, 100)._replace(value=None)
    assert latest([published(ORDERS, 100), published(other, 100), removed]) == {"fares": other}
    assert latest([published(ORDERS, 100), removed, published(ORDERS, 200)]) == {"orders": ORDERS}
    assert latest([]) == {}


def test_a_home_that_began_anew_counts_by_time() -> None:
    """Its offsets can't be compared with those of the journal that was lost."""
    anew = replace(ORDERS, home=(3, 7), mode_offset=5, offset=6)
    records = [published(anew, 4, written_ms=2000), published(ORDERS, 100, written_ms=1000)]
    for order in permutations(records):
        assert latest(order) == {"orders": anew}
