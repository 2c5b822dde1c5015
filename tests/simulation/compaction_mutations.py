"""Mutations of compaction: what a copier copies, when it trims, and what readers find (K1-K9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from logtx.consumer import sidecar_copies
from logtx.consumer.sidecar_read import SidecarReader
from logtx.coordinator.core.compacting import Compaction, Needed, Scan
from logtx.coordinator.server import compacting
from logtx.journal.relocation import Relocation

from .registry import Patch, caught_by


@caught_by("sidecars", of="shell")
def latest_end_counts(patch: Patch) -> None:
    """A copier reads up to the end that it is told last, also if it noted a higher one (K3, trap
    206)."""
    patch(compacting, "_end_to_read", lambda log, key, _: log.end_offset(*key))


@caught_by("sidecars", of="shell")
def what_has_no_marker_holds_nothing(patch: Patch) -> None:
    """A copier trims up to the end that it noted, whatever has no marker yet (K4, trap 193)."""
    patch(Scan, "_limit", lambda self: (self._noted.end, None))


@caught_by("sidecars", of="shell")
def what_has_moved_is_not_needed(patch: Patch) -> None:
    """A copier copies what lies where it always lay, and trims copies (K5)."""
    needed = Scan._needed

    def mutant(self: Scan) -> Any:
        return [each for each in needed(self) if each.copy_id is None]

    patch(Scan, "_needed", mutant)


@caught_by("sidecars", of="shell")
def refused_records_are_passed_over(patch: Patch) -> None:
    """A copy counts as whole though some of its records were not acknowledged (K7)."""
    flush, copied = compacting.Copier._flush, Compaction.copied

    def mutant(self: Compaction, needed: Needed, offsets: Any) -> Relocation:
        whole = copied(self, replace(needed, count=0), offsets or [self.plan.bound])
        return replace(whole, count=needed.count)

    patch(compacting.Copier, "_flush", lambda self, topic, _: flush(self, topic, []))
    patch(Compaction, "copied", mutant)


@caught_by("exactly-once", of="consumer")
def copies_have_offsets_of_their_own(patch: Patch) -> None:
    """What is read in a copy is delivered with the offset at which it lies there (trap 191)."""
    patch(sidecar_copies.Original, "offset", lambda self: self._record.offset())


@caught_by("serial-order", of="consumer")
def relocations_are_read_once(patch: Patch) -> None:
    """A reader goes by the relocations that it read before it was told the start (trap 189)."""
    look_up = SidecarReader._look_up

    def mutant(self: SidecarReader, each: Any, request: Any, told: Any) -> Relocation | None:
        if self._relocated_s >= 0:
            self._relocated_s = told.at_s
        return look_up(self, each, request, told)

    patch(SidecarReader, "_look_up", mutant)
