"""Checks the data partitions that requests name against what is known of their topics. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import repeat
from typing import Final, TypeAlias

from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import RequestTooLargeError, UnknownTopicError
from ...journal.records.types import UNKNOWN_OFFSET, DataPartition, PartitionWrites
from ...journal.sidecar import is_sidecar, main_partition
from .decision import TopicFacts
from .modes import TopicModes
from .sidecars import check_mains_place_sidecars
from .topics import disagreement, may_be_same
from .transactions import TransactionMetadata

BRANCH_MARKER_BYTES: Final = 40
"""Upper bound of what one branch adds to a marker.

Too low, and a commit would be decided whose marker the topic refuses; too high refuses good ones.
"""
MARKER_BYTES_MAX: Final = 990_000
"""Largest marker, whatever its topic takes: the producers of markers send no larger message than
1,000,000 bytes, and a decided commit whose marker can't be sent would never be finished."""
MARKER_FIXED_BYTES: Final = 1536
"""Upper bound of a marker without its branches. Its partition list takes up to 1 KiB."""

_NOT_KNOWN: Final[Mapping[TopicPartition, int]] = {}
Topics = Mapping[str, TopicFacts]
"""What is known of data topics, by topic name."""
HandedTo: TypeAlias = tuple[tuple[TopicPartition, int], ...]
"""Partitions that are handed over, each with the journal partition that is its home."""


def resolve(
    topics: Topics,
    modes: TopicModes,
    partitions: Iterable[TopicPartition],
    begin: int,
    began_ms: int,
    first_offsets: Mapping[TopicPartition, int] = _NOT_KNOWN,
) -> tuple[DataPartition, ...]:
    """Ties partitions to the ids of the topics that had these names when a transaction began.

    If a topic was deleted and created anew since, the transaction's records may be in either: a
    marker that names the former one stops no reader that finds none (decision 0016).

    Args:
        topics: what is known of them.
        modes: tell which topics place what is decided.
        partitions: the data partitions that a request names.
        begin: offset of the transaction's BEGIN.
        began_ms: when it began, in monotonic ms.
        first_offsets: partition → first offset written there, as far as it is known.

    Raises:
        UnknownTopicError: there is no such partition.
        CoordinatorBusyError: it is not certain which topic has the name, and one of them places.
    """
    known: dict[str, tuple[int, str]] = {}
    found = []
    for key in partitions:
        topic, partition = key
        if topic not in known:
            facts = topics.get(topic)
            known[topic] = (
                (0, "") if facts is None else _count_and_id(topic, facts, modes, begin, began_ms)
            )
        count, topic_id = known[topic]
        if not 0 <= partition < count:
            raise UnknownTopicError(f"there is no partition {topic}[{partition}]")
        first = first_offsets.get(key, UNKNOWN_OFFSET)
        found.append(DataPartition(topic, partition, topic_id, first))
    return tuple(found)


def _count_and_id(
    topic: str, facts: TopicFacts, modes: TopicModes, begin: int, began_ms: int
) -> tuple[int, str]:
    placing = modes.placing(topic)
    if placing is None:
        return facts.partition_count, facts.id_at(began_ms)
    topic_id, since = placing
    is_it = may_be_same(facts.topic_id, topic_id)
    if is_it and begin > since:
        # Also for what began while a broker told of another one: this one was there before.
        return facts.partition_count, topic_id
    if not is_it and not facts.is_settled:
        # Under another topic's id it would be marked, and the marker come in no order with the
        # places of this one (trap 79).
        raise disagreement(topic)
    return facts.partition_count, facts.id_at(began_ms)


def exists(topics: Topics, partition: TopicPartition) -> bool:
    """Returns whether the partition exists, as far as is known."""
    facts = topics.get(partition[0])
    return facts is not None and 0 <= partition[1] < facts.partition_count


def added_to(
    topics: Topics,
    modes: TopicModes,
    transaction: TransactionMetadata,
    named: Iterable[TopicPartition],
    first_offsets: Mapping[TopicPartition, int] = _NOT_KNOWN,
) -> tuple[DataPartition, ...]:
    """Returns those partitions of `named` that are not registered yet; see `resolve`.

    Raises:
        UnknownTopicError: there is no such partition.
    """
    registered = transaction.partitions
    new = [p for p in named if p not in registered]
    began_ms = transaction.began_ms
    return resolve(topics, modes, new, transaction.begin, began_ms, first_offsets)


