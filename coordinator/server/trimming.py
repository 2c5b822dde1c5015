"""Trims sidecars: notes checkpoints, asks the log, deletes records. `core.trimming` has the rules.

A sidecar is trimmed by the coordinator that serves the journal partition of the sidecar's name. Two
at once do no harm. It asks no other coordinator: each follows all journal partitions, and knows
what is undecided there and what pointers need, perhaps late, which only delays. Checkpoints live in
its memory, so after a move the delay begins anew.

Before records are deleted, the first one in the sidecar is looked at. Its TxId must be of a journal
that is there. If somebody deleted the journal and kept the data, nothing says any more what
pointers need, and the sidecar is left alone.

A sidecar whose topic is gone is left alone, too: a coordinator that may not see the topic any more
would take it for gone.

Lives on the coordinator's event loop; asks the log in a thread of its own.

Source: PIP-31, "Retention Cursor".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar, cast

from confluent_kafka import KafkaException

from ...journal.control import TXID_HEADER, TopicPartition
from ...journal.errors import (
    ConfigError,
    LogtxError,
    MalformedHeaderError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from ...journal.headers import headers_of
from ...journal.logs.interface import Headers, Log, TopicInfo
from ...journal.position import Journal
from ...journal.reader import JOURNAL_TOPIC, journal_partition_of, read_batches
from ...journal.relocation import origin_of
from ...journal.sidecar import is_sidecar, main_of, main_partition
from ...journal.txid import TxId
from ..core.floors import LOOKS_APART_MS
from ..core.handing import Known
from ..core.trimming import CHECKPOINTS_PER_DELAY, Bound, JournalView, Noted, Trimming, Unaging
from ..runtime.alarm import monotonic_ms
from .sidecars import check_sidecar

_LOG = logging.getLogger(__name__)

LOOK_S: Final = 10.0
"""Longest pause between two looks whether something may be trimmed; a shorter one asks more."""
LOOK_MIN_S: Final = 0.1
"""Shortest pause, with a short delay."""
ASK_TIMEOUT_S: Final = 10.0
"""Bound of each question to the log. A broker that does not answer delays the other sidecars so
long."""
TRIMS_MAX: Final = 100
"""Partitions trimmed in one look; the others wait for the next. More delay its other questions."""
RETRY_S: Final = 60.0
"""How long a partition that could not be trimmed is left alone; a shorter time asks and logs
more."""
SHOWN_MAX: Final = 200
"""Sidecars that have metrics of their own: those with the most offsets."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarConfig:
    """When records of sidecars that nobody needs are deleted."""

    trim_delay_ms: int = 3_600_000
    """How long they stay at least, so that who is reading them comes to an end; -1: for ever."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a delay that makes no sense."""
        if self.trim_delay_ms < -1:
            raise ConfigError(
                f"a trim delay of {self.trim_delay_ms} ms: give milliseconds, or -1, which"
                " deletes nothing"
            )


@dataclass(slots=True)
class TrimCounters:
    """What the trimmer of one coordinator has seen and done."""

    trimmed: int = 0
    """Offsets that were passed by trimming."""
    failed: int = 0
    """Times that a partition could not be trimmed."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Sidecar → offsets from the starts of its partitions to their ends, as of the latest
    checkpoint."""
    held_ms: int = 0
    """For how long undecided transactions have held up what is as old as the delay."""
    unaging_ms: int = 0
    """For how long a partition has been needed by what is placed at the end of its topic's log."""


