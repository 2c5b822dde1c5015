"""Turns the events and records of a run into facts. Pure; `load` reads them from files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from sys import intern
from typing import NamedTuple

from .core.adopting import join_homes
from .core.avro import read_entry
from .core.facts import KAFKA, LOGTX, Facts, parse_txid
from .core.history import History
from .core.journal import Fate, Journal, Partition, read_journal
from .core.logs import NO_VALUE, Aside, Record, View, view_kafka, view_logtx
from .core.told import Told
from .core.wire import (
    SIDECAR_SUFFIX,
    TXCTL_HEADER,
    TXID_HEADER,
    Control,
    TxId,
    read_control,
    read_txid,
    sidecar_of,
)
from .errors import BrokenLogError
from .store import Head, Headers, RawRecord

Logs = Iterable[tuple[Head, Iterable[RawRecord]]]


class RunSettings(NamedTuple):
    """What the checker needs to know of a run."""

    system: str
    topics: tuple[str, ...]
    input: str
    """The topic that workers process."""
    bootstrap_servers: str

    @property
    def sidecars(self) -> list[str]:
        """The sidecars that transactions may write to: each is created when it is needed."""
        return [topic + SIDECAR_SUFFIX for topic in self.topics]


def assemble(
    settings: RunSettings,
    history: History,
    data: Logs,
    committed: Logs,
    journal: Logs,
    stores: Sequence[Told] = (),
    sidecars: Logs = (),
) -> Facts:
    """Reads the logs of a run, and joins them with its history.

    Args:
        settings: of the run.
        history: of all processes.
        data: every record of the data partitions.
        committed: for Kafka's system, those of them that a read_committed consumer was given.
        journal: every record of the journal.
        stores: what metadata stores said.
        sidecars: every record of the sidecars.

    Raises:
        BrokenLogError: a log was not dumped, or does not decode.
    """
    journals = {j.number: j for j in _journals(journal)} if settings.system == LOGTX else {}
    if settings.system == LOGTX and not journals:
        raise BrokenLogError("there is no journal: the run was not dumped")
    join_homes(journals)
    txids: dict[bytes, TxId] = {}
    aside = dict[Partition, Aside]()
    for head, raw in sidecars:
        records = tuple(_records(history, raw, txids))
        aside[head.topic, head.partition] = Aside(head.start, head.end, records)
    lacking = set(settings.sidecars) - {topic for topic, _ in aside}
    _check_sidecars(journals.values(), lacking)
    views = dict(_views(history, data, committed, settings.system, journals, aside))
    _check_complete(history, views, settings.topics)
    return Facts(settings.system, history, views, journals, settings.input, stores)


def _check_sidecars(journals: Iterable[Journal], lacking: Set[str]) -> None:
    """A sidecar that nobody wrote to does not exist, and one that was made with its topic is gone
    with it."""
    written = {
        topic
        for journal in journals
        for fate in journal.decisions
        for topic, _ in fate.partitions - fate.gone
    }
    if missing := sorted(written & lacking):
        raise BrokenLogError(f"topic {missing[0]} was not dumped")


def _journals(logs: Logs) -> Iterator[Journal]:
    for head, records in logs:
        entries = ((raw.offset, read_entry(raw.value or b"")) for raw in records)
        journal = read_journal(head.partition, head.start, head.end, entries)
        journal.end_before_data = head.end_before_data
        yield journal


def _views(
    history: History,
    data: Logs,
    committed: Logs,
    system: str,
    journals: Mapping[int, Journal],
    aside: Mapping[Partition, Aside],
) -> Iterator[tuple[Partition, View]]:
    def fate_of(txid: TxId) -> Fate | None:
        journal = journals.get(txid.partition)
        return None if journal is None else journal.fate(txid)

    txids: dict[bytes, TxId] = {}
    given: dict[Partition, tuple[Head, dict[int, int]]] = {}
    if system == KAFKA:
        for head, raw in committed:
            visible = {record.offset: record.value for record in _records(history, raw, txids)}
            given[head.topic, head.partition] = head, visible
    for head, raw in data:
        partition, records = (head.topic, head.partition), _records(history, raw, txids)
        if system == LOGTX:
            judged = None
            placed = [end for journal in journals.values() for end in journal.placed_in(partition)]
            if head.topic in history.anew:
                records, judged = _of_last_incarnation(history, head.topic, records)
                placed = [end for end in placed if end.txid in judged]
            view = view_logtx(
                partition,
                head.start,
                head.end,
                records,
                placed,
                fate_of,
                aside.get(sidecar_of(partition)),
                {number: journal.start for number, journal in journals.items()},
            )
            view.judged = judged
            yield partition, view
            continue
        if partition not in given:
            raise BrokenLogError(f"{partition} was not read by a read_committed consumer")
        stable, visible = given[partition]
        view = view_kafka(partition, head.start, head.end, records, visible, stable.end)
        yield partition, view


def _of_last_incarnation(
    history: History, topic: str, records: Iterable[Record]
) -> tuple[Iterator[Record], frozenset[TxId]]:
    """Leaves out what is not judged in a topic that was made anew.

    Returns:
        The records of transactions that began after that, with their markers, and plain records
        written after that; and the TxIds of those transactions.
    """
    found = [record for record in records if record.value not in history.exempt]
    since = history.anew[topic]
    judged = {
        parse_txid(op.txid) for op in history.ops.values() if op.txid and op.begun.at >= since
    }
    judged |= {record.txid for record in found if record.op is not None and record.txid is not None}
    kept = (record for record in found if record.txid is None or record.txid in judged)
    return kept, frozenset(judged)


def _records(
    history: History, raw: Iterable[RawRecord], txids: dict[bytes, TxId]
) -> Iterator[Record]:
    for offset, value, headers in raw:
        txid, control = _headers(headers, txids)
        if value is None:
            yield Record(offset, NO_VALUE, None, txid, control)
            continue
        try:
            body = json.loads(value)
            number, op = history.number(body["v"]), body["t"] and intern(body["t"])
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenLogError(
                f"offset {offset}: not a value of the workload: {value!r}"
            ) from error
        yield Record(offset, number, op, txid, control)


def _headers(headers: Headers, txids: dict[bytes, TxId]) -> tuple[TxId | None, Control | None]:
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
