"""Remembers what was delivered lately, so that any of it can be committed."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...journal.position import Journal
from .entries import EndedTransaction, PlainRun
from .pending import Record

SHARES_MAX: Final = 1_000
"""Parts of transactions, and runs of plain records between them, that are remembered of each
partition: 1 KB each. With more, older messages can be committed."""
OFFSETS_MAX: Final = 500_000
"""Offsets that are remembered of each partition, one by one: 4 MB. Only those of transactions whose
records do not lie in a row count. With more, older messages can be committed."""


@dataclass(slots=True)
class Delivered:
    """A transaction's records, or some plain records, that were delivered one after the other."""

    entry: EndedTransaction | None
    """The transaction; None: the records are plain."""
    start: int
    """How many of the transaction's records were delivered before."""
    offsets: Sequence[int]
    """Offsets of the records. Of plain ones: from the first to the last, with gaps."""
    met: Mapping[Journal, int]
    """Last commit sequences met, as of the first of them."""


class Past:
    """What was delivered lately from one partition, in order."""

    def __init__(self) -> None:
        self._shares: deque[Delivered] = deque()
        self._offsets = 0
        """Offsets that are remembered one by one."""

    def add(
        self,
        entry: PlainRun | EndedTransaction,
        start: int,
        records: Sequence[Record],
        met: Mapping[Journal, int],
    ) -> None:
        """Notes that records of an entry were delivered, `start` of which were delivered before."""
        transaction = None if isinstance(entry, PlainRun) else entry
        first, end = records[0].offset(), records[-1].offset() + 1
        if not self._shares or self._shares[-1].entry is not transaction:
            self._shares.append(Delivered(transaction, start, range(first, first), dict(met)))
        share = self._shares[-1]
        so_far = share.offsets
        in_a_row = end - first == len(records) and (not so_far or so_far[-1] == first - 1)
        if transaction is None or (isinstance(so_far, range) and in_a_row):
            share.offsets = range(so_far[0] if so_far else first, end)
        else:
            self._extend(share, [record.offset() for record in records])
        while len(self._shares) > SHARES_MAX or self._offsets > OFFSETS_MAX:
            self._offsets -= _one_by_one(self._shares.popleft())

    def _extend(self, share: Delivered, offsets: Sequence[int]) -> None:
        self._offsets -= _one_by_one(share)
        if not isinstance(share.offsets, array):
            share.offsets = array("q", share.offsets)
        share.offsets.extend(offsets)
        self._offsets += _one_by_one(share)

    def find(self, offset: int) -> tuple[Delivered, int, Iterator[EndedTransaction]] | None:
        """Looks for the record at an offset.

        Returns:
            What it was delivered with, its index in it, and the transactions delivered after that;
            None if it is not remembered.
        """
        plain = None
        for number, share in enumerate(self._shares):
            if offset not in share.offsets:
                continue
            if share.entry is not None:
                return share, share.offsets.index(offset), self._after(number)
            # A run of plain records may have a transaction's records in its gaps.
            plain = number
        return None if plain is None else (self._shares[plain], 0, self._after(plain))

    def _after(self, number: int) -> Iterator[EndedTransaction]:
        for at in range(number + 1, len(self._shares)):
            entry = self._shares[at].entry
            if entry is not None:
                yield entry


def _one_by_one(share: Delivered) -> int:
    return 0 if isinstance(share.offsets, range) else len(share.offsets)
