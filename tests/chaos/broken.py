"""Deliberately broken builds of logtx, for the chaos to catch.

    python -m logtx.tests.chaos.broken NAME MODULE [ARGUMENT…]     a process, broken
    python -m logtx.tests.chaos.broken NAME                        a whole run, broken; 30 seconds

Each is a plausible bug of a core: it breaks consumers, producers or coordinators wherever they run.
What the chaos does is as always.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from logtx.consumer.buffer import PartitionBuffer
from logtx.integration.chaos.options import ChaosOptions
from logtx.journal.position import Position
from logtx.tests.simulation import mutations

MODULE: Final = "logtx.tests.chaos.broken"
SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken build."""

    apply: Callable[[mutations.Patch], None]
    anomalies: frozenset[str]
    """By one of these the checker must find it."""
    seed: int = 1
    """Of a run whose plan has what brings it out."""


def ignores_aborts(patch: mutations.Patch) -> None:
    """The consumer takes an ABORTED marker for a COMMITTED one."""
    mutations.marker_not_looked_at(patch)


def does_not_wait(patch: mutations.Patch) -> None:
    """The consumer delivers records of open transactions."""
    from logtx.consumer import reading
    from logtx.consumer.uncommitted import UncommittedBuffer

    patch(reading, "PartitionBuffer", UncommittedBuffer)


def position_ahead(patch: mutations.Patch) -> None:
    """A position tells what was read, not what was delivered."""
    position = PartitionBuffer.position

    def mutant(self: PartitionBuffer) -> Position:
        told = position(self)
        if told.o2 >= self.next_offset:
            return told
        return replace(told, o2=self.next_offset, o3=0)

    patch(PartitionBuffer, "position", mutant)


def torn(patch: mutations.Patch) -> None:
    """Positions forget what is pending, and nobody compares counts: the rest is delivered."""
    position = PartitionBuffer.position

    def mutant(self: PartitionBuffer) -> Position:
        told = position(self)
        return replace(told, o1=told.o2)

    patch(PartitionBuffer, "position", mutant)
    mutations.count_forgotten(patch)


def claims_ignored(patch: mutations.Patch) -> None:
    """Commits are not compared with what is committed, and claims mean nothing."""
    mutations.input_of_anybody(patch)


def told_too_early(patch: mutations.Patch) -> None:
    """The coordinator answers before the decision is durable."""
    mutations.reply_before_acknowledgement(patch)


def markers_not_redone(patch: mutations.Patch) -> None:
    """A new owner does not write the markers that its predecessor has left out."""
    mutations.nothing_redone(patch)


def duplicates_believed(patch: mutations.Patch) -> None:
    """The consumer takes each marker for the first."""
    mutations.duplicate_marker_believed(patch)


def unknown_is_aborted(patch: mutations.Patch) -> None:
    """The producer takes a commit without an answer for an abort."""
    mutations.unknown_outcome_is_an_abort(patch)


def order_of_markers(patch: mutations.Patch) -> None:
    """A serializable reader goes by its markers, not by the journal."""
    mutations.markers_not_awaited(patch)
    mutations.order_of_the_markers(patch)


BROKEN: Final[Mapping[str, Broken]] = {
    "ignores_aborts": Broken(ignores_aborts, frozenset({"g1a"})),
    "does_not_wait": Broken(does_not_wait, frozenset({"g1a", "dirty-read", "intermediate-read"})),
}
"""Seen to be caught; the tests hold them to it."""
UNTRIED: Final[Mapping[str, Broken]] = {
    "position_ahead": Broken(position_ahead, frozenset({"iov-gap", "skipped-poll"})),
    "torn": Broken(torn, frozenset({"torn-transaction"})),
    "claims_ignored": Broken(claims_ignored, frozenset({"iov-overlap"})),
    "told_too_early": Broken(told_too_early, frozenset({"committed-but-aborted", "lost-write"})),
    "markers_not_redone": Broken(markers_not_redone, frozenset({"lost-write", "unseen"})),
    "duplicates_believed": Broken(duplicates_believed, frozenset({"duplicate"})),
    "unknown_is_aborted": Broken(unknown_is_aborted, frozenset({"committed-but-aborted"})),
    "order_of_markers": Broken(order_of_markers, frozenset({"order-differs", "torn-transaction"})),
}
"""Not run yet, with what is expected of them; each goes up when a run with it was caught."""


def options_of(name: str, directory: Path | None, *, seconds: float = SECONDS) -> ChaosOptions:
    """A run of this build."""
    return ChaosOptions(
        seconds=seconds,
        seed={**BROKEN, **UNTRIED}[name].seed,
        data_dir=directory,
        launcher=(MODULE, name),
    )


def main() -> None:
    """Run a process of a broken build, or a whole run with it."""
    name, rest = sys.argv[1], sys.argv[2:]
    if not rest:
        from logtx.integration.chaos import run_chaos

        sys.exit(run_chaos(options_of(name, None)))
    {**BROKEN, **UNTRIED}[name].apply(_patch)
    sys.argv = rest
    runpy.run_module(rest[0], run_name="__main__", alter_sys=True)


def _patch(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)  # for as long as the process lives


if __name__ == "__main__":
    main()
