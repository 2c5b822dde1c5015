"""Which faults a run has, when, and how many of each kind must count in the end. Pure.

The flights are let through in slices, one per fault, so that the faults spread over the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

FLIGHTS_PER_WORKER_KILL: Final = 2_500
FLIGHTS_PER_COORDINATOR_KILL: Final = 8_000
"""Of the only coordinator: nothing is booked until its successor is up."""
FLIGHTS_PER_SHARING_KILL: Final = 4_000
"""Of one coordinator of several: the others go on."""
FLIGHTS_PER_WORKER_PAUSE: Final = 4_000
FLIGHTS_PER_COORDINATOR_PAUSE: Final = 8_000
WORKER_KILLS_MAX: Final = 12
COORDINATOR_KILLS_MAX: Final = 3
SHARING_KILLS_MAX: Final = 2
"""Per coordinator, of several."""
WORKER_PAUSES_MAX: Final = 4
COORDINATOR_PAUSES_MAX: Final = 3
WORKER_KILLS_REQUIRED: Final = 5
COORDINATOR_KILLS_REQUIRED: Final = 1
CHAOS_FLIGHTS_MIN: Final = 8_000
"""From here on every kind of fault has room."""


class Fault(Enum):
    """What is done to whom."""

    WORKER_KILL = "worker kill"
    COORDINATOR_KILL = "coordinator kill"
    WORKER_PAUSE = "worker pause"
    COORDINATOR_PAUSE = "coordinator pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The faults of a run: as many as its flights leave room for."""

    flights: int
    faults: tuple[Fault, ...]
    required: Mapping[Fault, int]
    """How many of each planned kind must count in the end."""

    @classmethod
    def of(cls, flights: int, *, coordinators: int = 1, chaos: bool = False) -> Plan:
        """20,000 flights and more have the full number; fewer have fewer, down to none.

        More are planned than required: what was about to be interrupted may be over just in time.

        Args:
            flights: to be booked.
            coordinators: that share the journal.
            chaos: pause processes too.
        """
        workers = min(WORKER_KILLS_MAX, flights // FLIGHTS_PER_WORKER_KILL)
        planned = {Fault.WORKER_KILL: workers}
        required = {Fault.WORKER_KILL: min(WORKER_KILLS_REQUIRED, workers)}
        if coordinators == 1:
            kills = min(COORDINATOR_KILLS_MAX, flights // FLIGHTS_PER_COORDINATOR_KILL)
            required[Fault.COORDINATOR_KILL] = min(COORDINATOR_KILLS_REQUIRED, kills)
        else:
            kills = min(SHARING_KILLS_MAX * coordinators, flights // FLIGHTS_PER_SHARING_KILL)
            required[Fault.COORDINATOR_KILL] = (kills + 1) // 2
        planned[Fault.COORDINATOR_KILL] = kills
        if chaos:
            pauses = {
                Fault.WORKER_PAUSE: min(WORKER_PAUSES_MAX, flights // FLIGHTS_PER_WORKER_PAUSE),
                Fault.COORDINATOR_PAUSE: min(
                    COORDINATOR_PAUSES_MAX, flights // FLIGHTS_PER_COORDINATOR_PAUSE
                ),
            }
            planned |= pauses
            required |= {fault: (count + 1) // 2 for fault, count in pauses.items()}
        return cls(flights=flights, faults=_spread(planned), required=required)

    def slice_start(self, number: int) -> int:
        """Flights before the slice in which fault `number` (from 0) happens."""
        return self.flights * number // (len(self.faults) + 1)


def _spread(planned: Mapping[Fault, int]) -> tuple[Fault, ...]:
    places = [
        ((2 * number + 1) / (2 * count), fault)
        for fault, count in planned.items()
        for number in range(count)
    ]
    return tuple(fault for _place, fault in sorted(places, key=lambda place: place[0]))
