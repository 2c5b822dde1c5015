"""What looks at a partition's end prove, if one of two may tell an end of the past (trap 63)."""

from __future__ import annotations

import pytest

from logtx.consumer.core.counters import ConsumerCounters
from logtx.consumer.core.looks import CONTRADICTED_APART_S, LOOKS_APART_S, Looks
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.consumer.core.serial_order import CommitDecision, SerialOrder
from logtx.journal.position import Position
from logtx.journal.txid import TxId

from ..records import INCARNATION, data, malformed, marker

A, B = ("t", 0), ("t", 1)


def looks_at(ends: list[int | None], journal_end: int = 10) -> Looks:
    """Looks at partition A, each `LOOKS_APART_S` after the one before."""
    looks = Looks()
    for number, end in enumerate(ends):
        at_s = number * LOOKS_APART_S
        looks.add({A: end}, journal_end, at_s, at_s)
    return looks


@pytest.mark.parametrize("ends", [[9, 5], [5, 9], [9, 9]], ids=["true first", "true last", "both"])
def test_one_of_two_looks_is_true(ends: list[int | None]) -> None:
    looks = looks_at(ends)
    assert not looks.is_read(A, 8, finished=3)
    assert looks.is_read(A, 9, finished=3)


def test_one_look_proves_nothing_nor_do_two_in_a_row() -> None:
    looks = looks_at([5])
    assert not looks.is_read(A, 9, finished=3)
    looks.add({A: 5}, 10, LOOKS_APART_S - 1, LOOKS_APART_S - 1)
    assert not looks.is_read(A, 9, finished=3)


def test_they_prove_nothing_of_what_was_not_finished_before() -> None:
    looks = looks_at([5], journal_end=10)
    looks.add({A: 5}, 20, LOOKS_APART_S, LOOKS_APART_S)
    assert looks.is_read(A, 5, finished=9)
    assert not looks.is_read(A, 5, finished=10)


def test_a_log_that_lost_its_end_does_not_hold_up_for_ever() -> None:
    looks = looks_at([9, 5, 5])
    assert looks.is_read(A, 5, finished=3)


def test_what_contradicts_needs_looks_through_all_of_a_minute() -> None:
    count = int(CONTRADICTED_APART_S / LOOKS_APART_S)
    true_once = looks_at([5, 9] + [5] * (count - 1))
    assert not true_once.is_read(A, 5, 3, CONTRADICTED_APART_S)
    assert true_once.is_read(A, 5, 3)
    assert looks_at([5] * (count + 1)).is_read(A, 5, 3, CONTRADICTED_APART_S)
    assert not looks_at([5] * count).is_read(A, 5, 3, CONTRADICTED_APART_S)


def test_what_is_told_to_be_ahead_is_read_before_the_next_look() -> None:
    looks = looks_at([9])
    later_s = 100 * LOOKS_APART_S
    assert not looks.wants(A, 8, later_s)
    assert looks.wants(A, 9, later_s)
    assert not looks.wants(A, 9, LOOKS_APART_S - 1)


def test_an_end_that_nobody_tells_is_asked_for_later() -> None:
    looks = looks_at([None])
    assert not looks.wants(A, 0, LOOKS_APART_S - 1)
    assert looks.wants(A, 0, LOOKS_APART_S)
    assert not looks.is_read(A, 9, finished=3)


class Reader:
    """A serializable reader of partitions that begin empty, at offset 20."""

    def __init__(self, *keys: tuple[str, int]) -> None:
        self.order = SerialOrder(ConsumerCounters())
        pending = PendingTransactionMap(1 << 30)
        self.buffers = {
            key: SerialBuffer(
                key, Position.at(20), pending, journal_partition=0, malformed=malformed
            )
            for key in keys
        }
        self.now_s, self.asked, self.journal_end = 0.0, 0, 0

    def decide(self, number: int, *keys: tuple[str, int]) -> CommitDecision:
        txid = TxId(0, INCARNATION, 3 * number)
        decision = CommitDecision(3 * number + 1, txid, 0, keys)
        self.order.decide(decision)
        self.order.finish(decision, 3 * number + 2)
        return decision

    def look(self, ends: dict[tuple[str, int], int] | None = None) -> None:
        wanted = self.order.wants_ends(self.buffers, self.now_s)
        self.asked += len(wanted)
        if wanted:
            told = {key: (ends or {}).get(key, 20) for key in wanted}
            self.order.set_ends(told, self.journal_end, self.now_s, self.now_s)


def test_two_looks_serve_the_whole_backlog() -> None:
    reader = Reader(A)
    reader.journal_end = 3_000
    for number in range(1_000):
        reader.decide(number, A)
        reader.look()
        reader.order.take(reader.buffers)
        reader.now_s += 2 * LOOKS_APART_S / 1_000
    reader.look()
    assert reader.order.take(reader.buffers) is None
    assert len(reader.order) == 0
    assert reader.asked <= 3


def test_partitions_in_doubt_do_not_hinder_each_other() -> None:
    # In A nothing was met; in B a marker was, so what is missing there should lie ahead.
    reader = Reader(A, B)
    reader.journal_end = 100
    met = TxId(0, INCARNATION, 0)
    reader.buffers[B].feed([data(20, met), marker(21, met, 1, (0, 20, 20, 1))])
    reader.decide(0, B)
    assert reader.order.take(reader.buffers) is not None
    reader.buffers[B].hand_over(met.to_bytes())
    reader.decide(1, A, B)
    while len(reader.order) and reader.now_s < 2 * CONTRADICTED_APART_S:
        reader.look({A: 20, B: 22})
        reader.order.take(reader.buffers)
        reader.now_s += 1.0
    assert len(reader.order) == 0
    assert CONTRADICTED_APART_S <= reader.now_s <= CONTRADICTED_APART_S + 2 * LOOKS_APART_S


def test_live_transactions_of_many_partitions_ask_seldom() -> None:
    keys = [("t", number) for number in range(200)]
    reader = Reader(*keys)
    for number, key in enumerate(keys):
        reader.decide(number, key)
        reader.journal_end = 3 * number + 3
        reader.now_s += 0.2
        reader.look({key: 22})
        txid = TxId(0, INCARNATION, 3 * number)
        sequence = 3 * number + 1
        reader.buffers[key].feed([data(20, txid), marker(21, txid, sequence, (0, 20, 20, 1))])
        whole = reader.order.take(reader.buffers)
        assert whole is not None
        reader.buffers[key].hand_over(txid.to_bytes())
    # One look at all partitions in 5 s, at most.
    assert reader.asked <= len(keys) * (reader.now_s / LOOKS_APART_S + 1)
