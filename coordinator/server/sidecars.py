"""Creates the sidecars of topics when they are first asked for, and asks for ends of main
partitions.

A sidecar has as many partitions as its topic, its replicas and limits, and no retention: what a
pointer names must stay until the pointer is gone. Lives on the coordinator's event loop; the log is
asked outside of it.

Source: PIP-31, "Sidecar Approach".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from confluent_kafka import KafkaException

from ...journal.control import TopicPartition
from ...journal.errors import (
    CoordinatorBusyError,
    LogtxError,
    NotSupportedError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from ...journal.logs.interface import Log, TopicInfo
from ...journal.records.codec import WITH_PLACED_SIDECARS, WITH_POINTERS
from ...journal.sidecar import sidecar_of
from ..core.topic_homes import TopicHomes
from ..membership.members import Members
from ..protocol.commands import Done, OpenSidecars
from ..runtime.internal_topics import MESSAGE_DEFAULT_BYTES, found_and_mended
from ..runtime.questions import Questions
from ..runtime.topics import TopicLookUps

_LOG = logging.getLogger(__name__)

REQUIRED: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""Settings of a sidecar. With others committed records could be lost."""
COPIED: Final = ("max.message.bytes", "min.insync.replicas", "message.timestamp.type")
"""Settings that a sidecar takes over from its topic when it is created. A limit below Kafka's
default it does not: a topic may be sealed by one for a while, and nobody would unseal its sidecar
(trap 292)."""
TIMEOUT_S: Final = 10.0
"""Bound of each question to the log."""
ENDS_TIMEOUT_S: Final = 2.0
"""Bound of the question for ends before a commit. A longer one holds up the other commits of the
stream while a broker is away; with a shorter one they are refused, and asked for again."""
CONFIRM_S: Final = 5.0
"""How long a topic must be told to have fewer partitions than its sidecar until that is believed. A
broker that is behind tells what the topic had before it got more; with a longer time a producer is
told later."""


