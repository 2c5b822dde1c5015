"""A Spark driver of its own process, with a fault built in: a restart within one JVM hides bugs.

    python driver.py '{"servers": …, "source": …, "target": …, …}'

Ends with status 0 when all input was written, and otherwise as its fault has it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import logtx
from logtx.integration.spark.jobs import Jobs
from logtx.journal.errors import LogtxError
from logtx.producer.transaction_shell import TransactionShell
from tests.integration.spark.conftest import make_session

PADDED_BYTES = 16_384
SLOW_AFTER_ROWS = 20
"""What the slow task has passed on when it falls asleep: several of its writer's batches."""


class CommitLostError(LogtxError):
    """Stands for an answer that never came."""


def die() -> None:
    """As `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def at_commit(number: int, act: Callable[..., Any]) -> None:
    """Put `act(original, jobs, **fields)` in the place of the commit of jobs, once."""
    original, seen = Jobs.commit, [0]

    def commit(jobs: Jobs, **fields: Any) -> Any:
        seen[0] += 1
        if seen[0] == number:
            return act(lambda: original(jobs, **fields), jobs, **fields)
        return original(jobs, **fields)

    Jobs.commit = commit  # type: ignore[method-assign,assignment]


def inject(fault: str, config: dict[str, Any]) -> None:
    """Build a fault in; it happens at the second commit."""
    number = 1 if config.get("mode") == "batch" else 2
    match fault:
        case "none" | "task-once" | "task-always" | "slow-task":
            return
        case "kill-before":
            at_commit(number, lambda *_a, **_f: die())
        case "kill-during":
            commit = TransactionShell.commit

            def sent(transaction: TransactionShell, timeout: float | None = None) -> Any:
                transaction.commit_async()
                time.sleep(config.get("during_s", 0.001))
                die()
                return commit(transaction, timeout)

            def during(original: Callable[[], Any], *_a: Any, **_f: Any) -> Any:
                TransactionShell.commit = sent  # type: ignore[method-assign]
                return original()

            at_commit(number, during)
        case "kill-after":
            at_commit(number, lambda original, *_a, **_f: (original(), die()))
        case "commit-raises":

            def raises(original: Callable[[], Any], *_a: Any, **_f: Any) -> Any:
                original()
                raise CommitLostError("the answer was lost after the commit was durable")

            at_commit(number, raises)
        case "stand-still":

            def stand(original: Callable[[], Any], *_a: Any, **_f: Any) -> Any:
                Path(config["standing"]).touch()
                while not Path(config["go_on"]).exists():
                    time.sleep(0.05)
                return original()

            at_commit(number, stand)
        case "signal-commit":

            def told(original: Callable[[], Any], *_a: Any, **_f: Any) -> Any:
                Path(config["standing"]).touch()
                time.sleep(1)  # the coordinator is killed meanwhile
                return original()

            at_commit(number, told)
        case _:
            raise AssertionError(fault)


def faulty(fault: str, config: dict[str, Any]) -> Callable[[Any], Any]:
    """What stands between input and output: nothing, or tasks that fail after half of it."""
    marker = config.get("marker", "")

    def through(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        first, given = context.partitionId() == 0, 0
        for batch in batches:
            if fault == "slow-task":
                batch = padded(batch)  # noqa: PLW2901
            half = max(batch.num_rows // 2, 1)
            yield batch.slice(0, half)
            if first and fault == "task-once" and not context.attemptNumber():
                raise RuntimeError("a task that fails once, after half of it")
            if first and fault == "task-always":
                raise RuntimeError("a task that fails for good, after half of it")
            slow = first and fault == "slow-task" and given + half >= SLOW_AFTER_ROWS
            if slow and not Path(marker).exists():
                Path(marker).write_text(str(os.getpid()))
                time.sleep(config.get("slow_s", 20))
            given += batch.num_rows
            yield batch.slice(half)

    return through


def padded(batch: Any) -> Any:
    """With values so large that what stands between tasks' processes does not hold them back."""
    import pyarrow as pa

    values = [value.ljust(PADDED_BYTES) for value in batch.column(0).to_pylist()]
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])


def main(config: dict[str, Any]) -> None:
    """Write all input to the target."""
    fault = config["fault"]
    inject(fault, config)
    settings = {"master": config.get("master", "local[2,4]"), **config.get("conf", {})}
    spark = make_session(Path(config["directory"]), **settings)
    logtx.spark.register(spark)
    stream = config.get("mode") != "batch"
    frame = logtx.spark.resume(
        spark,
        group=config["group"],
        subscribe=config["source"],
        bootstrap_servers=config["servers"],
        stream=stream,
        create=True,
        **({"maxRecordsPerTrigger": str(config.get("limit", 60))} if stream else {}),
    )
    frame = frame.selectExpr("value").mapInArrow(faulty(fault, config), "value binary")
    writer = frame.writeStream if stream else frame.write.mode("append")
    writer = (
        writer.format("logtx")
        .option("kafka.bootstrap.servers", config["servers"])
        .option("topic", config["target"])
        .option("group", config["group"])
    )
    if stream:
        query = writer.option("checkpointLocation", config["checkpoint"]).start()
        query.processAllAvailable()
        query.stop()
    else:
        writer.save()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
