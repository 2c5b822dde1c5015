"""Decides which partitions follow their home, and turns them round at mode records.

A partition begins by what is known of its topic's mode at its position (`KnownModes`). Where it
comes to a mode record that counts, it begins anew there, with a home or without one (R15): its
position says all that the next buffer needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from ..journal.control import TopicPartition
from ..journal.errors import BrokerError, HandedOverError
from ..journal.logs.interface import Log
from ..journal.position import Passed, Position
from ..journal.reader import RecordsTrimmedError
from ..journal.state import State
from .assigned import Assigned
from .config import ConsumerConfig, IsolationLevel
from .core.before_sidecar import BeforeSidecar
from .core.buffer import PartitionBuffer
from .core.counters import ConsumerCounters
from .core.home_view import Start
from .core.known_modes import Follows
from .core.pending import PendingTransactionMap
from .core.placed_buffer import PlacedBuffer
from .core.places_uncommitted import UncommittedPlacedBuffer
from .core.shared import Shared
from .core.uncommitted import UncommittedBuffer
from .followed import Followed
from .homes import Homes
from .lookup import LookedUp
from .malformed import malformed_event
from .registry import Registry
from .sidecar_watch import SidecarWatch
from .topic_ids import TopicIds

_LOG = logging.getLogger(__name__)


class Following:
    """Makes the buffers of one consumer's partitions, and follows the homes that they need."""

    def __init__(
        self,
        log: Log,
        config: ConsumerConfig,
        counters: ConsumerCounters,
        pending_map: PendingTransactionMap,
        shared: Shared,
        topic_ids: TopicIds,
        high_of: Callable[[TopicPartition], int],
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Asks nothing yet. `high_of` and `clock` are `Homes`' arguments of that name."""
        self._config = config
        self._counters = counters
        self._pending_map = pending_map
        self._shared = shared
        self._registry = Registry(log, topic_ids)
        self.homes = Homes(log, config.librdkafka_quiet, high_of, clock)
        self.sidecars = SidecarWatch(log, high_of, clock)

    # ---- partitions -----------------------------------------------------------------------------

    def begin(self, assigned: Assigned) -> None:
        """Follows the home of a partition, or watches for its sidecar, if it needs either."""
        if assigned.home is not None:
            self.homes.begin(assigned.home)
        if assigned.before is not None:
            self.sidecars.begin(assigned.key, assigned.before)

    def forget(self, assigned: Assigned) -> None:
        """Ends that."""
        if assigned.home is not None:
            self.homes.forget(assigned.home)
        if assigned.before is not None:
            self.sidecars.forget(assigned.key, assigned.before)

    def drop_all(self) -> None:
        """Ends it for all, and keeps nothing: an interruption left anything half taken in."""
        self.homes.drop_all()
        self.sidecars.drop_all()

    @property
    def watches(self) -> bool:
        """Whether `poll` is to be called."""
        return self.homes.follows or self.sidecars.watches

    @property
    def wait_s(self) -> float:
        """How long to wait for data, at most, before `poll` is called again."""
        homes_s = self.homes.wait_s
        if not self.sidecars.watches:
            return homes_s
        return min(homes_s, self.sidecars.wait_s) if self.homes.follows else self.sidecars.wait_s

    def learn(self, keys: Collection[TopicPartition]) -> None:
        """Learns which homes the topics of these partitions have, before they are begun.

        It must be called after their first offsets were chosen. A mode record that is written in
        between then lies ahead, or its switch is published by now, or will be.

        Raises:
            BrokerError: no answer in time.
        """
        self._registry.read(keys)

    # ---- buffers --------------------------------------------------------------------------------

    def make_buffer(self, assigned: Assigned) -> PartitionBuffer:
        """Returns the buffer of a partition that is being begun, and sets its home.

        Raises:
            HandedOverError: a reader in serial order stopped within a transaction there.
            BrokerError: no answer in time.
        """
        options = self._options(assigned)
        key, start = assigned.key, assigned.start
        follows = self.home_of(assigned)
        is_uncommitted = self._config.isolation_level is IsolationLevel.READ_UNCOMMITTED
        if is_uncommitted and (follows is None or not self.sidecars.has_sidecar(key[0])):
            return self._uncommitted(assigned, follows, options)
        if follows is None:
            buffer = PartitionBuffer(key, replace(start, passed=None), self._pending_map, **options)
            buffer.known_mode = self.known_mode(assigned)
            # To look up what is aborted where a home places would take a reader of a backlog
            # longer than to read it.
            buffer.looks_up = not self._registry.modes(key).was_switched
            return buffer
        if start.o3 and start.passed is None and set(start.delivered) - {follows.home}:
            # Which transaction that was part of, in the order of the home, can't be told.
            topic, partition = key
            raise HandedOverError(
                f"this consumer group stopped within a transaction of {topic}[{partition}], in"
                " serial order: read with isolation.level=serializable until that is delivered"
            )
        home = assigned.home = self.follow(assigned, follows)
        home.buffer = (UncommittedPlacedBuffer if is_uncommitted else PlacedBuffer)(
            key,
            replace(start, passed=follows.passed),
            self._pending_map,
            home=follows.home,
            topic_id=follows.topic_id,
            has_ended=home.has_ended,
            end_marked=home.end_marked,
            **options,
        )
        return home.buffer

    def _options(self, assigned: Assigned) -> dict[str, Any]:
        return {
            "malformed": malformed_event,
            "counters": self._counters,
            "torn_skip_below": assigned.torn_skip_below(self._config.torn_reset),
            "shared": self._shared,
        }

    def _uncommitted(
        self, assigned: Assigned, follows: Follows | None, options: dict[str, Any]
    ) -> PartitionBuffer:
        """Returns the buffer of uncommitted records that need no home, as far as is known."""
        key, start = assigned.key, assigned.start
        passed = None if follows is None else follows.passed
        buffer = UncommittedBuffer(key, replace(start, passed=passed), self._pending_map, **options)
        buffer.known_mode = self.known_mode(assigned)
        if follows is not None:
            assigned.before = BeforeSidecar(key[0], buffer)
        return buffer

    def home_of(self, assigned: Assigned) -> Follows | None:
        """Returns the home that a partition is to follow from its start on, if any.

        Raises:
            BrokerError: no answer in time.
        """
        follows = self._registry.modes(assigned.key).follows(assigned.start)
        if follows is None or follows.topic_id:
            return follows
        # Its position names the home, of which nothing is published yet. The home names partitions
        # with the topic's id: without that, nothing placed would be taken for this partition's.
        return follows._replace(topic_id=self._registry.topic_id(assigned.key[0]))

    def known_mode(self, assigned: Assigned) -> int:
        """Returns the journal offset of the latest MODE record known where a partition starts."""
        return self._registry.modes(assigned.key).latest(assigned.start.o2)

    @staticmethod
    def follow(assigned: Assigned, follows: Follows) -> Followed:
        """Returns what follows a partition's home from its start on; it is not read yet."""
        start, passed = assigned.start, follows.passed
        x = start.o2 if assigned.counted_from is None else assigned.counted_from
        where = Start(
            x,
            None if passed is None else passed.sequence,
            start.o1,
            mode_offset=follows.mode_offset,
        )
        return Followed(assigned.key, follows, where)

    # ---- reading on -----------------------------------------------------------------------------

    def poll(self, partitions: Iterable[Assigned]) -> tuple[bool, list[Assigned]]:
        """Takes in what came of the homes.

        Returns:
            (whether anything came, partitions that are to begin anew, with their new starts).
        """
        partitions = list(partitions)
        for assigned in partitions:
            if assigned.paused and assigned.home is not None and assigned.home.is_full:
                self.homes.park(assigned.home)
        try:
            moved = self.sidecars.poll()
            moved = self.homes.poll(partial(_numbers, partitions)) or moved
        except RecordsTrimmedError as error:
            _LOG.warning("homes_read_again reason=%s", error)
            return True, [_anew(a, a.buffer.position()) for a in partitions if a.home is not None]
        turned = []
        for assigned in partitions:
            if assigned.home is not None:
                self._counters.misplaced_transactions += assigned.home.new_misplaced()
            again = self._turn(assigned)
            if again is not None:
                turned.append(again)
        return moved, turned

    def _turn(self, assigned: Assigned) -> Assigned | None:
        if assigned.before is not None and assigned.before.has_sidecar:
            return self._to_sidecar(assigned)
        try:
            return self._to_home(assigned) if assigned.home is None else self._to_markers(assigned)
        except BrokerError as error:
            _LOG.warning("mode_not_changed partition=%s error=%s", assigned.key, error)
            return None

    @staticmethod
    def _to_sidecar(assigned: Assigned) -> Assigned:
        """Begins to follow the home of a partition of uncommitted records, as there is a sidecar
        now: all that is placed and lies there is to come yet."""
        _LOG.info("sidecar_met topic=%s partition=%d", *assigned.key)
        position = assigned.buffer.position()
        again = _anew(assigned, position)
        if position.passed is None:
            # Nothing of it is placed below what was delivered. But a broker that is behind may
            # have told too late that there is a sidecar, and then that costs no record.
            known = assigned.counted_from
            again.counted_from = assigned.start.o2 if known is None else known
        return again

    def _to_home(self, assigned: Assigned) -> Assigned | None:
        met = assigned.buffer.mode_met
        if met is None:
            return None
        position = assigned.buffer.position()
        if position.o2 < met.offset:
            return None  # What lies before it is not delivered yet.
        topic = assigned.key[0]
        is_another = self._registry.is_another(topic, met.topic_id)
        places = met.places and not is_another
        modes = self._registry.modes(assigned.key)
        modes.meet(met.offset, met.mode_offset, met.home, met.topic_id, places=places)
        _LOG.info(
            "mode_record topic=%s partition=%d offset=%d home=%d mode_offset=%d places=%s",
            *(*assigned.key, met.offset, met.home[0], met.mode_offset, places),
        )
        if places:
            return _anew(assigned, replace(position, passed=Passed(met.home, met.mode_offset)))
        if is_another or assigned.before is not None:
            # Or there was no sidecar up to here, so nothing that is placed was missed.
            return _anew(assigned, _behind(position, met.offset))
        # What was placed before this mode record was passed over: a broker told of the switch too
        # late. It is still to come, from where reading began.
        again = _anew(assigned, replace(position, passed=None))
        again.counted_from = assigned.origin.o2
        return again

    def _to_markers(self, assigned: Assigned) -> Assigned | None:
        home = assigned.home
        if home is not None and home.is_parked:
            return None if assigned.paused else _anew(assigned, assigned.buffer.position())
        if home is None or home.back is None or not home.is_over:
            return None
        offset, mode_offset = home.back.offset, home.back.mode_offset
        modes = self._registry.modes(assigned.key)
        modes.meet(offset, mode_offset, home.home, home.partition.topic_id, places=False)
        _LOG.info(
            "mode_record topic=%s partition=%d offset=%d home=%d mode_offset=%d places=False",
            *(*assigned.key, offset, home.home[0], mode_offset),
        )
        self.homes.leave(home)
        position = assigned.buffer.position()
        if position.o2 > offset:
            # It lies where only what is pending is read again: nothing is placed from o2 on. To
            # begin at the mode record would deliver again what lies between.
            return _anew(assigned, replace(position, passed=None))
        return _anew(assigned, _behind(position, offset))

    def looked_up(self, assigned: Assigned, answer: LookedUp, now_s: float) -> Assigned | None:
        """Takes the answer to a look-up of a pending transaction.

        Args:
            assigned: its partition.
            answer: what the journal says of it.
            now_s: the clock by which look-ups are timed.

        Returns:
            The partition as it begins anew, if it is to follow its home.

        Raises:
            BrokerError: no answer in time; it is to be looked up again.
        """
        # What the journal has no more may have been placed: its owner trims by what those need who
        # heard of the switch (trap 87).
        is_told = assigned.buffer.is_told_places
        if answer.is_within(assigned.buffer.delivered):
            # It was delivered, and is read again for the sake of another one.
            answer.tell(assigned.buffer, now_s)
            return None
        is_lost = answer.fate.state is State.UNKNOWN and not is_told
        may_be_placed = answer.is_placed or is_lost
        if assigned.home is not None or not may_be_placed or self._is_placed_elsewhere(answer):
            answer.tell(assigned.buffer, now_s)
            return None
        if is_told:
            answer.put_off(assigned.buffer)
            return None
        again = self.found_placed(assigned)
        if again is not None:
            return again
        if (
            not answer.is_placed
            or assigned.key in answer.fate.handed
            or self.has_passed_places(assigned)
        ):
            # The topic has markers, or has them again: a home of another journal refused it, or it
            # is placed below.
            answer.tell(assigned.buffer, now_s)
        else:
            # Nothing is published of the topic yet; or there is another one of this name, and this
            # consumer has not heard of it.
            answer.put_off(assigned.buffer)
        return None

    def _is_placed_elsewhere(self, answer: LookedUp) -> bool:
        """Returns whether it is placed in a former topic of this name, and so never here.

        Its commit was decided by who had not heard yet that the topic was created anew (trap 297).

        Raises:
            BrokerError: no answer in time.
        """
        ids = [place.topic_id for place in answer.fate.places if place.key == answer.partition]
        return bool(ids) and all(self._registry.is_another(answer.partition[0], id_) for id_ in ids)

    def found_placed(self, assigned: Assigned) -> Assigned | None:
        """Makes a partition follow its home, of which a look-up says that it places there.

        Its topic was switched without mode records, or before this consumer heard of it. All that
        is placed since the switch is to come yet, unless reading began above.

        Returns:
            The partition as it begins anew; None if nothing is published of its topic.

        Raises:
            BrokerError: no answer in time.
        """
        self._registry.read([assigned.key])
        modes, position = self._registry.modes(assigned.key), assigned.buffer.position()
        follows = modes.follows(replace(position, passed=None))
        if follows is None:
            return None
        began = modes.follows(Position.at(assigned.origin.o2))
        whole = began is None or began.passed is not None
        if whole and follows.mode_offset >= 0:
            position = replace(position, passed=Passed(follows.home, follows.mode_offset))
        again = _anew(assigned, position)
        # In either case: a fence that lists all that is placed from its o2 on would not do.
        again.counted_from = assigned.origin.o2
        return again

    def has_passed_places(self, assigned: Assigned) -> bool:
        """Returns whether all that a home placed in a partition lies below where it is read on.

        What is pending there and was placed was delivered, or lies below where reading began: it is
        read again for the sake of another transaction.
        """
        return self._registry.modes(assigned.key).is_marked_again(assigned.buffer.position().o2)

    def homes_of(self, topics: Collection[str]) -> dict[str, tuple[int, str]]:
        """Returns topic → (journal partition of its home, topic id), of those ever switched.

        Raises:
            BrokerError: no answer in time.
        """
        found = ((t, mode) for t, mode in self._registry.published().items() if t in topics)
        another = self._registry.is_another
        return {
            t: (mode.home[0], mode.topic_id) for t, mode in found if not another(t, mode.topic_id)
        }

    def close(self) -> None:
        """Closes the journal's consumer, and ends what asks for sidecars."""
        self.homes.close()
        self.sidecars.close()


def _numbers(partitions: Iterable[Assigned], topic: str) -> list[int]:
    return [assigned.key[1] for assigned in partitions if assigned.key[0] == topic]


def _behind(position: Position, offset: int) -> Position:
    """Returns a position at a mode record, moved behind it, where transactions are marked: at it, a
    reader can't tell whether what is placed there came."""
    o1 = offset + 1 if position.o1 == position.o2 else position.o1
    return replace(position, o1=o1, o2=offset + 1, o3=0, passed=None)


def _anew(former: Assigned, start: Position) -> Assigned:
    again = Assigned(former.key, former.origin, former.stored, former.started_at)
    again.start = start
    return again
