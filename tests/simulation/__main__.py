"""`make simulate`: many histories, each of a seed, or one again with its trace."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Pool

from .checkers import CHECKERS, violations
from .faults import KINDS, KINDS_OF_SWITCHES
from .mutations import MUTATIONS
from .world import World, simulate

CHUNK = 20
"""Histories of one task of a process. More make the bar jump; fewer cost hand-overs."""
FAILURES_MAX = 10
"""Failing seeds after which the run stops."""
ALL_KINDS_FROM = 500
"""Number of histories from which on every kind of fault must have happened."""
Result = tuple[list[tuple[int, str, str]], Counter[str]]


def replay_command(seed: int) -> str:
    """Returns the command that shows a history again, with its trace."""
    return f"make simulate SEED={seed}"


def run_seeds(seeds: range) -> Result:
    """Runs these seeds; returns (seed, checker, what it found) of failures, and the counts."""
    failures: list[tuple[int, str, str]] = []
    counts: Counter[str] = Counter()
    for seed in seeds:
        history = simulate(seed)
        failures += [(seed, name, what) for name, what in violations(history).items()]
        counts += history.counts
        counts["histories"] += 1
        counts["records in journals"] += sum(map(len, history.journals))
        counts["records in data partitions"] += sum(map(len, history.data.values()))
        counts["answers"] += len(history.told)
        for work in history.works.values():
            counts[f"transactions {work.believes or 'never known to their producer'}"] += 1
    return failures, counts


def never_happened(counts: Counter[str]) -> list[str]:
    """Returns the kinds of faults that no history had."""
    kinds = KINDS if World.switches else set(KINDS) - set(KINDS_OF_SWITCHES)
    return [kind for kind in KINDS if kind in kinds and not counts[kind]]


def table(counts: Counter[str]) -> str:
    """Returns a table of what was exercised."""
    faults = [(kind, counts[kind]) for kind in KINDS]
    others = sorted((name, count) for name, count in counts.items() if name not in KINDS)
    rows = [*others, ("", None), ("faults:", None), *faults]
    return "\n".join(f"  {name:<38}{'' if n is None else f'{n:>12,}'}" for name, n in rows)


def _chunks(start: int, seeds: int) -> Iterator[range]:
    for first in range(start, start + seeds, CHUNK):
        yield range(first, min(first + CHUNK, start + seeds))


def run(start: int, seeds: int, jobs: int) -> int:
    """Runs them all, with a progress bar; returns the exit code."""
    counts: Counter[str] = Counter()
    failures: list[tuple[int, str, str]] = []
    began_s = time.monotonic()
    # Warnings, of topics that are deleted, would hide the bar.
    with Pool(jobs, logging.disable, (logging.WARNING,)) as pool:
        for found, counted in pool.imap_unordered(run_seeds, _chunks(start, seeds)):
            failures += found
            counts += counted
            done = counts["histories"]
            bar = "#" * (40 * done // seeds)
            print(f"\r[{bar:<40}] {done}/{seeds}", end="", file=sys.stderr, flush=True)
            if len({seed for seed, _, _ in failures}) >= FAILURES_MAX:
                break
    print(file=sys.stderr)
    print(table(counts))
    for seed, name, what in sorted(failures):
        print(f"\nFAILED seed {seed}, checker {name}: {what}\n  {replay_command(seed)}")
    missing = never_happened(counts) if seeds >= ALL_KINDS_FROM and not failures else []
    for kind in missing:
        print(f"\nFAILED no history had this fault: {kind}")
    took_s = time.monotonic() - began_s
    print(f"\n{counts['histories']} histories in {took_s:.0f} s: {'FAILED' if failures else 'ok'}")
    return 1 if failures or missing else 0


def show(seed: int) -> int:
    """Prints one history with its trace; returns the exit code."""
    history = simulate(seed)
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
        "--switches", action="store_true", help="switch topics to places in some of the histories"
    )
    parser.add_argument("--mutation", choices=names, help="break this rule first")
    arguments = parser.parse_args()
    World.switches = arguments.switches
    for mutation in MUTATIONS:
        if mutation.name == arguments.mutation:
            print(f"{mutation.name}: to be caught by the checker {mutation.checker}")
            mutation.apply(setattr)
    if arguments.seed is not None:
        return show(arguments.seed)
    print(f"checkers: {', '.join(CHECKERS)}")
    return run(arguments.start, arguments.seeds, arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
