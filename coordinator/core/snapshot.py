"""Turns a shard into journal records, a snapshot, and back. Pure.

A snapshot holds what the shard knows just before the snapshot's first chunk, in as many chunks as
needed. A loader that begins at the first chunk must get the same shard as one that begins at the
journal's start. It does, because:

1. The rows are taken at once, when the first chunk gets its offset and everything before it is
   replayed; those of producers, of which there are many, before they change (`ProducerRows`). If
   everything before is in the journal as it was predicted, the rows say what replaying the journal
   up to that offset says. If it is not, the chunk behind it is void.
2. Other records may lie between the chunks. They were decided on top of the rows and change nothing
   in them: the loader puts them aside and replays them on the restored shard.
3. Chunks are journal records like any other, with epoch and predicted offset. A snapshot counts
   when its chunks 0 to last are all valid in one epoch without a surprise in between. An owner that
   died or lost its place in the middle leaves an incomplete snapshot, which every reader ignores.
4. What is left out can be derived from the rows (which transactions hold which offsets, what a
   producer has open, the high watermark), is volatile (clocks, sessions, commits that wait), or
   stays in the journal (outcomes of finished transactions, which a look-up by TxId finds).

Chunks are small, so that making one holds an event loop for milliseconds only. Lists without a
bound (the partitions, branches and offsets of one transaction, a consumer group's offsets, a
session's unanswered BEGINs) are spread over as many rows as needed. Each of their parts came in a
journal record, so it fits into one.

Source: Transactional Messaging in Kafka, "Transaction coordinator" (a checkpoint of its state);
PIP-31, "TC Startup".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Final, TypeAlias, TypeVar

from ...journal.acks import SnapshotSubscription
from ...journal.collector import collector_paused
from ...journal.control import TopicPartition
from ...journal.modes import EndedSwitch
from ...journal.places import GONE, AdoptedWrites, Adoption, PartitionId
from ...journal.position import Journal, Position
from ...journal.records.fate import EpochFilter
from ...journal.records.snapshots import SnapshotCollector
from ...journal.records.types import (
    NO_FENCE,
    DataPartition,
    Entry,
    OffsetStep,
    Owner,
    PartitionWrites,
    PointerStep,
    Snapshot,
    SnapshotAdopted,
    SnapshotAdoption,
    SnapshotClaim,
    SnapshotGroup,
    SnapshotHanded,
    SnapshotMode,
    SnapshotPlaces,
    SnapshotProducer,
    SnapshotSince,
    SnapshotSteps,
    SnapshotTransaction,
    StepIdentity,
)
from ...journal.sidecar import main_partition
from ...journal.txid import TxId
from .adopting import Adopted, AdoptedRow, Begun
from .decision import ShardConfig
from .modes import TopicMode, TopicModes
from .places import Fence, PlacedWrites, Places
from .producers import ProducerMetadata, ProducerRows
from .ranges import PackedRanges
from .shard import Shard
from .transactions import TransactionMetadata

CHUNK_BYTES: Final = 200_000
"""A chunk is full at this upper bound of its size: 1,000 producers, which really take 40 kB and
5 ms. Larger chunks hold the event loop longer; smaller ones make more records."""
_FIXED_BYTES: Final = 100
"""Upper bound of a row or a part of one, without its names and lists: ten numbers of 10 bytes.

These bounds are added up. If they were too low, a chunk could exceed what a journal record takes.
"""
_CHAR_BYTES: Final = 4
"""Upper bound of one character of a name in UTF-8."""
_BRANCH_BYTES: Final = 40
"""Upper bound of one branch's range."""
SHARE_BRANCHES: Final = CHUNK_BYTES // _BRANCH_BYTES // 2
"""Branches of one partition that go into one row. More could exceed a chunk."""
_SINCE_BYTES: Final = 20
"""Upper bound of a partition's number, and the offset of its mode record."""
_STEP_BYTES: Final = 30
"""Upper bound of what a pointer needs: three numbers."""
_SPAN_BYTES: Final = 80
"""Upper bound of a span of messages: six numbers, and the transaction that they are pending in."""
_SEQUENCE_BYTES: Final = 30
"""Upper bound of one commit sequence of a position."""

