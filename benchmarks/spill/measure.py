"""Writes large transactions to a broker, and measures readers of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import logtx
from logtx.producer.transaction import Transaction

from ..clients import PRODUCER, make_topic
from .payload import Payload
from .process import ReaderFailedError, ReaderProcess, Samples, disk_bytes
from .reader import Reading

GB: Final = 10**9
MEMORY_MAX_BYTES: Final = 64 * 1024 * 1024
"""``pending.memory.max.bytes`` of readers that spill: the default."""
UNLIMITED_BYTES: Final = 2**50
"""``pending.memory.max.bytes`` of readers that don't."""
TRANSACTION_TIMEOUT_MS: Final = 900_000
"""Must be enough to write the large transaction and to read all of it."""
COMMIT_TIMEOUT_S: Final = 120.0
"""Bounds the flush and the commit of a transaction."""
QUIET_TIMEOUT_S: Final = 120.0
"""Bounds the wait for a reader's next report, and a run of the buffer alone."""
_IDLE_REPORTS: Final = 2
"""Reports of a reader that gets nothing, by which it is known to stand at its partition's end."""
_TELL_EVERY: Final = 20_000
"""Records between two steps of the progress bar."""
_FREE_BYTES: Final = GB
"""Room to be left on the disk."""

Progress = Callable[[float], None]
"""Called with the share that is done, 0 to 1."""


class NotEnoughDiskError(Exception):
    """The data would not fit the disk; nothing was written."""


