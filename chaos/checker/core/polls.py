"""Compares what each reader was given of each partition with the order of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from .facts import Facts
from .findings import KEPT, Evidence, Findings, at, delivered, ends_at, lies
from .history import Segment
from .journal import Partition
from .logs import Order, Standing, View
from .wire import ASIDE_FROM


def check_polls(facts: Facts, found: Findings) -> None:
    """Finds duplicate, nonmonotonic-poll, skipped-poll, torn-transaction and order-differs."""
    skipped: set[tuple[Partition, int]] = set()
    reversed_pairs: list[tuple[Segment, int, int]] = []
    for reader in facts.history.readers:
        for segment in reader.segments:
            _check_twice(facts, segment, found)
            _check_aside(facts, segment, found)
            for order in facts.orders(reader, segment.partition):
                pair = _check_order(facts, segment, order, found)
                if pair is not None:
                    reversed_pairs.append((segment, *pair))
                elif not reader.final:  # what last readers miss is reported by operation
                    skipped |= _check_skips(facts, segment, order, found)
    _check_groups(facts, skipped, {id(segment) for segment, _, _ in reversed_pairs}, found)
    for segment, one, other in reversed_pairs[:KEPT]:
        _check_others(facts, segment, one, other, found)
    _check_trimmed(facts, found)


def _check_twice(facts: Facts, segment: Segment, found: Findings) -> None:
    if len(set(segment.offsets)) == len(segment.offsets):
        return
    first: dict[int, int] = {}
    for index, offset in enumerate(segment.offsets):
        before = first.setdefault(offset, index)
        if before != index:
            found.add(
                "duplicate",
                f"{segment.reader.process} was given {at(segment.partition, offset)} twice within"
                " one assignment",
                delivered(facts, segment, before),
                delivered(facts, segment, index),
            )


def _check_aside(facts: Facts, segment: Segment, found: Findings) -> None:
    """Checks that a reader of uncommitted records comes to a place before it is given what lies in
    the sidecar and is placed there."""
    view = facts.views[segment.partition]
    if segment.reader.isolation != "read_uncommitted" or not view.placed_aside:
        return
    lowest: int | None = None
    """Index of the lowest offset of the partition itself that is given further on."""
    for index in reversed(range(len(segment.offsets))):
        offset = segment.offsets[index]
        if offset < ASIDE_FROM:
            lowest = index if lowest is None or offset < segment.offsets[lowest] else lowest
            continue
        place = view.placed_aside.get(offset)
        if place is not None and lowest is not None and segment.offsets[lowest] < place:
            found.add(
                "nonmonotonic-poll",
                f"{segment.reader.process} was given {at(segment.partition, offset)}, which is"
                f" placed behind it, before {at(segment.partition, segment.offsets[lowest])}",
                delivered(facts, segment, index),
                delivered(facts, segment, lowest),
                *_ends(facts, segment.partition, offset),
            )


def _check_order(
    facts: Facts, segment: Segment, order: Order, found: Findings
) -> tuple[int, int] | None:
    """Compares with an order. Returns the first pair in reverse order, or None."""
    rank = order.rank
    highest, highest_index, first = -1, -1, None
    seen: set[int] = set()
    for index, offset in enumerate(segment.offsets):
        here = rank.get(offset)
        if here is None or offset in seen:
            continue
        seen.add(offset)
        if here > highest:
            highest, highest_index = here, index
            continue
        first = first or (highest_index, index)
        found.add(
            "nonmonotonic-poll",
            f"{segment.reader.process} was given {at(segment.partition, offset)} behind"
            f" {at(segment.partition, segment.offsets[highest_index])}, which comes after it",
            delivered(facts, segment, highest_index),
            delivered(facts, segment, index),
            *_ends(facts, segment.partition, segment.offsets[highest_index], offset),
        )
    return first


def _ends(facts: Facts, partition: Partition, *offsets: int) -> Iterator[Evidence]:
    """Yields the ends at which records are due; of a plain record the record itself."""
    view = facts.views[partition]
    for offset in offsets:
        txid = view.records[offset].txid
        end = None if txid is None else view.end_of(txid)
        yield lies(facts, partition, offset) if end is None else ends_at(facts, view, end)


def _check_skips(
    facts: Facts, segment: Segment, order: Order, found: Findings
) -> set[tuple[Partition, int]]:
    ranks = [order.rank[offset] for offset in segment.offsets if offset in order.rank]
    skipped: set[tuple[Partition, int]] = set()
    if not ranks or max(ranks) - min(ranks) + 1 == len(set(ranks)):
        return skipped
    given = set(ranks)
    indexes = {offset: index for index, offset in enumerate(segment.offsets)}
    for gap in _gaps(min(ranks), max(ranks), given):
        offset = order.offsets[gap[0]]
        skipped |= {(segment.partition, order.offsets[rank]) for rank in gap}
        before = indexes[order.offsets[gap[0] - 1]]
        after = indexes[order.offsets[gap[-1] + 1]]
        where = at(segment.partition, offset)
        evidence = (
            delivered(facts, segment, before),
            lies(facts, segment.partition, offset),
            delivered(facts, segment, after),
        )
        who = segment.reader.process
        if _part_given(facts, segment, (offset, order.offsets[gap[-1]]), (before, after)):
            sentence = f"{who} was given a part of a transaction, without {where}"
            found.add("torn-transaction", sentence, *evidence)
        else:
            sentence = f"{who} was not given {where} and {len(gap) - 1} more, in between others"
            found.add("skipped-poll", sentence, *evidence)
    return skipped


def _gaps(first: int, last: int, given: set[int]) -> Iterator[range]:
    start: int | None = None
    for rank in range(first, last + 1):
        if rank not in given:
            start = rank if start is None else start
        elif start is not None:
            yield range(start, rank)
            start = None


def _part_given(
    facts: Facts, segment: Segment, ends: tuple[int, int], around: tuple[int, int]
) -> bool:
    """Returns whether the gap begins or ends inside a transaction."""
    if segment.reader.isolation == "read_uncommitted":
        return False
    records = facts.views[segment.partition].records
    missing = [facts.op_of(records[offset].value) for offset in ends]
    given = [facts.op_of(segment.values[index]) for index in around]
    return any(op is not None and op is other for op, other in zip(missing, given, strict=True))


def _check_groups(
    facts: Facts, skipped: set[tuple[Partition, int]], unordered: set[int], found: Findings
) -> None:
    """Checks consumers that continue from each other's positions: together they must miss nothing.

    They are the members of a group, or the lives of a process without one. If one was given
    records out of order, it is not known what it would have been given next.
    """
    groups: dict[tuple[str, str, Partition], list[Segment]] = {}
    for reader in facts.history.readers:
        if reader.role != "consumer":
            continue
        together = f"group {reader.group}" if reader.group else reader.process.rpartition(".")[0]
        for segment in reader.segments:
            key = together, reader.isolation, segment.partition
            groups.setdefault(key, []).append(segment)
    for (together, _, partition), segments in groups.items():
        if any(id(segment) in unordered for segment in segments):
            continue
        for order in facts.orders(segments[0].reader, partition):
            _check_together(facts, together, segments, order, skipped, found)


def _check_together(
    facts: Facts,
    together: str,
    segments: Sequence[Segment],
    order: Order,
    skipped: set[tuple[Partition, int]],
    found: Findings,
) -> None:
    partition = segments[0].partition
    last: dict[int, tuple[Segment, int]] = {}
    for segment in segments:
        for index, offset in enumerate(segment.offsets):
            if offset in order.rank:
                last[order.rank[offset]] = segment, index
    if not last:
        return
    for gap in _gaps(min(last), max(last), set(last)):
        offset = order.offsets[gap[0]]
        if (partition, offset) in skipped:
            continue
        found.add(
            "skipped-poll",
            f"{together} was never given {at(partition, offset)} and {len(gap) - 1} more",
            delivered(facts, *last[gap[0] - 1]),
            lies(facts, partition, offset),
            delivered(facts, *last[gap[-1] + 1]),
        )


def _check_others(facts: Facts, segment: Segment, one: int, other: int, found: Findings) -> None:
    """Finds another reader that was given the same two records the other way round."""
    early, late = segment.offsets[one], segment.offsets[other]
    for reader in facts.history.readers:
        if reader.isolation != segment.reader.isolation:
            continue
        for against in reader.segments:
            if against.partition != segment.partition or against is segment:
                continue
            first, second = _index(against, late), _index(against, early)
            if 0 <= first < second:
                _report_order(facts, segment, (one, other), against, (first, second), found)
                return


def _index(segment: Segment, offset: int) -> int:
    try:
        return segment.offsets.index(offset)
    except ValueError:
        return -1


def _report_order(
    facts: Facts,
    segment: Segment,
    pair: Sequence[int],
    against: Segment,
    reverse: Sequence[int],
    found: Findings,
) -> None:
    topic, number = segment.partition
    found.add(
        "order-differs",
        f"{segment.reader.process} and {against.reader.process} were given the same two records of"
        f" {topic}[{number}] in different orders",
        *(delivered(facts, segment, index) for index in pair),
        *(delivered(facts, against, index) for index in reverse),
    )


def _check_trimmed(facts: Facts, found: Findings) -> None:
    """Compares readers on what was trimmed with the reader that was given most of it."""
    trimmed: dict[tuple[Partition, bool], list[tuple[Segment, list[int]]]] = {}
    for reader in facts.history.readers:
        for segment in reader.segments:
            view = facts.views[segment.partition]
            if view.start == 0:
                continue
            raw = reader.isolation == "read_uncommitted"
            # What was placed of a sidecar's may have come to these readers at any time.
            indexes = [
                index
                for index, offset in enumerate(segment.offsets)
                if _is_trimmed(view, offset) and not (raw and offset >= ASIDE_FROM)
            ]
            if indexes:
                key = segment.partition, raw
                trimmed.setdefault(key, []).append((segment, indexes))
    for found_in in trimmed.values():
        most, indexes = max(found_in, key=lambda item: len(item[1]))
        place = {most.offsets[index]: index for index in reversed(indexes)}
        facts.unverifiable["delivery of what was trimmed"] += sum(len(i) for _, i in found_in)
        for segment, own in found_in:
            if segment is most:
                continue
            common = [i for i in own if segment.offsets[i] in place]
            for one, other in pairwise(common):
                reverse = place[segment.offsets[other]], place[segment.offsets[one]]
                if reverse[0] < reverse[1]:
                    _report_order(facts, segment, (one, other), most, reverse, found)
                    break


def _is_trimmed(view: View, offset: int) -> bool:
    return offset < view.start or view.standing.get(offset) is Standing.TORN
