"""Where the demo runs: its data directory, a Kafka of its own or a given one, its topics."""

from __future__ import annotations

import itertools
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...coordinator.protocol.checkpoint import Checkpoint
from ...coordinator.transport.address import split
from ...journal.errors import ConfigError, UnknownTopicError
from ...journal.logs.interface import Log
from ...journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC, journal_partition_of
from ..local.cluster import LocalKafka
from ..local.errors import ProcessDiedError
from ..settings.read import read_settings, write_settings
from .errors import DemoError

JOURNAL_PARTITIONS: Final = 8
"""Partitions of the journal, if the demo's coordinators create it. With fewer partitions than
coordinators some own none; more partitions take longer to start."""
PARTITIONS: Final = 4
"""Partitions of both topics. The workers' assignment (`fleet.ASSIGNMENT`) names exactly these."""
_CONNECT_TIMEOUT_S: Final = 0.5
"""Bounds the look whether a known coordinator still listens. A smaller value may miss a slow one,
and the demo would start beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Topics, groups and producer ids of one run; another run on the cluster has others."""

    run: str = field(default_factory=lambda: secrets.token_hex(3))
    flights: str = "flights"
    ledger: str = "airport_ledger"
    successor: str = "airport_ledger_new"
    """What the ledger goes on in when it is sealed; only in metadata mode."""
    dead: str = "flights_dead"
    """Dead letters of the queue; only with it."""
    enriched: str = "flights_enriched"
    """Spark's part alone has it, and the totals."""
    totals: str = "airport_totals"

    @property
    def producer_prefix(self) -> str:
        """The prefix of the workers' producer ids."""
        return f"ledger-{self.run}-"

    def worker_group(self, transaction_group: str) -> str:
        """Returns the consumer group of a transaction group's workers.

        The transaction group alone commits its offsets.
        """
        return f"ledger-{self.run}-of-{transaction_group}"

    def transaction_groups(self, count: int, journal_partitions: int) -> list[str]:
        """Returns `count` transaction groups, each with a journal partition of its own.

        If there are fewer journal partitions than that, names are repeated.
        """
        groups: dict[int, str] = {}
        names = (f"{self.producer_prefix}{number}" for number in itertools.count())
        while len(groups) < min(count, journal_partitions):
            name = next(names)
            groups.setdefault(journal_partition_of(name, journal_partitions), name)
        return list(itertools.islice(itertools.cycle(groups.values()), count))

    def auditor_group(self, isolation_level: str) -> str:
        """Returns an auditor's consumer group."""
        return f"audit-{self.run}-{isolation_level}"


@contextmanager
def directory_of(given: Path | None) -> Iterator[Path]:
    """Provides the data directory: the given one, or a temporary one that is deleted at the end.

    Raises:
        DemoError: the directory can't be made.
    """
    path = given or Path(tempfile.mkdtemp(prefix="logtx-demo-"))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"Cannot make the data directory {path} ({error.strerror}).") from error
    try:
        yield path
    finally:
        if given is None:
            shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Kafka that the demo started, or a given one."""

    kafka: Mapping[str, str]
    """librdkafka's settings, with ``bootstrap.servers``."""
    settings_file: Path
    """The same as a file, for the demo's processes."""
    own: LocalKafka | None = None

    @property
    def bootstrap_servers(self) -> str:
        """``bootstrap.servers``."""
        return self.kafka["bootstrap.servers"]

    def check(self) -> None:
        """Raises ProcessDiedError if the demo's own Kafka has ended by itself."""
        if self.own is not None and not self.own.is_running:
            raise ProcessDiedError(
                f"Kafka ended by itself; its log is {self.own.log_path}.", self.own.log_tail()
            )


@contextmanager
def kafka_at(directory: Path, given: Mapping[str, str]) -> Iterator[Cluster]:
    """Starts a Kafka for the block, unless one is given. Removes the settings file after it."""
    with ExitStack() as stack:
        own = None if given else stack.enter_context(LocalKafka(directory / "kafka"))
        kafka = given if own is None else {"bootstrap.servers": own.bootstrap_servers}
        settings_file = directory / "kafka.properties"
        stack.callback(settings_file.unlink, missing_ok=True)
        write_settings(settings_file, kafka)
        yield Cluster(kafka, settings_file, own)


def coordinator_options(cluster: Cluster) -> tuple[str, ...]:
    """Returns the options of `logtx coordinator` that all of the demo's coordinators have."""
    config = ("--config", str(cluster.settings_file))
    return (*config, "--journal-partitions", str(JOURNAL_PARTITIONS))


def kafka_settings(path: str) -> Mapping[str, str]:
    """Returns librdkafka's settings from the file that the supervisor wrote."""
    return read_settings(Path(path)).kafka


def create_topics(log: Log) -> Names:
    """Creates the two topics, with the run's id in their names if the plain names are taken."""
    names = Names()
    plain = (names.flights, names.ledger, names.successor, names.dead)
    if any(_exists(log, topic) for topic in plain):
        run = names.run
        names = Names(
            run=run,
            flights=f"flights-{run}",
            ledger=f"airport_ledger-{run}",
            successor=f"airport_ledger_new-{run}",
            dead=f"flights_dead-{run}",
            enriched=f"flights_enriched-{run}",
            totals=f"airport_totals-{run}",
        )
    for topic in (names.flights, names.ledger):
        log.create_topic(topic, partitions=PARTITIONS)
    return names


def delete_topics(log: Log, names: Names) -> None:
    """Deletes the run's topics from a cluster that the demo did not start."""
    topics = (names.flights, names.ledger, names.successor, names.dead)
    for topic in (*topics, names.enriched, names.totals):
        if _exists(log, topic):
            log.delete_topic(topic)


def _exists(log: Log, topic: str) -> bool:
    try:
        log.topic_info(topic)
    except UnknownTopicError:
        return False
    return True


def journal_ends(log: Log) -> dict[int, int]:
    """Returns the end of each journal partition: the run's part begins there.

    Raises:
        DemoError: a coordinator runs. The demo kills coordinators, and must not kill yours.
    """
    try:
        count = log.partition_count(JOURNAL_TOPIC)
    except UnknownTopicError:
        return dict.fromkeys(range(JOURNAL_PARTITIONS), 0)
    checkpoints = (
        Checkpoint.from_group_offset(log.group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, partition))
        for partition in range(count)
    )
    for address in {found.address for found in checkpoints if found is not None}:
        if _listens(address):
            raise DemoError(
                f"A coordinator serves {log.bootstrap_servers} already, at {address}, and the demo "
                "kills coordinators: stop that one first, or leave --bootstrap-servers away."
            )
    return {partition: log.end_offset(JOURNAL_TOPIC, partition) for partition in range(count)}


def _listens(address: str) -> bool:
    try:
        socket.create_connection(split(address), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, ConfigError):
        return False
    return True


class StallWatch:
    """Detects that nothing has moved for too long."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._last: object = None
        self._since_s = time.monotonic()

    def stalled(self, progress: object) -> bool:
        """Returns whether `progress` has kept its value for longer than the limit."""
        now_s = time.monotonic()
        if progress != self._last:
            self._last, self._since_s = progress, now_s
        return now_s - self._since_s > self._limit_s
