"""What a consumer knows of where in a partition transactions are placed, and where they are marked.

It knows the topic's latest switch, from what the home publishes, and the mode records that it met.
Offsets between two of them are in one mode. Below the lowest one, the partition was in the other
mode than from there on; if the topic was switched several times before, that may be wrong. Then
look-ups tell.

Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ...journal.mode_registry import TopicModeRecord
from ...journal.modes import Phase
from ...journal.position import Journal, Passed, Position

FROM_THE_START: Final = -1
"""Stands for the MODE record of a stretch that is not known: nothing was read of it."""


class Follows(NamedTuple):
    """A home that a reader is to follow, from some offset of a partition on."""

    home: Journal
    topic_id: str
    mode_offset: int
    """Journal offset of the MODE record from which on the home places there; -1: not known."""
    passed: Passed | None
    """What was placed up to there is delivered, if that is known."""


class _Switch(NamedTuple):
    offset: int
    mode_offset: int
    places: bool
    home: Journal
    topic_id: str


class KnownModes:
    """The modes of one data partition, by offset."""

    def __init__(self) -> None:
        """Begins without a switch: everything is marked."""
        self._switches: list[_Switch] = []
        self._met: dict[int, int] = {}
        """Offset of a MODE record → that of the first of its mode records that was met: owners that
        follow each other write one each, and publish the last one."""

    def forget(self, topic_id: str) -> None:
        """Forgets what was known of a topic that another one has the name of by now."""
        self._switches = [s for s in self._switches if s.topic_id != topic_id]
        self._met.clear()

    def publish(self, partition: int, published: TopicModeRecord) -> None:
        """Takes in what the home publishes of the topic that has the name now."""
        self._switches = [s for s in self._switches if s.topic_id in ("", published.topic_id)]
        phase, at = published.phase, published.since.get(partition, 0)
        if phase in (Phase.TO_METADATA, Phase.TO_MARKERS):
            # Mode records are being written, or were and that is not published yet. To follow the
            # home where everything is still marked is right, and costs its gates. It is followed as
            # of any earlier switch: a reader may begin in a stretch of that (trap 83).
            at = 0
        elif phase is Phase.METADATA and not published.with_records:
            # No mode record tells a reader where it begins. It follows the home from its start on,
            # so that it places in the same order as all that begin above.
            at = 0
        is_over = phase in (Phase.METADATA, Phase.MARKERS)
        mode_offset = published.mode_offset if is_over else FROM_THE_START
        places = phase is not Phase.MARKERS
        at = min(at, self._met.get(mode_offset, at))
        self._note(_Switch(at, mode_offset, places, published.home, published.topic_id))

    def meet(
        self, offset: int, mode_offset: int, home: Journal, topic_id: str, *, places: bool
    ) -> None:
        """Takes in a mode record that counts."""
        offset = self._met[mode_offset] = min(offset, self._met.get(mode_offset, offset))
        self._note(_Switch(offset, mode_offset, places, home, topic_id))

    def _note(self, switch: _Switch) -> None:
        kept = [s for s in self._switches if s.mode_offset != switch.mode_offset]
        self._switches = sorted([*kept, switch])

    def _at(self, offset: int) -> _Switch | None:
        # What is placed exactly where markers begin again comes before that mode record.
        below = [s for s in self._switches if s.offset + (not s.places) <= offset]
        return below[-1] if below else None

    def latest(self, offset: int) -> int:
        """Returns the journal offset of the latest MODE record known at an offset of the
        partition; -1 without one."""
        found = self._at(offset)
        return FROM_THE_START if found is None else found.mode_offset

    def is_marked_again(self, offset: int) -> bool:
        """Returns whether it is known that transactions have markers at an offset of the partition,
        and were placed below."""
        found = self._at(offset)
        return found is not None and not found.places

    def follows(self, start: Position) -> Follows | None:
        """Returns the home that a reader must follow from a position on; None: it reads by
        markers, until it comes to a mode record."""
        found, passed = self._at(start.o2), start.passed
        first = self._switches[0] if self._switches else None
        if found is not None and not found.places:
            return None
        if found is not None:
            if passed is not None and passed.home != found.home:
                passed = None
            if passed is None and start.o2 <= found.offset + 1 and found.mode_offset >= 0:
                # Each place lies behind the mode record, so nothing of this stretch lies below.
                passed = Passed(found.home, found.mode_offset)
            return Follows(found.home, found.topic_id, found.mode_offset, passed)
        if passed is not None:
            topic_id = first.topic_id if first is not None else ""
            return Follows(passed.home, topic_id, FROM_THE_START, passed)
        if first is not None and not first.places:
            return Follows(first.home, first.topic_id, FROM_THE_START, None)
        return None
