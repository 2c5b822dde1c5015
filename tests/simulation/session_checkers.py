"""Checkers of what clients may count on beside their transactions; they see a `History` alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from logtx.coordinator.core.topics import CONFIRM_MS
from logtx.coordinator.protocol import commands
from logtx.journal.errors import (
    CoordinatorBusyError,
    JournalError,
    ProducerFencedError,
    UnknownTopicError,
)
from logtx.journal.keys import is_key_name
from logtx.journal.records.types import AbortReason, Forget, Owner
from logtx.journal.txid import TxId

from .history import Absence, Closed, History, Told
from .reference import Journal, JournalTransaction, Reading

DUE_MAX_MS: Final = 80
"""Longest time until a coordinator that nothing disturbs has done what is due: the end of a load,
which begins the clocks, a tick, and an append."""
MISLED_MS: Final = 60
"""How long a false answer of a broker counts, as `topics.ABSENT_CONFIRM_MS`."""
SLOW_MS: Final = 310
"""The longest that an answer about a topic takes."""


def sessions(history: History, reading: Reading) -> Iterator[str]:
    """A session ends for good by what its own application does, and by nothing else."""
    # One that was away for so long that it was forgotten can't be told from an older one (trap 32).
    forgotten = {
        producer_id
        for journal in reading.journals
        for record in journal.records
        if isinstance(record.entry.record, Forget)
        for producer_id in record.entry.record.producers
    }
    started: Counter[str] = Counter()
    for event in history.sessions:
        if not isinstance(event, Closed):
            started[event.application] += 1
        elif isinstance(event.error, JournalError):
            yield f"{event.name} was ended by one that can't read the journal: {event.error!r}"
        elif (
            isinstance(event.error, ProducerFencedError)
            and started[event.application] == 1
            and not is_key_name(event.application)
            and event.producer_id not in forgotten
            # With a generation of its own choice, a new one must begin above what was forgotten.
            and (event.is_known or not forgotten)
        ):
            yield f"{event.name} was fenced, the only one of {event.application}"


def refused(history: History, reading: Reading) -> Iterator[str]:
    """No request is refused for a topic that exists, nor put off in the end: all is known then."""
    del reading
    settled_ms = history.settled_ms
    for told in history.told:
        if any(_could_be_missing(told, absence) for absence in history.absent):
            continue
        if isinstance(told.reply, CoordinatorBusyError):
            # Which topic has the name is believed slowly, after a broker told of another one.
            disagree = str(told.reply).startswith("brokers do not agree")
            grace_ms = CONFIRM_MS + SLOW_MS if disagree else 0
            if settled_ms is not None and told.asked_ms >= settled_ms + grace_ms:
                yield f"{told.coordinator} put {told.command} off: {told.reply!r}"
        elif isinstance(told.reply, UnknownTopicError) and not any(
            name == told.coordinator and 0 <= told.asked_ms - at_ms <= MISLED_MS
            for name, at_ms in history.misled
        ):
            yield f"{told.coordinator} refused {told.command}: {told.reply!r}"


def _could_be_missing(told: Told, absence: Absence) -> bool:
    """Whether a request named a topic that did not exist, or had not existed just before."""
    match told.command:
        case commands.Begin() | commands.AddPartitions():
            named = tuple(told.command.partitions)
        case commands.End() | commands.AddWrites():
            named = tuple(told.command.writes)
        case commands.Attach():
            # One that makes a queue anew, which had a topic before.
            named = tuple((topic, 0) for topic in told.command.topics)
        case _:
            return False
    late_ms = absence.until_ms + MISLED_MS + SLOW_MS
    is_missing = absence.from_ms <= told.time_ms and told.asked_ms <= late_ms
    return is_missing and any(topic == absence.topic for topic, _ in named)


def timely(history: History, reading: Reading) -> Iterator[str]:
    """When nothing goes wrong any more, what is due is done at once."""
    if history.settled_ms is None or history.crash is not None:
        return
    extended = [t for t in history.told if isinstance(t.command, commands.ExtendTransaction)]
    extended_ms: dict[TxId, list[int]] = {}
    for told in extended:
        assert isinstance(told.command, commands.ExtendTransaction)
        extended_ms.setdefault(told.command.txid, []).append(told.asked_ms)
    for journal in reading.journals:
        owners_ms = [r.time_ms for r in journal.records if isinstance(r.entry.record, Owner)]
        for found in journal.transactions.values():
            known_ms = (*owners_ms, *extended_ms.get(found.txid, ()))
            yield from _outlived(history.settled_ms, journal, found, known_ms)
    for told in extended:
        yield from _expired_early(told, reading.journals[told.partition])
    for told in history.told:
        if told.asked_ms >= history.settled_ms and isinstance(told.command, commands.End):
            yield from _kept_waiting(told, reading.journals[told.partition])


def _outlived(
    settled_ms: int, journal: Journal, found: JournalTransaction, anew_ms: tuple[int, ...]
) -> Iterator[str]:
    # Each owner gives an open transaction its whole timeout again, and so does an extension.
    records, begin = journal.records, found.txid.offset
    ended = records[-1 if found.decision is None else found.decision.sequence].time_ms
    began = max(ms for ms in (records[begin].time_ms, *anew_ms) if ms <= ended)
    expires_ms = max(began + found.record.timeout_ms, settled_ms)
    if ended > expires_ms + DUE_MAX_MS:
        yield f"{found.txid} was to expire at {expires_ms}, and was open at {ended}"


def _expired_early(told: Told, journal: Journal) -> Iterator[str]:
    assert isinstance(told.command, commands.ExtendTransaction)
    found = journal.transactions.get(told.command.txid.offset)
    if found is None or found.decision is None or not isinstance(told.reply, commands.Done):
        return
    expires_ms = told.asked_ms + found.record.timeout_ms
    ended_ms = journal.records[found.decision.sequence].time_ms
    if found.decision.reason is AbortReason.EXPIRED and ended_ms < expires_ms:
        yield f"{found.txid} was extended up to {expires_ms}, and expired at {ended_ms}"


def _kept_waiting(told: Told, journal: Journal) -> Iterator[str]:
    assert isinstance(told.command, commands.End)
    mine = journal.transactions.get(told.command.txid.offset)
    if mine is None:
        return
    ready_ms = told.asked_ms
    for other in journal.transactions.values():
        if other is mine or other.record.producer_id != mine.record.producer_id:
            continue
        if not _inputs(other) & _inputs(mine):
            continue
        if other.decision is None or other.decision.at > told.at:
            return  # It may wait for this one.
        ready_ms = max(ready_ms, journal.records[other.decision.sequence].time_ms)
    if told.time_ms > ready_ms + DUE_MAX_MS:
        yield f"the commit of {mine.txid} could be decided at {ready_ms}: told at {told.time_ms}"


def _inputs(found: JournalTransaction) -> set[tuple[str, str, int]]:
    return {(group, step.topic, step.partition) for _, group, step in found.steps}
