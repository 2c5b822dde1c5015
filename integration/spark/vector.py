"""Positions of a Spark reader in each partition, and their form in Spark's checkpoint. Pure.

A place is (o2, o3), as for every consumer. A transaction belongs to the offset of its marker, so a
range of offsets holds each transaction's records in a partition whole or not at all.

Where a home places transactions, several may be delivered at one offset. So a place says up to
which commit sequence they are read, too. A place that does not say it has all of them below its
offset, and none at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from ...consumer.range_reader.spot import Spot, Vector
from ...journal.control import TopicPartition
from ...journal.errors import ConfigError
from ...journal.position import Passed, Place
from ...journal.records.types import OffsetStep
from ..inspect.rows import offsets_of_json

_VERSION: Final = 2
"""Format version of the offsets in Spark's checkpoint. Version 1 had no topic ids."""
_VERSION_PASSED: Final = 3
"""Format version of offsets that say what was passed of a home. Others are written as before."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """What Spark's checkpoint keeps of a source: a place in each partition, and of which topics."""

    places: Vector
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Topic → its id when the places were found. A topic that is left out may be any of its name:
    the log has no ids, or a logtx before version 2 of this format wrote the offset."""
    began: Vector | None = None
    """Where the query began, in the end of its first micro-batch. Spark asks again for the
    beginning when it repeats that micro-batch, and by then it may be another one."""
    gone: frozenset[str] = frozenset()
    """Topics of a pattern that did not exist. Their places stay: a broker that is behind does not
    know a topic for a moment, and the same one goes on where it was."""


def to_offsets(offset: SourceOffset) -> dict[str, Any]:
    """Returns the offset for Spark, which compares it as JSON: equal ones give equal texts."""
    spots = [*offset.places.values(), *(offset.began or {}).values()]
    version = _VERSION_PASSED if any(map(_says_passed, spots)) else _VERSION
    told: dict[str, Any] = {"version": version, "places": _places(offset.places)}
    if offset.topic_ids:
        told["topics"] = dict(sorted(offset.topic_ids.items()))
    if offset.began is not None:
        told["began"] = _places(offset.began)
    if offset.gone:
        told["gone"] = sorted(offset.gone)
    return told


def _places(vector: Vector) -> dict[str, dict[str, Any]]:
    places: dict[str, dict[str, Any]] = {}
    for (topic, partition), spot in sorted(vector.items()):
        places.setdefault(topic, {})[str(partition)] = _value(spot)
    return places


def _says_passed(spot: Spot) -> bool:
    return spot.passed is not None or (spot.stood is not None and spot.stood.passed is not None)


def _value(spot: Spot) -> int | list[Any]:
    if spot == Spot(spot.o2):
        return spot.o2
    value: list[Any] = [spot.o2, spot.o3, spot.o1, int(spot.fresh)]
    stood: list[Any] = [] if spot.stood is None else [spot.stood.o2, spot.stood.o3]
    if not _says_passed(spot):
        return [*value, *stood]
    if spot.stood is not None:
        stood.append(passed_to_json(spot.stood.passed))
    return [*value, passed_to_json(spot.passed), *stood]


def passed_to_json(passed: Passed | None) -> list[int] | None:
    """Returns what was passed in types for JSON."""
    return None if passed is None else [*passed.home, passed.sequence, passed.taken]


def passed_from_json(told: list[int] | None) -> Passed | None:
    """Restores the result of `passed_to_json`."""
    if told is None:
        return None
    partition, incarnation, sequence, taken = told
    return Passed((partition, incarnation), sequence, taken)


def from_offsets(offsets: Mapping[str, Any]) -> SourceOffset:
    """Restores an offset from the result of `to_offsets`.

    Raises:
        ConfigError: the offsets are of another source, or of a newer version.
    """
    if offsets.get("version") not in (1, _VERSION, _VERSION_PASSED):
        raise ConfigError(
            f"the checkpoint's offsets are not of version {_VERSION} or {_VERSION_PASSED} of the"
            " format logtx, or of an earlier one: it was written by another source or a newer logtx"
        )
    began = offsets.get("began")
    return SourceOffset(
        _vector(offsets["places"]),
        offsets.get("topics", {}),
        None if began is None else _vector(began),
        frozenset(offsets.get("gone", ())),
    )


def _vector(places: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, Spot]:
    return {
        (topic, int(partition)): _spot(value)
        for topic, partitions in places.items()
        for partition, value in partitions.items()
    }


def made_anew(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Returns the topics whose names have other ids: each was deleted and created again."""
    return {topic for topic, found in now.items() if before.get(topic, found) != found}


