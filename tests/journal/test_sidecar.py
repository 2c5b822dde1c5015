"""Names and offsets of sidecars."""

from __future__ import annotations

import pytest

from logtx.journal.errors import ConfigError, UnsupportedTopicError
from logtx.journal.sidecar import (
    check_named_by_user,
    in_sidecar,
    is_delivered_from_sidecar,
    is_sidecar,
    main_of,
    sidecar_of,
    to_delivered,
)


def test_a_sidecar_has_the_name_of_its_topic() -> None:
    assert sidecar_of("orders") == "orders._txnlog"
    assert main_of("orders._txnlog") == "orders"
    assert is_sidecar("orders._txnlog")
    assert not is_sidecar("orders")
    assert not is_sidecar("_txnlog")


def test_a_sidecar_has_no_sidecar() -> None:
    with pytest.raises(UnsupportedTopicError, match=r"orders\._txnlog is the sidecar of orders"):
        sidecar_of("orders._txnlog")


def test_a_name_must_leave_room_for_the_suffix() -> None:
    assert len(sidecar_of("t" * 241)) == 249
    with pytest.raises(UnsupportedTopicError, match="more than 249 bytes"):
        sidecar_of("t" * 242)


def test_a_user_can_not_name_one() -> None:
    check_named_by_user("orders")
    with pytest.raises(ConfigError, match="write to orders, in a transaction that begins with"):
        check_named_by_user("orders._txnlog")


@pytest.mark.parametrize("offset", [0, 1, 2**61])
def test_offsets_of_both_logs_stay_apart(offset: int) -> None:
    delivered = to_delivered(offset)
    assert is_delivered_from_sidecar(delivered)
    assert not is_delivered_from_sidecar(offset)
    assert in_sidecar(delivered) == offset
    assert delivered < 2**63
