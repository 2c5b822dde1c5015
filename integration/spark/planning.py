"""Turns a source's options into the ranges to read. Asks the log, and a coordinator for an IOV."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Self

from confluent_kafka import KafkaError

from ...consumer.core.looks import LOOKS_APART_S
from ...consumer.range_reader.due import RangePlaces, Reach, settled
from ...consumer.range_reader.errors import DataLossError
from ...consumer.range_reader.large import PART_RECORDS, Large, Search
from ...consumer.range_reader.places import PLACE_S, PlacesAhead, require_complete
from ...consumer.range_reader.reading import CONSUMER, Range, ReadConfig
from ...consumer.range_reader.spot import Spot, Vector
from ...consumer.topic_ids import with_sidecars
from ...coordinator.client.queries import CoordinatorQueries
from ...coordinator.client.tls import tls_of
from ...journal.control import TopicPartition
from ...journal.errors import (
    ConfigError,
    LogtxError,
    OffsetsPendingError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from ...journal.logs.interface import Log, TopicInfo
from ...journal.position import Position
from ...journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ...journal.reader import JOURNAL_TOPIC, RESERVED, journal_partition_of
from ...journal.rights import lacking, may_not_read
from ...journal.settings import take_choice, take_flag, take_integer, take_text
from .limits import Limits
from .options import refuse_rest, take_kafka
from .parts import divided, parts, placed_parts
from .searching import run
from .subscription import Subscription
from .vector import SourceOffset, from_offsets, made_anew, moved, parse_offsets

_LOG = logging.getLogger(__name__)

EARLIEST: Final = -2
LATEST: Final = -1
"""Offsets that stand for a partition's start and end, as in Kafka's connector."""
_PENDING_PAUSE_S: Final = 0.1
"""Between two requests for an IOV that an open transaction may still change."""
_SEQUENCE_MAX: Final = 2**63 - 1
"""Highest commit sequence: an offset of 63 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The start or the end of what is read, as the options give it."""

    which: str
    """"starting" or "ending": how the names of its options begin."""
    offsets: str | None = None
    """earliest, latest, iov, or offsets by topic and partition as JSON."""
    timestamp_ms: int | None = None
    """Milliseconds since 1970, for all partitions."""
    timestamps: str | None = None
    """Milliseconds since 1970 by topic and partition, as JSON."""
    sequence: int | None = None
    """Commit sequence, included in what is read."""
    iov: str | None = None
    """Consumer group whose committed IOV is the bound."""
    places: str | None = None
    """Places as JSON, as in Spark's checkpoint; set by `resume`. Overrides the others."""


