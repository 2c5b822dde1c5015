"""Draws the reader's memory and disk over time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .measure import GB, Large

MB: Final = 10**6
_RSS, _DISK, _LIMIT, _EVENT = "#1f5fa8", "#c7803a", "#b3261e", "#555555"


def draw(large: Large, rss_goal_bytes: int, path: Path) -> None:
    """Writes a PNG.

    Args:
        large: what was measured.
        rss_goal_bytes: drawn as a line.
        path: of the PNG.
    """
    from matplotlib.figure import Figure  # here: it takes half a second of CPU

    samples = large.samples
    figure = Figure(figsize=(8, 4), dpi=110, layout="constrained")
    memory = figure.add_subplot()
    disk = memory.twinx()
    at_s = samples.at_s
    disk.fill_between(at_s, [b / GB for b in samples.disk_bytes], color=_DISK, alpha=0.25, lw=0)
    disk.set_ylabel("spill directory, GB", color=_DISK)
    disk.set_ylim(bottom=0)
    memory.plot(at_s, [b / MB for b in samples.rss_bytes], color=_RSS, lw=1.5)
    memory.axhline(rss_goal_bytes / MB, color=_LIMIT, lw=1, ls="--")
    memory.text(0, rss_goal_bytes / MB, " goal", color=_LIMIT, va="bottom", fontsize=8)
    memory.axvline(large.committed_s, color=_EVENT, lw=1, ls=":")
    memory.text(large.committed_s, 0, " commit", color=_EVENT, va="bottom", fontsize=8)
    memory.set_xlabel("seconds since the consumer's process began")
    memory.set_ylabel("resident memory, MB", color=_RSS)
    memory.set_ylim(0, rss_goal_bytes / MB * 1.15)
    memory.set_xlim(left=0)
    memory.set_zorder(disk.get_zorder() + 1)
    memory.patch.set_visible(False)
    memory.set_title(
        f"One transaction of {large.payload_bytes / GB:.1f} GB, pending.memory.max.bytes at 64 MiB",
        fontsize=10,
    )
    figure.savefig(path)
