"""The Spark session that is measured, and the memory of all its processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from logtx.integration.spark.session import local_session

from .bare import Bare
from .jars import connector_jars

ROOT: Final = Path(__file__).resolve().parents[2]
MASTER: Final = "local[2]"
MEMORY: Final = "2g"
_EVERY_S: Final = 0.5
"""Time between two looks at the memory. Shorter sees shorter peaks, and takes CPU."""


@contextmanager
def session_at(directory: Path) -> Iterator[Any]:
    """Yields a session on this machine alone, with the formats "logtx" and "bare"."""
    # Spark's workers import the bare source and sink.
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    settings = {
        "spark.jars": ",".join(connector_jars()),
        "spark.sql.shuffle.partitions": "4",
    }
    with local_session(directory, MASTER, MEMORY, settings) as session:
        session.dataSource.register(Bare)
        session.sparkContext.setLogLevel("OFF")  # tasks of a stopped query log errors
        yield session


class PeakMemory:
    """Measures the peak memory of this process and all below it together. A context manager.

    Pages that forked workers share are divided among them (Linux's proportional set size).
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(_EVERY_S):
            total = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    total += process.memory_full_info().pss
                except psutil.NoSuchProcess:
                    continue  # it has just ended
            self.peak_bytes = max(self.peak_bytes, total)

    def __enter__(self) -> Self:
        """Begins to watch."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops."""
        self._ended.set()
        self._thread.join()
