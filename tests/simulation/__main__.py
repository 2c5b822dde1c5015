"""`make simulate`: many histories, each of a seed, or one again with its trace."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pool
from typing import Final, NamedTuple

from .checkers import CHECKERS, violations
from .faults import KINDS
from .history import History
from .mutations import MUTATIONS
from .world import simulate

CHUNK: Final = 20
"""Histories of one task of a process. More make the bar jump; fewer cost hand-overs."""
FAILURES_MAX: Final = 10
"""Failing seeds after which the run stops."""
ALL_KINDS_FROM: Final = 500
"""Number of histories from which on every kind of fault must have happened."""
SWITCHED_EVERY: Final = 4
"""Of each so many seeds there is also the history in which topics are switched. More often costs
time: such a history takes twice as long."""


SIDECARS_EVERY: Final = 15
"""The same of histories in which transactions write to sidecars, which cost like others."""
QUEUES_EVERY: Final = 10
"""The same of histories in which a topic is worked off as a queue."""
RESETS_EVERY: Final = 20
"""The same of histories in which that queue is reset and deleted."""
COMPACTIONS_EVERY: Final = 20
"""The same of histories in which sidecars are compacted."""
PLACED_EVERY: Final = 20
"""The same of histories in which topics with transactions in sidecars are switched."""
PLACED_QUEUES_EVERY: Final = 20
"""The same of histories in which such a topic is worked off as a queue."""


KINDS_OF_HISTORIES: Final = (
    *("switches", "sidecars", "placed", "queues", "placed-queues", "resets", "compactions"),
)


class Failure(NamedTuple):
    """What a checker found in a history."""

    seed: int
    kind: str
    """The option that shows it, of `KINDS_OF_HISTORIES`; "" for none."""
    checker: str
    what: str

    @property
    def again(self) -> str:
        """The command that shows the history again, with its trace."""
        return f"make simulate SEED={self.seed}" + (f" ARGS=--{self.kind}" if self.kind else "")


Result = tuple[list[Failure], Counter[str]]


def history_of(seed: int, kind: str) -> History:
    """Returns the history of a seed, of a kind."""
    if kind == "placed":
        return simulate(seed, switches=True, sidecars=True)
    if kind == "placed-queues":
        return simulate(seed, queues=True, sidecars=True)
    return simulate(seed, **{kind: True}) if kind else simulate(seed)


def run_seeds(seeds: range, *, only: str = "") -> Result:
    """Runs the histories of these seeds, or those of one kind; returns what checkers found, and
    the counts."""
    failures: list[Failure] = []
    counts: Counter[str] = Counter()
    histories = [(seed, only) for seed in seeds]
    if not only:
        histories += [(seed, "switches") for seed in seeds if not seed % SWITCHED_EVERY]
        histories += [(seed, "sidecars") for seed in seeds if not seed % SIDECARS_EVERY]
        histories += [(seed, "queues") for seed in seeds if not seed % QUEUES_EVERY]
        histories += [(seed, "resets") for seed in seeds if not seed % RESETS_EVERY]
        histories += [(seed, "compactions") for seed in seeds if not seed % COMPACTIONS_EVERY]
        histories += [(seed, "placed") for seed in seeds if not seed % PLACED_EVERY]
        histories += [(seed, "placed-queues") for seed in seeds if not seed % PLACED_QUEUES_EVERY]
    for seed, kind in histories:
        history = history_of(seed, kind)
        found = violations(history)
        failures += [Failure(seed, kind, name, what) for name, what in found.items()]
        counts += history.counts
        counts[f"histories with {kind}"] += bool(kind)
        counts["histories"] += 1
        counts["records in journals"] += sum(map(len, history.journals))
        counts["records in data partitions"] += sum(map(len, history.data.values()))
        counts["answers"] += len(history.told)
        for work in history.works.values():
            counts[f"transactions {work.believes or 'never known to their producer'}"] += 1
    return failures, counts


def never_happened(counts: Counter[str]) -> list[str]:
    """Returns the kinds of faults that no history had."""
    return [kind for kind in KINDS if not counts[kind]]


def table(counts: Counter[str]) -> str:
    """Returns a table of what was exercised."""
    faults = [(kind, counts[kind]) for kind in KINDS]
    others = sorted((name, count) for name, count in counts.items() if name not in KINDS)
    rows = [*others, ("", None), ("faults:", None), *faults]
    return "\n".join(f"  {name:<38}{'' if n is None else f'{n:>12,}'}" for name, n in rows)


def _chunks(start: int, seeds: int) -> Iterator[range]:
    for first in range(start, start + seeds, CHUNK):
        yield range(first, min(first + CHUNK, start + seeds))


def run(start: int, seeds: int, jobs: int, *, only: str) -> int:
    """Runs them all, with a progress bar; returns the exit code."""
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    work, done = partial(run_seeds, only=only), 0
    began_s = time.monotonic()
    # Warnings, of topics that are deleted, would hide the bar.
    with Pool(jobs, logging.disable, (logging.WARNING,)) as pool:
        for found, counted in pool.imap_unordered(work, _chunks(start, seeds)):
            failures += found
            counts += counted
            done = min(done + CHUNK, seeds)
            bar = "#" * (40 * done // seeds)
            print(f"\r[{bar:<40}] {done}/{seeds}", end="", file=sys.stderr, flush=True)
            if len({failure[:2] for failure in failures}) >= FAILURES_MAX:
                break
    print(file=sys.stderr)
    print(table(counts))
    for each in sorted(failures):
        print(f"\nFAILED seed {each.seed}, checker {each.checker}: {each.what}\n  {each.again}")
    missing = never_happened(counts) if seeds >= ALL_KINDS_FROM and not failures else []
    for kind in missing:
        print(f"\nFAILED no history had this fault: {kind}")
    took_s = time.monotonic() - began_s
    print(f"\n{counts['histories']} histories in {took_s:.0f} s: {'FAILED' if failures else 'ok'}")
    return 1 if failures or missing else 0


def show(seed: int, kind: str) -> int:
    """Prints one history with its trace; returns the exit code."""
    history = history_of(seed, kind)
    print(history.trace())
    found = violations(history)
    for name, what in found.items():
        print(f"\nFAILED checker {name}: {what}")
    if history.crash is not None:
        raise history.crash
    print(f"\nseed {seed}: {'FAILED' if found else 'ok'}")
    return 1 if found else 0


def main() -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many histories")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this history, with its trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    names = [mutation.name for mutation in MUTATIONS]
    parser.add_argument(
        "--switches", action="store_true", help="only histories in which topics are switched"
    )
    parser.add_argument(
        "--sidecars", action="store_true", help="only histories with transactions in sidecars"
    )
    parser.add_argument(
        "--placed",
        action="store_true",
        help="only histories in which topics with transactions in sidecars are switched",
    )
    parser.add_argument(
        "--queues", action="store_true", help="only histories with workers of a queue"
    )
    parser.add_argument(
        "--placed-queues",
        action="store_true",
        help="only histories with workers of a queue, in a topic with transactions in sidecars that"
        " is switched",
    )
    parser.add_argument(
        "--resets", action="store_true", help="only histories in which a queue is reset"
    )
    parser.add_argument(
        "--compactions", action="store_true", help="only histories in which sidecars are compacted"
    )
    parser.add_argument(
        "--mutation",
        choices=names,
        metavar="RULE",
        help="break this rule first (a wrong name lists all)",
    )
    arguments = parser.parse_args()
    kinds = [kind for kind in KINDS_OF_HISTORIES if getattr(arguments, kind.replace("-", "_"))]
    if len(kinds) > 1:
        parser.error(f"one kind of histories at a time, not {' and '.join(kinds)}")
    kind = kinds[0] if kinds else ""
    for mutation in MUTATIONS:
        if mutation.name == arguments.mutation:
            print(f"{mutation.name}: to be caught by the checker {mutation.checker}")
            mutation.apply(setattr)
    if arguments.seed is not None:
        return show(arguments.seed, kind)
    print(f"checkers: {', '.join(CHECKERS)}")
    return run(arguments.start, arguments.seeds, arguments.jobs, only=kind)


if __name__ == "__main__":
    sys.exit(main())
