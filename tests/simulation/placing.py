"""What a simulated tenure places and publishes by: questions for ends that come late or fail.

`Placer`, `ModeRecords` and `ModesLanes` are the real ones. Played are
`coordinator/runtime/placing.py` (the questions for ends) and `coordinator/runtime/modes_topic.py`
(the writes of modes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from logtx.coordinator.core.decision import Instant, WriteModeRecords
from logtx.coordinator.core.modes import SWITCHING
from logtx.coordinator.core.modes_lanes import ModesLanes
from logtx.coordinator.core.placing import Question
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.core.topics import Existence
from logtx.journal.mode_registry import ModeKey, TopicModeRecord
from logtx.journal.places import GONE, PartitionId

from .history import ModesRecord
from .lanes import Markers
from .logs import Pipe
from .schedule import Party
from .setting import Setting

FAULTS_SHARE: Final = 0.2
"""Share of the questions that are answered late, and of the partitions that are left out."""
MODE_PAUSE_MS: Final = 10
"""Pause between two attempts to end a switch without mode records."""


class Placing:
    """The questions of one tenure."""

    def __init__(
        self,
        setting: Setting,
        coordinator: Party,
        tenure: Tenure,
        markers: Markers,
        now: Callable[[], Instant],
    ) -> None:
        """Asks nothing before `soon`."""
        self._setting = setting
        self._coordinator = coordinator
        self._tenure = tenure
        self._markers = markers
        self._now = now
        self._ahead: tuple[int, dict[str, str | None]] | None = None
        """BEGIN, topic → id when its commit was asked for."""

    def deciding(self, begin: int) -> None:
        """Asks for the ids of a transaction's topics before its decision is durable."""
        transaction = self._tenure.shard.transactions.get(begin)
        if transaction is None or transaction.since or not self._tenure.placer.is_idle:
            return
        topics = {topic for topic, _ in transaction.placed - transaction.handed.keys()}
        if topics:
            truth = {topic: self._setting.topology.truth.get(topic) for topic in topics}
            self._ahead = begin, {t: None if f is None else f.topic_id for t, f in truth.items()}

    def soon(self) -> None:
        """Begins the next round, if one can begin."""
        if self._tenure.placer.is_idle:
            return
        question = self._tenure.place_question(self._now().monotonic_ms)
        if question is not None:
            self._ask(question)

    def _ask(self, question: Question) -> None:
        setting = self._setting
        setting.history.counts["rounds of placing"] += 1
        ahead, self._ahead = self._ahead, None
        is_alone = ahead is not None and self._tenure.placer.waiting_begins == {ahead[0]}
        ids = ahead[1] if ahead is not None and is_alone else {}
        setting.history.counts["rounds of placing with ids told before"] += bool(ids)
        ends: dict[PartitionId, int] = {}
        asked_ms, told_ms = setting.chance.randint(1, 5), setting.chance.randint(1, 5)
        if self._happens("ends of partitions told late"):
            told_ms += setting.chance.randint(20, 300)

        def tell() -> None:
            self._tenure.ends_told(question, ends, self._now())
            self.soon()

        # Taken when the brokers answer, and not by the party: they go on while it stands still.
        setting.scheduler.after(asked_ms, lambda: ends.update(self._ends(question, ids)))
        self._coordinator.later(asked_ms + told_ms, tell)

    def _ends(self, question: Question, ids: Mapping[str, str | None]) -> dict[PartitionId, int]:
        found: dict[PartitionId, int] = {}
        now_ms = self._now().monotonic_ms
        for partition in question.partitions:
            match self._markers.known.existence(partition.topic, now_ms, partition.topic_id):
                case Existence.GONE:
                    found[partition] = GONE
                case Existence.DOUBTFUL:
                    self._look_up(partition.topic)
                case Existence.ALIVE:
                    topic = partition.topic
                    if topic not in self._setting.broker.topics or not self._is_its(partition, ids):
                        self._look_up(topic)
                    elif not self._happens("end of a partition not told"):
                        # It may be one of the past, as readers are told: too low (trap 63).
                        to = self._coordinator.name
                        found[partition] = self._setting.told_end(*partition.key, to)
        return found

    def _is_its(self, partition: PartitionId, ids: Mapping[str, str | None]) -> bool:
        """Returns whether a broker tells that the topic is the one that the decision names."""
        setting, topic = self._setting, partition.topic
        told, truth = setting.topology.answer(topic), setting.topology.truth.get(topic)
        if told != truth:
            setting.history.misled.append((self._coordinator.name, setting.now_ms))
        elif topic in ids:
            return ids[topic] == partition.topic_id
        return told is not None and told.topic_id == partition.topic_id

    def _happens(self, fault: str) -> bool:
        # Drawn only where something is placed: other histories are as they would be without it.
        if not self._setting.faults.on or self._setting.chance.random() >= FAULTS_SHARE:
            return False
        self._setting.history.counts[fault] += 1
        return True

    def _look_up(self, topic: str) -> None:
        self._coordinator.later(0, lambda: self._markers.look_up(topic))

    def end_switch(
        self, effect: WriteModeRecords, written: Mapping[int, int], since_ms: int | None = None
    ) -> None:
        """Tells the tenure the ends of a topic's partitions, until that has ended the switch."""
        setting, tenure, known = self._setting, self._tenure, self._markers.known
        began_ms = self._now().monotonic_ms if since_ms is None else since_ms
        facts = known.facts.get(effect.topic)
        confirmed = known.is_confirmed_since(effect.topic, began_ms)
        if tenure.over or tenure.quiescing:
            return
        if effect.topic in setting.broker.topics and facts is not None and confirmed:
            ends = {
                n: max(setting.told_end(effect.topic, n), written.get(n, -1) + 1)
                for n in range(facts.partition_count)
            }
            asked_ms = self._now().monotonic_ms
            if tenure.mode_ends(effect.topic, effect.topic_id, ends, asked_ms, asked_ms):
                return
        self._look_up(effect.topic)
        self._coordinator.later(MODE_PAUSE_MS, lambda: self.end_switch(effect, written, began_ms))


