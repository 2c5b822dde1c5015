"""Draws the table's ratios, and each scenario's curves."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from .model import Better, Json

_MET, _MISSED, _TARGET = "#2e7d4f", "#b3261e", "#222222"
_ROW_INCHES: Final = 0.27
"""Height of a bar with its gap."""
_PANELS: Final = (
    (Better.HIGHER, "rates: how many times Kafka's (or what the line says); more is better"),
    (Better.LOWER, "costs: how many times Kafka's (or what the line says); less is better"),
)


def draw(scenarios: list[Json], path: Path) -> None:
    """Writes a PNG: a bar for each line of the table that has a target, with its rounds' spread.

    Args:
        scenarios: as `report.to_json` returns them.
        path: of the PNG.
    """
    panels = []
    for better, title in _PANELS:
        every = [line for scenario in scenarios for line in scenario["lines"]]
        asked = [x for x in every if x["target"] is not None and x["ratio"] is not None]
        lines = [x for x in asked if x["better"] == better.value]
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


def draw_picture(picture: Json, path: Path) -> None:
    """Writes a PNG of a scenario's curves: medians, with the rounds' least and most.

    Args:
        picture: as `report.to_json` returns it.
        path: of the PNG.
    """
    figure = Figure(figsize=(7, 4), dpi=110, layout="constrained")
    axes = figure.subplots()
    ticks = list(dict.fromkeys(x for curve in picture["curves"] for x in curve["x"]))
    for curve in picture["curves"]:
        # Evenly spaced: amounts grow by factors, and percentiles are texts.
        at = [ticks.index(x) for x in curve["x"]]
        medians = [found["median"] for found in curve["values"]]
        below = [found["median"] - found["least"] for found in curve["values"]]
        above = [found["most"] - found["median"] for found in curve["values"]]
        axes.errorbar(at, medians, yerr=[below, above], marker="o", capsize=3, label=curve["label"])
    axes.set_xticks(range(len(ticks)), [x if isinstance(x, str) else f"{x:,}" for x in ticks])
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(picture["x"])
    axes.set_ylabel(picture["y"])
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)


def _panel(axes: Axes, title: str, lines: list[Json]) -> None:
    most = 1.0
    for row, line in enumerate(lines):
        ratio, target = line["ratio"], line["target"]
        median = ratio["median"]
        axes.barh(row, median, height=0.6, color=_MET if line["met"] else _MISSED, alpha=0.8)
        axes.plot([ratio["least"], ratio["most"]], [row, row], color=_TARGET, lw=1)
        axes.plot([target, target], [row - 0.42, row + 0.42], color=_TARGET, lw=2)
        end = max(ratio["most"], median, target)
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
