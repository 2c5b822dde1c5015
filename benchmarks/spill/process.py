"""Runs a reader in a process, and watches its memory and its spill directory from outside."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from .reader import Reading

SAMPLE_S: Final = 0.1
"""Time between samples. Longer misses short peaks of the disk."""
_STOP_TIMEOUT_S: Final = 10.0
"""How long the reader may take to end."""


class ReaderFailedError(Exception):
    """The reader's process ended early, or reported nothing for too long."""


@dataclass(slots=True)
class Samples:
    """What was seen: three lists with a value for each time."""

    at_s: list[float] = field(default_factory=list)
    """Seconds since the process began."""
    rss_bytes: list[int] = field(default_factory=list)
    disk_bytes: list[int] = field(default_factory=list)
    """Size on disk of all files in the spill directory."""


def disk_bytes(directory: Path) -> int:
    """Returns what the files of a directory occupy; those deleted meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


class ReaderProcess:
    """Starts a reader and samples it. A context manager."""

    def __init__(self, reading: Reading, spill_directory: Path, errors: Path) -> None:
        self.samples = Samples()
        self._directory = spill_directory
        self._errors = errors
        self._reading = reading
        self._told: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        """Starts the process, and begins to sample."""
        self._directory.mkdir(exist_ok=True)
        settings = {"pending.dir": str(self._directory), **self._reading.settings}
        command = [sys.executable, "-m", f"{__package__}.reader"]
        text = Reading(**{**json.loads(self._reading.to_json()), "settings": settings}).to_json()
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, text], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._began_s = time.monotonic()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._listen, self._sample)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kills the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(_STOP_TIMEOUT_S)
        self._ended.set()
        for thread in self._threads:
            thread.join(_STOP_TIMEOUT_S)

    @property
    def age_s(self) -> float:
        """Seconds since the process was started."""
        return time.monotonic() - self._began_s

    def next(self, timeout_s: float) -> dict[str, Any]:
        """Waits for the reader's next report and returns it. Raises ReaderFailedError."""
        try:
            told = self._told.get(timeout=timeout_s)
        except queue.Empty:
            raise ReaderFailedError(f"the reader told nothing for {timeout_s:.0f} s") from None
        if told is None:
            raise ReaderFailedError(self._errors.read_text(errors="replace")[-2_000:])
        return told

    def until(self, name: str, timeout_s: float) -> dict[str, Any]:
        """Returns the next report that has the key `name`; skips the others.

        Raises:
            ReaderFailedError: the reader ended, or reported nothing for `timeout_s`.
        """
        while name not in (told := self.next(timeout_s)):
            pass
        return told

    def peak_rss_bytes(self, done: dict[str, Any]) -> int:
        """Returns the most memory that the reader had resident.

        That is the greatest of the kernel's count and the samples: the kernel counts per thread and
        adds up late, and samples miss short peaks.
        """
        return max(done["peak_rss_bytes"] or 0, *self.samples.rss_bytes)

    def wait(self) -> None:
        """Waits until the process has ended by itself, and has deleted what it spilled."""
        self._process.wait(_STOP_TIMEOUT_S)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._told.put(json.loads(line))
        self._told.put(None)

    def _sample(self) -> None:
        process = psutil.Process(self._process.pid)
        while not self._ended.wait(SAMPLE_S):
            try:
                rss_bytes = process.memory_info().rss
            except psutil.Error:
                return
            self.samples.at_s.append(self.age_s)
            self.samples.rss_bytes.append(rss_bytes)
            self.samples.disk_bytes.append(disk_bytes(self._directory))
