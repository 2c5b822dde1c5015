"""The Spark driver: a streaming query from flights to the ledger and enriched flights.

    python -m logtx.integration.demo.spark.driver --config … --directory …

Each micro-batch is one transaction over two writes: the enriched flights, the ledger entries, the
input offsets of the consumer group, and the micro-batch's own number. A driver that is killed at
any instant loses nothing and repeats nothing: its successor continues from Spark's checkpoint, and
what it writes again of an unfinished micro-batch belongs to another transaction.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ...spark.options import prefixed
from ...spark.recovery import resume
from ...spark.shared import transaction
from ..cluster import kafka_settings
from .booking import SCHEMA, book, enrich
from .processes import CHECKPOINT
from .sessions import session_at

_ASK_S: Final = 0.2
"""How often the query is asked whether it has ended; bounds how late SIGTERM is noticed."""


def start_query(
    spark: Any, options: argparse.Namespace, checkpoint: Path, *, to_the_end: bool = False
) -> Any:
    """Starts the query, or continues the one in the checkpoint. Returns Spark's StreamingQuery.

    Args:
        spark: the session.
        options: what the supervisor said.
        checkpoint: Spark's checkpoint.
        to_the_end: whether the query ends when it has read all there is.
    """
    kafka: Any = prefixed(options.kafka)
    flights = resume(
        spark,
        group=options.group,
        subscribe=options.flights_topic,
        bootstrap_servers=options.kafka["bootstrap.servers"],
        stream=True,
        create=True,
        maxRecordsPerTrigger=str(options.flights_per_batch),
        **kafka,
    )
    outputs = ((book, options.ledger_topic), (enrich, options.enriched_topic))
    settings: Any = {"transactional.id": options.transactional_id, **kafka}

    def write(batch: Any, _number: int) -> None:
        batch = batch.select("value").persist()  # both writes are of what was read once
        with transaction(
            spark,
            bootstrap_servers=options.kafka["bootstrap.servers"],
            group=options.group,
            **settings,
        ) as txn:
            for make, topic in outputs:
                rows = batch.mapInArrow(make, SCHEMA).write.format("logtx")
                rows.options(**kafka, topic=topic, transaction=txn.token).mode("append").save()
        batch.unpersist()

    writer = flights.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(write)
    return (writer.trigger(availableNow=True) if to_the_end else writer).start()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line that the supervisor wrote."""
    parser = argparse.ArgumentParser(prog="logtx-demo-spark-driver")
    parser.add_argument("--config", type=kafka_settings, required=True, dest="kafka")
    parser.add_argument("--directory", type=Path, required=True, help="of the application")
    parser.add_argument("--transactional-id", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--flights-topic", required=True)
    parser.add_argument("--ledger-topic", required=True)
    parser.add_argument("--enriched-topic", required=True)
    parser.add_argument("--flights-per-batch", type=int, required=True)
    return parser.parse_args(arguments)


def main() -> None:
    """Runs until SIGTERM, or until the query fails."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    options = parse(sys.argv[1:])
    os.chdir(options.directory)  # Spark leaves files in its working directory
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    with session_at(options.directory) as spark:
        query = start_query(spark, options, options.directory / CHECKPOINT)
        while not stopping.is_set() and not query.awaitTermination(_ASK_S):
            pass
        query.stop()


if __name__ == "__main__":
    main()
