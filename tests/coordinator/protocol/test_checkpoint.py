"""The hint that leads to a coordinator: any client may write it, so reading it must never raise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.coordinator.protocol.checkpoint import Checkpoint
from logtx.journal.logs.interface import GroupOffset

LONG = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(st.builds(Checkpoint, offset=LONG, epoch=LONG, address=TEXT))
def test_round_trip(checkpoint: Checkpoint) -> None:
    committed = checkpoint.to_group_offset()
    assert committed.offset == checkpoint.offset
    assert Checkpoint.from_group_offset(committed) == checkpoint


def test_metadata_is_a_format_that_other_versions_read() -> None:
    checkpoint = Checkpoint(offset=7, epoch=3, address="host:9095")
    assert checkpoint.to_group_offset() == GroupOffset(
        7, '{"version":1,"epoch":3,"address":"host:9095"}'
    )


def test_a_newer_version_may_add_fields() -> None:
    metadata = '{"version":1,"epoch":3,"address":"host:9095","rack":"a"}'
    found = Checkpoint.from_group_offset(GroupOffset(7, metadata))
    assert found == Checkpoint(offset=7, epoch=3, address="host:9095")


def test_none_is_none() -> None:
    assert Checkpoint.from_group_offset(None) is None


@given(st.one_of(TEXT, JSON.map(json.dumps)))
def test_any_other_metadata_is_no_hint(metadata: str) -> None:
    assert Checkpoint.from_group_offset(GroupOffset(7, metadata)) is None


@given(JSON, JSON)
def test_any_epoch_and_address_are_read_or_are_no_hint(epoch: object, address: object) -> None:
    metadata = json.dumps({"version": 1, "epoch": epoch, "address": address})
    found = Checkpoint.from_group_offset(GroupOffset(7, metadata))
    assert found is None or (isinstance(found.epoch, int) and isinstance(found.address, str))


@pytest.mark.parametrize("metadata", ['{"version":1,"epoch":1e999,"address":"a:1"}', "[" * 4_000])
def test_hostile_metadata_is_no_hint(metadata: str) -> None:
    assert Checkpoint.from_group_offset(GroupOffset(7, metadata)) is None
