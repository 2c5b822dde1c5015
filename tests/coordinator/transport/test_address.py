"""Addresses, as everything reads them."""

from __future__ import annotations

import pytest

from logtx.coordinator.transport.address import joined, split
from logtx.journal.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("h:1", "h", 1), ("127.0.0.1:65535", "127.0.0.1", 65_535), ("[::1]:0", "::1", 0)],
)
def test_an_address_is_split_and_joined(address: str, host: str, port: int) -> None:
    assert split(address) == (host, port)
    assert joined(host, port) == address


@pytest.mark.parametrize(
    "address",
    ["", "h", ":1", "h:", "h:x", "h:-1", "h:65536", "h:\u0661", "a b:1", "a\nb:1", "::1:9095"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="give host:port"):
        split(address)
