"""What the last readers saw: they read everything from the beginning, after all was healed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .facts import Facts
from .findings import Evidence, Findings, acknowledged, appended, asked, at, ended, lies, name_of
from .history import Append, Op, Reader
from .journal import Partition
from .logs import Standing


@dataclass(slots=True)
class _Seen:
    """What the last readers of one isolation level were given."""

    isolation: str
    journal: int
    readers: list[Reader]
    by_reader: list[set[int]] = field(default_factory=list)
    furthest: list[dict[Partition, int]] = field(default_factory=list)
    """By reader: partition → highest rank that it was given."""

    def behind_all(self, facts: Facts, value: int, reader: int) -> bool:
        """Returns whether a value is behind all that a reader was given of its partition."""
        place = facts.where.get(value)
        if place is None:
            return False
        view = facts.views[place[0]]
        if view.standing.get(place[1]) is Standing.UNDECIDED:
            return True  # its marker has not come yet
        rank = view.order(self.isolation, self.journal).rank.get(place[1])
        return rank is not None and rank > self.furthest[reader].get(place[0], -1)


def check_finals(facts: Facts, found: Findings) -> None:
    """Finds lost-write, unseen, skipped-poll and torn-transaction by what the last readers were not
    given."""
    levels: dict[tuple[str, int], list[Reader]] = {}
    for reader in facts.history.readers:
        if reader.final and reader.isolation == "read_uncommitted":
            _check_uncommitted(facts, reader, found)
        elif reader.final:
            serial = reader.isolation == "serializable"
            level = reader.isolation, facts.journal_of(reader) if serial else 0
            levels.setdefault(level, []).append(reader)
    if ("read_committed", 0) not in levels and facts.history.appends:
        found.add("unseen", "no last reader of committed records read anything")
    levels_seen = [_see(facts, *level, readers) for level, readers in levels.items()]
    by_anybody = {value for seen in levels_seen for values in seen.by_reader for value in values}
    for seen in levels_seen:
        for op, values in _expected(facts, seen.isolation, seen.journal):
            _check_op(facts, op, values, seen, by_anybody, found)


def _see(facts: Facts, isolation: str, journal: int, readers: list[Reader]) -> _Seen:
    seen = _Seen(isolation, journal, readers)
    for reader in readers:
        values: set[int] = set()
        furthest: dict[Partition, int] = {}
        for segment in reader.segments:
            values.update(segment.values)
            rank = facts.views[segment.partition].order(isolation, journal).rank
            ranks = (rank.get(offset, -1) for offset in segment.offsets)
            before = furthest.get(segment.partition, -1)
            furthest[segment.partition] = max(ranks, default=before)
        seen.by_reader.append(values)
        seen.furthest.append(furthest)
    return seen


def _expected(facts: Facts, isolation: str, journal: int) -> Iterator[tuple[Op | None, list[int]]]:
    """Yields what a last reader must be given: values by operation, plain values one by one."""
    by_op: dict[str, list[int]] = {}
    for _, _, value in facts.delivered_order(isolation, journal):
        op = facts.op_of(value)
        if op is None:
            yield None, [value]
        else:
            by_op.setdefault(op.name, []).append(value)
    for op in facts.history.ops.values():
        values = by_op.get(op.name, [])
        if facts.committed(op) and _in_scope(facts, op, isolation, journal):
            values += _missing(facts, op.appends, set(values))
        if values:
            yield op, values
    if isolation == "read_committed":
        plain = (a for a in facts.history.appends.values() if a.op is None and a.acked is not None)
        for value in _missing(facts, plain, frozenset()):
            yield None, [value]


def _in_scope(facts: Facts, op: Op, isolation: str, journal: int) -> bool:
    txid = facts.txid(op)
    return isolation == "read_committed" or (txid is not None and txid.partition == journal)


def _missing(facts: Facts, appends: Iterable[Append], known: Iterable[int]) -> Iterator[int]:
    """Yields committed values that should be where readers are given them, but are not."""
    known = set(known)
    for append in appends:
        if append.value in known:
            continue
        place = facts.where.get(append.value)
        if place is None:
            if facts.must_be_there(append):
                yield append.value
            else:
                facts.unverifiable["committed write that may have been trimmed"] += 1
            continue
        view = facts.views[place[0]]
        if view.standing.get(place[1]) is Standing.TORN:
            facts.unverifiable["transaction of which a part was trimmed"] += 1
        elif place[1] in view.standing:
            yield append.value


def _check_op(
    facts: Facts,
    op: Op | None,
    values: list[int],
    seen: _Seen,
    by_anybody: set[int],
    found: Findings,
) -> None:
    for index, reader in enumerate(seen.readers):
        given = seen.by_reader[index]
        missing = [value for value in values if value not in given]
        if not missing:
            continue
        value = missing[0]
        who = f"{reader.process} ({seen.isolation})"
        evidence = tuple(_evidence(facts, op, value))
        tail = [v for v in missing if seen.behind_all(facts, v, index)]
        if op is not None and len(missing) < len(values):
            there = next(v for v in values if v in given)
            sentence = (
                f"{who} saw {name_of(facts, there)} of {op.name} and never {name_of(facts, value)}"
            )
            found.add("torn-transaction", sentence, *evidence, *_where(facts, there))
        elif len(tail) == len(missing):
            sentence = f"{who} ended before {name_of(facts, value)}, which is committed"
            found.add("unseen", sentence, *evidence)
        elif value in by_anybody or not _told(facts, op, value):
            sentence = f"{who} was never given {name_of(facts, value)}, which is committed"
            found.add("skipped-poll", sentence, *evidence)
        else:
            sentence = f"{name_of(facts, value)} was acknowledged, and {who} never saw it"
            found.add("lost-write", sentence, *evidence)


def _check_uncommitted(facts: Facts, reader: Reader, found: Findings) -> None:
    """Finds what a last reader of uncommitted records was not given."""
    given: dict[Partition, set[int]] = {}
    for segment in reader.segments:
        given.setdefault(segment.partition, set()).update(segment.offsets)
    for partition, offsets in given.items():
        for order in facts.orders(reader, partition):
            missing = [offset for offset in order.offsets if offset not in offsets]
            if not missing:
                continue
            is_tail = missing == order.offsets[-len(missing) :]
            found.add(
                "unseen" if is_tail else "skipped-poll",
                f"{reader.process} ({reader.isolation}) was never given"
                f" {at(partition, missing[0])} and {len(missing) - 1} more",
                lies(facts, partition, missing[0]),
            )


def _told(facts: Facts, op: Op | None, value: int) -> bool:
    append = facts.history.appends.get(value)
    return op.acknowledged if op is not None else append is not None and append.acked is not None


def _evidence(facts: Facts, op: Op | None, value: int) -> Iterator[Evidence]:
    append = facts.history.appends.get(value)
    if append is not None:
        yield appended(facts, append)
        if append.acked is not None:
            yield acknowledged(facts, append)
    if op is not None:
        yield asked(op)
        yield ended(op)
    yield from _where(facts, value)


def _where(facts: Facts, value: int) -> Iterator[Evidence]:
    if value in facts.where:
        yield lies(facts, *facts.where[value])
