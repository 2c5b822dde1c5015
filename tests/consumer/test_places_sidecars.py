"""Consumers of a topic in metadata mode, where records of transactions lie in the sidecar."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.journal.errors import TornTransactionError
from logtx.journal.modes import Phase
from logtx.journal.records.types import (
    Committed,
    DataPartition,
    PartitionWrites,
    PointerStep,
    SnapshotMode,
    SnapshotPlaces,
    SnapshotSince,
    SnapshotTransaction,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more, read
from .places import SIDE, Places, log_with_sidecar, read_upto, snapshot

T = [TopicPartition("t", 0)]
__all__ = ["log_with_sidecar"]


@pytest.fixture
def places(written: Transactions) -> Places:
    found = Places(written, "t")
    found.switch(Phase.METADATA)
    return found


def assign(make_consumer: MakeConsumer, **settings: object) -> Consumer:
    consumer = make_consumer(**settings)
    consumer.assign(T)
    return consumer


def aside(places: Places, *values: bytes, main: tuple[bytes, ...] = ()) -> TxId:
    """Begins a transaction that writes to the sidecar, and perhaps to the topic."""
    txid = places.written.begin()
    if main:
        places.written.write(txid, "t", main)
    places.written.write(txid, SIDE, values)
    return txid


def some(places: Places) -> list[bytes]:
    """Writes plain records and transactions of all kinds. Returns what is delivered."""
    written = places.written
    written.append("t", [b"p1"])
    first, second = aside(places, b"a1", b"a2"), aside(places, b"b2", main=(b"b1",))
    written.write(first, SIDE, [b"a3"])
    aborted = aside(places, b"never")
    places.decide(second)
    places.decide(first)
    written.decide(aborted, commit=False)
    places.place()
    written.append("t", [b"p2"])
    third = aside(places, b"c1")
    places.decide(third)
    places.place()
    return [b"p1", b"b1", b"b2", b"a1", b"a2", b"a3", b"p2", b"c1"]


def due_at(level: str, values: list[bytes]) -> list[bytes | None]:
    """Returns what readers of an isolation level are given of these: plain records have no order
    among transactions."""
    return [v for v in values if level != "serializable" or v not in (b"p1", b"p2")]


@pytest.mark.parametrize("level", ["read_committed", "serializable"])
def test_what_lies_in_the_sidecar_comes_at_its_place(
    places: Places, make_consumer: MakeConsumer, level: str
) -> None:
    wanted = due_at(level, some(places))
    consumer = assign(make_consumer, isolation_level=level)
    assert read_upto(consumer, wanted) == wanted
    assert nothing_more(consumer)
    assert consumer.counters.sidecar_records == 5


@pytest.mark.parametrize("level", ["read_committed", "serializable"])
def test_a_stop_after_every_record_goes_on_exactly(
    places: Places, make_consumer: MakeConsumer, level: str
) -> None:
    wanted = due_at(level, some(places))
    settings = {"enable_auto_commit": False, "isolation_level": level}
    for count in range(len(wanted) + 1):
        consumer = assign(make_consumer, **settings)
        assert read(consumer, count) == wanted[:count]
        consumer.commit(asynchronous=False)
        consumer.close()
        again = assign(make_consumer, group_id=consumer.group_id, **settings)
        assert read_upto(again, wanted[count:]) == wanted[count:], count
        assert nothing_more(again, 0.05)
        again.close()


@pytest.mark.parametrize("level", ["read_committed", "serializable"])
@pytest.mark.parametrize("is_placed", [False, True])
def test_a_snapshot_lists_it(
    places: Places, make_consumer: MakeConsumer, level: str, is_placed: bool
) -> None:
    txid = aside(places, b"a1", b"a2")
    sequence = places.decide(txid)
    if is_placed:
        places.place()
    side = DataPartition(SIDE, 0, places.topic_id_of(SIDE))
    ranges = places.written.ranges(txid, SIDE)
    row = SnapshotTransaction(
        txid.offset, "p", 0, 60_000, 1_000, State.COMMITTING, sequence, None,
        (DataPartition("t", 0, places.topic_id),), (PartitionWrites(side, ranges),),
    )  # fmt: skip
    at = places.end() if is_placed else None
    first = snapshot(
        places,
        transactions=(row,),
        places=(SnapshotPlaces(txid.offset, sequence, ((places.partition(), 0, at),)),),
        sidecar_since=(SnapshotSince(txid.offset, (((SIDE, 0), 0),)),),
        modes=(SnapshotMode("t", places.topic_id, Phase.METADATA, places.mode_offset),),
    )
    places.log.delete_records("__transaction_control", 0, first)
    if not is_placed:
        places.place()
    places.written.append("t", [b"p"])
    wanted = [b"a1", b"a2", b"p"][: 2 if level == "serializable" else 3]
    consumer = assign(make_consumer, isolation_level=level)
    assert read_upto(consumer, wanted) == wanted


def test_trap_166_what_is_placed_where_an_empty_log_starts_is_due(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.log.delete_records("t", 0, places.end())
    places.decide(aside(places, b"a1"))
    places.place()
    places.decide(aside(places, b"b1"))
    places.place()
    consumer = assign(make_consumer, auto_offset_reset="earliest")
    assert read_upto(consumer, [b"a1", b"b1"]) == [b"a1", b"b1"]


def test_trap_167_a_snapshot_behind_it_does_not_hide_it(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.log.delete_records("t", 0, places.end())
    txid = aside(places, b"a1")
    places.decide(txid)
    places.place()
    step = PointerStep((SIDE, 0), places.end(), 0)
    places.written.journal(Committed(begin=txid.offset, pointers=(step,)))
    snapshot(places, last_places=((places.partition(), places.end()),), pointers=(step,))
    consumer = assign(make_consumer, auto_offset_reset="earliest")
    assert read_upto(consumer, [b"a1"]) == [b"a1"]


def test_a_sidecar_that_lost_its_records_stops_readers_at_the_place(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.decide(aside(places, b"a1"))
    places.place()
    places.log.delete_records(SIDE, 0, 1)
    consumer = assign(make_consumer, torn_reset="error")
    with pytest.raises(TornTransactionError, match="_txnlog"):
        read_upto(consumer, [b"a1"])
