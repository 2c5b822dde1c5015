"""Sidecars in a simulated world: which transactions use them, and how readers read them.

`SidecarReader` is the real one; its log is played here, with errors now and then. What a
transaction draws for a sidecar is of a stream of its own, so histories without sidecars are as they
always were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any, Final, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.sidecar_read import SidecarReader
from logtx.journal.control import TopicPartition
from logtx.journal.errors import BrokerError
from logtx.journal.logs.interface import Log

from .history import Record
from .logs import LogView, NotYetError
from .setting import Setting

ALWAYS_SHARE: Final = 0.4
"""Share of the transactions whose records of the topic that stays all go to its sidecar."""
GROWING_SHARE: Final = 0.2
"""Share of the transactions that begin in the topic, and go over to the sidecar."""
COMPACTED_SHARE: Final = 0.65
"""By so much is multiplied what says so where sidecars are compacted: nearly all use one there."""
GROWS_SHARE: Final = 0.4
"""Share of their records that don't fit into the topic; the others have no size."""
ROOM_BYTES: Final = 1
"""What a writer of such a transaction writes to the topic at most."""
ERROR_SHARE: Final = 0.03
"""Share of the fetches of a sidecar that fail."""
FETCH_MAX: Final = 7
"""Most records of one fetch."""


class Uses(Enum):
    """Whether a transaction's records go to a sidecar."""

    NONE = "none"
    ALWAYS = "always"
    GROWS = "grows"


def choose(setting: Setting) -> Uses:
    """Returns whether a new transaction uses sidecars."""
    if setting.sidecars is None or not setting.opens_sidecars():
        return Uses.NONE
    drawn = setting.sidecars.random()
    if setting.compactions is not None:
        drawn *= COMPACTED_SHARE
    if drawn >= ALWAYS_SHARE + GROWING_SHARE:
        return Uses.NONE
    uses = Uses.ALWAYS if drawn < ALWAYS_SHARE else Uses.GROWS
    setting.history.counts[f"transactions whose use of sidecars is {uses.value}"] += 1
    return uses


class Fetched:
    """A record of a sidecar, as librdkafka gives it out; or an error."""

    __slots__ = ("_error", "_key", "_record")

    def __init__(
        self,
        place: TopicPartition,
        record: Record | None,
        error: int = KafkaError._ALL_BROKERS_DOWN,
    ) -> None:
        """Wraps a record of this partition; without one, it is this error."""
        self._key, self._record = place, record
        self._error = None if record is not None else KafkaError(error)

    def topic(self) -> str:
        """The sidecar."""
        return self._key[0]

    def partition(self) -> int:
        """The partition."""
        return self._key[1]

    def error(self) -> KafkaError | None:
        """What failed, if anything."""
        return self._error

    def offset(self) -> int:
        """Offset in the sidecar."""
        assert self._record is not None
        return self._record.offset()

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Headers in order, or None."""
        assert self._record is not None
        return self._record.headers()

    def timestamp(self) -> tuple[int, int]:
        """None."""
        return TIMESTAMP_NOT_AVAILABLE, 0

    def key(self) -> bytes | None:
        """The key."""
        assert self._record is not None
        return self._record.key()

    def value(self) -> bytes | None:
        """The value."""
        assert self._record is not None
        return self._record.value()

    def __len__(self) -> int:
        """Bytes of the value."""
        return 0 if self._record is None else len(self._record)


class _Fetcher:
    """The part of a `LogConsumer` that reading sidecars calls."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._next: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()

    def incremental_assign(self, partitions: Sequence[KafkaPartition]) -> None:
        """Reads these, too, from their offsets on."""
        for each in partitions:
            assert (each.topic, each.partition) not in self._next, "it is assigned already"
            self._next[each.topic, each.partition] = each.offset

    def incremental_unassign(self, partitions: Sequence[KafkaPartition]) -> None:
        """Reads these no more. As in librdkafka, one that is paused stays paused."""
        for each in partitions:
            del self._next[each.topic, each.partition]

    def seek(self, partition: KafkaPartition) -> None:
        """Goes on from another offset."""
        assert (partition.topic, partition.partition) in self._next, "it is not assigned"
        self._next[partition.topic, partition.partition] = partition.offset

    def get_watermark_offsets(
        self, partition: KafkaPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """Returns the start and the end, as a broker tells them with a fetch."""
        del timeout
        assert cached
        return 0, self._setting.told_end(partition.topic, partition.partition)

    def pause(self, partitions: Sequence[KafkaPartition]) -> None:
        """Gives out nothing of these."""
        self._paused |= {(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: Sequence[KafkaPartition]) -> None:
        """Gives out something of these again."""
        self._paused -= {(each.topic, each.partition) for each in partitions}

    def poll(self, timeout: float = -1) -> Any:
        """Returns the next record if there is one; never waits."""
        del timeout
        return next(iter(self._fetch(1)), None)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Returns the next records that are there, a few at a time."""
        del timeout
        return self._fetch(min(num_messages, FETCH_MAX))

    def _fetch(self, limit: int) -> list[Fetched]:
        setting, found = self._setting, list[Fetched]()
        assert setting.sidecars is not None
        for key in sorted(self._next.keys() - self._paused):
            log, begin = setting.broker.data(key), self._next[key]
            end = min(begin + limit - len(found), setting.told_end(*key))
            if len(found) < limit and begin < setting.broker.data_starts.get(key, 0):
                found.append(Fetched(key, None, KafkaError._AUTO_OFFSET_RESET))
                continue
            if begin < end and setting.sidecars.random() < ERROR_SHARE:
                setting.history.counts["fetches of sidecars that failed"] += 1
                found.append(Fetched(key, None))
            elif begin < end:
                found += [Fetched(key, record) for record in log[begin:end]]
                self._next[key] = end
        return found

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


class _SidecarLog(LogView):
    """The log that a `SidecarReader` asks. A former leader may tell its ends."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting.broker)
        self._setting = setting

    def end_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the end of a partition, as a broker tells it."""
        del timeout_s
        return self._setting.told_end(topic, partition)

    def consumer(self, config: object) -> Any:
        """Returns a reader of several sidecars, or of the relocations.

        Raises:
            BrokerError: the brokers do not answer, now and then.
        """
        if not cast(Mapping[str, Any], config)["enable.partition.eof"]:
            return _Fetcher(self._setting)
        draw = self._setting.compactions
        if draw is not None and draw.random() < ERROR_SHARE:
            self._setting.history.counts["relocations not read"] += 1
            raise BrokerError("no answer")
        return LogView.consumer(self, config)


class BrokenOff(SidecarReader):
    """Reads for who can't wait: it is broken off where nothing comes, and goes on later."""

    def step(
        self, buffers: Collection[PartitionBuffer], timeout_s: float, *, ahead: bool = True
    ) -> bool:
        """Reads one slice.

        Raises:
            NotYetError: nothing came of it.
        """
        (buffer,) = buffers
        wanted = buffer.stream_wanted()
        super().step(buffers, timeout_s, ahead=ahead)
        if buffer.stream_wanted() == wanted and buffer.failure is None and not buffer.ready:
            raise NotYetError(*buffer.partition)
        return True


def reader_of(setting: Setting, of: type[SidecarReader] = SidecarReader) -> SidecarReader:
    """Returns what reads sidecars for one life of a consumer."""
    return of(cast(Log, _SidecarLog(setting)), {}, lambda: setting.readers_s)
