"""`logtx demo`: a year of flights booked in a ledger, while its processes are killed.

Three worker processes book flights in transactions; they and the coordinator are killed with
SIGKILL; two auditor processes tell whether the ledger is exactly the file. `docs/demo.md` says
what is shown and how it is counted.

    supervisor   starts everything, watches the journal, says the verdict
    publisher    a thread: flights.csv → topic `flights`
    worker       `flights` → topic `airport_ledger` and the input offsets, in one transaction
    auditor      reads the ledger, read_committed or read_uncommitted
    monkey       decides whom to kill, by what the journal shows

`run_demo` is loaded on first use: the worker and auditor processes import this package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .supervisor import run_demo

__all__ = ["run_demo"]


def __getattr__(name: str) -> object:
    if name != "run_demo":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".supervisor", __name__), name)
