"""The keeper: holds a Spark application's transactions open, in the driver's own Python.

Spark begins a transaction in one process, commits it in another, and keeps neither process alive
(see `docs/spark.md`). A transaction needs a producer whose connection lives as long as the job, so
the keeper has that producer. The requests of the other processes name the transaction that they
mean, so a repeated request is harmless and none can act on a later transaction.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import struct
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import (
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
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
    TransactionStateError,
    UnknownTransactionError,
    UnsupportedTopicError,
)
from ...journal.logs.interface import Log
from ...journal.logs.open import open_log
from ...journal.records.types import OffsetStep
from ...journal.state import State
from ...producer.core.summary import BranchSummary
from ...producer.producer import Producer
from ...producer.transaction import Transaction
from .identity import DIGEST_AT, VERSION_AT, Committed, Identity, file_logs
from .keeper_client import KeeperAddress, answer_of
from .options import SinkOptions
from .steps import query_group, steps_from_json

_LOG = logging.getLogger(__name__)
PRODUCERS_MAX: Final = 32
"""Producers kept open; beyond it the least recently used without an open transaction are closed. A
larger value holds more connections, a smaller one connects more often."""
ENDED_MAX: Final = 1_000
"""Ended transactions kept in memory to answer repeats. A later repeat of a commit fails with
UnknownTransactionError."""
ASKERS_MAX: Final = 64
"""Requests answered at one time, each in a thread. Commits can take long: with a smaller value they
delay each other."""
PAUSE_S: Final = 0.05
"""Between two looks at what the keeper waits for. A larger value delays answers, a smaller one asks
coordinators more often."""
HANDSHAKE_S: Final = 10
"""How long a connection may say nothing, in whole seconds. With a larger value strangers that say
nothing hold up to `ASKERS_MAX` places for longer; a smaller one refuses processes of a machine that
is too busy to go on."""
EXTENDS: Final = 3
"""How often a job's timeout is begun anew within it. With a smaller number one lost request could
abort the job; with a larger one coordinators are asked more often."""
EXTEND_LOOK_S: Final = 1.0
"""Between two looks which timeouts to begin anew; a shorter pause wakes the driver more often."""
_SHARED: Final = "&transaction"
"""Stands for the topic of a transaction that several writes join; no topic has such a name."""
READER_ENDS_S: Final = 10.0
"""How long a stopped query's reader process may take to end before another query of its group is
refused."""


@dataclass(slots=True)
class _Plan:
    """The steps of a group's input that was read, to be committed with the output made of it.

    Nothing ties a DataFrame that is written to the one that was read. So a group has one plan at a
    time: with two, a write could commit the offsets of input that is in no output.
    """

    steps: list[OffsetStep]
    reader: int | None
    """Process id of the streaming query's reader; None for a batch."""
    used: bool = False
    """Whether the steps are committed."""


@dataclass(slots=True)
class _Job:
    """One transaction, of a batch job or a micro-batch."""

    transaction: Transaction
    options: SinkOptions
    of_stream: bool
    stream: str | None
    """The stream, identified by its options; None if these don't identify it."""
    query_id: str | None
    producer: str
    """Key of the transaction's producer."""
    identity: Identity | None = None
    """What the write is known by; None until it is known, or if it has none."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    prepared: bool = False
    """Whether the transaction has its branches and offsets."""
    done: dict[str, Any] | None = None
    """The answer to the commit, once it is known."""
    is_done: bool = False
    """Whether it was committed before, as was known when it began."""
    is_shared: bool = False
    """Whether writes join it."""
    accepted: set[str] = field(default_factory=set)
    """Summaries of the branches of writes that joined it."""
    of_batch: tuple[str, int] | None = None
    """Query and micro-batch of the ``foreachBatch`` whose writes joined it."""
    extend_s: float = 0
    """Monotonic time in seconds at which its timeout is to begin anew."""


@dataclass(slots=True)
class _Numbers:
    """How many writes a call of a query's ``foreachBatch`` has committed, by topic."""

    batch_id: int
    run: str | None
    """The query's run; None if it is not known."""
    counts: Counter[str] = field(default_factory=Counter)


class _Cluster:
    """What all transactions on one Kafka cluster share."""

    def __init__(self, options: SinkOptions) -> None:
        self.log: Log = open_log(options.kafka)
        timeout_s = options.coordinator_timeout_ms / 1000
        self.queries = CoordinatorQueries(self.log, timeout_s=timeout_s)
        self.topics: set[str] = set()
        """Topics that were checked to take transactions."""

    def close(self) -> None:
        self.queries.close()
        self.log.close()


