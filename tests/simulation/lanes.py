"""What a simulated coordinator's lanes act through: producers that stop, look-ups that come late.

`MarkerLanes`, `OffsetsLanes` and `TopicKnowledge` are the real ones. Played are
`coordinator/runtime/markers.py` (the producers), `coordinator/runtime/topics.py` (the look-ups) and
`coordinator/runtime/offsets_topic.py` (the writes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from logtx.coordinator.core import floors, lanes, offsets_lanes, placing, topic_ids, topics
from logtx.coordinator.core.decision import Instant, TopicFacts, WriteModeRecords, WriteOffsets
from logtx.coordinator.core.lane import Failure, Flow, Headers, Job, Producer
from logtx.coordinator.core.lanes import MarkerLanes
from logtx.coordinator.core.mode_records import ModeWrite
from logtx.coordinator.core.offsets_lanes import OffsetsKey, OffsetsLanes
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.core.topics import TopicKnowledge
from logtx.coordinator.core.transactions import TransactionMetadata
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.topic_news import TopicAges
from logtx.journal.control import TXCTL_HEADER, ModeRecord, TopicPartition, decode_control
from logtx.journal.errors import BrokerError, LogtxError
from logtx.journal.places import PartitionId
from logtx.journal.records.fate import NO_EPOCH
from logtx.journal.txid import TxId

from .history import OffsetsRecord
from .logs import Pipe
from .schedule import Party
from .setting import Setting

LEARN_MAX_MS: Final = 400
"""How long a command waits for look-ups, as `topics.WAIT_MAX_S`."""

QUICK: Final = (
    (lanes, "IN_FLIGHT_MAX", 3),  # with 1 none could overtake a failed one
    (lanes, "RETRY_MIN_MS", 10),
    (lanes, "RETRY_MAX_MS", 80),
    (lanes, "LOOK_PAUSE_MS", 20),
    (placing, "RETRY_MAX_MS", 20),
    (offsets_lanes, "RETRY_MS", 25),
    (offsets_lanes, "PAUSE_US_PER_PARTITION", 4_000),
    (topics, "FRESH_MS", 200),
    (topics, "RENEW_MS", 100),
    (topics, "CONFIRM_MS", 220),
    (topics, "ABSENT_CONFIRM_MS", 60),
    (topics, "AGAIN_MS", 12),
    (topics, "GAP_MAX_MS", 60),
    (floors, "LOOKS_APART_MS", 500),
    (topic_ids, "CLOCKS_MS", 1),
)
"""Module, constant, and its value while a history runs: it lasts one or two seconds, and brokers
are behind for up to `topology.BEHIND_MS`."""


@dataclass(slots=True, eq=False)
class _Playing:
    """One of a coordinator's marker producers."""

    gapless: bool
    pipes: dict[TopicPartition, Pipe] = field(default_factory=dict)
    stopped: bool = False
    """Whether it had a fatal error, and takes nothing any more."""
    cut: set[TopicPartition] = field(default_factory=set)
    """Partitions in which nothing lands any more: a marker was refused, or never sent."""
    met: set[TopicPartition] = field(default_factory=set)
    """Partitions whose leader has taken a marker of it."""
    on_way: Counter[TopicPartition] = field(default_factory=Counter)
    """Number of markers that are sent and not answered."""
    hung: dict[TopicPartition, list[Job]] = field(default_factory=dict)
    """Markers that get no answer until the producer is closed; those behind them wait too."""