Item = TypeVar("Item")
_Rows: TypeAlias = tuple[
    Iterable[SnapshotProducer],
    list[SnapshotTransaction],
    list[SnapshotGroup],
    list[tuple[str, str]],
    list[SnapshotClaim],
    list[tuple[str, int]],
    list[SnapshotMode],
    list[tuple[PartitionId, int]],
    list[SnapshotPlaces],
    list[tuple[PartitionId, int]],
    list[SnapshotHanded],
    list[SnapshotAdopted],
    list[SnapshotAdoption],
    list[SnapshotSince],
    list[SnapshotSubscription],
    list[tuple[PointerStep, ...]],
]
_Row: TypeAlias = (
    SnapshotProducer
    | SnapshotTransaction
    | SnapshotGroup
    | tuple[str, str]
    | SnapshotClaim
    | tuple[str, int]
    | SnapshotMode
    | tuple[PartitionId, int]
    | SnapshotPlaces
    | SnapshotHanded
    | SnapshotAdopted
    | SnapshotAdoption
    | SnapshotSince
    | SnapshotSubscription
    | tuple[PointerStep, ...]
)


# ---- taking one ---------------------------------------------------------------------------------


class SnapshotTaker:
    """Takes a shard's rows as they are now, and gives them out in chunks."""

    def __init__(self, shard: Shard) -> None:
        """Takes the rows. The next record that the shard appends must be the first chunk."""
        assert shard.owner is not None, "only an owner takes snapshots"
        self.first = shard.next_offset
        """Offset of the first chunk."""
        self.done = False
        """Whether the last chunk was given out."""
        self._owner = shard.owner
        self._past_epochs = tuple(shard.past_epochs)
        self._hour, self._floor = shard.ages.hour, shard.producers.floor
        self._last_era = shard.queues.subscriptions.last_era
        self._fence = NO_FENCE if shard.fences.waiting is None else shard.fences.waiting.offset
        self._index = 0
        with collector_paused():
            self._pieces = _pieces(_rows(shard))
        self._next = next(self._pieces, None)

    def chunk(self) -> Snapshot:
        """Returns the next chunk."""
        assert not self.done, "the snapshot has no further chunk"
        rows: _Rows = (*([], [], [], [], [], []), *([], [], [], []), *([], [], [], []), [], [])
        size = 0
        while self._next is not None:
            kind, row, row_bytes = self._next
            if size and size + row_bytes > CHUNK_BYTES:
                break
            rows[kind].append(row)  # type: ignore[arg-type,union-attr]  # the kind says
            size += row_bytes
            self._next = next(self._pieces, None)
        self.done = self._next is None
        producers, transactions, groups, bindings, claims, uses = rows[:6]
        modes, last_places, places, fence_places = rows[6:10]
        handed, adopted, unplaced, since, subscriptions, staircases = rows[10:]
        chunk = Snapshot(
            first=self.first,
            index=self._index,
            last=self.done,
            replaces=self._owner.replaces,
            address=self._owner.address,
            process_nonce=self._owner.process_nonce,
            partition_count=self._owner.partition_count,
            past_epochs=self._past_epochs,
            producers=tuple(producers),
            transactions=tuple(transactions),
            groups=tuple(groups),
            bindings=tuple(bindings),
            claims=tuple(claims),
            hour=self._hour,
            generation_floor=self._floor,
            group_uses=tuple(uses),
            modes=tuple(modes),
            last_places=tuple(last_places),
            places=tuple(places),
            fence=self._fence,
            fence_places=tuple(fence_places),
            handed=tuple(handed),
            adopted=tuple(adopted),
            unplaced=tuple(unplaced),
            sidecar_since=tuple(since),
            subscriptions=tuple(subscriptions),
            pointers=tuple(chain.from_iterable(staircases)),
            last_era=self._last_era,
        )
        self._index += 1
        return chunk


