"""PartitionBuffer against the naive reader: same deliveries from every start, through every crash.

Source: Transactional Messaging in Kafka, "Transactional consumer", consumer failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.entries import SideRead
from logtx.consumer.core.headers import control_of
from logtx.consumer.core.pending import PendingTransaction, PendingTransactionMap, Record
from logtx.journal.control import Marker
from logtx.journal.position import Position

from ...parameters import examples
from ..records import DATA, FakeRecord, data, malformed, mode_record, plain, txid
from .naive import LogWriter, expected, parse

WEIGHTS = (2, 2, 6, 6, 2, 2, 2, 1, 1)
"""Weights of the actions of `LogWriter.step`: most steps write data, few finish."""


def some_actions(seed: int, size: int) -> list[tuple[int, int, int]]:
    # Drawn by a seed and not one by one: else few logs would be long enough to have late records
    # behind forgotten ends.
    chance = Random(seed)
    kinds = chance.choices(range(len(WEIGHTS)), WEIGHTS, k=size)
    return [(kind, chance.randrange(64), chance.randrange(64)) for kind in kinds]


ACTIONS = st.builds(some_actions, st.integers(0, 2**32), st.integers(5, 150))


def write(actions: Sequence[tuple[int, int, int]]) -> list[FakeRecord]:
    writer = LogWriter()
    for action, a, b in actions:
        writer.step(action, a, b)
    return writer.log


class Reader:
    """A buffer whose side reads are answered from the whole log."""

    def __init__(self, log: Sequence[FakeRecord], start: Position) -> None:
        self.log = log
        self.map = PendingTransactionMap(1 << 30)
        self.buffer = PartitionBuffer(DATA, start, self.map, malformed=malformed)
        self.at = start.o1

    def read(self, count: int) -> None:
        self.buffer.feed(self.log[self.at : self.at + count])
        self.at += count
        for request in self.buffer.side_reads():
            self.side_read(request)

    def side_read(self, request: SideRead) -> None:
        found = PendingTransaction(DATA, request.txid, request.first_offset)
        duplicate = False
        for record in self.log[request.first_offset : request.marker_offset]:
            raw, control = parse(record)
            if raw != request.txid:
                continue
            if isinstance(control, Marker):
                duplicate = True
                break
            if not found.records:
                found.first_offset = record.at
                found.control = control_of(record)
            found.uniform = found.uniform and found.control == control_of(record)
            found.records.append(record)
        self.buffer.answer_side_read(
            request, found if found.records else None, duplicate=duplicate, torn=False
        )

    def drain(self, limit: int) -> Iterator[FakeRecord]:
        while taken := self.buffer.take(limit):
            for record in taken:
                assert isinstance(record, FakeRecord)
                yield record


def offsets(records: Sequence[FakeRecord]) -> list[int]:
    return [record.at for record in records]


@examples(500)
@given(ACTIONS, st.integers(0, 60), st.integers(1, 40), st.integers(1, 4))
def test_deliveries_equal_the_naive_readers_from_any_start(
    actions: list[tuple[int, int, int]], start: int, batch: int, limit: int
) -> None:
    log = write(actions)
    reader = Reader(log, Position.at(min(start, len(log))))
    got: list[FakeRecord] = []
    while reader.at < len(log):
        reader.read(batch)
        got += reader.drain(limit)
    assert reader.buffer.failure is None
    assert offsets(got) == offsets(expected(log, min(start, len(log))))


@examples(250)
@given(ACTIONS, st.integers(0, 30), st.integers(1, 40), st.booleans(), st.booleans())
def test_a_crash_after_every_record_loses_and_repeats_nothing(
    actions: list[tuple[int, int, int]], start: int, batch: int, forget_o1: bool, travel: bool
) -> None:
    log = write(actions)
    start = min(start, len(log))
    want = offsets(expected(log, start))
    position = Position.at(start)
    got: list[int] = []
    # Each life delivers one record, or reads one batch, and dies.
    for _ in range(6 * len(log) + 6):
        reader = Reader(log, position)
        while reader.at < len(log) and not reader.buffer.ready:
            reader.read(batch)
        got += offsets([r for r in reader.buffer.take(1) if isinstance(r, FakeRecord)])
        position = reader.buffer.position()
        if reader.at >= len(log) and not reader.buffer.ready:
            break
        if travel:  # through Kafka's commit metadata and back
            position = Position.from_metadata(position.o1, position.to_metadata())
        if forget_o1:  # with side reads o2 alone is enough
            position = Position(o1=position.o2, o2=position.o2, o3=position.o3, met=position.met)
        if not start and not forget_o1:
            # All pending records lie behind o1, and `met` tells every duplicate.
            assert reader.buffer.counters.side_reads == 0
    assert got == want


@examples(500)
@given(ACTIONS, st.integers(1, 40))
def test_every_record_is_delivered_late_aborted_or_pending(
    actions: list[tuple[int, int, int]], batch: int
) -> None:
    log = write(actions)
    reader = Reader(log, Position.at(0))
    while reader.at < len(log):
        reader.read(batch)
    delivered = len(list(reader.drain(100)))
    buffer = reader.buffer
    ends = [(raw, control) for raw, control in map(parse, log) if isinstance(control, Marker)]
    first_ends = dict(reversed(ends))
    aborted = {raw for raw, end in first_ends.items() if not end.committed}
    in_aborted = sum(
        1 for r in log if parse(r)[0] in aborted and not isinstance(parse(r)[1], Marker)
    )
    pending = sum(p.count for p in buffer.pending())
    counters = buffer.counters
    assert counters.side_reads == 0
    assert counters.duplicate_markers == len(ends) - len(first_ends)
    # A late record of an aborted transaction counts as late behind its marker; before it, the
    # record is dropped with the transaction and not counted.
    rest = len(log) - len(ends) - delivered - pending - counters.discarded_transactions
    assert counters.late_records <= rest <= counters.late_records + in_aborted
    assert counters.discarded_transactions == 0


@examples(250)
@given(ACTIONS, st.integers(1, 40), st.integers(1, 6), st.data())
def test_position_after_any_record_resumes_behind_it(
    actions: list[tuple[int, int, int]], batch: int, limit: int, draw: st.DataObject
) -> None:
    log = write(actions)
    want = offsets(expected(log, 0))
    reader = Reader(log, Position.at(0))
    delivered: list[Record] = []
    while reader.at < len(log):
        reader.read(batch)
        while taken := reader.buffer.take(limit):
            delivered += taken
            chosen = draw.draw(st.integers(0, len(delivered) - 1))
            position = reader.buffer.position_after(delivered[chosen].offset())
            assert position is not None
            resumed = Reader(log, position)
            while resumed.at < len(log):
                resumed.read(7)
            rest = offsets(list(resumed.drain(100)))
            assert rest == want[chosen + 1 :]
    assert offsets(delivered) == want


@examples(200)
@given(ACTIONS, st.integers(1, 40), st.integers(1, 5))
def test_position_holds_nothing_delivered_and_only_rises(
    actions: list[tuple[int, int, int]], batch: int, limit: int
) -> None:
    log = write(actions)
    reader = Reader(log, Position.at(0))
    last = (0, 0)
    while reader.at < len(log):
        reader.read(batch)
        for _ in reader.drain(limit):
            position = reader.buffer.position()
            assert position.o1 <= position.o2
            assert last <= (position.o2, position.o3)
            last = position.o2, position.o3
    assert reader.buffer.position().o2 == len(log)
    for pending in reader.buffer.pending():
        assert reader.buffer.position().o1 <= pending.first_offset


@pytest.mark.parametrize("payload", [None, b"v"])
def test_a_mode_record_is_told_where_transactions_are_marked(payload: bytes | None) -> None:
    """It is no record of a transaction, and a reader that follows no home must not pass it over."""
    turn = replace(mode_record(1, txid(4)), payload=payload)
    log = [plain(0), turn, plain(2)]
    reader = Reader(log, Position.at(0))
    reader.read(len(log))
    got = list(reader.drain(10))
    assert [(r.at, r.malformed) for r in got] == [(0, False), (1, True), (2, False)]
    assert reader.buffer.position().o1 == len(log)


@pytest.mark.parametrize(
    ("known", "got", "stops_at", "meets"),
    [(3, [], 1, (1, 4)), (4, [2], 3, (3, 5)), (5, [2], 4, None)],
)
def test_a_reader_that_can_follow_a_home_stops_at_a_mode_record_that_is_news(
    known: int, got: list[int], stops_at: int, meets: tuple[int, int] | None
) -> None:
    """At the end of a stretch too, which it passed over if it was told of the switch too late."""
    log = [
        data(0, txid(9)),
        mode_record(1, txid(4)),
        plain(2),
        mode_record(3, txid(5), places=False),
    ]
    reader = Reader(log, Position.at(0))
    reader.buffer.known_mode = known
    reader.read(len(log))
    assert [r.at for r in reader.drain(10)] == got
    met, position = reader.buffer.mode_met, reader.buffer.position()
    assert (met and (met.offset, met.mode_offset)) == meets
    assert (position.o1, position.o2) == (0, stops_at)
    reader.buffer.skip_unseen(9)
    assert reader.buffer.next_offset == (9 if meets is None else stops_at)


def test_below_its_start_a_reader_passes_over_mode_records() -> None:
    log = [mode_record(0, txid(4)), plain(1), plain(2)]
    reader = Reader(log, Position(o1=0, o2=2))
    reader.buffer.known_mode = -1
    reader.read(len(log))
    assert [r.at for r in reader.drain(10)] == [2]