class Markers:
    """One coordinator's producers and look-ups: the `Shell` of its lanes."""

    def __init__(self, setting: Setting, coordinator: Party, now: Callable[[], Instant]) -> None:
        """Begins with nothing on its way, and knows no topic; `now` is the coordinator's time."""
        self.known = TopicKnowledge()
        self._now = now
        self._setting = setting
        self._coordinator = coordinator
        self.lanes = MarkerLanes(self, self.known)
        self._producers = {
            Producer.SHARED: _Playing(gapless=True),
            Producer.CAREFUL: _Playing(gapless=False),
        }

    @property
    def _now_ms(self) -> int:
        return self._now().monotonic_ms

    def write(self, tenure: Tenure, transaction: TransactionMetadata) -> None:
        """Writes a decided transaction's markers; must be called in commit-sequence order."""
        shard = tenure.shard
        may_mark = tenure.may_mark
        self.lanes.write(transaction, shard.epoch, lambda: shard.hw, tenure.written, may_mark)

    def write_late(
        self, tenure: Tenure, transaction: TransactionMetadata, keys: Collection[TopicPartition]
    ) -> None:
        """Writes markers where a transaction was to be placed in a topic that is gone."""
        shard = tenure.shard
        may_mark = tenure.may_mark
        self.lanes.write_late(
            transaction, shard.epoch, lambda: shard.hw, tenure.written, may_mark, keys
        )

    def end_sidecars(
        self,
        tenure: Tenure,
        transaction: TransactionMetadata,
        places: Mapping[TopicPartition, int],
    ) -> None:
        """Writes markers to sidecars in whose main partitions a transaction has its place."""
        shard = tenure.shard
        self.lanes.end_sidecars(transaction, shard.epoch, lambda: shard.hw, tenure.written, places)
        self._setting.history.counts["sidecars ended at places"] += len(places)

    def write_mode(
        self, tenure: Tenure, effect: WriteModeRecords, is_told: Callable[[str, int], bool]
    ) -> None:
        """Writes a mode record to each partition of a topic, once readers are told of the switch,
        as `Serving._may_write_mode` says."""
        shard = tenure.shard
        txid = TxId(shard.partition, shard.incarnation, effect.offset)
        recorded = tenure.mode_recorded

        def may_mark(partition: PartitionId, sequence: int) -> bool:
            told = is_told(effect.topic, effect.offset)
            return told and tenure.may_mark(partition, sequence)

        self.lanes.write_mode(
            ModeWrite(txid, effect.topic, effect.topic_id, effect.places, may_mark, recorded)
        )

    def sweep(self) -> None:
        """Drops idle lanes, and fails those that get no answer; called now and then."""
        self.lanes.sweep()
        self.lanes.watch()

    # ---- what the lanes ask ---------------------------------------------------------------------

    def append(self, job: Job, headers: Headers, producer: Producer, flow: Flow) -> None:
        """Sends a marker."""
        setting, coordinator = self._setting, self._coordinator
        playing, key = self._producers[producer], job.partition.key
        full = flow.cut or setting.faults.happens("marker producer full", 0.05)
        if full or playing.stopped:
            flow.cut = True
            failure = Failure.FULL if full else Failure.STOPPED
            coordinator.later(0, lambda: self._not_written(job, failure))
            return
        hangs = playing.gapless and setting.faults.happens("marker producer hangs", 0.02)
        if hangs or key in playing.hung:
            playing.hung.setdefault(key, []).append(job)
            return
        pipe = playing.pipes.get(key)
        if pipe is None:
            pipe = playing.pipes[key] = setting.pipe(coordinator, "marker append")
        handed_at = setting.history.tick()
        why: list[Failure] = []
        playing.on_way[key] += 1
        overtaken = False

        def land() -> int | None:
            nonlocal overtaken
            # A leader takes the second batch of a producer that it has not met, after it has
            # refused the first one for a moment, and calls that one's repetition a duplicate
            # (trap 291).
            is_stranger = playing.gapless and key not in playing.met
            if is_stranger and playing.on_way[key] > 1 and setting.faults.overtakes():
                overtaken = True
                return None
            # Behind a refused marker the broker takes nothing of a gapless producer; and what a
            # stopped one had not sent yet, it drops.
            if key in playing.cut or (playing.stopped and setting.chance.random() < 0.5):
                playing.cut.add(key)
                return None
            offset = self._land(job, headers, handed_at)
            if offset is None:
                why.append(Failure.NO_TOPIC)
                stop()
            else:
                playing.met.add(key)
            return offset

        def refuse() -> None:
            kinds = Failure.REFUSED, Failure.TOO_LARGE, Failure.NO_TOPIC
            why.append(setting.chance.choice(kinds))
            stop()

        def stop() -> None:
            if playing.gapless:
                playing.stopped = True
                playing.cut.add(key)

        def acknowledge(offset: int | None) -> None:
            playing.on_way[key] -= 1
            if offset is not None or overtaken:
                self.lanes.written(job, self._now_ms, offset)
                return
            playing.stopped |= playing.gapless
            self._not_written(job, why[0] if why else Failure.STOPPED)

        pipe.append(land, acknowledge, refuse)

    def _land(self, job: Job, headers: Headers, handed_at: int) -> int | None:
        setting, name, key = self._setting, self._coordinator.name, job.partition.key
        offset = setting.broker.append_data(key, headers, None, name, handed_at)
        if offset is None:
            setting.note(name, f"{key} does not exist: {job.txid}")
            return None
        control = decode_control(dict(headers)[TXCTL_HEADER] or b"")
        setting.note(name, f"{key} offset {offset}: {job.txid}", control)
        if isinstance(control, ModeRecord):
            written = setting.history.mode_records
            written[key, job.txid] += 1
            setting.history.counts["mode records"] += 1
            setting.history.counts["mode record written twice"] += written[key, job.txid] > 1
        return offset

    def _not_written(self, job: Job, failure: Failure) -> None:
        self.lanes.not_written(job, failure, self._now_ms)

    def renew(self) -> None:
        """Takes another shared producer; the one before reports what it still has."""
        closed = self._producers[Producer.SHARED]
        self._producers[Producer.SHARED] = _Playing(gapless=True)
        for job in [job for jobs in closed.hung.values() for job in jobs]:
            self._coordinator.later(5, partial(self._not_written, job, Failure.STOPPED))

    def wake_at(self, at_ms: int) -> None:
        """Ticks then."""
        delay_ms = max(0, at_ms - self._now_ms)
        self._coordinator.later(delay_ms, lambda: self.lanes.tick(self._now_ms))

    def look_up(self, topic: str) -> None:
        """Looks a topic up."""
        if self.known.is_looking(topic):
            return
        self.known.began(topic, self._now_ms)
        setting = self._setting
        slow = setting.faults.happens("look-up of a topic slow", 0.1)
        asked_ms, told_ms = setting.chance.randint(1, 6), setting.chance.randint(1, 6)
        if setting.topology.is_about_to_grow:
            told_ms += 2 * topics.ABSENT_CONFIRM_MS
        if slow:
            told_ms += setting.chance.randint(20, 300)
        # Taken when a broker answers, and not by the party: brokers go on while it stands still.
        answers: list[tuple[TopicFacts | LogtxError | None, bool]] = []
        setting.scheduler.after(asked_ms, lambda: answers.append(self._answer_of_a_broker(topic)))
        self._coordinator.later(asked_ms + told_ms, lambda: self._told(topic, *answers[0]))

    def _answer_of_a_broker(self, topic: str) -> tuple[TopicFacts | LogtxError | None, bool]:
        """Returns what a broker tells, and whether it is behind."""
        setting = self._setting
        if setting.topology.is_silent or setting.faults.happens("look-up of a topic failed", 0.1):
            return BrokerError("no answer"), False
        answer = setting.topology.answer(topic)
        return answer, answer != setting.topology.truth.get(topic)

    def _told(self, topic: str, answer: TopicFacts | LogtxError | None, misled: bool) -> None:
        now_ms, history = self._now_ms, self._setting.history
        if misled:
            history.misled.append((self._coordinator.name, self._setting.now_ms))
        if isinstance(answer, LogtxError):
            self.known.failed(topic, answer, now_ms)
        else:
            self.known.told(topic, answer, now_ms)
            if answer is not None:
                who = self._coordinator.name_in_life
                history.heard.append((who, history.tick(), answer.topic_id))
        self.lanes.looked_up(topic, now_ms)

    def hear(self, ages: TopicAges) -> None:
        """Takes what another coordinator heard of topics."""
        self.known.hear(ages, self._now_ms)
        who, history = self._coordinator.name_in_life, self._setting.history
        for age_ms, topic_id in (each for ids in ages.values() for each in ids):
            since_ms = self._setting.now_ms - age_ms
            history.news.append((who, history.tick(), topic_id, since_ms))

    # ---- what commands need ---------------------------------------------------------------------

    def learn(
        self,
        partitions: Collection[TopicPartition],
        then: Callable[[LogtxError | None], None],
        unwritten: Collection[str] = (),
    ) -> None:
        """Looks up what a command needs, and calls `then` with what it can't be decided for.

        In topics of `unwritten` it writes no markers.
        """
        since_ms = self._now_ms

        def look() -> None:
            now_ms = self._now_ms
            if self.known.are_fresh(partitions, now_ms, unwritten):
                then(None)
                return
            needs = self.known.needs(partitions, now_ms, since_ms, unwritten)
            for topic in sorted(needs.look_up):
                self.look_up(topic)
            if needs.wait_for and now_ms - since_ms < LEARN_MAX_MS:
                self._coordinator.later(4, look)
            else:
                then(self.known.refusal(partitions, now_ms, unwritten))

        look()


