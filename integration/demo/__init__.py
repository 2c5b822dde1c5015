"""`logtx demo`: a year of flights booked in a ledger, while its processes are killed.

Three worker processes book flights in transactions; they and the coordinators are killed with
SIGKILL, or paused and woken as zombies; two auditor processes tell whether the ledger is exactly
the file. `docs/demo.md` says what is shown and how it is counted.

    supervisor   starts everything, watches the journal, says the verdict
    publisher    a thread: flights.csv → topic `flights`
    worker       `flights` → topic `airport_ledger` and the input offsets, in one transaction
    auditor      reads the ledger, read_committed or read_uncommitted
    monkey       decides whom to kill or pause, by what the journal shows
    deeds        say what counts of that

`spark/` does the same by a streaming query of Spark, whose driver is killed, and `whole` runs one
after the other.

`run_demo` is loaded on first use: the worker and auditor processes import this package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .options import DemoOptions
    from .whole import run_demo

__all__ = ["DemoOptions", "run_demo"]

_HOMES = {"DemoOptions": ".options", "run_demo": ".whole"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
