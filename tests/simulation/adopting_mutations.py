"""Mutations of adopting: what is handed over to the home of another journal, and adopted there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from logtx.consumer.core.home_view import HomeView
from logtx.consumer.core.pending import RawTxId
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.coordinator.core import snapshot
from logtx.coordinator.core.adopting import Adopted
from logtx.coordinator.core.handing import Known
from logtx.coordinator.core.places import Places
from logtx.journal.control import Marker
from logtx.journal.places import Adoption

from .registry import Patch, caught_by


@caught_by("decided-once")
def what_is_only_decided_is_adopted(patch: Patch) -> None:
    """A home of the same process adopts a decision that is not durable."""
    patch(Known, "handed", property(lambda self: self.shard.handed))


@caught_by("exactly-once", of="consumer")
def readers_pass_over_what_is_adopted(patch: Patch) -> None:
    """A reader of the home takes no ADOPT record."""
    patch(HomeView, "adopted", lambda *_: None)


@caught_by("exactly-once", of="snapshot")
def snapshot_forgets_what_is_adopted(patch: Patch) -> None:
    """A snapshot of a home does not say what it has adopted (trap 8)."""
    patch(snapshot, "_adopted_rows", lambda *_: ([], []))


@caught_by("exactly-once", of="consumer")
def first_share_counts_as_all(patch: Patch) -> None:
    """A transaction counts as adopted with the first of its ADOPT records (A7)."""
    original = Adopted.replay

    def mutant(self: Adopted, offset: int, adoption: Adoption) -> Any:
        return original(self, offset, replace(adoption, more=False))

    patch(Adopted, "replay", mutant)


@caught_by("serial-order", of="serial")
def last_records_count_as_markers(patch: Patch) -> None:
    """A reader in serial order takes the last record of what is handed over for its place."""

    def end(self: SerialBuffer, raw: RawTxId, end: Marker) -> None:
        self.place(raw, end, max(r.last_offset for r in end.branches) + 1)

    patch(SerialBuffer, "end_behind_last", end)


@caught_by("serial-order", of="snapshot")
def journal_is_trimmed_below_what_it_handed_over(patch: Patch) -> None:
    """A fence counts places alone, and not what was handed over to other homes (trap 95)."""
    patch(Places, "replay_handed", lambda *_: None)
