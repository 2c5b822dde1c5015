"""What became of one branch's records: counted per partition, checked, and nothing else.

Pure like `bookkeeping`: no I/O, clock, thread or randomness. A tally counts two ways at once and
needs no lock for either: `admit` is called by the threads that produce (one C call, atomic), the
delivery callbacks by whichever single thread serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from itertools import count
from typing import Final, Protocol

from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import BrokerError, LogtxError

Floors = MutableMapping[TopicPartition, int]
"""Highest offset that a librdkafka producer was told per partition, by all its transactions."""


class Delivered(Protocol):
    """The part of a `confluent_kafka.Message` that is looked at."""

    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...


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
    """The delivery callback of each topic, made when it is first asked for."""

    def __init__(self, make: Callable[[str], Receiver]) -> None:
        self._make = make

    def __missing__(self, topic: str) -> Receiver:
        # setdefault: two threads that meet a topic at once must not get a callback each.
        return self.setdefault(topic, self._make(topic))


class BranchTally:
    """Counts the records of one branch from the call of `produce` to their acknowledgement.

    A record is *admitted* before it is handed to librdkafka, and *settled* by its delivery
    report; one that librdkafka did not take is *withdrawn*. After `close`, `settled` says when
    every admitted record has its report.
    """

    __slots__ = (
        "_closed_at",
        "_floors",
        "_goal",
        "_on_failure",
        "_on_partition",
        "_on_settled",
        "_reports",
        "_spans",
        "_withdrawn",
        "admit",
        "branch",
        "failure",
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
        """Start counting.

        Args:
            branch: the branch's nonce; 0 = the transaction owner's own records.
            floors: offsets seen by the same librdkafka producer; kept up to date.
            on_settled: called in a delivery report after `close`, when none is left.
            on_failure: called in the delivery report of the first record that failed.
            on_partition: called when `first_offsets` has grown by a partition.
        """
        self.branch: Final = branch
        self.admit: Final = count().__next__
        """Number of the next record, from 0. One C call: atomic, and half the cost of a lock."""
        self.failure: LogtxError | None = None
        self._floors = floors
        self._on_settled = on_settled
        self._on_failure = on_failure
        self._on_partition = on_partition or _nothing
        self._spans: dict[str, dict[int | None, Span]] = {}
        self._reports = 0
        self._withdrawn = 0
        self._closed_at: int | None = None
        self._goal = -1

    def receivers(self) -> Mapping[str, Receiver]:
        """Topic → delivery callback, made when first asked for; each call gives a mapping.

        The tally does not refer to it, for it refers to the tally: what is thrown away in circles
        is left to the garbage collector, whose pauses then grow with the rate of transactions.
        """
        return _Receivers(self._receiver)

    def drop_callbacks(self) -> None:
        """Tell nobody of reports any more: all that follows from them is settled."""
        self._on_settled = _nothing
        self._on_failure = _nothing
        self._on_partition = _nothing

    def withdraw(self, number: int) -> None:
        """Take back a record that was admitted as `number` and not handed over after all.

        Calls must not overlap each other or `close`.
        """
        if self._closed_at is None:
            self._withdrawn += 1
        elif number < self._closed_at:
            self._goal -= 1

    def close(self) -> None:
        """No more records are admitted; the caller has seen to it before this call.

        A record admitted at the same moment is either counted here, and then sent or withdrawn,
        or it is neither.
        """
        if self._closed_at is None:
            self._closed_at = self.admit()
            self._goal = self._closed_at - self._withdrawn

    @property
    def settled(self) -> bool:
        """Closed, and no record's report is missing."""
        return self._reports == self._goal

    def first_offsets(self) -> Iterator[tuple[TopicPartition, int]]:
        """Partitions with acknowledged records, and where the first lies; safe at any time."""
        for topic, spans in list(self._spans.items()):
            for partition, span in list(spans.items()):
                if partition is not None:
                    yield (topic, partition), span.first

    def ranges(self) -> dict[TopicPartition, BranchRange]:
        """What was acknowledged in each partition."""
        return {
            (topic, partition): BranchRange(self.branch, span.first, span.last, span.count)
            for topic, spans in self._spans.items()
            for partition, span in spans.items()
            if partition is not None
        }

    def raise_floors(self) -> None:
        """Let later transactions of this librdkafka producer check against these offsets."""
        for topic, spans in self._spans.items():
            for partition, span in spans.items():
                if partition is not None and self._floors.get((topic, partition), -1) < span.last:
                    self._floors[topic, partition] = span.last

    def _receiver(self, topic: str) -> Receiver:
        spans = self._spans.setdefault(topic, {})

        # Per record: this function is a tenth of the cost of a small record.
        def delivered(error: object, message: Delivered) -> None:
            if error is None:
                try:
                    span = spans[message.partition()]
                    offset = message.offset()
                    # Strictly rising offsets imply last - first >= count - 1, and refuse the
                    # None and the small numbers that librdkafka reports as success after
                    # DUPLICATE_SEQUENCE_NUMBER (None > int is a TypeError).
                    if offset > span.last:  # type: ignore[operator]
                        span.last = offset  # type: ignore[assignment]
                        span.count += 1
                    else:
                        self._refuse(topic, message)
                except (KeyError, TypeError):
                    self._first(topic, spans, message)
            else:
                self._fail(f"a record for {topic}[{message.partition()}] failed: {error}")
            self._reports += 1
            if self._reports == self._goal:
                self._on_settled()

        return delivered

    def _first(self, topic: str, spans: dict[int | None, Span], message: Delivered) -> None:
        """Begin a partition's span, or refuse an offset that is no number."""
        partition, offset = message.partition(), message.offset()
        known = isinstance(partition, int) and isinstance(offset, int) and partition >= 0
        if not known or partition in spans:
            self._refuse(topic, message)
            return
        assert isinstance(partition, int)
        assert isinstance(offset, int)
        # One idempotent producer's records stand in a partition in the order of their reports,
        # across its transactions too; so a whole transaction with made-up offsets is noticed.
        if offset <= self._floors.get((topic, partition), -1):
            self._refuse(topic, message)
            return
        self._floors[topic, partition] = offset
        spans[partition] = Span(offset)
        self._on_partition()

    def _refuse(self, topic: str, message: Delivered) -> None:
        partition, offset = message.partition(), message.offset()
        if isinstance(partition, int):
            # A topic created anew starts at 0 again: refuse once, then believe.
            self._floors.pop((topic, partition), None)
        self._fail(
            f"a record for {topic}[{partition}] was reported at offset {offset}, which can't be: "
            "where it lies is not known, or the topic was created anew"
        )

    def _fail(self, message: str) -> None:
        if self.failure is None:
            self.failure = BrokerError(message)
            self._on_failure(self.failure)


def _nothing(*_report: object) -> None:
    pass