def _rows(shard: Shard) -> _Rows:
    # All rows in one turn of the event loop; what a row holds must not change afterwards.
    producers = ProducerRows(shard.producers)
    transactions = [_transaction_row(t) for t in shard.transactions]
    groups = []
    for group in shard.offsets.groups():
        iov = shard.offsets.committed(group)
        assert iov.last_commit is not None
        assert iov.commit_sequence is not None
        offsets = tuple((t, p, position) for (t, p), position in iov.offsets.items())
        groups.append(SnapshotGroup(group, iov.last_commit.offset, iov.commit_sequence, offsets))
    bindings, claims = list(shard.bindings.items()), list(shard.claims.rows())
    uses = list(shard.ages.groups.items())
    modes = [row for topic, mode in shard.modes.rows() for row in _mode_rows(topic, mode)]
    places = [
        _places_row(t, shard.places.of(t.begin))
        for t in shard.transactions
        if len(t.placed) > len(t.handed)
    ]
    adopted, unplaced = _adopted_rows(shard, places)
    handed = [
        SnapshotHanded(t.begin, tuple(t.handed.items())) for t in shard.transactions if t.handed
    ]
    since = [SnapshotSince(t.begin, tuple(t.since.items())) for t in shard.transactions if t.since]
    waiting = shard.fences.waiting
    fence_places = [] if waiting is None else list(waiting.last.items())
    last = list(shard.places.last.items())
    return (
        *(producers, transactions, groups, bindings, claims, uses),
        *(modes, last, places, fence_places),
        *(handed, adopted, unplaced, since),
        *(list(shard.queues.subscriptions.rows()), list(shard.staircases.rows())),
    )


def _adopted_rows(
    shard: Shard, places: list[SnapshotPlaces]
) -> tuple[list[SnapshotAdopted], list[SnapshotAdoption]]:
    """Returns what a home adopted, and adds to `places` what of it has no place, or some."""
    adopted = [
        SnapshotAdopted(
            row.journal,
            row.upto,
            tuple((s, tuple(sorted(where))) for s, where in sorted(row.refused.items())),
            () if row.begun is None else (row.begun,),
        )
        for row in shard.adopted.rows()
    ]
    unplaced = []
    for offset, adoption in shard.adopted.unplaced():
        written = shard.places.of(offset)
        assert written is not None, "it lacks a place"
        found = ((p, end, written.places.get(p)) for p, end in sorted(written.ends.items()))
        places.append(SnapshotPlaces(offset, offset, tuple(found)))
        unplaced.append(SnapshotAdoption(offset, adoption.txid, adoption.sequence, adoption.writes))
    return adopted, unplaced


def _places_row(t: TransactionMetadata, written: PlacedWrites | None) -> SnapshotPlaces:
    assert t.commit_sequence is not None, "it is decided where it is placed"
    ends, places = ({}, {}) if written is None else (written.ends, written.places)
    found: list[tuple[PartitionId, int, int | None]] = []
    for key in sorted(t.placed - t.handed.keys()):
        partition = t.partitions[key].identity
        if partition in ends:
            found.append((partition, ends[partition], places.get(partition)))
        else:
            found.append((partition, 0, GONE))
    return SnapshotPlaces(t.begin, t.commit_sequence, tuple(found))


def _transaction_row(t: TransactionMetadata) -> SnapshotTransaction:
    return SnapshotTransaction(
        begin=t.begin,
        producer_id=t.producer_id,
        generation=t.generation,
        timeout_ms=t.timeout_ms,
        started_ms=t.started_ms,
        state=t.state,
        commit_sequence=t.commit_sequence,
        reason=t.reason,
        partitions=tuple(p for p in t.partitions.values() if p.key not in t.branches),
        writes=tuple(_writes_rows(t)),
        steps=tuple(
            # Sorted, for the order of a set differs from process to process.
            SnapshotSteps(group, tuple(t.offsets[group].values()), tuple(sorted(sent, key=_to)))
            for group, sent in t.steps.items()
        ),
        doomed=t.doomed,
        parts=t.parts,
    )


def _writes_rows(t: TransactionMetadata) -> Iterator[PartitionWrites]:
    for key, branches in t.branches.items():
        # As they are now: those of an open transaction grow.
        yield PartitionWrites(t.partitions[key], branches[:])  # type: ignore[arg-type]


