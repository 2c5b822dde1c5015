"""By how many offsets a micro-batch moves on. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ...consumer.range_reader.spot import Vector
from ...journal.control import TopicPartition
from ...journal.errors import ConfigError
from ...journal.settings import take_integer, take_text

_MOST: Final = 2**62
_UNITS: Final = {
    "us": 1e-6,
    **dict.fromkeys(("ms", ""), 1e-3),
    "s": 1,
    **dict.fromkeys(("m", "min"), 60),
    "h": 3600,
    "d": 86400,
}
"""Seconds of each unit in Spark's texts of times; a number alone is of milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a micro-batch, over all partitions."""

    most: int | None = None
    """``maxRecordsPerTrigger``, or Kafka's name of it, ``maxOffsetsPerTrigger``: most offsets by
    which a micro-batch moves on. A transaction is never split, so a large one may bring more
    records."""
    least: int = 0
    """``minOffsetsPerTrigger``: a micro-batch waits until it can move on by so many offsets."""
    delay_max_s: float = 900
    """``maxTriggerDelay``: how long it waits at most since the one before, in seconds."""

    @classmethod
    def take(cls, rest: dict[str, Any]) -> Self:
        """Takes the options that say it.

        Raises:
            ConfigError: they contradict each other, or one is out of range.
        """
        ours = take_integer(rest, "maxrecordspertrigger", None, 1, _MOST)
        kafkas = take_integer(rest, "maxoffsetspertrigger", None, 1, _MOST)
        if None not in (ours, kafkas) and ours != kafkas:
            raise ConfigError(
                "maxRecordsPerTrigger and maxOffsetsPerTrigger are two names of one limit: give one"
            )
        most = kafkas if ours is None else ours
        least = take_integer(rest, "minoffsetspertrigger", 0, 0, _MOST)
        if most is not None and least > most:
            raise ConfigError(
                f"minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}: lower it"
            )
        delay = take_text(rest, "maxtriggerdelay", "15m")
        return cls(most=most, least=least, delay_max_s=_seconds("maxTriggerDelay", delay))

    @property
    def of_streams(self) -> list[str]:
        """Names of the options that were set, which mean nothing to a batch."""
        unset = Limits()
        return [
            name
            for name, is_set in (
                ("maxRecordsPerTrigger or maxOffsetsPerTrigger", self.most is not None),
                ("minOffsetsPerTrigger", self.least != unset.least),
                ("maxTriggerDelay", self.delay_max_s != unset.delay_max_s),
            )
            if is_set
        ]

    def waits(
        self,
        start: Vector,
        ends: Mapping[TopicPartition, int],
        since_s: float,
        placed: int = 0,
    ) -> bool:
        """Returns whether the next micro-batch waits for more records.

        Args:
            start: where reading stands.
            ends: where it could go.
            since_s: seconds since the last micro-batch was planned.
            placed: number of transactions placed there: each counts like the marker that it does
                without.
        """
        if not self.least or since_s >= self.delay_max_s:
            return False
        rooms = (end - start[key].o2 if key in start else end for key, end in ends.items())
        return placed + sum(room for room in rooms if room > 0) < self.least


def _seconds(option: str, text: str) -> float:
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f"{option} must be a time such as 500ms, 30s, 15m or 2h, not {text!r}")
    return int(found[1]) * _UNITS[found[2]]
