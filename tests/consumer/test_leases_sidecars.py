"""Leases of a topic in metadata mode with a sidecar, read without a coordinator of the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from logtx.consumer import sidecar_read
from logtx.consumer.core.sides import Sides
from logtx.consumer.leased import LeaseReader
from logtx.consumer.range_reader.due import RangePlaces
from logtx.consumer.range_reader.reading import ReadConfig
from logtx.coordinator.protocol.queues import Lease
from logtx.journal.errors import IntegrityError, TornTransactionError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.types import SnapshotMode
from logtx.journal.spans import AT_OFFSET, MessageId, Span
from logtx.journal.txid import TxId

from .logs import Transactions
from .places import SIDE, Places, log_with_sidecar, snapshot
from .test_share_sidecars import asked_of

__all__ = ["log_with_sidecar"]

Found = list[tuple[MessageId, bytes | None]]


@pytest.fixture
def places(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> Places:
    """The home of the topic, which is in metadata mode, as readers of leases are told."""
    monkeypatch.setattr(LeaseReader, "_hears_of_switch", lambda *_: True)
    written = Transactions(log)
    written.with_journal()
    made = Places(written, "t")
    made.switch(Phase.METADATA)
    return made


@pytest.fixture
def reader(places: Places) -> Iterator[LeaseReader]:
    with closing(reader_of(places)) as made:
        yield made


def reader_of(places: Places, *, torn_skip: bool = False) -> LeaseReader:
    config = ReadConfig(kafka={}, fail_on_data_loss=False, subscription="q", torn_skip=torn_skip)
    return LeaseReader(places.log, {}, config, timeout_s=5.0)


def leased(places: Places, reader: LeaseReader, lo: MessageId, hi: MessageId) -> Found:
    """Reads a lease, and tells the names and values of its messages."""
    lease = Lease(
        number=1, partition=places.partition(), span=Span(lo, hi), delivery_count=1, left_ms=9_000
    )
    return [(name, message.value()) for message, name in reader.messages(lease)]


def aside(places: Places, *values: bytes, main: tuple[bytes, ...] = (), apart: bool = False) -> int:
    """Decides a transaction that writes to the sidecar, and perhaps to the topic. Returns its
    sequence."""
    written = places.written
    txid = written.begin()
    if main:
        written.write(txid, "t", main)
    for value in values:
        written.write(txid, SIDE, [value])
        if apart:
            written.write(TxId(txid.partition, txid.incarnation, 9_999), SIDE, [b"other"])
    return places.decide(txid)


def named(place: int, sequence: int, values: Sequence[bytes], first: int = 0) -> Found:
    return [
        (MessageId(place, sequence, nth), value) for nth, value in enumerate(values) if nth >= first
    ]


def test_messages_are_named_by_place_sequence_and_number(
    places: Places, reader: LeaseReader
) -> None:
    """As all readers deliver them, with what a marker and a plain record have between."""
    first = aside(places, b"a1", b"a2")
    second = aside(places, b"b2", main=(b"b1",))
    places.place()
    place = places.end()
    [plain] = places.written.append("t", [b"p"])
    third = aside(places, b"c1")
    places.place()
    end = places.end()
    wanted = named(place, first, [b"a1", b"a2"]) + named(place, second, [b"b1", b"b2"])
    wanted += [(MessageId(plain, AT_OFFSET), b"p")]
    assert plain == place
    assert leased(places, reader, MessageId(0), MessageId(end)) == wanted
    assert reader.bound == MessageId(end)
    at_end = leased(places, reader, MessageId(end), MessageId(end, AT_OFFSET))
    assert at_end == named(end, third, [b"c1"])
    assert reader.bound == MessageId(end, third + 1), "another one may be placed there"


def test_a_lease_begins_and_ends_anywhere_within(places: Places, reader: LeaseReader) -> None:
    values = [b"%d" % number for number in range(8)]
    sequence = aside(places, *values[3:], main=tuple(values[:3]), apart=True)
    places.place()
    place = places.end()
    places.written.append("t", [b"p"])
    for first in range(9):
        for last in range(first + 1, 9):
            lo, hi = (MessageId(place, sequence, nth) for nth in (first, last))
            assert leased(places, reader, lo, hi) == named(place, sequence, values[:last], first)


def two_at_one_offset(places: Places) -> tuple[int, int, int]:
    """Places two transactions at one offset, whose records lie among others'. Returns that, and
    their sequences."""
    first = aside(places, *(b"a%d" % number for number in range(40)), apart=True)
    second = aside(places, *(b"b%d" % number for number in range(40)), apart=True)
    places.place()
    return places.end(), first, second


def test_who_was_there_goes_on_where_it_was(
    places: Places, reader: LeaseReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, first, second = two_at_one_offset(places)
    for sequence, letter in ((second, b"b"), (first, b"a")):
        asked = asked_of(monkeypatch)
        values = [b"%s%d" % (letter, number) for number in range(40)]
        for nth in range(0, 40, 10):
            lo, hi = MessageId(place, sequence, nth), MessageId(place, sequence, nth + 10)
            assert leased(places, reader, lo, hi) == named(place, sequence, values[: nth + 10], nth)
        assert asked == sorted(asked), "it never goes back"
        monkeypatch.undo()
        monkeypatch.setattr(LeaseReader, "_hears_of_switch", lambda *_: True)


@pytest.mark.parametrize("is_broken", [False, True])
def test_trap_217_each_that_is_placed_at_an_offset_has_its_own_place_in_the_sidecar(
    places: Places, reader: LeaseReader, monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    if is_broken:
        note, before = Sides.note, Sides.before
        monkeypatch.setattr(Sides, "note", lambda s, p, at, side: note(s, p, (at[0], 0), side))
        monkeypatch.setattr(Sides, "before", lambda s, p, at, nth: before(s, p, (at[0], 0), nth))
    place, first, second = two_at_one_offset(places)
    lo = MessageId(place, first)
    assert len(leased(places, reader, lo, MessageId(place, first, 30))) == 30
    lo, hi = MessageId(place, second, 30), MessageId(place, second, 40)
    if is_broken:
        with pytest.raises(IntegrityError):
            leased(places, reader, lo, hi)
    else:
        wanted = named(place, second, [b"b%d" % number for number in range(40)], 30)
        assert leased(places, reader, lo, hi) == wanted


def test_what_a_marker_ends_at_the_offset_of_a_place_is_another_one(
    places: Places, reader: LeaseReader
) -> None:
    """A pointer of another journal lies where a transaction is placed; both are worked off."""
    written = places.written
    sequence = aside(places, *(b"a%d" % number for number in range(9)), apart=True)
    places.place()
    place = places.end()
    foreign = TxId(1, written.begin().incarnation, 3)
    for number in range(9):
        written.write(foreign, SIDE, [b"f%d" % number])
        written.append(SIDE, [b"between"])
    written.sequences[foreign] = 5
    assert written.mark(foreign, "t") == place
    for nth in range(0, 9, 3):
        for name, letter in ((sequence, b"a"), (AT_OFFSET, b"f")):
            lo, hi = MessageId(place, name, nth), MessageId(place, name, nth + 3)
            values = [b"%s%d" % (letter, number) for number in range(nth + 3)]
            assert leased(places, reader, lo, hi) == named(place, name, values, nth)


# ---- what retention has taken -------------------------------------------------------------------


@pytest.mark.parametrize("taken", [2, 4])
@pytest.mark.parametrize("is_new", [False, True])
def test_trap_231_the_rest_in_the_sidecar_outlives_what_lies_in_the_topic(
    places: Places, reader: LeaseReader, taken: int, is_new: bool
) -> None:
    """Others had what lies in the topic, and retention has taken that: up to the place, or less."""
    written = places.written
    written.append("t", [b"p0"])
    txid = written.begin()
    written.write(txid, "t", [b"0", b"1"])
    written.append("t", [b"p1"])
    written.write(txid, SIDE, [b"2", b"3", b"4", b"5"])
    sequence = places.decide(txid)
    places.place()
    place = places.end()
    if not is_new:
        assert len(leased(places, reader, MessageId(0), MessageId(place, sequence, 1))) == 3
    places.log.delete_records("t", 0, place - (taken > 2))
    lo, hi = MessageId(place, sequence, taken), MessageId(place, AT_OFFSET)
    wanted = named(place, sequence, [b"0", b"1", b"2", b"3", b"4", b"5"], taken)
    assert leased(places, reader, lo, hi) == wanted
    # What was given out of it to its end is no reason to look for its records.
    rest = leased(places, reader, MessageId(place, sequence, 6), hi)
    assert rest == []
    assert reader.bound == MessageId(place, sequence + 1)


def test_trap_231_read_from_its_first_message_the_rest_would_be_a_gap(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = places.written
    txid = written.begin()
    written.write(txid, "t", [b"0", b"1"])
    written.append("t", [b"p"])
    written.write(txid, SIDE, [b"2", b"3"])
    sequence = places.decide(txid)
    places.place()
    place = places.end()
    places.log.delete_records("t", 0, place - 1)
    lo, hi = MessageId(place, sequence, 2), MessageId(place, AT_OFFSET)
    begin = LeaseReader._begin

    def whole(self: LeaseReader, lease: Lease, left: RangePlaces | None) -> Any:
        start, left = begin(self, lease, left)
        return type(start).at(start.o2), left

    monkeypatch.setattr(LeaseReader, "_begin", whole)
    for torn_skip in (True, False):
        with closing(reader_of(places, torn_skip=torn_skip)) as broken:
            if torn_skip:
                assert leased(places, broken, lo, hi) == []
            else:
                with pytest.raises(TornTransactionError):
                    leased(places, broken, lo, hi)


def test_the_rest_of_what_lay_in_the_topic_alone_is_a_gap_when_the_journal_forgot_it(
    places: Places, reader: LeaseReader
) -> None:
    written = places.written
    txid = written.begin()
    written.write(txid, "t", [b"0", b"1"])
    sequence = places.decide(txid)
    places.place()
    place = places.end()
    first = snapshot(
        places,
        last_places=((places.partition(), place),),
        modes=(SnapshotMode("t", places.topic_id, Phase.METADATA, places.mode_offset),),
    )
    places.log.delete_records(JOURNAL_TOPIC, 0, first)
    places.log.delete_records("t", 0, place)
    next_one = aside(places, b"2")
    places.place()
    lo, hi = MessageId(place, sequence, 1), MessageId(place, AT_OFFSET)
    for _ in range(2):
        assert leased(places, reader, lo, hi) == named(place, next_one, [b"2"])


@pytest.mark.parametrize("is_broken", [False, True])
def test_trap_232_what_was_worked_off_at_the_offset_is_not_read_again(
    places: Places, reader: LeaseReader, monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    if is_broken:
        monkeypatch.setattr(RangePlaces, "within", lambda self, _: self)
    written = places.written
    first = written.begin()
    written.write(first, "t", [b"0", b"1"])
    written.append("t", [b"p"])
    earlier = places.decide(first)
    second = aside(places, b"2")
    places.place()
    place = places.end()
    places.log.delete_records("t", 0, place - 1)
    for nth in (0, 2):
        lo = MessageId(place, second if not nth else earlier, nth)
        if is_broken:
            with pytest.raises(TornTransactionError):
                leased(places, reader, lo, MessageId(place, AT_OFFSET))
        else:
            found = leased(places, reader, lo, MessageId(place, AT_OFFSET))
            assert found == named(place, second, [b"2"])


def test_trap_230_what_is_placed_below_the_logs_start_is_a_gap(
    places: Places, reader: LeaseReader, caplog: pytest.LogCaptureFixture
) -> None:
    """Its sidecar was trimmed then, and nobody ever comes behind what can't be read."""
    written = places.written
    aside(places, b"0", b"1")
    places.place()
    written.append("t", [b"p", b"q"])
    end = places.end()
    places.log.delete_records(SIDE, 0, 2)
    with pytest.raises(TornTransactionError, match="_txnlog"):
        leased(places, reader, MessageId(0), MessageId(end))
    places.log.delete_records("t", 0, end - 1)
    assert leased(places, reader, MessageId(0), MessageId(end)) == [
        (MessageId(end - 1, AT_OFFSET), b"q")
    ]
    assert caplog.text.count("gone_transaction_passed_over") == 1
    assert reader._counters.gone_transactions == 1


