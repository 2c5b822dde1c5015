"""What a consumer knows of where in a partition transactions are placed, and where they are marked.

It knows the topic's latest switches, from what the home publishes, and the mode records that it
met. Offsets between two of them are in one mode. Below the lowest one, the partition was in the
other mode than from there on.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ...journal.mode_registry import TopicModeRecord
from ...journal.modes import EndedSwitch, Phase
from ...journal.position import Journal, Passed, Position

FROM_THE_START: Final = -1
"""Stands for the MODE record of a stretch that is not known: nothing was read of it."""
BEFORE_THE_START: Final = -1
"""Stands for the mode record of a partition that had markers from its start on."""


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
        self._published: list[_Switch] = []
        """The switches that are over, but for the last one if it is under way."""
        self._met: dict[int, _Switch] = {}
        """Offset of a MODE record → the first of its mode records that was met: owners that follow
        each other write one each, and publish the last one."""
        self._switches: list[_Switch] = []
        """What both say, by offset."""

    def forget(self, topic_id: str) -> None:
        """Forgets what was known of a topic that another one has the name of by now."""
        self._published = [s for s in self._published if s.topic_id != topic_id]
        self._met = {m: s for m, s in self._met.items() if s.topic_id != topic_id}
        self._join()

    def publish(self, partition: int, published: TopicModeRecord) -> None:
        """Takes in what the home publishes of the topic that has the name now."""
        home, topic_id = published.home, published.topic_id
        self._met = {m: s for m, s in self._met.items() if s.topic_id in ("", topic_id)}
        self._published, behind = [], 0
        for each in _ended(published):
            places = each.phase is Phase.METADATA
            at = each.since.get(partition)
            if at is None:
                # The partition came later, and was in this mode from its start on.
                self._published, at = [], 0 if places else BEFORE_THE_START
            elif places and not each.with_records:
                # No mode record tells a reader where it begins. It follows the home from the
                # stretch before on, so that it places in the same order as all that begin above.
                at = behind
            behind = at + 1
            self._published.append(_Switch(at, each.offset, places, home, topic_id))
        is_unknown = published.phase is Phase.TO_MARKERS and not self._published
        if published.phase is Phase.TO_METADATA or is_unknown:
            # Mode records are being written, or were and that is not published yet. To follow the
            # home where everything is still marked is right, and costs its gates. It is followed as
            # of any earlier switch: a reader may begin in a stretch of that (trap 83). Behind the
            # one before, that one's mode record is no news.
            last = self._published[-1].mode_offset if self._published else FROM_THE_START
            self._published.append(_Switch(behind, last, True, home, topic_id))
        self._join()

    def meet(
        self, offset: int, mode_offset: int, home: Journal, topic_id: str, *, places: bool
    ) -> None:
        """Takes in a mode record that counts."""
        met = _Switch(offset, mode_offset, places, home, topic_id)
        self._met[mode_offset] = min(met, self._met.get(mode_offset, met))
        self._join()

    def _join(self) -> None:
        told = {(s.mode_offset, s.places): s for s in self._published}
        for met in self._met.values():
            key = met.mode_offset, met.places
            told[key] = min(met, told.get(key, met))
        self._switches = sorted(told.values())

    def _at(self, offset: int) -> _Switch | None:
        # What is placed exactly where markers begin again comes before that mode record.
        below = [s for s in self._switches if s.offset + (not s.places) <= offset]
        return below[-1] if below else None

    @property
    def was_switched(self) -> bool:
        """Whether any switch of the topic is known."""
        return bool(self._switches)

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


def _ended(published: TopicModeRecord) -> Iterator[EndedSwitch]:
    """Yields the switches that are over, in their order."""
    yield from published.earlier
    if published.phase in (Phase.METADATA, Phase.MARKERS):
        latest = published.mode_offset, published.phase, published.since
        yield EndedSwitch(*latest, published.with_records)
