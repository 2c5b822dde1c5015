"""The process of a worker of any kind: how it begins, reports its commits, and ends."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol, TextIO

from ...coordinator.protocol.commands import Outcome
from ...journal.errors import ClaimFencedError, ProducerFencedError
from ..block import Block
from .reports import FENCED_STATUS

_LOG = logging.getLogger(__name__)


class CommitReport:
    """Tells how long commits took: a JSON line for each that was requested, however it ended."""

    def __init__(self, file: TextIO) -> None:
        """Begins empty; the caller closes the file."""
        self._file = file

    def commit(self, block: Block) -> None:
        """Asks for the commit of a block, and reports it when it is decided.

        `process` would commit by itself, but would not tell how long the commit took.
        """
        started_s = time.perf_counter()
        commit = block.txn.commit_async()
        commit.add_done_callback(partial(self._committed, len(block), started_s))

    def _committed(self, flights: int, started_s: float, _: Future[Outcome]) -> None:
        commit_ms = (time.perf_counter() - started_s) * 1000
        self._file.write(json.dumps({"flights": flights, "commit_ms": round(commit_ms, 3)}) + "\n")
        self._file.flush()


class Running(Protocol):
    """A worker."""

    def run(self) -> None:
        """Books blocks until told to stop."""

    def close(self) -> None:
        """Closes its clients."""


def run_worker(path: Path, make: Callable[[CommitReport, threading.Event], Running]) -> None:
    """Runs a worker until SIGTERM. One that was fenced ends with `FENCED_STATUS`.

    Args:
        path: of the report, to which each process adds a number.
        make: makes the worker, from its report and what is set when it is to end after the current
            block.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    # One file per process: a predecessor's last line may have been cut off by its kill.
    number = len(list(path.parent.glob(f"{path.name}.*")))
    with path.with_name(f"{path.name}.{number}").open("x") as file:
        try:
            worker = make(CommitReport(file), stopping)
            try:
                worker.run()
            finally:
                worker.close()
        except (ProducerFencedError, ClaimFencedError) as error:
            _LOG.warning("fenced error=%r", error)
            sys.exit(FENCED_STATUS)