def _to(step: StepIdentity) -> tuple[str, int, int, int, int, int]:
    topic, partition, _, place = step
    passed = place.passed
    sequence, taken = (-1, 0) if passed is None else (passed.sequence, passed.taken)
    return topic, partition, place.o2, place.o3, sequence, taken


def _pieces(rows: _Rows) -> Iterator[tuple[int, _Row, int]]:
    """Yields (kind, row, upper bound of its bytes); a large row is split into several."""
    producers, transactions, groups, bindings, claims, uses = rows[:6]
    for producer in producers:
        for piece in _producer_pieces(producer):
            yield 0, piece, _producer_bytes(piece)
    for transaction in transactions:
        for part in _transaction_pieces(transaction):
            yield 1, part, _transaction_bytes(part)
    for group in groups:
        for offsets in _split(group.offsets, _offset_bytes) or [()]:
            share = group._replace(offsets=offsets)
            yield 2, share, _name_bytes(share.group) + sum(map(_offset_bytes, offsets))
    for binding in bindings:
        yield 3, binding, _name_bytes(*binding)
    for claim in claims:
        for partitions in _split(claim.partitions, _key_bytes):
            piece_bytes = _name_bytes(claim.group) + sum(map(_key_bytes, partitions))
            yield 4, claim._replace(partitions=partitions), piece_bytes
    for use in uses:
        yield 5, use, _name_bytes(use[0])
    yield from _pieces_of_places(rows)
    yield from _pieces_of_sidecars(rows)
    yield from _pieces_of_subscriptions(rows)


def _pieces_of_sidecars(rows: _Rows) -> Iterator[tuple[int, _Row, int]]:
    for told in rows[13]:
        for ends in _split(told.partitions, _handed_bytes):
            size = _FIXED_BYTES + sum(map(_handed_bytes, ends))
            yield 13, told._replace(partitions=ends), size
    for steps in rows[15]:
        yield 15, steps, _name_bytes(steps[0].sidecar[0]) + _STEP_BYTES * len(steps)


def _pieces_of_places(rows: _Rows) -> Iterator[tuple[int, _Row, int]]:
    modes, last_places, places, fence_places, handed, adopted, unplaced = rows[6:13]
    for mode in modes:
        yield 6, mode, _name_bytes(mode.topic, mode.topic_id) + _SINCE_BYTES * len(mode.since)
    for last in last_places:
        yield 7, last, _place_bytes(last)
    for placed in places:
        for share in _split(placed.places, _place_bytes):
            yield 8, placed._replace(places=share), _FIXED_BYTES + sum(map(_place_bytes, share))
    for last in fence_places:
        yield 9, last, _place_bytes(last)
    for over in handed:
        for partitions in _split(over.partitions, _handed_bytes):
            size = _FIXED_BYTES + sum(map(_handed_bytes, partitions))
            yield 10, over._replace(partitions=partitions), size
    for journal in adopted:
        for refused in _split(journal.refused, _refused_bytes) or [()]:
            size = _FIXED_BYTES + sum(map(_refused_bytes, refused))
            yield 11, journal._replace(refused=refused), size
    for adoption in unplaced:
        for writes in _split(adoption.writes, _adopted_bytes):
            size = _FIXED_BYTES + sum(map(_adopted_bytes, writes))
            yield 12, adoption._replace(writes=writes), size


def _pieces_of_subscriptions(rows: _Rows) -> Iterator[tuple[int, _Row, int]]:
    for part in chain.from_iterable(map(_subscription_pieces, rows[14])):
        spans = len(part.deleted) + len(part.pending)
        name_bytes = _name_bytes(part.group, part.partition.topic, part.partition.topic_id)
        yield 14, part, name_bytes + _SPAN_BYTES * spans


def _subscription_pieces(row: SnapshotSubscription) -> Iterator[SnapshotSubscription]:
    # The first piece stands for the partition, even if nothing of it is acknowledged.
    for deleted in _split(row.deleted, lambda _: _SPAN_BYTES) or [()]:
        yield row._replace(deleted=deleted, pending=())
    for pending in _split(row.pending, lambda _: _SPAN_BYTES):
        yield row._replace(deleted=(), pending=pending)


def _handed_bytes(row: tuple[TopicPartition, int]) -> int:
    return _key_bytes(row[0])


