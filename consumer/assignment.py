"""Which partitions a consumer reads: those that the application assigns, or its group gives.

Begins a partition at its position, commits when it goes (``enable.auto.commit``), and tells of the
group's rebalances.

A pattern may match sidecars, too. The group assigns those like others, and here nobody reads them:
what they hold is delivered with the topics they belong to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from confluent_kafka import OFFSET_END, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.control import TopicPartition
from ..journal.logs.interface import LogConsumer
from ..journal.sidecar import check_read_by_user, is_sidecar
from .config import ConsumerConfig
from .lifetime import weakly
from .positions import Positions, key_of
from .reading import Reading

_LOG = logging.getLogger(__name__)

Tell: TypeAlias = Callable[[str, list[KafkaPartition]], None]
"""Takes "assign", "revoke" or "lost", and the partitions."""


class Assignment:
    """The partitions of one consumer, as they come and go."""

    def __init__(
        self,
        inner: LogConsumer,
        config: ConsumerConfig,
        reading: Reading,
        positions: Positions,
        tell: Tell,
    ) -> None:
        """Begins without partitions. `tell` is called at each rebalance of the group."""
        self._inner = inner
        self._config = config
        self._reading = reading
        self._positions = positions
        self._tell = tell
        self.subscribed = False
        """Whether a group assigns the partitions."""
        self.before_revocation: Callable[[], None] | None = None
        """Called before the group takes partitions away."""
        self.unrestored: list[KafkaPartition] = []
        """Partitions that the group gave us, and whose positions could not be fetched yet."""
        self._leaving: set[TopicPartition] = set()
        """Partitions that the group took, and that may be partly there still."""
        self.closing = False

    def subscribe(self, topics: list[str]) -> None:
        """Joins the group for these topics."""
        for topic in topics:
            if not isinstance(topic, str):
                raise TypeError(f"expected a list of topics' names, with {topic!r} in it")
            if not topic.startswith("^"):
                check_read_by_user(topic)
        self.subscribed = True
        calls = weakly(self._assigned), weakly(self._revoked), weakly(self._lost)
        self._inner.subscribe(topics, *calls)

    def unsubscribe(self) -> None:
        """Leaves the group."""
        # librdkafka reports the revocation at a later poll, when nothing is left to commit.
        self.commit_before_leaving(list(self._reading.assigned))
        self._inner.unsubscribe()
        self.subscribed = False
        self._positions.drop()

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Reads these partitions and no others."""
        _check(partitions)
        # It waits for the answer: the positions are asked for next.
        self.commit_before_leaving(list(self._reading.assigned))
        with self._reading.moving():
            self._positions.drop()
            self.unrestored = []
            self._positions.restore(partitions)
            self._inner.assign([a.kafka() for a in self._reading.assigned.values()])

    def unassign(self) -> None:
        """Reads nothing."""
        self.commit_before_leaving(list(self._reading.assigned), wait=False)
        with self._reading.moving():
            self._positions.drop()
            self._inner.unassign()

    def add(self, partitions: list[KafkaPartition]) -> None:
        """Reads these partitions too."""
        _check(partitions)
        with self._reading.moving():
            self._positions.restore(partitions)
            self._reading.reassign([key_of(p) for p in partitions])

    def remove(self, partitions: list[KafkaPartition]) -> None:
        """Reads these partitions no more."""
        keys = [self._reading.require(key_of(partition)).key for partition in partitions]
        self.commit_before_leaving(keys, wait=False)
        # Else a signal handler that raises in between leaves partitions to this consumer which
        # librdkafka reads no more (trap 275).
        with self._reading.moving():
            if self._config.cooperative:
                self._inner.incremental_unassign(partitions)
            self._reading.remove(keys)
            if not self._config.cooperative:
                self._reading.reassign([])

    # ---- rebalances -----------------------------------------------------------------------------

    def _assigned(self, _: LogConsumer, given: list[KafkaPartition]) -> None:
        partitions, sidecars = _without_sidecars(given)
        if self.closing:
            # The rebalance began before `close`: positions can't be fetched any more.
            self._take_over([])
            return
        if not self._config.cooperative:
            self._positions.give_up(list(self._reading.assigned))
            self.unrestored = []
        try:
            self._positions.restore(partitions)
        except BaseException:
            # A partition may not be read without its position; the next poll tries again.
            self.unrestored += partitions
            self._take_over([], sidecars)
            raise
        self._take_over(partitions, sidecars)
        _LOG.info("assigned group=%s partitions=%d", self._config.group_id, len(partitions))
        self._tell("assign", partitions)

    def _take_over(
        self, partitions: list[KafkaPartition], sidecars: Iterable[KafkaPartition] = ()
    ) -> None:
        places = [self._reading.assigned[key_of(p)].kafka() for p in partitions]
        if not self._config.cooperative:
            with self._reading.moving():
                self._inner.assign(places)
            return
        # librdkafka gives back one by one what it was given: it must have the sidecars, too.
        unread = [KafkaPartition(p.topic, p.partition, OFFSET_END) for p in sidecars]
        self._reading.pass_over(p.topic for p in unread)
        with self._reading.moving():
            self._inner.incremental_assign(places + unread)
        if unread:
            self._inner.pause(unread)

    def hear_again(self) -> None:
        """Learns what the group gave, and took, where a signal handler raised before our callback
        could note it (trap 276). confluent-kafka then did what the group said all the same."""
        if not self.subscribed:
            return
        given = {key_of(p) for p in _without_sidecars(self._inner.assignment())[0]}
        unrestored = {key_of(p) for p in self.unrestored}
        taken = set(self._leaving)
        if not self._reading.half_moved:  # Else librdkafka may not have what is ours.
            taken |= self._reading.assigned.keys() - given - unrestored
        if taken:
            self._forget([KafkaPartition(*key) for key in taken])
        unheard = given - self._reading.assigned.keys() - unrestored - taken
        self.unrestored += [KafkaPartition(*key) for key in unheard]

    def restore_again(self) -> None:
        """Begins the partitions whose positions could not be fetched before."""
        partitions = self.unrestored
        with self._reading.moving():
            self._positions.restore(partitions)
            # Some of them may have been begun, and librdkafka have them since, when that failed.
            self._reading.reassign([key_of(p) for p in partitions])
        self.unrestored = []
        self._tell("assign", partitions)

    def _revoked(self, _: LogConsumer, given: list[KafkaPartition]) -> None:
        partitions, _sidecars = _without_sidecars(given)
        try:
            if self.before_revocation is not None:
                self.before_revocation()
            self._tell("revoke", partitions)
            self.commit_before_leaving([key_of(p) for p in partitions])
        finally:
            self._forget(partitions)
        _LOG.info("revoked group=%s partitions=%d", self._config.group_id, len(partitions))

    def commit_before_leaving(self, keys: Sequence[TopicPartition], *, wait: bool = True) -> None:
        """Commits the positions of partitions that are to be given up, by itself if so set."""
        try:
            if self._config.enable_auto_commit:
                self._positions.commit_moved(keys, wait=wait)
        except KafkaException as error:
            # The next owner starts from an earlier commit: it repeats records and loses none.
            _LOG.warning(
                "commit_before_leaving_failed group=%s error=%s", self._config.group_id, error
            )

    def _lost(self, _: LogConsumer, given: list[KafkaPartition]) -> None:
        partitions, _sidecars = _without_sidecars(given)
        # Another member may own them already, so we commit nothing for them.
        self._forget(partitions)
        _LOG.warning("lost group=%s partitions=%d", self._config.group_id, len(partitions))
        self._tell("lost", partitions)

    def _forget(self, partitions: list[KafkaPartition]) -> None:
        gone = {key_of(p) for p in partitions}
        self._leaving |= gone
        self._positions.give_up(gone)
        self.unrestored = [p for p in self.unrestored if key_of(p) not in gone]
        self._leaving -= gone


def _check(partitions: Iterable[KafkaPartition]) -> None:
    for partition in partitions:
        check_read_by_user(key_of(partition)[0])


def _without_sidecars(
    given: Sequence[KafkaPartition],
) -> tuple[list[KafkaPartition], list[KafkaPartition]]:
    return (
        [p for p in given if not is_sidecar(p.topic)],
        [p for p in given if is_sidecar(p.topic)],
    )