class SidecarTrimmer:
    """Trims the sidecars of one coordinator."""

    def __init__(
        self,
        log: Log,
        *,
        known: Callable[[], Iterable[Known]],
        served: Callable[[], set[int]],
        journal: TopicInfo,
        config: SidecarConfig,
    ) -> None:
        """Does nothing before `run`.

        Args:
            log: the log that holds the data partitions.
            known: returns the journal partitions of which something is known.
            served: returns the journal partitions that are served here.
            journal: what the log says of the journal's topic.
            config: when to trim.
        """
        self.counters = TrimCounters()
        self._log, self._known, self._served = log, known, served
        self._partition_count = journal.partition_count
        delay_ms = config.trim_delay_ms
        self._delay_ms = delay_ms
        apart_ms = 0 if journal.certain else LOOKS_APART_MS
        self._core = Trimming(delay_ms=delay_ms, looks_apart_ms=apart_ms)
        self._unaging = Unaging(told_after_ms=delay_ms)
        self._main_ends: dict[TopicPartition, int] = {}
        """Sidecar partition → the end of its main partition, as of the latest checkpoint."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trimming")
        self._starts: dict[TopicPartition, int] = {}
        """Sidecar partition → where its log starts, as far as is known."""
        self._left_alone: dict[TopicPartition, int] = {}
        """Partition that could not be trimmed → until when (monotonic ms)."""
        self._told: set[str] = set()
        """What was logged of sidecars, which is logged once."""

    async def run(self) -> None:
        """Looks again and again, until it is cancelled."""
        if self._delay_ms < 0:
            return
        pause_s = self._delay_ms / 1_000 / CHECKPOINTS_PER_DELAY
        while True:
            await asyncio.sleep(min(max(pause_s, LOOK_MIN_S), LOOK_S))
            try:
                await self.look()
            except (LogtxError, KafkaException) as error:
                _LOG.warning("sidecars_not_looked_at error=%s", error)

    async def look(self) -> None:
        """Notes a checkpoint if one is due, and trims what may be trimmed.

        Raises:
            LogtxError, KafkaException: the log does not answer; the next look asks again.
        """
        if self._core.is_due(monotonic_ms()):
            await self._note()
        if self._core.wants_journal_ends:
            asked_ms = monotonic_ms()
            ends = await self._ask(self._journal_ends)
            self._core.journals_told(ends, asked_ms, monotonic_ms())
        now_ms, known = monotonic_ms(), list(self._known())
        views = {each.shard.partition: JournalView.of(each.shard) for each in known}
        journals = {(each.shard.partition, each.shard.incarnation) for each in known}
        bounds = self._core.bounds(views, now_ms)
        self.counters.held_ms = self._core.held_ms(now_ms)
        self._tell_unaging(bounds, now_ms)
        due = [
            (key, bound)
            for key, bound in bounds.items()
            if bound.offset > self._starts.get(key, 0) and now_ms >= self._left_alone.get(key, 0)
        ]
        if due:
            await self._ask(lambda: self._trim(due[:TRIMS_MAX], journals))

    def _tell_unaging(self, bounds: Mapping[TopicPartition, Bound], now_ms: int) -> None:
        for (topic, partition), place in self._unaging.look(bounds, self._main_ends, now_ms):
            _LOG.warning(
                "sidecar_does_not_age topic=%s partition=%d place=%d: nothing is written to %s[%d],"
                " so retention takes nothing there, and what is placed at its end needs the sidecar"
                " and the journal; a record there lets them age",
                *(topic, partition, place, main_of(topic), partition),
            )
        self.counters.unaging_ms = self._unaging.longest_ms(now_ms)

    def close(self) -> None:
        """Stops the thread, without waiting for a question under way."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, question: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)

    # ---- checkpoints ----------------------------------------------------------------------------

    async def _note(self) -> None:
        served = self._served()
        seen = await self._ask(lambda: self._look_at_sidecars(served))
        self._starts = {key: each.start for key, each in seen.items()}
        self._main_ends = {key: each.main_end for key, each in seen.items()}
        offsets: dict[str, int] = {}
        for (topic, _), each in seen.items():
            offsets[topic] = offsets.get(topic, 0) + each.noted.end - each.start
        self.counters.offsets = offsets
        self._core.note({key: each.noted for key, each in seen.items()}, monotonic_ms())

    def _look_at_sidecars(self, served: set[int]) -> dict[TopicPartition, Seen]:
        """Asks for T1; runs in the thread."""
        sidecars = [
            topic
            for topic in self._log.topics(timeout_s=ASK_TIMEOUT_S)
            if is_sidecar(topic) and journal_partition_of(topic, self._partition_count) in served
        ]
        return look_at(self._log, sidecars, self._tell_once)

    def _tell_once(self, event: str) -> None:
        if event not in self._told:
            self._told.add(event)
            _LOG.warning(event)

    def _journal_ends(self) -> dict[int, int]:
        keys = [(JOURNAL_TOPIC, partition) for partition in range(self._partition_count)]
        ends = self._log.end_offsets(keys, timeout_s=ASK_TIMEOUT_S)
        return {partition: end for (_, partition), end in ends.items()}

    # ---- trimming -------------------------------------------------------------------------------

    def _trim(self, due: list[tuple[TopicPartition, Bound]], journals: set[Journal]) -> None:
        """Trims partitions; runs in the thread."""
        sidecars = {topic for (topic, _), _ in due}
        names = sorted(sidecars | {main_of(topic) for topic in sidecars})
        ids = self._log.topic_ids(names, timeout_s=ASK_TIMEOUT_S)
        for key, bound in due:
            if not bound.noted.is_of(key[0], ids):
                continue
            try:
                self._trim_one(key, bound.offset, journals)
            except (LogtxError, KafkaException) as error:
                self.counters.failed += 1
                self._left_alone[key] = monotonic_ms() + int(RETRY_S * 1_000)
                _LOG.warning("sidecar_not_trimmed topic=%s partition=%d error=%s", *key, error)

    def _trim_one(self, key: TopicPartition, offset: int, journals: set[Journal]) -> None:
        passed = trim_partition(self._log, key, offset, journals)
        self._starts[key] = offset
        if passed:
            self.counters.trimmed += passed
            _LOG.info("sidecar_trimmed topic=%s partition=%d start=%d", *key, offset)