class Offsets:
    """One coordinator's writes of IOVs: the `Shell` of its lanes."""

    def __init__(self, setting: Setting, coordinator: Party) -> None:
        """Begins with nothing on its way."""
        self._setting = setting
        self._coordinator = coordinator
        self._pipe = setting.pipe(coordinator, "offsets append")
        self.lanes = OffsetsLanes(self)

    def write(self, tenure: Tenure, effect: WriteOffsets) -> None:
        """Publishes a consumer group's IOV."""
        shard = tenure.shard
        key = OffsetsKey(effect.group, shard.partition, shard.incarnation, shard.epoch)

        def written() -> None:
            tenure.written(effect.begin)
            for epoch in shard.past_epochs if effect.begin == NO_EPOCH else ():
                self.clear(replace(key, epoch=epoch))

        self.lanes.write(key, effect.offsets, written, self._setting.now_ms)

    def append(self, key: OffsetsKey, offsets: commands.GroupOffsets | None) -> None:
        """Writes a record."""

        def acknowledge(offset: int | None) -> None:
            self.lanes.answered(key, self._setting.now_ms, durable=offset is not None)

        self._append(OffsetsRecord(key, offsets), acknowledge)

    def wake_at(self, at_ms: int) -> None:
        """Ticks then."""
        delay_ms = max(0, at_ms - self._setting.now_ms)
        self._coordinator.later(delay_ms, lambda: self.lanes.tick(self._setting.now_ms))

    def _append(self, record: OffsetsRecord, acknowledge: Callable[[int | None], None]) -> None:
        log = self._setting.history.offsets_log

        def land() -> int:
            log.append(record)
            return len(log) - 1

        self._pipe.append(land, acknowledge)

    def clear(self, key: OffsetsKey) -> None:
        """Removes what an earlier owner wrote."""
        self._append(OffsetsRecord(key, None), lambda _: None)
