"""What operators do with consumer groups whose offsets transactions commit: show, set back, end.

Setting back is a transaction of the group: a step from what is committed to what is wanted in each
partition. The compare-and-set refuses it if somebody commits offsets of the group meanwhile, and
later refuses whoever goes on from where the group was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Final, NamedTuple

from ..coordinator.client.admin import AdminQueries
from ..coordinator.client.tls import tls_of
from ..journal.control import TopicPartition
from ..journal.errors import (
    ConfigError,
    LogtxError,
    NotAllowedError,
    OffsetsConflictError,
    OffsetsPendingError,
    UnknownTopicError,
)
from ..journal.logs.interface import Log
from ..journal.position import Position
from ..journal.reader import JOURNAL_TOPIC, journal_partition_of
from ..journal.records.types import OffsetStep
from ..journal.state import State
from ..journal.txid import TxId
from ..producer.producer import Producer
from .inspect.committed_offsets import committed_iovs, producer_of
from .inspect.history import GroupHistory, Iov, Standing
from .inspect.journal import Journal
from .inspect.rows import BATCH_TOPIC, offsets_of_json

EARLIEST: Final = -2
LATEST: Final = -1
"""Offsets that stand for a partition's start and end, as in Spark's ``startingOffsets``."""
TIMEOUT_S: Final = 30.0
"""How long coordinators are asked, by default."""
_LEAVE_OUT: Final = "name the topics to set back, to leave it out"
_PAUSE_S: Final = 0.1
"""Between two attempts to forget a group whose last commit is not finished."""


class GroupInUseError(LogtxError):
    """A consumer group's offsets can't be set or deleted: somebody is at work on them."""


class Moved(NamedTuple):
    """What setting a group back does in one partition."""

    topic: str
    partition: int
    from_offset: int | None
    """o2 that is committed; None if there is none."""
    to_offset: int
    """o2 to commit; the same if the partition is there already."""
    records: int
    """o3: number of records consumed of the transaction whose marker is at `to_offset`."""
    end: int | None
    """The partition's end; None for an identity's version (`micro-batch`)."""
    lag: int | None
    """Offsets from `to_offset` to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A group that is to be set back, or was."""

    group: str
    transaction_group: str
    moved: tuple[Moved, ...]
    """All partitions that were asked for."""
    steps: int
    """Number of partitions whose offset changes."""
    last_commit: str | None
    """The transaction that committed the group's offsets before; None if there is none."""
    last_producer: str | None
    """Its producer id: `spark-<query id>` for a streaming query. None if it is not known."""
    txid: str | None = None
    """The transaction that set it back; None if nothing was changed."""
    commit_sequence: int | None = None


def require_group(log: Log, group: str) -> None:
    """Checks that a group has committed offsets.

    Raises:
        ConfigError: it has none; the message names groups that are spelt alike.
    """
    known = committed_iovs(log)
    if group not in known:
        raise _no_group(group, known)


def starting_offsets(log: Log, group: str, topics: Collection[str] | None = None) -> str:
    """Returns a group's IOV in the form of Spark's ``startingOffsets``, for all partitions.

    A partition without a committed offset has -2, its start; so has one of a topic that was created
    again since. A consumer may have committed in the
    midst of a transaction (o3 above 0); whoever begins at these offsets reads that one again.

    Args:
        log: the log.
        group: the consumer group.
        topics: only these; None: all topics that it has offsets in.

    Raises:
        ConfigError: the group has no committed offsets in topics of the log.
        UnknownTopicError: there is no such topic.
    """
    known = committed_iovs(log)
    if group not in known:
        raise _no_group(group, known)
    iov = known[group][1].offsets
    named = {topic for topic, _ in iov} - {BATCH_TOPIC} if topics is None else set(topics)
    if not named:
        raise ConfigError(f"group {group!r} counts writes, and has no offsets of topics")
    found: dict[str, dict[str, int]] = {}
    ids = log.topic_ids(sorted(named))
    for topic in sorted(named):
        for number in range(log.partition_count(topic)):
            at = iov.get((topic, number))
            is_known = at is not None and at.topic_id in ("", ids.get(topic, ""))
            found.setdefault(topic, {})[str(number)] = at.o2 if at and is_known else EARLIEST
    return json.dumps(found)


