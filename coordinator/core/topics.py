"""What a coordinator knows of data topics, from answers that may be old or contradict each other.

A broker answers from its own copy of the metadata. A broker that was cut off, paused or restarted
still tells of a topic's predecessor, of fewer partitions, or of no topic at all. Which broker is
asked can't be chosen. Therefore:

- That there is no such topic is believed only when look-ups said so `LOOKS_MIN` times in a row,
  over at least `CONFIRM_MS`. One answer that tells of a topic begins the count again. The markers
  of a topic that is gone are given up: one that is given up though its topic lives would lose a
  commit that was told (trap 12).
- Which topic has the name is believed at once, for nothing is lost by an old answer. A marker goes
  to the topic that has the name. It states the id of the topic that its records are in, as far as
  it is known here. A reader that finds the records delivers them, whatever the marker states; if
  they are missing, the id tells whether they were in another topic of that name.
- A topic has the most partitions that any answer told of it.
- While the latest answer finds no topic, nothing is decided that would write there. The client is
  told that nothing was done, and asks again.
- What is known is used when a look-up fails: neither a decision nor a marker needs the admin API.

Pure: the caller has the clock, and looks topics up, one look-up per topic at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from ...journal.control import TopicPartition
from ...journal.errors import (
    CoordinatorBusyError,
    LogtxError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from ..protocol.topic_news import TopicAges
from .decision import TopicFacts
from .topic_ids import TopicIds

FRESH_MS: Final = 10_000
"""Age up to which facts are used without a new look-up. With a larger value it takes longer until
commits notice that a topic was deleted and created again (trap 12)."""
RENEW_MS: Final = 5_000
"""Age from which facts in use are looked up again in the background, so that nobody waits."""
LOOKS_MIN: Final = 3
"""Look-ups in a row that must find no topic before it counts as gone."""
CONFIRM_MS: Final = 5_000
"""Time over which they must find none. Longer than brokers usually need to learn of a change; a
longer one keeps markers of a topic that is really gone waiting, and the next ones in its
partitions."""
ABSENT_CONFIRM_MS: Final = 1_000
"""How long look-ups must not find a topic or a partition, before a client is told that it does not
exist. Brokers learn of new ones one after the other. Shorter than `CONFIRM_MS`: nothing is lost."""
AGAIN_MS: Final = 250
"""Shortest time between two look-ups of one topic; a shorter one asks the brokers more."""
GAP_MAX_MS: Final = 2_000
"""A look-up that is asked for longer than this after an answer does not follow that in a row. One
that takes longer is slow: it tells of one moment of that time, and hides the rest."""
SLOW_MIN: Final = 4
"""Slow look-ups in a row after which it counts no more what they hide. Each of them would have to
come to a broker that is behind. With more, a topic that is gone holds its markers up for longer
where all look-ups are slow."""
LACKED_MAX: Final = 64
"""Missing partitions of a topic that are remembered. A command that names one more waits longer."""
TOPICS_MAX: Final = 20_000
"""Topics remembered. Beyond it, those used longest ago are forgotten and looked up again."""


class Existence(Enum):
    """Whether there is a topic of a data partition's name."""

    ALIVE = auto()
    GONE = auto()
    """There is none: look-ups agreed on it for long enough."""
    DOUBTFUL = auto()
    """The latest look-ups found none, but not for long enough."""


@dataclass(slots=True)
class _Lacked:
    """A partition that commands name, and that is not known to exist."""

    since_ms: int
    """When the first such command came."""
    last_ms: int = 0
    """When the latest one was looked at."""


@dataclass(slots=True)
class _Streak:
    """Answers in a row that say the same."""

    since_ms: int | None = None
    """When the first of them came; None: there is none."""
    looks: int = 0
    """Number of the answers."""
    slow: int = 0
    """Number of slow look-ups behind the first."""
    hidden_ms: int = 0
    """How long the slow ones took between the first and the latest. One broker that was paused
    within a look-up may have given both answers beside it, while all others knew better."""
    _latest_ms: int = 0

    def add(self, asked_ms: int, now_ms: int) -> None:
        """Adds an answer, with the time of its question."""
        self.looks += 1
        if self.since_ms is None:
            self.since_ms = now_ms
            return
        self.hidden_ms += self._latest_ms
        is_slow = now_ms - asked_ms > GAP_MAX_MS
        self.slow += is_slow
        self._latest_ms = is_slow * (now_ms - asked_ms)

    def lasts(self, as_of_ms: int, from_ms: int = 0) -> bool:
        """Returns whether the answers agreed for long enough; the latest is as of `as_of_ms`.

        Those before `from_ms` don't count.
        """
        if self.since_ms is None or self.looks < LOOKS_MIN:
            return False
        # Not up to the latest answer: that may be as old as its question.
        hidden_ms = self.hidden_ms if self.slow < SLOW_MIN else 0
        return as_of_ms - max(self.since_ms, from_ms) - hidden_ms >= CONFIRM_MS


