"""What the tenure of a partition acts through: the journal, the writers and the sessions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from ..journal.errors import (
    BrokerError,
    CoordinatorLoadingError,
    LogtxError,
    UnknownTopicError,
)
from ..journal.fate import Fate
from ..journal.log import Log
from ..journal.reader import JOURNAL_TOPIC, find_fates
from ..journal.txid import TxId
from . import commands as c
from .appender import Appender
from .counters import Counters
from .decision import Effect, TopicFacts, WriteMarkers, WriteOffsets
from .housekeeping import HousekeepingConfig
from .loading import journal_end
from .markers import MarkerWriter
from .members import Members
from .offsets_log import OffsetsKey, OffsetsWriter
from .pressure import Pressure
from .questions import Questions
from .shard import Shard
from .tail import Tail
from .tenure import Tenure

LOOK_UP_TIMEOUT_S: Final = 30.0
SCAN_MAX: Final = 10_000
"""TxIds that one scan of the journal looks for."""

Answer = Callable[[c.Reply], None]
"""Called once with the reply to a request."""


async def _nobody(_address: str) -> int | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the partitions of one coordinator share."""

    log: Log
    journal: Appender
    markers: MarkerWriter
    offsets: OffsetsWriter
    tail: Tail
    members: Members
    reading: Executor
    """For what may read much of the journal, apart from the quick questions to the log."""
    loading: Executor
    """For loading alone: clients may ask for any number of old outcomes, and nobody serves a
    partition whose loading waits behind them."""
    address: str
    """host:port that clients reach this coordinator at."""
    process_nonce: int
    partition_count: int
    """Of the journal."""
    housekeeping: HousekeepingConfig = field(default_factory=HousekeepingConfig)
    questions: Questions = field(default_factory=Questions)
    """What asks the log quick questions."""
    topics: dict[str, TopicFacts] = field(default_factory=dict)
    """Of data topics; grows as they are looked up."""
    counters: Counters = field(default_factory=Counters)
    who_answers: Callable[[str], Coroutine[Any, Any, int | None]] = _nobody
    """The process nonce of the coordinator that answers at an address; None if none does."""
    changed: Callable[[], None]
    """Called when a partition's owner or this coordinator's part in it changed."""
    close_session: Callable[[int, str, int, LogtxError], None]
    """Called with journal partition, producer id, session nonce and the reason."""
    close_sessions: Callable[[int, LogtxError], None]
    """Called with a journal partition whose sessions must all connect again."""

    async def journal_end(self, partition: int, known_end: int = 0) -> int:
        """As `loading.journal_end`, off the event loop."""
        return await self.questions.ask(
            f"end-{partition}", journal_end, self.log, partition, known_end
        )


class LogShell:
    """The `Shell` of one tenure."""

    tenure: Tenure

    def __init__(
        self,
        partition: int,
        services: Services,
        journal: Appender,
        *,
        ask: Callable[[Coroutine[Any, Any, None]], None],
        acknowledged: Callable[[bool], None],
        surprised: Callable[[Tenure, str], None],
    ) -> None:
        """Set `tenure` before anything is asked of it.

        Args:
            partition: of the journal.
            services: of the coordinator.
            journal: what to append by.
            ask: lets a question to the log run, until the partition is stopped.
            acknowledged: called after each answer to an append with whether it is durable.
            surprised: called when the tenure ended by itself.
        """
        self.pressure = Pressure()
        self._partition = partition
        self._services = services
        self._journal = journal
        self._ask = ask
        self._on_acknowledged = acknowledged
        self._on_surprised = surprised
        self._wanted: deque[tuple[Answer, c.Command, TxId]] = deque()
        """Look-ups that no scan was begun for; each is a request of a window, or a call."""
        self._looking_up = False

    def append(self, predicted: int, value: bytes) -> None:
        """Append a journal record."""
        acknowledge = partial(self._acknowledged, predicted)
        self.pressure.appended(len(value))
        self._services.counters.appended(self._partition, len(value))
        self._journal.append(JOURNAL_TOPIC, self._partition, acknowledge, value=value)

    def _acknowledged(self, predicted: int, offset: int | None, error: KafkaError | None) -> None:
        self.pressure.acknowledged()
        self.tenure.acknowledged(predicted, offset, error.name() if error else "")
        self._on_acknowledged(offset is not None)

    def ask_end(self) -> None:
        """Ask for the journal's end."""
        self._ask(self._ask_end())

    async def _ask_end(self) -> None:
        try:
            known_end = self.tenure.acknowledged_end
            end = await self._services.journal_end(self._partition, known_end)
        except (LogtxError, KafkaException) as error:
            # Untold, this question and each that comes behind it would wait for ever.
            self.tenure.end_told(None, str(error))
        else:
            self.tenure.end_told(end)

    def answer(self, ref: Answer, reply: c.Reply) -> None:
        """Give a client its reply."""
        ref(reply)

    def look_up(self, ref: Answer, command: c.Command, txid: TxId) -> None:
        """Find the fate of a transaction that finished so long ago that only the journal knows."""
        self._wanted.append((ref, command, txid))
        if not self._looking_up:
            self._looking_up = True
            self._ask(self._look_up())

    async def _look_up(self) -> None:
        # One scan at a time, for all that came meanwhile: each may read the whole journal.
        while self._wanted:
            wanted = [self._wanted.popleft() for _ in range(min(len(self._wanted), SCAN_MAX))]
            fates = await self._find({txid for _, _, txid in wanted})
            for answer, command, txid in wanted:
                if isinstance(fates, LogtxError):
                    answer(fates)
                    continue
                outcome = c.Outcome(txid, fates[txid].state, fates[txid].commit_sequence)
                answer(Shard.answer_fate(command, outcome))
        self._looking_up = False

    async def _find(self, txids: set[TxId]) -> dict[TxId, Fate] | LogtxError:
        find = partial(find_fates, self._services.log, txids, timeout_s=LOOK_UP_TIMEOUT_S)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._services.reading, find)
        except (BrokerError, UnknownTopicError, KafkaException) as error:
            return CoordinatorLoadingError(f"the journal does not answer: {error}")
        except LogtxError as error:
            return error

    def execute(self, effect: Effect) -> None:
        """Write markers or offsets."""
        shard, services, tenure = self.tenure.shard, self._services, self.tenure
        match effect:
            case WriteOffsets(group, begin, offsets):
                key = OffsetsKey(group, self._partition, shard.incarnation, shard.epoch)
                services.offsets.write(key, offsets, partial(tenure.written, begin))
            case WriteMarkers(transaction):
                services.counters.decided(self._partition, shard.epoch, transaction)
                services.markers.write(transaction, shard.epoch, lambda: shard.hw, tenure.written)

    def close_session(self, producer_id: str, nonce: int, error: LogtxError) -> None:
        """End a producer's session for good."""
        self._services.close_session(self._partition, producer_id, nonce, error)

    def surprised(self, why: str) -> None:
        """The tenure is over."""
        self._on_surprised(self.tenure, why)
