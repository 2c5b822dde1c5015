"""What branches hand over: text and bytes that survive the way to another process."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.control import BranchRange
from logtx.journal.errors import ConfigError
from logtx.journal.txid import TxId
from logtx.producer.core.summary import BranchSummary, make_token, read_token

txids = st.builds(
    TxId, st.integers(0, 2**16 - 1), st.integers(0, 2**48 - 1), st.integers(0, 2**63 - 1)
)


@st.composite
def summaries(draw: st.DrawFn) -> BranchSummary:
    branch = draw(st.integers(1, 2**64 - 1))
    writes = {}
    for key in draw(
        st.lists(st.tuples(st.text(min_size=1), st.integers(0, 2**31 - 1)), max_size=4)
    ):
        first = draw(st.integers(0, 2**62))
        count = draw(st.integers(1, 2**40))
        writes[key] = BranchRange(branch, first, first + count + draw(st.integers(0, 9)), count)
    return BranchSummary(draw(txids), branch, writes)


@given(summaries())
def test_bytes_and_pickles_come_back(summary: BranchSummary) -> None:
    assert BranchSummary.from_bytes(summary.to_bytes()) == summary
    assert pickle.loads(pickle.dumps(summary)) == summary


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"v":2}',
        b'{"v":1}',
        b'{"v":1,"txid":"x","branch":1,"writes":[]}',
        b'{"v":1,"txid":"0-000000000abc-1","branch":1,"writes":[["t",0,5,1,9]]}',
        b'{"v":1,"txid":"0-000000000abc-1","branch":1,"writes":[["t"]]}',
    ],
)
def test_anything_else_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - by several libraries
        BranchSummary.from_bytes(raw)


@given(txids)
def test_tokens_come_back(txid: TxId) -> None:
    assert read_token(make_token(txid)) == txid


@pytest.mark.parametrize("token", ["", "logtx-branch-1:", "logtx-branch-1:x", "0-000000000abc-1"])
def test_anything_else_is_no_token(token: str) -> None:
    with pytest.raises(ConfigError):
        read_token(token)
