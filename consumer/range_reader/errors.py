"""Errors of reading ranges. Each text is one sentence that names the way out."""

from __future__ import annotations

from ...journal.errors import LogtxError, NotSupportedError


class DataLossError(LogtxError):
    """Records that were to be read are gone: by retention, or with their topic."""


class UnreadSidecarError(NotSupportedError):
    """A transaction has its records in a sidecar, and the reader does not read those."""

    code = 0  # It never crosses the wire.

    def __init__(self, message: str = "", *, txid: bytes = b"", pointer_offset: int = -1) -> None:
        """Stores the transaction's TxId, and where it is delivered: the offset of its pointer."""
        super().__init__(message)
        self.txid, self.pointer_offset = txid, pointer_offset


class SwitchedError(LogtxError):
    """A topic's mode was switched when a range of it was planned: plan and read it again."""
