"""Converts what several messages have in common to protobuf and back, and limits names. Pure.

Names go into the journal, into snapshots and into memory. So their length is checked where they are
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Final
from unicodedata import category

from ...journal.control import BranchRange, RangeColumns, TopicPartition, group_by_topic
from ...journal.errors import ConfigError, NotSupportedError
from ...journal.modes import Mode, Phase
from ...journal.position import Journal, Passed, Place, Position
from ...journal.records.types import UNKNOWN_OFFSET, OffsetStep
from ...journal.state import State
from . import coordinator_pb2 as pb

PROTOCOL_VERSION: Final = 2
"""Version that `Connect` carries; a coordinator refuses any other."""
ATTACH_VERSION: Final = 3
"""The same of `Attach`. A consumer of version 2 awaits a result of each span, and would take what
did not count for done."""
TOPIC_MAX_BYTES: Final = 249
"""Longest topic name, which is Kafka's own limit."""
NAME_MAX_BYTES: Final = 1_024
"""Longest producer id, transaction key with its owner, consumer group or transaction group.

Must be far below `CHUNK_BYTES` (`coordinator/core/snapshot.py`), for a chunk holds each name whole.
"""
_CHAR_BYTES: Final = 4
"""Upper bound of one character in UTF-8."""
_UNREADABLE: Final = frozenset({"Cc", "Cf"})
"""Unicode's categories of control and format characters."""
NO_CLAIM: Final = -1
"""On the wire, in place of a claim's number: the partition must have no claim."""

STATES: Final[Mapping[State, pb.Outcome.State]] = {
    State.UNKNOWN: pb.Outcome.UNKNOWN,
    State.OPEN: pb.Outcome.OPEN,
    State.COMMITTING: pb.Outcome.COMMITTING,
    State.COMMITTED: pb.Outcome.COMMITTED,
    State.ABORTING: pb.Outcome.ABORTING,
    State.ABORTED: pb.Outcome.ABORTED,
}
STATES_FROM_WIRE: Final[Mapping[pb.Outcome.State, State]] = {w: s for s, w in STATES.items()}
MODES: Final[Mapping[Mode, pb.TopicMode.Mode]] = {
    Mode.MARKERS: pb.TopicMode.MARKERS,
    Mode.METADATA: pb.TopicMode.METADATA,
}
MODES_FROM_WIRE: Final[Mapping[pb.TopicMode.Mode, Mode]] = {w: m for m, w in MODES.items()}
PHASES: Final[Mapping[Phase, pb.TopicMode.Phase]] = {
    Phase.MARKERS: pb.TopicMode.IN_MARKERS,
    Phase.TO_METADATA: pb.TopicMode.TO_METADATA,
    Phase.METADATA: pb.TopicMode.IN_METADATA,
    Phase.TO_MARKERS: pb.TopicMode.TO_MARKERS,
}
PHASES_FROM_WIRE: Final[Mapping[pb.TopicMode.Phase, Phase]] = {w: p for p, w in PHASES.items()}

# ---- names --------------------------------------------------------------------------------------


def check_name(what: str, name: str, max_bytes: int = NAME_MAX_BYTES) -> str:
    """Returns the name if it is short enough.

    Raises:
        ConfigError: it is too long. The message begins with `what`, the kind of thing it names.
    """
    if len(name) * _CHAR_BYTES > max_bytes:
        size = len(name.encode())
        if size > max_bytes:
            raise ConfigError(
                f"{what} {name[:20]!r}… has a name of {size} bytes in UTF-8, and {max_bytes} are"
                " allowed"
            )
    return name


def check_new_name(what: str, name: str, max_bytes: int = NAME_MAX_BYTES) -> str:
    """Returns a name that is to be remembered, as `check_name` does, if people can read it.

    The journal may have others, from before this was checked. They can still be asked for.

    Raises:
        ConfigError: it is too long, has no visible character, or has a control or format character,
            such as an escape sequence for terminals.
    """
    if not name.strip():
        raise ConfigError(f"{what} {name!r} has an empty name: give it one")
    for char in name:
        if category(char) in _UNREADABLE:
            raise ConfigError(f"{what} {name!a} has the control character {char!a} in its name")
    return check_name(what, name, max_bytes)


