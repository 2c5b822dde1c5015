"""A worker: reads what producers wrote, and writes one record for each, exactly once.

    python -m logtx.chaos.workload.worker DIRECTORY NUMBER LIFE

Workers with even numbers use `logtx.process`. Those with odd numbers use a loop by hand, as
`docs/process.md` shows it. With Kafka's transactions all use Kafka's own pattern. SIGTERM ends a
worker after the current block.
"""

from __future__ import annotations

from ..options import System
from .process import Process, run


def work(process: Process) -> None:
    """Works until SIGTERM."""
    if process.settings.system is System.LOGTX:
        from .logtx_worker import by_hand, by_process

        (by_hand if process.number % 2 else by_process)(process)
    else:
        from .kafka_worker import by_kafka

        by_kafka(process)


if __name__ == "__main__":
    run("worker", work)
