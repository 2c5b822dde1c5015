"""`logtx chaos`: a cluster of three brokers under attack, and a history of what its clients saw.

    run          from start to end: cluster, processes, faults, drain, last readers, verdict
    plan         which faults, when and to whom: drawn from the seed, pure
    nemesis      carries the plan out
    proxy        every client's way to a broker or a coordinator; can be cut, stalled, delayed
    workload/    the processes: producers, workers, consumers, and the last readers
    recorder     the history: what a process is about to do, and what came of it
    checker/     judges the history and the logs; shares no code with what it judges

`docs/chaos.md` says what is done and what is looked for. Names are loaded on first use: the
workload's processes import this package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .options import ChaosOptions
    from .run import check_again, run_chaos

__all__ = ["ChaosOptions", "check_again", "run_chaos"]

_HOMES = {"ChaosOptions": ".options", "check_again": ".run", "run_chaos": ".run"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
