"""Checkers of queues: each message is worked off once, with its result; none is given out early.

They see a `History` and nothing of the simulator.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from logtx.consumer.range_reader.errors import DataLossError
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType, AckResult, Lease
from logtx.journal.spans import AT_OFFSET, MessageId, Span
from logtx.journal.txid import TxId

from .history import History, Message, Said, Told
from .lost_checkers import nobody_knew
from .queue_reference import Fate, Queue, State, queues_of
from .reference import Reading
from .topology import RESULTS


def worked_off(history: History, reading: Reading) -> Iterator[str]:
    """Each message is acknowledged once: in one committed transaction, or plainly; none is lost."""
    said: dict[Message, list[Said]] = defaultdict(list)
    for each in history.said:
        said[each.message].append(each)
    for queue in queues_of(reading):
        yield from queue.wrong
        yield from _ordered(history, queue)
        for fate in queue.all():
            if fate.now.state is State.DELETED and not _was_meant(history, queue, fate, said):
                yield f"{fate.message} is {fate.now}, and nobody said that it is worked off"
        if history.settled_ms is not None and history.crash is None:
            yield from queue.left()
        yield from _owned(history, queue)
    # Nothing that a queue has left is taken by retention here.
    lost = (error for error in history.unread if isinstance(error, DataLossError))
    yield from (f"a lease was not read: {error!r}" for error in lost)
    for skip in history.skips:
        if not nobody_knew(history, reading, skip.partition.key, skip.error):
            yield f"{skip.partition} {skip.span} could not be read: {skip.error}"


def _ordered(history: History, queue: Queue) -> Iterator[str]:
    """Yields eras that ended though no operator has asked for that: it named another one."""
    named = {getattr(command, "era", None) for command in history.orders}
    yield from (f"the era {era} of {queue.group} ended unasked" for era in {*queue.ended} - named)


def _was_meant(history: History, queue: Queue, fate: Fate, said: dict[Message, list[Said]]) -> bool:
    """Whether an application said that a message is worked off, or rejected it, as it was."""
    turn = fate.now
    if turn.begins_era:
        return True
    if turn.begin is not None:
        work = history.works.get(queue.journal.transactions[turn.begin].txid)
        return work is not None and fate.message in work.results.values()
    if turn.rejected and queue.is_former(fate.message.partition):
        return True  # Nobody can read it any more: its consumer says so.
    return any(
        fate.era_at < s.at < turn.at and s.rejected == turn.rejected for s in said[fate.message]
    )


def _owned(history: History, queue: Queue) -> Iterator[str]:
    """Yields what the last owner has otherwise than the journal."""
    rows = history.subscriptions.get(queue.journal.partition)
    if rows is None or history.unfinished or history.crash is not None:
        return
    for row in rows:
        if row.group != queue.group:
            continue
        if row.era != queue.era:
            yield f"the owner has {queue.group} in era {row.era}, and the journal in {queue.era}"
        for fate in queue.fates.get(row.partition, ()):
            name = fate.message.name
            deleted = any(lo <= name < hi for lo, hi in row.deleted)
            pending = any(lo <= name < hi for _, (lo, hi) in row.pending)
            kept = State.DELETED if deleted else State.PENDING if pending else State.AVAILABLE
            if kept is not fate.now.state:
                yield f"the owner has {fate.message} as {kept}, and the journal as {fate.now}"


# ---- what is given out --------------------------------------------------------------------------


def given_out(history: History, reading: Reading) -> Iterator[str]:
    """What is given out exists, is committed, is neither deleted nor pending, and one worker's."""
    for queue in queues_of(reading):
        yield from _leases(history, queue)
        yield from _of_this_era(history, queue)
        for taken in history.taken:
            fate = queue.by_message.get(taken.message)
            where = f"{taken.worker} was given {taken.message} at {taken.offset}: {taken.value!r}"
            if fate is None or (fate.offset, fate.value) != (taken.offset, taken.value):
                yield f"{where}, which is {fate}"
            elif fate.txid is not None:
                found = reading.transaction(fate.txid)
                decision = found.decision if found is not None else None
                if decision is None or not decision.committed or decision.at > taken.at:
                    yield f"{where}, of {fate.txid}: {decision}"


