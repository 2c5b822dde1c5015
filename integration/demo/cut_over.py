"""The cut-over of the ledger while it is written: the old topic is sealed, a new one goes on.

1. The supervisor asks for it. Each worker writes the first half of its block to the old topic,
   waits until these records are there, and says so. Its transaction stays open.
2. The supervisor seals the old topic: from then on no record can be written there, nor a marker.
3. The workers write the second half to the new topic, and commit. These transactions span both.

Supervisor and workers tell each other by files in a directory. A worker that was killed in between
has aborted; its successor finds the old topic sealed, and writes the block to the new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ...coordinator.client.admin import AdminQueries
from ...journal.logs.interface import Log
from ...journal.modes import Mode
from ...journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ..local.topics import refuse_records
from .cluster import PARTITIONS, Names

_WRITTEN_WAIT_S: Final = 2.0
"""How long the supervisor waits until all workers have written, once one has. A worker without
input writes nothing; a larger value keeps the transactions of the others open for longer."""
_SEALED_WAIT_S: Final = 20.0
"""How long a worker waits for the seal before it goes on with the old topic; then it is asked
again with its next block."""
_SPANNED_WAIT_S: Final = 5.0
"""How long no process is killed after the seal, until a transaction that spans both topics is
committed. A smaller value may kill its worker; a larger one delays the faults if there is none."""
_POLL_S: Final = 0.02
"""Pause between two looks for a file; a larger value makes the cut-over last longer."""


class Signs:
    """The files by which supervisor and workers tell each other how far the cut-over is."""

    def __init__(self, directory: Path) -> None:
        """Takes the directory of one run's reports."""
        self._wanted = directory / "cut-over.wanted"
        self._sealed = directory / "cut-over.sealed"
        self._directory = directory

    @property
    def is_wanted(self) -> bool:
        """Whether the old topic is about to be sealed."""
        return self._wanted.exists()

    @property
    def is_sealed(self) -> bool:
        """Whether the old topic takes no records any more."""
        return self._sealed.exists()

    def want(self) -> None:
        """Asks the workers to write to the old topic once more."""
        self._wanted.touch()

    def seal(self) -> None:
        """Says that the old topic is sealed."""
        self._sealed.touch()

    def say_written(self, worker: str) -> None:
        """Says that a worker has written to the old topic, and waits with its commit."""
        (self._directory / f"cut-over.written-{worker}").touch()

    @property
    def written(self) -> int:
        """Number of the workers that said so."""
        return len(list(self._directory.glob("cut-over.written-*")))

    def await_sealed(self, stopping: Callable[[], bool]) -> bool:
        """Waits for a bounded time until the old topic is sealed. Returns whether it is."""
        deadline_s = time.monotonic() + _SEALED_WAIT_S
        while not (self.is_sealed or stopping() or time.monotonic() > deadline_s):
            time.sleep(_POLL_S)
        return self.is_sealed


class CutOver:
    """The supervisor's side. Call `step` often."""

    def __init__(
        self, kafka: Mapping[str, str], ledger: str, directory: Path, workers: int, begin_at: int
    ) -> None:
        """Prepares it.

        Args:
            kafka: librdkafka's settings for the cluster.
            ledger: the topic that is sealed.
            directory: of the run's reports.
            workers: number of the workers.
            begin_at: booked flights from which on it begins.
        """
        self._kafka, self._ledger = kafka, ledger
        self._signs = Signs(directory)
        self._workers, self._begin_at = workers, begin_at
        self._written_s: float | None = None
        self._sealed_s: float | None = None
        self.sealed_at: int | None = None
        """Booked flights when the old topic was sealed; None before."""

    def step(self, booked: int) -> None:
        """Goes on with the cut-over, as far as the workers are.

        Raises:
            TopicError: the topic could not be sealed.
        """
        if self.sealed_at is not None or booked < self._begin_at:
            return
        self._signs.want()
        written, now_s = self._signs.written, time.monotonic()
        if written and self._written_s is None:
            self._written_s = now_s
        if self._written_s is None:
            return
        if written >= self._workers or now_s - self._written_s > _WRITTEN_WAIT_S:
            refuse_records(self._kafka, self._ledger)
            self._signs.seal()
            self.sealed_at, self._sealed_s = booked, time.monotonic()

    def is_under_way(self, spanning: int) -> bool:
        """Returns whether processes should be left alone: a kill would abort what it is to show.

        Args:
            spanning: committed transactions that span both topics.
        """
        if self._sealed_s is not None:
            return not spanning and time.monotonic() - self._sealed_s < _SPANNED_WAIT_S
        return self._written_s is not None


def prepare_topics(log: Log, names: Names) -> None:
    """Creates the ledger's successor, and switches all topics of the run to metadata mode.

    Raises:
        LogtxError: a topic could not be created or switched.
    """
    log.create_topic(names.successor, partitions=PARTITIONS)
    topics = (names.flights, names.ledger, names.successor)
    with ThreadPoolExecutor(len(topics)) as at_once:
        list(at_once.map(lambda topic: _switch(log, topic), topics))


def _switch(log: Log, topic: str) -> None:
    admin = AdminQueries(log)
    try:
        admin.set_topic_mode(topic, Mode.METADATA, transaction_group=DEFAULT_TRANSACTION_GROUP)
    finally:
        admin.close()
