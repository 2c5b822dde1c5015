"""What a simulated consumer follows homes through: the log as it sees it, and its gates.

`Following`, `Homes`, `HomeStarts` and `Registry` are the real ones. Played are `consumer/gates.py`
(the thread that asks for ends) and `consumer/topic_ids.py` (the time until an id is believed).

Each party reads one partition. Several may share one `PlayedFollowing`, as the partitions of one
`Consumer` do: then they follow homes by the same views, come and go one by one, and turn one by one
at mode records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, Generic, Protocol, cast

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer.assigned import Assigned
from logtx.consumer.config import ConsumerConfig, IsolationLevel
from logtx.consumer.core.before_sidecar import BeforeSidecar
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.pending import Record as CoreRecord
from logtx.consumer.core.shared import Shared
from logtx.consumer.followed import Followed
from logtx.consumer.following import Following
from logtx.consumer.gates import Frontier, K, Passed, T, V
from logtx.consumer.topic_ids import TopicIds
from logtx.journal.control import TopicPartition
from logtx.journal.logs.interface import Log
from logtx.journal.mode_registry import encode_key, encode_value
from logtx.journal.modes import MODES_TOPIC
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.sidecar import sidecar_of

from .logs import EventMessage, LogReader, LogView
from .schedule import Party
from .setting import Setting

CONFIG: Final = cast(
    ConsumerConfig,
    SimpleNamespace(
        isolation_level=IsolationLevel.READ_COMMITTED, torn_reset=None, librdkafka_quiet={}
    ),
)
"""What of a consumer's settings counts here."""
UNCOMMITTED: Final = cast(
    ConsumerConfig,
    SimpleNamespace(
        isolation_level=IsolationLevel.READ_UNCOMMITTED, torn_reset=None, librdkafka_quiet={}
    ),
)
"""The same of readers of uncommitted records."""
GATE_FAULTS: Final = 0.05
"""Share of the questions for a home's end that are answered late, and of those that fail."""
SIDECAR_LATE_SHARE: Final = 0.5
SIDECAR_LATE_MS: Final = 900
"""Share of the questions for a sidecar that are answered late, and by how much at most: it is
opened once in a history."""


class MemoryStore:
    """A `SpillStore` without a disk."""

    def __init__(self) -> None:
        """Empty."""
        self.spilled_bytes = 0
        self._runs: dict[int, list[CoreRecord]] = {}
        self._next = 0

    def append(self, run: int | None, owner: TopicPartition, records: Sequence[CoreRecord]) -> int:
        """Append to a run, or begin one."""
        del owner
        if run is None:
            run, self._next = self._next, self._next + 1
        self._runs.setdefault(run, []).extend(records)
        self.spilled_bytes += sum(map(len, records))
        return run

    def read(self, run: int) -> Iterator[CoreRecord]:
        """A run's records."""
        yield from self._runs[run]

    def delete(self, run: int) -> None:
        """Drop a run."""
        del self._runs[run]


class ReadersLog(LogView):
    """The `Log` of a consumer that follows homes: former leaders answer it, too."""

    def __init__(self, setting: Setting, readers: Callable[[], list[str]]) -> None:
        """Answers at once; `readers` names who is told."""
        super().__init__(setting.broker)
        self._setting = setting
        self._readers = readers

    def partition_count(self, topic: str, *, timeout_s: float = 10) -> int:
        """Returns that there is a topic for modes."""
        del timeout_s
        assert topic == MODES_TOPIC
        return 1

    def start_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the start of a partition, as a broker tells it."""
        del timeout_s
        if topic == JOURNAL_TOPIC:
            return self._setting.told_start(partition)
        return 0 if topic == MODES_TOPIC else super().start_offset(topic, partition)

    def end_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the end of a partition, as a broker tells it."""
        del timeout_s
        if topic == MODES_TOPIC:
            return told_to_all(self._setting, topic, partition, self._readers())
        return self._setting.told_end(topic, partition)

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float = 10) -> dict[str, str]:
        """Returns topic → id, of those that exist."""
        del timeout_s
        truth = self._setting.topology.truth
        return {topic: truth[topic].topic_id for topic in topics if topic in truth}

    def consumer(self, config: object) -> LogReader:
        """Returns a reader; a follower of homes, if that is what it is to be."""
        del config
        return HomeReader(self._setting, self._messages)

    def _messages(self, topic: str, partition: int) -> Sequence[Any]:
        if topic == MODES_TOPIC:
            return [Message(i, r) for i, r in enumerate(self._setting.history.modes_log)]
        return super()._messages(topic, partition)