@dataclass(slots=True)
class _Leased:
    consumer: int
    told: Told
    lease: Lease


def _leases(history: History, queue: Queue) -> Iterator[str]:
    # Another owner begins without leases, and what the former one leased may be told later.
    leased: dict[tuple[Message, int], _Leased] = {}
    for told in history.told:
        command, reply = told.command, told.reply
        if told.partition != queue.journal.partition:
            continue
        if not isinstance(reply, commands.Leases | commands.Attached):
            continue
        assert isinstance(command, commands.Acquire | commands.Attach)
        if command.group != queue.group:
            continue
        address, since_ms = _owner(queue, told.at)
        is_early = address == told.coordinator and told.time_ms < since_ms + history.held_ms
        if isinstance(reply, commands.Leases) and reply.leases and is_early:
            yield f"{told.coordinator} gave out {reply} before consumers could attach"
        if isinstance(reply, commands.Leases) and reply.leases and _rests(history, told, command):
            yield f"{told.coordinator} gave out {reply} to {command.consumer}, which rests"
        for lease in reply.leases:
            yield from _exists(history, told, lease)
            for fate in queue.within(lease.partition, [lease.span]):
                now = _Leased(command.consumer, told, lease)
                named = fate.message, _epoch(queue, told)
                yield from _may_be_leased(queue, fate, told, address)
                yield from _is_ones(history, fate, leased.get(named), now)
                leased[named] = now


def _of_this_era(history: History, queue: Queue) -> Iterator[str]:
    """Yields what is acknowledged, and was given to nobody in the era that was then."""
    leased: dict[Message, list[int]] = defaultdict(list)
    for told in history.told:
        if told.partition != queue.journal.partition:
            continue
        if isinstance(told.reply, commands.Leases | commands.Attached):
            for lease in told.reply.leases:
                for fate in queue.within(lease.partition, [lease.span]):
                    leased[fate.message].append(told.at)
    for fate in queue.all():
        since = 0
        for turn in fate.turns:
            since = turn.at if turn.begins_era else since
            acknowledges = turn.state is State.PENDING or (
                turn.state is State.DELETED and turn.begin is None and not turn.begins_era
            )
            if acknowledges and not any(since < at < turn.at for at in leased[fate.message]):
                yield f"{fate.message} is {turn}, and nobody was given it since {since}"


def _rests(history: History, told: Told, command: commands.Acquire | commands.Attach) -> bool:
    rests = (rest for rest in history.resting if rest.consumer == command.consumer)
    return any(rest.since < told.at < rest.until for rest in rests)


def _owner(queue: Queue, at: int) -> tuple[str, int]:
    """Returns the address of the owner at that time, and since when it owned."""
    return next(
        (
            (owner.address, record.time_ms)
            for record, owner in reversed(queue.journal.owners)
            if record.at < at
        ),
        ("", 0),
    )


def _epoch(queue: Queue, told: Told) -> int:
    """Returns the epoch in which an answer was decided: the last one of who told it, though it may
    have been replaced since."""
    return next(
        (
            record.offset
            for record, owner in reversed(queue.journal.owners)
            if record.at < told.at and owner.address == told.coordinator
        ),
        -1,
    )


def _exists(history: History, told: Told, lease: Lease) -> Iterator[str]:
    key = lease.partition.key
    records = history.data.get(key, [])
    if key in history.former and not lease.partition.topic_id.startswith("new-"):
        records = history.former[key]
    end = sum(record.at < told.at for record in records)
    if lease.span.hi > MessageId(end, AT_OFFSET):
        yield f"{told.coordinator} leased {lease}, and the partition ended at {end}"


