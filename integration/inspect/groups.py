"""Value types for sums of each transaction's records in a log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Group(NamedTuple):
    """Sum of a partition's records with the same TxId and TxCtl: a branch's records, or markers."""

    topic: str
    partition: int
    raw_txid: bytes
    ctl: bytes
    """The TxCtl header; empty if there is none."""
    records: int
    """Number of records."""
    first: int
    """Lowest offset."""
    last: int
    """Highest offset."""
    blank: int
    """Number of records with neither key nor value, as markers are. Counted only if there is a
    TxCtl."""


Span = tuple[int, int]
"""(first offset, offset to stop before)."""


def merge(groups: Iterable[Group]) -> Iterator[Group]:
    """Adds up the sums of different ranges that belong to the same partition, TxId and TxCtl."""
    merged: dict[tuple[str, int, bytes, bytes], Group] = {}
    for group in groups:
        key = group[:4]
        before = merged.get(key)
        if before is not None:
            group = Group(  # noqa: PLW2901
                *key,
                before.records + group.records,
                min(before.first, group.first),
                max(before.last, group.last),
                before.blank + group.blank,
            )
        merged[key] = group
    return iter(merged.values())
