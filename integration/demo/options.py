"""What `logtx demo` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import DemoError
from .flights import TOTAL_FLIGHTS
from .plan import CHAOS_FLIGHTS_MIN

CHAOS_COORDINATORS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The command line of `logtx demo`."""

    flights: int | None = None
    """How many of the file's flights; None for all."""
    coordinators: int | None = None
    """That share the journal; None for 1, or 3 if there is chaos."""
    chaos: bool = False
    """Pause processes too, replace them, and wake them."""
    spark: bool | None = None
    """Book by a streaming query of Spark, instead of workers; None for one after the other."""
    keep: bool = False
    """Leave Kafka and the coordinators running until Ctrl-C."""
    data_dir: Path | None = None
    """For records and logs; None for a temporary directory."""
    bootstrap_servers: str | None = None
    """A cluster to use instead of starting one."""

    @property
    def flight_count(self) -> int:
        """Flights to be booked."""
        return min(self.flights or TOTAL_FLIGHTS, TOTAL_FLIGHTS)

    @property
    def is_whole(self) -> bool:
        """Whether Spark's part follows the workers': that has one coordinator, and no chaos."""
        return self.spark is None and not self.chaos and self.coordinator_count == 1

    @property
    def coordinator_count(self) -> int:
        """Coordinators to be started."""
        return self.coordinators or (CHAOS_COORDINATORS if self.chaos else 1)

    def check(self) -> None:
        """Raise DemoError if they ask for what can't be shown."""
        if self.spark and (self.chaos or self.coordinator_count > 1):
            raise DemoError(
                "--spark kills the driver of a Spark query, beside one coordinator: leave --chaos "
                "and --coordinators away."
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
