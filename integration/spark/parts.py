"""Cuts a partition's range into parts, one for each task. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...consumer.range_reader.due import PlacedDue, RangePlaces
from ...consumer.range_reader.large import PART_RECORDS, Large
from ...consumer.range_reader.reading import Range
from ...consumer.range_reader.spot import Spot
from ...journal.control import TopicPartition
from ...journal.position import Position
from .vector import split


def parts(
    key: TopicPartition, spot: Spot, end: int, part: int, found: Sequence[Large]
) -> Iterator[Range]:
    """Cuts a partition's range into parts, in the order of what they deliver.

    Each part finds what began before it by side reads, so only the first must know how much was
    read of the transaction at its start.
    """
    start = spot.o2
    for large in found:
        if spot.o3 and large.marker == spot.o2 and not large.is_placed:
            continue  # a part of it is read
        if start < large.first:
            yield from _plain_parts(key, spot, start, large.first, part)
        yield from _shared(key, large, part)
        start = large.behind
    if start < end:
        yield from _plain_parts(key, spot, start, end, part)


def _shared(key: TopicPartition, large: Large, part: int) -> Iterator[Range]:
    pieces = -(-(large.marker - large.first) // part)
    for first, last in split(large.first, large.marker, pieces):
        yield Range(*key, Position.at(first), last, large)


def _plain_parts(
    key: TopicPartition, spot: Spot, start: int, end: int, part: int
) -> Iterator[Range]:
    for first, last in split(start, end, -(-(end - start) // part)):
        position = spot.position if first == spot.o2 else Position.at(first)
        yield Range(*key, position, last)


def placed_parts(
    key: TopicPartition,
    spot: Spot,
    end: int,
    part: int,
    found: Sequence[Large],
    places: RangePlaces,
    log_start: int,
) -> list[Range]:
    """Cuts a range whose partition has a home: each part gets what is placed in it.

    Tasks share the records of a large transaction that is placed, if these stand together. What
    retention deleted a part of is for one task to report, or to pass over.
    """
    shared = _to_share(spot, part, places, log_start)
    begins = {each.due.begin for each, _ in shared}
    left = replace(
        places,
        dues=tuple(d for d in places.dues if d.due.begin not in begins),
        elsewhere=frozenset(begins),
    )
    larges = [large for _, large in shared]
    inside = [x for x in larges if x.first >= spot.o2 and x.behind <= end]
    cuts = sorted([*found, *inside], key=lambda large: large.first)
    cut = list(parts(key, spot, end, part, cuts))
    for large in larges:
        if large not in inside:
            cut += _shared(key, large, part)
    return _with_places(key, spot, end, cut, left)


def _to_share(
    spot: Spot, part: int, places: RangePlaces, log_start: int
) -> list[tuple[PlacedDue, Large]]:
    if part < PART_RECORDS:
        return []
    found = []
    is_half_read = spot.passed is not None and spot.passed.taken > 0
    for each in places.dues[is_half_read:]:
        if each.due.txid is not None:
            continue  # Of another journal: `elsewhere` can't name it.
        large = Large.placed(places.home, each.due)
        if large is not None and large.marker - large.first > part and large.first >= log_start:
            found.append((each, large))
    return found


def _with_places(
    key: TopicPartition, spot: Spot, end: int, cut: list[Range], places: RangePlaces
) -> list[Range]:
    plain = [number for number, each in enumerate(cut) if each.large is None]
    if places.dues and not plain:
        plain = [len(cut)]
        cut.append(Range(*key, spot.position if spot.o2 == end else Position.at(end), end))
    dues = list(places.dues)
    for number in plain:
        each, is_last = cut[number], number == plain[-1]
        count = len(dues)
        if not is_last:
            count = next((i for i, d in enumerate(dues) if d.place > each.end), count)
        mine, dues = dues[:count], dues[count:]
        cut[number] = replace(each, places=replace(places, dues=tuple(mine)))
    return cut


def divided(ranges: list[Range]) -> list[Range]:
    """Notes in the parts of a range, if there are several, that each is not all of it."""
    is_part = len(ranges) > 1
    return [replace(each, is_part=is_part) for each in ranges]
