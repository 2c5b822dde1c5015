"""The dead letters of the demo's queue: which flights are given up, and whether all of them were.

Pure: flights in, counts out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .flights import Flight
from .ledger import entries_of

REASON: Final = "no tail number"
"""Why a flight is given up."""


def is_booked(flight: Flight) -> bool:
    """Returns whether a worker of the queue books a flight; it gives up the others."""
    return flight["tailnum"] is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFindings:
    """What the dead letters are. In a correct run all counts below `letters` are zero."""

    letters: int
    missing: int
    """Flights without a tail number of which there is none."""
    doubled: int
    """Letters that repeat an earlier one."""
    foreign: int
    """Letters of a flight that was to be booked, or that is not of the file."""


def find_in(letters: Iterable[Flight], flights: Iterable[Flight]) -> LetterFindings:
    """Compares dead letters with the flights of the file.

    Args:
        letters: flights of all dead letters, in any order.
        flights: those that were published.
    """
    names = (entries_of(flight)[0].flight_id for flight in flights if not is_booked(flight))
    left = dict.fromkeys(names, 0)
    count = doubled = foreign = 0
    for letter in letters:
        count += 1
        name = entries_of(letter)[0].flight_id
        if name not in left:
            foreign += 1
        elif left[name]:
            doubled += 1
        else:
            left[name] = 1
    missing = sum(not seen for seen in left.values())
    return LetterFindings(letters=count, missing=missing, doubled=doubled, foreign=foreign)