def _spot(value: Any) -> Spot:
    if isinstance(value, int):
        return Spot(value)
    o2, o3, o1, fresh, *rest = value
    if not rest or isinstance(rest[0], int):
        return Spot(o2, o3, o1, bool(fresh), Place(*rest) if rest else None)
    passed, *stood = rest
    at = Place(stood[0], stood[1], passed_from_json(stood[2])) if stood else None
    return Spot(o2, o3, o1, bool(fresh), at, passed_from_json(passed))


def parse_offsets(option: str, text: str, *, times: bool = False) -> dict[TopicPartition, int]:
    """Parses offsets in the form of Kafka's connector: ``{"topic": {"0": 23, "1": -2}}``.

    Args:
        option: the option that has them.
        text: what it says.
        times: whether the option takes milliseconds since 1970 instead.

    Raises:
        ConfigError: the text does not have this form; names the option.
    """
    try:
        return offsets_of_json(text)
    except (ValueError, AttributeError, TypeError) as error:
        form = '{"topic": {"0": 23}}'
        told = "milliseconds since 1970, like" if times else "earliest, latest or like"
        raise ConfigError(f"option {option} must be {told} {form}, not {text!r}") from error


def steps_between(
    start: Vector, end: Vector, topic_ids: Mapping[str, str] = MappingProxyType({})
) -> list[OffsetStep]:
    """Returns the steps of a range that was read, in topics of these ids (decision 0023).

    Partitions that did not move have none.
    """
    steps = []
    for (topic, partition), to in sorted(end.items()):
        begin = start.get((topic, partition), Spot(0, fresh=True))
        if to.place != begin.place:
            place = None if begin.fresh else begin.stood or begin.place
            position = replace(to.position, topic_id=topic_ids.get(topic, ""))
            steps.append(OffsetStep(topic, partition, place, position))
    return steps


def moved(start: Vector, ends: Mapping[TopicPartition, int], limit: int | None) -> Vector:
    """Returns the next vector: up to `ends`, and at most about `limit` offsets beyond `start`.

    The partitions share the limit. A partition that does not move keeps its spot unchanged.
    """
    rooms = {key: end - start[key].o2 if key in start else end for key, end in sorted(ends.items())}
    shares = _shares({k: r for k, r in rooms.items() if r > 0}, limit)
    result: dict[TopicPartition, Spot] = dict(start)
    for key in ends:
        begin = start.get(key, Spot(0, fresh=True))
        result[key] = Spot(begin.o2 + shares[key]) if key in shares else begin
    return result


def _shares(rooms: Mapping[TopicPartition, int], limit: int | None) -> dict[TopicPartition, int]:
    """Returns how many offsets each partition moves by: its share in proportion, but at least 1."""
    total = sum(rooms.values())
    if limit is None or total <= limit:
        return dict(rooms)
    return {key: min(room, max(1, room * limit // total)) for key, room in rooms.items()}


def split(start: int, end: int, parts: int) -> Iterable[tuple[int, int]]:
    """Cuts a range of offsets into at most `parts` pieces of about equal length."""
    size = max(1, -(-(end - start) // max(parts, 1)))
    for first in range(start, end, size):
        yield first, min(first + size, end)
