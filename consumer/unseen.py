"""Finds out where a partition has nothing to deliver before a place, though its log goes on.

Kafka keeps records of its own transactions to itself: they have offsets, and no consumer is given
them. Where one is the last before a place, the main consumer learns that only from the next record,
for librdkafka tells nobody how far it has read. So what is placed there would wait for a record
that may never come. When reading stands still before a place, a second consumer reads on from there
and says where the next record is, or the end (``enable.partition.eof``). That event for the main
consumer would cost one at each end of each partition, where most of them have no places.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.control import TopicPartition
from ..journal.errors import LogtxError
from ..journal.logs.interface import Log, LogConsumer
from .assigned import Assigned

_LOG = logging.getLogger(__name__)

STILL_S: Final = 1.0
"""How long reading stands still before a place until it is looked at. A longer time delays what is
placed behind records that Kafka keeps to itself; a shorter one looks at readers that are slow."""
ANSWER_S: Final = 10.0
"""Longest wait for what comes next. With a shorter one, a slow broker is asked in vain; a longer
one delays other partitions when a broker is away."""


class Unseen:
    """Looks at one partition of a consumer at a time; one thread at a time may use it."""

    def __init__(
        self,
        log: Log,
        settings: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
        *,
        is_needed: bool = True,
    ) -> None:
        """Opens nothing: the first look opens the second consumer.

        Args:
            log: the log of the data partitions.
            settings: librdkafka's settings for the second consumer.
            clock: returns the time in seconds.
            is_needed: False if the main consumer is told of ends itself: nothing is looked at.
        """
        self._log = log
        self._settings = {**settings, "enable.partition.eof": True}
        self._clock = clock
        self._is_needed = is_needed
        self._consumer: LogConsumer | None = None
        self._still: dict[Assigned, tuple[int, float]] = {}
        """Partitions that stand before a place → the offset, and since when."""
        self._looks_at: tuple[Assigned, int, float] | None = None
        """The partition that is looked at, from which offset on, and until when."""

    @property
    def is_looking(self) -> bool:
        """Whether a look is under way: call `step`."""
        return self._looks_at is not None

    def watch(self, partitions: Iterable[Assigned]) -> None:
        """Begins a look, if one of the partitions has stood still for long enough.

        Args:
            partitions: all that are assigned.
        """
        if not self._is_needed:
            return
        now_s = self._clock()
        before, self._still = self._still, {}
        for assigned in partitions:
            if assigned.input.lacks_place and not (assigned.paused or assigned.throttled):
                at = assigned.input.next_offset
                was, since_s = before.get(assigned, (at, now_s))
                self._still[assigned] = (at, since_s if was == at else now_s)
        if self._looks_at is not None:
            return
        for assigned, (at, since_s) in self._still.items():
            if now_s - since_s >= STILL_S:
                self._look(assigned, at)
                return

    def _look(self, assigned: Assigned, offset: int) -> None:
        # One that can't be looked at now has to stand still again.
        del self._still[assigned]
        try:
            if self._consumer is None:
                self._consumer = self._log.consumer(self._settings)
            self._consumer.assign([KafkaPartition(*assigned.key, offset)])
        except (LogtxError, KafkaException) as error:
            _LOG.warning("unseen_not_looked_at partition=%s error=%s", assigned.key, error)
            return
        self._looks_at = assigned, offset, self._clock() + ANSWER_S

    def step(self, present: Mapping[TopicPartition, Assigned]) -> bool:
        """Takes what was answered; does not wait.

        Args:
            present: what is assigned now.

        Returns:
            Whether a partition was read on.
        """
        if self._looks_at is None or self._consumer is None:
            return False
        assigned, offset, until_s = self._looks_at
        message = self._consumer.poll(0)
        if message is None:
            if self._clock() > until_s:
                self._end()
            return False
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            _LOG.warning("unseen_not_told partition=%s error=%s", assigned.key, error)
            self._end()
            return False
        told = cast(int, message.offset())
        self._end()
        if (
            told <= offset
            or assigned.input.next_offset != offset
            or present.get(assigned.key) is not assigned
        ):
            return False  # The main consumer has the record, or will have it.
        _LOG.info("unseen_passed partition=%s from=%d to=%d", assigned.key, offset, told)
        assigned.input.skip_unseen(told)
        return True

    def _end(self) -> None:
        self._looks_at = None
        if self._consumer is not None:
            self._consumer.unassign()

    def close(self) -> None:
        """Closes the second consumer."""
        self._looks_at = None
        self._still.clear()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
