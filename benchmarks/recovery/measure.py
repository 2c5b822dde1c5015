"""Measures loads of one long journal: from its start, from a snapshot, by a real coordinator."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message

from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.snapshot import SnapshotTaker
from logtx.coordinator.runtime.appender import APPENDER_CONFIG
from logtx.coordinator.runtime.internal_topics import JOURNAL_SETTINGS
from logtx.coordinator.runtime.loading import load
from logtx.journal.logs.interface import Log
from logtx.journal.reader import (
    COORDINATORS_GROUP,
    JOURNAL_TOPIC,
    read_entries,
    read_records,
)
from logtx.journal.records.codec import encode_entry

from ..failover.fleet import CoordinatorFailedError, coordinator_child
from .history import TOPIC, TOPIC_PARTITIONS

TIMEOUT_S: Final = 300.0
"""Bounds a load, and the wait for a coordinator's snapshot."""
_LOADED: Final = re.compile(r"partition_loaded partition=0 next_offset=\d+ loaded_ms=(\d+)")
_POLL_S: Final = 0.05
"""Time between two looks for the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Seconds of repeated loads of one journal."""

    title: str
    records: int
    read_s: list[float]
    """Reading alone."""
    decoded_s: list[float]
    """Reading and decoding."""
    loaded_s: list[float]
    """Reading, decoding and replaying, by `load`."""
    cpu_s: list[float]
    """CPU time of all threads during `loaded_s`. On a busy machine only this says something."""
    process_s: float
    """The same by `logtx coordinator`, as its log says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """How long each chunk of a snapshot holds the event loop, in milliseconds."""

    chunks: int
    rows_ms: list[float]
    """The first chunk, with the copy of all rows."""
    chunk_ms: list[float]
    """Each further chunk."""


class Bench:
    """Measures on one broker with one journal partition."""

    def __init__(self, log: Log, directory: Path, tell: Callable[[str], None]) -> None:
        """Creates an empty journal.

        Args:
            log: the broker's log.
            directory: where coordinators write their logs.
            tell: called with a text that says what is going on.
        """
        self._log, self._directory, self._tell = log, directory, tell
        log.create_topic(JOURNAL_TOPIC, partitions=1, settings=JOURNAL_SETTINGS)
        log.create_topic(TOPIC, partitions=TOPIC_PARTITIONS)

    @property
    def records(self) -> int:
        """Number of records in the journal."""
        return self._log.end_offset(JOURNAL_TOPIC, 0)

    def append(self, batches: Iterable[list[bytes]]) -> None:
        """Appends to the journal what a `History` made."""
        self._tell("writing the journal")
        producer = self._log.producer({**APPENDER_CONFIG, "linger.ms": 50})

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                raise CoordinatorFailedError(f"the journal took no record: {error.str()}")

        for values in batches:
            for value in values:
                while len(producer) > 100_000:
                    producer.poll(0.01)
                producer.produce(JOURNAL_TOPIC, value, partition=0, on_delivery=delivered)
            producer.poll(0)
        producer.flush(TIMEOUT_S)
        producer.close()

    def cold(self, rounds: int) -> Loads:
        """Loads from the journal's start. Then a coordinator loads it too, and takes a snapshot."""
        return self._loads("from the journal's start", 0, rounds)

    def behind_snapshot(self, rounds: int) -> Loads:
        """Loads from the snapshot on, which `cold` has left."""
        return self._loads("behind a snapshot", self._checkpoint(), rounds)

    def _loads(self, title: str, start: int, rounds: int) -> Loads:
        self._tell(f"loading {title}")
        loads = [_timed(self.load) for _ in range(rounds)]
        return Loads(
            title=title,
            records=self.records - start,
            read_s=[_timed(self._read, start)[0] for _ in range(rounds)],
            decoded_s=[_timed(self._decode, start)[0] for _ in range(rounds)],
            loaded_s=[wall_s for wall_s, _ in loads],
            cpu_s=[cpu_s for _, cpu_s in loads],
            process_s=self._process_s(),
        )

    def _read(self, start: int) -> None:
        for message in read_records(
            self._log, JOURNAL_TOPIC, 0, start, self.records, timeout_s=TIMEOUT_S
        ):
            message.value()

    def _decode(self, start: int) -> None:
        for _ in read_entries(self._log, 0, start, self.records, timeout_s=TIMEOUT_S, lazily=True):
            pass

    def load(self) -> Replica:
        """Loads the journal as a coordinator does."""
        return load(self._log, 0, ShardConfig(), timeout_s=TIMEOUT_S)

    def _process_s(self) -> float:
        """Runs a coordinator until it has a snapshot; returns the load's seconds from its log."""
        coordinator = coordinator_child(self._log.bootstrap_servers, self._directory)
        before = coordinator.log.stat().st_size if coordinator.log.exists() else 0
        coordinator.start()
        try:
            coordinator.await_ready()
            deadline_s = time.monotonic() + TIMEOUT_S
            while not self._checkpoint():
                if time.monotonic() > deadline_s:
                    raise CoordinatorFailedError("the coordinator took no snapshot")
                time.sleep(_POLL_S)
        finally:
            coordinator.kill()
        found = _LOADED.search(coordinator.log.read_text()[before:])
        if found is None:
            raise CoordinatorFailedError("the coordinator did not say how long it loaded")
        return int(found[1]) / 1000

    def _checkpoint(self) -> int:
        committed = self._log.group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, 0)
        return committed.offset if committed is not None else 0

    def stall(self, rounds: int) -> Stall:
        """Takes snapshots of the loaded shard, as `Tenure.snapshot` does, but appends nothing."""
        self._tell("taking snapshots")
        shard = self.load().shard
        rows_ms, chunk_ms, count = [], [], 0
        for _ in range(rounds):
            started_s = time.perf_counter()
            taker = SnapshotTaker(shard)
            encode_entry(shard.entry(taker.chunk()))
            rows_ms.append((time.perf_counter() - started_s) * 1000)
            count = 1
            while not taker.done:
                started_s = time.perf_counter()
                encode_entry(shard.entry(taker.chunk()))
                chunk_ms.append((time.perf_counter() - started_s) * 1000)
                count += 1
        return Stall(chunks=count, rows_ms=rows_ms, chunk_ms=chunk_ms)


def _timed(work: Callable[..., object], *args: int) -> tuple[float, float]:
    """Returns the seconds, and the seconds of CPU time, that `work` takes."""
    started_s, cpu_s = time.perf_counter(), time.process_time()
    work(*args)
    return time.perf_counter() - started_s, time.process_time() - cpu_s
