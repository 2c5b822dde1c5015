"""CPU time of a side's process and its children, and of the cluster's processes."""

from __future__ import annotations

import time
from collections.abc import Mapping

import psutil


class CpuTimes:
    """Reads CPU times since the processes' starts; the difference of two is what a round took."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        """Finds the processes; `now` reads their times.

        Args:
            pids: ids of the processes beside this one, by name.
        """
        self._own = psutil.Process()
        self._others = {name: psutil.Process(pid) for name, pid in pids.items()}

    def now(self) -> dict[str, float]:
        """Returns CPU seconds so far by name; "client" is this process with its children."""
        children = self._own.children(recursive=True)
        # The system counts children in ticks of 10 ms; Python counts its own process finer.
        client_s = time.process_time() + sum(map(_seconds, children))
        return {"client": client_s, **{name: _seconds(p) for name, p in self._others.items()}}

    def since(self, before: Mapping[str, float], transactions: float | None) -> dict[str, float]:
        """Returns notes on the CPU seconds since `before`; also per 1,000 transactions, if any."""
        used_s = {name: after_s - before[name] for name, after_s in self.now().items()}
        notes = {f"{name} CPU s": seconds for name, seconds in used_s.items()}
        if transactions:
            used_s["all"] = sum(used_s.values())
            for name, seconds in used_s.items():
                notes[f"{name} CPU s per 1,000"] = seconds / transactions * 1e3
        return notes


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0  # a child that has just ended
    return float(times.user + times.system)
