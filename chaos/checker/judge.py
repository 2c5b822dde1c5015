"""Runs all checks on the facts of one run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from .core.adopting import check_adoptions
from .core.cycles import check_cycles
from .core.facts import KAFKA, LOGTX, Facts
from .core.fencing import check_fencing
from .core.finals import check_finals
from .core.findings import Findings
from .core.inputs import check_inputs
from .core.logs import Standing
from .core.markers import check_markers
from .core.places import check_places
from .core.polls import check_polls
from .core.reads import check_acknowledged, check_offsets, check_reads
from .core.serial import check_serializable
from .core.stores import check_stores
from .core.writes import check_duplicates, check_outcomes, check_whole
from .verdict import Verdict

CHECKS: Final[tuple[Callable[[Facts, Findings], None], ...]] = (
    check_reads,
    check_offsets,
    check_acknowledged,
    check_outcomes,
    check_duplicates,
    check_whole,
    check_finals,
    check_polls,
    check_serializable,
    check_cycles,
    check_inputs,
    check_markers,
    check_places,
    check_adoptions,
    check_stores,
    check_fencing,
)

FAULTS: Final = (
    *("kill", "pause", "restart", "replace", "cut", "stall", "delay", "trim"),
    *("fill", "mislead", "interrupt", "recreate", "grow", "upgrade", "restore"),
    *("switch", "seal"),
)
"""Events of the nemesis that hurt; the others heal."""
NOT_PROMISED: Final = {
    KAFKA: frozenset({"g0", "g1c", "plain-twice"}),
    LOGTX: frozenset({"plain-twice"}),
}
"""Kafka isolates readers from what is not committed, but orders transactions nowhere. What is in no
transaction librdkafka's idempotent producer may write twice, when it takes a new epoch (trap 244).
"""


def judge(facts: Facts) -> Verdict:
    """Runs all checks. Returns the verdict."""
    found = Findings()
    for check in CHECKS:
        check(facts, found)
    allowed = NOT_PROMISED.get(facts.system, frozenset())
    anomalies = found.anomalies()
    return Verdict(
        facts.system,
        tuple(a for a in anomalies if a.name not in allowed),
        {name: count for name, count in found.counts.items() if name not in allowed},
        tuple(a for a in anomalies if a.name in allowed),
        {name: count for name, count in found.counts.items() if name in allowed},
        _stats(facts),
        dict(facts.unverifiable),
    )


def _stats(facts: Facts) -> dict[str, int]:
    history, outcomes = facts.history, Counter(op.outcome for op in facts.history.ops.values())
    placed = [end for view in facts.views.values() for end in view.placed.values()]
    truths = Counter(truth.name.lower() for truth in facts.truths.values())
    return {
        "transactions": len(history.ops),
        **{f"acknowledged as {name}": outcomes[name] for name in ("committed", "aborted")},
        "of unknown outcome": outcomes["unknown"],
        **{f"{name} by the log": count for name, count in sorted(truths.items())},
        "values appended": len(history.appends),
        "deliveries": history.counts["delivered"],
        "readers": len(history.readers),
        "log records": sum(len(view.records) for view in facts.views.values()),
        "markers": sum(len(view.first_markers) for view in facts.views.values()),
        "places": len(placed),
        "places of sidecars": sum(bool(end.aside) for end in placed),
        "adoptions": sum(len(journal.adopted) for journal in facts.journals.values()),
        "mode records": sum(
            standing is Standing.MODE
            for view in facts.views.values()
            for standing in view.standing.values()
        ),
        "markers written again": sum(len(view.later_markers) for view in facts.views.values()),
        "values not judged, of a topic made anew": history.counts["append not judged"],
        "transactions asked of metadata stores": len(facts.stores),
        "faults": sum(history.counts[f"fault {what}"] for what in FAULTS),
        "torn last lines": history.counts["torn line"],
    }