def test_trap_245_a_home_that_was_trimmed_where_the_reader_stood_is_read_anew(
    places: Places, reader: LeaseReader
) -> None:
    written = places.written
    first, *_ = written.append("t", [b"p", b"q"])
    named_p, named_q = (MessageId(first + n, AT_OFFSET) for n in (0, 1))
    lo, hi = MessageId(first), MessageId(first + 1)
    assert leased(places, reader, lo, hi) == [(named_p, b"p")]
    written.decide(written.begin(), commit=False)
    mode = SnapshotMode("t", places.topic_id, Phase.METADATA, places.mode_offset)
    places.log.delete_records(JOURNAL_TOPIC, 0, snapshot(places, modes=(mode,)))
    sequence = aside(places, b"a")
    places.place()
    found = leased(places, reader, hi, MessageId(places.end(), AT_OFFSET))
    assert found == [(named_q, b"q"), *named(places.end(), sequence, [b"a"])]


@pytest.mark.parametrize("torn_skip", [False, True])
def test_what_is_lost_of_the_rest_is_told_or_passed_over(
    places: Places, monkeypatch: pytest.MonkeyPatch, torn_skip: bool
) -> None:
    monkeypatch.setattr(sidecar_read, "CONFIRM_S", 0.2)
    first = aside(places, b"0", b"1", b"2")
    second = aside(places, b"3")
    places.place()
    place = places.end()
    places.log.delete_records(SIDE, 0, 3)
    lo, hi = MessageId(place, first, 1), MessageId(place, AT_OFFSET)
    with closing(reader_of(places, torn_skip=torn_skip)) as reader:
        if torn_skip:
            assert leased(places, reader, lo, hi) == named(place, second, [b"3"])
        else:
            with pytest.raises(TornTransactionError, match=r"subscription skip q 't\[0\]'"):
                leased(places, reader, lo, hi)
