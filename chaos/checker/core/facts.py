"""Joins history and logs: where each value is, and what became of each operation. Pure."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from typing import Final

from ..errors import BrokenHistoryError
from .history import Append, History, Op, Reader
from .journal import Fate, Journal, Partition
from .logs import NO_VALUE, Order, Standing, View
from .told import Told
from .wire import ASIDE_FROM, TxId, read_txid

LOGTX: Final = "logtx"
KAFKA: Final = "kafka"
_TEXT_FORM: Final = re.compile(r"(\d{1,5})-([0-9a-f]{12})-(\d{1,19})")
_HEX_FORM: Final = re.compile(r"[0-9a-f]{32}")


class Truth(Enum):
    """What became of an operation, from the logs alone."""

    COMMITTED = auto()
    ABORTED = auto()
    UNDECIDED = auto()
    UNKNOWN = auto()
    """The logs don't tell: its records were trimmed, or never arrived."""


@lru_cache(maxsize=2**16)
def parse_txid(text: str) -> TxId:
    """Parses a TxId, in hexadecimal or as logtx prints it.

    Raises:
        BrokenHistoryError: the text is neither.
    """
    if _HEX_FORM.fullmatch(text):
        return read_txid(bytes.fromhex(text))
    match = _TEXT_FORM.fullmatch(text)
    if match is None:
        raise BrokenHistoryError(f"not a TxId: {text!r}")
    return TxId(int(match[1]), int(match[2], 16), int(match[3]))


