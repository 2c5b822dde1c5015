"""TxId: golden bytes, round trips, and refusal of everything else."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.errors import MalformedHeaderError
from logtx.journal.txid import MAX_INCARNATION, MAX_OFFSET, MAX_PARTITION, TxId

TXIDS = st.builds(
    TxId,
    st.integers(0, MAX_PARTITION),
    st.integers(0, MAX_INCARNATION),
    st.integers(0, MAX_OFFSET),
)
GOLDEN = {
    TxId(0, 0, 0): ("00" * 16, "0-000000000000-0"),
    TxId(3, 0x9F3AC1D2E4B7, 17042): (
        "00039f3ac1d2e4b70000000000004292",
        "3-9f3ac1d2e4b7-17042",
    ),
    TxId(MAX_PARTITION, MAX_INCARNATION, MAX_OFFSET): (
        "ffffffffffffffff7fffffffffffffff",
        "65535-ffffffffffff-9223372036854775807",
    ),
}


@pytest.mark.parametrize("txid", GOLDEN)
def test_golden(txid: TxId) -> None:
    raw, text = GOLDEN[txid]
    assert (txid.to_bytes().hex(), str(txid)) == (raw, text)
    assert TxId.from_bytes(bytes.fromhex(raw)) == TxId.parse(text) == txid


@given(TXIDS)
def test_round_trips(txid: TxId) -> None:
    assert TxId.from_bytes(txid.to_bytes()) == TxId.parse(str(txid)) == txid


@given(st.binary(max_size=40) | st.none())
def test_random_bytes_decode_or_are_malformed(raw: bytes | None) -> None:
    try:
        assert TxId.from_bytes(raw).to_bytes() == raw
    except MalformedHeaderError:
        assert raw is None or len(raw) != 16 or raw[8] >= 0x80


@given(st.text(max_size=50))
@pytest.mark.parametrize("prefix", ["", "3-9f3ac1d2e4b7-"])
def test_random_text_parses_or_is_refused(prefix: str, text: str) -> None:
    with suppress(ValueError):
        TxId.parse(prefix + text)


def test_txids_of_different_journals_have_no_order() -> None:
    with pytest.raises(TypeError):
        assert TxId(0, 0, 1) < TxId(0, 0, 2)
    assert TxId(1, 2, 3).journal == (1, 2)
