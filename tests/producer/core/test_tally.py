"""Counting one branch's records: reports in any mixture, offsets that can't be, and late ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.control import BranchRange
from logtx.journal.errors import LogtxError
from logtx.journal.native.interface import SENT_ANEW
from logtx.producer.core.tally import MADE_UP_MAX, BranchTally, Failures, Floors, Refusals

from ...collecting import at_each_collection

RETRIED_S = 0.075
"""A record that is reported sooner was sent once: 3/4 of librdkafka's first pause."""


@dataclass
class Report:
    """A delivery report's message."""

    at_partition: int | None
    at_offset: int | None
    after_s: float = 0.001

    def partition(self) -> int | None:
        return self.at_partition

    def offset(self) -> int | None:
        return self.at_offset

    def latency(self) -> float:
        return self.after_s


def _code_of(error: object) -> int:
    if error is None:
        return 0
    return error.code() if isinstance(error, KafkaError) else KafkaError.MSG_SIZE_TOO_LARGE


class ModelHandle:
    """What the extension keeps of one librdkafka producer: the rules of its `on_acknowledgement`.

    `tests/journal/native/test_rules.py` has the extension itself obey them.
    """

    def __init__(self) -> None:
        self.floors: dict[tuple[str, int], int] = {}
        self.refused: dict[tuple[str, int], int] = {}
        self.refusals = 0
        self.failures = self.local = 0


class ModelCount:
    """What the extension keeps of one branch."""

    owner = None

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle
        self._born = handle.refusals
        self._born_failures = -1 if handle.local else handle.failures
        self._seen: dict[tuple[str, int], int] = {}
        self._begun: dict[tuple[str, int], int] = {}
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

    def _believes(self, key: tuple[str, int], offset: int) -> bool:
        handle = self._handle
        if key[1] >= 0 and offset > self._seen.get(key, handle.floors.get(key, -1)):
            if key not in self._seen:
                handle.floors[key] = self._begun[key] = offset
            self._seen[key] = offset
            return True
        handle.floors.pop(key, None)
        handle.refusals += 1
        handle.refused[key] = handle.refusals
        return False

    def report(
        self,
        topic: str,
        partition: int,
        offset: int,
        code: int,
        *,
        counted: bool = True,
        after_s: float = 0.001,
    ) -> None:
        self._reports += counted
        self._handle.failures += code != 0
        self._handle.local += code < 0
        is_late = self._handle.failures != self._born_failures and after_s >= RETRIED_S
        believed = not code and self._believes((topic, partition), offset)
        if counted and believed:
            span = self._spans.setdefault((topic, partition), [offset, offset, 0])
            span[1:] = offset, span[2] + 1
        if self._failure is None:
            if not believed and (counted or not code):
                self._failure = code, topic, partition, offset
            elif believed and is_late:
                self._failure = SENT_ANEW, topic, partition, offset

    def close(self) -> None:
        self._closed = True

    def retire(self) -> None:
        self.retired = True

    def spans(self) -> list[tuple[str, int, int, int, int]]:
        return [(*key, *span) for key, span in self._spans.items()]  # type: ignore[misc]

    def failure(self) -> tuple[int, str, int, int] | None:
        return self._failure

    def doubted(self) -> tuple[str, int] | None:
        refused = self._handle.refused
        may_be = [key for key, begun in self._begun.items() if begun < MADE_UP_MAX]
        return next((key for key in may_be if refused.get(key, 0) > self._born), None)

    def raise_floors(self) -> None:
        floors, refused = self._handle.floors, self._handle.refused
        for key, seen in self._seen.items():
            if refused.get(key, 0) <= self._born:
                floors[key] = max(seen, floors.get(key, -1))


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
            Floors() if floors is None else floors,
            on_settled=self._on_settled,
            on_failure=self.failures.append,
            on_partition=self._on_partition,
        )
        self.handle = handle or ModelHandle()
        self.count = ModelCount(self.handle)
        if self.counts:
            self.tally.watch_by(self.count)
            self.tally.count_by_watcher()

    def admit(self, topic: str = "a") -> None:
        """Takes a record, whichever way it goes."""
        if self.counts:
            self.count.produce()
        else:
            self.tally.admit()
            assert self.tally.receivers()[topic]

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
        self,
        topic: str,
        partition: int | None,
        offset: int | None,
        error: object = None,
        after_s: float = 0.001,
    ) -> None:
        if self.counts:
            at = -1 if partition is None else partition, -1001 if offset is None else offset
            self.count.report(topic, *at, _code_of(error), after_s=after_s)
            self.tally.counted(lambda _code: error)
        else:
            self.deliver_to_python(topic, partition, offset, error, after_s)

    def deliver_to_python(
        self,
        topic: str,
        partition: int | None,
        offset: int | None,
        error: object = None,
        after_s: float = 0.001,
    ) -> None:
        if self.counts and partition is not None:
            at = partition, -1 if offset is None else offset
            self.count.report(topic, *at, _code_of(error), counted=False, after_s=after_s)
        self.tally.receivers()[topic](error, Report(partition, offset, after_s))


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


