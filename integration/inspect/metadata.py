"""Compares a metadata store with the journal, by a replay that shares nothing with the projection.

For each transaction all of its records are gathered first; what the store should have is then read
off them at once. The projection goes record by record, and keeps what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from ...coordinator.client.metadata import MetadataClient
from ...coordinator.protocol.metadata import Header, HeaderState, Operation, OperationKind
from ...journal.errors import UnknownTopicError
from ...journal.follower import JournalFollower
from ...journal.logs.interface import Log
from ...journal.places import GONE, PartitionId, Placed
from ...journal.reader import JOURNAL_TOPIC, find_snapshot
from ...journal.records.fate import EpochFilter
from ...journal.records.types import (
    UNKNOWN_OFFSET,
    Aborted,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Committed,
    Entry,
    JournalRecord,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
)
from ...journal.txid import TxId

READ_TIMEOUT_S: Final = 60.0
"""Longest wait without progress while the journal is read."""
ROUNDS: Final = 5
"""How often what differs is compared again: transactions go on meanwhile."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the store should have of one transaction."""

    header: Header
    operations: tuple[Operation, ...]
    """By sequence."""


@dataclass(slots=True)
class _Story:
    """The valid records of one transaction."""

    txid: TxId
    begin: Begin
    records: list[tuple[int, JournalRecord]] = field(default_factory=list)

    def decision(self) -> tuple[int, PrepareCommit | PrepareAbort] | None:
        found = [(o, r) for o, r in self.records if isinstance(r, PrepareCommit | PrepareAbort)]
        return found[0] if found else None

    def finish(self) -> int | None:
        found = [o for o, r in self.records if isinstance(r, Committed | Aborted)]
        return found[0] if found else None


class Replay:
    """Gathers the records of one journal partition. Feed from its start, or from a snapshot."""

    def __init__(self, partition: int, epochs: EpochFilter) -> None:
        self._partition = partition
        self._epochs = epochs
        self._stories: dict[int, _Story] = {}
        self._placed: list[tuple[int, Placed]] = []
        self.next_offset = 0

    def feed(self, offset: int, entry: Entry) -> None:
        """Takes the next entry."""
        self.next_offset = offset + 1
        if not self._epochs.accept(offset, entry):
            return
        record = entry.record
        if isinstance(record, Begin):
            txid = TxId(self._partition, entry.incarnation, offset)
            self._stories[offset] = _Story(txid, record)
        elif isinstance(record, Placed):
            self._placed.append((offset, record))
        else:
            story = self._stories.get(getattr(record, "begin", -1))
            if story is not None:
                story.records.append((offset, record))

    def expected(self) -> dict[TxId, Expected]:
        """Returns what the store should have, of the transactions whose BEGIN was read."""
        return {
            s.txid: Expected(_header(s), tuple(sorted(self._operations(s), key=lambda o: o.seq)))
            for s in self._stories.values()
        }

    def _operations(self, story: _Story) -> Iterable[Operation]:
        decision, finish = story.decision(), story.finish()
        if decision is not None and isinstance(decision[1], PrepareAbort):
            return []
        found: list[Operation] = [] if finish is not None else _acks(story)
        if decision is None:
            return [*found, *_registered(story), *_runs(story, {})]
        sequence, commit = decision
        assert isinstance(commit, PrepareCommit)
        handed = {key for key, _ in commit.handed}
        for run in _runs(story, dict.fromkeys((*commit.placed, *handed))):
            partition = PartitionId(run.topic, run.partition, run.topic_id)
            place = self._place_of(partition, sequence) if run.placed else None
            if partition.key in handed:
                place = run.last_offset + 1
            if place == GONE or (finish is not None and place is None):
                continue
            found.append(_with_place(run, place))
        return found

    def _place_of(self, partition: PartitionId, sequence: int) -> int | None:
        for offset, record in self._placed:
            if offset > sequence and record.upto >= sequence and partition in record.ends:
                return record.ends[partition]
        return None


