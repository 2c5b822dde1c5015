"""Where the demo runs: its directory, its Kafka or yours, its topics."""

from __future__ import annotations

import itertools
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...coordinator.protocol.checkpoint import Checkpoint
from ...journal.errors import UnknownTopicError
from ...journal.logs.interface import Log
from ...journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC, journal_partition_of
from ..local.cluster import LocalKafka
from ..local.errors import ProcessDiedError
from .errors import DemoError

JOURNAL_PARTITIONS: Final = 8
"""If the journal is created by the demo's coordinators."""
PARTITIONS: Final = 4
"""Of both topics."""
_CONNECT_TIMEOUT_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Topics, groups and producer ids of one run; other runs on the same cluster have others."""

    run: str = field(default_factory=lambda: secrets.token_hex(3))
    flights: str = "flights"
    ledger: str = "airport_ledger"

    @property
    def producer_prefix(self) -> str:
        """What the workers' producer ids begin with."""
        return f"ledger-{self.run}-"

    def worker_group(self, transaction_group: str) -> str:
        """Consumer group of the workers of a transaction group, which alone commits its offsets."""
        return f"ledger-{self.run}-of-{transaction_group}"

    def transaction_groups(self, count: int, journal_partitions: int) -> list[str]:
        """Names for so many, each in a journal partition of its own; few partitions are shared."""
        groups: dict[int, str] = {}
        names = (f"{self.producer_prefix}{number}" for number in itertools.count())
        while len(groups) < min(count, journal_partitions):
            name = next(names)
            groups.setdefault(journal_partition_of(name, journal_partitions), name)
        return list(itertools.islice(itertools.cycle(groups.values()), count))

    def auditor_group(self, isolation_level: str) -> str:
        """Consumer group of an auditor."""
        return f"audit-{self.run}-{isolation_level}"


@contextmanager
def directory_of(given: Path | None) -> Iterator[Path]:
    """The data directory: the given one, or a temporary one that goes at the end."""
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
    """A Kafka of our own, or the one given."""

    bootstrap_servers: str
    own: LocalKafka | None = None

    def check(self) -> None:
        """Raise ProcessDiedError if our own has ended by itself."""
        if self.own is not None and not self.own.is_running:
            raise ProcessDiedError(
                f"Kafka ended by itself; its log is {self.own.log_path}.", self.own.log_tail()
            )


@contextmanager
def kafka_at(directory: Path, bootstrap_servers: str | None) -> Iterator[Cluster]:
    """A Kafka of our own, or the one given."""
    if bootstrap_servers is not None:
        yield Cluster(bootstrap_servers)
        return
    with LocalKafka(directory / "kafka") as kafka:
        yield Cluster(kafka.bootstrap_servers, kafka)


def create_topics(log: Log) -> Names:
    """Create the two topics, under names of their own where the plain ones are taken."""
    names = Names()
    if any(_exists(log, topic) for topic in (names.flights, names.ledger)):
        run = names.run
        names = Names(run=run, flights=f"flights-{run}", ledger=f"airport_ledger-{run}")
    for topic in (names.flights, names.ledger):
        log.create_topic(topic, partitions=PARTITIONS)
    return names


def delete_topics(log: Log, names: Names) -> None:
    """Remove the run's topics, from a cluster that is not ours."""
    for topic in (names.flights, names.ledger):
        log.delete_topic(topic)


def _exists(log: Log, topic: str) -> bool:
    try:
        log.topic_info(topic)
    except UnknownTopicError:
        return False
    return True


def journal_ends(log: Log) -> dict[int, int]:
    """Where our part of each journal partition will begin: its end, as no coordinator runs.

    Raises:
        DemoError: a coordinator runs. The demo kills coordinators, and must not kill yours.
    """
    try:
        count = log.topic_info(JOURNAL_TOPIC).partition_count
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
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError):
        return False
    return True


class StallWatch:
    """Tells when nothing has moved for too long."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._last: object = None
        self._since_s = time.monotonic()

    def stalled(self, progress: object) -> bool:
        """Whether `progress` has been equal to this for longer than the limit."""
        now_s = time.monotonic()
        if progress != self._last:
            self._last, self._since_s = progress, now_s
        return now_s - self._since_s > self._limit_s
