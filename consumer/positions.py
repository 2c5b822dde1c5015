"""Restores, reports and commits the positions of assigned partitions, and hands them out as steps.

`position_store` keeps the positions; this module applies them to each assigned partition.

With ``offsets.storage=transactions`` partitions are read under a *claim*, whose number stands in
the steps. After either of two events the consumer hands out no step until a rewind:

- The group takes a partition away whose input was delivered and not handed out. The output made of
  that input must not be committed, for the next holder reads the input again.
- A rewind finds a newer claim. This process may be a zombie that wakes up: if it claimed at once it
  would fence the live holder, the live holder would fence it in turn, and so on (trap 29). So it
  delivers nothing for a moment while it listens to the group, and then claims only the partitions
  that the group still assigns to it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
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
from ..journal.errors import (
    ClaimFencedError,
    ConfigError,
    ConsumerError,
    OffsetsConflictError,
    TopicRecreatedError,
)
from ..journal.logs.interface import Log, LogConsumer
from ..journal.position import Position, is_position
from ..journal.records.types import OffsetStep
from ..journal.sidecar import is_delivered_from_sidecar
from .assigned import Assigned, StartedAt
from .config import ConsumerConfig, OffsetsStorage
from .core.looks import OFFSET_TIMEOUT_S
from .core.pointers import with_side
from .position_store import Taken, open_positions
from .reading import Reading

_LOG = logging.getLogger(__name__)
FENCED_PAUSE_MIN_S: Final = 0.1
FENCED_PAUSE_MAX_S: Final = 5.0
"""How long a fenced consumer listens to its group before it claims again; the pause doubles with
each fencing. The first is a little longer than the answer to a heartbeat takes, the last is longer
than most heartbeat intervals. Shorter pauses may fence a live holder, longer ones delay a consumer
that holds its partitions rightly."""
SIDES_MAX: Final = 1_000
"""Ends of steps within transactions in sidecars that are remembered of each partition. After a
rewind behind more steps than these, a transaction is read from its beginning."""
_RESETS: Final = {OFFSET_BEGINNING: "earliest", OFFSET_END: "latest"}
_TAIL: Final = -2000
"""librdkafka's OFFSET_TAIL_BASE: n less names the last n offsets."""


def key_of(partition: KafkaPartition) -> TopicPartition:
    """Returns the partition's topic and number.

    Raises:
        TypeError: it is no TopicPartition.
    """
    try:
        return partition.topic, partition.partition
    except AttributeError:
        raise TypeError(f"expected a TopicPartition, not {partition!r}") from None


def _order(position: Position) -> tuple[int, int, int, int]:
    # What is placed at an offset comes before the marker that may lie there.
    passed = position.passed
    sequence, taken = (-1, 0) if passed is None else (passed.sequence, passed.taken)
    return position.o2, sequence, taken, position.o3


def _known(assigned: Assigned, partition: KafkaPartition) -> Position | None:
    """Returns the position of delivery, former or present, that an offset names; None if none is.

    An offset has the metadata of a position, or is that of a delivered message, plus 1. That
    message may have come with a transaction, whose marker lies elsewhere.
    """
    present = assigned.buffer.position()
    if is_position(partition.metadata):
        told = Position.from_metadata(partition.offset, partition.metadata)
        # What `Consumer.position` returned has o2 in the place of o1.
        return present if told.place == present.place and told.o1 == told.o2 else told
    after = assigned.buffer.position_after(partition.offset - 1)
    return after or (present if partition.offset == present.o2 else None)


def _check_in_log(partition: KafkaPartition) -> None:
    """Refuses the offset of a message out of a sidecar: in the partition itself is none of it."""
    if is_delivered_from_sidecar(partition.offset):
        raise ConsumerError(
            f"offset {partition.offset} of {partition.topic}[{partition.partition}] is that of a"
            " message out of a sidecar, which was not delivered lately, since the partition was"
            " assigned or moved: give the message itself, or what position() or committed()"
            " returned",
            kafka_code=KafkaError._INVALID_ARG,
        )


def place_of(key: TopicPartition, position: Position | None) -> KafkaPartition:
    """Returns a position as the application gets it: o2 as the offset, the rest as metadata."""
    if position is None:
        return KafkaPartition(key[0], key[1], OFFSET_INVALID)
    return KafkaPartition(key[0], key[1], position.o2, position.to_metadata())