def _header(story: _Story) -> Header:
    begin, decision, finish = story.begin, story.decision(), story.finish()
    common = {
        "txid": story.txid,
        "producer_id": begin.producer_id,
        "generation": begin.generation,
        "created_ms": begin.started_ms,
    }
    if decision is None:
        deadline_ms = begin.started_ms + begin.timeout_ms
        return Header(
            **common,  # type: ignore[arg-type]
            version=story.txid.offset,
            state=HeaderState.OPEN,
            timeout_ms=deadline_ms,
        )
    offset, record = decision
    aborted = isinstance(record, PrepareAbort)
    return Header(
        **common,  # type: ignore[arg-type]
        version=offset if finish is None else finish,
        state=HeaderState.ABORTED if aborted else HeaderState.COMMITTED,
        finished=finish is not None,
        finalized_ms=record.decided_ms,
        commit_sequence=offset,
        reason=record.reason if isinstance(record, PrepareAbort) else None,
    )


def _registered(story: _Story) -> list[Operation]:
    """Returns an operation for each partition that was named, with the earliest first offset."""
    first: dict[tuple[str, int], Operation] = {}
    named = [
        (story.txid.offset, story.begin.partitions),
        *((o, r.partitions) for o, r in story.records if isinstance(r, AddPartitions)),
    ]
    told: dict[tuple[str, int], list[int]] = {}
    for offset, partitions in named:
        for index, partition in enumerate(partitions):
            told.setdefault(partition.key, []).append(partition.first_offset)
            first.setdefault(
                partition.key,
                Operation(
                    txid=story.txid,
                    seq=(offset, index),
                    kind=OperationKind.WRITE,
                    topic=partition.topic,
                    partition=partition.partition,
                    topic_id=partition.topic_id,
                ),
            )
    found = []
    for key, operation in first.items():
        known = [offset for offset in told[key] if offset != UNKNOWN_OFFSET]
        found.append(replace(operation, first_offset=min(known, default=UNKNOWN_OFFSET)))
    return found


def _runs(story: _Story, placed: Mapping[tuple[str, int], None]) -> list[Operation]:
    """Returns an operation for each run of writes that a part or the decision names."""
    named: list[tuple[int, Sequence[PartitionWrites]]] = [
        (o, r.writes) for o, r in story.records if isinstance(r, AddWrites | PrepareCommit)
    ]
    found = []
    for offset, writes in named:
        index = 0
        for each in writes:
            for run in each.branches:
                found.append(
                    Operation(
                        txid=story.txid,
                        seq=(offset, index),
                        kind=OperationKind.WRITE,
                        topic=each.partition.topic,
                        partition=each.partition.partition,
                        topic_id=each.partition.topic_id,
                        first_offset=run.first_offset,
                        last_offset=run.last_offset,
                        count=run.count,
                        branch=run.branch,
                        placed=each.partition.key in placed,
                    )
                )
                index += 1
    return found


def _acks(story: _Story) -> list[Operation]:
    """Returns an operation for each partition whose offset a consumer group moves."""
    chains: dict[tuple[str, str, int], Operation] = {}
    for offset, record in story.records:
        for index, step in enumerate(record.steps if isinstance(record, AddOffsets) else ()):
            assert isinstance(record, AddOffsets)
            key = record.group, step.topic, step.partition
            before = chains.get(key)
            if before is None:
                chains[key] = Operation(
                    txid=story.txid,
                    seq=(offset, index),
                    kind=OperationKind.ACK,
                    topic=step.topic,
                    partition=step.partition,
                    topic_id=step.to.topic_id,
                    subscription=record.group,
                    from_place=step.from_place,
                    to=step.to,
                )
            elif before.to is not None and before.to.place == step.from_place:
                chains[key] = replace(before, to=step.to)
    return list(chains.values())


def _with_place(operation: Operation, place: int | None) -> Operation:
    return operation if place is None else replace(operation, place=place)


# ---- comparing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a store compares with the journal."""

    transactions: int
    """Number of those whose BEGIN is in the journal."""
    swept: int
    """Number of those finished ones that the store does not keep any more."""
    wrong: Mapping[TxId, str]
    """TxId → how the store differs."""


