"""What the workload's processes share: their command line, SIGTERM, the end."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...journal.native.loading import VARIABLE, described, find_reader
from ..errors import ChaosError
from ..recorder import Recorder
from ..settings import (
    FENCED_STATUS,
    HISTORY,
    INTERRUPTED_STATUS,
    KEYS_PER_PARTITION,
    STACKS_SIGNAL,
    Settings,
    partitions_now,
)

_LOG = logging.getLogger(__name__)


class TakenOverError(Exception):
    """Another process has taken this one's name."""


class Process:
    """One life of a process of the workload."""

    def __init__(self, role: str, directory: Path, number: int, life: int) -> None:
        """Reads the settings, and creates the file of the history."""
        self.settings: Final = Settings.load(directory)
        self.directory: Final = directory
        self.number: Final = number
        self.life: Final = life
        self.name: Final = f"{role}-{number}.{life}"
        self.recorder: Final = Recorder(directory / HISTORY, self.name)
        self.stopping: Final = threading.Event()
        # What it does is drawn from the seed too, though timing lets no run repeat exactly.
        self.random: Final = random.Random(f"{self.settings.seed}/{self.name}")
        self._operations = 0
        self._values = 0

    @property
    def partitions(self) -> int:
        """Partitions that the data topic has by now."""
        return partitions_now(self.directory, self.settings)

    @property
    def keys(self) -> int:
        """Number of record keys by now."""
        return KEYS_PER_PARTITION * self.partitions

    def take_path(self) -> None:
        """Takes the C extension, or Python alone, in turns with the lives before and after.

        Raises:
            ChaosError: the extension does not work.
        """
        if not self.settings.native:
            return
        is_native = (self.number + self.life) % 2 == 1
        os.environ[VARIABLE] = "1" if is_native else "0"
        if is_native and find_reader().extension is None:
            raise ChaosError(f"The C extension does not work: {described()}.")
        self.recorder.write("note", note=f"records are handled by: {described()}")

    def operation(self) -> str:
        """Returns a name for the next transaction."""
        self._operations += 1
        return f"{self.name}/{self._operations}"

    def value(self) -> str:
        """Returns the next value to append."""
        self._values += 1
        return f"{self.name}:{self._values}"


def run(role: str, body: Callable[[Process], None]) -> None:
    """Runs a process until its body ends; SIGTERM sets `stopping`, SIGINT interrupts the body."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.WARNING
    )
    parser = argparse.ArgumentParser(prog=f"logtx-chaos-{role}")
    parser.add_argument("directory", type=Path)
    parser.add_argument("number", type=int)
    parser.add_argument("life", type=int)
    told = parser.parse_args()
    process = Process(role, told.directory, told.number, told.life)
    faulthandler.enable()  # A process that C code aborts says where.
    faulthandler.register(STACKS_SIGNAL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: process.stopping.set())
    with process.recorder:
        try:
            process.take_path()
            body(process)
        except TakenOverError as error:
            _LOG.warning("taken_over process=%s error=%s", process.name, error)
            process.recorder.write("error", error=f"TakenOverError: {error}")
            sys.exit(FENCED_STATUS)
        except KeyboardInterrupt:
            process.recorder.write("note", note="interrupted")
            sys.exit(INTERRUPTED_STATUS)
        except BaseException as error:
            # So the history alone says why it ends here.
            process.recorder.write("error", error=repr(error), fatal=True)
            raise
