"""Follows the homes of a consumer's partitions: reads their journals, and asks their gates.

One consumer reads all homes. Each home has a view (`HomeView`), and keeps the last records that it
read (`HomeJournal`). A partition that begins later and needs the journal from further down gets a
view of its own, which is told what is kept from there on, and is joined with the other one at once.
If it begins below what is kept, reading goes back to there, and the views are joined when reading
has come to where the other stands.

With a backlog each partition comes to a topic's mode record by itself, and the journal was read far
ahead by then. So what is due behind a MODE record is kept for all partitions of its topic, also
those that have not come there, and for those that went back to markers until they come to the next
one (`HomeView.collect`). If that is too much, reading waits while every partition has work to do,
and else drops it: then reading goes back, as above.

While a record can't be taken in, its home is not read on; the record is kept, and tried again.

What is read and what is answered is taken in by `poll`, on the application's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from typing import Any, Final

from confluent_kafka import KafkaException

from ..journal.control import TopicPartition
from ..journal.errors import (
    JournalError,
    LogtxError,
    TornTransactionError,
)
from ..journal.follower import JournalFollower
from ..journal.logs.interface import Log
from ..journal.modes import ModeChange, Phase
from ..journal.places import PartitionId, Placed
from ..journal.position import Journal
from ..journal.reader import RecordsTrimmedError
from ..journal.records.types import Entry, PrepareAbort
from .core.home_journal import RECENT_MAX, HomeJournal
from .core.home_said import Decided, Said
from .core.home_view import HomeView, HomeWrites, Start
from .followed import Followed
from .gates import Frontier, Gates, tell_ends
from .home_starts import REQUEST_TIMEOUT_S, Attachment, HomeStart, HomeStarts
from .lanes import Lane, join

_LOG = logging.getLogger(__name__)
WAIT_S: Final = 0.005
"""Longest wait for data before the homes are read again. A longer one delays the delivery of what
is placed, and of plain records; a shorter one costs CPU on an idle consumer."""
EAGER_WAIT_S: Final = 0.001
"""The same while an answer or a journal record is about to come. No journal record ends the wait
for data, and no data that for an answer: either is delivered that much later."""
EAGER_S: Final = 0.02
"""How long after the last of them the next one is about to come: a place follows its decision. A
longer time costs CPU behind each of them; with a shorter one, what is placed slowly comes later."""
BEGIN_RETRY_S: Final = 0.5
"""Pause before a home whose journal could not be read, or a record that could not be taken in, is
tried again. Longer ones delay delivery when it is back, shorter ones ask a broker that is away more
often."""


AHEAD_MAX: Final = 50_000
"""Transactions of partitions that a home's readers have not come to, which a consumer keeps at
most: about 25 MB. Fewer make a reader with a backlog read the journal again for partitions that
begin."""


def _none(_topic: str) -> Iterable[int]:
    return ()


class Homes:
    """Follows the homes of all partitions of one consumer. One thread at a time may use it."""

    def __init__(
        self,
        log: Log,
        settings: Mapping[str, Any],
        high_of: Callable[[TopicPartition], int],
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Opens nothing: the first partition opens the journal's consumer.

        Args:
            log: the log of journal and data.
            settings: librdkafka's settings for the journal's consumer.
            high_of: tells up to where a partition was known to reach when it was fetched last,
                without a question; a negative number if that is not known.
            clock: monotonic time in seconds; None: the machine's.
        """
        self._high_of = high_of
        self._ours: Callable[[str], Iterable[int]] = _none
        self._clock = clock or time.monotonic
        self._log = log
        # Only an event at the end tells of offsets without records there.
        self._settings = {**settings, "enable.partition.eof": True}
        self._starts = HomeStarts(log, clock)
        self._follower: JournalFollower | None = None
        self._lanes: dict[Journal, list[Lane]] = {}
        self._journals: dict[Journal, HomeJournal] = {}
        """What was read. It is kept when no partition is followed: one may turn back soon."""
        self._recent_max, self._ahead_max = RECENT_MAX, AHEAD_MAX
        self._goes_back = False
        """Whether a journal is to be read from elsewhere."""
        self._waiting: list[Followed] = []
        """Partitions whose home is not read yet."""
        self._parked: list[Followed] = []
        """Partitions that are followed no more, until the application resumes them."""
        self._begin_at_s = 0.0
        """Not before then what failed is tried again."""
        self._gates: Gates[Followed, int, int] = Gates(partial(tell_ends, log))
        self._moved_s = 0.0
        """When something came last."""
        self._told: dict[Journal, int] = {}
        """The highest end that was told of each home."""
        self.failure: LogtxError | None = None
        """Why a home can't be read on."""

    # ---- partitions -----------------------------------------------------------------------------

    @property
    def follows(self) -> bool:
        """Whether any partition's home is followed."""
        return bool(self._waiting or self._followed_homes() or self._parked)

    def _followed_homes(self) -> list[Journal]:
        return [home for home, lanes in self._lanes.items() if any(not x.is_idle for x in lanes)]

    def begin(self, followed: Followed) -> None:
        """Follows a partition's home, from the next `poll` on."""
        self._waiting.append(followed)

    def forget(self, followed: Followed) -> None:
        """Stops following a partition's home."""
        self._waiting = [each for each in self._waiting if each is not followed]
        self._parked = [each for each in self._parked if each is not followed]
        for lanes in self._lanes.values():
            for lane in lanes:
                lane.drop(followed)
        self._drop_lanes(lambda lane: lane.is_idle and not lane.view.keeps_ahead)

    def leave(self, followed: Followed) -> None:
        """Stops following the home of a partition whose topic has markers again from here on."""
        for lane in self._lanes.get(followed.home, ()):
            lane.leave(followed)

    def _drop_lanes(self, needless: Callable[[Lane], bool]) -> None:
        for home, lanes in list(self._lanes.items()):
            self._lanes[home] = [lane for lane in lanes if not needless(lane)]
            if not self._lanes[home]:
                del self._lanes[home]

    def drop_all(self) -> None:
        """Follows nothing more, and keeps nothing: an interruption left anything half taken in."""
        self._waiting, self._parked = [], []
        self._lanes, self._journals = {}, {}

    def park(self, followed: Followed) -> None:
        """Stops following a partition that the application paused, and for which so much waits that
        it would hold up all others."""
        self.forget(followed)
        followed.park()
        self._parked.append(followed)

    def _begin_waiting(self) -> bool:
        """Begins to follow the partitions that wait. Returns whether any was begun."""
        if not self._waiting or self._clock() < self._begin_at_s:
            return False
        by_home: dict[Journal, list[Followed]] = {}
        for followed in self._waiting:
            by_home.setdefault(followed.home, []).append(followed)
        begun = False
        for home, waiting in by_home.items():
            group = [f for f in waiting if not self._resume(f)]
            if len(group) < len(waiting):
                begun = True
            if not group:
                continue
            journal = self._journals.get(home)
            is_idle = home not in self._followed_homes()
            kept = journal.kept(is_idle=is_idle) if journal is not None else None
            try:
                start = self._starts.find(home, self._starts_of(group), kept)
            except KafkaException as error:  # Every error of ours is one.
                self._begin_at_s = self._clock() + BEGIN_RETRY_S
                _LOG.warning("home_not_read partition=%d error=%s", home[0], error)
                if isinstance(error, LogtxError) and not _passes(error):
                    self.failure = error
                continue
            self.failure = None
            self._read_from(home, start)
            self._put_in_lanes(home, [(f, start.attachments[f.partition]) for f in group])
            done = {id(followed) for followed in group}
            self._waiting = [f for f in self._waiting if id(f) not in done]
            begun = True
        return begun

    def _resume(self, followed: Followed) -> bool:
        if not any(lane.resume(followed) for lane in self._lanes.get(followed.home, ())):
            return False
        self._waiting = [each for each in self._waiting if each is not followed]
        return True

    def _collect(self, view: HomeView, topic: str, topic_id: str) -> None:
        """Keeps what lies behind a MODE record for partitions that have not come there yet."""
        for number in self._ours(topic):
            partition = PartitionId(topic, number, topic_id)
            if not any(lane.follows(partition) for lane in self._lanes[view.journal]):
                view.collect(partition)

    def _read_from(self, home: Journal, start: HomeStart) -> None:
        if start.certain is None:
            return  # What is kept does.
        read_from, epochs = start.certain
        self._goes_back = True
        # What lies between can't be told to it any more.
        self._drop_lanes(
            lambda lane: (
                lane.is_idle
                and (lane.view.journal != home or lane.view.next_offset < read_from)
                and lane.view.journal[0] == home[0]
            )
        )
        if home in self._journals:
            self._journals[home].restart(read_from, epochs)
            return
        journals = self._journals
        for other in [h for h in journals if h[0] == home[0] and h not in self._lanes]:
            del journals[other]  # A journal that was created anew took its place.
        journals[home] = HomeJournal(read_from, epochs)
        for each in journals:
            self._trim(each)

    def _put_in_lanes(self, home: Journal, begun: list[tuple[Followed, Attachment]]) -> None:
        begun.sort(key=lambda item: item[1].offset)
        for followed, attachment in begun:
            self._lane_below(home, attachment.offset).add(followed, attachment)
        for lane in self._lanes[home]:
            here = lane.view.next_offset
            # A view that begins is not told the MODE record, which lies just below.
            there = [f for f in lane.attach_due() if 0 < f.start.mode_offset + 1 == here]
            for topic, topic_id in {(f.partition.topic, f.partition.topic_id) for f in there}:
                self._collect(lane.view, topic, topic_id)
        self._take_in(home)

    def _lane_below(self, home: Journal, offset: int) -> Lane:
        """Returns a lane that has not come past an offset; makes one if there is none."""
        lanes = self._lanes.setdefault(home, [])
        # One that went past is not rewound: its partitions were told what lies between.
        below = [lane for lane in lanes if lane.view.next_offset <= offset]
        if not below:
            below = [Lane(home, offset)]
            lanes += below
        return max(below, key=lambda lane: lane.view.next_offset)

    def _starts_of(self, group: list[Followed]) -> dict[PartitionId, Start]:
        # Only a reader that does not know what was placed before needs its log's start.
        asked = [f.key for f in group if f.start.passed is None]
        told = self._log.each_start_offset(asked, timeout_s=REQUEST_TIMEOUT_S) if asked else {}
        found = {}
        for followed in group:
            log_start = told.get(followed.key, 0)
            if not isinstance(log_start, int):
                raise log_start
            # The view must know it, too (trap 174).
            followed.start = replace(followed.start, log_start=log_start)
            found[followed.partition] = followed.start
        return found

    def _follow(self) -> JournalFollower | None:
        """Returns the follower, at the places where the homes are to be read on; None without."""
        places: dict[int, int] = {}
        for home in self._followed_homes():
            if not self._is_stuck(home):
                place = self._journals[home].next_offset
                places[home[0]] = min(place, places.get(home[0], place))
        if not places:
            return None
        follower = self._follower
        if follower is None:
            follower = self._follower = JournalFollower(self._log, places, self._settings)
        elif self._goes_back or places != follower.next_offsets:
            follower.move(places)
        self._goes_back = False
        return follower

    # ---- reading on -----------------------------------------------------------------------------

    def poll(self, ours: Callable[[str], Iterable[int]] = _none) -> bool:
        """Takes in what came of journals and answers, without waiting. Returns whether any did.

        Args:
            ours: returns the partitions of a topic that the consumer has, also those that have not
                come to where their home is followed.

        Raises:
            RecordsTrimmedError: a journal was trimmed where it is read: begin the partitions again.
        """
        self._ours = ours
        moved = self._begin_waiting()
        if not self._followed_homes():
            return moved
        moved = self._read() or moved
        for frontier, end in self._gates.answers():
            moved = True
            followed = frontier.who
            told = max(end, self._told.get(followed.home, 0))
            self._told[followed.home] = told
            lane = self._lane_of(followed)
            # No broker tells more than the true end, so the highest that is known counts.
            if lane is not None and followed.input is not None and not followed.input.has_gate:
                followed.input.gate(frontier.offset, max(told, lane.view.next_offset))
        if moved:
            self._moved_s = self._clock()
        if self._gates.is_free:
            self._gates.ask(self._frontiers())
        return moved

    @property
    def wait_s(self) -> float:
        """How long to wait for data, at most, before `poll` is called again."""
        if not self._gates.is_free:
            return EAGER_WAIT_S
        is_soon = self._clock() - self._moved_s < EAGER_S
        return EAGER_WAIT_S if is_soon and any(f.waits for f in self.followed()) else WAIT_S

    def await_answer(self, timeout_s: float) -> bool:
        """Waits for the answer of a gate, if one is on its way. `poll` takes it in.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether it waited.
        """
        if not self._gates.is_asking:
            return False
        self._gates.wait(timeout_s)
        return True

    def _lane_of(self, followed: Followed) -> Lane | None:
        for lane in self._lanes.get(followed.home, ()):
            if lane.attached.get(followed.partition) is followed:
                return lane
        return None

    def _frontiers(self) -> list[Frontier[Followed, int]]:
        found = []
        for followed in self.followed():
            offset = None if followed.input is None else followed.input.frontier()
            if offset is not None:
                # In a backlog one answer so lets all pass that exists, and not one batch.
                offset = max(offset, self._high_of(followed.key))
                found.append(Frontier(followed, followed.home[0], offset))
        return found

    def followed(self) -> list[Followed]:
        """Returns the partitions that are attached."""
        return [
            f for lanes in self._lanes.values() for lane in lanes for f in lane.attached.values()
        ]

    def _read(self) -> bool:
        if any(f.is_full for f in self.followed()) or self._has_enough():
            return False
        moved = False
        stuck = [home for home in self._lanes if self._is_stuck(home)]
        if stuck and self._clock() >= self._begin_at_s:
            for home in stuck:
                moved = self._take_in(home) or moved
        follower = self._follow()
        if follower is None:
            return moved
        try:
            entries = follower.poll()
        except RecordsTrimmedError:
            self._lose(follower.failed)
            raise
        except JournalError as error:
            # What was read before can still be delivered.
            if self.failure is None:
                _LOG.error("home_not_read_on error=%s", error)
            self.failure = error
            return moved
        by_partition = {p: list(g) for p, g in groupby(sorted(entries, key=_place), key=_number)}
        for home in self._lanes:
            upto = follower.next_offsets.get(home[0], -1)
            # What is stuck is not read on: there entries would be missing.
            if upto <= self._journals[home].next_offset or self._is_stuck(home):
                continue
            read = [(offset, entry) for _, offset, entry in by_partition.get(home[0], ())]
            self._journals[home].feed(read, upto)
            moved = self._take_in(home) or moved
        if not any(map(self._is_stuck, self._lanes)):
            self.failure = None
        return moved

    def _lose(self, partition: int | None) -> None:
        """Keeps nothing of the homes of a journal partition, or of all: its end may be lost, and
        then what was read there counts no more."""
        for home, journal in self._journals.items():
            if partition in (None, home[0]):
                journal.lose()
                for lane in self._lanes.get(home, ()):
                    lane.view.forget_ahead()

    def _has_enough(self) -> bool:
        """Returns whether reading waits, as too much is kept ahead. Drops it if nothing else is to
        be done meanwhile."""
        lanes = [lane for lanes in self._lanes.values() for lane in lanes]
        ahead = [lane for lane in lanes if lane.view.keeps_ahead]
        if sum(lane.view.ahead for lane in ahead) <= self._ahead_max:
            return False
        if not any(lane.due for lane in lanes) and all(f.lacks_place for f in self.followed()):
            return True
        ours = cache(lambda topic: frozenset(self._ours(topic)))
        for lane in ahead:
            lane.view.drop_ahead(
                self._ahead_max // len(ahead), lambda p: p.partition in ours(p.topic)
            )
        return False

    def _is_stuck(self, home: Journal) -> bool:
        """Returns whether a record of a home could not be taken in."""
        read_to = self._journals[home].next_offset
        return any(lane.view.next_offset < read_to for lane in self._lanes[home])

    def _take_in(self, home: Journal) -> bool:
        """Tells a home's lanes what they were not told yet. Returns whether there was anything."""
        lanes, journal = self._lanes[home], self._journals[home]
        before = [lane.view.next_offset for lane in lanes]
        for lane in lanes:
            try:
                self._tell(lane, journal)
            except LogtxError as error:
                self._begin_at_s = self._clock() + BEGIN_RETRY_S
                _LOG.warning("home_not_read_on partition=%d error=%s", home[0], error)
                if not _passes(error):
                    self.failure = error
        if before == [lane.view.next_offset for lane in lanes]:
            return False
        join(lanes)
        for followed in (f for lane in lanes for f in lane.attached.values()):
            if followed.input is not None:
                followed.input.advance()
        self._trim(home)
        return True

    def _trim(self, home: Journal) -> None:
        # One that could not take a record in is told that and what lies behind it again.
        told = [lane.view.next_offset for lane in self._lanes.get(home, ())]
        journal = self._journals[home]
        journal.trim(self._recent_max // len(self._journals), min([journal.next_offset, *told]))

    def _tell(self, lane: Lane, journal: HomeJournal) -> None:
        view, come_to = lane.view, lane.view.next_offset
        if come_to >= journal.next_offset:
            return
        try:
            for offset, said in journal.since(come_to):
                come_to = offset
                if lane.due:
                    lane.come_to(offset)
                self._say(view, offset, said)
            come_to = journal.next_offset
        finally:
            lane.come_to(come_to)
            view.read_to(come_to)

    def _say(self, view: HomeView, offset: int, said: Said) -> None:
        if said is None:
            view.begun(offset)
        elif isinstance(said, Decided):
            writes = said.writes if not said.further else self._writes(view, offset, said)
            view.committed(said.begin, offset, writes)
        elif isinstance(said, Placed):
            view.placed(said)
        elif isinstance(said, PrepareAbort):
            view.aborted(said.begin)
        elif isinstance(said, ModeChange):
            view.switched(offset, said)
            if said.phase is Phase.TO_METADATA:
                self._collect(view, said.topic, said.topic_id)
        else:
            view.adopted(offset, said)

    def _writes(self, view: HomeView, offset: int, decided: Decided) -> Sequence[HomeWrites]:
        # Not where it is marked: its parts may be trimmed by now, while the reader has not come to
        # the marker.
        marked = [each for each in decided.further if not each.placed]
        placed_further = [each.partition for each in decided.further if each.placed]
        if not any(map(view.follows, placed_further)):
            for partition in filter(view.has_ahead, placed_further):
                view.detach(partition)  # Nobody needs it yet, and what fails would stop all.
            return [*marked, *decided.writes]
        # A very large transaction is placed here: what it wrote is read again.
        placed = {w.partition.key for w in (*decided.writes, *decided.further) if w.placed}
        found = marked
        for each in self._starts.writes(view.journal, decided.begin, offset):
            partition = each.partition.identity
            found.append(HomeWrites(partition, each.branches, partition.key in placed))
        return found

    # ---- told -----------------------------------------------------------------------------------

    def stats(self) -> dict[str, float | int]:
        """Returns how long the last gate took, what waits, and how far reading is behind."""
        lag = 0
        for home, lanes in self._lanes.items():
            read = min(lane.view.next_offset for lane in lanes)
            lag += max(0, self._told.get(home, read) - read)
        return {
            "gate_ms": self._gates.last_ms,
            "held_for_horizon_records": sum(f.held_records for f in self.followed())
            + sum(f.held_records for f in self._waiting),
            "journal_lag_records": lag,
        }

    def close(self) -> None:
        """Ends the gates' thread, and closes the journal's consumer."""
        self._gates.close()
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()


def _passes(error: Exception) -> bool:
    return not isinstance(error, JournalError | TornTransactionError)


def _place(read: tuple[int, int, Entry]) -> tuple[int, int]:
    return read[0], read[1]


def _number(read: tuple[int, int, Entry]) -> int:
    return read[0]
