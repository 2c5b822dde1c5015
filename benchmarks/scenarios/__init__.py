"""The benchmarks, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..model import Scenario
from .bulk import BULK_1KB, BULK_100B
from .consumption import CONSUMPTION_1KB, CONSUMPTION_100B
from .latency import LATENCY
from .serializable import SERIALIZABLE
from .small import PIPELINED, SEQUENTIAL
from .transform import TRANSFORM

SCENARIOS: Final[Mapping[str, Scenario]] = {
    s.name: s
    for s in (
        *(PIPELINED, SEQUENTIAL, BULK_1KB, BULK_100B, CONSUMPTION_1KB, CONSUMPTION_100B),
        *(SERIALIZABLE, LATENCY, TRANSFORM),
    )
}
