"""The worlds with a sidecar that the search visits, and a smaller form of each."""

from __future__ import annotations

from typing import Final

from .scenarios import Search
from .sidecar_world import Left, Scenario

SIDECAR_SEARCHES: Final = (
    Search(
        full=Scenario(name="two in the sidecar", length_max=4),
        reduced=Scenario(name="two in the sidecar", left=Left(1, 1, 1, 1, 0), length_max=3),
    ),
    Search(
        full=Scenario(name="trimmed", plans=("S", "S"), left=Left(1, 1, 1, 1, 1), length_max=4),
        reduced=Scenario(name="trimmed", plans=("S", "S"), left=Left(1, 1, 0, 1, 1), length_max=3),
    ),
    Search(
        full=Scenario(
            name="beside markers", plans=("SS", "M"), left=Left(1, 1, 0, 1, 1), length_max=5
        ),
        reduced=Scenario(
            name="beside markers", plans=("SS", "M"), left=Left(0, 1, 0, 1, 1), length_max=4
        ),
    ),
    Search(
        full=Scenario(name="in both", plans=("MS", "S"), length_max=5),
        reduced=Scenario(name="in both", plans=("MS", "S"), left=Left(0, 1, 0, 1, 0), length_max=4),
    ),
    # It has gone over, and what it wrote to the topic before is still on its way there.
    Search(
        full=Scenario(name="grows", plans=("SMS", "M"), left=Left(0, 1, 0, 1, 1), length_max=5),
        reduced=Scenario(name="grows", plans=("SM", "M"), left=Left(0, 1, 0, 1, 0), length_max=4),
    ),
)