class Sidecars:
    """Opens sidecars for the clients of one coordinator."""

    def __init__(self, log: Log, look_ups: TopicLookUps) -> None:
        """Asks nothing yet.

        Args:
            log: the log that holds the data partitions.
            look_ups: looks up data topics.
        """
        self.members: Members | None = None
        """Tells what other coordinators read; None: there are none."""
        self.homes: TopicHomes | None = None
        """Tells which topics are in metadata mode; None: none is."""
        self._log, self._look_ups = log, look_ups
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="sidecars")
        self._questions = Questions()
        self._larger_s: dict[str, float] = {}
        """Sidecar → when it was first told to have more partitions than its topic."""

    async def open(self, command: OpenSidecars) -> Done:
        """Creates those sidecars that are missing, gives them the partitions that they lack, and
        checks them.

        Raises:
            UnsupportedTopicError: a topic can't have one, or its sidecar has a setting that could
                lose records; the message says how to mend it.
            UnknownTopicError: there is no such topic.
            NotSupportedError: a coordinator answers that does not read journals with sidecars.
            BrokerError: the log does not answer, or a right is missing.
            CoordinatorBusyError: topics could not be looked up, or are doubted; ask again.
        """
        names = {topic: sidecar_of(topic) for topic in command.topics}
        self._check_builds(command.topics)
        refusal = await self._look_ups.learn([(topic, 0) for topic in names])
        if refusal is not None:
            raise refusal
        loop = asyncio.get_running_loop()
        for topic, sidecar in names.items():
            await loop.run_in_executor(self._threads, self._open, topic, sidecar)
        refusal = await self._look_ups.learn([(sidecar, 0) for sidecar in names.values()])
        if refusal is not None:
            raise refusal
        return Done()

    def _check_builds(self, topics: Collection[str]) -> None:
        # Who switches a topic checks that all coordinators read what is decided then.
        placed = self.homes is not None and any(map(self.homes.knows, topics))
        needed = WITH_PLACED_SIDECARS if placed else WITH_POINTERS
        self._check_format(needed, "ask again")

    def check_builds_for_places(self) -> None:
        """Refuses a commit that would be placed in the main partition of a sidecar, while another
        coordinator would stop at that decision.

        It may have come back since the sidecar was opened and the topic was switched.

        Raises:
            NotSupportedError: names that coordinator.
        """
        self._check_format(WITH_PLACED_SIDECARS, "abort, and write it again")

    def _check_format(self, needed: int, then: str) -> None:
        others = self.members.reached(time.monotonic()) if self.members is not None else []
        for other in others:
            if other.journal_format < needed:
                where = " in metadata mode" if needed == WITH_PLACED_SIDECARS else ""
                raise NotSupportedError(
                    f"the coordinator at {other.address} does not read journals with sidecars of"
                    f" topics{where}: upgrade it, then {then}"
                )

    def _open(self, topic: str, sidecar: str) -> None:
        """Creates one sidecar, or checks it; runs in a thread."""
        main = self._log.topic_info(topic, timeout_s=TIMEOUT_S)
        try:
            found = self._log.topic_info(sidecar, timeout_s=TIMEOUT_S)
        except UnknownTopicError:
            settings = {
                name: value for name in COPIED if (value := (main.settings or {}).get(name))
            }
            if int(settings.get("max.message.bytes", 0)) < MESSAGE_DEFAULT_BYTES:
                settings.pop("max.message.bytes", None)
            created = self._log.create_topic(
                sidecar,
                partitions=main.partition_count,
                replication_factor=main.replication_factor,
                settings={**settings, **REQUIRED},
                timeout_s=TIMEOUT_S,
            )
            if created:
                _LOG.info("sidecar_created topic=%s partitions=%d", sidecar, main.partition_count)
            found = self._log.topic_info(sidecar, timeout_s=TIMEOUT_S)
        if found.partition_count < main.partition_count:
            # The topic got partitions: records for them would have nowhere to go.
            self._log.raise_partitions(sidecar, main.partition_count, timeout_s=TIMEOUT_S)
            _LOG.info("sidecar_grown topic=%s partitions=%d", sidecar, main.partition_count)
            found = self._log.topic_info(sidecar, timeout_s=TIMEOUT_S)
            if found.partition_count < main.partition_count:
                raise CoordinatorBusyError(f"{sidecar} is told to lack the partitions it just got")
        if found.partition_count <= main.partition_count:
            self._larger_s.pop(sidecar, None)
        elif time.monotonic() - self._larger_s.setdefault(sidecar, time.monotonic()) < CONFIRM_S:
            raise CoordinatorBusyError(f"{sidecar} is told to have more partitions than {topic}")
        check_sidecar(found, main, self._log.bootstrap_servers)

    async def main_ends(self, mains: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Returns the ends of main partitions, for `Marker.since`.

        An end that a former leader tells is too low, which makes readers look further back, and no
        harm.

        Raises:
            CoordinatorBusyError: a partition did not answer; nothing was done, ask again.
        """
        try:
            told = await self._questions.ask(
                "since", lambda: self._log.each_end_offset(mains, timeout_s=ENDS_TIMEOUT_S)
            )
        except (LogtxError, KafkaException) as error:
            raise CoordinatorBusyError(f"the ends of {len(mains)} partitions: {error}") from error
        ends: dict[TopicPartition, int] = {}
        for key, end in told.items():
            if isinstance(end, LogtxError):
                raise CoordinatorBusyError(f"the end of {key[0]}[{key[1]}]: {end}") from end
            ends[key] = end
        return ends

    def close(self) -> None:
        """Stops asking, without waiting for what is under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._questions.close()


def check_sidecar(found: TopicInfo, main: TopicInfo, servers: str) -> None:
    """Refuses a sidecar that could lose records, or has not the partitions of its topic.

    Args:
        found: what the log says of it.
        main: what it says of its topic.
        servers: ``bootstrap.servers``, for the command in the error's message.

    Raises:
        UnsupportedTopicError: names what is wrong and the command that mends it.
    """
    settings = found.settings or {}
    wrong = {name: value for name, value in REQUIRED.items() if settings.get(name, value) != value}
    if wrong:
        told, mend = found_and_mended(found, wrong, servers)
        raise UnsupportedTopicError(
            f"{found.topic} has {told}, and committed records could be lost; mend it with: {mend}"
        )
    if found.partition_count < main.partition_count:
        raise UnsupportedTopicError(
            f"{found.topic} has {found.partition_count} partitions, and {main.topic}"
            f" {main.partition_count}; mend it with: kafka-topics.sh --bootstrap-server {servers}"
            f" --alter --topic {found.topic} --partitions {main.partition_count}"
        )
    if found.partition_count > main.partition_count:
        # Records go to its partitions by key, and the topic could not point to all of them.
        tool = f"kafka-topics.sh --bootstrap-server {servers}"
        raise UnsupportedTopicError(
            f"{found.topic} has {found.partition_count} partitions, and {main.topic}"
            f" {main.partition_count}: it belonged to a topic of that name that was deleted. Give"
            f" {main.topic} as many: {tool} --alter --topic {main.topic} --partitions"
            f" {found.partition_count}; or, if nothing was committed to the new {main.topic} by a"
            f" transaction with a sidecar, delete it: {tool} --delete --topic {found.topic}"
        )