# ---- what the log is asked ----------------------------------------------------------------------


class Seen(NamedTuple):
    """A sidecar partition as the log has it."""

    start: int
    """Where its own log starts."""
    noted: Noted
    main_end: int
    """End of its main partition."""


def look_at(
    log: Log, sidecars: Sequence[str], warn: Callable[[str], None]
) -> dict[TopicPartition, Seen]:
    """Asks for T1 of sidecars: ids first (T5), then starts and ends.

    Args:
        log: the log.
        sidecars: names of sidecars.
        warn: is told what is wrong with one.

    Returns:
        What was told of each partition; those that did not answer are missing, and those of
        sidecars whose topic does not exist.

    Raises:
        LogtxError: the log does not answer.
    """
    if not sidecars:
        return {}
    infos = log.topic_infos([*sidecars, *map(main_of, sidecars)], timeout_s=ASK_TIMEOUT_S)
    ids: dict[TopicPartition, tuple[str, str]] = {}
    for sidecar in sidecars:
        side, main = infos.get(sidecar), infos.get(main_of(sidecar))
        if isinstance(main, UnknownTopicError):
            warn(f"sidecar_without_topic topic={sidecar}")
        if not (isinstance(side, TopicInfo) and isinstance(main, TopicInfo)):
            continue
        try:
            check_sidecar(side, main, log.bootstrap_servers)
        except UnsupportedTopicError as error:
            warn(f"sidecar_in_danger topic={sidecar} error={error}")
        partitions = range(min(side.partition_count, main.partition_count))
        ids |= {(sidecar, p): (side.topic_id, main.topic_id) for p in partitions}
    mains = {key: main_partition(key) for key in ids}
    ends = log.each_end_offset([*ids, *mains.values()], timeout_s=ASK_TIMEOUT_S)
    starts = log.each_start_offset([*ids, *mains.values()], timeout_s=ASK_TIMEOUT_S)
    found: dict[TopicPartition, Seen] = {}
    for key, (topic_id, main_id) in ids.items():
        end, start, main_start = ends.get(key), starts.get(key), starts.get(mains[key])
        main_end = ends.get(mains[key])
        if not (isinstance(end, int) and isinstance(start, int)):
            continue
        if isinstance(main_start, int) and isinstance(main_end, int):
            noted = Noted(end=end, main_start=main_start, topic_id=topic_id, main_id=main_id)
            found[key] = Seen(start, noted, main_end)
    return found


def trim_partition(
    log: Log, key: TopicPartition, offset: int, journals: Collection[Journal]
) -> int:
    """Deletes the records of a sidecar partition below an offset.

    Args:
        log: the log.
        key: the sidecar partition.
        offset: up to where.
        journals: see `check_journal`.

    Returns:
        How many offsets that are; 0 if its log starts there, or behind.

    Raises:
        UnsupportedTopicError: see `check_journal`.
        LogtxError: the log does not answer, or refuses.
    """
    start = log.start_offset(*key, timeout_s=ASK_TIMEOUT_S)
    if start >= offset:
        return 0
    check_journal(log, key, start, offset, journals)
    log.delete_records(*key, offset, timeout_s=ASK_TIMEOUT_S)
    return offset - start


def check_journal(
    log: Log, key: TopicPartition, start: int, end: int, journals: Collection[Journal]
) -> None:
    """Refuses to trim a sidecar partition whose first transaction is of a journal that is gone.

    Reads one batch at most: a sidecar has nearly nothing but records of transactions.

    Args:
        log: the log.
        key: the sidecar partition.
        start: where its log starts.
        end: up to where it is to be trimmed.
        journals: (journal partition, incarnation) of those that are there.

    Raises:
        UnsupportedTopicError: the transaction is of another one.
        BrokerError: the record could not be read.
    """
    batches = read_batches(log, *key, start, end, timeout_s=ASK_TIMEOUT_S)
    with closing(batches):
        records = next(batches, [])
    for record in records:
        try:
            headers = cast(Headers, headers_of(record) or [])
        except SystemError:
            continue  # Somebody else's: the name of a header is not UTF-8.
        origin = origin_of(headers)
        raw = dict(headers).get(TXID_HEADER) if origin is None else origin.txid
        if not isinstance(raw, bytes):
            continue
        try:
            txid = TxId.from_bytes(raw)
        except MalformedHeaderError:
            continue
        if txid.journal not in journals:
            raise UnsupportedTopicError(
                f"{key[0]}[{key[1]}] has at {record.offset()} a record of transaction {txid}, whose"
                " journal is gone: nothing says what pointers need of it. Delete its records by"
                f" hand when retention has passed their pointers in {main_of(key[0])}"
            )
        return
