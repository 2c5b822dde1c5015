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


class ModelHandle:
    """What the extension keeps of one librdkafka producer: the rules of its `on_acknowledgement`.

    `tests/journal/native/test_extension.py` has the extension itself obey them.
    """

    def __init__(self) -> None:
        self.floors: dict[tuple[str, int], int] = {}

    def rises(self, topic: str, partition: int, offset: int) -> bool:
        key = topic, partition
        rises = partition >= 0 and offset > self.floors.get(key, -1)
        self.floors[key] = offset if rises else -1
        return rises


class ModelCount:
    """What the extension keeps of one branch."""

    owner = None

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle
        self._spans: dict[tuple[str, int], list[int]] = {}
        self._failure: tuple[int, str, int, int] | None = None
        self._reports = self.admitted = 0
        self._closed = self.retired = False

    @property
    def is_settled(self) -> bool:
        return self._closed and self._reports >= self.admitted

    def produce(self, *_record: object) -> int:
        self.admitted += not self._closed
        return 0 if self._closed else self.admitted

    def report(self, topic: str, partition: int, offset: int, code: int) -> None:
        self._reports += 1
        if not code and self._handle.rises(topic, partition, offset):
            span = self._spans.setdefault((topic, partition), [offset, offset, 0])
            span[1:] = offset, span[2] + 1
        elif self._failure is None:
            self._failure = code, topic, partition, offset

    def close(self) -> None:
        self._closed = True

    def retire(self) -> None:
        self.retired = True

    def spans(self) -> list[tuple[str, int, int, int, int]]:
        return [(*key, *span) for key, span in self._spans.items()]  # type: ignore[misc]

    def failure(self) -> tuple[int, str, int, int] | None:
        return self._failure


class Observed:
    """A tally and what it called."""

    counts = False
    """Whether records and reports go through the extension's model, and not through Python."""

    def __init__(
        self, branch: int = 0, floors: Floors | None = None, handle: ModelHandle | None = None
    ) -> None:
        self.settled = self.partitions = 0
        self.failures: list[LogtxError] = []
        self.tally = BranchTally(
            branch,
            {} if floors is None else floors,
            on_settled=self._on_settled,
            on_failure=self.failures.append,
            on_partition=self._on_partition,
        )
        self.count = ModelCount(handle or ModelHandle())
        if self.counts:
            self.tally.count_by(self.count)

    def admit(self) -> None:
        """Takes a record, whichever way it goes."""
        if self.counts:
            self.count.produce()
        else:
            self.tally.admit()

    def close(self) -> None:
        """Closes the tally, and lets it hear of what that settles."""
        self.tally.close()
        if self.counts:
            self.tally.counted(str)

    def _on_settled(self) -> None:
        self.settled += 1

    def _on_partition(self) -> None:
        if self.counts:
            self.partitions = len(list(self.tally.first_offsets()))
            return
        self.partitions += 1
        assert len(list(self.tally.first_offsets())) == self.partitions, "it is known by then"

    def deliver(
        self, topic: str, partition: int | None, offset: int | None, error: object = None
    ) -> None:
        if self.counts:
            at = -1 if partition is None else partition, -1001 if offset is None else offset
            self.count.report(topic, *at, -192 if error else 0)
            self.tally.counted(lambda _code: error)
        else:
            self.deliver_to_python(topic, partition, offset, error)

    def deliver_to_python(
        self, topic: str, partition: int | None, offset: int | None, error: object = None
    ) -> None:
        self.tally.receivers()[topic](error, Report(partition, offset))


