"""A consumer's place in a partition, and its text form in Kafka's commit metadata.

Source: Transactional Messaging in Kafka, "Transactional consumer", offset management: (o1, o2) and
the third offset for the transaction that is being processed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from .errors import ConsumerError
from .value import value

POSITION_MAX_CHARS: Final = 4000
"""Longest text of `Position.to_metadata`; Kafka keeps 4,095 characters.

The difference leaves room for a suffix. With less, the metadata holds fewer journals.
"""
_PREFIX: Final = "logtx/1"
_ENTRY: Final = re.compile(r"(!?)(\d{1,5})-([0-9a-f]{12})=(\d{1,19})")
_SIDE: Final = re.compile(r"~(\d{1,19})")
_PASSED: Final = re.compile(r"@(\d{1,5})-([0-9a-f]{12})=(\d{1,19})(?:\+(\d{1,19}))?")
# Readers skip entries that they don't know: one that knows no places goes on at o2 without them.

Journal = tuple[int, int]
"""(journal partition, incarnation)."""


def is_position(metadata: str | None) -> bool:
    """Returns whether a group offset's metadata was made by `Position.to_metadata`."""
    return (metadata or "").startswith(f"{_PREFIX} ")


@value(frozen=True, slots=True)
class Passed:
    """How far a reader has delivered what a home places in a partition."""

    home: Journal
    sequence: int
    """Every transaction that is placed there, up to this commit sequence, is delivered."""
    taken: int = 0
    """Number of records already delivered of the next one. Apart from o3: what is placed at an
    offset comes before the marker that may lie at it, and either may be half delivered."""


@value(frozen=True, slots=True)
class Place:
    """The exact point up to which records were delivered.

    The part of a position by which two positions are compared.
    """

    o2: int
    """Every record below it is delivered or pending; a marker's offset, while that is delivered."""
    o3: int = 0
    """Number of records already delivered of the transaction whose marker lies at `o2`."""
    passed: Passed | None = None
    """See `Position.passed`: several transactions may be placed at one offset."""

    def __repr__(self) -> str:
        passed = "" if self.passed is None else f", passed={self.passed!r}"
        return f"Place(o2={self.o2!r}, o3={self.o3!r}{passed})"


@value(frozen=True, slots=True, kw_only=True)
class Position:
    """(o1, o2, o3) of one partition, and the last commit sequence met per journal partition."""

    o1: int
    """First offset of the earliest pending transaction; equal to `o2` if none is pending."""
    o2: int
    """Offset at which the internal iterator resumes."""
    o3: int = 0
    """Number of records already delivered of the transaction whose marker lies at `o2`."""
    met: Mapping[Journal, int] = field(default_factory=dict)
    """Last commit sequence met in this partition, by (journal partition, incarnation).

    A marker at or below it is a duplicate. Of who reads in serial order, it also says that all that
    is left of that journal is due here: see `serial_buffer`.
    """
    delivered: Mapping[Journal, int] = field(default_factory=dict)
    """Commit sequence up to which nothing is left to deliver in this partition, by journal.

    Empty unless the consumer reads in serial order.
    """
    passed: Passed | None = None
    """Of a partition whose topic's home places there; None: not known, and no transaction of it was
    delivered. Always kept in `to_metadata`: without it, what is placed at o2 would be delivered
    again, or left out."""
    topic_id: str = ""
    """Id of the topic; "" if it is not known. A topic that was deleted and created anew has another
    one: a place in the former says nothing about it. Not part of `to_metadata`, for Kafka drops a
    topic's group offsets with the topic."""

    side: int | None = None
    """Of a transaction at `o2` whose records lie in a sidecar: offset there from which the rest of
    them is read. It follows from `o2` and `o3`, and spares a restarted reader what it would read
    and skip. None: not known, or nothing of the sidecar was delivered."""

    @property
    def place(self) -> Place:
        """The part that compare-and-set compares; o1 and `met` only say how to get there."""
        return Place(self.o2, self.o3, self.passed)

    @classmethod
    def at(cls, offset: int) -> Position:
        """Returns the position of a reader that has delivered everything below `offset`."""
        return cls(o1=offset, o2=offset)

    def to_metadata(self) -> str:
        """Returns the text that is committed beside o1 in a Kafka group offset.

        It has at most `POSITION_MAX_CHARS`. It always holds what was passed, and what
        `transactions()` and serializable readers delivered, because without that, transactions
        would be delivered again. If not all journals met fit (about 100 do), those with the lowest
        commit sequences are left out: a duplicate marker of one of these costs a side read, and
        nothing else.

        Raises:
            ConsumerError: the journals that were delivered from do not all fit.
        """
        text = f"{_PREFIX} {self.o2} {self.o3}"
        if self.passed is not None:
            (partition, incarnation), sequence = self.passed.home, self.passed.sequence
            text += f" @{partition}-{incarnation:012x}={sequence}"
            text += f"+{self.passed.taken}" if self.passed.taken else ""
        text += "" if self.side is None else f" ~{self.side}"
        for (partition, incarnation), sequence in sorted(self.delivered.items()):
            text += f" !{partition}-{incarnation:012x}={sequence}"
        if len(text) > POSITION_MAX_CHARS:
            raise ConsumerError(
                f"a position with the last transactions delivered of {len(self.delivered)} "
                f"journals takes {len(text)} characters, and a Kafka group offset holds "
                f"{POSITION_MAX_CHARS}: read fewer transaction groups with one consumer group"
            )
        for (partition, incarnation), sequence in sorted(
            self.met.items(), key=lambda item: item[1], reverse=True
        ):
            entry = f" {partition}-{incarnation:012x}={sequence}"
            if len(text) + len(entry) > POSITION_MAX_CHARS:
                break
            text += entry
        return text

    @classmethod
    def from_metadata(cls, o1: int, metadata: str | None) -> Position:
        """Decodes a Kafka group offset.

        An offset with other metadata was committed by a plain Kafka consumer. It becomes a position
        with nothing pending: that consumer had delivered everything below.
        """
        parts = (metadata or "").split()
        if len(parts) < 3 or parts[0] != _PREFIX or not (parts[1] + parts[2]).isdecimal():
            return cls.at(o1)
        met: dict[Journal, int] = {}
        delivered: dict[Journal, int] = {}
        passed = None
        for entry in filter(None, map(_PASSED.fullmatch, parts[3:])):
            home = int(entry[1]), int(entry[2], 16)
            passed = Passed(home, int(entry[3]), int(entry[4] or 0))
        sides = [int(found[1]) for found in filter(None, map(_SIDE.fullmatch, parts[3:]))]
        for entry in filter(None, map(_ENTRY.fullmatch, parts[3:])):
            target = delivered if entry[1] else met
            target[int(entry[2]), int(entry[3], 16)] = int(entry[4])
        o2, o3 = int(parts[1]), int(parts[2])
        return cls(
            o1=o1,
            o2=max(o1, o2),
            o3=o3,
            met=met,
            delivered=delivered,
            passed=passed,
            side=sides[-1] if sides else None,
        )
