"""The TxId of a record, for readers that look for a few transactions only."""

from __future__ import annotations

from ..journal.control import TXCTL_HEADER, TXID_HEADER, Marker, decode_control
from ..journal.errors import MalformedHeaderError
from .pending import RawTxId, Record


def txid_of(record: Record) -> RawTxId | None:
    """Value of its TxId header; None without one, or where it is given twice."""
    values = [raw for name, raw in record.headers() or () if name == TXID_HEADER]
    return values[0] if len(values) == 1 else None


def control_of(record: Record) -> bytes | None:
    """Value of its TxCtl header, or None."""
    return next((raw for name, raw in record.headers() or () if name == TXCTL_HEADER), None)


def is_marker(record: Record) -> bool:
    """Whether it ends a transaction; False for one that does not decode."""
    control = control_of(record)
    if control is None or record.key() is not None or record.value() is not None:
        return False
    try:
        return isinstance(decode_control(control), Marker)
    except MalformedHeaderError:
        return False
