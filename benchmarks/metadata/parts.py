"""The parts of the benchmark: sides in both modes, and the goals of their ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from logtx.journal.modes import Mode

from ..model import Better, Comparison, Scenario, part
from .deliveries import BACKLOG_PARTITIONS, Backlog, Delivery, Plain, Sealed, fill
from .ends import Finished, Many
from .topics import MODES, WIDE

WIDTHS: Final = (1, 16, 64, 256)
"""Partitions of a transaction, with a record in each."""
DELIVERED: Final = (1, 64)
"""The same where a consumer reads them."""
TOPICS: Final[Mapping[str, int]] = {
    **{f"{WIDE}{width}": width for width in WIDTHS},
    "sealed": 2,
    "unsealed": 2,
    "plain": 1,
    "backlog": BACKLOG_PARTITIONS,
}
"""What a topic is for → its partitions."""
_FINISHED_GOALS: Final = {1: 3.0, 16: 0.6, 64: 0.3, 256: 0.25}
_DELIVERY_GOALS: Final = {1: 1.5, 64: 0.6}
_RATE_GOALS: Final = {1: 0.95, 16: 1.3, 64: 1.5, 256: 1.6}
_CPU_GOALS: Final = {1: 1.0, 16: 0.6, 64: 0.3, 256: 0.15}
_BYTES_GOALS: Final = {1: 0.7, 16: 0.4, 64: 0.25, 256: 0.1}
SEALED_GOAL: Final = 1.2
BACKLOG_GOAL: Final = 0.9
PLAIN_GOAL_MS: Final = 1.5
"""Most that a plain record may be delivered later than in marker mode."""
CPU_NOTE: Final = "coordinator CPU s per 1,000"


def _both(make: Any, width: int, **fields: Any) -> dict[str, Any]:
    return {f"{mode}-{width}": partial(make, mode=mode, width=width, **fields) for mode in MODES}


def _beside(what: str, width: int, goal: float | None, **fields: Any) -> Comparison:
    where = "1 partition" if width == 1 else f"{width} partitions"
    markers, metadata = (f"{mode}-{width}" for mode in MODES)
    return Comparison(
        title=f"{what}, {where}", kafka=markers, logtx=metadata, target=goal, **fields
    )


def finished() -> Scenario:
    """Returns the part on the time from the decision to the end."""
    sides: dict[str, Any] = {}
    comparisons = []
    for width in WIDTHS:
        sides |= _both(Finished, width)
        comparisons += [
            _beside("decision to finished, p50", width, _FINISHED_GOALS[width]),
            _beside("commit to finished, p50", width, None, note="call to finished ms"),
        ]
    return part("finished", "ms", Better.LOWER, sides, tuple(comparisons))


def many(data_dir: Path) -> Scenario:
    """Returns the part on many transactions in flight. `data_dir` is the broker's."""
    sides: dict[str, Any] = {}
    comparisons: list[Comparison] = []
    lower = Better.LOWER
    for width in WIDTHS:
        sides |= _both(Many, width, data_dir=data_dir)
        comparisons += [
            _beside("64 in flight", width, _RATE_GOALS[width]),
            _beside(
                "coordinator's CPU per 1,000 transactions",
                *(width, _CPU_GOALS[width]),
                note=CPU_NOTE,
                unit="s",
                better=lower,
            ),
            _beside(
                "broker's bytes beside the records, per transaction",
                *(width, _BYTES_GOALS[width]),
                note="bytes beside",
                unit="bytes",
                better=lower,
            ),
        ]
    return part("many", "transactions/s", Better.HIGHER, sides, tuple(comparisons))


def delivery() -> Scenario:
    """Returns the part on the time from commit to delivery."""
    sides: dict[str, Any] = {}
    for width in DELIVERED:
        sides |= _both(Delivery, width)
    comparisons = (_beside("commit to delivery, p50", w, _DELIVERY_GOALS[w]) for w in DELIVERED)
    return part("delivery", "ms", Better.LOWER, sides, tuple(comparisons))


def sealed() -> Scenario:
    """Returns the part on a sealed topic, beside one that is not."""
    sides = {
        "unsealed": partial(Sealed, sealed=False),
        "sealed": partial(Sealed, sealed=True),
    }
    comparison = Comparison(
        title="commit to delivery, sealed topic, p50; beside: not sealed, metadata mode too",
        kafka="unsealed",
        logtx="sealed",
        target=SEALED_GOAL,
    )
    return part("sealed", "ms", Better.LOWER, sides, (comparison,))


def backlog() -> Scenario:
    """Returns the part on reading a backlog."""
    sides = {str(mode): partial(Backlog, mode=mode) for mode in MODES}
    comparison = Comparison(
        title="backlog, values and headers read",
        kafka=str(Mode.MARKERS),
        logtx=str(Mode.METADATA),
        target=BACKLOG_GOAL,
    )
    return part("backlog", "records/s", Better.HIGHER, sides, (comparison,), prepare=fill)


def plain() -> Scenario:
    """Returns the part on plain records."""
    sides = {str(mode): partial(Plain, mode=mode) for mode in MODES}
    comparison = Comparison(
        title="plain record, produced to delivered, p50",
        kafka=str(Mode.MARKERS),
        logtx=str(Mode.METADATA),
    )
    return part("plain", "ms", Better.LOWER, sides, (comparison,))


PARTS: Final[Mapping[str, Callable[[Path], Scenario]]] = {
    "finished": lambda _: finished(),
    "many": many,
    "delivery": lambda _: delivery(),
    "sealed": lambda _: sealed(),
    "plain": lambda _: plain(),
    "backlog": lambda _: backlog(),
}
"""The parts by name, in the order in which they run; each is told the broker's data directory."""