class Positions:
    """Positions of all assigned partitions of one consumer. One thread at a time may use it."""

    def __init__(
        self, log: Log, inner: LogConsumer, config: ConsumerConfig, reading: Reading
    ) -> None:
        self.store = open_positions(log, inner, config)
        self._log = log
        self._config = config
        self._reading = reading
        reading.recreated = self.rewind_later
        self._commit_at_s = time.monotonic() + config.auto_commit_interval_ms / 1000
        self._transactional = config.offsets_storage is OffsetsStorage.TRANSACTIONS
        self._rewinds = False
        """Whether a rewind is due before anything else is delivered or handed out."""
        self._lost_input = False
        """Whether the group took away input that was delivered and not handed out."""
        self._returns = 0
        """How often delivery went back to the committed positions."""
        self._lost_steps = False
        """Whether a transaction that had steps did not commit, and no rewind came since."""
        self._claims_at_s: float | None = None
        """Monotonic time at which to claim again what another consumer claimed."""
        self._pause_s = 0.0
        """Pause after the last fencing, in seconds; 0 after a claim that succeeded."""

    # ---- where reading begins -------------------------------------------------------------------

    def restore(self, partitions: Sequence[KafkaPartition]) -> None:
        """Begins partitions: at their offset if they have one, else at the committed position.

        Raises:
            KafkaException: the broker refused, or nothing is committed and
                ``auto.offset.reset=error``.
            RetriableError: the positions could not be fetched; no partition was begun.
            TopicRecreatedError: they are of a topic that was deleted; no partition was begun.
        """
        asked = [key_of(p) for p in partitions if p.offset in (OFFSET_INVALID, OFFSET_STORED)]
        # The steps of an IOV start from the committed position, wherever reading begins.
        if self._transactional:
            asked = [key_of(p) for p in partitions]
        taken = self.store.take(asked) if asked else Taken({}, None)
        ids = self._topic_ids(asked)
        starts: list[tuple[Position, StartedAt]] = []
        for partition in partitions:
            key = key_of(partition)
            stored = taken.positions.get(key)
            self._check_topic(key, taken, ids)
            if partition.offset in (OFFSET_INVALID, OFFSET_STORED) and stored is not None:
                starts.append((stored, StartedAt.ELSEWHERE))
            else:
                starts.append(self.start_at(partition))
        self._reading.following.learn([key_of(p) for p in partitions])
        self._pause_s = 0.0
        for partition, (start, started_at) in zip(partitions, starts, strict=True):
            key = key_of(partition)
            assigned = self._reading.add(key, start, taken.positions.get(key), started_at)
            self._take(assigned, taken, ids)

    def _take(self, assigned: Assigned, taken: Taken, ids: Mapping[str, str]) -> None:
        assigned.claim, assigned.unsent = taken.claim, False
        assigned.topic_id = ids.get(assigned.key[0]) or self._known_id(assigned.key, taken)

    def _known_id(self, key: TopicPartition, taken: Taken) -> str:
        """Returns the id of the topic that the group's place is of; "" if it is not known."""
        place = taken.positions.get(key) or self._reading.assigned.get(key)
        return "" if place is None else place.topic_id

    def _topic_ids(self, keys: Collection[TopicPartition]) -> Mapping[str, str]:
        """Returns the ids of the topics. Kafka drops a topic's group offsets with the topic; the
        journal keeps them, so a step says which topic it was made in."""
        if not self._transactional or not keys:
            return {}
        return self._reading.topic_ids.of(topic for topic, _ in keys)

    def _check_topic(self, key: TopicPartition, taken: Taken, ids: Mapping[str, str]) -> None:
        """Raises TopicRecreatedError if the group's place is of a topic that was deleted."""
        topic, known = key[0], self._known_id(key, taken)
        told = ids.get(topic, known)
        if known in ("", told) or not self._reading.topic_ids.is_another(topic, known):
            return
        group = self._config.group_id
        raise TopicRecreatedError(
            f"topic {topic} was deleted and created anew since group {group} committed offsets in"
            f" it: its id was {known}, and is {told}. To read the new topic from its start, stop"
            f" the group's consumers and run `logtx group reset {group} --topic {topic}"
            " --to-offsets earliest --execute`"
        )

    def give_up(self, keys: Collection[TopicPartition]) -> None:
        """Drops partitions that the group took away."""
        gone = [a for key, a in self._reading.assigned.items() if key in keys]
        self._lost_input |= self._transactional and any(a.unsent for a in gone)
        self._reading.remove(keys)
        if not self._reading.assigned:
            self._rewinds, self._claims_at_s = False, None

    def drop(self) -> None:
        """Drops all partitions: the application will say what to read next."""
        self._reading.remove(list(self._reading.assigned))
        self._rewinds = False
        self._begin_again()
        self._claims_at_s, self._pause_s = None, 0.0

    def start_at(self, partition: KafkaPartition) -> tuple[Position, StartedAt]:
        """Returns the position that the partition's offset names, and how it was chosen.

        `OFFSET_STORED` names the committed one, -2000 - n the last n offsets. Without an
        offset ``auto.offset.reset`` decides.

        Raises:
            KafkaException: there is no offset, and ``auto.offset.reset=error``.
            BrokerError: the log's start or end could not be fetched.
            ConsumerError: the offset is that of a message out of a sidecar.
        """
        _check_in_log(partition)
        if partition.offset >= 0:
            return Position.from_metadata(partition.offset, partition.metadata), StartedAt.ELSEWHERE
        key = topic, number = key_of(partition)
        if partition.offset == OFFSET_STORED and (found := self.store.fetch([key]).get(key)):
            return found, StartedAt.ELSEWHERE
        if partition.offset <= _TAIL:
            end = self._log.end_offset(topic, number, timeout_s=OFFSET_TIMEOUT_S)
            start = self._log.start_offset(topic, number, timeout_s=OFFSET_TIMEOUT_S)
            offset = max(start, end - (_TAIL - partition.offset))
            return Position.at(offset), StartedAt.ELSEWHERE
        reset = _RESETS.get(partition.offset) or self._config.auto_offset_reset
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
        """Returns where delivery goes on; None for a partition that is not assigned."""
        assigned = self._reading.assigned.get(key)
        return None if assigned is None else assigned.buffer.position()

    def committed(
        self, keys: Sequence[TopicPartition], timeout_s: float | None
    ) -> list[KafkaPartition]:
        """Returns the group's committed positions, as `Consumer.committed`."""
        found = self.store.fetch(keys, timeout_s)
        return [place_of(key, found.get(key)) for key in keys]

    # ---- committed ------------------------------------------------------------------------------

    def commit(
        self, message: Message | None, offsets: list[KafkaPartition] | None, *, wait: bool
    ) -> list[KafkaPartition] | None:
        """Commits positions, as `Consumer.commit`."""
        if self._transactional:
            self.store.commit({}, wait=True)
        chosen = self._chosen(message, offsets)
        if chosen is None:
            return self.commit_moved(list(self._reading.assigned), wait=wait)
        for key in chosen:
            if (assigned := self._reading.assigned.get(key)) is not None:
                assigned.stored = assigned.asked = None
        self.store.commit(chosen, wait=wait)
        return [place_of(k, p) for k, p in chosen.items()] if wait else None

    def mark(self, message: Message | None, offsets: list[KafkaPartition] | None) -> None:
        """Chooses what is committed next, as `Consumer.store_offsets`."""
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
            if offsets is not None:
                raise ValueError("message and offsets are mutually exclusive")
            return self._after(message)
        return None if offsets is None else {key_of(p): self._named(p) for p in offsets}

    def _after(self, message: Message) -> dict[TopicPartition, Position]:
        try:
            key = cast(TopicPartition, (message.topic(), message.partition()))
        except AttributeError:
            raise TypeError(f"expected a Message, not {message!r}") from None
        assigned = self._reading.assigned.get(key)
        found = assigned.buffer.position_after(cast(int, message.offset())) if assigned else None
        if found is None:
            raise ConsumerError(
                f"can't commit after offset {message.offset()} of {key[0]}[{key[1]}]: it is none of"
                " the messages delivered lately, since the partition was assigned or moved;"
                " commit() commits all that was delivered",
                kafka_code=KafkaError._INVALID_ARG,
            )
        return {key: found}

    def _named(self, partition: KafkaPartition) -> Position:
        """Returns the position that an offset of the application names."""
        told = Position.from_metadata(partition.offset, partition.metadata)
        assigned = self._reading.assigned.get(key_of(partition))
        known = None if assigned is None else _known(assigned, partition)
        if known is None:
            _check_in_log(partition)
        return known or told

    def commit_moved(
        self, keys: Sequence[TopicPartition], *, wait: bool
    ) -> list[KafkaPartition] | None:
        """Commits the positions of those of these partitions that moved since the last commit.

        Returns:
            What was committed; None without `wait`.
        """
        moved: dict[TopicPartition, Position] = {}
        for key in keys:
            assigned = self._reading.assigned.get(key)
            if assigned is None:
                continue
            everything = self._config.enable_auto_offset_store
            position = assigned.buffer.position() if everything else assigned.marked
            # What was asked for may be refused, so a commit that waits asks for it again.
            known = assigned.stored if wait else assigned.asked or assigned.stored
            if position is not None and position != known:
                moved[key] = position
        if not moved:
            return [] if wait else None
        for key, position in moved.items():
            assigned = self._reading.assigned[key]
            # An error does not tell whether it took effect. Delivery may go back to the former one.
            assigned.stored, assigned.asked = None, None if wait else position
        self.store.commit(moved, wait=wait)
        if not wait:
            return None
        for key, position in moved.items():
            assigned = self._reading.assigned[key]
            assigned.stored, assigned.asked = position, None
        return [place_of(k, p) for k, p in moved.items()]

    def on_commit(self, error: KafkaError | None, places: Sequence[KafkaPartition]) -> None:
        """Takes the answer to a commit. What was refused is asked for again by the next one."""
        for place in places:
            assigned = self._reading.assigned.get(key_of(place))
            asked = None if assigned is None else assigned.asked
            if assigned is None or asked is None or place.offset != asked.o1:
                continue
            if (place.metadata or "") != asked.to_metadata():
                continue  # The answer to an earlier one.
            assigned.asked = None
            if error is None and place.error is None:
                assigned.stored = asked

    def auto_commit(self) -> None:
        """Commits every ``auto.commit.interval.ms``, if ``enable.auto.commit`` is set.

        Called at the start of a poll: as in Kafka, what was delivered before counts as processed.
        """
        now = time.monotonic()
        if self._config.enable_auto_commit and now >= self._commit_at_s:
            self._commit_at_s = now + self._config.auto_commit_interval_ms / 1000
            self.commit_moved(list(self._reading.assigned), wait=False)

    # ---- input offsets of transactions ----------------------------------------------------------

    def steps(self, places: Sequence[KafkaPartition] | None = None) -> list[OffsetStep]:
        """Returns the steps since the last call, as `Consumer.offset_steps`."""
        if not self._transactional:
            raise ConfigError("to send offsets with transactions set offsets.storage=transactions")
        if self._lost_input:
            raise ClaimFencedError(
                "partitions were given to another consumer of the group after their input was "
                "delivered: abort what was made of it, and rewind"
            )
        if self._lost_steps:
            raise OffsetsConflictError(
                "a transaction with input of this consumer did not commit: abort what was made of"
                " later input, call the consumer's rewind(), and process what it delivers again"
            )
        if self._rewinds:
            return []
        present = {key: a.buffer.position() for key, a in self._reading.assigned.items()}
        ends = present if places is None else self._ends(places)
        steps: list[OffsetStep] = []
        for key, end in ends.items():
            assigned = self._reading.assigned[key]
            before = assigned.stored or assigned.origin
            if end.place != before.place:
                from_place = assigned.stored.place if assigned.stored else None
                to = replace(end, topic_id=assigned.topic_id)
                steps.append(OffsetStep(*key, from_place, to, assigned.claim))
        # Nothing fails from here on: a refused call changes nothing.
        for step in steps:
            assigned = self._reading.assigned[step.topic, step.partition]
            assigned.stored = step.to
            if step.to.side is not None:
                assigned.sides[step.to.place] = step.to.side
                if len(assigned.sides) > SIDES_MAX:
                    del assigned.sides[next(iter(assigned.sides))]
        for key, end in ends.items():
            if end.place == present[key].place:
                self._reading.assigned[key].unsent = False
        return steps

    def lose_steps(self) -> Callable[[], None]:
        """Returns what to call if the steps handed out last will not be committed; on any thread.

        Until the next rewind no step is handed out. Those of the same input, done again, would
        begin where the lost ones ended. There would be none, and the output would commit alone.
        """
        returns = self._returns

        def lose() -> None:
            # A transaction of before a rewind may end after it.
            if returns == self._returns:
                self._lost_steps = True

        return lose

    def _ends(self, places: Sequence[KafkaPartition]) -> dict[TopicPartition, Position]:
        """Returns the positions that the application named.

        Raises:
            ConfigError: one of them lies where delivery never was, or before what was handed out.
        """
        ends: dict[TopicPartition, Position] = {}
        for place in places:
            if place.offset < 0:
                continue  # Nothing was delivered there.
            key = key_of(place)
            assigned = self._reading.assigned.get(key)
            if assigned is None:
                raise ConfigError(
                    f"{key[0]}[{key[1]}] is not assigned to this consumer: name what was delivered"
                )
            end = _known(assigned, place)
            before, present = assigned.stored or assigned.origin, assigned.buffer.position()
            if end is None and (before.o2, before.o3) == (place.offset, 0):
                end = before
            if end is None or not _order(before) <= _order(end) <= _order(present):
                raise ConfigError(
                    f"offset {place.offset} of {key[0]}[{key[1]}] is none at which delivery was"
                    f" lately, from {before.o2}, which was sent before, to {present.o2}: give the"
                    " consumer's position(), or the offset of a message that it delivered, plus 1"
                )
            ends[key] = end
        return ends

    def rewind_later(self) -> None:
        """Makes a rewind due before the next delivery."""
        self._rewinds = bool(self._reading.assigned)
        self._begin_again()

    def _begin_again(self) -> None:
        self._returns += 1
        self._lost_input = self._lost_steps = False

    def rewind(self, *, subscribed: bool) -> None:
        """Goes back to the committed positions, as `Consumer.rewind`.

        If `subscribed` and another consumer claimed partitions, sets the time of the next claim
        instead of raising ClaimFencedError.
        """
        # If this fails it stays due: the next delivery must go on from the committed position.
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
        """Does the rewind or claim that is due before anything is delivered.

        Returns:
            Seconds for which nothing may be delivered, while this consumer listens to its group;
            0 if delivery may go on.

        Raises:
            RetriableError: the positions could not be fetched; call again.
            ClaimFencedError: not subscribed, and another consumer claimed an assigned partition.
        """
        if self._claims_at_s is not None:
            left_s = self._claims_at_s - time.monotonic()
            if left_s > 0:
                return left_s
            if self._reading.fetched_s < self._claims_at_s:
                # Nobody polled meanwhile, so the group was not heard.
                return FENCED_PAUSE_MIN_S
            self._go_back(self.store.take(list(self._reading.assigned)))
        elif self._rewinds:
            self.rewind(subscribed=subscribed)
            if self._claims_at_s is not None:
                return max(0.0, self._claims_at_s - time.monotonic())
        return 0.0

    def _go_back(self, taken: Taken) -> None:
        keys = list(self._reading.assigned)
        for assigned in self._reading.assigned.values():
            # If what follows fails, the next claim must not take this one for a stranger's.
            assigned.claim = taken.claim
        ids = self._topic_ids(keys)
        for key in keys:
            self._check_topic(key, taken, ids)
        with self._reading.moving():
            for key in keys:
                assigned = self._reading.assigned[key]
                stored = taken.positions.get(key)
                start = stored if stored is not None else assigned.origin
                if stored is not None and stored.topic_id == assigned.topic_id:
                    start = with_side(stored, assigned.sides.get(stored.place))
                again = self._reading.add(key, start, stored, assigned.started_at)
                self._take(again, taken, ids)
            self._reading.reassign(keys)
        # Last: if any of this failed, it is still to be done.
        self._claims_at_s = None
        self._rewinds = False

    def close(self) -> None:
        """Closes the store."""
        self.store.close()
