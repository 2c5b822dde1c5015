"""Reads a run directory: history/*.jsonl, chaos.json and the dumped logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from . import store
from .assemble import RunSettings, assemble
from .core.facts import KAFKA, LOGTX, Facts, parse_txid
from .core.history import Event, History, in_order
from .core.told import Told
from .errors import BrokenHistoryError, BrokenLogError

SETTINGS: Final = "chaos.json"
HISTORY: Final = "history"
LOGS: Final = "logs"
STORES: Final = "stores.jsonl"
"""What metadata stores said, among the logs; not there if there are none."""


def load(run_dir: Path) -> Facts:
    """Reads a run.

    Raises:
        BrokenHistoryError: there is no history, or a broken line that is not its file's last.
        BrokenLogError: logs were not dumped, or are cut short.
    """
    settings = read_settings(run_dir)
    history = read_history(run_dir / HISTORY)
    logs = run_dir / LOGS
    return assemble(
        settings,
        history,
        store.read_logs(logs, store.DATA),
        store.read_logs(logs, store.COMMITTED),
        store.read_logs(logs, store.JOURNAL),
        list(_stores(logs / STORES)),
        store.read_logs(logs, store.SIDECARS),
    )


def _stores(path: Path) -> Iterator[Told]:
    if not path.exists():
        return
    for number, line in enumerate(path.read_text("ascii").splitlines(), 1):
        try:
            row = json.loads(line)
            yield Told(row["store"], parse_txid(row["txid"]), row["header"], row["writes"])
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenLogError(f"{path}:{number} is broken: {error!r}") from error


def read_settings(run_dir: Path) -> RunSettings:
    """Reads ``chaos.json``.

    Raises:
        BrokenHistoryError: it does not say what was run.
    """
    path = run_dir / SETTINGS
    try:
        told = json.loads(path.read_text("utf-8"))
        topics = [told["data_topic"], told["out_topic"]]
        topics += [told.get("fleeting_topic"), told.get("spark_topic")]
        settings = RunSettings(
            told["system"],
            tuple(filter(None, topics)),
            told["data_topic"],
            told["bootstrap_servers"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenHistoryError(f"{path} does not say what was run: {error!r}") from error
    if settings.system not in (LOGTX, KAFKA):
        raise BrokenHistoryError(f"{path}: system {settings.system!r}; known: {LOGTX}, {KAFKA}")
    return settings


# ---- history ------------------------------------------------------------------------------------


def read_history(directory: Path) -> History:
    """Indexes all history files of a directory.

    Raises:
        BrokenHistoryError: there is none, or one has a broken line that is not its last.
    """
    history = History()
    paths = {path.stem: path for path in directory.glob("*.jsonl")}
    if not paths:
        raise BrokenHistoryError(f"no history in {directory}")
    for process in in_order(paths):
        history.add_process(process, _events(paths[process], history))
    return history


def _events(path: Path, history: History) -> Iterator[tuple[int, Event]]:
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        number, line = 0, next(lines, None)
        while line is not None:
            number, after = number + 1, next(lines, None)
            try:
                event = dict(json.loads(line))
            except (ValueError, TypeError) as error:
                if after is not None:
                    raise BrokenHistoryError(f"{path.name}:{number} is broken: {error}") from error
                history.counts["torn line"] += 1  # its process was killed while it wrote
                return
            yield number, event
            line = after
