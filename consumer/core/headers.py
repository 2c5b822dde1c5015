"""Finds a record's TxId and TxCtl headers as raw bytes, and checks a TxId without decoding it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ...journal.control import TXCTL_HEADER, TXID_HEADER, Marker, decode_control
from ...journal.errors import MalformedHeaderError
from ...journal.headers import headers_of
from ...journal.native.interface import HeaderRun
from ...journal.txid import TXID_BYTES, TxId
from .pending import RawTxId, Record


def by_headers(
    batch: Sequence[Record], runs: Sequence[HeaderRun] | None
) -> Iterator[tuple[Sequence[tuple[str, bytes | None]] | None, Iterator[Record]]]:
    """Yields consecutive records with equal headers; like `groupby`, each until the next.

    Args:
        batch: the records, at least one.
        runs: the same by headers, if somebody compared these already.
    """
    if runs is None:
        yield from groupby(batch, type(batch[0]).headers)  # called in C, as `methodcaller` is not
        return
    start = 0
    for headers, count in runs:
        yield headers, iter(batch if count == len(batch) else batch[start : start + count])
        start += count


def txid_of(record: Record) -> RawTxId | None:
    """Returns the value of the record's TxId header; None without one, or with several."""
    values = [raw for name, raw in headers_of(record) or () if name == TXID_HEADER]
    return values[0] if len(values) == 1 else None


def control_of(record: Record) -> bytes | None:
    """Returns the value of the record's first TxCtl header, or None."""
    return next((raw for name, raw in headers_of(record) or () if name == TXCTL_HEADER), None)


def is_marker(record: Record) -> bool:
    """Returns whether the record is a marker; False if its TxCtl does not decode."""
    control = control_of(record)
    if control is None or record.key() is not None or record.value() is not None:
        return False
    try:
        return isinstance(decode_control(control), Marker)
    except MalformedHeaderError:
        return False


def well_formed(raw: bytes | None) -> bool:
    """Returns what `TxId.from_bytes` checks, without making one: 16 bytes, an offset of 63 bits."""
    return raw is not None and len(raw) == TXID_BYTES and raw[8] < 0x80


def txid_error(raw: bytes | None) -> MalformedHeaderError:
    """Returns the error that says what is wrong with a TxId that is not `well_formed`."""
    try:
        return MalformedHeaderError(f"unexpected TxId {TxId.from_bytes(raw)}")
    except MalformedHeaderError as error:
        return error
