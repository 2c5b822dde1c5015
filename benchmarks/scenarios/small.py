"""Transactions of 2 records in 2 partitions: how many a second, and how long one takes."""

from __future__ import annotations

from functools import partial
from typing import Final

from ..clients import PRODUCER, shown
from ..model import Better, Comparison, Curve, Picture, Point, Scenario
from .fleet import PERCENTILES, VALUE, Fleet, finish, prepare

SECONDS: Final = 1.0
"""Length of a round."""
WARM_UP_ROUNDS: Final = 2
"""A new broker is three times as fast after some seconds of small transactions."""
IN_FLIGHT: Final = (1, 8, 64, 256, 1_000)
"""Transactions that one producer has in flight."""
PRODUCERS: Final = (1, 8, 64, 128)
"""Numbers of producers, as the target names them; Kafka's best is the best of these."""
PRODUCERS_TARGETS: Final = {8: 1.0, 64: 1.5, 128: 1.0}
"""Number of producers → the ratio to reach."""
PROCESSES: Final = (1, 2)
"""Numbers of processes that the producers are spread over."""
BEST_IN_FLIGHT: Final = (64, 256, 1_000)
"""Transactions in flight among which logtx's best is looked for."""

_SETTINGS: Final = (shown(PRODUCER), f"values of {len(VALUE)} bytes, no keys, one broker")
_fleet = partial(Fleet, seconds=SECONDS)
_KAFKA_THREADS: Final = tuple("kafka" if n == 1 else f"kafka-{n}" for n in PRODUCERS)
_KAFKA: Final = (*_KAFKA_THREADS, "kafka-64-in-2")
_ONE: Final = tuple(f"logtx-{n}" for n in BEST_IN_FLIGHT)

PIPELINED: Final = Scenario(
    name="pipelined",
    title="Small transactions, many in flight",
    unit="transactions/s",
    better=Better.HIGHER,
    method=(
        "Transactions of 2 records in 2 partitions, for some seconds a round. A producer of Kafka "
        "has one transaction at a time, so its transactions run one after another, by "
        f"{', '.join(map(str, PRODUCERS))} producers in threads of one process, and 64 spread over "
        "two: its best is the one with the best median. Of logtx one producer has 64, 256 or 1,000 "
        "in flight: the next begins when the oldest is decided; two such producers of 64 in "
        "processes of their own show what the coordinator takes. Measured: transactions decided, "
        "over the time from the first begin to the last acknowledged commit. CPU is that of all "
        "processes: broker, coordinator, and the side's own."
    ),
    settings=_SETTINGS,
    sides={
        **{
            name: partial(_fleet, kind="kafka", producers=n)
            for name, n in zip(_KAFKA_THREADS, PRODUCERS, strict=True)
        },
        "kafka-64-in-2": partial(_fleet, kind="kafka", producers=64, processes=2),
        **{f"logtx-{n}": partial(_fleet, kind="logtx", in_flight=n) for n in BEST_IN_FLIGHT},
        "logtx-two": partial(_fleet, kind="logtx", producers=2, processes=2, in_flight=64),
    },
    comparisons=(
        Comparison(
            title="2 records in 2 partitions, 64 in flight, beside one producer of Kafka",
            kafka="kafka",
            logtx="logtx-64",
            target=5,
        ),
        Comparison(
            title="one producer, 64 to 1,000 in flight, beside one producer of Kafka",
            kafka="kafka",
            logtx=_ONE,
            target=25,
        ),
        Comparison(
            title="one producer, 64 to 1,000 in flight, beside Kafka's best number of producers",
            kafka=_KAFKA,
            logtx=_ONE,
            target=5,
        ),
        Comparison(
            title="coordinator: most small transactions, clients and broker beside it",
            logtx=(*_ONE, "logtx-two"),
            floor=8_000,
        ),
        Comparison(
            title="coordinator's CPU per 1,000 transactions, 64 in flight",
            logtx="logtx-64",
            note="coordinator CPU s per 1,000",
            unit="s",
            better=Better.LOWER,
        ),
        Comparison(
            title="all processes' CPU per 1,000 transactions, 64 in flight",
            kafka="kafka",
            logtx="logtx-64",
            note="all CPU s per 1,000",
            unit="s",
            better=Better.LOWER,
        ),
    ),
    prepare=prepare,
    finish=finish,
    warm_up_rounds=WARM_UP_ROUNDS,
    quick=True,
)

_PERCENTILE_NOTES: Final = tuple(f"p{p:g} ms" for p in PERCENTILES)