def check_room(directory: Path, gigabytes: float) -> None:
    """Checks that the disk has room for the log and for what readers spill.

    Raises:
        NotEnoughDiskError: it doesn't.
    """
    free = shutil.disk_usage(directory).free
    # Headers of records and batches add less than a tenth to records of 1 KB.
    needed = int(2.2 * gigabytes * GB) + _FREE_BYTES
    if free < needed:
        raise NotEnoughDiskError(
            f"{directory} has {free / GB:.1f} GB free, and a log of {gigabytes:g} GB with as much "
            f"spilled needs {needed / GB:.1f} GB: free some, set TMPDIR to another disk, or choose "
            "fewer with --gigabytes"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """How a transaction far larger than memory was read."""

    payload_bytes: int
    records: int
    samples: Samples
    committed_s: float
    """When it was committed, on the clock of the samples: all of it was pending then."""
    first_s: float
    """When the first record was delivered, on that clock."""
    seconds: float
    """From the assignment to the last record, including the wait for the commit."""
    peak_rss_bytes: int
    spilled_bytes: int
    most_disk_bytes: int
    left_disk_bytes: int
    """What is left after the reader has ended."""
    whole: bool
    """Whether all values came in order, by a digest of their bytes."""


class Bench:
    """Measures on a broker with a coordinator; readers spill into a directory of its own."""

    def __init__(self, servers: str, directory: Path, *, sidecar: bool = False) -> None:
        """Keeps the parameters; `written` and `write` write.

        Args:
            servers: the broker.
            directory: for what readers spill, and log.
            sidecar: whether transactions keep their records in sidecars.
        """
        self._servers, self._directory, self._sidecar = servers, directory, sidecar
        self._spill = directory / "spill"

    @contextmanager
    def written(self, topic: str, payload: Payload, progress: Progress) -> Iterator[Transaction]:
        """Writes a payload to one partition in a transaction, and yields that while it is open."""
        make_topic(self._servers, topic, 1)
        producer = logtx.Producer(
            {
                **PRODUCER,
                "bootstrap.servers": self._servers,
                "transactional.id": topic,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            }
        )
        with producer:
            producer.init_transactions()
            transaction = producer.begin_transaction(sidecar=self._sidecar)
            for number in range(payload.count):
                transaction.produce(topic, payload.value(number), partition=0)
                if not number % _TELL_EVERY:
                    progress(number / payload.count)
            if left := producer.flush(COMMIT_TIMEOUT_S):
                raise ReaderFailedError(f"{left} records were not acknowledged")
            progress(1.0)
            yield transaction

    def _reader(self, topic: str, payload: Payload, **more: Any) -> ReaderProcess:
        reading = Reading(servers=self._servers, topic=topic, count=payload.count, **more)
        return ReaderProcess(reading, self._spill, self._directory / "reader.log")

    def large(self, topic: str, payload: Payload, progress: Progress) -> Large:
        """Writes a transaction; a reader reads it while it is open, and delivers it when committed.

        Raises:
            ReaderFailedError: the reader failed.
        """
        with self.written(topic, payload, lambda share: progress(share / 3)) as transaction:
            with self._reader(topic, payload, check=True) as reader:
                self._await_pending(reader, payload.count, progress)
                committed_s = reader.age_s
                transaction.commit(COMMIT_TIMEOUT_S)
                reader.until("first", QUIET_TIMEOUT_S)
                first_s = reader.age_s
                done = self._await_done(reader, progress)
                reader.wait()
            samples = reader.samples
        return Large(
            payload_bytes=payload.size * payload.count,
            records=payload.count,
            samples=samples,
            committed_s=committed_s,
            first_s=first_s,
            seconds=done["seconds"],
            peak_rss_bytes=reader.peak_rss_bytes(done),
            spilled_bytes=done["spilled_bytes"],
            most_disk_bytes=max(samples.disk_bytes),
            left_disk_bytes=disk_bytes(self._spill),
            whole=done["digest"] == payload.digest(),
        )

    def _await_pending(self, reader: ReaderProcess, count: int, progress: Progress) -> None:
        if self._sidecar:
            for _ in range(_IDLE_REPORTS):
                reader.until("pending", QUIET_TIMEOUT_S)
            return
        deadline_s = time.monotonic() + TRANSACTION_TIMEOUT_MS / 1000
        pending = 0
        while pending < count:
            if time.monotonic() > deadline_s:
                raise ReaderFailedError(f"{pending} of {count} records are pending")
            pending = reader.until("pending", QUIET_TIMEOUT_S)["pending"]
            progress((1 + pending / count) / 3)

    def _await_done(self, reader: ReaderProcess, progress: Progress) -> dict[str, Any]:
        while "done" not in (told := reader.next(QUIET_TIMEOUT_S)):
            progress((2 + told.get("delivered", 1.0)) / 3)
        return told

    def write(self, topic: str, payload: Payload) -> None:
        """Writes a committed transaction, alone in its topic."""
        with self.written(topic, payload, lambda _: None) as transaction:
            transaction.commit(COMMIT_TIMEOUT_S)

    def seconds(self, topic: str, payload: Payload, memory_max_bytes: int) -> float:
        """Returns how long a new process takes to read a committed transaction.

        Raises:
            ReaderFailedError: the reader failed.
        """
        settings = {"pending.memory.max.bytes": memory_max_bytes}
        with self._reader(topic, payload, settings=settings) as reader:
            done = reader.until("done", QUIET_TIMEOUT_S)
            reader.wait()
        spilled = done["spilled_bytes"] > 0
        is_larger = memory_max_bytes < payload.size * payload.count
        if spilled is not (is_larger and not self._sidecar):
            raise ReaderFailedError(f"spilled {done['spilled_bytes']} bytes")
        seconds: float = done["seconds"]
        return seconds

    def buffer_seconds(self, payload: Payload, memory_max_bytes: int) -> float:
        """Returns how long the buffer alone takes for a payload, in a new process.

        Raises:
            ReaderFailedError: the process failed.
        """
        arguments = [payload.size, payload.count, memory_max_bytes, str(self._spill)]
        done = subprocess.run(
            [sys.executable, "-m", f"{__package__}.buffer", json.dumps(arguments)],
            capture_output=True,
            text=True,
            timeout=QUIET_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise ReaderFailedError(done.stderr[-2_000:])
        return float(json.loads(done.stdout))
