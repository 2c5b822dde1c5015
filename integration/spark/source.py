"""The source: gives Spark committed records, in ranges that never split a transaction."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from ...consumer.range_reader.due import Reach, settled
from ...consumer.range_reader.places import WAIT_S, PlacesAhead
from ...consumer.range_reader.reading import CONSUMER, Range, RangeReader, ReadConfig
from ...consumer.range_reader.spot import Spot
from ...journal.control import TopicPartition
from ...journal.errors import ConfigError
from ...journal.logs.interface import Log
from ...journal.logs.open import open_log
from .clients import lend_fetcher, lend_log
from .keeper_client import KeeperAddress
from .planning import Bound, Planner, SourceOptions, journal_settings
from .shipping import Shipped
from .steps import steps_to_json
from .vector import SourceOffset, from_offsets, made_anew, moved, steps_between, to_offsets
from .versions import counts_as, find
from .worker import begin_task

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_LOG = logging.getLogger(__name__)
UNKNOWN_S: Final = 5.0
"""How long a topic must be unknown that has records to read. With a smaller value a broker that is
behind makes data loss of them, a larger one delays the micro-batch when the topic is deleted."""


@dataclass(frozen=True)
class Part(InputPartition):
    """The range that one task reads."""

    range: Range
    read: ReadConfig
    headers: bool


def read_part(part: Part) -> Iterator[RecordBatch]:
    """On an executor: yields a part's records as Arrow batches."""
    from .frames import Batches

    begin_task()
    place = part.range
    kafka, offsets = part.read.kafka, place.end - place.start.o2
    with (
        lend_log(kafka) as log,
        lend_fetcher(log, kafka, {**CONSUMER, **kafka}, records=offsets) as fetcher,
        closing(RangeReader(part.read, place, log, fetcher)) as reader,
    ):
        batches = Batches(place.topic, place.partition, headers=part.headers)
        yield from batches.of(reader.shares())


