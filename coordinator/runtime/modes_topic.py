"""Writes `__transaction_topics`: the modes of topics, for consumers.

The topic is created when the first mode is published: a cluster that switches no topic has none.
The home's replayed state is the truth; each owner writes it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from ...journal.errors import LogtxError, TopicModeError
from ...journal.logs.interface import Log
from ...journal.mode_registry import ModeKey, TopicModeRecord, encode_key, encode_value
from ...journal.modes import MODES_TOPIC
from ..core.modes_lanes import ModesLanes
from ..core.offsets_lanes import Written
from ..tasks import essential_task
from .alarm import Alarm, monotonic_ms
from .appender import Appender
from .internal_topics import prepare_modes_topic

_LOG = logging.getLogger(__name__)

RULE_S: Final = 10.0
"""Longest wait until a rule is durable. It may be written after all: rules are set again."""


class ModesWriter:
    """Writes modes as `ModesLanes` asks for it; lives on the event loop."""

    def __init__(self, log: Log, replication_factor: int) -> None:
        """Does nothing before the first mode.

        Args:
            log: the log that holds the topic.
            replication_factor: replicas of the topic, if it must be created; -1 is the broker's
                default.
        """
        self._log = log
        self._replication_factor: Final = replication_factor
        self._lanes = ModesLanes(self)
        self._alarm = Alarm(self._lanes.tick)
        self._appender: Appender | None = None
        """None until the topic is there."""
        self._preparing: asyncio.Lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # ---- what the coordinator asks --------------------------------------------------------------

    async def prepare(self) -> LogtxError | None:
        """Creates the topic if it is missing; returns why that can't be done.

        To be called before a switch is decided: markers behind its mode records wait until readers
        are told of it.
        """
        if await self._prepared() is not None:
            return None
        return TopicModeError(
            f"{MODES_TOPIC} can't be created or has settings that logtx can't use: no topic is"
            " switched before readers can be told; see modes_topic_not_prepared in the"
            " coordinator's log"
        )

    def write(self, key: ModeKey, mode: TopicModeRecord, written: Written) -> None:
        """Writes a topic's mode. See `ModesLanes.write`."""
        self._lanes.write(key, mode, written, monotonic_ms())

    async def write_rule(self, key: bytes, value: bytes | None) -> bool:
        """Writes or removes a rule (`journal.mode_rules`). Returns whether it is durable."""
        appender = await self._prepared()
        if appender is None or self._closed:
            return False
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def acknowledge(offset: int | None, error: KafkaError | None) -> None:
            if error is not None:
                _LOG.warning("rule_not_written error=%s", error.name())
            if not written.done():
                written.set_result(offset is not None)

        appender.renew_if_broken()
        appender.append(MODES_TOPIC, 0, acknowledge, key=key, value=value)
        try:
            async with asyncio.timeout(RULE_S):
                return await written
        except TimeoutError:
            return False

    def clear_former(self, key: ModeKey) -> None:
        """Removes an earlier owner's record. If that fails, readers ignore it by its offset.

        Call it when this owner's is durable: else a reader would meet the removal alone.
        """

        def acknowledge(_offset: int | None, error: KafkaError | None) -> None:
            if error is not None:
                _LOG.warning("mode_not_cleared topic=%s error=%s", key.topic, error.name())

        if self._appender is not None:
            self._appender.renew_if_broken()
            self._appender.append(MODES_TOPIC, 0, acknowledge, key=encode_key(key))

    def forget(self, partition: int) -> None:
        """Drops what is queued for a journal partition that must be loaded again."""
        self._lanes.forget(partition)

    async def close(self) -> None:
        """Stops. The next owner writes what was not written."""
        self._closed = True
        self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        if self._appender is not None:
            await self._appender.close()

    # ---- what the lanes ask: see `core.offsets_lanes.Shell` -------------------------------------

    def append(self, key: ModeKey, value: TopicModeRecord | None) -> None:
        """Writes a mode, and creates the topic before the first one."""
        if not self._closed:
            self._spawn(self._append(key, value))

    async def _append(self, key: ModeKey, value: TopicModeRecord | None) -> None:
        appender = await self._prepared()
        if appender is None:
            self._lanes.answered(key, monotonic_ms(), durable=False)
            return

        def acknowledge(offset: int | None, error: KafkaError | None) -> None:
            if error is not None:
                _LOG.warning("mode_not_written topic=%s error=%s", key.topic, error.name())
            self._lanes.answered(key, monotonic_ms(), durable=offset is not None)

        # Order matters within a lane alone, and that has one write in flight.
        appender.renew_if_broken()
        raw = None if value is None else encode_value(value)
        appender.append(MODES_TOPIC, 0, acknowledge, key=encode_key(key), value=raw)

    async def _prepared(self) -> Appender | None:
        """Returns the appender; None if the topic can't be created now, or has bad settings."""
        async with self._preparing:
            if self._appender is None:
                try:
                    await asyncio.to_thread(
                        prepare_modes_topic, self._log, self._replication_factor
                    )
                except (LogtxError, KafkaException) as error:
                    # Until readers are told, the switch is not final for who asked for it.
                    _LOG.error("modes_topic_not_prepared error=%s", error)
                    return None
                self._appender = Appender(self._log, {}, "modes")
            return self._appender

    def wake_at(self, at_ms: int) -> None:
        """Calls `ModesLanes.tick` at `at_ms`."""
        if not self._closed:
            self._alarm.set(at_ms)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = essential_task(coroutine, "modes")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