class Message:
    """A record of `__transaction_topics` as a message."""

    def __init__(self, offset: int, record: Any) -> None:
        """Encodes it."""
        self._offset, self._record = offset, record

    def key(self) -> bytes:
        """The key."""
        return encode_key(self._record.key)

    def value(self) -> bytes | None:
        """The value; None removes the key."""
        value = self._record.value
        return None if value is None else encode_value(value)

    def offset(self) -> int:
        """Offset."""
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """When it landed."""
        return 1, cast(int, self._record.time_ms)

    def error(self) -> None:
        """Returns None: a record is not an event."""


def told_to_all(setting: Setting, topic: str, partition: int, readers: Sequence[str]) -> int:
    """Returns the end of a partition, as a broker tells it to the consumer of these readers."""
    # At one moment, all are told the same.
    told = [setting.told_end(topic, partition, reader) for reader in readers]
    return told[0] if told else setting.told_end(topic, partition)


class HomeReader(LogReader):
    """Reads a partition, but not what was trimmed of the journal."""

    def __init__(self, setting: Setting, records: Callable[[str, int], Sequence[Any]]) -> None:
        """Begins without an assignment."""
        super().__init__(records, batch=7)
        self._setting = setting
        self._of: tuple[str, int] | None = None

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Reads this partition from this offset on, or none."""
        self._of = None
        if partitions:
            super().assign(partitions)
            self._of = partitions[0].topic, partitions[0].partition

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Returns the next records that are there, or the event that there is none."""
        if self._of is None:
            return []
        topic, partition = self._of
        if topic == JOURNAL_TOPIC and self._next < self._setting.broker.starts[partition]:
            return [EventMessage(KafkaError._AUTO_OFFSET_RESET, partition, self._next)]
        return super().consume(num_messages, timeout)


class Gates(Generic[T, K, V]):
    """Questions that let records pass, one at a time, answered some time later."""

    last_ms = 0.0

    def __init__(
        self,
        setting: Setting,
        party: Party,
        tell: Callable[[K], V],
        *,
        late_share: float = GATE_FAULTS,
        late_ms: int = 300,
    ) -> None:
        """Asks nothing yet.

        Args:
            setting: of the world.
            party: learns of the answers.
            tell: what a broker answers.
            late_share: how much of it comes late.
            late_ms: by how much, at most.
        """
        self._late_share, self._late_ms = late_share, late_ms
        self._setting = setting
        self._party = party
        self._tell = tell
        self._answers: list[Passed[T, K, V]] = []
        self.is_free = True

    def ask(self, frontiers: list[Frontier[T, K]]) -> bool:
        """Asks about all of them, unless a question is on its way."""
        setting, draw = self._setting, self._setting.modes
        assert draw is not None
        if not frontiers or not self.is_free:
            return False
        self.is_free = False
        setting.history.counts["gates"] += 1
        asked_ms, told_ms = draw.randint(0, 10), draw.randint(0, 10)
        told: dict[K, V] = {}
        if self._happens("gate told late", self._late_share):
            told_ms += draw.randint(20, self._late_ms)

        def answer() -> None:
            if self._happens("gate not told", GATE_FAULTS):
                return
            for about in sorted({frontier.about for frontier in frontiers}):
                told[about] = self._tell(about)

        def tell() -> None:
            self.is_free = True
            self._answers += [Passed(f, told[f.about]) for f in frontiers if f.about in told]

        # Taken when a broker answers, and not by the party: brokers go on while it stands still.
        setting.scheduler.after(asked_ms, answer)
        self._party.later(asked_ms + told_ms, tell)
        return True

    def _happens(self, fault: str, share: float) -> bool:
        setting = self._setting
        assert setting.modes is not None
        if not setting.faults.on or setting.modes.random() >= share:
            return False
        setting.faults.count(fault)
        return True

    def answers(self) -> list[Passed[T, K, V]]:
        """Returns what was answered since the last call."""
        found, self._answers = self._answers, []
        return found

    def close(self) -> None:
        """Does nothing: there is no thread."""


class _TopicIds(TopicIds):
    """Ids that are told for long enough to be believed."""

    def _comes(
        self, topic: str, is_it: Callable[[str], bool], told: Mapping[str, str] | None = None
    ) -> bool:
        return is_it((self.of([topic]) if told is None else told).get(topic, ""))


