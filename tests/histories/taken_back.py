"""What a mend is that histories of clients take back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..simulation.registry import Patch


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mend that is taken back."""

    finding: int
    """Number of the fault in docs/faults.md; 0: the histories themselves found it."""
    checker: str
    """Name of the checker that must notice."""
    seed: int
    """First seed that shows it."""
    apply: Callable[[Patch], None]
    further_seeds: tuple[int, ...] = ()
    """Those that show it on other versions of Python: where exceptions may come differs."""

    @property
    def name(self) -> str:
        """Name of the fault."""
        return self.apply.__name__