@pytest.mark.parametrize("topics", [1, 100], ids=["one-topic", "many-topics"])
def test_a_report_that_comes_while_it_is_asked_breaks_no_answer(topics: int) -> None:
    """Another thread asks, and Python may change threads wherever it collects garbage."""
    seen = Observed(branch=7)
    reported = 0

    def report() -> None:
        nonlocal reported
        if reported == 60:
            return
        seen.admit()
        seen.deliver(f"t{reported % topics}", reported, 1)
        reported += 1

    for _ in range(20):
        report()
    with at_each_collection(report):
        told = len(seen.tally.ranges())
    assert 20 <= told <= reported
    assert reported > 20
    assert len(seen.tally.ranges()) == reported


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
    floors = Floors()
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
def test_trap_241_what_lies_in_a_former_topic_raises_no_floor_in_the_new_one() -> None:
    floors = Floors()
    handle = ModelHandle()
    former, between = (Observed(floors=floors, handle=handle) for _ in range(2))
    former.deliver("a", 0, 1000)
    between.deliver("a", 0, 0)
    assert len(between.failures) == 1
    later = Observed(floors=floors, handle=handle)
    former.tally.raise_floors()
    later.deliver("a", 0, 1)
    assert later.failures == []
    assert later.tally.verified() is None
    later.tally.raise_floors()
    last = Observed(floors=floors, handle=handle)
    last.deliver("a", 0, 1)
    assert len(last.failures) == 1


@both_ways
def test_offsets_that_no_batch_is_long_enough_for_are_not_doubted() -> None:
    floors, handle = Floors(), ModelHandle()
    first, second, third = (Observed(floors=floors, handle=handle) for _ in range(3))
    second.deliver("a", 0, MADE_UP_MAX)
    third.deliver("a", 0, MADE_UP_MAX + 1)
    first.deliver("a", 0, None)
    assert second.tally.verified() is third.tally.verified() is None
    fourth, fifth = (Observed(floors=floors, handle=handle) for _ in range(2))
    fourth.deliver("a", 0, MADE_UP_MAX - 1)
    fifth.deliver("a", 0, None)
    assert fourth.tally.verified() is not None


@both_ways
def test_interleaved_transactions_do_not_trip_over_each_other() -> None:
    floors = Floors()
    handle = ModelHandle()
    first, second = (Observed(floors=floors, handle=handle) for _ in range(2))
    for offset, seen in enumerate([first, second, first, second, second, first], start=10):
        seen.deliver("a", 0, offset)
    for seen in (first, second):
        seen.close()
        seen.tally.raise_floors()
    assert first.failures == second.failures == []
    assert (handle.floors["a", 0] if first.counts else floors.at(("a", 0))) == 15


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
    ways = [counting.deliver_to_python, counting.deliver]
    for offset, report in enumerate(ways if last == "counted" else reversed(ways), start=6):
        assert not counting.tally.settled
        assert counting.settled == 0
        report("a", 0, offset)
    assert counting.tally.settled
    assert counting.settled == 1
    assert counting.tally.ranges() == {("a", 0): BranchRange(5, 6, 7, 2)}


def test_it_settles_only_when_it_is_told_so(counting: Observed) -> None:
    # On the thread that serves reports: else two would send the request to end it.
    counting.admit()
    counting.count.report("a", 0, 6, 0)
    counting.tally.close()
    assert not counting.tally.settled
    counting.tally.counted(str)
    assert counting.tally.settled