def _refused_bytes(row: tuple[int, tuple[PartitionId, ...]]) -> int:
    return _FIXED_BYTES + sum(_name_bytes(p.topic, p.topic_id) for p in row[1])


def _adopted_bytes(writes: AdoptedWrites) -> int:
    names = _name_bytes(writes.partition.topic, writes.partition.topic_id)
    return names + _BRANCH_BYTES * len(writes.branches)


def _place_bytes(row: tuple[PartitionId, int] | tuple[PartitionId, int, int | None]) -> int:
    return _name_bytes(row[0].topic, row[0].topic_id)


def _producer_pieces(row: SnapshotProducer) -> Iterable[SnapshotProducer]:
    if _producer_bytes(row) <= CHUNK_BYTES:
        return (row,)
    return (row._replace(begins=share) for share in _split(row.begins, lambda _: 20) or [()])


def _transaction_pieces(row: SnapshotTransaction) -> Iterator[SnapshotTransaction]:
    if _transaction_bytes(row) <= CHUNK_BYTES:
        yield row
        return
    bare = row._replace(partitions=(), writes=(), steps=())
    yield bare
    for partitions in _split(row.partitions, _partition_bytes):
        yield bare._replace(partitions=partitions)
    all_writes = chain.from_iterable(map(_shares, row.writes)) if row.parts else row.writes
    for writes in _split(all_writes, _writes_bytes):
        yield bare._replace(writes=writes)
    for group, steps, sent in row.steps:
        for share in _split(steps, _step_bytes) or [()]:
            yield bare._replace(steps=(SnapshotSteps(group, share, ()),))
        for part in _split(sent, _sent_bytes):
            yield bare._replace(steps=(SnapshotSteps(group, (), part),))


def _shares(writes: PartitionWrites) -> Iterator[PartitionWrites]:
    """Splits what very many branches wrote to one partition."""
    count = SHARE_BRANCHES
    for start in range(0, max(len(writes.branches), 1), count):
        yield PartitionWrites(writes.partition, writes.branches[start : start + count])


def _split(items: Iterable[Item], size_of: Callable[[Item], int]) -> list[tuple[Item, ...]]:
    shares: list[list[Item]] = []
    size = CHUNK_BYTES
    for item in items:
        item_bytes = size_of(item)
        if size + item_bytes > CHUNK_BYTES:
            shares.append([])
            size = 0
        shares[-1].append(item)
        size += item_bytes
    return [tuple(share) for share in shares]


def _name_bytes(*names: str) -> int:
    return _FIXED_BYTES + _CHAR_BYTES * sum(map(len, names))


def _producer_bytes(row: SnapshotProducer) -> int:
    return _name_bytes(row.producer_id, row.owner) + 20 * len(row.begins)


def _partition_bytes(partition: DataPartition) -> int:
    return _name_bytes(partition.topic, partition.topic_id)


def _key_bytes(key: TopicPartition) -> int:
    return _name_bytes(key[0])


def _writes_bytes(writes: PartitionWrites) -> int:
    return _partition_bytes(writes.partition) + _BRANCH_BYTES * len(writes.branches)


def _position_bytes(position: Position) -> int:
    return _FIXED_BYTES + _SEQUENCE_BYTES * (len(position.met) + len(position.delivered))


def _step_bytes(step: OffsetStep) -> int:
    return _name_bytes(step.topic) + _position_bytes(step.to)


def _sent_bytes(sent: StepIdentity) -> int:
    return _name_bytes(sent[0])


def _offset_bytes(offset: tuple[str, int, Position]) -> int:
    return _name_bytes(offset[0]) + _position_bytes(offset[2])


def _transaction_bytes(row: SnapshotTransaction) -> int:
    return (
        _name_bytes(row.producer_id)
        + sum(map(_partition_bytes, row.partitions))
        + sum(map(_writes_bytes, row.writes))
        + sum(
            _name_bytes(s.group) + sum(map(_step_bytes, s.steps)) + sum(map(_sent_bytes, s.sent))
            for s in row.steps
        )
    )


# ---- reading one back ---------------------------------------------------------------------------