def check_new_topics(topics: Iterable[str]) -> None:
    """Checks names of topics that are to be remembered, as `check_new_name` does."""
    for topic in topics:
        check_new_name("topic", topic, TOPIC_MAX_BYTES)


def check_group(name: str) -> str:
    """Returns the name of a consumer group, as `check_name` does."""
    return check_name("consumer group", name)


def check_topic(name: str) -> str:
    """Returns the name of a topic, as `check_name` does."""
    return check_name("topic", name, TOPIC_MAX_BYTES)


# ---- partitions ---------------------------------------------------------------------------------


def partitions_to_wire(partitions: Iterable[TopicPartition]) -> list[pb.Partitions]:
    """Encodes partitions, grouped by topic."""
    grouped = group_by_topic(partitions)
    return [pb.Partitions(topic=t, partitions=p) for t, p in grouped.items()]


def partitions_from_wire(wire: Iterable[pb.Partitions]) -> tuple[TopicPartition, ...]:
    """Decodes partitions, in the order of the wire.

    Raises:
        ConfigError: a topic's name is too long.
    """
    return tuple(chain.from_iterable(zip(repeat(check_topic(w.topic)), w.partitions) for w in wire))


def first_offsets_to_wire(
    partitions: Iterable[TopicPartition], first_offsets: Mapping[TopicPartition, int]
) -> list[pb.Partitions]:
    """Encodes partitions, each with the first offset that was written there, if any is known."""
    wire = partitions_to_wire(partitions)
    for topic in wire if first_offsets else ():
        found = [first_offsets.get((topic.topic, p), UNKNOWN_OFFSET) for p in topic.partitions]
        topic.first_offsets.extend(found)
    return wire


def first_offsets_from_wire(wire: Iterable[pb.Partitions]) -> dict[TopicPartition, int]:
    """Decodes the first offsets of the partitions for which they are known.

    Raises:
        ValueError: there are offsets of some partitions of a topic, and not of all.
    """
    known: dict[TopicPartition, int] = {}
    for w in wire:
        if w.first_offsets:
            pairs = zip(zip(repeat(w.topic), w.partitions), w.first_offsets, strict=True)
            known.update(pairs if min(w.first_offsets) >= 0 else (p for p in pairs if p[1] >= 0))
    return known


def expected_to_wire(
    partitions: Iterable[TopicPartition], expected: Mapping[TopicPartition, int]
) -> list[pb.Partitions]:
    """Encodes partitions, each with the number of the claim that it must have, or `NO_CLAIM`."""
    wire = partitions_to_wire(partitions)
    for topic in wire:
        topic.claims.extend(expected.get((topic.topic, p), NO_CLAIM) for p in topic.partitions)
    return wire


def expected_from_wire(wire: Iterable[pb.Partitions]) -> dict[TopicPartition, int]:
    """Decodes the numbers of the claims, for the partitions that must have one."""
    return {
        (w.topic, p): number
        for w in wire
        for p, number in zip(w.partitions, w.claims, strict=True)
        if number >= 0
    }


# ---- writes -------------------------------------------------------------------------------------


def writes_to_wire(
    writes: Mapping[TopicPartition, Sequence[BranchRange]],
) -> list[pb.Writes]:
    """Encodes what each branch wrote, by partition, grouped by topic."""
    grouped: dict[str, tuple[list[int], list[Sequence[BranchRange]]]] = {}
    for (topic, partition), ranges in writes.items():
        partitions, found = grouped.setdefault(topic, ([], []))
        partitions.append(partition)
        found.append(ranges)
    return [
        pb.Writes(topic=topic, partitions=partitions, **RangeColumns.of(found)._asdict())
        for topic, (partitions, found) in grouped.items()
    ]