def test_a_last_record_that_fails_while_it_is_asked_is_noticed_trap_235(
    counting: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = counting.count.failure

    def fails_meanwhile() -> tuple[int, str, int, int] | None:
        told = failure()
        if not counting.count.is_settled:
            counting.count.report("a", 0, -1001, -192)
        return told

    monkeypatch.setattr(counting.count, "failure", fails_meanwhile)
    counting.admit()
    counting.tally.close()
    counting.tally.counted(str)
    assert not counting.tally.settled
    counting.tally.counted(str)
    assert counting.tally.settled
    assert len(counting.failures) == 1


def test_a_report_that_python_has_before_the_news_of_its_refusal_fails_it(
    counting: Observed,
) -> None:
    # What C refuses for others' sake, Python's own look at the branch alone believes.
    other = Observed(handle=counting.handle)
    other.deliver("a", 0, 10)
    counting.tally.admit()
    counting.close()
    counting.deliver_to_python("a", 0, 9)
    assert counting.failures == []
    assert counting.tally.settled
    failure = counting.tally.verified()
    assert "offset 9" in str(failure)
    assert counting.tally.failure is failure


def test_ranges_join_both_counts(counting: Observed) -> None:
    counting.deliver_to_python("a", 0, 10)
    for partition, offset in ((0, 11), (0, 12), (1, 3)):
        counting.deliver("a", partition, offset)
    counting.deliver_to_python("a", 0, 13)
    counting.deliver_to_python("b", 1, 4)
    assert counting.tally.ranges() == {
        ("a", 0): BranchRange(5, 10, 13, 4),
        ("a", 1): BranchRange(5, 3, 3, 1),
        ("b", 1): BranchRange(5, 4, 4, 1),
    }
    assert dict(counting.tally.first_offsets()) == {("a", 0): 10, ("a", 1): 3, ("b", 1): 4}


def test_what_c_counted_raises_no_floor_of_pythons_trap_226(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # librdkafka tells C of a whole batch, and Python of its records later. The first one's report
    # is served behind the end of the second's transaction.
    monkeypatch.setattr(Observed, "counts", True)
    floors, handle = Floors(), ModelHandle()
    first, second, third = (Observed(floors=floors, handle=handle) for _ in range(3))
    first.tally.admit()
    first.count.report("a", 0, 8, 0, counted=False)
    second.admit()
    second.deliver("a", 0, 9)
    second.close()
    second.tally.raise_floors()
    assert second.tally.verified() is None
    first.tally.receivers()["a"](None, Report(0, 8))
    first.close()
    assert first.tally.settled
    assert first.tally.verified() is None
    assert first.tally.ranges() == {("a", 0): BranchRange(0, 8, 8, 1)}
    # Those of C did rise.
    third.deliver("a", 0, 9)
    assert len(third.failures) == 1


@both_ways
@pytest.mark.parametrize("own", [None, 1], ids=["first there", "behind its first"])
def test_records_beside_one_without_a_real_offset_are_doubted_trap_233(own: int | None) -> None:
    floors, handle = Floors(), ModelHandle()
    first, second, elsewhere = (Observed(floors=floors, handle=handle) for _ in range(3))
    if own is not None:
        second.deliver("a", 0, own)
    first.deliver("a", 0, 100)
    elsewhere.deliver("a", 1, 7)
    # One batch, which a broker acknowledges as a duplicate: librdkafka numbers it from -1.
    batch = [first, first, first, second, second]
    for seen in batch:
        seen.admit()
    for offset, seen in enumerate(batch, start=-1):
        seen.deliver("a", 0, offset if offset >= 0 else None)
    assert len(first.failures) == 1
    assert second.failures == []
    failure = second.tally.verified()
    assert failure is not None
    assert "records beside it" in str(failure)
    assert elsewhere.tally.verified() is None
    later = Observed(floors=floors, handle=handle)
    later.deliver("a", 0, 101)
    assert later.failures == []
    assert later.tally.verified() is None


def test_records_beside_one_of_another_producer_are_doubted_trap_233() -> None:
    """Both share a librdkafka producer, and each has floors of its own."""
    refusals = Refusals()
    first, second = (Observed(floors=Floors(refusals)) for _ in range(2))
    second.admit()
    first.deliver("a", 0, None)
    second.deliver("a", 0, 0)
    assert second.failures == []
    assert second.tally.verified() is not None


def test_a_refusal_ends_the_floors_of_all_who_share() -> None:
    """Else each of them would be refused once in a topic that was created anew."""
    refusals = Refusals()
    floors = Floors(refusals), Floors(refusals)
    former, first, second = (Observed(floors=each) for each in (floors[1], *floors))
    former.deliver("a", 0, 1000)
    first.deliver("a", 0, None)
    second.deliver("a", 0, 1)
    assert second.failures == []
    assert second.tally.verified() is None


@pytest.mark.parametrize("floor", [None, 1, 2])
def test_a_batch_that_begins_with_a_plain_record_is_refused_by_the_floor_alone_trap_233(
    floor: int | None,
) -> None:
    """Python looks at no report of a plain record: below the floor is what it can notice."""
    floors = Floors()
    if floor is not None:
        floors.raise_to(("a", 0), floor)
    seen = Observed(floors=floors)
    # Numbered from -1: a plain record, two of others, and this one's.
    seen.admit()
    seen.deliver("a", 0, 2)
    assert len(seen.failures) == (floor == 2)
    assert (seen.tally.verified() is None) == (floor != 2)


def test_what_sends_its_first_record_behind_a_refusal_is_believed() -> None:
    """Though it was begun before: the refused batch has no record of it."""
    floors = Floors()
    refused, later, early = (Observed(floors=floors) for _ in range(3))
    early.admit("a")
    later.admit("b")
    refused.deliver("a", 0, None)
    later.admit("a")
    later.deliver("b", 0, 3)
    for seen, offset in ((early, 0), (later, 1)):
        seen.deliver("a", 0, offset)
    assert later.tally.verified() is None
    later.tally.raise_floors()
    assert [floors.at((topic, 0)) for topic in "ab"] == [1, 3]
    assert early.tally.verified() is not None


BATCHES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["real", "real", "unknown", "unset", "failed"]),
            st.lists(st.integers(0, 2), min_size=1, max_size=6),
        ),
        st.tuples(st.just("others"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.integers(0, 2)),
    ),
    max_size=30,
)
"""(how a batch is acknowledged, whose its records are); records of other producers; a branch ends,
and another one begins."""


