"""Delivers what ``read_uncommitted`` shows: every record at its place, except markers.

What lies in a sidecar comes when its pointer is met: two logs have no order between them. Where a
home places, `places_uncommitted` brings it. A position within it counts what lies in the main
partition, too, as with every isolation level: a group that changes its level there goes on where it
was (trap 159).

Source: Transactional Messaging in Kafka, "Transactional consumer", READ_UNCOMMITTED.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...journal.control import TXCTL_HEADER, TXID_HEADER, Marker, ModeRecord
from ...journal.errors import MalformedHeaderError
from ...journal.headers import headers_of
from ...journal.native.interface import HeaderRun
from ...journal.position import Journal, Position
from .buffer import PartitionBuffer
from .entries import EndedTransaction, PlainRun
from .headers import well_formed
from .pending import RawTxId, Record
from .pointers import PointedTransaction


class UncommittedBuffer(PartitionBuffer):
    """A `PartitionBuffer` in which nothing is ever pending. It hides mode records, too; it stops at
    one that counts, as others do, if it is told the latest one known."""

    _knows_modes = True

    def _scan(
        self, batch: Sequence[Record], runs: Sequence[HeaderRun] | None, *, live: bool
    ) -> None:
        del runs
        if not live:
            return
        append = self._run().records.append
        # Asked in C: see `headers_of`.
        for record, headers in zip(batch, map(headers_of, batch), strict=True):
            if not headers:
                append(record)
                continue
            txids = [raw for name, raw in headers if name == TXID_HEADER]
            if (len(headers) == 1 and txids and well_formed(txids[0])) or not txids:
                append(record)
            else:
                self._transactional(record, txids)
                # A pointer ends the run: what lies behind it comes behind it (trap 108).
                append = self._run().records.append

    def _transactional(self, record: Record, txids: Sequence[bytes | None]) -> None:
        controls = [raw for name, raw in record.headers() or () if name == TXCTL_HEADER]
        try:
            marker = self._marker(record, txids, controls)
        except MalformedHeaderError as error:
            self._report(record, txids[0], error, live=True)
            return
        if isinstance(marker, Marker) and marker.is_pointer:
            raw = txids[0]
            assert raw is not None, "it has been checked"
            self._end(raw, marker, record.offset(), live=True)
        elif isinstance(marker, ModeRecord) and well_formed(raw := txids[0]):
            assert raw is not None, "it has been checked"
            self._change_mode(raw, marker, record.offset(), live=True)
        if marker is not None:
            return
        if not well_formed(txids[0]):
            self._report(record, txids[0], None, live=True)
        else:
            self._run().records.append(record)

    def _entry(self, raw: RawTxId, marker: Marker, offset: int) -> EndedTransaction:
        # What lies in the main partition was delivered at its place.
        entry = super()._entry(raw, replace(marker, branches=()), offset)
        if isinstance(entry, PointedTransaction):
            entry.shown = sum(branch.count for branch in marker.branches)
        return entry

    def _delivered_before(self, entry: EndedTransaction) -> int:
        return max(0, super()._delivered_before(entry) - _shown(entry))

    def _position(
        self,
        o2: int,
        o3: int,
        met: Mapping[Journal, int],
        queue: Iterable[PlainRun | EndedTransaction],
    ) -> Position:
        queue = list(queue)
        if o3:
            ended = (e for e in queue if isinstance(e, EndedTransaction))
            o3 += next((_shown(e) for e in ended if e.marker_offset == o2), 0)
        position = super()._position(o2, o3, met, queue)
        if position.passed is None and position.o2 <= self._start.o2:
            return replace(position, passed=self._start.passed)  # Nothing was delivered since.
        return position


def _shown(entry: EndedTransaction) -> int:
    return entry.shown if isinstance(entry, PointedTransaction) else 0