def writes_from_wire(
    wire: Sequence[pb.Writes],
) -> dict[TopicPartition, tuple[BranchRange, ...]]:
    """Decodes what each branch wrote, by partition.

    Raises:
        ValueError: a range is impossible, a partition is named twice, or columns are of different
            lengths.
        ConfigError: a topic's name is too long.
    """
    writes: dict[TopicPartition, tuple[BranchRange, ...]] = {}
    named = 0
    for w in wire:
        columns = RangeColumns(
            w.range_counts, w.branches, w.first_offsets, w.last_offsets, w.counts
        )
        ranges = columns.by_partition(len(w.partitions))
        writes.update(zip(zip(repeat(check_topic(w.topic)), w.partitions), ranges, strict=True))
        named += len(ranges)
    if len(writes) < named:
        raise ValueError("a partition is named twice: its records would be those of one alone")
    return writes


# ---- positions and steps ------------------------------------------------------------------------


def _sequences_to_wire(sequences: Mapping[Journal, int]) -> list[pb.Sequence]:
    return [pb.Sequence(partition=p, incarnation=i, sequence=s) for (p, i), s in sequences.items()]


def _sequences_from_wire(wire: Iterable[pb.Sequence]) -> dict[Journal, int]:
    return {(w.partition, w.incarnation): w.sequence for w in wire}


def position_to_wire(partition: TopicPartition, position: Position) -> pb.Position:
    """Encodes a position together with its partition."""
    return pb.Position(
        topic=partition[0],
        partition=partition[1],
        o1=position.o1,
        o2=position.o2,
        o3=position.o3,
        met=_sequences_to_wire(position.met),
        delivered=_sequences_to_wire(position.delivered),
        topic_id=position.topic_id,
        passed=_passed_to_wire(position.passed),
    )


def position_from_wire(wire: pb.Position) -> Position:
    """Decodes a position; the caller reads its partition."""
    return Position(
        o1=wire.o1,
        o2=wire.o2,
        o3=wire.o3,
        met=_sequences_from_wire(wire.met),
        delivered=_sequences_from_wire(wire.delivered),
        topic_id=wire.topic_id,
        passed=_passed_from_wire(wire),
    )


def _passed_to_wire(passed: Passed | None) -> pb.Passed | None:
    if passed is None:
        return None
    (partition, incarnation), sequence = passed.home, passed.sequence
    return pb.Passed(
        partition=partition, incarnation=incarnation, sequence=sequence, taken=passed.taken
    )


def _passed_from_wire(holder: pb.Position | pb.OffsetStep.Place) -> Passed | None:
    if not holder.HasField("passed"):
        return None
    wire = holder.passed
    return Passed((wire.partition, wire.incarnation), wire.sequence, wire.taken)


def step_to_wire(step: OffsetStep) -> pb.OffsetStep:
    """Encodes a step of input offsets."""
    place = step.from_place
    to = position_to_wire((step.topic, step.partition), step.to)
    wire = pb.OffsetStep(to=to, claim=step.claim)
    if place is not None:
        # `from` is a keyword of Python, so it can't be an argument's name.
        passed = _passed_to_wire(place.passed)
        getattr(wire, "from").CopyFrom(pb.OffsetStep.Place(o2=place.o2, o3=place.o3, passed=passed))
    return wire


def step_from_wire(wire: pb.OffsetStep) -> OffsetStep:
    """Decodes a step of input offsets.

    Raises:
        ConfigError: its topic's name is too long.
    """
    place = getattr(wire, "from")
    from_place = None
    if wire.HasField("from"):
        from_place = Place(place.o2, place.o3, _passed_from_wire(place))
    claim = wire.claim if wire.HasField("claim") else None
    to = position_from_wire(wire.to)
    return OffsetStep(check_topic(wire.to.topic), wire.to.partition, from_place, to, claim)


def state_from_wire(wire: pb.Outcome.State) -> State:
    """Decodes a state to filter by.

    Raises:
        NotSupportedError: this version has no such state. If the filter were ignored, transactions
            would be shown that were not asked for.
    """
    state = STATES_FROM_WIRE.get(wire)
    if state is None:
        raise NotSupportedError(f"state {wire} of a newer client: this coordinator has none such")
    return state


def mode_from_wire(wire: pb.TopicMode.Mode) -> Mode:
    """Decodes a mode.

    Raises:
        NotSupportedError: this version has no such mode.
    """
    mode = MODES_FROM_WIRE.get(wire)
    if mode is None:
        raise NotSupportedError(f"mode {wire} of a newer client: this coordinator has none such")
    return mode
