"""Random lives of a transaction against a naive recount.

Whatever comes in whichever order, a commit is sent only when every record taken was acknowledged
and every offset request answered, and it states exactly what was acknowledged.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from logtx.coordinator.protocol.commands import Action
from logtx.journal.errors import (
    BrokerError,
    OffsetsConflictError,
    TransactionError,
)
from logtx.producer.core.bookkeeping import Phase, TransactionBook

from ...parameters import examples
from .test_tally import Observed

PARTITIONS = [("a", 0), ("a", 1), ("b", 0)]


class LifeOfATransaction(RuleBasedStateMachine):
    """Calls in any order, as an application, librdkafka and a coordinator may make them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Observed()
        self.book = TransactionBook(self.seen.tally)
        self.under_way: list[tuple[str, int]] = []
        self.admitted: list[int] = []
        self.next_offset = Counter[tuple[str, int]]()
        self.acknowledged: dict[tuple[str, int], list[int]] = {}
        self.failed = False
        self.requests = 0
        self.asked: Action | None = None

    def take_failure(self) -> None:
        self.failed = True
        assert self.seen.failures
        self.book.fail(self.seen.failures[0])

    @rule(key=st.sampled_from(PARTITIONS))
    def produce(self, key: tuple[str, int]) -> None:
        number = self.book.own.admit()
        try:
            self.book.check_open()
        except TransactionError:
            self.book.own.withdraw(number)
            assert self.failed or self.book.phase is not Phase.OPEN
        else:
            self.under_way.append(key)

    @rule(sent=st.booleans(), key=st.sampled_from(PARTITIONS))
    def produce_while_the_end_is_asked_for(self, sent: bool, key: tuple[str, int]) -> None:
        """Admitted, looked at, and handed over or not only in a later step."""
        number = self.book.own.admit()
        if self.book.takes_records and sent:
            self.admitted.append(number)
        else:
            self.book.own.withdraw(number)
        del key

    @precondition(lambda self: self.admitted)
    @rule(key=st.sampled_from(PARTITIONS), refused=st.booleans())
    def hand_over(self, key: tuple[str, int], refused: bool) -> None:
        number = self.admitted.pop(0)
        if refused:
            self.book.own.withdraw(number)
        else:
            self.under_way.append(key)

    @precondition(lambda self: self.under_way)
    @rule(strangers=st.integers(0, 2), at=st.integers(0, 10))
    def acknowledge(self, strangers: int, at: int) -> None:
        """librdkafka reports in the order of each partition; others write in between."""
        key = self.under_way[at % len(self.under_way)]
        self.under_way.remove(key)
        offset = self.next_offset[key] + strangers
        self.next_offset[key] = offset + 1
        self.acknowledged.setdefault(key, []).append(offset)
        self.seen.deliver(*key, offset)

    @precondition(lambda self: self.under_way)
    @rule()
    def lose(self) -> None:
        self.seen.deliver(*self.under_way.pop(), None, error="lost")
        self.take_failure()

    @precondition(lambda self: self.under_way)
    @rule()
    def report_nonsense(self) -> None:
        self.seen.deliver(*self.under_way.pop(), -1)
        self.take_failure()

    @precondition(lambda self: self.book.takes_records)
    @rule()
    def send_offsets(self) -> None:
        self.book.requests += 1

    @precondition(lambda self: self.book.requests)
    @rule(refused=st.booleans())
    def answer_offsets(self, refused: bool) -> None:
        self.book.requests -= 1
        if refused:
            if self.book.phase in (Phase.OPEN, Phase.ENDING):
                self.failed = True
            self.book.fail(OffsetsConflictError("no"))

    @rule(end=st.sampled_from(Action))
    def ask(self, end: Action) -> None:
        before = (self.book.phase, self.book.end)
        try:
            self.book.ask(end)
        except TransactionError:
            assert (self.book.phase, self.book.end) == before

    @rule()
    def look_for_a_part(self) -> None:
        assert self.book.next_part() is None, "one commit names so little"

    @precondition(lambda self: self.book.ready)
    @rule()
    def send_end(self) -> None:
        assert not self.under_way
        assert not self.admitted
        writes = self.book.writes()
        if self.book.end is Action.COMMIT:
            assert not self.failed
            assert self.book.requests == 0
            stated = {key: (r.first_offset, r.last_offset, r.count) for key, (r,) in writes.items()}
            assert stated == {k: (o[0], o[-1], len(o)) for k, o in self.acknowledged.items()}
        else:
            assert all(ranges == () for ranges in writes.values())
            assert set(writes) == set(self.acknowledged)
        self.book.sent()

    @precondition(lambda self: self.book.phase is Phase.SENT)
    @rule(answer=st.sampled_from(["yes", "aborted", "refused", "unclear"]))
    def answer_end(self, answer: str) -> None:
        if answer == "unclear":
            self.book.unresolved()
        elif answer == "refused":
            self.failed = True
            self.book.refused(BrokerError("no"))
        else:
            self.book.decided(committed=answer == "yes" and self.book.end is Action.COMMIT)

    @precondition(lambda self: self.book.phase is Phase.UNRESOLVED)
    @rule(committed=st.booleans())
    def learn(self, committed: bool) -> None:
        self.book.decided(committed=committed and self.book.end is Action.COMMIT)

    @invariant()
    def commits_only_what_was_sent_as_a_commit(self) -> None:
        if self.book.phase is Phase.COMMITTED:
            assert self.book.end is Action.COMMIT

    @invariant()
    def a_failed_transaction_takes_nothing(self) -> None:
        if self.failed:
            assert not self.book.takes_records


TestLifeOfATransaction = LifeOfATransaction.TestCase
TestLifeOfATransaction.settings = examples(200, stateful_step_count=40)
