"""The benchmarks, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..model import Scenario
from .bulk import BULK_1KB, BULK_100B, BULK_SIZES
from .columns import COLUMNS_100B
from .consumption import CONSUMPTION_1KB, CONSUMPTION_100B
from .footprint import IMPORT, MEMORY
from .growth import BESIDE_OPEN, READ_BESIDE_OPEN, SPREAD
from .latency import LATENCY
from .serializable import SERIALIZABLE_9, SERIALIZABLE_99
from .small import BY_PRODUCERS, IN_FLIGHT_SCENARIO, PIPELINED, SEQUENTIAL
from .transform import TRANSFORM

SCENARIOS: Final[Mapping[str, Scenario]] = {
    s.name: s
    for s in (
        *(PIPELINED, SEQUENTIAL, IN_FLIGHT_SCENARIO, BY_PRODUCERS),
        *(BULK_1KB, BULK_100B, *BULK_SIZES),
        *(CONSUMPTION_100B, CONSUMPTION_1KB, COLUMNS_100B, SERIALIZABLE_99, SERIALIZABLE_9),
        *(LATENCY, TRANSFORM, BESIDE_OPEN, READ_BESIDE_OPEN, SPREAD, MEMORY, IMPORT),
    )
}
QUICK: Final = tuple(name for name, s in SCENARIOS.items() if s.quick)
"""Names of those in the quick run."""
