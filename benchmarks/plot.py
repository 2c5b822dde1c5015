"""The table's ratios as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from .model import Better, Json

_MET, _MISSED, _NO_TARGET, _TARGET = "#2e7d4f", "#b3261e", "#1f5fa8", "#222222"
_COLOURS: Final = {True: _MET, False: _MISSED, None: _NO_TARGET}
_ROW_INCHES: Final = 0.27
_PANELS: Final = (
    (Better.HIGHER, "rates: how many times Kafka's (or what the line says); more is better"),
    (Better.LOWER, "latencies: how many times Kafka's (or what the line says); less is better"),
)


def draw(scenarios: list[Json], path: Path) -> None:
    """Write a PNG: a bar per line of the table, its rounds' spread, and its target.

    Args:
        scenarios: as `report.to_json` has them.
        path: where to.
    """
    panels = []
    for better, title in _PANELS:
        lines = [x for s in scenarios if s["better"] == better.value for x in s["lines"]]
        if lines:
            panels.append((title, lines))
    if not panels:
        return
    rows = sum(len(lines) + 2 for _, lines in panels)
    figure = Figure(figsize=(10, rows * _ROW_INCHES + 0.4), dpi=110, layout="constrained")
    heights = [len(lines) + 1 for _, lines in panels]
    found = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)
    for axes, (title, lines) in zip(found[:, 0], panels, strict=True):
        _panel(axes, title, lines)
    figure.savefig(path)


def _panel(axes: Axes, title: str, lines: list[Json]) -> None:
    most = 1.0
    for row, line in enumerate(lines):
        ratio, target = line["ratio"], line["target"]
        median = ratio["median"]
        axes.barh(row, median, height=0.6, color=_COLOURS[line["met"]], alpha=0.8)
        axes.plot([ratio["least"], ratio["most"]], [row, row], color=_TARGET, lw=1)
        if target is not None:
            axes.plot([target, target], [row - 0.42, row + 0.42], color=_TARGET, lw=2)
        end = max(ratio["most"], median, target or 0)
        most = max(most, end)
        axes.text(end * 1.04, row, f"{median:.2f}", va="center", fontsize=8)
    axes.axvline(1, color=_TARGET, lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.set_xlim(0.1, 1.4 * most)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(lines)), [line["title"] for line in lines], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9, loc="left")
