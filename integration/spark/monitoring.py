"""What is known of a running query, and of what writes committed: asked in the driver's Python."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...consumer.range_reader.places import WAIT_S
from ...consumer.range_reader.spot import Spot
from ...journal.control import TopicPartition
from ...journal.logs.open import open_log
from .application import source_options
from .commits import Commit
from .planning import Planner, SourceOptions
from .session import running_keeper
from .vector import SourceOffset, from_offsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a streaming query is."""

    query_id: str
    batch_id: int | None
    """The last micro-batch that Spark reports; None before the first."""
    input_records: int
    """Number of its rows, from all sources."""
    lag: Mapping[TopicPartition, int] | None
    """(topic, partition) → offsets behind the log's end, of all sources of the format "logtx". Ends
    of transactions take an offset, too; where a home places them, each is counted like one. None if
    Spark does not tell the sources' options."""
    committed: Commit | None
    """What the format's sink committed last; None if nothing, in this application."""

    @property
    def lag_total(self) -> int | None:
        """The sum of `lag`."""
        return None if self.lag is None else sum(self.lag.values())


def progress(query: StreamingQuery) -> Progress:
    """Returns how far a query is, and what its sink committed last.

    Asks the log for its present ends; Spark's own progress tells, from PySpark 4.2 on, the ends of
    the last trigger as ``latestOffset``.

    Args:
        query: one that was started in this application, also one that has ended.

    Raises:
        NotRegisteredError: no session was registered.
        LogtxError: the log can't be asked.
    """
    keeper = running_keeper()
    last: Any = query._jsq.lastProgress()
    committed = keeper.jobs.last_commit(query_id=str(query.id))
    if last is None:
        return Progress(
            query_id=str(query.id), batch_id=None, input_records=0, lag={}, committed=committed
        )
    told = json.loads(last.json())  # PySpark's own object changes with its versions
    return Progress(
        query_id=str(query.id),
        batch_id=int(told["batchId"]),
        input_records=int(told["numInputRows"]),
        lag=_lag(query, told["sources"]),
        committed=committed,
    )


def last_commit(name: str | None = None) -> Commit | None:
    """Returns what a write committed last: its TxId, commit sequence and number of records.

    ::

        df.write.format("logtx").options(**kafka, topic="ledger", commitName="booking").mode(
            "append"
        ).save()
        logtx.spark.last_commit("booking").txid

    Args:
        name: the option ``commitName`` of the write; None: any write of this application, also one
            that another thread did meanwhile.

    Returns:
        The commit, or None if no such write was committed since the application began.

    Raises:
        NotRegisteredError: no session was registered.
    """
    return running_keeper().jobs.last_commit(name)


def _lag(query: StreamingQuery, sources: list[Any]) -> Mapping[TopicPartition, int] | None:
    lag: dict[TopicPartition, int] = {}
    try:
        options = source_options(query._jsq.streamingQuery())
    except Exception as error:  # noqa: BLE001 - py4j's, of many kinds
        _LOG.warning("sources_not_known query=%s error=%s", query.id, error)
        return None
    for source, given in zip(sources, options, strict=True):
        offset = _offset(source)
        if offset is None:
            continue  # a source of another format
        if given is None:
            return None
        parsed = SourceOptions.parse(given)
        log = open_log(parsed.read.kafka)
        try:
            topics = {topic for topic, _ in offset.places}
            with closing(Planner(log, parsed, topics)) as planner:
                lag |= _behind(planner, offset)
        finally:
            log.close()
    return lag


def _behind(planner: Planner, offset: SourceOffset) -> dict[TopicPartition, int]:
    latest = planner.latest()
    ends = {key: Spot(end) for key, end in latest.items()}
    reach = planner.reach(offset.places, ends, wait_s=WAIT_S)
    found = {}
    for key, end in latest.items():
        spot = offset.places.get(key)
        placed = len(reach[key].dues) if key in reach else 0
        found[key] = max(end - (0 if spot is None else spot.o2), 0) + placed
    return found


def _offset(source: Any) -> SourceOffset | None:
    """Returns where a source stands; None if it is of another format, or not begun."""
    told = source["endOffset"] or source["startOffset"]
    is_ours = isinstance(told, dict) and {"version", "places"} <= told.keys()
    return from_offsets(told) if is_ours else None