@given(st.booleans(), BATCHES)
def test_a_branch_that_is_believed_has_the_records_where_they_lie_trap_233(
    counts: bool, steps: list[tuple[str, list[int] | int]]
) -> None:
    floors, handle = Floors(), ModelHandle()
    end = 0
    lie: dict[int, list[int]] = {}
    open_: dict[int, Observed] = {}

    def begin(at: int) -> None:
        open_[at] = Observed(floors=floors, handle=handle)
        if counts:
            open_[at].counts = True
            open_[at].tally.watch_by(open_[at].count)
            open_[at].tally.count_by_watcher()
        lie[at] = []

    def finish(at: int) -> None:
        seen = open_[at]
        seen.close()
        assert seen.tally.settled
        if seen.tally.verified() is None:
            offsets = lie[at]
            expected = BranchRange(0, offsets[0], offsets[-1], len(offsets)) if offsets else None
            assert seen.tally.ranges().get(("a", 0)) == expected
        seen.tally.raise_floors()

    for at in range(3):
        begin(at)
    for kind, what in steps:
        if kind == "others":
            assert isinstance(what, int)
            end += what
        elif kind == "end":
            assert isinstance(what, int)
            finish(what)
            begin(what)
        else:
            assert isinstance(what, list)
            base = {"unknown": -1, "unset": -1001}.get(kind, end)
            for at in what:
                open_[at].admit()
            for number, at in enumerate(what):
                if kind == "failed":
                    open_[at].deliver("a", 0, None, error="lost")
                    continue
                told = base + number
                open_[at].deliver("a", 0, told if told >= 0 else None)
                lie[at].append(end)
                end += 1
    for at in range(3):
        finish(at)


def test_nothing_is_counted_behind_the_end(counting: Observed) -> None:
    counting.close()
    assert counting.count.produce() == 0
    assert not counting.count.retired
    counting.tally.drop_callbacks()
    assert counting.count.retired


# ---- records that librdkafka sends anew (trap 295) ----------------------------------------------