@pytest.fixture(params=[False, True], ids=["python", "counted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the test on both ways that a record's report can take."""
    monkeypatch.setattr(Observed, "counts", request.param)


both_ways = pytest.mark.usefixtures("way")


@both_ways
def test_counts_per_partition() -> None:
    seen = Observed(branch=7)
    for topic, partition, offset in [("a", 0, 5), ("a", 1, 3), ("b", 0, 9), ("a", 0, 8)]:
        seen.admit()
        seen.deliver(topic, partition, offset)
    assert seen.tally.ranges() == {
        ("a", 0): BranchRange(7, 5, 8, 2),
        ("a", 1): BranchRange(7, 3, 3, 1),
        ("b", 0): BranchRange(7, 9, 9, 1),
    }
    assert dict(seen.tally.first_offsets()) == {("a", 0): 5, ("a", 1): 3, ("b", 0): 9}
    assert seen.partitions == 3


@both_ways
def test_settles_with_the_last_report_after_close() -> None:
    seen = Observed()
    for _ in range(3):
        seen.admit()
    seen.deliver("a", 0, 1)
    seen.deliver("a", 0, 2)
    assert not seen.tally.settled
    seen.close()
    assert not seen.tally.settled
    assert seen.settled == 0
    seen.deliver("a", 0, 3)
    assert seen.tally.settled
    assert seen.settled == 1


@both_ways
def test_settled_at_once_without_records() -> None:
    seen = Observed()
    seen.close()
    assert seen.tally.settled
    assert seen.tally.ranges() == {}


@both_ways
def test_a_failed_middle_record_is_noticed_and_counts_as_report() -> None:
    seen = Observed()
    for _ in range(3):
        seen.admit()
    seen.close()
    seen.deliver("a", 0, 1)
    seen.deliver("a", 0, None, error="TIMED_OUT")
    seen.deliver("a", 0, 2)
    assert seen.tally.settled
    assert len(seen.failures) == 1
    assert "TIMED_OUT" in str(seen.failures[0])
    assert seen.tally.failure is seen.failures[0]


@both_ways
def test_only_the_first_failure_is_told() -> None:
    seen = Observed()
    for _ in range(2):
        seen.admit()
        seen.deliver("a", 0, None, error="lost")
    assert len(seen.failures) == 1


@both_ways
@pytest.mark.parametrize(
    "offsets",
    [[None], [5, None], [5, 0], [5, 5], [5, 6, 1], [-1001], [-1]],
    ids=str,
)
def test_offsets_that_cannot_be_are_refused(offsets: Sequence[int | None]) -> None:
    # What librdkafka reports as success after DUPLICATE_SEQUENCE_NUMBER.
    seen = Observed()
    for offset in offsets:
        seen.admit()
        seen.deliver("a", 0, offset)
    assert len(seen.failures) == 1


@both_ways
def test_a_report_without_partition_is_refused() -> None:
    seen = Observed()
    seen.admit()
    seen.deliver("a", None, 5)
    assert len(seen.failures) == 1
    assert seen.tally.ranges() == {}


@both_ways
def test_made_up_offsets_of_a_whole_transaction_are_refused_once() -> None:
    floors: Floors = {}
    handle = ModelHandle()
    first, second, third = (Observed(floors=floors, handle=handle) for _ in range(3))
    first.deliver("a", 0, 100)
    first.deliver("a", 0, 101)
    first.tally.raise_floors()
    second.deliver("a", 0, 0)
    assert len(second.failures) == 1
    # A topic that was created anew begins at 0 for good.
    third.deliver("a", 0, 1)
    assert third.failures == []


@both_ways
def test_interleaved_transactions_do_not_trip_over_each_other() -> None:
    floors: Floors = {}
    handle = ModelHandle()
    first, second = (Observed(floors=floors, handle=handle) for _ in range(2))
    for offset, seen in enumerate([first, second, first, second, second, first], start=10):
        seen.deliver("a", 0, offset)
    for seen in (first, second):
        seen.close()
        seen.tally.raise_floors()
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


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Observed:
    """One whose further records are counted by the extension's model."""
    monkeypatch.setattr(Observed, "counts", True)
    return Observed(branch=5)


@pytest.mark.parametrize("last", ["python", "counted"])
def test_both_counts_must_settle(counting: Observed, last: str) -> None:
    counting.tally.admit()
    counting.admit()
    counting.close()
    reports = [
        lambda: counting.deliver_to_python("a", 0, 7),
        lambda: counting.deliver("a", 0, 6),
    ]
    for report in reports if last == "counted" else reversed(reports):
        assert not counting.tally.settled
        assert counting.settled == 0
        report()
    assert counting.tally.settled
    assert counting.settled == 1
    assert counting.tally.ranges() == {("a", 0): BranchRange(5, 6, 7, 2)}


def test_it_settles_only_when_it_is_told_so(counting: Observed) -> None:
    # Else it would raise the floors above reports that wait to be served (trap 226).
    counting.admit()
    counting.count.report("a", 0, 6, 0)
    counting.tally.close()
    assert not counting.tally.settled
    counting.tally.counted(str)
    assert counting.tally.settled


def test_ranges_join_both_counts(counting: Observed) -> None:
    for offset in (10, 13):
        counting.deliver_to_python("a", 0, offset)
    for partition, offset in ((0, 11), (0, 12), (1, 3)):
        counting.deliver("a", partition, offset)
    counting.deliver_to_python("b", 1, 4)
    assert counting.tally.ranges() == {
        ("a", 0): BranchRange(5, 10, 13, 4),
        ("a", 1): BranchRange(5, 3, 3, 1),
        ("b", 1): BranchRange(5, 4, 4, 1),
    }
    assert dict(counting.tally.first_offsets()) == {("a", 0): 10, ("a", 1): 3, ("b", 1): 4}


def test_floors_rise_to_what_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Observed, "counts", True)
    floors: Floors = {}
    seen = Observed(floors=floors)
    seen.admit()
    seen.admit()
    seen.deliver("a", 0, 8)
    seen.tally.give_up()
    seen.tally.raise_floors()
    assert floors == {}
    seen.deliver("a", 0, 9)
    seen.close()
    seen.tally.raise_floors()
    assert floors == {("a", 0): 9}


def test_nothing_is_counted_behind_the_end(counting: Observed) -> None:
    counting.close()
    assert counting.count.produce() == 0
    assert not counting.count.retired
    counting.tally.drop_callbacks()
    assert counting.count.retired
