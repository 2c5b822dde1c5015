"""Sums of what a log holds of each transaction, as values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Group(NamedTuple):
    """What a partition holds of one TxId with one TxCtl: a branch's records, or equal markers."""

    topic: str
    partition: int
    raw_txid: bytes
    ctl: bytes
    """Empty: none."""
    records: int
    first: int
    last: int
    blank: int
    """How many have neither key nor value, as markers do; counted only where there is a TxCtl."""


Span = tuple[int, int]
"""First offset, and the one to stop before."""


def merge(groups: Iterable[Group]) -> Iterator[Group]:
    """Join the sums of ranges that follow each other."""
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
