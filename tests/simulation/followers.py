"""What a simulated consumer follows homes through: the log as it sees it, and its gates.

`Following`, `Homes`, `HomeStarts` and `Registry` are the real ones. Played are `consumer/gates.py`
(the thread that asks for ends) and `consumer/topic_ids.py` (the time until an id is believed).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer.config import ConsumerConfig, IsolationLevel
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.shared import Shared
from logtx.consumer.following import Following
from logtx.consumer.gates import Frontier, Passed
from logtx.consumer.homes import Followed
from logtx.consumer.topic_ids import TopicIds
from logtx.journal.control import TopicPartition
from logtx.journal.logs.interface import Log
from logtx.journal.mode_registry import encode_key, encode_value
from logtx.journal.modes import MODES_TOPIC
from logtx.journal.reader import JOURNAL_TOPIC

from .logs import LogReader, LogView
from .schedule import Party
from .setting import Setting

CONFIG: Final = cast(
    ConsumerConfig,
    SimpleNamespace(
        isolation_level=IsolationLevel.READ_COMMITTED, torn_reset=None, librdkafka_quiet={}
    ),
)
"""What of a consumer's settings counts here."""
GATE_FAULTS: Final = 0.05
"""Share of the questions for a home's end that are answered late, and of those that fail."""


class ReadersLog(LogView):
    """The `Log` of a consumer that follows homes: former leaders answer it, too."""

    def __init__(self, setting: Setting, reader: str) -> None:
        """Answers a reader at once."""
        super().__init__(setting.broker)
        self._setting = setting
        self._reader = reader

    def partition_count(self, topic: str, *, timeout_s: float = 10) -> int:
        """Returns that there is a topic for modes."""
        del timeout_s
        assert topic == MODES_TOPIC
        return 1

    def start_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the start of a partition."""
        del timeout_s
        return 0 if topic == MODES_TOPIC else super().start_offset(topic, partition)

    def end_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the end of a partition, as a broker tells it."""
        del timeout_s
        return self._setting.told_end(
            topic, partition, self._reader if topic == MODES_TOPIC else ""
        )

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


class OutOfRange:
    """Kafka's event that a partition has no such offset any more."""

    def __init__(self, partition: int, offset: int) -> None:
        """Says so of this offset."""
        self._partition, self._offset = partition, offset

    def partition(self) -> int:
        """The partition."""
        return self._partition

    def offset(self) -> int:
        """The offset."""
        return self._offset

    def error(self) -> KafkaError:
        """What it says."""
        return KafkaError(KafkaError._AUTO_OFFSET_RESET, "trimmed")


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
            return [OutOfRange(partition, self._next)]
        return super().consume(num_messages, timeout)


class Gates:
    """Questions for the ends of homes, one at a time, answered some time later."""

    last_ms = 0.0

    def __init__(self, setting: Setting, party: Party) -> None:
        """Asks nothing yet."""
        self._setting = setting
        self._party = party
        self._answers: list[Passed[Followed]] = []
        self.is_free = True

    def ask(self, frontiers: list[Frontier[Followed]]) -> bool:
        """Asks for the homes' ends, unless a question is on its way."""
        setting, draw = self._setting, self._setting.modes
        assert draw is not None
        if not frontiers or not self.is_free:
            return False
        self.is_free = False
        setting.history.counts["gates"] += 1
        asked_ms, told_ms = draw.randint(0, 10), draw.randint(0, 10)
        ends: dict[int, int] = {}
        if self._happens("gate told late"):
            told_ms += draw.randint(20, 300)

        def answer() -> None:
            if self._happens("gate not told"):
                return
            for home in sorted({frontier.home for frontier in frontiers}):
                ends[home] = setting.told_end(JOURNAL_TOPIC, home, self._party.name)

        def tell() -> None:
            self.is_free = True
            self._answers += [Passed(f, ends[f.home]) for f in frontiers if f.home in ends]

        # Taken when a broker answers, and not by the party: brokers go on while it stands still.
        setting.scheduler.after(asked_ms, answer)
        self._party.later(asked_ms + told_ms, tell)
        return True

    def _happens(self, fault: str) -> bool:
        setting = self._setting
        assert setting.modes is not None
        if not setting.faults.on or setting.modes.random() >= GATE_FAULTS:
            return False
        setting.faults.count(fault)
        return True

    def answers(self) -> list[Passed[Followed]]:
        """Returns what was answered since the last call."""
        found, self._answers = self._answers, []
        return found

    def close(self) -> None:
        """Does nothing: there is no thread."""


class _TopicIds(TopicIds):
    """Ids that are told for long enough to be believed."""

    def _comes(self, topic: str, is_it: Callable[[str], bool]) -> bool:
        return is_it(self.of([topic]).get(topic, ""))


class PlayedFollowing(Following):
    """`Following` of one consumer of the simulated world."""

    def __init__(
        self,
        setting: Setting,
        party: Party,
        pending_map: PendingTransactionMap,
        high_of: Callable[[TopicPartition], int],
    ) -> None:
        """Asks nothing yet."""
        log = cast(Log, ReadersLog(setting, party.name))
        ids = _TopicIds(log)
        super().__init__(log, CONFIG, setting.counters, pending_map, Shared(), ids, high_of)
        self._setting = setting
        self.homes._gates = Gates(setting, party)  # type: ignore[assignment]

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