class SnapshotReader:
    """Reads one snapshot from its first chunk on, and makes a shard of it if it counts."""

    def __init__(self, partition: int, config: ShardConfig, offset: int, first: Entry) -> None:
        """Prepares to read. `feed` must be given the first chunk too.

        Args:
            partition: number of the journal partition.
            config: limits of the shard.
            offset: offset of the first chunk, for which `begins_at` is true.
            first: the first chunk.
        """
        self._partition, self._config = partition, config
        self._collector = SnapshotCollector(offset, first)
        self._chunks: list[Snapshot] = []
        self._entries: list[tuple[int, Entry]] = []

    @property
    def torn(self) -> bool:
        """Whether the owner died or lost its place before the last chunk: it will never count."""
        return self._collector.torn

    def feed(self, offset: int, entry: Entry) -> Shard | None:
        """Takes the next entry, beginning with the first chunk.

        Returns:
            The shard as of this entry if it completes the snapshot, else None.
        """
        self._entries.append((offset, entry))
        chunk = self._collector.feed(offset, entry)
        if chunk is not None:
            self._chunks.append(chunk)
        return self._shard() if self._collector.complete else None

    def _shard(self) -> Shard:
        shard = Shard(self._partition, self._config)
        _restore(shard, self._entries[0][1], self._chunks)
        for offset, entry in self._entries:
            shard.replay(offset, entry)
        return shard


def _restore(shard: Shard, first: Entry, chunks: Sequence[Snapshot]) -> None:
    head, incarnation = chunks[0], first.incarnation
    owner = Owner(
        replaces=head.replaces,
        address=head.address,
        process_nonce=head.process_nonce,
        partition_count=head.partition_count,
    )
    for row in chain.from_iterable(c.producers for c in chunks):
        producer = shard.producers.get(row.producer_id)
        if producer is None:
            producer = shard.producers[row.producer_id] = ProducerMetadata(
                generation=row.generation,
                nonce=row.session_nonce,
                owner=row.owner,
                voided=row.voided,
                connected_ms=row.connected_ms,
                answered_below=row.answered_below,
                used_hour=row.used_hour,
            )
        producer.begins.update(row.begins)
    transactions: dict[int, TransactionMetadata] = {}
    for part in chain.from_iterable(c.transactions for c in chunks):
        transaction = transactions.get(part.begin)
        if transaction is None:
            txid = TxId(shard.partition, incarnation, part.begin)
            transaction = transactions[part.begin] = _transaction(txid, part)
        _add_lists(transaction, part)
    for group in chain.from_iterable(c.groups for c in chunks):
        txid = TxId(shard.partition, incarnation, group.last_commit)
        shard.offsets.restore(group.group, group.offsets, txid, group.commit_sequence)
    for chunk in chunks:
        shard.ages.hour, shard.producers.floor = chunk.hour, chunk.generation_floor
        shard.ages.groups.update(chunk.group_uses)
        shard.queues.subscriptions.last_era = chunk.last_era
    shard.bindings.update(chain.from_iterable(c.bindings for c in chunks))
    for claim in chain.from_iterable(c.claims for c in chunks):
        shard.claims.restore(claim)
    _restore_places(shard, chunks, transactions)
    for subscription in chain.from_iterable(c.subscriptions for c in chunks):
        shard.queues.subscriptions.restore(subscription)
    shard.staircases.replay(chain.from_iterable(c.pointers for c in chunks))
    epochs = EpochFilter(first.epoch, incarnation)
    shard.resume(head.first, epochs, owner, head.past_epochs, transactions.values())


def _mode_rows(topic: str, mode: TopicMode) -> Iterator[SnapshotMode]:
    """Yields a topic's switches. The latest comes last: programs that know of no earlier one take
    that."""
    for each in mode.earlier:
        since = tuple(each.since.items())
        yield SnapshotMode(topic, mode.topic_id, each.phase, each.offset, since, each.with_records)
    since = tuple(mode.since.items())
    yield SnapshotMode(topic, mode.topic_id, mode.phase, mode.offset, since, mode.with_records)


