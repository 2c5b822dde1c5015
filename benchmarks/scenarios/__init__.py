"""The benchmarks, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..model import Scenario
from .bulk import BULK_1KB, BULK_100B
from .consumption import CONSUMPTION
from .latency import LATENCY
from .small import PIPELINED, SEQUENTIAL

SCENARIOS: Final[Mapping[str, Scenario]] = {
    s.name: s for s in (PIPELINED, SEQUENTIAL, BULK_1KB, BULK_100B, CONSUMPTION, LATENCY)
}
