"""Counts and checks what became of one branch's records, per partition.

Pure like `bookkeeping`: no I/O, clock, thread or randomness. A tally counts on two sides at once
and needs no lock for either: the threads that produce call `admit` (one C call, atomic), and one
thread at a time serves the delivery callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import inf
from typing import Any, Final, Protocol, runtime_checkable

from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import BrokerError, LogtxError
from ...journal.native.interface import SENT_ANEW, Count
from ...journal.sidecar import check_named_by_user
from .numbers import Numbers

MADE_UP_MAX: Final = 1_000_000
"""Offsets that librdkafka makes up lie below: it is the largest ``batch.num.messages``. With less,
a transaction could commit with them; with more, others would abort for them."""


_RETRY_BACKOFF_MS: Final = 100
"""librdkafka's default of ``retry.backoff.ms``."""


@runtime_checkable
class _Coded(Protocol):
    def code(self) -> int: ...


class Failures:
    """Tells which records of a librdkafka producer may lie in the log twice (trap 295).

    When a broker refuses a record, librdkafka takes a new epoch for all its partitions. A batch
    that a leader has written, and of which the answer was lost, goes out again in that epoch, where
    the broker can't know it. So a record is in doubt if it was under way when another one failed,
    and was sent again. Such a record waits for ``retry.backoff.ms`` first, give or take a fifth. So
    one that is reported sooner was sent once.

    What fails without a broker, as it timed out or was purged, may leave a gap in its partition's
    numbers. Then librdkafka takes the new epoch only when the next record goes there, and says
    nothing. So behind such a failure whatever is sent again is in doubt, until the producer is
    another one.

    A new epoch without any failure can't be seen here: librdkafka takes one, too, when a broker
    refuses a batch for a while and takes the next one that was sent behind it.
    """

    def __init__(
        self, retry_backoff_ms: int = _RETRY_BACKOFF_MS, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Knows of none.

        Args:
            retry_backoff_ms: ``retry.backoff.ms`` of the producer.
            clock: monotonic, seconds, as that of `Delivered.latency`. One that stands still lets
                whatever was sent before a failure, or behind it, count as under way.
        """
        self.count = 0
        """How many records have failed so far, whichever producer wrote them."""
        self.local = 0
        """How many of them failed without a broker's answer."""
        self.leaves_gaps = False
        """Whether one of the present producer's did."""
        self.are_of_former = False
        """Whether reports are noted that a former producer still gives."""
        self.is_blind = False
        """Whether some records are under way whose failure nobody would notice."""
        self._clock = clock
        self._last_s = 0.0
        """When the last failure was noted."""
        self._retried_s = retry_backoff_ms * 0.75 / 1000

    def note(self, error: object) -> None:
        """Notes that a record failed.

        Args:
            error: what the report tells: a `confluent_kafka.KafkaError`.
        """
        if isinstance(error, _Coded) and error.code() < 0:  # librdkafka's own code.
            self.local += 1
            # Never put back: another thread may call `note_unseen` meanwhile.
            if not self.are_of_former:
                self.leaves_gaps = True
        self._last_s = self._clock()
        self.count += 1

    def note_unseen(self) -> None:
        """Notes that a record may fail, and nobody would notice."""
        self.local += 1
        self.leaves_gaps = True
        self.count += 1

    def before(self) -> tuple[int, int]:
        """Returns what (`count`, `local`) are compared with for a branch that begins now."""
        return (-1, -1) if self.is_blind or self.leaves_gaps else (self.count, self.local)

    def may_be_twice(self, message: Delivered, local_before: int) -> bool:
        """Returns whether a record that is reported now may lie there twice.

        Args:
            message: the report's.
            local_before: `local` as `before` told it. `count` has changed since.
        """
        latency_s = message.latency()
        if latency_s is None:
            return True
        if latency_s < self._retried_s:
            return False
        return self.local != local_before or self._clock() - latency_s <= self._last_s


class Refusals:
    """Where reports of a librdkafka producer were refused, whichever producer wrote the records.

    librdkafka numbers the records of a batch upwards from what the batch was acknowledged with. If
    that is no real offset, it is negative, so the batch's first record is refused; and the next
    ones, which may be other branches' and other producers', are told at 0, 1, 2 (trap 233). Only a
    branch that sends its first record there behind the refusal has none in that batch.
    """

    def __init__(self, failures: Failures | None = None) -> None:
        """Knows of no report.

        Args:
            failures: of the same librdkafka producer.
        """
        self.failures: Final = failures or Failures()
        self.count = 0
        """How many reports were refused so far."""
        self._last: dict[TopicPartition, int] = {}
        """Partition → number of the refusal that was the last there, from 1."""

    def note(self, key: TopicPartition) -> None:
        """Notes that a report was refused."""
        self.count += 1
        self._last[key] = self.count

    def since(self, count: int, key: TopicPartition) -> bool:
        """Returns whether a report was refused there since there had been `count`."""
        return self._last.get(key, 0) > count


class Floors:
    """Per partition, the offset that further branches of a producer begin above.

    Raised by that producer's records alone: to another one, which begins after a topic was created
    anew, the first offsets there would look made up.
    """

    def __init__(self, refusals: Refusals | None = None) -> None:
        """Has none.

        Args:
            refusals: those of the librdkafka producer, which others may share.
        """
        self.refusals: Final = refusals or Refusals()
        self._raised: dict[TopicPartition, tuple[int, int]] = {}
        """Partition → its floor, and how many reports had been refused when it was raised."""

    def at(self, key: TopicPartition) -> int:
        """Returns a partition's floor; -1 if there is none.

        A refusal ends it, whoever's record was refused: a topic that was deleted and created again
        starts at 0, so whatever begins there next is believed.
        """
        floor, refusals = self._raised.get(key, (-1, 0))
        return -1 if self.refusals.since(refusals, key) else floor

    def raise_to(self, key: TopicPartition, offset: int) -> None:
        """Sets a partition's floor."""
        self._raised[key] = offset, self.refusals.count


class Delivered(Protocol):
    """The part of a `confluent_kafka.Message` that a tally looks at."""

    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def latency(self) -> float | None: ...


Receiver = Callable[[object, Delivered], None]
"""A delivery callback: (error or None, message)."""


class Span:
    """First and last offset and number of a branch's records in one partition."""

    __slots__ = ("count", "first", "last")

    def __init__(self, offset: int) -> None:
        self.first: Final = offset
        self.last = offset
        self.count = 1


class _Receivers(dict[str, Receiver]):
    """Topic → delivery callback, made when it is first asked for."""

    def __init__(self, make: Callable[[str], Receiver]) -> None:
        self._make = make

    def __missing__(self, topic: str) -> Receiver:
        # setdefault: two threads that meet a topic at the same time must get the same callback.
        return self.setdefault(topic, self._make(topic))


class BranchTally:
    """Counts the records of one branch from the call of `produce` to their acknowledgement.

    A record is *admitted* before it is given to librdkafka, and *settled* by its delivery report;
    one that librdkafka did not take is *withdrawn*. After `close`, `settled` says whether every
    admitted record has its report.
    """

    __slots__ = (
        "__weakref__",
        "_all_counted",
        "_born",
        "_closed_at",
        "_count",
        "_failed_before",
        "_floors",
        "_given_up",
        "_goal",
        "_numbers",
        "_on_failure",
        "_on_partition",
        "_on_settled",
        "_reports",
        "_spans",
        "_withdrawn",
        "admit",
        "branch",
        "failure",
        "writes_to_sidecars",
    )

    def __init__(
        self,
        branch: int,
        floors: Floors,
        *,
        on_settled: Callable[[], None],
        on_failure: Callable[[LogtxError], None],
        on_partition: Callable[[], None] | None = None,
    ) -> None:
        """Starts to count.

        Args:
            branch: the branch's nonce; 0 = the transaction owner's own records.
            floors: what the reports have said of the same producer's records, and of those that lie
                beside them; kept up to date.
            on_settled: called in a delivery report after `close`, when no other is missing.
            on_failure: called in the delivery report of the first record that failed.
            on_partition: called when `first_offsets` has grown by a partition.
        """
        self.branch: Final = branch
        self._numbers = Numbers()
        self.admit: Final = self._numbers.draw
        """Number of the next record, from 0. One C call: atomic, and half the cost of a lock."""
        self.failure: LogtxError | None = None
        self.writes_to_sidecars = False
        """Whether its topics are sidecars, which no application names."""
        self._floors = floors
        self._born: dict[str, int] = {}
        """Topic → how many reports had been refused when its first record was sent."""
        self._failed_before = floors.refusals.failures.before()
        # Not for each topic: while a branch is open, its producer may have left gaps.
        self._on_settled = on_settled
        self._on_failure = on_failure
        self._on_partition = on_partition or _nothing
        self._spans: dict[str, dict[int | None, Span]] = {}
        self._reports = 0
        self._withdrawn = 0
        self._closed_at: int | None = None
        self._goal: float = inf
        self._given_up = False
        self._count: Count | None = None
        self._all_counted = True

    def admit_many(self, size: int) -> list[int]:
        """Admits `size` records. Returns their numbers."""
        return list(islice(self._numbers.all, size))

    def receivers(self) -> Mapping[str, Receiver]:
        """Returns a new mapping of topic → delivery callback, which is made when first asked for.

        The mapping refers to the tally, so the tally does not refer to the mapping: garbage in
        cycles is left to the garbage collector, whose pauses would then grow with the rate of
        transactions.
        """
        return _Receivers(self._receiver)

    def drop_callbacks(self) -> None:
        """Stops calling back on reports: everything that follows from them is settled."""
        self._on_settled = _nothing
        self._on_failure = _nothing
        self._on_partition = _nothing
        if self._count is not None:
            self._count.retire()

    @property
    def topics(self) -> dict[str, Any]:
        """The topics that have a delivery callback, as keys. They grow; only to be looked at."""
        return self._spans

    def begin_above(self, floors: Floors) -> None:
        """Uses the floors of another librdkafka producer. Call it before the first record."""
        self._floors = floors
        self._failed_before = floors.refusals.failures.before()

    def watch_by(self, count: Count | None) -> None:
        """Lets `count` judge the offsets of all records, in the place of the floors.

        Only `count` sees the reports of all branches, those of records that are counted in C
        included. Call it before the first record, and again if another librdkafka producer takes
        that one.
        """
        if self._count is not None:
            self._count.retire()
        self._count = count

    def count_by_watcher(self) -> None:
        """Lets what watches take and count further records, beside those that are admitted here.

        Call `counted` on the thread that serves reports whenever it has changed.
        """
        self._all_counted = False

    def counted(self, error_of: Callable[[int], object]) -> None:
        """Takes over what has changed in the count of the others.

        Args:
            error_of: returns the error with a code.
        """
        count = self._count
        assert count is not None
        # Asked first: the last record may fail between the two questions.
        is_settled = count.is_settled
        if (failure := count.failure()) is not None and self.failure is None:
            code, topic, partition, offset = failure
            if code == SENT_ANEW:
                self._fail(_sent_anew(topic, partition))
            elif code:
                self._fail(_failed(topic, partition, error_of(code)))
            else:
                self._refuse(topic, partition, offset)
        self._on_partition()
        if not self._all_counted and is_settled:
            self._all_counted = True
            if self._reports >= self._goal:
                self._on_settled()

    def withdraw(self, number: int) -> None:
        """Takes back a record that was admitted as `number` but never given to librdkafka.

        Calls must not overlap each other or `close`.
        """
        if self._closed_at is None:
            self._withdrawn += 1
        elif number < self._closed_at:
            self._goal -= 1

    def close(self) -> None:
        """Ends admission; the caller has made sure before that nothing more is admitted.

        A record that is admitted at this very moment is either counted here, and then sent or
        withdrawn, or neither counted nor sent.
        """
        if self._closed_at is None:
            self._closed_at = self.admit()
            self._goal = self._closed_at - self._withdrawn
            # Comes last: it may settle on the other thread, which then looks at the goal.
            if self._count is not None and not self._all_counted:
                self._count.close()

    def give_up(self) -> None:
        """Notes that it is not known how many records there are: it fits no more, and is settled.

        Its transaction must have failed before.
        """
        self._given_up = True

    @property
    def is_unused(self) -> bool:
        """Whether no record was given to librdkafka yet."""
        return not self._spans

    @property
    def settled(self) -> bool:
        """Whether it is closed and no record's report is missing, or whether it was given up."""
        # More reports than that come if an exception passed for librdkafka's refusal of a record
        # that it had taken: the transaction is abort-only then.
        all_told = self._reports >= self._goal and self._all_counted
        return all_told or self._given_up

    @property
    def reports(self) -> int:
        """Number of records whose reports were served."""
        return self._reports + (self._count.reports if self._count is not None else 0)

    @property
    def unreported(self) -> int:
        """Number of records whose reports were not served; after `give_up` it is a guess."""
        # Comes first: reports of what is admitted meanwhile must not hide one that is missing.
        reports, withdrawn = self._reports, self._withdrawn
        is_open = self._closed_at is None
        admitted = self._numbers.drawn - withdrawn if is_open else int(self._goal)
        in_c = 0 if self._count is None else self._count.unreported
        return max(admitted - reports, 0) + in_c

    def postpone(self) -> None:
        """Counts the report that is served next only once `told` is called.

        Both are called on the thread that serves reports.
        """
        self._reports -= 1

    def told(self) -> None:
        """Counts a report that was postponed: the application's callback has been called."""
        self._reports += 1
        if self._reports == self._goal and self._all_counted:
            self._on_settled()

    def first_offsets(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yields partitions with acknowledged records and their first offset; safe at any time."""
        for key, (first, _, _) in self._acknowledged(self._count).items():
            yield key, first

    def ranges(self) -> dict[TopicPartition, BranchRange]:
        """Returns the range acknowledged in each partition."""
        return {
            key: BranchRange(self.branch, first, last, number)
            for key, (first, last, number) in self._acknowledged(self._count).items()
        }

    def _acknowledged(self, count: Count | None) -> dict[TopicPartition, tuple[int, int, int]]:
        """Returns (first offset, last offset, number of records) of each partition."""
        # Copied in one step each: a list of items may run Python meanwhile, to collect garbage, and
        # let a report on another thread add one.
        found = {
            (topic, partition): (span.first, span.last, span.count)
            for topic, spans in self._spans.copy().items()
            for partition, span in spans.copy().items()
            if partition is not None
        }
        for topic, partition, first, last, number in count.spans() if count else ():
            own = found.get((topic, partition), (first, last, 0))
            found[topic, partition] = min(own[0], first), max(own[1], last), own[2] + number
        return found

    def verified(self) -> LogtxError | None:
        """Looks once more whether the records lie in `ranges`; call it when it is settled.

        Returns:
            Why that is not known: the transaction must not commit. None: they do.
        """
        count = self._count
        if self.failure is None and count is not None and (failure := count.failure()) is not None:
            # Of a record that Python counts, whose report is served before C is asked what changed.
            code, topic, partition, offset = failure
            is_twice = code == SENT_ANEW
            self.failure = BrokerError(
                _sent_anew(topic, partition) if is_twice else _impossible(topic, partition, offset)
            )
        if self.failure is None and (doubted := self._doubted()) is not None:
            topic, partition = doubted
            self.failure = BrokerError(
                f"another record for {topic}[{partition}] was reported at an offset that can't be: "
                "where the records beside it lie is not known, or the topic was created anew"
            )
        return self.failure

    def _doubted(self) -> TopicPartition | None:
        """Returns a partition where it has records, and where a report was refused meanwhile."""
        if self._count is not None:
            return self._count.doubted()
        if not self._floors.refusals.count:
            return None
        for key, (first, _, _) in self._acknowledged(None).items():
            if first < MADE_UP_MAX and self._refused_meanwhile(key):
                return key
        return None

    def raise_floors(self) -> None:
        """Raises the floors to this branch's offsets: later transactions are checked by them."""
        if self._count is not None:
            # Not those of Python: they would refuse records that librdkafka has told C of, and
            # not yet Python (trap 226).
            self._count.raise_floors()
            return
        for key, (_, last, _) in self._acknowledged(None).items():
            # Not where a report was refused meanwhile: if the topic was created anew, this branch
            # lies in the former one, and all that lies in the new one would be refused (trap 241).
            if self._floors.at(key) < last and not self._refused_meanwhile(key):
                self._floors.raise_to(key, last)

    def _refused_meanwhile(self, key: TopicPartition) -> bool:
        return self._floors.refusals.since(self._born[key[0]], key)

    def _receiver(self, topic: str) -> Receiver:
        if not self.writes_to_sidecars:
            check_named_by_user(topic)
        # Comes before the first record: that lies in no batch of which a report was refused before.
        refusals = self._floors.refusals
        self._born.setdefault(topic, refusals.count)
        failures = refusals.failures
        failed_before, local_before = self._failed_before
        spans = self._spans.setdefault(topic, {})

        # Called for each record: this function takes a tenth of the cost of a small record.
        def delivered(error: object, message: Delivered) -> None:
            if error is None:
                try:
                    span = spans[message.partition()]
                    offset = message.offset()
                    # Strictly rising offsets imply last - first >= count - 1. The comparison also
                    # refuses the None and the small numbers that librdkafka reports as success
                    # after DUPLICATE_SEQUENCE_NUMBER (None > int is a TypeError).
                    if offset > span.last:  # type: ignore[operator]
                        span.last = offset  # type: ignore[assignment]
                        span.count += 1
                    else:
                        self._refuse(topic, message.partition(), offset)
                except (KeyError, TypeError):
                    self._first(topic, spans, message)
                if failures.count != failed_before and failures.may_be_twice(message, local_before):
                    self._fail(_sent_anew(topic, message.partition()))
            else:
                failures.note(error)
                self._fail(_failed(topic, message.partition(), error))
            self._reports += 1
            if self._reports == self._goal and self._all_counted:
                self._on_settled()

        return delivered

    def _first(self, topic: str, spans: dict[int | None, Span], message: Delivered) -> None:
        """Begins a partition's span, or refuses an offset that is not a number."""
        partition, offset = message.partition(), message.offset()
        known = isinstance(partition, int) and isinstance(offset, int) and partition >= 0
        if not known or partition in spans:
            self._refuse(topic, partition, offset)
            return
        assert isinstance(partition, int)
        assert isinstance(offset, int)
        # One idempotent producer's records lie in a partition in the order of their reports, across
        # its transactions too. So a whole transaction with made-up offsets is noticed.
        if self._count is None:
            if offset <= self._floors.at((topic, partition)):
                self._refuse(topic, partition, offset)
                return
            self._floors.raise_to((topic, partition), offset)
        spans[partition] = Span(offset)
        self._on_partition()

    def _refuse(self, topic: str, partition: int | None, offset: int | None) -> None:
        if isinstance(partition, int):
            self._floors.refusals.note((topic, partition))
        self._fail(_impossible(topic, partition, offset))

    def _fail(self, message: str) -> None:
        if self.failure is None:
            self.failure = BrokerError(message)
            self._on_failure(self.failure)


def _failed(topic: str, partition: int | None, error: object) -> str:
    return f"a record for {topic}[{partition}] failed: {error}"


def _sent_anew(topic: str, partition: int | None) -> str:
    return (
        f"a record for {topic}[{partition}] may lie there twice: another record failed while its "
        "answer was missing, so librdkafka may have sent it again as a new one"
    )


def _impossible(topic: str, partition: int | None, offset: int | None) -> str:
    return (
        f"a record for {topic}[{partition}] was reported at offset {offset}, which can't be: "
        "where it lies is not known, or the topic was created anew"
    )


def _nothing(*_report: object) -> None:
    pass