class Modes:
    """One coordinator's writes of modes: the `Shell` of its lanes."""

    def __init__(self, setting: Setting, coordinator: Party, resume: Callable[[int], None]) -> None:
        """Begins with nothing on its way. `resume` lets mode records of a journal partition go."""
        self._setting = setting
        self._coordinator = coordinator
        self._resume = resume
        self._pipe: Pipe | None = None
        self._told: set[tuple[str, int]] = set()
        """(topic, offset of its MODE record) of the switches that readers are told of."""
        self.lanes = ModesLanes(self)

    def is_told(self, topic: str, offset: int) -> bool:
        """Returns whether readers are told of a switch that is under way."""
        return (topic, offset) in self._told

    def publish(self, tenure: Tenure, topic: str) -> None:
        """Publishes a topic's mode, as `Serving._publish_mode` does."""
        shard = tenure.shard
        mode = shard.modes.get(topic)
        assert mode is not None, "a mode that is published was replayed"
        key = ModeKey(topic, shard.partition, shard.incarnation, shard.epoch)
        record = mode.published(topic, key.home)

        def written() -> None:
            now = shard.modes.get(topic)
            if record.phase in SWITCHING:
                self._told.add((topic, record.mode_offset))
                self._resume(shard.partition)
            elif now is not None and (now.phase, now.offset) == (record.phase, record.mode_offset):
                tenure.mode_published(topic)
            for epoch in () if tenure.over else shard.past_epochs:
                self._append(ModesRecord(replace(key, epoch=epoch), None), lambda _: None)

        self.lanes.write(key, record, written, self._setting.now_ms)

    def append(self, key: ModeKey, value: TopicModeRecord | None) -> None:
        """Writes a record."""

        def acknowledge(offset: int | None) -> None:
            self.lanes.answered(key, self._setting.now_ms, durable=offset is not None)

        self._append(ModesRecord(key, value), acknowledge)

    def _append(self, record: ModesRecord, acknowledge: Callable[[int | None], None]) -> None:
        log = self._setting.history.modes_log

        def land() -> int:
            log.append(replace(record, time_ms=self._setting.now_ms))
            return len(log) - 1

        if self._pipe is None:
            self._pipe = self._setting.pipe(self._coordinator, "offsets append")
        self._pipe.append(land, acknowledge)

    def wake_at(self, at_ms: int) -> None:
        """Ticks then."""
        delay_ms = max(0, at_ms - self._setting.now_ms)
        self._coordinator.later(delay_ms, lambda: self.lanes.tick(self._setting.now_ms))