class Member(Protocol):
    """A party whose partition is one of a consumer's."""

    name: str
    partition: TopicPartition
    high: int
    """Up to where its partition reached when it was fetched last."""

    @property
    def assigned(self) -> Assigned | None:
        """Its partition, once it has learnt which home that has."""

    def put(self, assigned: Assigned) -> None:
        """Begins its partition anew."""


class PlayedFollowing(Following):
    """`Following` of the partitions of one consumer of the simulated world."""

    def __init__(
        self, setting: Setting, name: str, memory_max_bytes: int, *, committed: bool
    ) -> None:
        """Asks nothing yet.

        Args:
            setting: of the world.
            name: of the process.
            memory_max_bytes: what it keeps in memory of pending transactions.
            committed: whether it reads committed records, or all.
        """
        self.members: dict[TopicPartition, Member] = {}
        self.pending_map = PendingTransactionMap(memory_max_bytes, MemoryStore())
        log = cast(Log, ReadersLog(setting, self._names))
        super().__init__(
            log,
            CONFIG if committed else UNCOMMITTED,
            setting.counters,
            self.pending_map,
            Shared(),
            _TopicIds(log),
            lambda key: self.members[key].high,
            lambda: setting.readers_s,
        )
        self._setting = setting
        party = Party(setting.scheduler, name)

        def tell(home: int) -> int:
            return told_to_all(setting, JOURNAL_TOPIC, home, self._names())

        gates: Gates[Followed, int, int] = Gates(setting, party, tell)
        watch: Gates[BeforeSidecar, str, bool] = Gates(
            *(setting, party, self._has_sidecar),
            late_share=SIDECAR_LATE_SHARE,
            late_ms=SIDECAR_LATE_MS,
        )
        self.homes._gates = gates  # type: ignore[assignment]
        self.sidecars._gates = watch  # type: ignore[assignment]

    def _has_sidecar(self, topic: str) -> bool:
        # It is there from the first moment on. For these readers it is created as late as it may
        # be: just before its first record.
        data = self._setting.history.data
        return any(records for key, records in data.items() if key[0] == sidecar_of(topic))

    def misses_sidecar(self, before: BeforeSidecar) -> bool:
        """Returns whether a sidecar is there by now, of which a partition was not told."""
        return self._has_sidecar(before.topic)

    def _names(self) -> list[str]:
        return [member.name for member in self.members.values()]

    def join(self, member: Member) -> None:
        """Takes a partition along."""
        pasts = self._setting.history.past_ends
        names = self._names()
        # It begins by what the others were told of modes.
        pasts += [
            replace(p, to=member.name)
            for p in pasts
            if p.to in names and p.partition[0] == MODES_TOPIC
        ]
        self.members[member.partition] = member

    def leave(self, member: Member) -> None:
        """Gives a partition up: it is revoked, or the whole consumer crashed."""
        del self.members[member.partition]
        if member.assigned is not None:
            self.forget(member.assigned)
            member.assigned.buffer.close()

    def poll_all(self) -> int:
        """Reads the homes on, for all partitions. Returns how many began anew."""
        all_assigned = [m.assigned for m in self.members.values() if m.assigned is not None]
        _, anew = self.poll(all_assigned)
        for again in anew:
            self.members[again.key].put(again)
        return len(anew)

    def learn(self, keys: Collection[TopicPartition]) -> None:
        """Learns which homes topics have, where some are switched."""
        if self._setting.modes is not None:
            super().learn(keys)

    def try_again(self) -> None:
        """Lets a home that could not be read be tried at once: real time does not pass here."""
        self.homes._begin_at_s = 0.0

    def is_settled(self, followed: Followed) -> bool:
        """Returns whether all that a home says of a partition is read and passed on."""
        lanes = self.homes._lanes.get(followed.home, ())
        home = followed.home[0]
        end = self._setting.broker.end(JOURNAL_TOPIC, home)
        for lane in lanes:
            if lane.attached.get(followed.partition) is followed:
                view, partition = lane.view, followed.partition
                found = view.next_place(partition)
                # Where nobody knew that the records were in a former topic, a place may lie ahead.
                ahead = found is not None and found[0] > len(
                    self._setting.broker.data(partition.key)
                )
                return view.is_settled(partition, end) and (found is None or ahead)
        return False
