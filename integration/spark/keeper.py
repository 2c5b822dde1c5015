"""The keeper: holds a Spark application's transactions open, in the driver's own Python.

Spark asks for a transaction in one process, commits it in another and keeps neither, see
`docs/spark.md`. A transaction needs a producer whose connection lives as long as the job, so it
is here. What the others ask for (`begin`, `plan`, `commit`, `abort`) names the transaction, so a
repeat is harmless and nothing can act on a later one.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from multiprocessing.context import AuthenticationError
from typing import Any, Final

from ...coordinator.client.queries import CoordinatorQueries
from ...journal.errors import (
    ConfigError,
    DoubleStartError,
    LogtxError,
    OffsetsConflictError,
    OffsetsPendingError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionCommittedError,
    UnknownTransactionError,
    UnsupportedTopicError,
)
from ...journal.logs.interface import Log
from ...journal.logs.open import open_log
from ...journal.position import Place, Position
from ...journal.records.types import OffsetStep
from ...journal.state import State
from ...producer.core.summary import BranchSummary
from ...producer.producer import Producer
from ...producer.transaction import Transaction
from ..inspect.rows import BATCH_TOPIC
from .errors import BatchGapError
from .keeper_client import KeeperAddress, answer_of
from .options import SinkOptions
from .steps import query_group, steps_from_json

_LOG = logging.getLogger(__name__)
PRODUCERS_MAX: Final = 32
"""Producers kept; beyond it those without a transaction are closed, the oldest first."""
ENDED_MAX: Final = 1_000
"""Ended transactions whose end is remembered, for repeats."""
ASKERS_MAX: Final = 64
"""Questions answered at one time."""
PAUSE_S: Final = 0.05
READER_ENDS_S: Final = 10.0
"""How long the reader of a query that was stopped may take to end."""


@dataclass(slots=True)
class _Plan:
    """What of a group's input was read, to be committed with what is made of it.

    Nothing ties a DataFrame that is written to the one that was read. So a group has one plan at a
    time: were it another's, offsets would be committed of input that is in no output.
    """

    steps: list[OffsetStep]
    reader: int | None
    """Process of the streaming query that reads; None of a batch."""
    used: bool = False
    """It is committed."""


@dataclass(slots=True)
class _Job:
    """One transaction."""

    transaction: Transaction
    options: SinkOptions
    of_stream: bool
    stream: str | None
    """Of which stream, by its options; None where these don't say."""
    query_id: str | None
    producer: str
    """Key of its producer."""
    committed: int | None = None
    """Last committed micro-batch of the query when it began."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    prepared: bool = False
    """Branches and offsets are in it."""
    done: dict[str, Any] | None = None
    """The answer to its commit."""


class _Cluster:
    """What is shared by all transactions on one Kafka cluster."""

    def __init__(self, options: SinkOptions) -> None:
        self.log: Log = open_log(options.kafka)
        timeout_s = options.coordinator_timeout_ms / 1000
        self.queries = CoordinatorQueries(self.log, timeout_s=timeout_s)
        self.topics: set[str] = set()
        """Those that were looked at."""

    def close(self) -> None:
        self.queries.close()
        self.log.close()


class Keeper:
    """Transactions of one driver, and the port at which its helper processes ask for them."""

    def __init__(self) -> None:
        """Nothing listens before `start`."""
        self.read_checkpoint: Callable[[str], str | None] = lambda _path: None
        """Reads a file of a checkpoint, wherever Spark keeps it; None if it is not there."""
        self._name: Final = f"spark-{secrets.token_hex(8)}"
        """Producer id of batch jobs that name none: nobody else has it."""
        self._guard = threading.RLock()
        self._clusters: dict[str, _Cluster] = {}
        self._producers: OrderedDict[str, Producer] = OrderedDict()
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._plans: dict[str, _Plan] = {}
        self._listener: Listener | None = None
        self._askers = threading.Semaphore(ASKERS_MAX)
        self._closed = False
        self.address: KeeperAddress
        """Where it listens, once started."""
        self.streams_to_the_end: Callable[[], bool] = lambda: False
        """Whether a query of this application is to read all that is there (AvailableNow)."""

    def start(self) -> None:
        """Listen, on a thread."""
        secret = secrets.token_bytes(32)
        self._listener = Listener(("127.0.0.1", 0), backlog=ASKERS_MAX, authkey=secret)
        host, port = self._listener.address
        self.address = KeeperAddress(str(host), int(port), secret)
        threading.Thread(target=self._listen, name="logtx-keeper", daemon=True).start()

    def close(self) -> None:
        """Abort what is open, and stop."""
        self._closed = True
        if self._listener is not None:
            # A thread in accept() does not notice that its socket is closed.
            with suppress(OSError):
                socket.create_connection((self.address.host, self.address.port), 1).close()
            self._listener.close()
        with self._guard:
            producers, self._producers = list(self._producers.values()), OrderedDict()
            clusters, self._clusters = list(self._clusters.values()), {}
        for producer in producers:
            producer.close(PAUSE_S * 100)
        for cluster in clusters:
            cluster.close()

    # ---- questions ------------------------------------------------------------------------------

    def _listen(self) -> None:
        assert self._listener is not None
        while not self._closed:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError) as error:
                if not self._closed:
                    _LOG.warning("keeper_refused error=%s", type(error).__name__)
                    time.sleep(PAUSE_S)
                continue
            if self._closed:
                connection.close()
                return
            self._askers.acquire()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        try:
            with connection:
                question = json.loads(connection.recv_bytes())
                answer_of(connection, self._result(question))
        except (OSError, EOFError, ValueError) as error:
            # Whoever asked has gone; it asks again, or its job is given up.
            _LOG.warning("keeper_asker_gone error=%s", error)
        finally:
            self._askers.release()

    def _result(self, question: dict[str, Any]) -> Any:
        what = question.pop("do")
        try:
            match what:
                case "begin":
                    return self.begin(**question)
                case "plan":
                    steps = steps_from_json(question["steps"])
                    return self.plan(question["group"], steps, reader=question["reader"])
                case "commit":
                    return self.commit(**question)
                case "abort":
                    return self.abort(**question)
                case "abort_stream":
                    return self.abort_stream(**question)
                case "to_the_end":
                    return self.streams_to_the_end()
                case _:
                    return LogtxError(f"the keeper does not know {what!r}: use one logtx version")
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            if not isinstance(error, LogtxError):
                _LOG.exception("keeper_failed question=%s", what)
            return error

    # ---- transactions ---------------------------------------------------------------------------

    def begin(self, options: str, stream: bool) -> dict[str, Any]:
        """Begin the transaction of a job or a micro-batch.

        Returns:
            ``token`` for branches, ``query_id`` of a stream if it is known, ``committed``: the
            last micro-batch of the query that is committed.

        Raises:
            UnknownTopicError, UnsupportedTopicError: of the option ``topic``.
            ProducerFencedError: a newer driver took over.
            CoordinatorNotAvailableError, RequestTimedOutError: no coordinator in time.
        """
        parsed = SinkOptions.from_json(options)
        cluster = self._cluster(parsed)
        self._check_topic(cluster, parsed)
        query_id = self._query_id(parsed) if stream else None
        producer_id = parsed.transactional_id or query_group(query_id) or self._name
        # Only a checkpoint tells streams apart whose other options are the same.
        name = options if stream and parsed.checkpoint is not None else None
        if name is not None:
            self._abort_former(name)
        config = parsed.producer(producer_id)
        transaction = self._begin(config)
        job = _Job(transaction, parsed, stream, name, query_id, _key(config))
        # After the session began, which aborted what a former driver had open.
        job.committed = self._committed_batch(cluster, query_id) if query_id else None
        with self._guard:
            self._jobs[str(transaction.txid)] = job
            self._forget()
        return {
            "token": transaction.branch_token(),
            "query_id": query_id,
            "committed": job.committed,
        }

    def plan(
        self,
        group: str,
        steps: Iterable[OffsetStep],
        *,
        reader: int | None = None,
        replace: bool = False,
    ) -> None:
        """Remember what of a group's input is read: the next commit with the group says so.

        Args:
            group: the consumer group.
            steps: from where to where.
            reader: process id of a streaming query's reader; None for a batch.
            replace: a batch that was read before and not written will not be used any more.

        Raises:
            ConfigError: another batch, or another query that runs, has read for this group.
        """
        planned = list(steps)
        deadline_s = time.monotonic() + READER_ENDS_S
        while True:
            with self._guard:
                before = self._plans.get(group)
                if before is None or before.reader in (None, reader) or not _runs(before.reader):
                    if before is not None and before.reader is None and reader is None:
                        _check_written(group, before, planned, replace=replace)
                    self._plans[group] = _Plan(planned, reader)
                    return
            # The reader of a query that has just ended takes a moment to end too.
            if time.monotonic() > deadline_s:
                raise ConfigError(
                    f"group {group} is read by another query of this application: give each query "
                    "a group of its own, or read all topics of a group by one resume"
                )
            time.sleep(PAUSE_S)

    def commit(
        self,
        txid: str,
        summaries: list[str],
        query_id: str | None = None,
        batch_id: int | None = None,
    ) -> dict[str, Any]:
        """Commit a transaction with these branches; a repeat gets the same answer.

        Returns:
            ``state``: "committed", or "replayed" for a micro-batch that was committed before.

        Raises:
            OffsetsConflictError: the group's input was committed by somebody else.
            ProducerFencedError: a newer driver took over.
            UnknownOutcomeError: the decision could not be learnt.
            TransactionAbortedError: its time was up, or it was aborted.
        """
        job = self._job(txid)
        with job.lock:
            if job.done is None:
                self._prepare(job, summaries, query_id, batch_id)
                job.done = self._commit(job, query_id, batch_id)
                self._use_plan(job)
            return job.done

    def abort(self, txid: str) -> dict[str, Any]:
        """Abort a transaction, unless it is committed: a decision is final.

        Returns:
            ``state``: "aborted" or "committed".
        """
        try:
            job = self._job(txid)
        except UnknownTransactionError:
            return {"state": str(State.ABORTED)}
        with job.lock:
            try:
                job.transaction.abort()
            except TransactionCommittedError:
                _LOG.info("abort_after_commit txid=%s", txid)
                return {"state": str(State.COMMITTED)}
            except (ProducerFencedError, DoubleStartError):
                # Whoever took over aborted it, unless its commit was decided before.
                outcome = self._cluster(job.options).queries.outcome(job.transaction.txid)
                committed = outcome.state.commits
                return {"state": str(State.COMMITTED if committed else State.ABORTED)}
            return {"state": str(State.ABORTED)}

    def abort_stream(self, options: str) -> dict[str, Any]:
        """Abort what a stream has open; nothing that is committed is undone.

        What a stream without a checkpoint has open ends by its timeout.
        """
        self._abort_former(options)
        return {"state": str(State.ABORTED)}

    def _begin(self, config: dict[str, Any]) -> Transaction:
        key = _key(config)
        with self._guard:
            producer = self._producers.get(key)
            if producer is None:
                producer = Producer(config)
                self._producers[key] = producer
            self._producers.move_to_end(key)
        try:
            transaction = producer.begin_transaction()
            _ = transaction.txid
        except (ProducerFencedError, DoubleStartError):
            # Said once, which fails the query; whoever starts it anew here means to take over.
            with self._guard:
                self._producers.pop(key, None)
            producer.close(0)
            raise
        return transaction

    def _abort_former(self, stream: str) -> None:
        with self._guard:
            former = [j for j in self._jobs.values() if j.stream == stream and j.done is None]
        for job in former:
            with job.lock:
                if job.transaction.is_open:
                    job.transaction.abort_async()

    def _prepare(
        self, job: _Job, summaries: list[str], query_id: str | None, batch_id: int | None
    ) -> None:
        if job.prepared:
            return
        if job.query_id is not None and query_id not in (None, job.query_id):
            raise ConfigError(
                f"the checkpoint names query {job.query_id}, the tasks ran for {query_id}: give "
                "each query a checkpointLocation of its own"
            )
        for summary in summaries:
            job.transaction.accept(BranchSummary.from_bytes(summary.encode()))
        if query_id is not None and batch_id is not None:
            if job.query_id is None:  # its checkpoint is not known to us
                job.committed = self._committed_batch(self._cluster(job.options), query_id)
            if job.committed is not None and job.committed >= batch_id:
                job.done = self._replayed(job)
                return
            self._send_identity(job, query_id, batch_id)
        if job.options.group is not None:
            self._send_plan(job, job.options.group)
        job.prepared = True

    @staticmethod
    def _send_identity(job: _Job, query_id: str, batch_id: int) -> None:
        if job.committed is not None and job.committed < batch_id - 1:
            raise BatchGapError(
                f"micro-batch {batch_id} of query {query_id} follows {job.committed}, the last one "
                "that was committed to this cluster: those between were written elsewhere; start "
                "the query with a new checkpointLocation"
            )
        place = None if job.committed is None else Place(job.committed)
        step = OffsetStep(BATCH_TOPIC, 0, place, Position.at(batch_id))
        job.transaction.send_offsets(query_group(query_id) or "", [step])

    def _send_plan(self, job: _Job, group: str) -> None:
        with self._guard:
            plan = self._plans.get(group)
        if plan is None or (plan.reader is not None) != job.of_stream:
            raise ConfigError(
                f"option group={group} commits the offsets of input that was read for that group, "
                "and none was: read it with logtx.spark.resume, or remove the option"
            )
        # A stream's micro-batch without input has no plan of its own. A batch that is written
        # twice says the same twice, which the compare-and-set refuses.
        if plan.steps and not (plan.used and job.of_stream):
            job.transaction.send_offsets(group, plan.steps)

    def _use_plan(self, job: _Job) -> None:
        with self._guard:
            plan = self._plans.get(job.options.group or "")
            if plan is not None:
                plan.used = True

    def _commit(self, job: _Job, query_id: str | None, batch_id: int | None) -> dict[str, Any]:
        if job.done is not None:
            return job.done
        try:
            outcome = job.transaction.commit()
        except OffsetsConflictError:
            # First of all: while it is open, it holds the very offsets that are asked for.
            job.transaction.abort()
            cluster = self._cluster(job.options)
            committed = self._committed_batch(cluster, query_id) if query_id else None
            if batch_id is not None and committed is not None and committed >= batch_id:
                return {"state": "replayed"}
            raise
        if not job.of_stream:
            self._await_markers(job)
        return {
            "state": str(State.COMMITTED),
            "txid": str(outcome.txid),
            "commit_sequence": outcome.commit_sequence,
        }

    @staticmethod
    def _replayed(job: _Job) -> dict[str, Any]:
        """This micro-batch is committed by another transaction: ours is not wanted."""
        try:
            job.transaction.abort()
        except TransactionAbortedError:
            _LOG.info("replay_aborted_before txid=%s", job.transaction.txid)
        return {"state": "replayed"}

    def _await_markers(self, job: _Job) -> None:
        """Whoever reads after a job ended is to find what it wrote."""
        deadline_s = time.monotonic() + job.options.finish_timeout_ms / 1000
        queries = self._cluster(job.options).queries
        while time.monotonic() < deadline_s:
            if queries.outcome(job.transaction.txid).state is not State.COMMITTING:
                return
            time.sleep(PAUSE_S / 5)

    # ---- what is known --------------------------------------------------------------------------

    def _job(self, txid: str) -> _Job:
        with self._guard:
            job = self._jobs.get(txid)
        if job is None:
            raise UnknownTransactionError(f"the driver's keeper did not begin transaction {txid}")
        return job

    def _forget(self) -> None:
        """Under the guard: keep no more than is allowed."""
        ended = [txid for txid, job in self._jobs.items() if job.transaction.is_decided]
        for txid in ended[: max(len(ended) - ENDED_MAX, 0)]:
            del self._jobs[txid]
        spare = len(self._producers) - PRODUCERS_MAX
        if spare > 0:
            busy = {j.producer for j in self._jobs.values() if not j.transaction.is_decided}
            for key in [k for k in self._producers if k not in busy][:spare]:
                self._producers.pop(key).close(0)

    def _cluster(self, options: SinkOptions) -> _Cluster:
        key = json.dumps([sorted(options.kafka.items()), options.coordinator_timeout_ms])
        with self._guard:
            found = self._clusters.get(key)
            if found is None:
                found = self._clusters[key] = _Cluster(options)
            return found

    @staticmethod
    def _check_topic(cluster: _Cluster, options: SinkOptions) -> None:
        topic = options.topic
        if topic is None or topic in cluster.topics:
            return
        if cluster.log.topic_info(topic).compacted:
            raise UnsupportedTopicError(
                f"topic {topic} is compacted, which takes no markers: write to one with "
                "cleanup.policy=delete"
            )
        cluster.topics.add(topic)

    def _query_id(self, options: SinkOptions) -> str | None:
        """A stream's id, as Spark keeps it in the checkpoint from before its first batch."""
        if options.checkpoint is None:
            return None
        text = self.read_checkpoint(options.checkpoint.rstrip("/") + "/metadata")
        if text is None:
            return None
        found: Mapping[str, Any] = json.loads(text)
        return str(found["id"])

    @staticmethod
    def _committed_batch(cluster: _Cluster, query_id: str | None) -> int | None:
        group = query_group(query_id)
        assert group is not None
        partition = (BATCH_TOPIC, 0)
        deadline_s = time.monotonic() + 30
        while True:
            try:
                position = cluster.queries.fetch_offsets(group, [partition]).offsets.get(partition)
            except OffsetsPendingError:
                # A former driver's, which is being aborted.
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(PAUSE_S)
            else:
                return None if position is None else position.o2


def _check_written(group: str, before: _Plan, planned: list[OffsetStep], *, replace: bool) -> None:
    if before.used or replace or before.steps == planned:
        return
    raise ConfigError(
        f"group {group} was resumed before, and what was read then is not written: write it "
        "first, or pass replace=True if that DataFrame will not be used any more"
    )


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)
