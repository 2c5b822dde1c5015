"""`make fuzz`: random batches and headers go through the C extension, until the time is over.

Each round draws some examples of each kind with the same seed. If one fails, hypothesis shows the
smallest that does, and the last line the command that draws it again.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import hypothesis
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from logtx.journal.native import loading

from .fuzzing import CHECKS, Workbench, fuzz
from .librdkafka import Librdkafka


def main(arguments: list[str]) -> int:
    """Fuzzes; returns 1 if an example failed, else 0."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long")
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count on")
    parser.add_argument("--only", choices=CHECKS, help="one kind")
    options = parser.parse_args(arguments)
    os.environ[loading.VARIABLE] = "1"
    console, names = Console(), [options.only] if options.only else list(CHECKS)
    extension = loading.find_reader().extension and loading.find().extension
    if extension is None:
        console.print(f"there is nothing to fuzz: {loading.described()}")
        return 1
    seed = random.randrange(10**6) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(Librdkafka(extension, Path(folder)))
        try:
            return _fuzz(bench, names, seed, options.seconds, console)
        finally:
            bench.close()


def _fuzz(bench: Workbench, names: list[str], seed: int, seconds: float, console: Console) -> int:
    started, first = time.monotonic(), seed
    drawn = dict.fromkeys(names, 0)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=seconds)
        while (passed := time.monotonic() - started) < seconds or seed == first:
            # Should the process end, this is what it ended in.
            progress.console.print(f"seed {seed}")
            for name in names:
                progress.update(task, description=f"{name}, seed {seed}", completed=passed)
                settings = hypothesis.settings(
                    max_examples=CHECKS[name].number,
                    database=None,
                    deadline=None,
                    suppress_health_check=list(hypothesis.HealthCheck),
                )
                try:
                    fuzz(bench, name, settings, seed)
                except BaseException:
                    again = f"make fuzz SEED={seed} SECONDS=1 ARGS='--only {name}'"
                    console.print(f"once more: {again}", soft_wrap=True)
                    raise
                drawn[name] += CHECKS[name].number
            seed += 1
    told = ", ".join(f"{number:,} {name}" for name, number in drawn.items())
    console.print(f"seeds {first} to {seed - 1}: {told}: all alike, {bench.again} at another try")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