def writes_of(
    topics: Topics,
    transaction: TransactionMetadata,
    named: Mapping[TopicPartition, tuple[BranchRange, ...]],
    modes: TopicModes,
    handed_of: Callable[[Iterable[DataPartition]], HandedTo],
    *,
    sidecars: Collection[TopicPartition],
) -> tuple[
    tuple[PartitionWrites, ...], tuple[DataPartition, ...], tuple[TopicPartition, ...], HandedTo
]:
    """Returns what a commit decides for each data partition.

    Covers the partitions registered before and those that the commit names (decision 0004).

    Args:
        topics: what is known of data topics.
        transaction: with its registered partitions, and what its parts have named.
        named: what the commit names.
        modes: tell where no marker is written.
        handed_of: returns those of some partitions that are handed over, and to which homes.
        sidecars: those among the partitions that are of a sidecar.

    Returns:
        What the decision says; the partitions of which the parts say more: all, or where it is
        placed a share; where it is placed; and where it is handed over.

    Raises:
        RequestTooLargeError: a marker would name too many branches.
        UnknownTopicError: there is no such partition.
    """
    registered, added = transaction.partitions, transaction.branches
    names = dict.fromkeys((*named, *map(main_partition, sidecars))) if sidecars else named
    partitions = (*registered.values(), *added_to(topics, modes, transaction, names))
    placed = placed_of(partitions, modes)
    handed = handed_of(partitions)
    unmarked = (*placed, *dict(handed))
    if sidecars and unmarked:
        silent = {p.key for p in partitions if not modes.wrote_records(p.identity)}
        check_mains_place_sidecars(sidecars, placed, dict(handed), silent, has_parts=bool(added))
    check_markers_fit(topics, added, named, unmarked)
    if not added:  # the usual case, quickly
        keys = [(p.topic, p.partition) for p in partitions]
        written = map(named.get, keys, repeat(()))
        return tuple(map(PartitionWrites, partitions, written)), (), placed, handed
    writes = tuple(
        PartitionWrites(p, named.get(p.key, ()))
        for p in partitions
        if named.get(p.key) or not added.get(p.key)
    )
    # A marker says all that branches wrote. Where there is none, readers must know from the
    # decision that it is not all.
    over = dict(handed)
    of_parts = tuple(
        p
        for p in (p for p in registered.values() if added.get(p.key))
        if not named.get(p.key) or modes.is_placed(p.identity) or p.key in over
    )
    placed = placed_of((*(w.partition for w in writes), *of_parts), modes)
    return writes, of_parts, placed, handed


def part_of(
    topics: Topics,
    transaction: TransactionMetadata,
    named: Mapping[TopicPartition, tuple[BranchRange, ...]],
    modes: TopicModes,
    handed_of: Callable[[Iterable[DataPartition]], HandedTo],
) -> tuple[PartitionWrites, ...]:
    """Returns what a part says, of which `named` has the branches; arguments as `writes_of`.

    Raises:
        RequestTooLargeError: a marker would name too many branches.
        UnknownTopicError: there is no such partition.
    """
    registered, added = transaction.partitions, transaction.branches
    written = {key: branches for key, branches in named.items() if branches}
    new = {p.key: p for p in added_to(topics, modes, transaction, written)}
    partitions = {key: registered.get(key) or new[key] for key in written}
    unmarked = (*placed_of(partitions.values(), modes), *dict(handed_of(partitions.values())))
    check_markers_fit(topics, {key: added.get(key, ()) for key in written}, written, unmarked)
    return tuple(PartitionWrites(partitions[key], branches) for key, branches in written.items())


def placed_of(partitions: Iterable[DataPartition], modes: TopicModes) -> tuple[TopicPartition, ...]:
    """Returns those partitions in which what is decided now is placed, rather than marked."""
    if not modes.places_any:
        return ()
    named = [*partitions]
    one_of_each = {(p.topic, p.topic_id): p for p in named}
    placing = {which for which, p in one_of_each.items() if modes.is_placed(p.identity)}
    keys = [(p.topic, p.partition) for p in named if (p.topic, p.topic_id) in placing]
    return tuple(dict.fromkeys(keys))


def check_markers_fit(
    topics: Topics,
    added: Mapping[TopicPartition, Collection[BranchRange]],
    writes: Mapping[TopicPartition, tuple[BranchRange, ...]],
    placed: Collection[TopicPartition] = (),
) -> None:
    """Refuses a commit whose marker would be larger than its topic takes.

    Called before the decision, for the marker of a decided commit must be written. Where it is
    placed there is no marker: such a topic may be one that takes no record at all any more.

    Raises:
        RequestTooLargeError: the marker would name too many branches, or the topic takes none.
    """
    without = frozenset(placed)
    counts: dict[TopicPartition, int] = {}
    for key in (added.keys() | writes.keys()) if added else writes:
        if key in without:
            continue
        count = len(writes.get(key, ())) + len(added.get(key, ()))
        counts[key] = counts.get(key, 0) + count
        if is_sidecar(key[0]) and (main := main_partition(key)) not in without:
            # The pointer names them, too, with what the main partition itself holds.
            counts[main] = counts.get(main, 0) + count
    for key, count in counts.items():
        topic, partition = key
        facts = topics.get(topic)
        size = MARKER_FIXED_BYTES + BRANCH_MARKER_BYTES * count
        if facts is None or size <= min(facts.record_max_bytes, MARKER_BYTES_MAX):
            continue
        if facts.record_max_bytes < MARKER_FIXED_BYTES + BRANCH_MARKER_BYTES:
            raise RequestTooLargeError(
                f"topic {topic} takes records of at most {facts.record_max_bytes} bytes"
                f" (max.message.bytes), and a marker may need"
                f" {MARKER_FIXED_BYTES + BRANCH_MARKER_BYTES}. Raise it; or if the topic is sealed,"
                " let it do without markers: logtx topics set-mode"
                f" {topic} --mode metadata --without-records"
            )
        raise RequestTooLargeError(
            f"the marker of {topic}[{partition}] would name {count} branches, up to {size} bytes;"
            f" the topic takes {facts.record_max_bytes} (max.message.bytes), and a marker has at"
            f" most {MARKER_BYTES_MAX}: write with fewer tasks (in Spark: coalesce, or repartition"
            " by the key that chooses the partition)"
        )
