"""How a simulated worker reads the leases of a queue: `LeaseReader` over the world's logs.

It asks for homes and their journals as other readers do, and for the end of the partition as a
broker tells it. A fetch that would have to wait breaks it off (`NotYetError`): the worker goes on
with the rest of the lease some time later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, cast

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer import leased, topic_ids
from logtx.consumer.core import share_work
from logtx.consumer.leased import LeaseReader
from logtx.consumer.range_reader import places, reading
from logtx.consumer.range_reader.reading import ReadConfig
from logtx.consumer.range_reader.staying import Assigned, Staying
from logtx.coordinator.client.admin import TopicHome
from logtx.coordinator.core import dispatch
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.commands import TopicModeInfo
from logtx.coordinator.protocol.queues import Lease
from logtx.journal.errors import LogtxError
from logtx.journal.logs.interface import Log
from logtx.journal.modes import MODES_TOPIC, Phase
from logtx.journal.spans import MessageId

from .followers import HomeReader, MemoryStore, ReadersLog
from .logs import LogReader, NotYetError
from .network import Network, query
from .schedule import Party
from .setting import Setting
from .sidecars import BrokenOff, reader_of
from .topology import OUTPUT, TEMPORARY

ERROR_SHARE: Final = 0.03
"""Share of the fetches in which brokers are away."""
BEHIND_SHARE: Final = 0.2
"""Share of the looks at what is published of modes that are at a broker which is behind."""
HEARS_SHARE: Final = 0.2
"""Share of the fetches of a topic that is no more in which a broker says so."""
FETCH_MAX: Final = 4
"""Most records that are given out at once."""
AHEAD_MAX: Final = 12
"""Most records of one fetch: what is not given out stays up to the next assignment."""
BATCH: Final = 10_000
"""Most journal records that are read in one look at a home."""
QUEUES_QUICK: Final = (
    (dispatch, "GONE_MS", 150),
    (dispatch, "HELD_MS", 80),
    (dispatch, "WAIT_MS", 400),
    (dispatch, "STAY_MS", 100),
    (dispatch, "WINDOW_OFFSETS", 30),
    (dispatch, "WINDOW_SPANS", 8),
    (share_work, "UNREADABLE_PAUSE_MS", 60),
    (share_work, "END_PAUSE_MS", 20),
    # Real time does not pass here.
    (leased, "PUBLISHED_S", 0.0),
    (leased, "PLACE_S", 0.0),
    (places, "PUBLISHED_POLL_S", 0.0),
    (reading, "PLACE_S", 0.0),
    (topic_ids, "CONFIRM_S", 0.0),
)
"""Module, constant, and its value in histories with queues."""


class Disk(MemoryStore):
    """What stands for the disk of a reader."""

    def __init__(self, directory: str | None = None) -> None:
        """Empty."""
        del directory
        super().__init__()

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


WITHOUT_DISK: Final = ((reading, "RocksSpillStore", Disk), (places, "RocksSpillStore", Disk))


class _Fetcher:
    """The `LogConsumer` of one `LeaseReader`: records of one partition, as its leader has them.

    As librdkafka's, it fetches nothing of a topic if it knows another one by that name, whose
    leader changed more often (trap 293).
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._at = ("", 0, 0)
        self._fetched: list[Message] = []
        self._known: dict[str, str] = {}
        """Topic → id of the one that it fetched from first."""

    def assign(self, partitions: Sequence[KafkaPartition]) -> None:
        """Reads this partition from this offset on."""
        [assigned] = partitions
        self._at, self._fetched = (assigned.topic, assigned.partition, assigned.offset), []

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Returns the next records, a few at a time, or an error that passes.

        Raises:
            NotYetError: this broker has none yet.
        """
        del timeout
        setting, (topic, partition, offset) = self._setting, self._at
        assert setting.queues is not None
        if topic not in setting.topology.truth and setting.queues.random() < HEARS_SHARE:
            return [Message(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), topic=topic)]
        if not self._fetched:
            truth = setting.topology.truth.get(topic)
            if (
                truth is not None
                and self._known.setdefault(topic, truth.topic_id) != truth.topic_id
            ):
                raise NotYetError(topic, partition)
            end = min(setting.told_end(topic, partition), offset + AHEAD_MAX)
            if end <= offset:
                raise NotYetError(topic, partition)
            if setting.faults.on and setting.queues.random() < ERROR_SHARE:
                setting.history.counts["fetches of leases that failed"] += 1
                return [Message(error=KafkaError(KafkaError._ALL_BROKERS_DOWN))]
            self._fetched = [
                Message(
                    topic=topic,
                    partition=partition,
                    offset=record.offset(),
                    key=record.key(),
                    value=record.value(),
                    headers=record.headers(),
                )
                for record in setting.broker.data((topic, partition))[offset:end]
            ]
        given = self._fetched[: min(num_messages, FETCH_MAX)]
        self._fetched = self._fetched[len(given) :]
        self._at = topic, partition, offset + len(given)
        return given

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


class _Coordinators:
    """What tells whether a topic was ever switched: `AdminQueries`, as far as it is asked here."""

    def __init__(self, network: Network, party: Party) -> None:
        self._network = network
        self._party = party
        self._told: dict[str, TopicModeInfo] = {}
        self._asking: set[str] = set()
        self._lease = 0

    def begin(self) -> None:
        """Forgets what was told: it must be asked after a lease was got."""
        self._told.clear()
        self._asking.clear()
        self._lease += 1

    def describe_topic(self, topic: str) -> TopicHome:
        """Returns a topic's mode and home.

        Raises:
            NotYetError: there is no answer yet.
        """
        home = self._network.setting.places_at
        never = TopicModeInfo(topic=topic, topic_id="", phase=Phase.MARKERS, mode_offset=-1)
        if home is None:
            return TopicHome(never, None, None)
        if topic in self._told:
            return TopicHome(self._told[topic], home, None)
        if topic not in self._asking:
            self._asking.add(topic)
            lease = self._lease

            def told(reply: commands.Reply) -> None:
                if lease == self._lease and isinstance(reply, commands.TopicModes):
                    self._told[topic] = reply.topics[0] if reply.topics else never

            command = commands.DescribeTopics(topics=(topic,))
            query(self._network, self._party, home, command, told)
        raise NotYetError(topic, -1)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


class _Reader(HomeReader):
    """Reads homes, and data on the side."""

    def poll(self, timeout: float = -1) -> Any:
        """Returns the next record if there is one.

        Raises:
            NotYetError: a broker has told that there is data, and there is none (trap 228).
        """
        found = super().poll(timeout)
        if found is None and self._of is not None and self._of[0] in (OUTPUT, TEMPORARY):
            raise NotYetError(*self._of)
        return found


class _Log(ReadersLog):
    """The log of one worker."""

    def __init__(self, setting: Setting, reader: str) -> None:
        """Answers a worker."""
        super().__init__(setting, lambda: [reader])
        self._ids: dict[str, str] | None = None
        """What was told at first of a lease."""
        self._asks_again = False

    def begin(self, *, again: bool) -> None:
        """Begins to read a lease, or `again` the rest of one: that was asked before."""
        self._asks_again = again
        self._ids = self._ids if again else None

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float = 10) -> dict[str, str]:
        """Returns topic → id. The first answer of a lease is as old as that."""
        told = super().topic_ids(topics, timeout_s=timeout_s)
        if self._ids is None:
            self._ids = told
        again, self._asks_again = self._asks_again, False
        return self._ids if again else told

    def end_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the end of a partition. A broker may be behind in what is published of modes."""
        end, draw = super().end_offset(topic, partition, timeout_s=timeout_s), self._setting.queues
        is_behind = topic == MODES_TOPIC and self._setting.faults.on
        assert draw is not None
        return draw.randint(0, end) if is_behind and draw.random() < BEHIND_SHARE else end

    def consumer(self, config: object) -> LogReader:
        """Returns a reader that fetches much at once: one look at a home is all that it gets."""
        del config
        made = _Reader(self._setting, self._messages)
        made._batch = BATCH
        return made


