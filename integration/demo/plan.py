"""The faults of a run: which, when, and how many of each kind must count in the end. Pure.

The flights are let through in slices, one per fault, so that the faults spread over the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

FLIGHTS_PER_WORKER_KILL: Final = 2_500
"""One kill of a worker is planned per this many flights. A smaller value leaves too few flights
between the faults for the moments that they need; so for the values below."""
FLIGHTS_PER_COORDINATOR_KILL: Final = 8_000
"""For the only coordinator: nothing is booked until its successor is up."""
FLIGHTS_PER_SHARING_KILL: Final = 4_000
"""For one of several coordinators: the others go on."""
FLIGHTS_PER_WORKER_PAUSE: Final = 4_000
FLIGHTS_PER_COORDINATOR_PAUSE: Final = 8_000
WORKER_KILLS_MAX: Final = 12
"""Planned faults at most, however many the flights; more of them make the run longer. So for the
maxima below."""
COORDINATOR_KILLS_MAX: Final = 3
SHARING_KILLS_MAX: Final = 2
"""For each of several coordinators."""
WORKER_PAUSES_MAX: Final = 4
COORDINATOR_PAUSES_MAX: Final = 3
WORKER_KILLS_REQUIRED: Final = 5
"""Kills that must count. Fewer than are planned: a transaction that was to be interrupted may end
just before."""
COORDINATOR_KILLS_REQUIRED: Final = 1
CHAOS_FLIGHTS_MIN: Final = 8_000
"""From this many flights on, every kind of fault has room."""


class Fault(Enum):
    """A kind of fault, and the kind of process it is done to."""

    WORKER_KILL = "worker kill"
    COORDINATOR_KILL = "coordinator kill"
    WORKER_PAUSE = "worker pause"
    COORDINATOR_PAUSE = "coordinator pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The faults of one run: as many as its flights have room for."""

    flights: int
    faults: tuple[Fault, ...]
    required: Mapping[Fault, int]
    """Planned kind of fault → how many must count in the end."""

    @classmethod
    def of(cls, flights: int, *, coordinators: int = 1, chaos: bool = False) -> Plan:
        """Plans the faults: the full number from 20,000 flights on, fewer below, down to none.

        More are planned than required: what a fault was to interrupt may end just before.

        Args:
            flights: to be booked.
            coordinators: that share the journal.
            chaos: plan pauses too.
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
        """Returns the flights before the slice in which fault `number` (from 0) happens."""
        return self.flights * number // (len(self.faults) + 1)


def _spread(planned: Mapping[Fault, int]) -> tuple[Fault, ...]:
    places = [
        ((2 * number + 1) / (2 * count), fault)
        for fault, count in planned.items()
        for number in range(count)
    ]
    return tuple(fault for _place, fault in sorted(places, key=lambda place: place[0]))
