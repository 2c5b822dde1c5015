"""What a coordinator knows of data topics, from answers that may be old or contradict each other.

A broker answers from its own copy of the metadata. A broker that was cut off, paused or restarted
still tells of a topic's predecessor, of fewer partitions, or of no topic at all. Which broker is
asked can't be chosen. Therefore:

- What is believed changes at once only in a direction that no old answer can give: a topic has more
  partitions.
- A topic that was not known is used only when a second answer, `FIRST_CONFIRM_MS` later, names the
  same id: the first one may be about its predecessor. Markers would else be tied to a topic that is
  long gone, and be given up. What ties nothing to an id, as most commits, does not wait for that.
- A topic is another one (it was deleted and created again), or is gone, only when look-ups said so
  `LOOKS_MIN` times in a row, over at least `CONFIRM_MS`. One answer that says otherwise begins the
  count again. An old answer so never takes the place of a newer one (trap 12 has what would follow:
  markers of the living topic would be dropped, and a told commit be lost).
- While the answers do not agree, nothing that would be tied to the topic is decided. The client is
  told that nothing was done, and asks again.
- What is known is used when a look-up fails: neither a decision nor a marker needs the admin API as
  long as the topic's id was certain once. The id is compared again when the marker goes out.

Pure: the caller has the clock, and looks topics up, one look-up per topic at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from ...journal.control import TopicPartition
from ...journal.errors import (
    CoordinatorBusyError,
    LogtxError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from ...journal.records.types import DataPartition
from .decision import TopicFacts

FRESH_MS: Final = 10_000
"""Age up to which facts are used without a new look-up. With a larger value it takes longer until
commits notice that a topic was deleted and created again (trap 12)."""
RENEW_MS: Final = 5_000
"""Age from which facts in use are looked up again in the background, so that nobody waits."""
LOOKS_MIN: Final = 3
"""Look-ups in a row that must agree before a topic counts as gone, or as another one."""
CONFIRM_MS: Final = 5_000
"""Time over which they must agree. Longer than brokers usually need to learn of a change; a longer
one keeps markers of a topic that is really gone waiting, and the next ones in its partitions."""
ABSENT_CONFIRM_MS: Final = 1_000
"""How long look-ups must not find a topic or a partition, before a client is told that it does not
exist. Brokers learn of new ones one after the other. Shorter than `CONFIRM_MS`: nothing is lost."""
FIRST_CONFIRM_MS: Final = 250
"""How long a topic that was not known must have the same id before it is used. Brokers hear of a
change within that time, if they are not cut off; a longer one delays the first commit."""
AGAIN_MS: Final = 250
"""Shortest time between two look-ups of one topic; a shorter one asks the brokers more."""
GAP_MAX_MS: Final = 2_000
"""Look-ups further apart than this do not count as being in a row."""
RUNS_MAX: Final = 32
"""Different answers in a row that are remembered of a topic. With fewer, answers that alternate
could push out the evidence; more keep more memory."""
TOPICS_MAX: Final = 20_000
"""Topics remembered. Beyond it, those used longest ago are forgotten and looked up again."""


class Existence(Enum):
    """Whether the topic that a data partition was tied to still exists."""

    ALIVE = auto()
    GONE = auto()
    """Deleted, or deleted and created again: look-ups agreed on it for long enough."""
    DOUBTFUL = auto()
    """The latest look-ups say that it is gone, but not for long enough."""


@dataclass(slots=True)
class _Run:
    """Look-ups in a row that named the same topic."""

    topic_id: str | None
    """The id that was told; None: no such topic."""
    first_ms: int
    last_ms: int
    looks: int = 1


@dataclass(slots=True)
class _Topic:
    facts: TopicFacts | None = None
    """What is believed; None: it was never seen, or is confirmed to be gone."""
    agreed_ms: int | None = None
    """When an answer agreed with `facts` last."""
    certain: bool = False
    """Whether the id in `facts` is more than one answer that may be old."""
    runs: list[_Run] = field(default_factory=list)
    """The latest answers, oldest first."""
    unsupported: UnsupportedTopicError | None = None
    """Why it can't take markers, by the latest answer."""
    failure: LogtxError | None = None
    """Why the latest look-up got no answer; None if it got one."""
    failed_ms: int | None = None
    lacked_ms: int = 0
    """Since when commands name a topic or partition of it that is not known to exist."""
    lacked_last_ms: int = 0
    """When the latest such command was looked at."""
    asked_ms: int | None = None
    """When the look-up that is under way began; None if there is none."""
    as_of_ms: int = 0
    """When the look-up began that gave the latest answer: what happened since is not in it."""
    used_ms: int = 0

    @property
    def told_ms(self) -> int | None:
        """When the latest answer came."""
        return self.runs[-1].last_ms if self.runs else None

    @property
    def looking(self) -> bool:
        """Whether a look-up is under way."""
        return self.asked_ms is not None

    @property
    def is_doubted(self) -> bool:
        """Whether the latest answer names another topic than the one that is believed, or none."""
        if self.facts is None or not self.runs:
            return False
        latest = self.runs[-1].topic_id
        return latest is None or not _may_be_same(self.facts.topic_id, latest)

    def lacks(self, partition: int) -> bool:
        """Returns whether the partition does not exist, as far as is known."""
        return self.facts is None or partition >= self.facts.partition_count

    def is_confirmed_absent(self, now_ms: int) -> bool:
        """Returns whether what commands name was looked up for long enough, and just now."""
        told_ms = self.told_ms
        if told_ms is None or now_ms - told_ms > ABSENT_CONFIRM_MS:
            return False
        # Not `told_ms`: an answer that took long may be of before a partition was added.
        return self.as_of_ms >= self.lacked_ms + ABSENT_CONFIRM_MS


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
        self._topics: dict[str, _Topic] = {}
        self._suspects: set[str] = set()
        """Topics that are gone, or whose latest answer names another id than is believed."""

    # ---- what is asked of the log ---------------------------------------------------------------

    def are_fresh(
        self, partitions: Iterable[TopicPartition], now_ms: int, *, tied: bool = True
    ) -> bool:
        """Returns whether nothing need be looked up for `partitions`: the usual case, quickly.

        `tied` says, here and below, whether the command ties a partition to the topic's id, or has
        one that was tied before.
        """
        for name, partition in partitions:
            topic = self._topics.get(name)
            if topic is None or topic.agreed_ms is None or now_ms - topic.agreed_ms >= RENEW_MS:
                return False
            if (tied and not topic.certain) or topic.is_doubted or topic.unsupported is not None:
                return False
            if topic.lacks(partition):
                return False
        return True

    def needs(
        self,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        since_ms: int,
        *,
        tied: bool = True,
    ) -> Needs:
        """Returns which topics must be looked up for `partitions`, and which to wait for.

        Args:
            partitions: the data partitions that a command names.
            now_ms: monotonic time in milliseconds.
            since_ms: when the command came.
            tied: see `are_fresh`.
        """
        highest: dict[str, int] = {}
        for name, partition in partitions:
            if partition >= highest.get(name, 0):
                highest[name] = partition
        look_up, wait_for = set(), set()
        for name, partition in highest.items():
            topic = self._topic(name)
            topic.used_ms = now_ms
            waits = self._is_to_be_awaited(topic, partition, now_ms, since_ms, tied=tied)
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
        topic: _Topic, partition: int, now_ms: int, since_ms: int, *, tied: bool
    ) -> bool:
        if topic.failed_ms is not None and topic.failed_ms >= since_ms:
            return False  # A look-up was tried, and got no answer.
        if topic.is_doubted or (tied and topic.facts is not None and not topic.certain):
            return True
        told_ms = topic.told_ms
        if topic.unsupported is not None and (told_ms is None or told_ms < since_ms):
            return True  # Perhaps it was mended: a setting changed, or a right given.
        if topic.lacks(partition):
            # An answer of before may be of a broker that had not heard of it yet. Only the first of
            # many such commands waits.
            if now_ms - topic.lacked_last_ms > ABSENT_CONFIRM_MS:
                topic.lacked_ms = since_ms
            topic.lacked_last_ms = now_ms
            return not topic.is_confirmed_absent(now_ms)
        is_fresh = topic.agreed_ms is not None and topic.agreed_ms + FRESH_MS > since_ms
        return not is_fresh and (told_ms is None or told_ms < since_ms)

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
        *,
        certain: bool = False,
    ) -> None:
        """Takes the answer of a look-up.

        Args:
            topic: name of the topic.
            facts: what was told; None: there is no such topic.
            now_ms: monotonic time in milliseconds.
            unsupported: why the topic can't take markers; None if it can.
            certain: whether the answer can't be old: the log has one copy of its metadata.
        """
        known = self._topic(topic)
        known.as_of_ms = now_ms if known.asked_ms is None else known.asked_ms
        known.asked_ms, known.failure, known.failed_ms = None, None, None
        topic_id = None if facts is None else facts.topic_id
        _extend(known.runs, topic_id, now_ms)
        believed, known.unsupported = known.facts, unsupported
        if facts is not None:
            if believed is not None and _may_be_same(believed.topic_id, facts.topic_id):
                self._believe(topic, known, _joined(believed, facts), now_ms)
                known.certain = known.certain or certain or _is_first_confirmed(known)
                return
            if believed is None or not known.certain or certain:
                self._believe(topic, known, facts, now_ms)
                known.certain = certain or not facts.topic_id
                return
        if certain or _is_confirmed(known.runs[-1]):
            self._believe(topic, known, facts, now_ms)
        elif facts is not None:
            self._suspects.add(topic)
        else:
            self._suspects.discard(topic)

    def _believe(self, name: str, topic: _Topic, facts: TopicFacts | None, now_ms: int) -> None:
        topic.facts = facts
        if facts is None:
            topic.agreed_ms = None
            self._suspects.add(name)
            self.facts.pop(name, None)
        else:
            topic.agreed_ms = now_ms
            self._suspects.discard(name)
            self.facts[name] = facts

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= TOPICS_MAX:
                self._forget_oldest()
            topic = self._topics[name] = _Topic()
        return topic

    def _forget_oldest(self) -> None:
        by_use = sorted((t.used_ms, name) for name, t in self._topics.items() if not t.looking)
        for _, name in by_use[: max(1, TOPICS_MAX // 10)]:
            del self._topics[name]
            self._suspects.discard(name)
            self.facts.pop(name, None)

    # ---- what follows from it -------------------------------------------------------------------

    def refusal(
        self, partitions: Iterable[TopicPartition], now_ms: int, *, tied: bool = True
    ) -> LogtxError | None:
        """Returns why commands that name these partitions can't be decided; None if they can.

        Call it when nothing is left to wait for, or when waiting took too long. A retriable error
        means that nothing is certain, and that nothing was done.
        """
        for name, partition in partitions:
            topic = self._topic(name)
            if topic.unsupported is not None:
                return topic.unsupported
            if tied and topic.facts is not None and not topic.certain:
                return CoordinatorBusyError(
                    f"topic {name!r} was looked up only once: nothing was done, so ask again"
                )
            if topic.is_doubted:
                return CoordinatorBusyError(
                    f"brokers do not agree on topic {name!r}, as when it is deleted or created"
                    " again: nothing was done; ask again when they agree"
                )
            if not topic.lacks(partition):
                continue
            if topic.is_confirmed_absent(now_ms):
                if topic.facts is None:
                    return UnknownTopicError(f"there is no topic {name!r}")
                return UnknownTopicError(f"there is no partition {name}[{partition}]")
            why = f": {topic.failure}" if topic.failure is not None else ""
            return CoordinatorBusyError(
                f"topic {name!r} could not be looked up{why}; nothing was done, so ask again"
            )
        return None

    def existence(self, partition: DataPartition) -> Existence:
        """Returns whether the topic that a data partition was tied to still exists."""
        known = self._topics.get(partition.topic)
        if known is None or not known.runs:
            return Existence.ALIVE
        looks, behind_ms, last_ms = 0, known.runs[-1].last_ms, known.runs[-1].last_ms
        first_ms = last_ms
        for run in reversed(known.runs):
            found = run.topic_id is not None and _may_be_same(partition.topic_id, run.topic_id)
            if found or behind_ms - run.last_ms > GAP_MAX_MS:
                break
            looks, first_ms = looks + run.looks, run.first_ms
            behind_ms = run.first_ms
        if looks == 0:
            return Existence.ALIVE
        enough = looks >= LOOKS_MIN and last_ms - first_ms >= CONFIRM_MS
        return Existence.GONE if enough else Existence.DOUBTFUL

    def is_suspect(self, partition: DataPartition) -> bool:
        """Returns whether the latest answer, or what is believed, names another topic.

        `existence` then says more. This is cheap, for it is asked for each marker.
        """
        if partition.topic in self._suspects:
            return True
        facts = self.facts.get(partition.topic)
        return facts is not None and not _may_be_same(partition.topic_id, facts.topic_id)


def _may_be_same(one: str, other: str) -> bool:
    # A log may have no ids, also for some time: Kafka tells none until all brokers are upgraded.
    return one == other or not one or not other


def _joined(believed: TopicFacts, told: TopicFacts) -> TopicFacts:
    # No topic loses partitions: a broker that tells fewer did not hear of the new ones yet.
    return TopicFacts(
        topic_id=told.topic_id or believed.topic_id,
        partition_count=max(told.partition_count, believed.partition_count),
        record_max_bytes=told.record_max_bytes,
    )


def _extend(runs: list[_Run], topic_id: str | None, now_ms: int) -> None:
    latest = runs[-1] if runs else None
    if latest is None or latest.topic_id != topic_id or now_ms - latest.last_ms > GAP_MAX_MS:
        runs.append(_Run(topic_id, now_ms, now_ms))
        del runs[:-RUNS_MAX]
    else:
        latest.last_ms = now_ms
        latest.looks += 1


def _is_first_confirmed(topic: _Topic) -> bool:
    run = topic.runs[-1]
    return run.looks > 1 and run.last_ms - run.first_ms >= FIRST_CONFIRM_MS


def _is_confirmed(run: _Run) -> bool:
    return run.looks >= LOOKS_MIN and run.last_ms - run.first_ms >= CONFIRM_MS