class AtOnce(Executor):
    """Asks at once what a reader asks in a thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Returns what came of a question."""
        asked: Future[Any] = Future()
        try:
            asked.set_result(fn(*args, **kwargs))
        except LogtxError as error:
            asked.set_exception(error)
        return asked


class Leases:
    """Reads the leases of one worker."""

    def __init__(self, network: Network, party: Party) -> None:
        """Reads nothing yet. `party` is the worker."""
        setting = network.setting
        assert setting.queues is not None
        self._log = _Log(setting, party.name)
        log = cast(Log, self._log)
        kafka: Mapping[str, Any] = {}
        config = ReadConfig(
            kafka=kafka,
            pending_memory_max_bytes=setting.queues.choice((1_500, 10**9)),
            fail_on_data_loss=False,
            subscription="jobs",
        )
        self._reader = LeaseReader(log, kafka, config, timeout_s=0)
        self._reader._asking = AtOnce()
        self._reader._consumer = Staying(lambda: cast(Assigned, _Fetcher(setting)))
        self._coordinators = _Coordinators(network, party)
        self._reader._coordinators = cast(Any, self._coordinators)
        if setting.sidecars is not None:
            self._reader._sidecars = reader_of(setting, BrokenOff)

    @property
    def bound(self) -> MessageId:
        """Up to where reading of the last lease is final."""
        return self._reader.bound

    def may_be_placed(self, topics: Sequence[str]) -> bool:
        """Returns whether some of the topics had a home, as far as is published."""
        return self._reader.may_be_placed(topics)

    def begin(self, lease: Lease) -> Iterator[tuple[Message, MessageId]]:
        """Yields the messages of a lease with their names, in the order of delivery."""
        self._coordinators.begin()
        return self._messages(lease, again=False)

    def go_on(self, lease: Lease) -> Iterator[tuple[Message, MessageId]]:
        """Yields those of the rest of a lease that was broken off."""
        return self._messages(lease, again=True)

    def _messages(self, lease: Lease, *, again: bool) -> Iterator[tuple[Message, MessageId]]:
        self._log.begin(again=again)
        self._reader._ahead._homes._begin_at_s = 0.0  # One that could not be read is tried at once.
        return self._reader.messages(lease)