def _may_be_leased(queue: Queue, fate: Fate, told: Told, address: str) -> Iterator[str]:
    if address == told.coordinator:
        # Nobody else's record lies in the journal: it says what its owner knew.
        may_be = fate.state_at(told.at) is State.AVAILABLE
    else:
        may_be = fate.was_available(told.asked_at, told.at)
    if not may_be:
        yield f"{told.coordinator} gave out {fate.message} of {queue.group}: {fate.turns}"


def _is_ones(history: History, fate: Fate, former: _Leased | None, now: _Leased) -> Iterator[str]:
    """Yields that a message was given to a second worker while it was the first one's."""
    if former is None or former.consumer == now.consumer:
        return
    since, until = former.told.asked_at, now.told.at
    over_ms = former.told.time_ms + former.lease.left_ms
    if now.told.time_ms >= over_ms or fate.turned(since, until):
        return
    if any(who == former.consumer and since < at < until for _, who, at in history.gone):
        return
    for told in history.told:
        # It was decided at some time between the two.
        if told.asked_at < until and since < told.at and _lets_go(told, fate, former.consumer):
            return
    yield f"{fate.message} was given to {former.consumer} and to {now.consumer} at a time"


def _lets_go(told: Told, fate: Fate, consumer: int) -> bool:
    """Whether a consumer said that it has a message no more, or attached anew."""
    match told.command, told.reply:
        case commands.Attach(consumer=who), commands.Attached():
            return who == consumer
        case commands.Acknowledge(type=AcknowledgeType.RELEASE) as command, commands.AckResults():
            named = (s for acks in command.acks for s in acks.spans)
            return command.consumer == consumer and any(
                lo <= fate.message.name < hi for lo, hi in named
            )
    return False


# ---- what is told, and what comes of it ---------------------------------------------------------


def acknowledged(history: History, reading: Reading) -> Iterator[str]:
    """What a client is told to be acknowledged, the journal had by then."""
    for queue in queues_of(reading):
        for told in history.told:
            command, reply = told.command, told.reply
            if told.partition != queue.journal.partition:
                continue
            if isinstance(command, commands.AddAcks) and isinstance(reply, commands.Done):
                for fate in queue.named(command.acks):
                    begin = command.txid.offset
                    if not any(t.begin == begin and t.at < told.at for t in fate.turns):
                        yield f"{told.coordinator} told that {fate.message} is pending: {fate}"
            elif isinstance(command, commands.Acknowledge) and isinstance(
                reply, commands.AckResults
            ):
                yield from _results(queue, told, command, reply)


def _results(
    queue: Queue, told: Told, command: commands.Acknowledge, reply: commands.AckResults
) -> Iterator[str]:
    if command.type in (AcknowledgeType.RELEASE, AcknowledgeType.RENEW):
        return
    for fate in queue.named(command.acks):
        name = fate.message.name
        result = reply.of(fate.message.partition, Span(name, name.behind))
        deleted = fate.state_at(told.at) is State.DELETED
        if result in (AckResult.DONE, AckResult.DELETED) and not deleted:
            yield f"{told.coordinator} told {result} of {fate.message}: {fate.turns}"


def results(history: History, reading: Reading) -> Iterator[str]:
    """What transactions acknowledged has its result, once, in the same transaction; no other."""
    if history.settled_ms is None or history.unfinished or history.crash is not None:
        return
    written: dict[Message, list[TxId]] = defaultdict(list)
    for key, partition in reading.partitions.items():
        for _, offset in partition.expected if key[0] == RESULTS else ():
            txid, value = partition.txids[offset], partition.records[offset].value()
            assert value is not None
            written[history.works[txid].results[value]].append(txid)
    for queue in queues_of(reading):
        for fate in queue.all():
            begins = [t.begin for t in fate.turns if t.state is State.DELETED]
            due = Counter(queue.journal.transactions[b].txid for b in begins if b is not None)
            found = Counter(written.pop(fate.message, []))
            if found != due:
                yield f"{fate.message} has results in {[*found]}, not in {[*due]}"
    yield from (f"{message} has a result in {txids}" for message, txids in written.items())