def beside_a_refusal(floors: Floors) -> Observed:
    """Returns a branch with two records under way when another one's was refused."""
    own, other = (Observed(floors=floors) for _ in range(2))
    for each in (own, own, other):
        each.admit()
    other.deliver("a", 1, None, "too large")
    return own


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("failed", "after_s", "fails"),
    [(True, 0.08, True), (True, 0.07, False), (False, 5.0, False)],
    ids=["late", "soon", "nothing-failed"],
)
def test_trap_295_what_was_sent_again_beside_a_failure_may_lie_twice(
    failed: bool, after_s: float, fails: bool
) -> None:
    """Another branch's record fails in another partition, while this one's answer is missing."""
    refusals, handle = Refusals(), ModelHandle()
    own, other = (Observed(floors=Floors(refusals), handle=handle) for _ in range(2))
    for each in (own, other):
        each.admit()
    own.admit()
    own.deliver("a", 0, 397, after_s=5)
    assert own.tally.failure is None, "it was reported before the failure"
    other.deliver("a", 1, None if failed else 7, "too large" if failed else None)
    own.deliver("a", 0, 409, after_s=after_s)
    own.close()
    assert own.tally.settled
    assert (own.tally.verified() is not None) == fails
    assert len(own.failures) == fails
    if fails:
        assert "may lie there twice" in str(own.failures[0])


@pytest.mark.usefixtures("way")
def test_trap_295_what_begins_behind_a_failure_is_not_in_doubt() -> None:
    refusals, handle = Refusals(), ModelHandle()
    first = Observed(floors=Floors(refusals), handle=handle)
    first.admit()
    first.deliver("a", 1, None, "too large")
    second = Observed(floors=Floors(refusals), handle=handle)
    second.admit()
    second.deliver("a", 0, 1, after_s=5)
    assert second.tally.failure is None


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("is_open", [False, True], ids=["behind", "before"])
def test_trap_295_what_fails_without_a_broker_leaves_a_gap(is_open: bool) -> None:
    """librdkafka takes a new epoch when the next record goes there, and says nothing then."""
    floors, handle = Floors(), ModelHandle()
    first, own = (Observed(floors=floors, handle=handle) for _ in range(2))
    first.admit()
    first.deliver("a", 1, None, KafkaError(KafkaError._MSG_TIMED_OUT))
    if not is_open:
        own = Observed(floors=floors, handle=handle)
    own.admit("b")
    own.deliver("b", 0, 1, after_s=0.07)
    assert own.tally.failure is None
    own.admit("b")
    own.deliver("b", 0, 2, after_s=0.08)
    assert own.tally.failure is not None


def test_trap_295_what_is_sent_behind_a_refusal_is_not_in_doubt() -> None:
    now_s = 100.0
    floors = Floors(Refusals(Failures(clock=lambda: now_s)))
    own = beside_a_refusal(floors)
    now_s = 101.0
    own.deliver("a", 0, 1, after_s=0.9)
    assert own.tally.failure is None
    own.deliver("a", 0, 2, after_s=1.0)
    assert own.tally.failure is not None


def test_trap_295_gaps_end_with_their_producer() -> None:
    failures = Failures()
    failures.note(KafkaError(KafkaError._PURGE_QUEUE))
    assert failures.before() == (-1, -1)
    failures.leaves_gaps = False
    assert failures.before() == (1, 1)
    failures.note_unseen()
    assert failures.before() == (-1, -1)


def test_trap_295_a_longer_pause_lets_later_reports_be_believed() -> None:
    """`retry.backoff.ms` is an application's to set."""
    floors = Floors(Refusals(Failures(1_000)))
    own = beside_a_refusal(floors)
    own.deliver("a", 0, 1, after_s=0.7)
    assert own.tally.failure is None
    own.deliver("a", 0, 2, after_s=0.8)
    assert own.tally.failure is not None


def test_trap_295_a_failure_that_nobody_would_notice_counts_as_one() -> None:
    floors = Floors()
    floors.refusals.failures.is_blind = True
    own = Observed(floors=floors)
    own.admit()
    own.deliver("a", 0, 1, after_s=0.08)
    assert own.tally.failure is not None


def test_trap_295_a_branch_that_python_counts_is_told_by_c(
    counting: Observed,
) -> None:
    """Python has the report before the news of C: then `verified` asks."""
    counting.tally.admit()
    counting.handle.failures += 1
    counting.deliver_to_python("a", 0, 4, after_s=1)
    counting.close()
    failure = counting.tally.verified()
    assert "may lie there twice" in str(failure)
