"""Runs a side in a process of its own, so that no side's threads or GIL disturb another's."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

from .cpu import CpuTimes
from .model import Context, Sample, Side
from .profiling import Sampler, ThreadProfile
from .remote import Remote, answering

_MEASURE: Final = "measure"
_PROFILE: Final = "profile"
_START_TIMEOUT_S: Final = 120.0
"""Bounds a side's start: imports and `open`, on few cores, while other sides start too."""
_ROUND_TIMEOUT_S: Final = 180.0
"""Bounds one round. Longer than any: it only ends a run that hangs."""


def _measure(side: Side, cpu: CpuTimes) -> Sample:
    """Runs one round, and adds the CPU time of all processes to its notes."""
    before = cpu.now()
    sample = side.measure()
    notes = cpu.since(before, sample.notes.get("transactions"))
    # A side's own notes win: they may be about a part of the round.
    return Sample(sample.value, {**notes, **sample.notes})


def _serve(connection: Connection, make: Callable[[Context], Side], context: Context) -> None:
    side: Side | None = None
    try:
        with answering(connection):
            side = make(context)
            side.open()
            cpu = CpuTimes(context.pids)
            connection.send(None)
            while True:
                if connection.recv() == _MEASURE:
                    connection.send(_measure(side, cpu))
                else:
                    with Sampler() as sampler:
                        sample = side.measure()
                    connection.send((sample, sampler.threads))
    finally:
        if side is not None:
            side.close()


class Worker:
    """A side's process."""

    def __init__(self, name: str, make: Callable[[Context], Side], context: Context) -> None:
        """Starts the process. Call `await_open` before anything else."""
        # Not a daemon: a side may have child processes.
        self._remote = Remote(f"side {name}", _serve, make, context, daemon=False)

    def close(self) -> None:
        """Closes the side, and ends the process."""
        self._remote.close()

    def await_open(self) -> None:
        """Waits until the side is connected. Raises RemoteFailedError."""
        self._remote.receive(_START_TIMEOUT_S)

    def measure(self) -> Sample:
        """Runs one round. Raises RemoteFailedError."""
        self._remote.send(_MEASURE)
        sample: Sample = self._remote.receive(_ROUND_TIMEOUT_S)
        return sample

    def profile(self) -> tuple[Sample, list[ThreadProfile]]:
        """Runs one round under the sampler. Raises RemoteFailedError."""
        self._remote.send(_PROFILE)
        result: tuple[Sample, list[ThreadProfile]] = self._remote.receive(_ROUND_TIMEOUT_S)
        return result