@dataclass(slots=True)
class _Topic:
    facts: TopicFacts | None = None
    """What is believed; None: it was never seen, or is confirmed to be gone."""
    agreed_ms: int | None = None
    """When a look-up found it last; None if it is not believed to exist."""
    told_ms: int | None = None
    """When the latest answer came."""
    misses: _Streak = field(default_factory=_Streak)
    """Answers in a row that found no such topic."""
    unsupported: UnsupportedTopicError | None = None
    """Why it can't be used for transactions, by the latest answer."""
    unwritable: UnsupportedTopicError | None = None
    """Why markers can't be written there, by the latest answer. What is placed needs none."""
    failure: LogtxError | None = None
    """Why the latest look-up got no answer; None if it got one."""
    failed_ms: int | None = None
    lacked: dict[int, _Lacked] = field(default_factory=dict)
    """Partitions that commands name, and that are not known to exist."""
    asked_ms: int | None = None
    """When the look-up that is under way began; None if there is none."""
    as_of_ms: int = 0
    """When the look-up began that gave the latest answer: what happened since is not in it."""
    used_ms: int = 0
    is_certain: bool = False
    """Whether the latest answer can't be old."""
    holder: str = ""
    """Id of the topic that the latest answer which found one told of."""
    tells: _Streak = field(default_factory=_Streak)
    """Answers in a row that told of it."""
    settled: str = ""
    """Id of the topic that answers told of for long enough; until then of the first that was told,
    or of the one that a journal says is in metadata mode."""
    is_settled: bool = False
    """Whether answers told of it for long enough."""

    @property
    def looking(self) -> bool:
        """Whether a look-up is under way."""
        return self.asked_ms is not None

    def refused(self, *, unwritten: bool) -> UnsupportedTopicError | None:
        """Returns why it can't be used.

        Args:
            unwritten: whether nothing will be written there.
        """
        return self.unsupported if unwritten else self.unwritable or self.unsupported

    @property
    def is_missed(self) -> bool:
        """Whether the latest answer did not find it."""
        return self.misses.looks > 0

    @property
    def is_doubted(self) -> bool:
        """Whether it is believed to exist, and the latest answer did not find it."""
        return self.facts is not None and self.is_missed

    def is_gone(self, from_ms: int = 0) -> bool:
        """Returns whether look-ups found no such topic for long enough, from this time on."""
        return self.misses.lasts(self.as_of_ms, from_ms)

    def lacks(self, partition: int) -> bool:
        """Returns whether the partition does not exist, as far as is known."""
        return self.facts is None or partition >= self.facts.partition_count

    @property
    def is_contested(self) -> bool:
        """Whether the latest answer told of another topic than answers did for long before. Either
        the topic was created anew, or that broker is behind."""
        return not may_be_same(self.settled, self.holder)

    def note_lacked(self, partition: int, since_ms: int, now_ms: int) -> None:
        """Notes that a command of `since_ms` names a partition that is not known to exist."""
        lacked = self.lacked.get(partition)
        if lacked is None or now_ms - lacked.last_ms > ABSENT_CONFIRM_MS:
            self.lacked.pop(partition, None)
            if len(self.lacked) >= LACKED_MAX:
                del self.lacked[min(self.lacked, key=lambda p: self.lacked[p].last_ms)]
            lacked = self.lacked[partition] = _Lacked(since_ms)
        lacked.last_ms = now_ms

    def is_confirmed_absent(self, partition: int, now_ms: int) -> bool:
        """Returns whether a partition was looked up for long enough, and just now."""
        lacked = self.lacked.get(partition)
        if lacked is None or self.told_ms is None or now_ms - self.told_ms > ABSENT_CONFIRM_MS:
            return False
        # Not `told_ms`: an answer that took long may be of before a partition was added. And each
        # partition by itself: one that was named before may have been missing for longer.
        return self.as_of_ms >= lacked.since_ms + ABSENT_CONFIRM_MS

    @property
    def is_held(self) -> bool:
        """Whether look-ups told of the same topic for long enough."""
        return self.tells.lasts(self.as_of_ms)

    @property
    def _is_behind_a_gap(self) -> bool:
        # Up to the question, not the answer: where look-ups are slow, none would follow another.
        return self.as_of_ms - (self.told_ms or 0) > GAP_MAX_MS

    def note_holder(self, topic_id: str, now_ms: int) -> None:
        """Notes which topic an answer told of. Call it before `note`."""
        if topic_id != self.holder or self._is_behind_a_gap:
            self.holder, self.tells = topic_id, _Streak()
        self.tells.add(self.as_of_ms, now_ms)
        if not self.settled:
            self.settled = topic_id

    def note(self, *, found: bool, now_ms: int) -> None:
        """Notes whether a look-up found the topic."""
        if found or self._is_behind_a_gap:
            self.misses = _Streak()
        if not found:
            self.misses.add(self.as_of_ms, now_ms)
        self.told_ms = now_ms