class Facts:
    """Everything that the checks look at."""

    def __init__(
        self,
        system: str,
        history: History,
        views: Mapping[Partition, View],
        journals: Mapping[int, Journal],
        input_topic: str,
        stores: Sequence[Told] = (),
    ) -> None:
        """Joins them.

        Args:
            system: `LOGTX` or `KAFKA`.
            history: of all processes.
            views: the dumped data partitions.
            journals: the dumped journal partitions; empty for Kafka.
            input_topic: the topic that workers process.
            stores: what metadata stores said.
        """
        self.system = system
        self.stores = stores
        self.history = history
        self.views = views
        self.journals = journals
        self.input_topic = input_topic
        self.unverifiable: Counter[str] = Counter()
        """Reason → number of things that can't be judged, because something was trimmed."""
        self.where: dict[int, tuple[Partition, int]] = {}
        """Value → its partition and offset; if there are several, the one that is delivered."""
        for view in views.values():
            self._locate(view)
        self.txids: dict[str, list[TxId]] = {}
        """Operation → its TxIds; more than one is an anomaly."""
        if system == LOGTX:
            self._find_txids()
        kafka = self._kafka_truths() if system == KAFKA else {}
        self.truths: dict[str, Truth] = {
            name: kafka.get(name, Truth.UNKNOWN) if system == KAFKA else self._logtx_truth(name)
            for name in history.ops
        }
        self._solid_at = {partition: self._find_solid(view) for partition, view in views.items()}

    def _locate(self, view: View) -> None:
        for offset, record in view.records.items():
            if record.value == NO_VALUE:
                continue
            if record.value not in self.where or offset in view.committed.rank:
                self.where[record.value] = view.partition, offset

    # ---- operations -----------------------------------------------------------------------------

    def op_of(self, value: int) -> Op | None:
        """Returns the operation that appended a value; None for plain and unknown values."""
        append = self.history.appends.get(value)
        return None if append is None else append.op

    def _find_txids(self) -> None:
        for op in self.history.ops.values():
            if op.txid:
                self._name(op.name, parse_txid(op.txid))
        for view in self.views.values():
            for record in view.records.values():
                if record.op is not None and record.txid is not None:
                    self._name(record.op, record.txid)
        for seen in self.history.sightings.values():
            for sighting in seen.values():
                found = self.op_of(sighting.value)
                if found is not None and sighting.txid and found.name not in self.txids:
                    self._name(found.name, parse_txid(sighting.txid))

    def _name(self, op: str, txid: TxId) -> None:
        known = self.txids.setdefault(op, [])
        if txid not in known:
            known.append(txid)

    def txid(self, op: Op) -> TxId | None:
        """Returns an operation's TxId, if it is known."""
        known = self.txids.get(op.name)
        return known[0] if known else None

    def fate(self, txid: TxId) -> Fate | None:
        """Returns what the journal says of a transaction; None if it says nothing."""
        journal = self.journals.get(txid.partition)
        return None if journal is None else journal.fate(txid)

    def _logtx_truth(self, name: str) -> Truth:
        known = self.txids.get(name)
        if not known:
            return Truth.UNKNOWN
        txid = known[0]
        journal = self.journals.get(txid.partition)
        if journal is None:
            return Truth.UNKNOWN
        fate = journal.fate(txid)
        if fate is not None and fate.decided is not None:
            return Truth.COMMITTED if fate.committed else Truth.ABORTED
        return self._by_others(txid) if txid.begin < journal.start else Truth.UNDECIDED

    def _by_others(self, txid: TxId) -> Truth:
        """Returns the truth of a transaction whose decision was trimmed from the journal."""
        for journal in self.journals.values():
            adoption = journal.adopted.get(txid)
            if adoption is not None:
                return Truth.COMMITTED if adoption.committed else Truth.ABORTED
        for view in self.views.values():
            marker = view.first_markers.get(txid)
            if marker is not None:
                return Truth.COMMITTED if marker.control.committed else Truth.ABORTED
        return Truth.UNKNOWN

    def _kafka_truths(self) -> dict[str, Truth]:
        truths: dict[str, Truth] = {}
        for view in self.views.values():
            for offset, record in view.records.items():
                if record.op is None or truths.get(record.op) is Truth.COMMITTED:
                    continue
                if offset in view.committed.rank:
                    truths[record.op] = Truth.COMMITTED
                elif view.standing.get(offset) is Standing.ABORTED:
                    truths[record.op] = Truth.ABORTED
                else:
                    truths.setdefault(record.op, Truth.UNDECIDED)
        return truths

    def truth(self, op: Op) -> Truth:
        """Returns what became of an operation, from the logs."""
        return self.truths[op.name]

    def committed(self, op: Op) -> bool:
        """Returns whether an operation is committed: by the logs, else by what its process knew."""
        truth = self.truths[op.name]
        return truth is Truth.COMMITTED or (truth is Truth.UNKNOWN and op.acknowledged)

    # ---- what was trimmed -----------------------------------------------------------------------

    def _find_solid(self, view: View) -> int | None:
        # The earliest moment at which a record that is still in the log was known to be there. What
        # was appended later has a higher offset.
        if view.start == 0:
            return None
        times = []
        for value in _values(view):
            append = self.history.appends.get(value)
            if append is None:
                continue
            if append.acked is not None:
                times.append(append.acked.at)
            elif append.op is not None and append.op.ended is not None and append.op.acknowledged:
                times.append(append.op.ended.at)
        return min(times, default=2**63)

    def must_be_there(self, append: Append) -> bool:
        """Returns whether a written value can't have been trimmed."""
        view = self.views[append.partition]
        solid_at = self._solid_at[append.partition]
        if solid_at is None:
            return True
        if append.offset >= 0:
            return append.offset >= view.start
        return append.line.at > solid_at

    def journal_of(self, reader: Reader) -> int:
        """Returns the journal partition whose transactions a serializable reader is given."""
        return zlib.crc32(reader.transaction_group.encode()) % max(len(self.journals), 1)

    def orders(self, reader: Reader, partition: Partition) -> tuple[Order, ...]:
        """Returns what a reader must be given of a partition; see `View.orders`."""
        return self.views[partition].orders(reader.isolation, self.journal_of(reader))

    def delivered_order(
        self, isolation: str = "read_committed", journal: int = 0
    ) -> Iterable[tuple[View, int, int]]:
        """Yields (view, offset, value) of all that readers of an isolation level must be given."""
        for view in self.views.values():
            for offset in view.order(isolation, journal).offsets:
                yield view, offset, view.records[offset].value


def _values(view: View) -> Iterable[int]:
    """Yields the values of the partition itself: what lies in its sidecar is trimmed by itself."""
    for offset, record in view.records.items():
        if record.value != NO_VALUE and offset < ASIDE_FROM:
            yield record.value
