"""What the tenure of a partition acts through: the journal, the writers and the sessions."""

from __future__ import annotations

import asyncio
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
from ..journal.log import Log
from ..journal.reader import JOURNAL_TOPIC, find_fates
from ..journal.txid import TxId
from . import commands as c
from .appender import Appender
from .counters import Counters
from .decision import Effect, TopicFacts, WriteMarkers, WriteOffsets
from .housekeeping import HousekeepingConfig
from .markers import MarkerWriter
from .members import Members
from .offsets_log import OffsetsKey, OffsetsWriter
from .pressure import Pressure
from .shard import Shard
from .tail import Tail
from .tenure import Tenure

LOOK_UP_TIMEOUT_S: Final = 30.0

Answer = Callable[[c.Reply], None]
"""Called once with the reply to a request."""


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
    topics: dict[str, TopicFacts] = field(default_factory=dict)
    """Of data topics; grows as they are looked up."""
    counters: Counters = field(default_factory=Counters)
    changed: Callable[[], None]
    """Called when a partition's owner or this coordinator's part in it changed."""
    close_session: Callable[[int, str, int, LogtxError], None]
    """Called with journal partition, producer id, session nonce and the reason."""
    close_sessions: Callable[[int, LogtxError], None]
    """Called with a journal partition whose sessions must all connect again."""


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
        log = self._services.log
        try:
            end = await asyncio.to_thread(log.end_offset, JOURNAL_TOPIC, self._partition)
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
        self._ask(self._look_up(ref, command, txid))

    async def _look_up(self, answer: Answer, command: c.Command, txid: TxId) -> None:
        reply: c.Reply
        find = partial(find_fates, self._services.log, [txid], timeout_s=LOOK_UP_TIMEOUT_S)
        loop = asyncio.get_running_loop()
        try:
            fates = await loop.run_in_executor(self._services.reading, find)
        except (BrokerError, UnknownTopicError, KafkaException) as error:
            reply = CoordinatorLoadingError(f"the journal does not answer: {error}")
        except LogtxError as error:
            reply = error
        else:
            fate = fates[txid]
            outcome = c.Outcome(txid, fate.state, fate.commit_sequence)
            reply = Shard.answer_fate(command, outcome)
        answer(reply)

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
