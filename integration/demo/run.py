"""Runs the parts of the demo: the workers', and then Spark's, each with a Kafka of its own."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from .options import DemoOptions


def run_demo(options: DemoOptions) -> int:
    """Runs what the options ask for. Returns the exit status: 0 for the verdict TRUE, 1 for FALSE.

    By default Spark's part follows the workers' part. It is left out, with a sentence, if Spark
    can't run; and also if the workers' verdict is FALSE.

    Raises:
        DemoError, LocalKafkaError, SparkError: it can't start; the message says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; every process is stopped first.
    """
    options.check()
    if options.spark:
        from .spark.supervisor import run_spark_demo

        return run_spark_demo(options)
    from .supervisor import run_worker_demo

    if not options.is_whole or not _can_spark():
        return run_worker_demo(options)
    # Only the last part is kept for looking around.
    status = run_worker_demo(_part(options, "workers", keep=False))
    if status:
        return status
    from .spark.supervisor import run_spark_demo

    Console().print("\nThe same flights once more, by a streaming query of Spark.")
    return run_spark_demo(_part(options, "spark", keep=options.keep))


def _can_spark() -> bool:
    """Returns whether Spark's part can run; prints why if not."""
    from ..spark.errors import SparkError
    from .spark.supervisor import check_spark

    console = Console()
    try:
        check_spark()
    except SparkError as error:
        console.print(f"Spark's part is left out: {error}", highlight=False, soft_wrap=True)
        return False
    return True


def _part(options: DemoOptions, name: str, *, keep: bool) -> DemoOptions:
    directory = None if options.data_dir is None else options.data_dir / name
    return replace(options, data_dir=directory, keep=keep)
