"""Export: committed transactions in commit order to Parquet; each run goes on from the last one.

A run's directory ``export=<n>`` comes into being by one rename, of files that were complete before,
and holds the place where the next run begins. So a run is there whole or not at all, whatever dies,
and what is exported and where to go on are one thing.

A run takes whole transactions, each in the run of its decision:

1. ask for the ends of the data (*next*: no marker below is of a later decision than the journal
   has by then);
2. read the journal: the last commit S, and wait until everything up to it is finished;
3. ask for the ends again (*end*: every marker of a commit up to S lies below);
4. read [place of the last run, *end*), and keep commits above the last run's S and up to this one;
5. the next run begins at *next*: markers of later commits lie at or behind it.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...journal.errors import ConfigError, LogtxError, RequestTimedOutError
from ...journal.logs.interface import Log
from ...journal.logs.open import open_log
from ...journal.reader import JOURNAL_TOPIC, journal_partition_of
from ...journal.state import State
from ..inspect.journal import Journal
from .planning import Planner, SourceOptions
from .vector import Spot, from_offsets, to_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FINISH_S: Final = 60.0
"""Longest wait for the markers of what is decided."""
_STATE: Final = "_logtx.json"
"""Spark and others pass over files that begin with an underscore."""
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Exported:
    """What a run did."""

    run: int
    """Its number; that of the last run, where nothing was new."""
    path: str
    records: int
    from_sequence: int
    """Commits above it."""
    to_sequence: int
    """And up to it."""


def export(
    spark: SparkSession,
    *,
    subscribe: str,
    bootstrap_servers: str,
    path: str,
    transaction_group: str = "default",
    **options: str,
) -> Exported:
    """Export what was committed since the last run, in commit order.

    Files of a run are in order, and their rows too: by commit sequence, topic, partition, offset.
    Plain records have no place in that order and are left out.

    Args:
        spark: a session that `register` was called for.
        subscribe: topics, with commas between them; the same in every run.
        bootstrap_servers: the Kafka cluster.
        path: a directory wherever Spark can write; one for each export.
        transaction_group: whose transactions.
        options: further ones of the source.

    Raises:
        RequestTimedOutError: markers are not written; is a coordinator running?
        ConfigError: the directory holds an export of something else.
        LogtxError: another run was quicker.
    """
    named = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": subscribe,
        "transaction.group": transaction_group,
        **options,
    }
    parsed = SourceOptions.parse(named)
    files = _Files(spark, path)
    last = files.last()
    what = {"topics": sorted(parsed.topics), "transaction_group": transaction_group}
    if last is not None and last.state["what"] != what:
        raise ConfigError(
            f"{path} holds an export of {last.state['what']}: give this one another path"
        )
    log = open_log(parsed.read.kafka)
    try:
        planner = Planner(log, parsed)
        following = planner.latest()
        above = -1 if last is None else int(last.state["sequence"])
        up_to = _decided(log, transaction_group)
        end = planner.latest()
        start = planner.start("earliest") if last is None else from_offsets(last.state["places"])
    finally:
        log.close()
    if last is not None and up_to <= above:
        return Exported(last.number, files.place(last.number), 0, above, above)
    reader: Any = spark.read.format("logtx").options(
        **named,
        startingPlaces=json.dumps(to_offsets(start)),
        endingPlaces=json.dumps(to_offsets({key: Spot(offset) for key, offset in end.items()})),
        startingCommitSequence=str(above + 1),
        endingCommitSequence=str(up_to),
    )
    number = 0 if last is None else last.number + 1
    frame = reader.load().orderBy("commit_sequence", "topic", "partition", "offset")
    places = {key: Spot(offset) for key, offset in following.items()}
    state = {
        "version": _VERSION,
        "what": what,
        "sequence": up_to,
        "places": to_offsets(places),
    }
    records = files.write(number, frame, state)
    return Exported(number, files.place(number), records, above, up_to)


def _decided(log: Log, transaction_group: str) -> int:
    """The last commit of the group's journal partition, once everything up to it is finished."""
    count = log.topic_info(JOURNAL_TOPIC).partition_count
    partition = journal_partition_of(transaction_group, count)
    with closing(Journal(log)) as journal:
        journal.read_on()
        transactions = journal.parts[partition].transactions
        decided = [s for s in transactions.values() if s.state.commits]
        last = max((s.commit_sequence or -1 for s in decided), default=-1)
        deadline_s = time.monotonic() + FINISH_S
        while any(s.state is State.COMMITTING for s in decided):
            if time.monotonic() > deadline_s:
                raise RequestTimedOutError(
                    f"commits up to {last} have not got all their markers within {FINISH_S:g} s:"
                    " is a coordinator running?"
                )
            time.sleep(0.05)
            journal.read_on()
        return last


@dataclass(frozen=True, slots=True)
class _Run:
    number: int
    state: dict[str, Any]


class _Files:
    """The export's directory, through Hadoop's file systems."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._path = path.rstrip("/")
        self._jvm = jvm
        self._root = jvm.org.apache.hadoop.fs.Path(self._path)
        self._fs = self._root.getFileSystem(spark._jsc.hadoopConfiguration())

    def place(self, number: int) -> str:
        """A run's directory."""
        return f"{self._path}/export={number:08d}"

    def last(self) -> _Run | None:
        """The last run that is whole."""
        if not self._fs.exists(self._root):
            return None
        names = [str(s.getPath().getName()) for s in self._fs.listStatus(self._root)]
        numbers = [int(n.partition("=")[2]) for n in names if n.startswith("export=")]
        if not numbers:
            return None
        number = max(numbers)
        stream = self._fs.open(self._of(f"{self.place(number)}/{_STATE}"))
        try:
            text = str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        state = json.loads(text)
        if state.get("version") != _VERSION:
            raise ConfigError(
                f"{self.place(number)} was written by a newer logtx: upgrade this one"
            )
        return _Run(number, state)

    def write(self, number: int, frame: Any, state: dict[str, Any]) -> int:
        """Write a run beside the others, then let it be one of them; returns its records.

        Raises:
            LogtxError: another process has made the same run meanwhile.
        """
        staging = f"{self._path}/_writing-{number:08d}-{time.time_ns():x}"
        frame.write.mode("overwrite").parquet(staging)
        records = int(frame.sparkSession.read.parquet(staging).count())
        out = self._fs.create(self._of(f"{staging}/{_STATE}"), True)
        try:
            out.write(bytearray(json.dumps({**state, "records": records}).encode()))
        finally:
            out.close()
        final = self._of(self.place(number))
        # A rename onto a directory would move into it.
        if self._fs.exists(final) or not self._fs.rename(self._of(staging), final):
            self._fs.delete(self._of(staging), True)
            raise LogtxError(f"another export made {self.place(number)} first: run again to go on")
        self._clear(number)
        return records

    def _clear(self, number: int) -> None:
        """Remove what runs that died left behind."""
        for status in self._fs.listStatus(self._root):
            name = str(status.getPath().getName())
            if name.startswith("_writing-") and int(name.split("-")[1]) <= number:
                self._fs.delete(status.getPath(), True)

    def _of(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)