def _modes(rows: Iterable[SnapshotMode]) -> Iterator[tuple[str, TopicMode]]:
    for topic, switches in groupby(rows, key=lambda row: row.topic):
        *earlier, m = switches
        mode = TopicMode(m.topic_id, m.phase, m.offset, dict(m.since), m.with_records)
        mode.earlier = tuple(
            EndedSwitch(e.offset, e.phase, dict(e.since), e.with_records) for e in earlier
        )
        yield topic, mode


def _restore_places(
    shard: Shard, chunks: Sequence[Snapshot], transactions: dict[int, TransactionMetadata]
) -> None:
    # What the fence is, the shard reads from the chunks when they are replayed.
    shard.modes = TopicModes.restore(_modes(chain.from_iterable(c.modes for c in chunks)))
    unplaced: dict[int, SnapshotAdoption] = {}
    for row in chain.from_iterable(c.unplaced for c in chunks):
        known = unplaced.setdefault(row.offset, row._replace(writes=()))
        unplaced[row.offset] = known._replace(writes=(*known.writes, *row.writes))
    for begin, partitions in chain.from_iterable(c.sidecar_since for c in chunks):
        transactions[begin].since = {**transactions[begin].since, **dict(partitions)}
    ends: dict[int, tuple[int, dict[PartitionId, int], dict[PartitionId, int]]] = {}
    for begin, sequence, placed in chain.from_iterable(c.places for c in chunks):
        mains: set[TopicPartition] = set()
        if begin not in unplaced:
            transactions[begin].placed |= {partition.key for partition, _, _ in placed}
            mains.update(map(main_partition, transactions[begin].since))
        written = [
            (p, end, place) for p, end, place in placed if end or place != GONE or p.key in mains
        ]
        if written:
            _, its_ends, its_places = ends.setdefault(begin, (sequence, {}, {}))
            its_ends.update((p, end) for p, end, _ in written)
            its_places.update((p, place) for p, _, place in written if place is not None)
    last = dict(chain.from_iterable(c.last_places for c in chunks))
    rows = [PlacedWrites(begin, *row) for begin, row in ends.items()]
    shard.places = Places.restore(Fence(chunks[0].first, last), rows)
    for begin, partitions in chain.from_iterable(c.handed for c in chunks):
        transaction = transactions[begin]
        transaction.handed = {**transaction.handed, **dict(partitions)}
        transaction.placed |= transaction.handed.keys()
    adopted: dict[Journal, AdoptedRow] = {}
    for journal, upto, refused, parts in chain.from_iterable(c.adopted for c in chunks):
        begun = Begun(*parts[0]) if parts else None
        so_far = adopted.setdefault(journal, AdoptedRow(journal, upto, {}, begun))
        told = {sequence: frozenset(where) for sequence, where in refused}
        adopted[journal] = so_far._replace(refused={**so_far.refused, **told})
    shard.adopted = Adopted.restore(
        shard.partition,
        shard.places,
        shard.modes,
        adopted.values(),
        [
            (offset, Adoption(row.txid, row.sequence, True, row.writes))
            for offset, row in unplaced.items()
        ],
    )


def _transaction(txid: TxId, row: SnapshotTransaction) -> TransactionMetadata:
    return TransactionMetadata(
        txid=txid,
        producer_id=row.producer_id,
        generation=row.generation,
        timeout_ms=row.timeout_ms,
        started_ms=row.started_ms,
        state=row.state,
        commit_sequence=row.commit_sequence,
        reason=row.reason,
        doomed=row.doomed,
        parts=row.parts,
    )


def _add_lists(transaction: TransactionMetadata, row: SnapshotTransaction) -> None:
    transaction.partitions.update((p.key, p) for p in row.partitions)
    transaction.partitions.update((w.partition.key, w.partition) for w in row.writes)
    branches = transaction.branches
    assert isinstance(branches, dict)
    for key, written in ((w.partition.key, w.branches) for w in row.writes):
        if row.parts:
            branches.setdefault(key, PackedRanges()).extend(written)
        else:
            branches[key] = written
    for group, steps, sent in row.steps:
        offsets = transaction.offsets.setdefault(group, {})
        offsets.update(((s.topic, s.partition), s) for s in steps)
        transaction.steps.setdefault(group, set()).update(sent)