class Keeper:
    """Holds one driver's transactions, and listens at a port for requests of Spark's processes."""

    def __init__(self) -> None:
        """Prepares a keeper that does not listen yet, see `start`."""
        self.read_checkpoint: Callable[[str], str | None] = lambda _path: None
        """Reads a file of a checkpoint, wherever Spark keeps it; returns None if there is none."""
        self.checkpoint_of: Callable[[str | None, str | None], str | None] = lambda *_: None
        """Returns the checkpoint of a query without the option, by name or by id; None: unknown."""
        self._name: Final = f"spark-{secrets.token_hex(8)}"
        """Producer id of batch jobs without ``transactional.id``; unique to this keeper."""
        self._guard = threading.RLock()
        self._clusters: dict[str, _Cluster] = {}
        self._producers: OrderedDict[str, Producer] = OrderedDict()
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._plans: dict[str, _Plan] = {}
        self.run_of: Callable[[str], str | None] = lambda _query_id: None
        """Returns the id of a query's present run; None: unknown."""
        self._numbers: dict[str, _Numbers] = {}
        """Query → the writes of its ``foreachBatch``."""
        self._listener: Listener | None = None
        self._askers = threading.Semaphore(ASKERS_MAX)
        self._closed = False
        self._closing = threading.Event()
        self.address: KeeperAddress
        """The address to listen on; set by `start`."""
        self.application_runs: Callable[[], bool] = lambda: True
        """Returns whether Spark's application runs: if not, no job of it will be committed."""
        self.streams_to_the_end: Callable[[Mapping[str, str]], bool] = lambda _options: False
        """Returns whether a query with a source of these options has Trigger.AvailableNow."""

    def start(self) -> None:
        """Starts to listen, in a thread."""
        secret = secrets.token_bytes(32)
        # Without `authkey`: `accept` would wait there for a stranger that says nothing.
        self._listener = Listener(("127.0.0.1", 0), backlog=ASKERS_MAX)
        host, port = self._listener.address
        self.address = KeeperAddress(str(host), int(port), secret)
        threading.Thread(target=self._listen, name="logtx-keeper", daemon=True).start()
        threading.Thread(target=self._keep, name="logtx-keeper-extends", daemon=True).start()

    def close(self) -> None:
        """Aborts open transactions, and stops listening."""
        self._closed = True
        self._closing.set()
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

    # ---- jobs of hours --------------------------------------------------------------------------

    def _keep(self) -> None:
        """Begins the timeouts of running jobs anew, for as long as their application runs."""
        while not self._closing.wait(EXTEND_LOOK_S):
            try:
                self._extend(time.monotonic())
            except Exception:  # noqa: BLE001 - the next round tries again
                _LOG.exception("keeper_extend_failed")

    def _extend(self, now_s: float) -> None:
        with self._guard:
            jobs = [j for j in self._jobs.values() if j.transaction.is_open and j.extend_s <= now_s]
        if jobs and self.application_runs():
            for job in jobs:
                job.transaction.extend()
                job.extend_s = now_s + job.options.transaction_timeout_ms / 1000 / EXTENDS

    # ---- questions ------------------------------------------------------------------------------

    def _listen(self) -> None:
        assert self._listener is not None
        while not self._closed:
            try:
                connection = self._listener.accept()
            except OSError as error:
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
                _shake_hands(connection, self.address.secret)
                question = json.loads(connection.recv_bytes())
                answer_of(connection, self._result(question))
        except AuthenticationError as error:
            _LOG.warning("keeper_refused error=%s", error)
        except (OSError, EOFError, ValueError) as error:
            # The process that asked is gone. Another one asks again, or Spark gives up the job.
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
                case "accept":
                    return self.accept(**question)
                case "abort":
                    return self.abort(**question)
                case "abort_stream":
                    return self.abort_stream(**question)
                case "to_the_end":
                    return self.streams_to_the_end(question["source"])
                case _:
                    return LogtxError(f"the keeper does not know {what!r}: use one logtx version")
        except Exception as error:  # noqa: BLE001 - sent to the process that asked
            if not isinstance(error, LogtxError):
                _LOG.exception("keeper_failed question=%s", what)
            return error

    # ---- transactions ---------------------------------------------------------------------------

    def begin(self, options: str, stream: bool, shared: bool = False) -> dict[str, Any]:
        """Begins the transaction of a job or a micro-batch, or lets a write join one.

        Args:
            options: `SinkOptions` as JSON.
            stream: whether it is of a micro-batch.
            shared: whether several writes are to join it.

        Returns:
            ``token`` for branches, ``query_id`` of a stream if it is known, ``committed``: the last
            committed micro-batch of the query, ``is_done``: whether a job was committed before, by
            its ``txnAppId`` and ``txnVersion``.

        Raises:
            ConfigError: a stream has a ``txnAppId``, or joins; or a write joins that gives what is
                the transaction's own.
            UnknownTopicError, UnsupportedTopicError: the option ``topic`` names no topic, or a
                compacted one.
            ProducerFencedError: a newer driver took over.
            CoordinatorNotAvailableError, RequestTimedOutError: no coordinator answered in time.
        """
        parsed = SinkOptions.from_json(options)
        cluster = self._cluster(parsed)
        self._check_topic(cluster, parsed)
        if parsed.transaction is not None:
            return self._join(parsed, stream)
        query_id = self._query_id(parsed) if stream else None
        if stream and parsed.txn_app_id is not None:
            raise ConfigError(
                "a stream counts its micro-batches by itself: remove the option txnAppId, or write"
                " in foreachBatch"
            )
        producer_id = parsed.transactional_id or query_group(query_id) or self._name
        # Streams with otherwise equal options differ only in their checkpoints.
        is_named = parsed.checkpoint is not None or parsed.query_name is not None
        name = options if stream and is_named else None
        if name is not None:
            self._abort_former(name)
        config = parsed.producer(producer_id)
        transaction = self._begin(config)
        job = _Job(transaction, parsed, stream, name, query_id, _key(config), is_shared=shared)
        job.extend_s = time.monotonic() + parsed.transaction_timeout_ms / 1000 / EXTENDS
        # Only now: the session has begun, which aborted a former driver's open transactions.
        group = query_group(query_id)
        committed = self._committed(cluster, group).version if group else None
        is_done = False
        if parsed.txn_app_id is not None and parsed.txn_version is not None:
            job.identity = Identity.of_application(parsed.txn_app_id, parsed.txn_version)
            is_done = job.identity.is_done(self._committed(cluster, job.identity.group))
        job.is_done = is_done
        with self._guard:
            self._jobs[str(transaction.txid)] = job
            self._forget()
        return {
            "token": transaction.branch_token(),
            "query_id": query_id,
            "committed": committed,
            "is_done": is_done,
        }

    def _join(self, options: SinkOptions, stream: bool) -> dict[str, Any]:
        token = options.transaction or ""
        if stream:
            raise ConfigError(
                "a stream begins its own transactions: remove the option transaction, or write in"
                " foreachBatch"
            )
        if options.group is not None or options.txn_app_id is not None:
            raise ConfigError(
                "options group and txnAppId belong to the transaction: give them to"
                " logtx.spark.transaction"
            )
        job = self._job(token.rpartition(":")[2])
        mine, theirs = job.options.kafka, options.kafka
        if mine["bootstrap.servers"] != theirs["bootstrap.servers"]:
            raise ConfigError("a transaction is on one Kafka cluster: see the bootstrap.servers")
        if not job.is_shared or not job.transaction.is_open:
            raise ConfigError(f"transaction {job.transaction.txid} can't be joined: it has ended")
        return {"token": token, "query_id": None, "committed": None, "is_done": job.is_done}

    def accept(
        self,
        txid: str,
        summaries: list[str],
        query_id: str | None = None,
        batch_id: int | None = None,
    ) -> dict[str, Any]:
        """Makes the branches of a write count that joined a transaction. Repeats change nothing.

        Raises:
            UnknownTransactionError: this keeper did not begin it.
            TransactionStateError, TransactionAbortedError: it is not open any more.
        """
        job = self._job(txid)
        with job.lock:
            for summary in summaries:
                if summary not in job.accepted:
                    job.transaction.accept(BranchSummary.from_bytes(summary.encode()))
                    job.accepted.add(summary)
            if query_id is not None and batch_id is not None:
                job.of_batch = query_id, batch_id
        return {"state": str(State.OPEN)}

    def plan(
        self,
        group: str,
        steps: Iterable[OffsetStep],
        *,
        reader: int | None = None,
        replace: bool = False,
    ) -> None:
        """Remembers which input of a group is read; the next commit with this group commits it.

        Args:
            group: the consumer group.
            steps: the steps of the input.
            reader: process id of a streaming query's reader; None for a batch.
            replace: accept that an earlier batch, read and not written, is dropped.

        Raises:
            ConfigError: another batch that is not written yet, or another running query, has read
                for this group.
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
            # The reader process of a query that has just ended takes a moment to end, too.
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
        """Commits a transaction with these branches. A repeated request gets the same answer.

        Returns:
            ``state``: "committed", or "replayed" for a micro-batch that was committed before.

        Raises:
            OffsetsConflictError: another job has committed the group's input.
            ReplayDiffersError: the micro-batch was committed before, with other input.
            ProducerFencedError: a newer driver took over.
            UnknownOutcomeError: the decision could not be learnt.
            TransactionAbortedError: the transaction expired or was aborted.
            BatchGapError, ConfigError: the micro-batch or the option ``group`` does not fit.
        """
        job = self._job(txid)
        with job.lock:
            if job.of_batch is not None:
                query_id, batch_id = job.of_batch
            if job.done is None:
                self._prepare(job, summaries, query_id, batch_id)
                job.done = self._commit(job)
                self._use_plan(job)
                self._count(job, query_id, batch_id)
            return job.done

    def abort(self, txid: str) -> dict[str, Any]:
        """Aborts a transaction, unless it is committed: a decision is final.

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
                # The producer that took over aborted it, unless its commit was decided before.
                outcome = self._cluster(job.options).queries.outcome(job.transaction.txid)
                committed = outcome.state.commits
                return {"state": str(State.COMMITTED if committed else State.ABORTED)}
            return {"state": str(State.ABORTED)}

    def abort_stream(self, options: str) -> dict[str, Any]:
        """Aborts a stream's open transactions; nothing that is committed is undone.

        Without a checkpoint in its options, a stream's open transaction ends by its timeout.
        """
        self._abort_former(options)
        parsed = SinkOptions.from_json(options)
        with self._guard:
            of_these = [j for j in self._jobs.values() if j.of_stream and j.options == parsed]
        nameless = [j for j in of_these if j.stream is None and j.transaction.is_open]
        # Another query may have the same options, and its transaction must live on.
        if len(nameless) == 1:
            nameless[0].transaction.abort_async()
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
            # Raised once, which fails the query. If the query is started again here, its new
            # producer takes the name back, as intended.
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
        try:
            for summary in summaries:
                job.transaction.accept(BranchSummary.from_bytes(summary.encode()))
        except TransactionStateError:
            job.transaction.commit()  # raises what became of it, and why
            raise
        job.identity = job.identity or self._identity(job, query_id, batch_id)
        if job.identity is not None:
            committed = self._committed(self._cluster(job.options), job.identity.group)
            if job.identity.is_done(committed):
                job.done = self._replayed(job)
                return
            job.transaction.send_offsets(job.identity.group, job.identity.steps(committed))
        if job.options.group is not None:
            self._send_plan(job, job.options.group)
        job.prepared = True

    def _identity(self, job: _Job, query_id: str | None, batch_id: int | None) -> Identity | None:
        """Returns what a job is known by whose options don't say it; None if nothing is known."""
        app_id = job.options.txn_app_id
        if query_id is None or batch_id is None:
            if app_id is not None:
                raise ConfigError(
                    "option txnAppId needs a txnVersion: the number of this write, which a rerun of"
                    " the job has again"
                )
            return None
        if job.of_stream:
            return Identity.of_micro_batch(
                query_id, batch_id, self._offsets(job, query_id, batch_id)
            )
        if app_id is not None:
            return Identity.of_application(app_id, batch_id)
        topic = _SHARED if job.is_shared else job.options.topic or ""
        number = self._numbers_of(query_id, batch_id).counts[topic]
        return Identity.of_write(query_id, batch_id, topic, number)

    def _numbers_of(self, query_id: str, batch_id: int) -> _Numbers:
        run = self.run_of(query_id)
        with self._guard:
            numbers = self._numbers.setdefault(query_id, _Numbers(batch_id, run))
            # Called anew: for the next micro-batch, or after a restart in this process. If that is
            # not known, counting goes on: begun again by mistake, it would take a further write of
            # the same call for one that is committed.
            is_restarted = None not in (run, numbers.run) and run != numbers.run
            if numbers.batch_id != batch_id or is_restarted:
                numbers = self._numbers[query_id] = _Numbers(batch_id, run)
            numbers.run = run or numbers.run
            return numbers

    def _count(self, job: _Job, query_id: str | None, batch_id: int | None) -> None:
        """Notes that a write of a ``foreachBatch`` is committed."""
        if query_id is not None and batch_id is not None and not job.of_stream:
            topic = _SHARED if job.is_shared else job.options.topic or ""
            self._numbers_of(query_id, batch_id).counts[topic] += 1

    def _offsets(self, job: _Job, query_id: str, batch_id: int) -> str | None:
        """Returns what Spark wrote of a micro-batch's input, or None if it can't be read."""
        root = job.options.checkpoint or self.checkpoint_of(job.options.query_name, query_id)
        if root is None:
            return None
        root = root.rstrip("/")
        offsets = self.read_checkpoint(f"{root}/offsets/{batch_id}")
        if offsets is None:
            return None
        for names in file_logs(offsets):
            texts = (self.read_checkpoint(f"{root}/{name}") for name in names)
            offsets += next((f"\n{text}" for text in texts if text is not None), "")
        return offsets

    def _send_plan(self, job: _Job, group: str) -> None:
        with self._guard:
            plan = self._plans.get(group)
        if plan is None or (plan.reader is not None) != job.of_stream:
            raise ConfigError(
                f"option group={group} commits the offsets of input that was read for that group, "
                "and none was: read it with logtx.spark.resume, or remove the option"
            )
        # A micro-batch without input has no plan of its own, so it must not use the former one. A
        # batch that is written twice sends the same steps twice: the compare-and-set refuses that.
        if plan.steps and not (plan.used and job.of_stream):
            job.transaction.send_offsets(group, plan.steps)

    def _use_plan(self, job: _Job) -> None:
        with self._guard:
            plan = self._plans.get(job.options.group or "")
            if plan is not None:
                plan.used = True

    def _commit(self, job: _Job) -> dict[str, Any]:
        if job.done is not None:
            return job.done
        try:
            outcome = job.transaction.commit()
        except OffsetsConflictError:
            # The abort comes first: while the transaction is open, it holds the offsets that are
            # asked for next.
            job.transaction.abort()
            if job.identity is not None:
                committed = self._committed(self._cluster(job.options), job.identity.group)
                if job.identity.is_done(committed):
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
        """Aborts the job's transaction, since another one has committed this micro-batch."""
        try:
            job.transaction.abort()
        except TransactionAbortedError:
            _LOG.info("replay_aborted_before txid=%s", job.transaction.txid)
        if job.identity is not None:
            _LOG.warning(
                "written_before group=%s version=%d: nothing was written again",
                *(job.identity.group, job.identity.version),
            )
        return {"state": "replayed"}

    def _await_markers(self, job: _Job) -> None:
        """Waits for the transaction's markers, so that a read after the job finds its records."""
        deadline_s = time.monotonic() + job.options.finish_timeout_ms / 1000
        queries = self._cluster(job.options).queries
        try:
            while time.monotonic() < deadline_s:
                if queries.outcome(job.transaction.txid).state is not State.COMMITTING:
                    return
                time.sleep(PAUSE_S / 5)
        except LogtxError as error:
            # The commit is durable. Told as failed, the job would be done a second time.
            _LOG.warning("markers_not_awaited txid=%s error=%s", job.transaction.txid, error)

    # ---- what is known --------------------------------------------------------------------------

    def _job(self, txid: str) -> _Job:
        with self._guard:
            job = self._jobs.get(txid)
        if job is None:
            raise UnknownTransactionError(f"the driver's keeper did not begin transaction {txid}")
        return job

    def _forget(self) -> None:
        """Drops ended transactions and idle producers beyond the limits. Needs the guard."""
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
        """Returns a stream's id, which Spark writes to the checkpoint before the first batch, or
        None."""
        root = options.checkpoint or self.checkpoint_of(options.query_name, None)
        if root is None:
            return None
        text = self.read_checkpoint(root.rstrip("/") + "/metadata")
        if text is None:
            return None
        found: Mapping[str, Any] = json.loads(text)
        return str(found["id"])

    @staticmethod
    def _committed(cluster: _Cluster, group: str) -> Committed:
        deadline_s = time.monotonic() + 30
        while True:
            try:
                iov = cluster.queries.fetch_offsets(group, [VERSION_AT, DIGEST_AT]).offsets
            except OffsetsPendingError:
                # A former driver's transaction holds it, and is being aborted.
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(PAUSE_S)
            else:
                return Committed.of(iov)


def _shake_hands(connection: Connection, secret: bytes) -> None:
    """Makes both sides show that they know the secret, as `Listener` does; bounded in time.

    Raises:
        AuthenticationError: the other side does not know it.
        OSError: it said nothing for `HANDSHAKE_S`.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        wait = struct.pack("ll", HANDSHAKE_S, 0)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
    deliver_challenge(connection, secret)
    answer_challenge(connection, secret)


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
