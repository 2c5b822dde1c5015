"""Mends of the consumer's shell, each taken back, and the checker that must notice.

The numbers are those of the clients' faults in docs/faults.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaException

from logtx.consumer.assignment import Assignment
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.serial_order import SerialOrder, _Finished
from logtx.consumer.core.shared import Shared
from logtx.consumer.journal_tail import JournalTail
from logtx.consumer.positions import Positions
from logtx.consumer.reading import Reading
from logtx.consumer.serial_reader import SerialReader
from logtx.journal.records.types import Committed
from logtx.journal.txid import TxId

from ..simulation.registry import Patch
from .taken_back import Mutation

MUTATIONS: Final[list[Mutation]] = []


def finding(
    number: int, checker: str, seed: int = 0
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Enter a mutation."""

    def enter(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTATIONS.append(Mutation(number, checker, seed, apply))
        return apply

    return enter


@finding(3, "goes-on", 1)
def pauses_outlive_a_move(patch: Patch) -> None:
    """A throttled partition that moves is forgotten by us, and not by librdkafka."""
    patch(Reading, "sync_pauses", lambda _: None)


@finding(4, "order", 7)
def what_was_read_is_lost(patch: Patch) -> None:
    """After an exception while a batch is read the next one goes into the same buffers."""
    fetch, put_back = Reading.fetch, Reading.put_back

    def mutant(self: Reading, timeout_s: float, limit: int = 1_000) -> bool:
        try:
            return fetch(self, timeout_s, limit)
        except BaseException:
            self.interrupted = False
            raise

    def nothing_read(self: Reading, *, interrupted: bool) -> None:
        del interrupted
        put_back(self, interrupted=False)

    patch(Reading, "fetch", mutant)
    patch(Reading, "put_back", nothing_read)


@finding(4, "raised")
def unreadable_headers_are_not_expected(patch: Patch) -> None:
    """A record whose headers can't be read makes every call fail."""

    def mutant(self: Reading, assigned: Any, part: Any) -> None:
        assigned.eof = None
        assigned.buffer.feed(part.records, part.runs)
        self._wake(assigned)

    patch(Reading, "_feed", mutant)


@finding(8, "order", 2)
def what_was_taken_counts(patch: Patch) -> None:
    """What an exception keeps from the application counts as delivered."""
    patch(PartitionBuffer, "put_back", lambda _: None)


@finding(8, "order", 192)
def a_transaction_broken_off_counts(patch: Patch) -> None:
    """A transaction whose records could not all be read counts as delivered."""
    patch(SerialReader, "take_back", lambda _: None)


@finding(10, "committed", 64)
def a_refused_commit_counts(patch: Patch) -> None:
    """A commit that nobody waits for counts as done when it is sent."""
    commit_moved = Positions.commit_moved

    def mutant(self: Positions, keys: Any, *, wait: bool) -> Any:
        done = commit_moved(self, keys, wait=wait)
        for assigned in self._reading.assigned.values():
            assigned.stored = assigned.asked or assigned.stored
        return done

    def deaf(*_: Any) -> None:
        return None

    patch(Positions, "commit_moved", mutant)
    patch(Positions, "on_commit", deaf)


@finding(12, "order", 105)
def a_rewind_that_failed_is_forgotten(patch: Patch) -> None:
    """What moves buffers and librdkafka together may do half of it."""

    @contextmanager
    def mutant(_: Reading) -> Iterator[None]:
        yield

    rewind = Positions.rewind

    def tries_once(self: Positions, *, subscribed: bool) -> None:
        try:
            rewind(self, subscribed=subscribed)
        except KafkaException:
            self._rewinds = False
            raise

    patch(Reading, "moving", mutant)
    patch(Positions, "rewind", tries_once)


@finding(14, "goes-on", 255)
def the_journal_is_not_read_on(patch: Patch) -> None:
    """While many decisions wait the journal is not read, not even for what is finished."""
    patch(SerialOrder, "waits_for_finish", property(lambda _: False))


@finding(15, "bounded", 1)
def what_is_finished_is_kept(patch: Patch) -> None:
    """What the journal calls finished is noted, though it was delivered."""
    take = JournalTail._take

    def mutant(self: JournalTail, offset: int, entry: Any) -> None:
        take(self, offset, entry)
        if isinstance(entry.record, Committed):
            txid = TxId(self.partition, entry.incarnation, entry.record.begin)
            self._order._finished[txid] = _Finished(offset, frozenset())

    patch(JournalTail, "_take", mutant)


@finding(21, "events", 1)
def all_events_at_once(patch: Patch) -> None:
    """In serial order all events are taken, and `poll` returns the first one."""
    take_events = SerialReader._take_events
    patch(SerialReader, "_take_events", lambda self, _: take_events(self, 1_000))


@finding(21, "paused", 66)
def transactions_heed_no_pause(patch: Patch) -> None:
    """`transactions` delivers from paused partitions."""
    take = SerialOrder.take
    patch(SerialOrder, "take", lambda self, buffers, _=(): take(self, buffers))


@finding(22, "order", 8)
def nothing_is_committed_at_unassign(patch: Patch) -> None:
    """Under auto commit, positions are committed by time and at the end alone."""
    commit = Assignment.commit_before_leaving

    def mutant(self: Assignment, keys: Any, *, wait: bool = True) -> None:
        if self.closing:
            commit(self, keys, wait=wait)

    patch(Assignment, "commit_before_leaving", mutant)


@finding(26, "bounded", 14)
def each_partition_remembers_as_much(patch: Patch) -> None:
    """What each partition remembers does not depend on how many there are."""
    patch(Shared, "divide", lambda *_: None)
