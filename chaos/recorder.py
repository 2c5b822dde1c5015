"""The history: one JSON object per line, one file per life of a process.

When `write` returns, the kernel has the line, so SIGKILL loses none. It may tear the last one,
which readers ignore. A process writes what it is about to do before it does it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def history_of(directory: Path, process: str) -> Path:
    """Returns the path of the file of one life of a process in a run's history.

    `process` is `<role>-<number>.<life>`.
    """
    return directory / f"{process}.jsonl"


class Recorder:
    """Appends events to `<directory>/<process>.jsonl`. Safe from any thread."""

    def __init__(self, directory: Path, process: str, *, joins: bool = False) -> None:
        """Creates the file.

        Args:
            directory: of the history.
            process: `<role>-<number>.<life>`.
            joins: go on with the file that another process of this life has created.

        Raises:
            FileExistsError: that life has a history already.
            FileNotFoundError: it has none, and `joins`.
        """
        self.process = process
        self._lock = threading.Lock()
        self._file: int | None = os.open(
            history_of(directory, process),
            os.O_WRONLY | os.O_APPEND | (0 if joins else os.O_CREAT | os.O_EXCL),
            0o644,
        )

    def write(self, event: str, **fields: Any) -> None:
        """Appends an event. Its time is CLOCK_MONOTONIC in ns, which all processes share.

        Writes nothing once the file is closed: callbacks may come late.
        """
        with self._lock:
            if self._file is None:
                return
            line = _ENCODE({"at": time.monotonic_ns(), "event": event, **fields}).encode() + b"\n"
            while line:
                line = line[os.write(self._file, line) :]

    def close(self) -> None:
        """Closes the file. May be repeated."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __enter__(self) -> Self:
        """Returns the recorder."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the file."""
        self.close()
