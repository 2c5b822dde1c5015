"""What a commit has to do with sidecars: where it gets pointers, and what stands against them.
Pure.

A commit that accepts records in a sidecar partition also names the main partition: a transaction is
delivered there, though maybe none of its records lie there. So it gets an end in each, one pointer
for both (`lanes`). An abort leaves the main partition alone.

Where the main topic is in metadata mode, its place stands for the pointer (decision 0040). The
sidecar's own marker names it, and waits for it (`placed_sidecars`).

Source: PIP-31, "Sidecar Approach".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import TopicModeError
from ...journal.places import GONE, PartitionId
from ...journal.records.types import DataPartition, PointerStep
from ...journal.sidecar import is_sidecar, main_partition, sidecar_of
from .ranges import first_offset_of
from .transactions import TransactionMetadata


def sidecars_among(
    *writes: Mapping[TopicPartition, Sequence[BranchRange]],
) -> dict[TopicPartition, None]:
    """Returns the sidecar partitions for which these name records, in order."""
    found: dict[TopicPartition, None] = {}
    for written in writes:
        # Looked at by topic first: there are few, and many partitions.
        if written and any(map(is_sidecar, {topic for topic, _ in written})):
            found |= {key: None for key, named in written.items() if named and is_sidecar(key[0])}
    return found


def with_mains(keys: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Returns partitions, and the main ones of the sidecars among them, each once."""
    named = list(keys)
    mains = [main_partition(key) for key in named if is_sidecar(key[0])]
    return list(dict.fromkeys((*named, *mains))) if mains else named


def pointing(transaction: TransactionMetadata) -> dict[TopicPartition, DataPartition]:
    """Returns main partition → sidecar partition, of a decided transaction; {} for almost all."""
    partitions = transaction.partitions
    return {main_partition(key): partitions[key] for key in transaction.since}


def since_of(
    sidecars: Iterable[TopicPartition], told: Mapping[TopicPartition, int]
) -> tuple[tuple[TopicPartition, int], ...]:
    """Returns what a decision says of its sidecars.

    Args:
        sidecars: the sidecar partitions with records that it accepts.
        told: main partition → its end, told after the commit was asked for. Where it is missing, 0
            stands for it: that is right as well, and makes readers look for a first pointer from
            the log's start on.
    """
    return tuple((key, told.get(main_partition(key), 0)) for key in sidecars)


def steps_of(
    transaction: TransactionMetadata, pointers: Mapping[TopicPartition, int]
) -> tuple[PointerStep, ...]:
    """Returns what the pointers of a committed transaction need.

    Args:
        transaction: the transaction.
        pointers: sidecar partition → offset of its pointer.
    """
    return tuple(
        PointerStep(key, offset, first_offset_of(transaction.branches[key]))
        for key, offset in pointers.items()
    )


def steps_to_come(
    transactions: Iterable[TransactionMetadata],
) -> dict[TopicPartition, PointerStep]:
    """Returns what the pointers of commits need that are not finished: they may not be written.

    Args:
        transactions: the unfinished transactions, with what their decisions accept.

    Returns:
        Sidecar partition → the step that needs most. Its pointer will lie at the offset that the
        step names, or behind.
    """
    found: dict[TopicPartition, PointerStep] = {}
    for transaction in transactions:
        for key, since in transaction.since.items():
            step = PointerStep(key, since, first_offset_of(transaction.branches[key]))
            if key not in found or step.first < found[key].first:
                found[key] = step
    return found


def placed_sidecars(transaction: TransactionMetadata) -> dict[TopicPartition, TopicPartition]:
    """Returns sidecar partition → main partition, where a decided transaction is placed in it; {}
    for almost all."""
    placed = transaction.placed
    mains = ((key, main_partition(key)) for key in transaction.since)
    return {key: main for key, main in mains if main in placed}


def places_of(
    transaction: TransactionMetadata, places: Mapping[PartitionId, int]
) -> dict[TopicPartition, int]:
    """Returns sidecar partition → the place in its main partition, of those that have one.

    Args:
        transaction: a decided transaction.
        places: partition → place, or `GONE`: then it gets a pointer, as others get a late marker.
    """
    known = {p.key: place for p, place in places.items() if place != GONE}
    mains = placed_sidecars(transaction)
    return {key: known[main] for key, main in mains.items() if main in known}


def check_mains_place_sidecars(
    sidecars: Iterable[TopicPartition],
    placed: Collection[TopicPartition],
    handed: Collection[TopicPartition],
    silent: Collection[TopicPartition],
    *,
    has_parts: bool,
) -> None:
    """Refuses a commit with records in a sidecar that its topic's mode does not allow.

    Args:
        sidecars: the sidecar partitions with records that the commit accepts.
        placed: the partitions in which it would be placed.
        handed: the partitions in which it would be handed over.
        silent: those whose topic was switched without mode records.
        has_parts: whether parts have named what it wrote.

    Raises:
        TopicModeError: it would be handed over, or is placed and has parts: neither ADOPT nor the
            parts say what readers of the topic's home need. Or readers that run were not told of
            the switch. They learn it when they look up what they hold, and hold nothing of this.
    """
    for key in sidecars:
        main = main_partition(key)
        why = None
        if main in handed:
            why = "and its home is another transaction group's or key's"
        elif main in placed and has_parts:
            why = "and the transaction has so many branches that it commits in parts"
        elif main in placed and main in silent:
            why = "and was switched without mode records, so consumers that run may not know"
        if why is not None:
            raise TopicModeError(
                f"topic {main[0]} is in metadata mode, {why}: this transaction can't write to its"
                f" sidecar ({sidecar_of(main[0])}). Write without one"
                " (begin_transaction(sidecar=False)), or let the topic have markers: logtx topics"
                f" set-mode {main[0]} --mode markers"
            )
