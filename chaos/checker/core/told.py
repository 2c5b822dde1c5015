"""What metadata stores said: a sample that the run keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

from .wire import TxId


class Told(NamedTuple):
    """What one store said of a transaction whose end was told."""

    store: str
    txid: TxId
    header: dict[str, Any] | None
    """None: it did not know it, or not any more."""
    writes: list[dict[str, Any]]
