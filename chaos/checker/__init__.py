"""The checker of `logtx chaos`: judges a run only by its history and its logs.

It shares no code with what it judges: it reads headers and journal records with parsers of its own
(`wire`, `avro`), written from the documented formats. An import rule keeps it so.

    dump     logs of the brokers → run directory
    load     run directory → `Facts`: the history indexed, the logs read as a consumer must
    judge    `Facts` → `Verdict`; one module per family of anomalies, pure

`docs/chaos-checker.md` says what each anomaly is, how it is found, and what is not judged.
"""

from __future__ import annotations

import gc
from pathlib import Path

from .core.findings import MEANINGS, Anomaly, Evidence
from .dump import dump
from .errors import BrokenHistoryError, BrokenLogError, CheckError, DumpError
from .judge import judge
from .load import load
from .verdict import Verdict

__all__ = [
    "MEANINGS",
    "Anomaly",
    "BrokenHistoryError",
    "BrokenLogError",
    "CheckError",
    "DumpError",
    "Evidence",
    "Verdict",
    "check",
    "dump",
]


def check(run_dir: Path) -> Verdict:
    """Judges a run.

    Args:
        run_dir: with ``chaos.json``, ``history/*.jsonl`` and ``logs`` as `dump` wrote them.

    Raises:
        BrokenHistoryError: there is no history, or a broken line that is not its file's last.
        BrokenLogError: the logs were not dumped, or are cut short.
    """
    # There are millions of values and hardly a cycle: looking for cycles again and again takes half
    # the time.
    collected = gc.isenabled()
    gc.disable()
    try:
        return judge(load(run_dir))
    finally:
        if collected:
            gc.enable()
