"""Positions of the assigned partitions: restored, told, committed, handed out as steps.

Where they are kept is `offsets`; here is what follows for each assigned partition.

With ``offsets.storage=transactions`` partitions are read under a *claim*, whose number stands in
the steps. Two things end that, and nothing is handed out from there on until `rewind`:

- a partition that the group took away, with input delivered and not handed out. The output made of
  it must not be committed, for the next holder reads that input again;
- a rewind that finds a newer claim. This may be a zombie that wakes up: claiming at once would
  fence the live holder, be fenced by it in turn, and so on. So nothing is delivered for a moment,
  while the group is listened to; only what it still calls ours is claimed then.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Sequence
from typing import Final, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.control import TopicPartition
from ..journal.errors import ClaimFencedError, ConfigError, ConsumerError
from ..journal.logs.interface import Log, LogConsumer
from ..journal.position import Position
from ..journal.records.types import OffsetStep
from .config import ConsumerConfig, OffsetsStorage
from .core.pending import Record
from .position_store import Taken, open_positions
from .reading import OFFSET_TIMEOUT_S, Reading, StartedAt

_LOG = logging.getLogger(__name__)
FENCED_PAUSE_MIN_S: Final = 0.1
FENCED_PAUSE_MAX_S: Final = 5.0
"""How long the group is listened to before partitions are claimed again: a little longer than a
heartbeat's answer takes at first, longer than most heartbeat intervals in the end."""
_RESETS: Final = {OFFSET_BEGINNING: "earliest", OFFSET_END: "latest"}


def key_of(partition: KafkaPartition) -> TopicPartition:
    """Topic and number."""
    return partition.topic, partition.partition


def place_of(key: TopicPartition, position: Position | None) -> KafkaPartition:
    """A position as the application is told it: o2, and the rest as metadata."""
    if position is None:
        return KafkaPartition(key[0], key[1], OFFSET_INVALID)
    return KafkaPartition(key[0], key[1], position.o2, position.to_metadata())


