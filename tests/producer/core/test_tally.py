"""Counting one branch's records: reports in any mixture, offsets that can't be, and late ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.control import BranchRange
from logtx.journal.errors import LogtxError
from logtx.producer.core.tally import BranchTally, Floors


@dataclass
class Report:
    """A delivery report's message."""

    at_partition: int | None
    at_offset: int | None

    def partition(self) -> int | None:
        return self.at_partition

    def offset(self) -> int | None:
        return self.at_offset


class Observed:
    """A tally and what it called."""

    def __init__(self, branch: int = 0, floors: Floors | None = None) -> None:
        self.settled = self.partitions = 0
        self.failures: list[LogtxError] = []
        self.tally = BranchTally(
            branch,
            {} if floors is None else floors,
            on_settled=self._on_settled,
            on_failure=self.failures.append,
            on_partition=self._on_partition,
        )

    def _on_settled(self) -> None:
        self.settled += 1

    def _on_partition(self) -> None:
        self.partitions += 1
        assert len(list(self.tally.first_offsets())) == self.partitions, "it is known by then"

    def deliver(
        self, topic: str, partition: int | None, offset: int | None, error: object = None
    ) -> None:
        self.tally.receivers()[topic](error, Report(partition, offset))


def test_counts_per_partition() -> None:
    seen = Observed(branch=7)
    for topic, partition, offset in [("a", 0, 5), ("a", 1, 3), ("b", 0, 9), ("a", 0, 8)]:
        seen.tally.admit()
        seen.deliver(topic, partition, offset)
    assert seen.tally.ranges() == {
        ("a", 0): BranchRange(7, 5, 8, 2),
        ("a", 1): BranchRange(7, 3, 3, 1),
        ("b", 0): BranchRange(7, 9, 9, 1),
    }
    assert dict(seen.tally.first_offsets()) == {("a", 0): 5, ("a", 1): 3, ("b", 0): 9}
    assert seen.partitions == 3


def test_settles_with_the_last_report_after_close() -> None:
    seen = Observed()
    for _ in range(3):
        seen.tally.admit()
    seen.deliver("a", 0, 1)
    seen.deliver("a", 0, 2)
    assert not seen.tally.settled
    seen.tally.close()
    assert not seen.tally.settled
    assert seen.settled == 0
    seen.deliver("a", 0, 3)
    assert seen.tally.settled
    assert seen.settled == 1


def test_settled_at_once_without_records() -> None:
    seen = Observed()
    seen.tally.close()
    assert seen.tally.settled
    assert seen.tally.ranges() == {}


def test_a_failed_middle_record_is_noticed_and_counts_as_report() -> None:
    seen = Observed()
    for _ in range(3):
        seen.tally.admit()
    seen.tally.close()
    seen.deliver("a", 0, 1)
    seen.deliver("a", 0, None, error="TIMED_OUT")
    seen.deliver("a", 0, 2)
    assert seen.tally.settled
    assert len(seen.failures) == 1
    assert "TIMED_OUT" in str(seen.failures[0])
    assert seen.tally.failure is seen.failures[0]


def test_only_the_first_failure_is_told() -> None:
    seen = Observed()
    for _ in range(2):
        seen.tally.admit()
        seen.deliver("a", 0, None, error="lost")
    assert len(seen.failures) == 1


@pytest.mark.parametrize(
    "offsets",
    [[None], [5, None], [5, 0], [5, 5], [5, 6, 1], [-1001], [-1]],
    ids=str,
)
def test_offsets_that_cannot_be_are_refused(offsets: Sequence[int | None]) -> None:
    # What librdkafka reports as success after DUPLICATE_SEQUENCE_NUMBER.
    seen = Observed()
    for offset in offsets:
        seen.tally.admit()
        seen.deliver("a", 0, offset)
    assert len(seen.failures) == 1


def test_a_report_without_partition_is_refused() -> None:
    seen = Observed()
    seen.tally.admit()
    seen.deliver("a", None, 5)
    assert len(seen.failures) == 1
    assert seen.tally.ranges() == {}


def test_made_up_offsets_of_a_whole_transaction_are_refused_once() -> None:
    floors: Floors = {}
    first, second, third = Observed(floors=floors), Observed(floors=floors), Observed(floors=floors)
    first.deliver("a", 0, 100)
    first.deliver("a", 0, 101)
    first.tally.raise_floors()
    second.deliver("a", 0, 0)
    assert len(second.failures) == 1
    # A topic that was created anew begins at 0 for good.
    third.deliver("a", 0, 1)
    assert third.failures == []


def test_interleaved_transactions_do_not_trip_over_each_other() -> None:
    floors: Floors = {}
    first, second = Observed(floors=floors), Observed(floors=floors)
    for offset, seen in enumerate([first, second, first, second, second, first], start=10):
        seen.deliver("a", 0, offset)
    first.tally.raise_floors()
    second.tally.raise_floors()
    assert first.failures == second.failures == []
    assert floors == {("a", 0): 15}


def test_a_record_withdrawn_before_close_is_not_waited_for() -> None:
    seen = Observed()
    seen.tally.admit()
    seen.tally.withdraw(seen.tally.admit())
    seen.tally.close()
    assert not seen.tally.settled
    seen.deliver("a", 0, 1)
    assert seen.tally.settled


def test_a_record_withdrawn_after_close_is_not_waited_for() -> None:
    seen = Observed()
    number = seen.tally.admit()
    seen.tally.close()
    assert not seen.tally.settled
    seen.tally.withdraw(number)
    assert seen.tally.settled


def test_a_record_admitted_after_close_changes_nothing() -> None:
    seen = Observed()
    seen.tally.admit()
    seen.tally.close()
    seen.tally.withdraw(seen.tally.admit())
    assert not seen.tally.settled
    seen.deliver("a", 0, 1)
    assert seen.tally.settled


@given(
    st.lists(st.sampled_from(["sent", "withdrawn", "late"]), max_size=30),
    st.randoms(use_true_random=False),
)
def test_settled_exactly_when_every_sent_record_is_reported(
    fates: list[str], chance: object
) -> None:
    seen = Observed()
    late = []
    for fate in fates:
        number = seen.tally.admit()
        if fate == "withdrawn":
            seen.tally.withdraw(number)
        elif fate == "late":
            late.append(number)
    sent = fates.count("sent")
    # Some reports come before the close, some withdrawals after it.
    early = chance.randint(0, sent)  # type: ignore[attr-defined]
    for offset in range(early):
        seen.deliver("a", 0, offset)
    seen.tally.close()
    for offset in range(early, sent):
        assert not seen.tally.settled
        seen.deliver("a", 0, offset)
    for number in late:
        assert not seen.tally.settled
        seen.tally.withdraw(number)
    assert seen.tally.settled
    assert sum(r.count for r in seen.tally.ranges().values()) == sent