@dataclass(frozen=True, slots=True)
class Needs:
    """What must happen before commands that name some partitions can be decided."""

    look_up: frozenset[str] = frozenset()
    """Topics to look up now: none is being looked up already."""
    wait_for: frozenset[str] = frozenset()
    """Topics whose answer must be awaited. Others may be decided on what is known."""


class TopicKnowledge:
    """What is known about data topics, shared by all journal partitions of a coordinator."""

    def __init__(self) -> None:
        self.facts: dict[str, TopicFacts] = {}
        """Data topic → what is believed of it. Others hold this object: it is only changed here."""
        self.ids = TopicIds()
        """The topics that had each name. Call `hear` with what others tell."""
        self._topics: dict[str, _Topic] = {}

    # ---- what is asked of the log ---------------------------------------------------------------

    def are_fresh(
        self,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        unwritten: Collection[str] = (),
    ) -> bool:
        """Returns whether nothing need be looked up for `partitions`: the usual case, quickly.

        The arguments are those of `needs`.
        """
        for name, partition in _highest(partitions).items():
            topic = self._topics.get(name)
            if topic is None or topic.agreed_ms is None or now_ms - topic.agreed_ms >= RENEW_MS:
                return False
            if topic.is_doubted or topic.unsupported is not None:
                return False
            if topic.is_contested and name in unwritten:
                return False
            if topic.unwritable is not None and name not in unwritten:
                return False
            if topic.lacks(partition):
                return False
        return True

    def needs(
        self,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        since_ms: int,
        unwritten: Collection[str] = (),
    ) -> Needs:
        """Returns which topics must be looked up for `partitions`, and which to wait for.

        Args:
            partitions: the data partitions that a command names.
            now_ms: monotonic time in milliseconds.
            since_ms: when the command came.
            unwritten: topics to which nothing will be written for the command.
        """
        look_up, wait_for = set(), set()
        for name, partition in _highest(partitions).items():
            topic = self._topic(name)
            topic.used_ms = now_ms
            refused = topic.refused(unwritten=name in unwritten) is not None
            waits = self._is_to_be_awaited(
                topic, partition, now_ms, since_ms, refused=refused, placed=name in unwritten
            )
            if waits:
                wait_for.add(name)
            is_old = topic.agreed_ms is None or now_ms - topic.agreed_ms >= RENEW_MS
            if (waits or is_old) and self._may_look_up(topic, now_ms):
                look_up.add(name)
        return Needs(frozenset(look_up), frozenset(wait_for))

    @staticmethod
    def _may_look_up(topic: _Topic, now_ms: int) -> bool:
        asked_ms = max(topic.told_ms or 0, topic.failed_ms or 0)
        return not topic.looking and (asked_ms == 0 or now_ms - asked_ms >= AGAIN_MS)

    @staticmethod
    def _is_to_be_awaited(
        topic: _Topic,
        partition: int,
        now_ms: int,
        since_ms: int,
        *,
        refused: bool,
        placed: bool,
    ) -> bool:
        if topic.failed_ms is not None and topic.failed_ms >= since_ms:
            return False  # A look-up was tried, and got no answer.
        if topic.is_doubted or (placed and topic.is_contested):
            return True
        told_ms = topic.told_ms
        if refused and (told_ms is None or told_ms < since_ms):
            return True  # Perhaps it was mended: a setting changed, or a right given.
        if topic.lacks(partition):
            # An answer of before may be of a broker that had not heard of it yet. Only the first of
            # many such commands waits.
            topic.note_lacked(partition, since_ms, now_ms)
            return not topic.is_confirmed_absent(partition, now_ms)
        is_fresh = topic.agreed_ms is not None and topic.agreed_ms + FRESH_MS > since_ms
        return not is_fresh and (told_ms is None or told_ms < since_ms)

    def assume(self, topic: str, topic_id: str) -> None:
        """Learns that a topic of this name and id is in metadata mode, as a journal says."""
        known = self._topic(topic)
        if not known.is_settled:
            known.settled = topic_id

    def began(self, topic: str, now_ms: int) -> None:
        """Notes that a look-up of a topic is under way. `told` or `failed` must follow."""
        self._topic(topic).asked_ms = now_ms

    def is_looking(self, topic: str) -> bool:
        """Returns whether a look-up of the topic is under way."""
        known = self._topics.get(topic)
        return known is not None and known.looking

    def failed(self, topic: str, error: LogtxError, now_ms: int) -> None:
        """Notes that a look-up got no answer. It says nothing about the topic.

        An `UnsupportedTopicError` says that the topic can't be used, whatever is known of it.
        """
        known = self._topic(topic)
        known.asked_ms, known.failure, known.failed_ms = None, error, now_ms
        if isinstance(error, UnsupportedTopicError):
            known.unsupported = error

    def told(
        self,
        topic: str,
        facts: TopicFacts | None,
        now_ms: int,
        unsupported: UnsupportedTopicError | None = None,
        unwritable: UnsupportedTopicError | None = None,
        *,
        certain: bool = False,
    ) -> None:
        """Takes the answer of a look-up.

        Args:
            topic: name of the topic.
            facts: what was told; None: there is no such topic.
            now_ms: monotonic time in milliseconds.
            unsupported: why the topic can't be used for transactions; None if it can.
            unwritable: why markers can't be written there; None if they can.
            certain: whether the answer can't be old: the log has one copy of its metadata.
        """
        known = self._topic(topic)
        known.as_of_ms = now_ms if known.asked_ms is None else known.asked_ms
        known.asked_ms, known.failure, known.failed_ms = None, None, None
        known.unsupported, known.unwritable = unsupported, unwritable
        if facts is not None:
            known.note_holder(facts.topic_id, now_ms)
        known.note(found=facts is not None, now_ms=now_ms)
        known.is_certain = certain
        if facts is not None and (certain or known.is_held):
            known.settled, known.is_settled = facts.topic_id, True
        if facts is not None:
            before = known.facts
            if before is not None and may_be_same(before.topic_id, facts.topic_id):
                facts = _joined(before, facts)
            told = self.ids.note(topic, facts.topic_id, now_ms)
            is_settled = known.is_settled and not known.is_contested
            facts = replace(facts, told=told, is_settled=is_settled)
            known.facts = self.facts[topic] = facts
            known.agreed_ms = now_ms
        elif certain or known.is_gone():
            known.facts = known.agreed_ms = None
            self.facts.pop(topic, None)

    def tell(self, told: int, now_ms: int) -> tuple[TopicAges, int]:
        """Returns what to tell another coordinator of: see `TopicIds.since`."""
        return self.ids.since(told, now_ms)

    def hear(self, ages: TopicAges, now_ms: int) -> None:
        """Learns from another coordinator which topics had some names before.

        It says nothing about the topics that there are.

        Args:
            ages: what it heard.
            now_ms: monotonic time in milliseconds.
        """
        for topic in ages:
            self._topic(topic)  # What nobody asks for is forgotten first.
        for topic in self.ids.hear(ages, now_ms):
            facts, ids = self.facts.get(topic), self.ids.of(topic)
            if facts is not None and len(ids) > 1:
                facts = replace(facts, told=ids)
                self._topics[topic].facts = self.facts[topic] = facts

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= TOPICS_MAX:
                self._forget_oldest()
            topic = self._topics[name] = _Topic()
        return topic

    def _forget_oldest(self) -> None:
        by_use = sorted((t.used_ms, name) for name, t in self._topics.items() if not t.looking)
        forgotten = [name for _, name in by_use[: max(1, TOPICS_MAX // 10)]]
        for name in forgotten:
            del self._topics[name]
            self.facts.pop(name, None)
        self.ids.forget(forgotten)

    # ---- what follows from it -------------------------------------------------------------------

    def refusal(
        self,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        unwritten: Collection[str] = (),
    ) -> LogtxError | None:
        """Returns why commands that name these partitions can't be decided; None if they can.

        Call it when nothing is left to wait for, or when waiting took too long. A retriable error
        means that nothing is certain, and that nothing was done.
        """
        for name, partition in _highest(partitions).items():
            topic = self._topic(name)
            refused = topic.refused(unwritten=name in unwritten)
            if refused is not None:
                return refused
            # What is placed is placed under an id. Under that of a former topic it would be marked,
            # and the marker come in no order with the places of this one (trap 79).
            if topic.is_doubted or (topic.is_contested and name in unwritten):
                return disagreement(name)
            if not topic.lacks(partition):
                continue
            if topic.is_confirmed_absent(partition, now_ms):
                if topic.facts is None:
                    return UnknownTopicError(f"there is no topic {name!r}")
                return UnknownTopicError(f"there is no partition {name}[{partition}]")
            why = f": {topic.failure}" if topic.failure is not None else ""
            return CoordinatorBusyError(
                f"topic {name!r} could not be looked up{why}; nothing was done, so ask again"
            )
        return None

    def is_contested(self, topic: str) -> bool:
        """Returns whether the latest answer told of another topic of this name than answers did for
        long before."""
        known = self._topics.get(topic)
        return known is not None and known.is_contested

    def is_missing(self, topic: str) -> bool:
        """Returns whether the latest look-up found no such topic, and it is not believed to exist.

        Cheap: it is asked for each marker.
        """
        if topic in self.facts:
            return False  # It gets its markers while one broker does not know it.
        known = self._topics.get(topic)
        return known is not None and known.is_missed

    def is_certain(self, topic: str) -> bool:
        """Returns whether no answer about the topic can be old, by the latest look-up."""
        known = self._topics.get(topic)
        return known is not None and known.is_certain

    def had_others(self, topic: str, topic_id: str) -> bool:
        """Returns whether a topic of another id had the name lately, as far as was heard."""
        return any(each != topic_id for _, each in self.ids.of(topic))

    def is_told_since(self, topic: str, since_ms: int) -> bool:
        """Returns whether the latest answer found the topic, by a look-up that began at `since_ms`
        or later."""
        known = self._topics.get(topic)
        if known is None or known.told_ms is None or known.is_missed:
            return False
        return known.as_of_ms >= since_ms

    def is_confirmed_since(self, topic: str, since_ms: int) -> bool:
        """Returns whether all partitions are known that the topic had at `since_ms`.

        A broker that is behind tells fewer. None is for `CONFIRM_MS`.
        """
        known = self._topics.get(topic)
        pause_ms = 0 if known is not None and known.is_certain else CONFIRM_MS
        return self.is_told_since(topic, since_ms + pause_ms)

    def is_agreed(self, topic: str) -> bool:
        """Returns whether look-ups told for long enough of one and the same topic of this name."""
        known = self._topics.get(topic)
        if known is None or known.facts is None or known.is_missed:
            return False
        return known.is_certain or known.is_held

    def existence(self, topic: str, now_ms: int, topic_id: str = "", from_ms: int = 0) -> Existence:
        """Returns whether there is a topic of this name, by look-ups up to this time.

        What they found long ago proves nothing: the topic may have been created since.

        Args:
            topic: its name.
            now_ms: monotonic time in milliseconds.
            topic_id: the id of the topic that is meant; "" if any topic of the name counts. Another
                one that has the name proves that it is gone, if look-ups agree for as long.
            from_ms: look-ups that found none before this time don't count. What was decided since
                may be of a topic that was created since.
        """
        known = self._topics.get(topic)
        if known is None:
            return Existence.ALIVE
        is_recent = known.told_ms is not None and now_ms - known.told_ms <= GAP_MAX_MS
        if known.is_missed:
            return Existence.GONE if known.is_gone(from_ms) and is_recent else Existence.DOUBTFUL
        if not topic_id or may_be_same(known.holder, topic_id):
            return Existence.ALIVE
        return Existence.GONE if known.is_held and is_recent else Existence.DOUBTFUL


def _highest(partitions: Iterable[TopicPartition]) -> dict[str, int]:
    # A topic's partitions are numbered without gaps: if the highest exists, all others do.
    named = [*partitions]
    if len({name for name, _ in named}) == 1:  # nearly always
        name, highest_of_it = max(named)
        return {name: highest_of_it}
    highest: dict[str, int] = {}
    for name, partition in named:
        if partition >= highest.get(name, 0):
            highest[name] = partition
    return highest


def disagreement(topic: str) -> CoordinatorBusyError:
    """Returns why nothing can be decided about a topic for now."""
    return CoordinatorBusyError(
        f"brokers do not agree on topic {topic!r}, as when it is deleted or created"
        " again: nothing was done; ask again when they agree"
    )


def may_be_same(one: str, other: str) -> bool:
    """Returns whether two topic ids may be of one topic."""
    # A log may have no ids, also for some time: Kafka tells none until all brokers are upgraded.
    return one == other or not one or not other


def _joined(believed: TopicFacts, told: TopicFacts) -> TopicFacts:
    # No topic loses partitions: a broker that tells fewer did not hear of the new ones yet.
    return TopicFacts(
        topic_id=told.topic_id or believed.topic_id,
        partition_count=max(told.partition_count, believed.partition_count),
        record_max_bytes=told.record_max_bytes,
    )
