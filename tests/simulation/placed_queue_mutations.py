"""Mutations of queues whose topic is in metadata mode, with transactions in its sidecar."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from logtx.consumer.core.home_view import Due
from logtx.consumer.core.sides import Sides
from logtx.consumer.range_reader.errors import DataLossError
from logtx.consumer.range_reader.places import PlacesAhead, _Recorder
from logtx.journal.reader import RecordsTrimmedError

from .registry import Patch, caught_by


@caught_by("worked-off", of="queue")
def places_stand_for_no_pointer(patch: Patch) -> None:
    """A lease has what lies in the topic alone of what a home placed (decision 40)."""
    end_at = _Recorder.end_at

    def mutant(self: _Recorder, due: Due, place: int, rest_at: int | None = None) -> bool:
        return end_at(self, replace(due, aside=None), place, rest_at)

    patch(_Recorder, "end_at", mutant)


@caught_by("worked-off", of="queue")
def a_home_that_was_trimmed_is_lost(patch: Patch) -> None:
    """A reader of leases does not begin anew where a home's journal was trimmed while it stood
    there (trap 245)."""
    reach = PlacesAhead._reach

    def mutant(self: PlacesAhead, *arguments: Any, **named: Any) -> Any:
        try:
            return reach(self, *arguments, **named)
        except RecordsTrimmedError as error:
            self.close()
            raise DataLossError(str(error)) from error

    patch(PlacesAhead, "_reach", mutant)


@caught_by("worked-off", of="queue")
def an_offset_has_one_place_in_the_sidecar(patch: Patch) -> None:
    """A consumer that is given the rest of one transaction reads on where it stood in another one
    that is placed at the same offset (trap 217)."""
    note, before = Sides.note, Sides.before

    def noted(self: Sides, partition: Any, pointer: tuple[int, int], side: Any) -> None:
        note(self, partition, (pointer[0], 0), side)

    def looked_up(self: Sides, partition: Any, pointer: tuple[int, int], nth: int) -> Any:
        return before(self, partition, (pointer[0], 0), nth)

    patch(Sides, "note", noted)
    patch(Sides, "before", looked_up)
