"""The options of `logtx demo`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...journal.modes import Mode
from .errors import DemoError
from .flights import TOTAL_FLIGHTS
from .plan import CHAOS_FLIGHTS_MIN

CHAOS_COORDINATORS: Final = 3
"""Coordinators with `--chaos` if the command line names no number: enough that two stay when one
sleeps."""
QUEUE_FLIGHTS: Final = 10_000
"""Flights with `--queue` if the command line names no number: enough for kills of both kinds, in
less than a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The command line of `logtx demo`."""

    flights: int | None = None
    """Flights to book; None for all of the file."""
    coordinators: int | None = None
    """Coordinators that share the journal; None for 1, or 3 with chaos."""
    chaos: bool = False
    """Pause processes too, replace them, and wake them."""
    spark: bool | None = None
    """Whether a streaming query of Spark books the flights; None for workers first, then Spark."""
    queue: bool = False
    """Whether workers take the flights of a queue, in place of assigned partitions."""
    mode: Mode = Mode.MARKERS
    """How transactions end in the demo's topics. In metadata mode the ledger is cut over."""
    keep: bool = False
    """Leave Kafka and the coordinators running until Ctrl-C."""
    data_dir: Path | None = None
    """Directory for records and logs; None for a temporary one."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """librdkafka's settings for a cluster to use; empty: one is started."""

    @property
    def flight_count(self) -> int:
        """Flights to be booked."""
        return min(self.flights or (QUEUE_FLIGHTS if self.queue else TOTAL_FLIGHTS), TOTAL_FLIGHTS)

    @property
    def is_whole(self) -> bool:
        """Whether Spark's part follows the workers' part: with one coordinator, without chaos."""
        usual = self.coordinator_count == 1 and self.mode is Mode.MARKERS and not self.queue
        return self.spark is None and not self.chaos and usual

    @property
    def coordinator_count(self) -> int:
        """Coordinators to be started."""
        return self.coordinators or (CHAOS_COORDINATORS if self.chaos else 1)

    def check(self) -> None:
        """Raises DemoError if the options contradict each other or can't be met."""
        if self.queue and (self.spark or self.coordinator_count > 1 or self.mode is Mode.METADATA):
            raise DemoError(
                "--queue shows workers of one queue, beside one coordinator: leave out --spark, "
                "--chaos, --coordinators and --mode."
            )
        if self.spark and (self.chaos or self.coordinator_count > 1):
            raise DemoError(
                "--spark kills the driver of a Spark query, beside one coordinator: leave out "
                "--chaos and --coordinators."
            )
        if self.mode is Mode.METADATA and (self.spark or self.coordinator_count > 1):
            raise DemoError(
                "--mode metadata shows the workers on topics of one transaction group, which has "
                "one coordinator: leave out --spark, --chaos and --coordinators."
            )
        if self.chaos and self.coordinator_count == 1:
            raise DemoError(
                "--chaos pauses coordinators while others take over: it needs --coordinators 2 "
                "or more."
            )
        if self.chaos and self.flight_count < CHAOS_FLIGHTS_MIN:
            raise DemoError(
                f"--chaos needs --flights {CHAOS_FLIGHTS_MIN} or more, to have room for every "
                "kind of fault."
            )