def compare(log: Log, client: MetadataClient, *, most: int | None = None) -> Comparison:
    """Compares a store with the journal, while both may go on.

    Args:
        log: holds the journal.
        client: asks the store.
        most: how many transactions the store is asked for, evenly over all; None: for all.

    Raises:
        LogtxError: the journal can't be read, or the store not asked.
    """
    replays: dict[int, Replay] = {}
    places: dict[int, int] = {}
    for partition in range(log.partition_count(JOURNAL_TOPIC)):
        first, epochs = 0, EpochFilter()
        if log.start_offset(JOURNAL_TOPIC, partition) > 0:
            found = find_snapshot(log, partition, timeout_s=READ_TIMEOUT_S)
            if found is None:
                continue
            first, epochs = found.first, found.epochs()
        places[partition] = first
        replays[partition] = Replay(partition, epochs)
    wrong: dict[TxId, str] = {}
    swept, known = 0, 0
    with closing(JournalFollower(log, places)) as follower:
        suspects: Iterable[TxId] | None = None
        for _ in range(ROUNDS):
            for partition, offset, entry in follower.read_to_ends(timeout_s=READ_TIMEOUT_S):
                replays[partition].feed(offset, entry)
            expected = {t: e for r in replays.values() for t, e in r.expected().items()}
            known = len(expected)
            asked = _evenly(expected, most) if suspects is None else suspects
            gone, wrong = _differences(log, {t: expected[t] for t in asked}, client)
            swept += gone
            suspects = list(wrong)
            if not suspects:
                break
    return Comparison(known, swept, wrong)


def _evenly(expected: Iterable[TxId], most: int | None) -> Iterable[TxId]:
    txids = list(expected)
    return txids if most is None else txids[:: max(1, -(-len(txids) // most))]


def _differences(
    log: Log, expected: Mapping[TxId, Expected], client: MetadataClient
) -> tuple[int, dict[TxId, str]]:
    """Returns how many finished ones the store does not keep, and how it differs elsewhere."""
    data = _Data(log, has_window=client.status().history_ms > 0)
    wrong: dict[TxId, str] = {}
    swept = 0
    for number, (txid, wanted) in enumerate(expected.items()):
        # The first answer waits until the store has the journal; the others need not.
        header = client.header(txid, fresh=number == 0)
        if header is None:
            if not wanted.header.finished or any(map(data.is_there, wanted.operations)):
                wrong[txid] = f"the store does not have it; the journal says {wanted}"
            swept += wanted.header.finished
            continue
        operations = client.operations(txid, fresh=False)
        missing = set(wanted.operations) - set(operations)
        if header != wanted.header:
            wrong[txid] = f"the store says {header}, the journal {wanted.header}"
        elif not set(operations) <= set(wanted.operations):
            wrong[txid] = f"the store says {operations}, the journal {list(wanted.operations)}"
        elif missing and (not header.finished or any(map(data.is_there, missing))):
            wrong[txid] = f"the store does not have {list(missing)}"
    return swept, wrong


class _Data:
    """Which writes are still in the log, so that the store must have them."""

    def __init__(self, log: Log, *, has_window: bool) -> None:
        self._log = log
        self._has_window = has_window
        """Whether the store keeps finished transactions for some time only."""
        self._starts: dict[tuple[str, int], int | None] = {}
        self._ids: dict[str, str] = {}
        """Topic → its id, as a broker tells it."""

    def is_there(self, operation: Operation) -> bool:
        """Returns whether a reader may begin below the place of a write."""
        if self._has_window or operation.place is None:
            return False
        key = operation.topic, operation.partition
        if operation.topic not in self._ids:
            self._ids |= {operation.topic: "", **self._log.topic_ids([operation.topic])}
        if self._ids[operation.topic] not in ("", operation.topic_id):
            return False  # The topic was deleted, and another one has its name.
        if key not in self._starts:
            try:
                self._starts[key] = self._log.start_offset(*key)
            except UnknownTopicError:
                self._starts[key] = None
        start = self._starts[key]
        return start is not None and operation.place >= start