def _take_bound(rest: dict[str, Any], which: str) -> Bound:
    bound = Bound(
        which=which,
        offsets=take_text(rest, f"{which}offsets", None),
        timestamp_ms=take_integer(rest, f"{which}timestamp", None, 0, _SEQUENCE_MAX),
        timestamps=take_text(rest, f"{which}offsetsbytimestamp", None),
        sequence=take_integer(rest, f"{which}commitsequence", None, -1, _SEQUENCE_MAX),
        iov=take_text(rest, f"{which}iov", None),
        places=take_text(rest, f"{which}places", None),
    )
    given = (bound.offsets, bound.timestamp_ms, bound.timestamps, bound.iov)
    if sum(value is not None for value in given) > 1:
        raise ConfigError(f"give one of the options {which}Offsets, -Timestamp and -Iov, not two")
    return bound


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of `spark.read.format("logtx")` and `spark.readStream.format("logtx")`."""

    what: Subscription
    """``subscribe``, ``subscribePattern`` or ``assign``."""
    start: Bound
    """``startingOffsets``, ``startingTimestamp``, ``startingOffsetsByTimestamp``,
    ``startingCommitSequence``, ``startingIov``."""
    end: Bound
    """``endingOffsets`` and so on; only for batches."""
    limits: Limits
    """By how many offsets a micro-batch moves on."""
    include_headers: bool = False
    """``includeHeaders``: add a column with the records' headers, without logtx's own."""
    min_partitions: int = 0
    """``minPartitions``: least number of tasks to read with."""
    records_per_partition: int | None = None
    """``maxRecordsPerPartition``: most offsets that one task reads."""
    time_fails: bool = False
    """``startingOffsetsByTimestampStrategy=error``: whether to fail if a partition has no record of
    a starting time or later; otherwise it begins at its end."""
    group: str | None = None
    """``group``: the consumer group at whose IOV reading begins; a sink with the same option
    commits its next IOV."""
    transaction_group: str = DEFAULT_TRANSACTION_GROUP
    """``transaction.group``: the transaction group that the commit sequences belong to."""
    coordinator_timeout_ms: int = 30_000
    """``coordinator.timeout.ms``: how long requests to coordinators are retried."""
    read: ReadConfig
    """How the ranges are read."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parses a reader's options.

        Raises:
            ConfigError: an option is missing, unknown or out of range.
        """
        rest, kafka = take_kafka(options)
        what = Subscription.take(rest)
        level = take_choice(
            rest, "isolation.level", "read_committed", ["read_committed", "read_uncommitted"]
        )
        torn = take_choice(rest, "torn.reset", "error", ["skip", "error"])
        strategy = take_choice(
            rest, "startingoffsetsbytimestampstrategy", "latest", ["latest", "error"]
        )
        read = ReadConfig(
            kafka=kafka,
            committed=level == "read_committed",
            pending_memory_max_bytes=take_integer(
                rest, "pending.memory.max.bytes", 64 * 1024 * 1024, 0, 2**62
            ),
            pending_dir=take_text(rest, "pending.dir", None),
            torn_skip=torn == "skip",
            fail_on_data_loss=take_flag(rest, "failondataloss", True),
        )
        parsed = cls(
            what=what,
            start=_take_bound(rest, "starting"),
            end=_take_bound(rest, "ending"),
            include_headers=take_flag(rest, "includeheaders", False),
            limits=Limits.take(rest),
            min_partitions=take_integer(rest, "minpartitions", 0, 0),
            records_per_partition=take_integer(rest, "maxrecordsperpartition", None, 1, 2**62),
            time_fails=strategy == "error",
            group=take_text(rest, "group", None),
            transaction_group=take_text(rest, "transaction.group", DEFAULT_TRANSACTION_GROUP),
            coordinator_timeout_ms=take_integer(rest, "coordinator.timeout.ms", 30_000, 1),
            read=read,
        )
        refuse_rest(rest, "source")
        if not read.committed and (parsed.start.sequence, parsed.end.sequence) != (None, None):
            raise ConfigError(
                "what is not committed has no commit sequence: leave out the starting or ending"
                " one, or isolation.level=read_uncommitted"
            )
        return parsed


class Planner:
    """Finds where reading begins and ends."""

    def __init__(
        self,
        log: Log,
        options: SourceOptions,
        known: Collection[str] = (),
        ahead: PlacesAhead | None = None,
    ) -> None:
        """Uses this log, which the caller closes. Looks the topics up once.

        Args:
            log: the log to ask.
            options: what to read.
            known: topics that were read so far: a list of topics may come from a broker that is
                behind, so those are asked for by name.
            ahead: follows homes, for several planners in turn; the caller closes it. None: `close`
                must be called.
        """
        self._log = log
        self._options = options
        self._known = set(known)
        self._own = PlacesAhead(log, journal_settings(options)) if ahead is None else None
        self._ahead = ahead or self._own

    def close(self) -> None:
        """Stops following homes, if nobody else does with what it was given."""
        if self._own is not None:
            self._own.close()

    def earliest(self) -> dict[TopicPartition, int]:
        """Returns the first offset of each partition.

        Raises:
            UnknownTopicError: a topic does not exist.
        """
        return self._log.start_offsets(self._partitions)

    def latest(self) -> dict[TopicPartition, int]:
        """Returns the end offset of each partition."""
        return self._log.end_offsets(self._partitions)

    def latest_surely(self) -> dict[TopicPartition, int]:
        """Returns ends that have all records which were written before this call.

        A broker that does not know yet that another leads the partition tells an end of before. So
        it asks twice, some seconds apart, where partitions have replicas.
        """
        first = self.latest()
        if not self.replicated:
            return first
        time.sleep(LOOKS_APART_S)
        return {key: max(end, first.get(key, 0)) for key, end in self.latest().items()}

    @property
    def replicated(self) -> bool:
        """Whether partitions of the topics may have had another leader."""
        return any(info.replication_factor > 1 for info in self._topics.values())

    @cached_property
    def _topics(self) -> dict[str, TopicInfo]:
        what = self._options.what
        names: Collection[str] = what.topics
        if what.pattern is not None:
            listed = self._log.topics() - RESERVED.keys()
            names = sorted(what.matching([*listed, *self._known]))
        infos = self._log.topic_infos(list(names)) if names else {}
        found: dict[str, TopicInfo] = {}
        for topic in names:
            info = infos[topic]
            if isinstance(info, UnknownTopicError) and what.pattern is not None:
                continue  # If something was read of it, `still_there` says so.
            if isinstance(info, LogtxError):
                raise info
            self._check_rights(info)
            found[topic] = info
        return found

    def _check_rights(self, info: TopicInfo) -> None:
        if lacking(info.operations, ["READ"]):
            log = self._log
            raise UnsupportedTopicError(
                may_not_read(log.bootstrap_servers, log.principal, info.topic),
                kafka_code=KafkaError.TOPIC_AUTHORIZATION_FAILED,
            )

    @cached_property
    def _partitions(self) -> list[TopicPartition]:
        counts = {topic: info.partition_count for topic, info in self._topics.items()}
        return self._options.what.partitions(counts)

    @property
    def topics(self) -> Set[str]:
        """The topics that are read, as far as they exist."""
        return self._topics.keys()

    @property
    def topic_ids(self) -> dict[str, str]:
        """Topic → its id; topics of a log without ids are left out."""
        return {topic: info.topic_id for topic, info in self._topics.items() if info.topic_id}

    def offset(
        self, places: Vector, former: SourceOffset, began: Vector | None = None
    ) -> SourceOffset:
        """Returns the offset of these places, which follows a former one, see `still_there`."""
        named = {topic for topic, _ in places}
        kept = {t: found for t, found in former.topic_ids.items() if t in named - self.topics}
        return SourceOffset(places, {**kept, **self.topic_ids}, began, self._gone(named))

    def _gone(self, topics: Collection[str]) -> frozenset[str]:
        return frozenset(self._options.what.matching(topics) - self.topics)

    def still_there(self, offset: SourceOffset, latest: Mapping[TopicPartition, int]) -> Vector:
        """Returns an offset's places, as far as they are in the topics that exist now.

        With ``failOnDataLoss=false`` a topic that was deleted and created again, or lost its end,
        begins at its start; one of a pattern that is gone keeps its places. If it comes back with
        the id that it had, reading goes on there.

        Args:
            offset: where reading stands.
            latest: what `latest` returned.

        Raises:
            DataLossError: there is such a topic, and ``failOnDataLoss`` is true; if the offset has
                it as gone, that was accepted before.
            ConfigError: the offset is of other topics alone.
        """
        what = self._options.what
        if offset.places and not any(what.includes(topic) for topic, _ in offset.places):
            raise ConfigError(
                f"the offsets are of {', '.join(sorted({t for t, _ in offset.places}))}, and {what}"
                " is to be read: the checkpoint is of another query, give this one a"
                " checkpointLocation of its own"
            )
        others = made_anew(offset.topic_ids, self.topic_ids)
        cut = self._cut({k: s for k, s in offset.places.items() if k[0] not in others}, latest)
        places = dict(offset.places)
        anew = []
        for key, spot in offset.places.items():
            if what.pattern is not None and what.includes(key[0]) and key[0] not in self._topics:
                if key[0] not in offset.gone:
                    self._lost(
                        f"topic {key[0]} was deleted, or the broker that was asked is behind: what"
                        f" partition {key[1]} has from offset {spot.o2} on can't be read"
                    )
                continue
            if key[0] in others:
                self._lost(
                    f"topic {key[0]} was deleted and created again: what it had from offset "
                    f"{spot.o2} of partition {key[1]} on is gone"
                )
            elif key in cut:
                self._lost(
                    f"{key[0]}[{key[1]}] ends at {cut[key]} now, and reading stood at "
                    f"{spot.o2}: it was created again, or lost records"
                )
            else:
                continue
            anew.append(key)
        for key, start in self._log.start_offsets(anew).items():
            spot = places[key]
            stood = spot.stood or (None if spot.fresh else spot.place)
            places[key] = Spot(start, fresh=spot.fresh, stood=stood)
        return places

    def _cut(
        self, places: Vector, latest: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Returns the ends that lie before where reading stood; asks for such ones twice."""

        def below(ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
            return {k: end for k, end in ends.items() if k in places and end < places[k].o2}

        cut = below(latest)
        if cut and self.replicated:
            time.sleep(LOOKS_APART_S)
            cut = below(self._log.end_offsets(list(cut)))
        return cut

    def _lost(self, what: str) -> None:
        if self._options.read.fail_on_data_loss:
            raise DataLossError(
                f"{what}; start anew with another checkpoint or group, or set failOnDataLoss=false"
                " to go on from the beginning of what is there"
            )
        _LOG.warning("data_loss %s", what)

    def start(self, default: str) -> SourceOffset:
        """Returns the place in each partition where reading begins.

        Args:
            default: "earliest" or "latest", used if no option names a place.

        Raises:
            OffsetsPendingError: an unfinished transaction still holds the group's IOV.
            ConfigError: the offsets name other partitions than those read, or an option is bad.
        """
        bound = self._options.start
        if bound.places is not None:
            told = from_offsets(json.loads(bound.places))
            return self.offset(self.still_there(told, self.latest()), told)
        group = bound.iov or (self._options.group if bound.offsets in (None, "iov") else None)
        if bound.offsets == "iov" and group is None:
            raise ConfigError("startingOffsets=iov needs option group: whose IOV it is")
        none = SourceOffset({})
        if group is None:
            return self.offset({k: Spot(o) for k, o in self._offsets(bound, default).items()}, none)
        found = self.iov(group)
        # A list of topics that is behind: the group read more of the pattern.
        self._known |= self._options.what.matching({topic for topic, _ in found})
        fallback = "earliest" if bound.offsets in (None, "iov") else bound.offsets
        named = {k: Spot(o, fresh=True) for k, o in self._named(fallback).items()}
        ids = _ids_of(found)
        gone = self._gone(self._known)
        named |= {k: Spot.of(at) for k, at in found.items() if k in named or k[0] in gone}
        stood = SourceOffset(named, ids, gone=gone)
        return self.offset(self.still_there(stood, self.latest()), stood)

    def end(self) -> dict[TopicPartition, int]:
        """Returns the offset in each partition where a batch ends.

        Raises:
            ConfigError: an option names an offset beyond the log's end; else as `start`.
        """
        return {key: spot.o2 for key, spot in self._end().items()}

    def _end(self) -> Vector:
        bound = self._options.end
        if bound.places is not None:
            return from_offsets(json.loads(bound.places)).places
        if bound.iov is not None:
            found = self.iov(bound.iov)
            if anew := made_anew(_ids_of(found), self.topic_ids):
                raise ConfigError(
                    f"the committed offsets of group {bound.iov!r} are of topics that were created"
                    f" again since: {', '.join(sorted(anew))}; give endingOffsets"
                )
            ends = {k: found[k].o2 if k in found else 0 for k in self._partitions}
            mend = "the log lost records; give endingOffsets"
            self._check_inside("endingIov", ends, self.latest(), mend)
            passed = {key: at.passed for key, at in found.items()}
            return {key: Spot(end, passed=passed.get(key)) for key, end in ends.items()}
        return {key: Spot(offset) for key, offset in self._offsets(bound, "latest").items()}

    def settled_end(self, start: Vector, most: int | None = None) -> Vector:
        """Returns where a batch ends, with what is passed there of homes.

        What is placed exactly at the end belongs to it, if the end is that of the log. With an
        offset that an option names, it belongs to the batch that begins there.

        Args:
            start: where it begins.
            most: how many offsets to read at most; a limit.

        Raises:
            RequestTimedOutError: what is committed is not placed in time.
            ConfigError: as `end`.
        """
        told = self._end()
        ends = {key: spot.o2 for key, spot in told.items()}
        asked = moved(start, ends, most)
        if self._options.end.places is not None:
            return told if most is None else asked
        reach = self.reach(start, {key: Spot(end) for key, end in ends.items()}, wait_s=PLACE_S)
        require_complete(reach)
        named = self._named_ends(told)
        mine = {k: r for k, r in reach.items() if asked[k].o2 < ends[k] or k not in named}
        found = dict(settled(mine, start, asked))
        for key in reach.keys() - mine.keys():
            if told[key].passed is not None:
                found[key] = told[key]
        return found

    def settle(self, start: Vector, ends: Mapping[TopicPartition, int]) -> Vector:
        """Returns the log's ends, with what is passed there of homes.

        Raises:
            RequestTimedOutError: what is committed is not placed in time.
        """
        asked = {key: Spot(end) for key, end in ends.items()}
        reach = self.reach(start, asked, wait_s=PLACE_S)
        require_complete(reach)
        return settled(reach, start, asked)

    def _named_ends(self, told: Vector) -> set[TopicPartition]:
        """Returns the partitions of whose end an option names the offset."""
        bound = self._options.end
        if bound.iov is not None or bound.timestamp_ms is not None or bound.timestamps is not None:
            return set(told)
        if bound.offsets in (None, "earliest", "latest"):
            return set()
        given = parse_offsets("endingOffsets", bound.offsets)
        return {key for key, offset in given.items() if offset != LATEST}

    def reach(
        self, start: Vector, ends: Vector, *, wait_s: float, is_bounded: bool = False
    ) -> Mapping[TopicPartition, Reach]:
        """Returns how far partitions can be read that have a home: see `PlacesAhead.reach`.

        Without commits, only those whose topic has a sidecar need it. Nothing that any later one
        will have is placed below `ends`, which were told before: see `core.before_sidecar`.
        """
        if self._ahead is None:
            return {}
        if not self._options.read.committed:
            placed = {topic for (topic, _), spot in (*start.items(), *ends.items()) if spot.passed}
            asked = {topic for topic, _ in ends} - placed
            needed = placed | with_sidecars(self._log, asked)
            ends = {key: spot for key, spot in ends.items() if key[0] in needed}
            if not ends:
                return {}
        return self._ahead.reach(start, ends, self.topic_ids, wait_s=wait_s, is_bounded=is_bounded)

    def placed(self, start: Vector, ends: Vector) -> dict[TopicPartition, RangePlaces]:
        """Returns what homes place between two vectors, of which the second was told before.

        Raises:
            RequestTimedOutError: what is committed is not placed in time.
        """
        moves = {key: end for key, end in ends.items() if start.get(key) != end}
        reach = self.reach(start, moves, wait_s=PLACE_S)
        require_complete(reach)
        return {key: found.until(ends[key]) for key, found in reach.items()}

    def _offsets(self, bound: Bound, default: str) -> dict[TopicPartition, int]:
        if bound.timestamp_ms is not None:
            return self._at_times(bound, dict.fromkeys(self._partitions, bound.timestamp_ms))
        if bound.timestamps is not None:
            times = parse_offsets(f"{bound.which}OffsetsByTimestamp", bound.timestamps, times=True)
            return self._at_times(bound, self._complete(times, "timestamps"))
        if bound.sequence is not None and bound.offsets is None:
            return self._named("earliest" if bound is self._options.start else "latest")
        return self._named(bound.offsets or default, bound.which)

    def _named(self, offsets: str, which: str = "starting") -> dict[TopicPartition, int]:
        if offsets == "earliest":
            return self.earliest()
        if offsets == "latest":
            return self.latest()
        wanted = self._complete(parse_offsets(f"{which}Offsets", offsets), "offsets")
        first, last = self.earliest(), self.latest()
        named = {
            key: first[key] if o == EARLIEST else last[key] if o == LATEST else o
            for key, o in wanted.items()
        }
        self._check_inside(f"{which}Offsets", named, last)
        return named

    def _check_inside(
        self,
        option: str,
        named: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        mend: str = "",
    ) -> None:
        if any(offset > ends[key] for key, offset in named.items()):
            ends = self.latest_surely()
        for (topic, partition), offset in named.items():
            end = ends[topic, partition]
            if not 0 <= offset <= end:
                instead = f"give one from 0 to {end}, {LATEST} (the end) or {EARLIEST} (the start)"
                raise ConfigError(
                    f"{option} names offset {offset} of {topic}[{partition}], which ends at {end}:"
                    f" {mend or instead}"
                )

    def _complete(
        self, given: Mapping[TopicPartition, int], what: str
    ) -> Mapping[TopicPartition, int]:
        partitions = set(self._partitions)
        if set(given) != partitions:
            names = ", ".join(f"{t}[{p}]" for t, p in sorted(partitions ^ set(given)))
            raise ConfigError(f"{what} must name exactly the partitions that are read: see {names}")
        return given

    def _at_times(
        self, bound: Bound, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        found = self._log.offsets_for_times(times)
        late = [key for key, offset in found.items() if offset is None]
        if late and self._options.time_fails and bound is self._options.start:
            topic, partition = late[0]
            raise ConfigError(
                f"{topic}[{partition}] has no record of {times[late[0]]} ms or later: give an"
                " earlier time, or set startingOffsetsByTimestampStrategy=latest"
            )
        ends = self._log.end_offsets(late)
        return {key: ends[key] if offset is None else offset for key, offset in found.items()}

    def iov(self, group: str) -> Mapping[TopicPartition, Position]:
        """Returns a group's committed IOV; waits while an unfinished transaction may change it.

        Raises:
            OffsetsPendingError: the transaction lasts longer than ``coordinator.timeout.ms``.
        """
        timeout_s = self._options.coordinator_timeout_ms / 1000
        deadline_s = time.monotonic() + timeout_s
        tls = tls_of(self._options.read.kafka)
        queries = CoordinatorQueries(self._log, timeout_s=timeout_s, tls=tls)
        try:
            while True:
                try:
                    return queries.fetch_offsets(group).offsets
                except OffsetsPendingError:
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(_PENDING_PAUSE_S)
        finally:
            queries.close()

    def require_group(self) -> None:
        """Checks that option ``group`` names a group with committed offsets.

        Raises:
            ConfigError: it has none, in any topic.
            OffsetsPendingError: as `iov`.
        """
        group = self._options.group
        if group is not None and not self.iov(group):
            raise ConfigError(
                f"group {group!r} has no committed offsets: check its name (`logtx group list`"
                " shows the groups), or pass create=True if it is new"
            )

    def sequences(self) -> tuple[int, int, int] | None:
        """Returns (journal partition, above, up to), or None if no commit sequence is a bound."""
        start, end = self._options.start.sequence, self._options.end.sequence
        if start is None and end is None:
            return None
        count = self._log.partition_count(JOURNAL_TOPIC)
        partition = journal_partition_of(self._options.transaction_group, count)
        # Both commits that the options name are included, so the lower bound is one less.
        above = -1 if start is None else start - 1
        return partition, above, _SEQUENCE_MAX if end is None else end

    def ranges(
        self,
        start: Vector,
        ends: Mapping[TopicPartition, int],
        placed: Mapping[TopicPartition, RangePlaces] = MappingProxyType({}),
    ) -> list[Range]:
        """Returns the ranges that tasks read, cut into at least `min_partitions` parts.

        Args:
            start: where they begin.
            ends: where they end.
            placed: what homes place in them, as `placed` returns it.

        Raises:
            DataLossError: retention deleted records that are to be read.
        """
        spans = {
            key: end
            for key, end in sorted(ends.items())
            if end > start.get(key, Spot(0)).o2 or (key in placed and placed[key].dues)
        }
        self._check_retained(start, spans)
        spots = {key: start.get(key, Spot(0)) for key in spans}
        total = sum(e - spots[k].o2 for k, e in spans.items())
        total += sum(placed[k].records_below(spots[k].o2) for k in spans if k in placed)
        part = max(1, -(-total // max(self._options.min_partitions, 1)))
        if self._options.records_per_partition is not None:
            part = min(part, self._options.records_per_partition)
        found = self._large({k: (spots[k].o2, e) for k, e in spans.items()}, part)
        first = self._log.start_offsets([key for key in spans if key in placed])
        ranges: list[Range] = []
        for key, end in spans.items():
            larges = found.get(key, ())
            if key in placed:
                places = placed[key]
                ranges += placed_parts(key, spots[key], end, part, larges, places, first[key])
            else:
                ranges += divided(list(parts(key, spots[key], end, part, larges)))
        return ranges

    def _large(
        self, spans: Mapping[TopicPartition, tuple[int, int]], part: int
    ) -> dict[TopicPartition, list[Large]]:
        """Returns the large transactions that end in these ranges, and that tasks can share."""
        if not self._options.read.committed or part < PART_RECORDS:
            return {}
        searches = {
            key: Search(start, end, range(start + part, end, part))
            for key, (start, end) in spans.items()
            if end - start > part
        }
        if not searches:
            return {}
        run(self._log, self._options.read.kafka, searches)
        found = {key: search.found for key, search in searches.items() if search.found}
        # What retention deleted a part of is for one task to report, or to pass over.
        first = self._log.start_offsets(found)
        return {k: [t for t in these if t.first >= first[k]] for k, these in found.items()}

    def _check_retained(self, start: Vector, keys: Collection[TopicPartition]) -> None:
        if not self._options.read.fail_on_data_loss:
            return
        for key, first in self._log.start_offsets(keys).items():
            spot = start.get(key, Spot(0))
            if first > spot.o2:
                raise DataLossError(
                    f"{key[0]}[{key[1]}] begins at {first} now, and offset {spot.o2} was to be "
                    "read: retention deleted it; start anew, or set failOnDataLoss=false"
                )


def journal_settings(options: SourceOptions) -> dict[str, Any]:
    """Returns librdkafka's settings of the consumer that reads homes."""
    return {**CONSUMER, **options.read.kafka}


def _ids_of(iov: Mapping[TopicPartition, Position]) -> dict[str, str]:
    """Returns topic → the id that a group's IOV names; topics without one are left out."""
    return {topic: at.topic_id for (topic, _), at in iov.items() if at.topic_id}
