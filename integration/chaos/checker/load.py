"""From a run directory to facts: reads history/*.jsonl, chaos.json and the dumped logs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from . import store
from .avro import read_entry
from .errors import BrokenHistoryError, BrokenLogError
from .facts import KAFKA, LOGTX, Facts
from .history import Event, History
from .journal import Journal, Partition, read_journal
from .logs import NO_VALUE, Record, View, view_kafka, view_logtx
from .store import Head, RawRecord
from .wire import TXCTL_HEADER, TXID_HEADER, Control, TxId, read_control, read_txid

SETTINGS: Final = "chaos.json"
HISTORY: Final = "history"
LOGS: Final = "logs"


def load(run_dir: Path) -> Facts:
    """Read a run.

    Raises:
        BrokenHistoryError: no history, or a broken line that is not its file's last.
        BrokenLogError: logs that were not dumped, or are cut short.
    """
    settings = read_settings(run_dir)
    history = read_history(run_dir / HISTORY)
    logs = run_dir / LOGS
    journals = {j.number: j for j in _journals(logs)} if settings.system == LOGTX else {}
    if settings.system == LOGTX and not journals:
        raise BrokenLogError(f"no journal in {logs}: the run was not dumped")
    views = dict(_views(history, logs, settings.system))
    _check_complete(history, views, settings.topics)
    return Facts(settings.system, history, views, journals, settings.input)


class RunSettings(NamedTuple):
    """What the checker wants to know of a run."""

    system: str
    topics: tuple[str, ...]
    input: str
    """The topic that workers process."""
    bootstrap_servers: str


def read_settings(run_dir: Path) -> RunSettings:
    """Read ``chaos.json``.

    Raises:
        BrokenHistoryError: it does not say what was run.
    """
    path = run_dir / SETTINGS
    try:
        told = json.loads(path.read_text("utf-8"))
        settings = RunSettings(
            told["system"],
            (told["data_topic"], told["out_topic"]),
            told["data_topic"],
            told["bootstrap_servers"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenHistoryError(f"{path} does not say what was run: {error!r}") from error
    if settings.system not in (LOGTX, KAFKA):
        raise BrokenHistoryError(f"{path}: system {settings.system!r}; known: {LOGTX}, {KAFKA}")
    return settings


# ---- history -----------------------------------------------------------------------------------


def read_history(directory: Path) -> History:
    """Index all history files of a directory."""
    history = History()
    paths = sorted(directory.glob("*.jsonl"))
    if not paths:
        raise BrokenHistoryError(f"no history in {directory}")
    for path in paths:
        history.add_process(path.stem, _events(path, history))
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


# ---- logs --------------------------------------------------------------------------------------


def _journals(logs: Path) -> Iterator[Journal]:
    for head, records in store.read_logs(logs, store.JOURNAL):
        entries = [(raw.offset, read_entry(raw.value or b"")) for raw in records]
        journal = read_journal(head.partition, head.start, head.end, entries)
        journal.end_before_data = head.end_before_data
        yield journal


def _views(history: History, logs: Path, system: str) -> Iterator[tuple[Partition, View]]:
    committed: dict[Partition, tuple[Head, dict[int, int]]] = {}
    if system == KAFKA:
        for head, raw in store.read_logs(logs, store.COMMITTED):
            visible = {record.offset: record.value for record in _records(history, raw)}
            committed[head.topic, head.partition] = head, visible
    for head, raw in store.read_logs(logs, store.DATA):
        partition, records = (head.topic, head.partition), _records(history, raw)
        if system == LOGTX:
            yield partition, view_logtx(partition, head.start, head.end, records)
            continue
        if partition not in committed:
            raise BrokenLogError(f"{partition} was not read by a read_committed consumer")
        stable, visible = committed[partition]
        view = view_kafka(partition, head.start, head.end, records, visible, stable.end)
        yield partition, view


def _records(history: History, raw: Iterable[RawRecord]) -> Iterator[Record]:
    txids: dict[bytes, TxId] = {}
    for offset, value, headers in raw:
        txid, control = _headers(headers, txids)
        if value is None:
            yield Record(offset, NO_VALUE, None, txid, control)
            continue
        try:
            body = json.loads(value)
            number, op = history.number(body["v"]), body["t"]
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenLogError(
                f"offset {offset}: not a value of the workload: {value!r}"
            ) from error
        yield Record(offset, number, op, txid, control)


def _headers(
    headers: store.Headers, txids: dict[bytes, TxId]
) -> tuple[TxId | None, Control | None]:
    txid, control = None, None
    for name, raw in headers:
        if name == TXID_HEADER:
            txid = txids.get(raw or b"") or txids.setdefault(raw or b"", read_txid(raw or b""))
        elif name == TXCTL_HEADER:
            control = read_control(raw or b"")
    return txid, control


def _check_complete(
    history: History, views: Mapping[Partition, View], topics: Iterable[str]
) -> None:
    dumped = {topic for topic, _ in views}
    for topic in topics:
        if topic not in dumped:
            raise BrokenLogError(f"topic {topic} was not dumped")
    used = {segment.partition for reader in history.readers for segment in reader.segments}
    used |= {append.partition for append in history.appends.values()}
    if missing := sorted(used - views.keys()):
        topic, number = missing[0]
        raise BrokenLogError(f"{topic}[{number}] was used, and was not dumped")
