"""The parts of the benchmark that compare sides, and the goals of their ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ..model import Better, Comparison, Scenario, part
from . import acks, blocks, crew
from .queues import BATCH, KAFKA, LOGTX

ACKS_GOAL: Final = 0.6
BLOCKS_GOAL: Final = 0.6
SHARE_GROUPS_GOAL: Final = 1.0
LARGE_BATCH: Final = 5_000
"""``max.poll.records`` of a side that asks for more: the most that a lease has."""
IN_FLIGHT: Final = (1, 8)
"""Undecided transactions of the sides of `of_blocks`."""
WORKERS: Final = (1, 4, 16)
_CPU: Final = "all CPU s per 1,000"


def _cpu_of(title: str, beside: str, queue: str) -> Comparison:
    return Comparison(
        title=f"{title}: CPU of all processes for 1,000 messages",
        kafka=beside,
        logtx=queue,
        note=_CPU,
        unit="s",
        better=Better.LOWER,
    )


def of_acks() -> Scenario:
    """Returns the part on acknowledgements outside of transactions, beside a consumer."""
    large = f"queue-plain-{LARGE_BATCH}"
    sides: dict[str, Any] = {
        "consumer-plain": partial(acks.Committing, content=acks.PLAIN),
        "queue-plain": partial(acks.Acknowledging, content=acks.PLAIN),
        large: partial(acks.Acknowledging, content=acks.PLAIN, records=LARGE_BATCH),
        "consumer-transactions": partial(acks.Committing, content=acks.TRANSACTIONS),
        "queue-transactions": partial(acks.Acknowledging, content=acks.TRANSACTIONS),
    }
    title = "plain acknowledgements, beside Consumer"
    comparisons = (
        Comparison(title=title, kafka="consumer-plain", logtx="queue-plain", target=ACKS_GOAL),
        _cpu_of(title, "consumer-plain", "queue-plain"),
        Comparison(
            title=f"the same, max.poll.records={LARGE_BATCH:,} in place of {BATCH}",
            kafka="consumer-plain",
            logtx=large,
        ),
        Comparison(
            title="the same, of messages in transactions",
            kafka="consumer-transactions",
            logtx="queue-transactions",
            target=ACKS_GOAL,
        ),
    )
    return part(
        "acks",
        "messages/s",
        Better.HIGHER,
        sides,
        comparisons,
        prepare=acks.prepare,
        finish=acks.finish,
    )


def of_blocks() -> Scenario:
    """Returns the part on blocks of `logtx.process`, beside those over a consumer."""
    sides: dict[str, Any] = {}
    comparisons: list[Comparison] = []
    for in_flight in IN_FLIGHT:
        consumer, queue = f"consumer-{in_flight}", f"queue-{in_flight}"
        sides[consumer] = partial(blocks.OverConsumer, in_flight=in_flight)
        sides[queue] = partial(blocks.OverQueue, in_flight=in_flight)
        how = "one after another" if in_flight == 1 else f"{in_flight} in flight"
        title = f"blocks of {blocks.RECORDS} with outputs, {how}, beside process over Consumer"
        comparisons += [
            Comparison(title=title, kafka=consumer, logtx=queue, target=BLOCKS_GOAL),
            _cpu_of(how, consumer, queue),
        ]
    return part(
        "blocks",
        "messages/s",
        Better.HIGHER,
        sides,
        comparisons,
        prepare=blocks.prepare,
        finish=blocks.finish,
    )


def of_workers(workers: int) -> Scenario:
    """Returns the part on a number of worker processes, beside Kafka's share groups."""
    shown = "1 worker" if workers == 1 else f"{workers} workers"
    comparison = Comparison(
        title=f"{shown}, beside Kafka's share group",
        kafka=f"{KAFKA}-{workers}",
        logtx=f"{LOGTX}-{workers}",
        target=SHARE_GROUPS_GOAL,
    )
    return part(
        f"workers-{workers}",
        "messages/s",
        Better.HIGHER,
        {
            f"{kind}-{workers}": partial(crew.Crew, kind=kind, workers=workers)
            for kind in (KAFKA, LOGTX)
        },
        (comparison,),
        prepare=partial(crew.prepare, workers=workers),
        finish=partial(crew.finish, workers=workers),
    )


COMPARED: Final[Mapping[str, Callable[[], Sequence[Scenario]]]] = {
    "acks": lambda: [of_acks()],
    "blocks": lambda: [of_blocks()],
    "workers": lambda: [of_workers(workers) for workers in WORKERS],
}
"""The parts by name, in the order in which they run."""