class Positions:
    """Of all assigned partitions of one consumer. One thread at a time."""

    def __init__(
        self, log: Log, inner: LogConsumer, config: ConsumerConfig, reading: Reading
    ) -> None:
        """Nothing is asked for yet."""
        self.store = open_positions(log, inner, config)
        self._log = log
        self._config = config
        self._reading = reading
        self._commit_at_s = time.monotonic() + config.auto_commit_interval_ms / 1000
        self._transactional = config.offsets_storage is OffsetsStorage.TRANSACTIONS
        self._rewinds = False
        """Whether a rewind is due, before anything else is delivered or handed out."""
        self._lost_input = False
        """The group took away what was delivered and not handed out."""
        self._claims_at_s: float | None = None
        """When to claim again what somebody else claimed."""
        self._pause_s = 0.0

    # ---- where reading begins -------------------------------------------------------------------

    def restore(self, partitions: Sequence[KafkaPartition]) -> None:
        """Begin partitions: at their offset if they have one, else where the group stands.

        Raises:
            KafkaException: the broker refused, or nothing is committed and
                ``auto.offset.reset=error``.
            RetriableError: the positions could not be learnt; nothing was begun.
        """
        asked = [key_of(p) for p in partitions if p.offset in (OFFSET_INVALID, OFFSET_STORED)]
        # An IOV is compared with what is committed, wherever reading begins.
        if self._transactional:
            asked = [key_of(p) for p in partitions]
        taken = self.store.take(asked) if asked else Taken({}, None)
        self._pause_s = 0.0
        for partition in partitions:
            key = key_of(partition)
            stored = taken.positions.get(key)
            if partition.offset in (OFFSET_INVALID, OFFSET_STORED) and stored is not None:
                start, started_at = stored, StartedAt.ELSEWHERE
            else:
                start, started_at = self.start_at(partition)
            assigned = self._reading.add(key, start, stored, started_at)
            assigned.claim, assigned.unsent = taken.claim, False

    def give_up(self, keys: Collection[TopicPartition]) -> None:
        """The group took these away."""
        gone = [a for key, a in self._reading.assigned.items() if key in keys]
        self._lost_input |= self._transactional and any(a.unsent for a in gone)
        self._reading.remove(keys)
        if not self._reading.assigned:
            self._rewinds, self._claims_at_s = False, None

    def drop(self) -> None:
        """The application reads nothing any more, and says what to read next."""
        self._reading.remove(list(self._reading.assigned))
        self._rewinds = self._lost_input = False
        self._claims_at_s, self._pause_s = None, 0.0

    def start_at(self, partition: KafkaPartition) -> tuple[Position, StartedAt]:
        """The position that a partition's offset names; by ``auto.offset.reset`` if it has none."""
        if partition.offset >= 0:
            return Position.from_metadata(partition.offset, partition.metadata), StartedAt.ELSEWHERE
        reset = _RESETS.get(partition.offset) or self._config.auto_offset_reset
        topic, number = key_of(partition)
        if reset == "error":
            raise KafkaException(
                KafkaError(
                    KafkaError._AUTO_OFFSET_RESET,
                    f"{topic}[{number}] has no committed position, and auto.offset.reset=error",
                )
            )
        if reset == "earliest":
            offset = self._log.start_offset(topic, number, timeout_s=OFFSET_TIMEOUT_S)
            return Position.at(offset), StartedAt.AT_START
        offset = self._log.end_offset(topic, number, timeout_s=OFFSET_TIMEOUT_S)
        return Position.at(offset), StartedAt.AT_END

    # ---- told -----------------------------------------------------------------------------------

    def present(self, key: TopicPartition) -> Position | None:
        """Where delivery goes on; None for a partition that is not assigned."""
        assigned = self._reading.assigned.get(key)
        return None if assigned is None else assigned.buffer.position()

    def committed(self, keys: Sequence[TopicPartition]) -> list[KafkaPartition]:
        """What the group has committed."""
        found = self.store.fetch(keys)
        return [place_of(key, found.get(key)) for key in keys]

    # ---- committed ------------------------------------------------------------------------------

    def commit(
        self, message: Message | None, offsets: list[KafkaPartition] | None, *, wait: bool
    ) -> list[KafkaPartition] | None:
        """As `Consumer.commit`."""
        if self._transactional:
            self.store.commit({}, wait=True)
        chosen = self._chosen(message, offsets)
        if chosen is None:
            return self.commit_moved(list(self._reading.assigned), wait=wait)
        self.store.commit(chosen, wait=wait)
        return [place_of(k, p) for k, p in chosen.items()] if wait else None

    def mark(self, message: Message | None, offsets: list[KafkaPartition] | None) -> None:
        """As `Consumer.store_offsets`."""
        if self._config.enable_auto_offset_store:
            raise ConfigError("to choose what is committed set enable.auto.offset.store=false")
        chosen = self._chosen(message, offsets) or {}
        marked = {self._reading.require(key): position for key, position in chosen.items()}
        for assigned, position in marked.items():
            assigned.marked = position

    def _chosen(
        self, message: Message | None, offsets: list[KafkaPartition] | None
    ) -> dict[TopicPartition, Position] | None:
        if message is not None:
            return self._after(message)
        return None if offsets is None else {key_of(p): self._as_position(p) for p in offsets}

    def _after(self, message: Message) -> dict[TopicPartition, Position]:
        key = cast(TopicPartition, (message.topic(), message.partition()))
        assigned = self._reading.assigned.get(key)
        found = assigned.buffer.position_after(cast(Record, message)) if assigned else None
        if found is None:
            raise ConsumerError(
                f"can't commit after offset {message.offset()} of {key[0]}[{key[1]}]: only after "
                "a message of the last poll or consume; commit() commits all that was delivered"
            )
        return {key: found}

    def _as_position(self, partition: KafkaPartition) -> Position:
        current = self.present(key_of(partition))
        if current is not None and partition.offset == current.o2:
            return current
        return Position.from_metadata(partition.offset, partition.metadata)

    def commit_moved(
        self, keys: Sequence[TopicPartition], *, wait: bool
    ) -> list[KafkaPartition] | None:
        """Commit the positions of those of these partitions that moved since."""
        moved: dict[TopicPartition, Position] = {}
        for key in keys:
            assigned = self._reading.assigned.get(key)
            if assigned is None:
                continue
            everything = self._config.enable_auto_offset_store
            position = assigned.buffer.position() if everything else assigned.marked
            if position is not None and position != assigned.stored:
                moved[key] = position
        if moved:
            self.store.commit(moved, wait=wait)
        for key, position in moved.items():
            self._reading.assigned[key].stored = position
        return [place_of(k, p) for k, p in moved.items()] if wait else None

    def auto_commit(self) -> None:
        """Commit now and then, where ``enable.auto.commit`` says so.

        At the start of a poll: what was delivered before it counts as processed, as in Kafka.
        """
        now = time.monotonic()
        if self._config.enable_auto_commit and now >= self._commit_at_s:
            self._commit_at_s = now + self._config.auto_commit_interval_ms / 1000
            self.commit_moved(list(self._reading.assigned), wait=False)

    # ---- input offsets of transactions ----------------------------------------------------------

    def steps(self) -> list[OffsetStep]:
        """As `Consumer.offset_steps`."""
        if not self._transactional:
            raise ConfigError("to send offsets with transactions set offsets.storage=transactions")
        if self._lost_input:
            raise ClaimFencedError(
                "partitions were given to another consumer of the group after their input was "
                "delivered: abort what was made of it, and rewind"
            )
        steps: list[OffsetStep] = []
        if self._rewinds:
            return steps
        for (topic, partition), assigned in self._reading.assigned.items():
            position = assigned.buffer.position()
            before = assigned.stored or assigned.origin
            if position.place != before.place:
                from_place = assigned.stored.place if assigned.stored else None
                steps.append(OffsetStep(topic, partition, from_place, position, assigned.claim))
                assigned.stored = position
            assigned.unsent = False
        return steps

    def rewind_later(self) -> None:
        """Rewind when something is to be delivered next."""
        self._rewinds = bool(self._reading.assigned)
        self._lost_input = False

    def rewind(self, *, subscribed: bool) -> None:
        """As `Consumer.rewind`."""
        # If it fails it stays due: what is delivered next must go on from what is committed.
        self.rewind_later()
        if not self._rewinds or self._claims_at_s is not None:
            return
        claims = {key: assigned.claim for key, assigned in self._reading.assigned.items()}
        try:
            taken = self.store.retake(claims)
        except ClaimFencedError as error:
            if not subscribed:
                raise
            self._pause_s = min(max(2 * self._pause_s, FENCED_PAUSE_MIN_S), FENCED_PAUSE_MAX_S)
            self._claims_at_s = time.monotonic() + self._pause_s * (0.5 + random.random() / 2)
            _LOG.warning("claim_fenced group=%s error=%s", self._config.group_id, error)
            return
        self._pause_s = 0.0
        self._go_back(taken)

    def prepare(self, *, subscribed: bool) -> float:
        """Do what is due before anything is delivered.

        Returns:
            Seconds for which nothing may be delivered, while the group is listened to.

        Raises:
            RetriableError: the positions could not be learnt; call again.
            ClaimFencedError: not subscribed, and somebody else claimed what was assigned.
        """
        if self._claims_at_s is not None:
            left_s = self._claims_at_s - time.monotonic()
            if left_s > 0:
                return left_s
            self._go_back(self.store.take(list(self._reading.assigned)))
        elif self._rewinds:
            self.rewind(subscribed=subscribed)
            if self._claims_at_s is not None:
                return max(0.0, self._claims_at_s - time.monotonic())
        return 0.0

    def _go_back(self, taken: Taken) -> None:
        self._claims_at_s = None
        self._rewinds = False
        keys = list(self._reading.assigned)
        for key in keys:
            assigned = self._reading.assigned[key]
            stored = taken.positions.get(key)
            start = stored if stored is not None else assigned.origin
            again = self._reading.add(key, start, stored, assigned.started_at)
            again.claim, again.unsent = taken.claim, False
        self._reading.reassign(keys)

    def close(self) -> None:
        """Release what the store holds."""
        self.store.close()
