"""Exports committed transactions to Parquet in commit order; each run continues the last one.

One rename of complete files creates a run's directory ``export=<n>``, which also holds the place
where the next run begins. So whatever process dies, a run is there whole or not at all, and the
exported records always agree with the place to continue from.

A run takes whole transactions, each in the run of its decision:

1. It asks for the ends of the data (*next*). Markers below them belong to decisions that are in the
   journal by now.
2. It reads the journal, takes the last commit S, and waits until everything up to S is finished.
3. It asks for the ends again (*end*). Every marker of a commit up to S lies below them.
4. It reads [place of the last run, *end*), and keeps the commits after the last run's S, up to and
   including this S.
5. The next run begins at *next*: the markers of commits after S lie at or behind it.

What a home places has no marker. Its place was asked for before it was finished, so the place of a
commit up to S is at most *end*; and that of a commit after S is at least *next*.

Where partitions have replicas, steps 2 and 3 ask twice, seconds apart: a broker that does not know
yet that another leads a partition tells an end of before. With the journal's, a decision whose
marker lies below *next* would come after S. With the data's, a marker up to S would lie behind
*end*. No run would have those records.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...consumer.core.looks import LOOKS_APART_S
from ...consumer.range_reader.spot import Spot, Vector
from ...journal.errors import ConfigError, LogtxError, RequestTimedOutError
from ...journal.logs.interface import Log
from ...journal.logs.open import open_log
from ...journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ...journal.reader import JOURNAL_TOPIC, journal_partition_of
from ...journal.state import State
from ..inspect.journal import Journal
from .planning import Planner, SourceOptions
from .vector import SourceOffset, from_offsets, to_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FINISH_S: Final = 60.0
"""Longest wait for the markers of decided transactions: a smaller value fails runs while a
partition is slow, a larger one reports missing coordinators later."""
_STATE: Final = "_logtx.json"
"""Name of a run's state file. Readers of Parquet ignore names that begin with an underscore."""
_VERSION: Final = 1
"""Format version of the state file."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of a run."""

    run: int
    """Number of the run; if nothing was new, number of the last run."""
    path: str
    """Directory of the run."""
    records: int
    """Number of records exported."""
    from_sequence: int
    """The run begins above this commit sequence."""
    to_sequence: int
    """The run ends with this commit sequence, included."""


def export(
    spark: SparkSession,
    *,
    subscribe: str,
    bootstrap_servers: str,
    path: str,
    transaction_group: str = DEFAULT_TRANSACTION_GROUP,
    **options: str,
) -> Exported:
    """Exports the transactions committed since the last run, in commit order.

    Rows are ordered by commit sequence, topic, partition and offset, within a file and from file to
    file. Plain records have no place in that order and are left out.

    Args:
        spark: a session with `register`.
        subscribe: topics, separated by commas; the same in every run.
        bootstrap_servers: the brokers of the Kafka cluster.
        path: the export's own directory, on any file system that Spark can write.
        transaction_group: the transaction group whose transactions are exported.
        options: further options of the source.

    Raises:
        RequestTimedOutError: markers are not written; is a coordinator running?
        ConfigError: the directory holds another export: of other topics, or another group.
        LogtxError: another process made this run first.
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
    what = {"topics": sorted(parsed.what.topics), "transaction_group": transaction_group}
    if last is not None and last.state["what"] != what:
        raise ConfigError(
            f"{path} holds an export of {last.state['what']}: give this one another path"
        )
    log = open_log(parsed.read.kafka)
    try:
        with closing(Planner(log, parsed)) as planner:
            following = planner.latest()
            above = -1 if last is None else int(last.state["sequence"])
            up_to = _decided(log, transaction_group)
            ends = planner.latest_surely()
            start = (
                planner.start("earliest").places
                if last is None
                else planner.still_there(from_offsets(last.state["places"]), ends)
            )
            end = planner.settle(start, ends)
            topic_ids = planner.topic_ids
    finally:
        log.close()
    if last is not None and up_to <= above:
        return Exported(last.number, files.place(last.number), 0, above, above)
    reader: Any = spark.read.format("logtx").options(
        **named,
        startingPlaces=_text(start),
        endingPlaces=_text(end),
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
        "places": to_offsets(SourceOffset(places, topic_ids)),
    }
    records = files.write(number, frame, state)
    return Exported(number, files.place(number), records, above, up_to)


def _decided(log: Log, transaction_group: str) -> int:
    """Reads the commits of the group's journal partition, and waits until these are finished.
    Returns the last one's commit sequence, or -1 if there is none."""
    count = log.partition_count(JOURNAL_TOPIC)
    partition = journal_partition_of(transaction_group, count)
    with closing(Journal(log)) as journal:
        journal.read_on()
        if log.topic_info(JOURNAL_TOPIC).replication_factor > 1:
            time.sleep(LOOKS_APART_S)
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


def _text(places: Vector) -> str:
    return json.dumps(to_offsets(SourceOffset(places)))


class _Files:
    """Reads and writes the export's directory, through Hadoop's file systems."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._path = path.rstrip("/")
        self._jvm = jvm
        self._root = jvm.org.apache.hadoop.fs.Path(self._path)
        self._fs = self._root.getFileSystem(spark._jsc.hadoopConfiguration())

    def place(self, number: int) -> str:
        """Returns the path of a run's directory."""
        return f"{self._path}/export={number:08d}"

    def last(self) -> _Run | None:
        """Returns the last complete run, or None."""
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
        """Writes a run to a staging directory and renames that. Returns the number of records.

        Raises:
            LogtxError: another process made the same run first.
        """
        staging = f"{self._path}/_writing-{number:08d}-{time.time_ns():x}"
        final = self._of(self.place(number))
        # If another process made the directory in between, the rename moves ours into it.
        inside = self._of(f"{self.place(number)}/{staging.rpartition('/')[2]}")
        failure: Exception | None = None
        try:
            records = self._stage(staging, frame, state)
            made = not self._fs.exists(final) and self._fs.rename(self._of(staging), final)
            made = made and not self._fs.exists(inside)
        except Exception as error:
            # It also removes the staging directories that it takes for left ones, such as ours.
            if not self._fs.exists(final):
                raise
            made, failure = False, error
        if not made:
            for left in (self._of(staging), inside):
                self._fs.delete(left, True)
            raise LogtxError(
                f"another export made {self.place(number)} first: run again to go on"
            ) from failure
        self._clear(number)
        return records

    def _stage(self, staging: str, frame: Any, state: dict[str, Any]) -> int:
        frame.write.mode("overwrite").parquet(staging)
        records = int(frame.sparkSession.read.parquet(staging).count())
        out = self._fs.create(self._of(f"{staging}/{_STATE}"), True)
        try:
            out.write(bytearray(json.dumps({**state, "records": records}).encode()))
        finally:
            out.close()
        return records

    def _clear(self, number: int) -> None:
        """Removes the staging directories of this and earlier runs, left by processes that died."""
        for status in self._fs.listStatus(self._root):
            name = str(status.getPath().getName())
            if name.startswith("_writing-") and int(name.split("-")[1]) <= number:
                self._fs.delete(status.getPath(), True)

    def _of(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)
