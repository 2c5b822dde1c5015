"""The inspector: tries what must change nothing, and recovers, audits and exports what is there.

    python -m logtx.integration.demo.spark.inspector --config … --report …

It restores the query's checkpoint from a backup, and runs a job twice. For the rest no process
tells it what the driver did: it knows the names of the topics and the group, reads the logs, and
compares the Parquet files that it exported with the flights file, row for row.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from ...spark.auditing import audit
from ...spark.errors import ReplayDiffersError
from ...spark.exporting import export
from ...spark.identity import VERSION_AT
from ...spark.options import prefixed
from ...spark.recovery import iovs, read, resume
from ...spark.steps import query_group
from ..cluster import kafka_settings
from ..flights import decode_entry, read_flights
from ..ledger import Entry, LedgerAudit
from ..reports import write_status
from .driver import start_query
from .processes import BACKUP, CHECKPOINT
from .sessions import session_at
from .verdict import REFUSED

_RESTORED_S: Final = 120
"""Bounds the wait for the end of the query with the restored checkpoint, in seconds."""


@dataclass(slots=True, kw_only=True)
class Inspection:
    """What was found so far; the field names are those of the report."""

    stage: str = "restore"
    """The stage that runs now."""
    restored: str | None = None
    """What became of the query with the restored checkpoint; None: there was no backup of one."""
    enriched: int | None = None
    """Enriched flights that a reader of committed records gets."""
    totals: int | None = None
    """Rows written by a job that ran twice."""
    airports: int | None = None
    """Airports in the ledger."""
    iovs: list[dict[str, Any]] = field(default_factory=list)
    """Committed input offsets of the group and of the query: rows of `logtx.spark.iovs`."""
    left: int | None = None
    """Flights that `resume` would still read; None before the stage is done, as below."""
    audit: dict[str, Any] | None = None
    """The report of the audit."""
    exported: int | None = None
    """Rows in the Parquet files."""
    transactions: int = 0
    """Transactions that these rows belong to."""
    findings: dict[str, int] | None = None
    """How the exported ledger compares with the file's."""
    final: bool = False


class Inspector:
    """Runs the stages in order, and reports each."""

    def __init__(self, options: argparse.Namespace, spark: Any) -> None:
        """Prepares an empty report."""
        self._options = options
        self._kafka: Any = {
            "bootstrap_servers": options.kafka["bootstrap.servers"],
            **prefixed(options.kafka),
        }
        self._spark = spark
        self._found = Inspection()

    def run(self) -> None:
        """Runs all stages."""
        steps = {
            "restore": self._restore,
            "rerun": self._rerun,
            "recover": self._recover,
            "audit": self._audit,
            "export": self._export,
            "compare": self._compare,
        }
        for stage, step in steps.items():
            self._found.stage = stage
            self._report()
            step()
        self._found.final = True
        self._report()

    def _report(self) -> None:
        write_status(self._options.report, asdict(self._found))

    def _restore(self) -> None:
        """Runs the query again from a backup of its checkpoint, as an operator would."""
        backup, place = self._options.directory / BACKUP, self._options.directory / "restored"
        if not backup.exists():
            return
        shutil.copytree(backup, place)
        query = start_query(self._spark, self._options, place, to_the_end=True)
        try:
            ended = query.awaitTermination(_RESTORED_S)
            self._found.restored = "it ended" if ended else "it did not end"
        except PySparkException as error:
            is_refused = ReplayDiffersError.__name__ in str(error)
            self._found.restored = REFUSED if is_refused else str(error)[:200]
        finally:
            query.stop()

    def _rerun(self) -> None:
        """Runs a job twice, as a scheduler does that did not hear of the first run's end."""
        ledger = self._read(self._options.ledger_topic)
        totals = ledger.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
        for _ in range(2):
            totals.write.format("logtx").options(
                **prefixed(self._options.kafka),
                topic=self._options.totals_topic,
                txnAppId=f"totals-{self._options.group}",
                txnVersion="1",
            ).mode("append").save()
        self._found.airports = totals.count()
        self._found.totals = self._read(self._options.totals_topic).count()
        self._found.enriched = self._read(self._options.enriched_topic).count()

    def _read(self, topic: str) -> Any:
        return read(self._spark, subscribe=topic, **self._kafka)

    def _recover(self) -> None:
        group, topic = self._options.group, self._options.flights_topic
        rows = [row.asDict() for row in iovs(self._spark, **self._kafka).collect()]
        query = f"{self._query_group()}-"  # what it wrote, by topic
        ours = [row for row in rows if row["group"] == group or row["group"].startswith(query)]
        # Of a micro-batch the number, and not what its input is compared by.
        self._found.iovs = [
            r for r in ours if r["topic"] != VERSION_AT[0] or r["partition"] == VERSION_AT[1]
        ]
        left = resume(self._spark, group=group, subscribe=topic, **self._kafka)
        self._found.left = left.count()

    def _query_group(self) -> str | None:
        """Returns the group that stands for the query, whose id is in Spark's checkpoint."""
        metadata = self._options.directory / CHECKPOINT / "metadata"
        return query_group(json.loads(metadata.read_text())["id"])

    def _audit(self) -> None:
        topics = [self._options.ledger_topic]
        report = audit(self._spark, **self._kafka, topics=topics)
        self._found.audit = report.as_dict()

    def _export(self) -> None:
        done = export(
            self._spark,
            subscribe=self._options.ledger_topic,
            **self._kafka,
            path=str(self._options.export),
        )
        self._found.exported = done.records

    def _compare(self) -> None:
        ledger = LedgerAudit(read_flights(self._options.flights))
        for _txid, rows in groupby(read_export(self._options.export), itemgetter(0)):
            ledger.feed(Entry(**decode_entry(value)) for _, value in rows)
        self._found.transactions = ledger.transactions
        self._found.findings = asdict(ledger.findings())


def read_export(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields (TxId, value) of each exported row in the export's order, read without Spark."""
    for file in sorted(path.glob("export=*/*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(columns=["txid", "value"]):
            yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line that the supervisor wrote."""
    parser = argparse.ArgumentParser(prog="logtx-demo-spark-inspector")
    parser.add_argument("--config", type=kafka_settings, required=True, dest="kafka")
    parser.add_argument("--directory", type=Path, required=True, help="of the query")
    parser.add_argument("--export", type=Path, required=True, help="directory of Parquet files")
    parser.add_argument("--group", required=True)
    parser.add_argument("--flights-topic", required=True)
    parser.add_argument("--ledger-topic", required=True)
    parser.add_argument("--enriched-topic", required=True)
    parser.add_argument("--totals-topic", required=True)
    parser.add_argument("--transactional-id", required=True, help="of the query")
    parser.add_argument("--flights-per-batch", type=int, required=True, help="of the query")
    parser.add_argument("--flights", type=int, required=True, help="rows of the file to expect")
    parser.add_argument("--report", type=Path, required=True, help="status file")
    return parser.parse_args(arguments)


def main() -> None:
    """Runs the inspector."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    options = parse(sys.argv[1:])
    os.chdir(options.directory)  # Spark leaves files in its working directory
    with session_at(options.directory) as spark:
        Inspector(options, spark).run()


if __name__ == "__main__":
    main()