class BatchSource(Shipped, DataSourceReader):
    """Reads the committed records between two bounds."""

    def __init__(self, options: SourceOptions) -> None:
        """Prepares a reader; `partitions` asks the log."""
        self._options = options
        # The end of `resume` keeps to the limit.
        for name in options.limits.of_streams if options.end.places is None else ():
            _LOG.warning("option_ignored %s: a batch reads everything up to its end", name)

    def partitions(self) -> list[InputPartition]:
        """In the planner: returns what each task reads.

        Raises:
            LogtxError: a topic does not exist, a bound is bad, or retention deleted records.
        """
        with (
            lend_log(self._options.read.kafka) as log,
            closing(Planner(log, self._options)) as planner,
        ):
            start = planner.start("earliest").places
            end = planner.settled_end(start)
            ends = {key: spot.o2 for key, spot in end.items()}
            ranges = planner.ranges(start, ends, planner.placed(start, end))
            read = replace(self._options.read, sequences=planner.sequences())
            return [Part(r, read, self._options.include_headers) for r in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """On an executor: yields a task's records."""
        if not isinstance(partition, Part):
            return iter(())  # Spark's placeholder, if `partitions` returned none
        return read_part(partition)


@counts_as("sql.streaming.datasource", "SupportsTriggerAvailableNow")
class StreamSource(Shipped, DataSourceStreamReader):
    """Reads committed records, micro-batch by micro-batch.

    Spark's offsets are a `Vector`. From 4.2 on Spark says where reading stands and what the limit
    is; before, `latestOffset` goes at most the limit beyond the last planned micro-batch.
    """

    def __init__(
        self, options: SourceOptions, keeper: KeeperAddress, named: Mapping[str, str] | None = None
    ) -> None:
        """Prepares a reader; the first request for an offset asks the log.

        Args:
            options: what the options say.
            keeper: where the driver's keeper is.
            named: the options themselves, by which the keeper finds the query.

        Raises:
            ConfigError: an option sets an end.
        """
        self._options = options
        self._keeper = keeper
        self._named = {name.lower(): value for name, value in (named or {}).items()}
        self._log: Log | None = None
        self._ahead: PlacesAhead | None = None
        self._place: SourceOffset | None = None
        """End of the last planned micro-batch, or the query's beginning; None if not known yet."""
        self._is_first = False
        """Whether `_place` is where the query begins."""
        self._clock = time.monotonic
        self._planned_s = -math.inf
        """Monotonic time in seconds at which a micro-batch was planned last."""
        self._latest: Mapping[TopicPartition, int] | None = None
        """The log's ends, as they were asked for last."""
        self._target: Mapping[TopicPartition, int] | None = None
        """Where a query with Trigger.AvailableNow ends."""
        if options.end != Bound(which="ending"):
            raise ConfigError("a stream has no end: remove the ending… options, or read a batch")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns where the query begins, also if its first micro-batch is to be repeated."""
        place = self._place
        if place is None or self._is_first:
            return to_offsets(self._begin(self._planner()))
        # A restarted query told the end of its last micro-batch before, see `partitions`. Returned
        # as the beginning, it would leave the first micro-batch without input.
        if place.began is None:
            return to_offsets(self._planner().start("latest"))
        return to_offsets(SourceOffset(place.began, place.topic_ids))

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Returns the limit of the options, from PySpark 4.2 on."""
        most = self._options.limits.most
        name = "ReadAllAvailable" if most is None else "ReadMaxRows"
        kind = find("sql.streaming.datasource", name)
        return kind() if most is None else kind(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes where the query ends, from PySpark 4.2 on."""
        self._target = self._planner().latest()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Returns where the next micro-batch ends.

        Args:
            start: where reading stands; None before PySpark 4.2.
            limit: PySpark's object for the limit; None before 4.2.

        Raises:
            DataLossError: a topic was deleted, created again, or lost records.
            ConfigError: the checkpoint is of another query.
        """
        self._stand(start)
        planner = self._planner()
        offset, latest = self._begin(planner), planner.latest()
        self._latest = latest
        place = planner.still_there(offset, latest)
        target, limits = self._target, self._options.limits
        if target is not None:
            latest = {k: min(end, target[k]) for k, end in latest.items() if k in target}
        most = self._most(limit)
        reach = planner.reach(
            place,
            {key: Spot(end) for key, end in latest.items()},
            wait_s=WAIT_S,
            is_bounded=most is not None,
        )
        _warn_held_back(reach)
        end = settled(reach, place, moved(place, latest, most))
        now_s = self._clock()
        since_s, placed = now_s - self._planned_s, sum(len(r.dues) for r in reach.values())
        waits = target is None and limits.waits(place, latest, since_s, placed)
        began = place if self._is_first else None
        found = planner.offset(end, offset, began)
        same = found.gone == offset.gone and not made_anew(offset.topic_ids, found.topic_ids)
        if same and (end == offset.places or (waits and place == offset.places)):
            # In the same words: Spark begins a micro-batch otherwise.
            return to_offsets(offset) if start is None else start
        self._planned_s = now_s
        return to_offsets(found)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Returns the log's ends for the query's progress, from PySpark 4.2 on."""
        if self._latest is None:
            return None
        return to_offsets(SourceOffset({key: Spot(end) for key, end in self._latest.items()}))

    def _most(self, limit: Any) -> int | None:
        if limit is not None:
            most: int | None = getattr(limit, "max_rows", None)  # ReadAllAvailable has none
            return most
        most = self._options.limits.most
        # A query with Trigger.AvailableNow asks only once, so a limit would leave out the rest.
        if most is not None and self._keeper.ask("to_the_end", source=self._named):
            _LOG.warning(
                "limit_left_out maxRecordsPerTrigger=%d: with Trigger.AvailableNow Spark "
                "before 4.2 asks a Python source for its end once; to keep the limit, use the "
                "default trigger, query.processAllAvailable() and query.stop()",
                most,
            )
            return None
        return most

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns what each task of a micro-batch reads. After a restart, Spark may ask again.

        A restarted query first asks for an empty range, at the end of the last micro-batch, whether
        or not that is committed.

        Raises:
            DataLossError: what is to be read is gone, by retention or with its topic.
        """
        begin, stop = from_offsets(start), from_offsets(end)
        self._place, self._is_first = stop, False
        if begin == stop:
            return []
        if stop.began is not None:
            begin = SourceOffset(stop.began, stop.topic_ids)
        begin = replace(begin, gone=begin.gone | stop.gone)
        if begin.places == stop.places and not made_anew(begin.topic_ids, stop.topic_ids):
            return []
        planned = {key[0] for key, spot in stop.places.items() if begin.places.get(key) != spot}
        planner = self._planner_of(planned, begin)
        latest = planner.latest()
        begins, ends = planner.still_there(begin, latest), planner.still_there(stop, latest)
        group = self._options.group
        if group is not None:
            # From where reading begins: a topic that was created again may end as the former did.
            steps = steps_to_json(steps_between(begins, stop.places, stop.topic_ids))
            self._keeper.ask("plan", group=group, steps=steps, reader=os.getpid())
        # What went since it was planned has no records to read; the next micro-batch begins again.
        there = {
            key: spot.o2
            for key, spot in stop.places.items()
            if ends.get(key) == spot and key in latest
        }
        read = replace(self._options.read, sequences=planner.sequences())
        headers = self._options.include_headers
        placed = planner.placed(begins, {key: stop.places[key] for key in there})
        return [Part(r, read, headers) for r in planner.ranges(begins, there, placed)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """On an executor: yields a task's records."""
        assert isinstance(partition, Part)
        return read_part(partition)

    def stop(self) -> None:
        """Closes the log; called when the query ends."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def _stand(self, start: dict[str, Any] | None) -> None:
        """Takes over what Spark says of where reading stands."""
        if start is None:
            return
        told = from_offsets(start)
        # At the query's beginning Spark says what `initialOffset` told, which is kept.
        if self._place is None or told.places != self._place.places:
            self._place, self._is_first = told, False

    def _begin(self, planner: Planner) -> SourceOffset:
        if self._place is None:
            self._place = planner.start("latest")
            self._is_first = True
        return self._place

    def _planner(self, *more: SourceOffset) -> Planner:
        if self._log is None:
            self._log = open_log(self._options.read.kafka)
        if self._ahead is None:
            self._ahead = PlacesAhead(self._log, journal_settings(self._options))
        known = {t for o in (self._place, *more) if o is not None for t, _ in o.places}
        return Planner(self._log, self._options, known, self._ahead)

    def _planner_of(self, topics: Set[str], begin: SourceOffset) -> Planner:
        """Returns a planner that knows these topics, unless they stay unknown."""
        deadline_s = time.monotonic() + UNKNOWN_S
        while True:
            planner = self._planner(begin)
            if topics <= planner.topics or time.monotonic() > deadline_s:
                return planner
            time.sleep(UNKNOWN_S / 10)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the open log: executors open their own."""
        return {**self.__dict__, "_log": None, "_ahead": None}


def _warn_held_back(reach: Mapping[TopicPartition, Reach]) -> None:
    for (topic, partition), found in reach.items():
        if not found.is_complete and found.holds is not None:
            _LOG.warning(
                "held_back topic=%s partition=%d offset=%d not_placed=%d",
                *(topic, partition, found.horizon, found.holds),
            )