SEQUENTIAL: Final = Scenario(
    name="sequential",
    title="Small transactions, one after another",
    unit="ms",
    better=Better.LOWER,
    method=(
        "One producer, transactions of 2 records in 2 partitions, one after another for some "
        "seconds a round, by the same calls on both sides. Measured: the time from begin to the "
        "acknowledged commit, p50 and p99 of each round."
    ),
    settings=_SETTINGS,
    sides={
        kind: partial(_fleet, kind=kind, seconds=2 * SECONDS, in_ms=True)
        for kind in ("kafka", "logtx")
    },
    comparisons=(
        Comparison(
            title="2 records in 2 partitions, one after another, p50",
            kafka="kafka",
            logtx="logtx",
            target=0.8,
        ),
        Comparison(
            title="2 records in 2 partitions, one after another, p99",
            kafka="kafka",
            logtx="logtx",
            note="p99 ms",
            target=0.5,
        ),
    ),
    prepare=prepare,
    finish=finish,
    warm_up_rounds=1,
    quick=True,
    picture=Picture(
        x="of the transactions",
        y="begin to acknowledged commit, ms",
        curves=[
            Curve(label, [Point(n.removesuffix(" ms"), kind, n) for n in _PERCENTILE_NOTES])
            for kind, label in (("kafka", "Kafka"), ("logtx", "logtx"))
        ],
    ),
)

IN_FLIGHT_SCENARIO: Final = Scenario(
    name="in-flight",
    title="Small transactions by how many are in flight",
    unit="transactions/s",
    better=Better.HIGHER,
    method=(
        "One producer, transactions of 2 records in 2 partitions, for 1 s a round. Of logtx's "
        f"{', '.join(f'{n:,}' for n in IN_FLIGHT)} are in flight. Measured as above."
    ),
    settings=_SETTINGS,
    sides={
        "kafka": partial(_fleet, kind="kafka"),
        **{f"logtx-{n}": partial(_fleet, kind="logtx", in_flight=n) for n in IN_FLIGHT},
    },
    comparisons=tuple(
        Comparison(title=f"one producer, {n:,} in flight", kafka="kafka", logtx=f"logtx-{n}")
        for n in IN_FLIGHT
    ),
    prepare=prepare,
    finish=finish,
    warm_up_rounds=2,
    picture=Picture(
        x="transactions in flight, of one producer",
        y="transactions/s",
        curves=[
            Curve("logtx", [Point(n, f"logtx-{n}") for n in IN_FLIGHT]),
            Curve("Kafka, which has one", [Point(n, "kafka") for n in IN_FLIGHT]),
        ],
    ),
)


def _spread(kind: str, producers: int, processes: int) -> str:
    return f"{kind}-{producers}" + (f"-in-{processes}" if processes > 1 else "")


def _spreads(kind: str, producers: int) -> tuple[str, ...]:
    return tuple(_spread(kind, producers, p) for p in PROCESSES if producers % p == 0)


_BY_PRODUCERS: Final = [
    (kind, n, p) for n in PRODUCERS for p in PROCESSES if n % p == 0 for kind in ("kafka", "logtx")
]
_WHERE: Final = {1: "in one process", 2: "in two processes"}

BY_PRODUCERS: Final = Scenario(
    name="producers",
    title="Small transactions by number of producers",
    unit="transactions/s",
    better=Better.HIGHER,
    method=(
        "Producers in threads of one process, or spread over two (one for each core), each with "
        "transactions of 2 records in 2 partitions one after another, by the same calls on both "
        "sides, for 1 s a round after 2 transactions each that are not counted. The table has the "
        "better of the two for each side; the picture both. Several of logtx's connect anew for "
        "each round, for idle ones ping their coordinator. Measured: transactions committed by "
        "all, over the time from the first begin to the last acknowledged commit."
    ),
    settings=_SETTINGS,
    sides={
        _spread(kind, n, p): partial(
            _fleet, kind=kind, producers=n, processes=p, anew=kind == "logtx" and n > 1
        )
        for kind, n, p in _BY_PRODUCERS
    },
    comparisons=tuple(
        Comparison(
            title=f"{n} producer{'s' if n > 1 else ''}, each one after another",
            kafka=_spreads("kafka", n),
            logtx=_spreads("logtx", n),
            target=PRODUCERS_TARGETS.get(n),
        )
        for n in PRODUCERS
    ),
    prepare=prepare,
    finish=finish,
    picture=Picture(
        x="producers",
        y="transactions/s",
        curves=[
            Curve(
                f"{label}, {_WHERE[p]}",
                [Point(n, _spread(kind, n, p)) for n in PRODUCERS if n % p == 0],
            )
            for kind, label in (("kafka", "Kafka"), ("logtx", "logtx"))
            for p in PROCESSES
        ],
    ),
)
