"""Works many messages off in transactions, while workers are killed with -9 and started again.

What counts are the outputs that a `read_committed` consumer reads: one for each message, and no
more. Half of the messages are plain, half were written in transactions; they lie among each other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import logtx
from logtx.integration.local.processes import Child

from ..clients import consumer_config, delete_topics, from_start, make_topic
from ..spill.payload import number_of
from .backlog import PARTITIONS, fill_plain, fill_transactions
from .tally import Tally

INPUT: Final = "bench-queue-million-in"
OUTPUT: Final = "bench-queue-million-out"
MESSAGES: Final = 1_000_000
WORKERS: Final = 4
KILLS: Final = 20
_SEED: Final = 5
"""Of the choice of whom to kill."""
_STALL_S: Final = 120.0
"""The run ends when no further message is worked off for so long; what is left counts as lost."""
_STOP_TIMEOUT_S: Final = 60.0
"""How long a worker may take to commit its blocks in flight, before it is killed."""
_REST_TIMEOUT_S: Final = 60.0
"""Bounds the reading of what is left when all workers have ended."""
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is done."""

    messages: int = MESSAGES
    workers: int = WORKERS
    kills: int = KILLS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    plan: Plan
    kills: int
    """Kills that took place."""
    seconds: float
    """From the first worker's start to the last message's output."""
    lost: int
    """Messages without an output."""
    doubled: int
    """Outputs too many, of some message or of none."""

    @property
    def holds(self) -> bool:
        """Whether each message has one output."""
        return not (self.lost or self.doubled)


class Kills:
    """Says when whom to kill: as often as planned, spread over the messages. Pure."""

    def __init__(self, plan: Plan) -> None:
        """Draws nothing yet."""
        self._plan, self._random, self.done = plan, random.Random(_SEED), 0

    def due(self, worked_off: int) -> int | None:
        """Returns which worker is to be killed now; None if none is.

        Args:
            worked_off: messages that have an output.
        """
        plan = self._plan
        if self.done >= plan.kills or worked_off * (plan.kills + 1) < plan.messages * (
            self.done + 1
        ):
            return None
        self.done += 1
        return self._random.randrange(plan.workers)


def worked_off(
    servers: str,
    directory: Path,
    plan: Plan,
    progress: Callable[[int], None],
) -> Outcome:
    """Fills the queue, and has it worked off.

    Args:
        servers: the broker, which has a coordinator.
        directory: for the workers' logs.
        plan: what to do.
        progress: called with the number of messages that are worked off.

    Raises:
        FillError, LogtxError, TimeoutError: the queue could not be filled.
        ProcessDiedError: a worker ended by itself.
    """
    for topic in (INPUT, OUTPUT):
        make_topic(servers, topic, PARTITIONS)
    try:
        half = plan.messages // 2
        with ThreadPoolExecutor(2) as pool:
            filling = [
                pool.submit(fill_plain, servers, INPUT, range(half)),
                pool.submit(fill_transactions, servers, INPUT, range(half, plan.messages)),
            ]
        for each in filling:
            each.result()
        return _run(servers, directory, plan, progress)
    finally:
        delete_topics(servers, [INPUT, OUTPUT])


def _run(servers: str, directory: Path, plan: Plan, progress: Callable[[int], None]) -> Outcome:
    tally, kills = Tally(plan.messages), Kills(plan)
    settings = consumer_config(servers, "bench-queue-million-audit")
    with logtx.Consumer(settings) as audit, _workers(servers, directory, plan) as workers:
        audit.assign(from_start(OUTPUT, PARTITIONS))
        began_s = last_s = time.monotonic()
        while tally.lost and time.monotonic() - last_s < _STALL_S:
            before = tally.worked_off
            _read(audit, tally)
            if tally.worked_off > before:
                last_s = time.monotonic()
                progress(tally.worked_off)
            for worker in workers:
                worker.check()
            while (number := kills.due(tally.worked_off)) is not None:
                workers[number].kill()
                workers[number].start()
        _stop(workers)
        # A second output of a message may have come behind the last first one.
        until_s = time.monotonic() + _REST_TIMEOUT_S
        while any(each.lag for each in audit.lag()) and time.monotonic() < until_s:
            _read(audit, tally)
    return Outcome(
        plan=plan,
        kills=kills.done,
        seconds=last_s - began_s,
        lost=tally.lost,
        doubled=tally.doubled + tally.strange,
    )


def _read(audit: logtx.Consumer, tally: Tally) -> None:
    for message in audit.consume(1_000, _POLL_S):
        tally.add(number_of(message))


@contextmanager
def _workers(servers: str, directory: Path, plan: Plan) -> Iterator[list[Child]]:
    module = f"{__package__}.block_worker"
    workers = [
        Child(
            f"worker {number}",
            directory / f"worker-{number}.log",
            [module, servers, str(number), INPUT, OUTPUT],
        )
        for number in range(plan.workers)
    ]
    try:
        for worker in workers:
            worker.start()
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def _stop(workers: Sequence[Child]) -> None:
    for worker in workers:
        worker.ask_to_stop()
    for worker in workers:
        worker.await_end(_STOP_TIMEOUT_S)
