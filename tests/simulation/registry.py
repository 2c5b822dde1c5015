"""The list of mutations: rules broken on purpose, each with the checker that must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Patch = Callable[[Any, str, Any], None]
"""Sets an attribute until the test is over."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One broken rule."""

    checker: str
    """Name of the checker that must catch it."""
    of: str
    """What it breaks: ``key``, ``snapshot``, ``claim``, ``parts``, ``shard`` (the rest of one
    coordinator), ``shell`` (the lanes and what is known of topics), ``producer``, ``consumer``,
    ``serial``."""
    apply: Callable[[Patch], None]

    @property
    def name(self) -> str:
        """Name of the rule that is broken."""
        return self.apply.__name__


MUTATIONS: Final[list[Mutation]] = []
DOCS: Final = Path(__file__).resolve().parents[2] / "docs"


def described_in_docs() -> set[tuple[str, str]]:
    """Returns the first and last cells of the tables in docs/simulation.md, names first."""
    lines = (DOCS / "simulation.md").read_text("utf-8").splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `")]
    return {(row[1].strip(" `"), row[-2].strip(" `")) for row in rows}


def caught_by(
    checker: str, of: str = "shard"
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Enter a mutation, with the checker that must catch it."""

    def enter(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTATIONS.append(Mutation(checker, of, apply))
        return apply

    return enter