class Groups:
    """Sets back, deletes and unbinds groups. Asks coordinators; call `close` when done."""

    def __init__(self, log: Log, kafka: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> None:
        """Uses a log, which the caller closes.

        Args:
            log: the log.
            kafka: librdkafka's settings of that log, with ``bootstrap.servers``, and those of TLS
                to coordinators.
            timeout_s: how long each request to a coordinator is retried, in seconds.
        """
        self._log, self._kafka, self._timeout_s = log, kafka, timeout_s
        self._admin = AdminQueries(log, timeout_s=timeout_s, tls=tls_of(kafka))

    def close(self) -> None:
        """Closes connections to coordinators."""
        self._admin.close()

    # ---- setting back ---------------------------------------------------------------------------

    def reset(
        self,
        group: str,
        *,
        to_offsets: str | None = None,
        to_commit: str | int | None = None,
        as_of_ms: int | None = None,
        topics: Collection[str] = (),
        fail_on_data_loss: bool = True,
        create_in: str | None = None,
        execute: bool = False,
    ) -> Reset:
        """Sets a group's committed offsets, or with ``execute=False`` finds out what that would do.

        Give one of `to_offsets`, `to_commit` and `as_of_ms`. A partition that had no offset then
        gets that of its start.

        Args:
            group: the consumer group. Nobody may be at work for it.
            to_offsets: earliest, latest, or offsets as Spark's ``startingOffsets``:
                ``{"topic": {"0": 23, "1": -2}}``; partitions that it does not name stay.
            to_commit: TxId or commit sequence: where the group stood right after this commit.
            as_of_ms: milliseconds since 1970: where the group stood then.
            topics: only partitions of these topics; none: all.
            fail_on_data_loss: whether offsets that the topic does not have (any more) are an error.
                If not, such a partition begins at its start.
            create_in: the transaction group of a new group; None: the group must have offsets.
            execute: whether to do it.

        Raises:
            ConfigError: the group, the commit or an offset does not exist.
            GroupInUseError: the group has members, or a transaction holds its offsets.
            UnknownTopicError: a topic does not exist.
        """
        if sum(given is not None for given in (to_offsets, to_commit, as_of_ms)) != 1:
            raise ConfigError("give one of: offsets, a commit, a time")
        bound = self._bound(group, create_in)
        self.refuse_in_use(group, bound)
        committed = self._admin.fetch_offsets(group)
        if not committed.offsets and create_in is None:
            raise _no_group(group, committed_iovs(self._log))
        iov: Iov = committed.offsets
        wanted: Mapping[TopicPartition, Position | None]
        if to_offsets is not None:
            wanted = self._at_offsets(to_offsets, topics or {topic for topic, _ in iov})
        else:
            former = self._standing(group, bound, to_commit, as_of_ms).offsets
            wanted = {key: former.get(key) for key in {**iov, **former}}
        wanted = {key: at for key, at in wanted.items() if not topics or key[0] in topics}
        if not wanted:
            raise ConfigError(f"group {group!r} has no partition in {', '.join(sorted(topics))}")
        spans = self._spans(wanted)
        ids = self._log.topic_ids(sorted({topic for topic, _ in spans}))
        targets = dict(_targets(group, wanted, spans, ids, fail_on_data_loss=fail_on_data_loss))
        moves = sum(_moves(iov.get(key), to) for key, to in targets.items())
        last = committed.last_commit
        reset = Reset(
            group=group,
            transaction_group=bound,
            moved=tuple(_moved(iov, targets, spans)),
            steps=moves,
            last_commit=None if last is None else str(last),
            last_producer=None if last is None else producer_of(self._log, last),
        )
        if not execute or not moves:
            return reset
        # With the steps of partitions that stand right: nobody may move these meanwhile.
        steps = [
            OffsetStep(*key, None if (at := iov.get(key)) is None else at.place, to)
            for key, to in sorted(targets.items())
        ]
        return self._commit(reset, steps)

    def _bound(self, group: str, create_in: str | None) -> str:
        bound = self._admin.bind_group(group, None).transaction_group
        if bound is not None:
            if create_in not in (None, bound):
                raise ConfigError(f"group {group!r} commits in transaction group {bound!r}")
            return bound
        if create_in is None:
            raise _no_group(group, committed_iovs(self._log))
        return create_in

    def _standing(
        self, group: str, bound: str, to_commit: str | int | None, as_of_ms: int | None
    ) -> Standing:
        partition = journal_partition_of(bound, self._log.partition_count(JOURNAL_TOPIC))
        with closing(Journal(self._log, [partition])) as journal:
            journal.read_on()
            history = GroupHistory(group, journal.parts[0])
        if to_commit is not None:
            return history.after(_commit(to_commit))
        assert as_of_ms is not None
        if as_of_ms > time.time() * 1000:
            raise ConfigError("the time to go back to is in the future")
        standing = history.at(as_of_ms)
        if not standing.offsets:
            raise ConfigError(
                f"group {group!r} had no committed offsets at that time: to begin at the start, set"
                " it to the offsets earliest"
            )
        return standing

    def _at_offsets(self, text: str, topics: Collection[str]) -> dict[TopicPartition, Position]:
        named: Mapping[TopicPartition, int]
        if text in ("earliest", "latest"):
            if BATCH_TOPIC in topics or not topics:
                raise ConfigError(f"name the topics whose offsets are to be {text}")
            at = EARLIEST if text == "earliest" else LATEST
            named = {(topic, n): at for topic in topics for n in range(self._count(topic))}
        else:
            named = parse_offsets(text)
            for topic, number in named:
                if topic != BATCH_TOPIC and number >= (count := self._count(topic)):
                    raise ConfigError(
                        f"{topic} has no partition {number}: name those from 0 to {count - 1}"
                    )
        if BATCH_TOPIC in {topic for topic, _ in named}:
            raise ConfigError(
                f"{BATCH_TOPIC} counts the writes of a query or application, and is no topic: set"
                " such a group back to a commit or a time, or delete it"
            )
        starts = self._log.start_offsets([k for k, o in named.items() if o == EARLIEST])
        ends = self._log.end_offsets([k for k, o in named.items() if o == LATEST])
        return {key: Position.at({**starts, **ends}.get(key, o)) for key, o in named.items()}

    def _count(self, topic: str) -> int:
        try:
            return self._log.partition_count(topic)
        except UnknownTopicError as error:
            raise UnknownTopicError(f"{error}; {_LEAVE_OUT}") from error

    def _spans(self, keys: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        real = [key for key in keys if key[0] != BATCH_TOPIC]
        try:
            starts, ends = self._log.start_offsets(real), self._log.end_offsets(real)
        except UnknownTopicError as error:
            raise UnknownTopicError(f"{error}; {_LEAVE_OUT}") from error
        return {key: (starts[key], ends[key]) for key in real}

    def _commit(self, reset: Reset, steps: list[OffsetStep]) -> Reset:
        config = {
            **self._kafka,
            # Two that set one group back at a time fence each other, and the history shows it.
            "transactional.id": f"logtx-reset-{reset.group}",
            "transaction.group": reset.transaction_group,
            "coordinator.timeout.ms": round(self._timeout_s * 1000),
        }
        producer = Producer(config)
        try:
            transaction = producer.begin_transaction()
            transaction.send_offsets(reset.group, steps)
            outcome = transaction.commit()
        except OffsetsConflictError as error:
            raise GroupInUseError(
                f"group {reset.group!r} was not set back, for its offsets moved meanwhile: stop who"
                " commits them (`logtx group history` names the producer), and repeat it"
            ) from error
        finally:
            producer.close(self._timeout_s)
        return replace(reset, txid=str(transaction.txid), commit_sequence=outcome.commit_sequence)

    # ---- ending ---------------------------------------------------------------------------------

    def delete(self, group: str, topics: Collection[str] = ()) -> None:
        """Deletes a group's offsets, claims and binding, or with `topics` its offsets in these.

        Raises:
            ConfigError: there is no such group.
            GroupInUseError: the group has members, or a transaction holds its offsets.
        """
        self.refuse_in_use(group, self._bound(group, None))
        if topics:
            known = {topic for topic, _ in self._admin.fetch_offsets(group).offsets}
            if missing := sorted(set(topics) - known):
                raise ConfigError(f"group {group!r} has no offsets in {', '.join(missing)}")
            self._end(group, partial(self._admin.forget_offsets, group, topics))
        else:
            self._end(group, partial(self._admin.forget_group, group))

    def _end(self, group: str, forget: Callable[[], None]) -> None:
        """Forgets what is known of a group, once its decided transactions are finished."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                forget()
            except NotAllowedError as error:
                if time.monotonic() > deadline_s:
                    raise GroupInUseError(f"group {group!r} is in use: {error}") from error
                time.sleep(_PAUSE_S)
            else:
                return

    def unbind(self, group: str) -> str:
        """Ends the binding of a group without offsets. Returns the transaction group it was bound
        to.

        Raises:
            ConfigError: there is no such group, or it has offsets there.
            GroupInUseError: the group has members, or a transaction holds its offsets.
        """
        bound = self._bound(group, None)
        self.refuse_in_use(group, bound)
        if self._admin.fetch_offsets(group).offsets:
            raise ConfigError(
                f"group {group!r} has offsets in transaction group {bound!r}, which would be left"
                " there: note them (`logtx group show --offsets`), delete the group, and set them"
                " with `logtx group reset --create-in`"
            )
        self._end(group, partial(self._admin.forget_group, group))
        return bound

    def refuse_in_use(self, group: str, transaction_group: str) -> None:
        """Checks that nobody is at work for a group.

        A streaming query between two micro-batches is not seen: it has no transaction open.

        Raises:
            GroupInUseError: the group has members, or a transaction holds its offsets.
        """
        if members := self._log.group_members(group):
            raise GroupInUseError(
                f"group {group!r} is in use by {', '.join(members)}: stop these consumers first"
            )
        holders = list(self._holders(group, transaction_group))
        if holders:
            raise GroupInUseError(
                f"group {group!r} is in use: its offsets are held by {', '.join(holders)}; wait"
                " until they end, or stop their producers (`logtx txn abort` ends what is left)"
            )
        try:
            self._admin.fetch_offsets(group)
        except OffsetsPendingError as error:
            raise GroupInUseError(f"group {group!r} is in use: {error}") from error

    def _holders(self, group: str, transaction_group: str) -> Iterator[str]:
        count = self._log.partition_count(JOURNAL_TOPIC)
        partition = journal_partition_of(transaction_group, count)
        # A decided transaction holds no offsets any more.
        for info in self._admin.list_transactions(partition, states=(State.OPEN,)):
            if group in info.groups:
                yield f"transaction {info.txid} of producer {info.producer_id!r}"


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Parses offsets in the form of Spark's ``startingOffsets``.

    Raises:
        ConfigError: the text does not have this form, or an offset is below -2.
    """
    try:
        found = offsets_of_json(text)
    except (ValueError, AttributeError, TypeError) as error:
        raise _no_offsets(text) from error
    if not found or min(found.values()) < EARLIEST or any(number < 0 for _, number in found):
        raise _no_offsets(text)
    return found


def _no_offsets(text: str) -> ConfigError:
    return ConfigError(
        f'offsets must be earliest, latest or like {{"topic": {{"0": 23, "1": -2}}}}, not {text!r}'
    )


def _commit(text: str | int) -> TxId | int:
    if isinstance(text, int) or text.isdecimal():
        return int(text)
    try:
        return TxId.parse(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is neither a TxId, as in 3-9f3ac1d2e4b7-17042, nor a commit sequence"
        ) from error


def _targets(
    group: str,
    wanted: Mapping[TopicPartition, Position | None],
    spans: Mapping[TopicPartition, tuple[int, int]],
    ids: Mapping[str, str],
    *,
    fail_on_data_loss: bool,
) -> Iterator[tuple[TopicPartition, Position]]:
    """Yields each partition's new position, which is within the partition and names its topic."""
    for key, at in sorted(wanted.items()):
        if key not in spans:
            if at is None:
                raise ConfigError(f"group {group!r} had counted nothing then: delete it instead")
            yield key, at
            continue
        start, end = spans[key]
        topic_id = ids.get(key[0], "")
        begin = Position(o1=start, o2=start, topic_id=topic_id)
        if at is None:
            yield key, begin
            continue
        is_others = at.topic_id not in ("", topic_id)
        if not is_others and start <= at.o2 <= end:
            yield key, replace(at, o1=max(at.o1, start), topic_id=topic_id)
        elif fail_on_data_loss:
            why = (
                "was created again since"
                if is_others
                else f"begins at {start} now: retention deleted what was there"
                if at.o2 < start
                else f"ends at {end}: the offset is wrong, or the topic was created again"
            )
            raise ConfigError(
                f"group {group!r} was to be set to offset {at.o2} of {key[0]}[{key[1]}], which"
                f" {why}; without failing on data loss it would begin at {start}"
            )
        else:
            yield key, begin


def _moves(at: Position | None, to: Position) -> bool:
    """Whether a group is not there yet: at another place, or at one of another topic."""
    return at is None or at.place != to.place or at.topic_id not in ("", to.topic_id)


def _moved(
    iov: Iov,
    targets: Mapping[TopicPartition, Position],
    spans: Mapping[TopicPartition, tuple[int, int]],
) -> Iterator[Moved]:
    for key, to in targets.items():
        before, end = iov.get(key), spans[key][1] if key in spans else None
        yield Moved(
            *key,
            None if before is None else before.o2,
            to.o2,
            to.o3,
            end,
            None if end is None else end - to.o2,
        )


def _no_group(group: str, known: Collection[str]) -> ConfigError:
    alike = get_close_matches(group, known, n=3)
    hint = f"did you mean {' or '.join(map(repr, alike))}?" if alike else "see `logtx group list`"
    return ConfigError(f"group {group!r} has no committed offsets: {hint}")
