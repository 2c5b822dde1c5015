"""Runs a side in a process of its own, so that no side's threads or GIL disturb another's."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Self

from .cpu import CpuTimes
from .model import Context, Sample, Side
from .profiling import Sampler, ThreadProfile

_START_TIMEOUT_S: Final = 120.0
"""Bounds a side's start: imports and `open`, on few cores, while other sides start too."""
_ROUND_TIMEOUT_S: Final = 180.0
"""Bounds one round. Longer than any: it only ends a run that hangs."""
_JOIN_TIMEOUT_S: Final = 30.0
"""How long a side may take to close before its process is killed."""


class SideFailedError(Exception):
    """A side raised an error; the message is its traceback."""


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
        side = make(context)
        side.open()
        cpu = CpuTimes(context.pids)
        connection.send(("ready", None))
        while (request := connection.recv()) is not None:
            if request == "measure":
                connection.send(("sample", _measure(side, cpu)))
            else:
                with Sampler() as sampler:
                    sample = side.measure()
                connection.send(("profile", (sample, sampler.threads)))
    except EOFError:
        pass  # The parent is gone.
    except Exception:  # noqa: BLE001 - every error is reported to the parent
        connection.send(("failed", traceback.format_exc()))
    finally:
        if side is not None:
            side.close()


class Worker:
    """A context manager around a side's process."""

    def __init__(self, name: str, make: Callable[[Context], Side], context: Context) -> None:
        self._name = name
        spawning = multiprocessing.get_context("spawn")
        self._connection, self._remote = spawning.Pipe()
        # Not a daemon: a side may have child processes. It ends when its pipe is closed.
        self._process = spawning.Process(
            target=_serve, args=(self._remote, make, context), name=name
        )

    def __enter__(self) -> Self:
        """Starts the process. Call `await_open` before anything else."""
        self._process.start()
        self._remote.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the side, and ends the process."""
        self._connection.close()
        self._process.join(_JOIN_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def await_open(self) -> None:
        """Waits until the side is connected. Raises SideFailedError."""
        self._receive(_START_TIMEOUT_S)

    def measure(self) -> Sample:
        """Runs one round. Raises SideFailedError."""
        self._connection.send("measure")
        sample: Sample = self._receive(_ROUND_TIMEOUT_S)
        return sample

    def profile(self) -> tuple[Sample, list[ThreadProfile]]:
        """Runs one round under the sampler. Raises SideFailedError."""
        self._connection.send("profile")
        result: tuple[Sample, list[ThreadProfile]] = self._receive(_ROUND_TIMEOUT_S)
        return result

    def _receive(self, timeout_s: float) -> Any:
        if not self._connection.poll(timeout_s):
            raise SideFailedError(f"side {self._name} did not answer within {timeout_s:.0f} s")
        try:
            kind, result = self._connection.recv()
        except EOFError:
            raise SideFailedError(f"the process of side {self._name} ended") from None
        if kind == "failed":
            raise SideFailedError(f"side {self._name}: {result}")
        return result
