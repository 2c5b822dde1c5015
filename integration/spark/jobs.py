"""The transactions of an application: of batch jobs, micro-batches, and several writes."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ...journal.errors import (
    ConfigError,
    DoubleStartError,
    LogtxError,
    OffsetsConflictError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionStateError,
    UnknownTransactionError,
)
from ...journal.sidecar import main_of
from ...journal.state import State
from ...producer.core.summary import BranchSummary
from ...producer.producer import Producer
from ...producer.transaction import Transaction
from .application import Application
from .cluster import PAUSE_S, Cluster
from .commits import Commit, Commits
from .errors import ReplayDiffersError
from .identity import Identity, file_logs
from .options import SinkOptions
from .plans import Plans
from .steps import query_group

_LOG = logging.getLogger(__name__)
PRODUCERS_MAX: Final = 32
"""Producers kept open; beyond it the least recently used without an open transaction are closed. A
larger value holds more connections, a smaller one connects more often."""
ENDED_MAX: Final = 1_000
"""Ended transactions kept in memory to answer repeats. A later repeat of a commit fails with
UnknownTransactionError."""
EXTENDS: Final = 3
"""How often a job's timeout is begun anew within it. With a smaller number one lost request could
abort the job; with a larger one coordinators are asked more often."""
_SHARED: Final = "&transaction"
"""Stands for the topic of a transaction that several writes join; no topic has such a name."""


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
    accepted: set[int] = field(default_factory=set)
    """Hashes of the summaries of branches of writes that joined it."""
    records: Counter[str] = field(default_factory=Counter)
    """Number of records of the accepted branches, by topic."""
    of_batch: tuple[str, int] | None = None
    """Query and micro-batch of the ``foreachBatch`` whose writes joined it."""
    begun_s: float = field(default_factory=time.monotonic)
    """Monotonic time in seconds at which it began."""
    extend_s: float = 0
    """Monotonic time in seconds at which its timeout is to begin anew."""

    @property
    def counted_as(self) -> str:
        """The topic by which it is counted in a ``foreachBatch``; "" if a column names topics."""
        return _SHARED if self.is_shared else self.options.topic or ""

    def accept(self, summary: str) -> None:
        """Makes a branch count. Raises as `Transaction.accept`."""
        branch = BranchSummary.from_bytes(summary.encode())
        self.transaction.accept(branch)
        for (topic, _), written in branch.writes.items():
            self.records[main_of(topic)] += written.count


@dataclass(slots=True)
class _Numbers:
    """How many writes a call of a query's ``foreachBatch`` has committed, by topic."""

    batch_id: int
    run: str | None
    """The query's run; None if it is not known."""
    counts: Counter[str] = field(default_factory=Counter)
    writing: dict[str, _Job] = field(default_factory=dict)
    """Topic → the write that is being committed."""
    committed_s: dict[str, float] = field(default_factory=dict)
    """Topic → monotonic time of the latest commit."""


class Jobs:
    """Holds the producers of an application, and their transactions."""

    def __init__(self, plans: Plans, application: Callable[[], Application]) -> None:
        """Begins without any.

        Args:
            plans: the input that was read for consumer groups.
            application: returns whom to ask about Spark.
        """
        self._plans = plans
        self._application = application
        self._name: Final = f"spark-{secrets.token_hex(8)}"
        """What the producer ids of batch jobs without ``transactional.id`` begin with; unique to
        this keeper."""
        self._guard = threading.RLock()
        self._clusters: dict[str, Cluster] = {}
        self._producers: OrderedDict[str, Producer] = OrderedDict()
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._commits = Commits()
        self._numbers: dict[str, _Numbers] = {}
        """Query → the writes of its ``foreachBatch``."""

    def close(self) -> None:
        """Aborts open transactions, and closes their producers."""
        with self._guard:
            producers, self._producers = list(self._producers.values()), OrderedDict()
            clusters, self._clusters = list(self._clusters.values()), {}
        for producer in producers:
            producer.close(PAUSE_S * 100)
        for cluster in clusters:
            cluster.close()

    # ---- what is asked --------------------------------------------------------------------------

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
        cluster.check_topic(parsed)
        if parsed.transaction is not None:
            return self._join(parsed, stream)
        query_id = self._query_id(parsed) if stream else None
        if stream and parsed.txn_app_id is not None:
            raise ConfigError(
                "a stream counts its micro-batches by itself: remove the option txnAppId, or write"
                " in foreachBatch"
            )
        named = parsed.transactional_id or query_group(query_id)
        # Streams with otherwise equal options differ only in their checkpoints.
        is_named = parsed.checkpoint is not None or parsed.query_name is not None
        name = options if stream and is_named else None
        if name is not None:
            self._abort_former(name)
        config = parsed.producer(named or self._name)
        if named is None:
            # Producers of one name and two settings would fence each other, write by write.
            config["transactional.id"] += f"-{zlib.crc32(_key(config).encode()):08x}"
        transaction = self._begin(config)
        job = _Job(transaction, parsed, stream, name, query_id, _key(config), is_shared=shared)
        job.extend_s = time.monotonic() + parsed.transaction_timeout_ms / 1000 / EXTENDS
        # Only now: the session has begun, which aborted a former driver's open transactions.
        group = query_group(query_id)
        committed = cluster.committed(group).version if group else None
        is_done = False
        if parsed.txn_app_id is not None and parsed.txn_version is not None:
            job.identity = Identity.of_application(parsed.txn_app_id, parsed.txn_version)
            is_done = job.identity.is_done(cluster.committed(job.identity.group))
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
        if (options.group, options.txn_app_id, options.commit_name) != (None, None, None):
            raise ConfigError(
                "options group, txnAppId and commitName belong to the transaction: give them to"
                " logtx.spark.transaction"
            )
        defaults = {f.name: f.default for f in fields(SinkOptions)}
        for name in ("transaction_group", "transactional_id", "transaction_timeout_ms"):
            if getattr(options, name) != defaults[name]:
                raise ConfigError(
                    f"option {name.replace('_', '.')} belongs to the transaction: give it to"
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

        What one commit could not name goes to the coordinator at once, in parts.

        Raises:
            RequestTooLargeError: tasks and partitions are more than coordinator or topic take.
            UnknownTransactionError: this keeper did not begin it.
            TransactionStateError, TransactionAbortedError: it is not open any more.
        """
        job = self._job(txid)
        with job.lock:
            for summary in summaries:
                if hash(summary) not in job.accepted:
                    job.accept(summary)
                    job.accepted.add(hash(summary))
            if query_id is not None and batch_id is not None:
                job.of_batch = query_id, batch_id
        return {"state": str(State.OPEN)}

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
            RequestTooLargeError: tasks and partitions are more than coordinator or topic take.
            UnknownOutcomeError: the decision could not be learnt.
            TransactionAbortedError: the transaction expired or was aborted.
            BatchGapError, ConfigError: the micro-batch or the option ``group`` does not fit.
        """
        job = self._job(txid)
        with job.lock:
            if job.of_batch is not None:
                query_id, batch_id = job.of_batch
            if job.done is None:
                self._plans.fail(job.options.group)  # unless it succeeds
                self._prepare(job, summaries, query_id, batch_id)
                job.done = self._commit(job)
                self._plans.use(job.options.group)
                self._count(job, query_id, batch_id)
                commit = Commit.of(job.done, job.records, query_id, batch_id)
                with self._guard:
                    self._commits.note(job.options.commit_name, commit)
            return job.done

    def last_commit(self, name: str | None = None, *, query_id: str | None = None) -> Commit | None:
        """Returns what was committed last: by writes of this name, or for this streaming query."""
        with self._guard:
            commits = self._commits
            return commits.named(name) if query_id is None else commits.of_query(query_id)

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
            if job.done is None:
                self._plans.fail(job.options.group)
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

    def extend(self, now_s: float) -> None:
        """Begins the timeouts of open transactions anew where it is time, while Spark runs.

        Args:
            now_s: monotonic time in seconds.
        """
        with self._guard:
            jobs = [j for j in self._jobs.values() if j.transaction.is_open and j.extend_s <= now_s]
        if jobs and self._application().runs():
            for job in jobs:
                job.transaction.extend()
                job.extend_s = now_s + job.options.transaction_timeout_ms / 1000 / EXTENDS

    # ---- inside ---------------------------------------------------------------------------------

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
                job.accept(summary)
        except TransactionStateError:
            job.transaction.commit()  # raises what became of it, and why
            raise
        job.identity = job.identity or self._identity(job, query_id, batch_id)
        if job.identity is not None:
            cluster = self._cluster(job.options)
            committed = cluster.committed(job.identity.group)
            try:
                is_done = job.identity.is_done(committed)
            except ReplayDiffersError:
                # A newer driver of this query may have gone on: then no checkpoint was restored.
                if cluster.queries.outcome(job.transaction.txid).state.aborts:
                    job.transaction.commit()  # raises by whom it was aborted, and why
                raise
            if is_done:
                job.done = self._replayed(job)
                return
            job.transaction.send_offsets(job.identity.group, job.identity.steps(committed))
        if job.options.group is not None:
            in_foreach = not job.of_stream and batch_id is not None
            of_stream = None if in_foreach else job.of_stream
            self._plans.send(job.transaction, job.options.group, of_stream=of_stream)
        job.prepared = True

    def _identity(self, job: _Job, query_id: str | None, batch_id: int | None) -> Identity | None:
        """Returns what a job is known by whose options don't say it; None if nothing is known."""
        app_id = job.options.txn_app_id
        if query_id is None or batch_id is None:
            if app_id is not None:
                raise ConfigError(
                    "option txnAppId needs a txnVersion: the number of this write, which a rerun of"
                    " the job has again; or, in foreachBatch, a pyspark.InheritableThread"
                )
            return None
        offsets = self._offsets(job, query_id, batch_id)
        if app_id is not None and not job.of_stream:
            return Identity.of_batch(app_id, batch_id, offsets)
        if job.of_stream:
            return Identity.of_micro_batch(query_id, batch_id, offsets)
        number = self._number(job, self._numbers_of(query_id, batch_id))
        return Identity.of_write(query_id, batch_id, job.counted_as, number, offsets)

    def _number(self, job: _Job, numbers: _Numbers) -> int:
        """Returns how many writes to a topic came before in a micro-batch.

        Raises:
            ConfigError: another one is under way. Which of them is the first differs from run to
                run, so one would be taken for the other when they are repeated.
        """
        topic = job.counted_as
        with self._guard:
            other = numbers.writing.get(topic, job)
            is_busy = other is not job and other.done is None and other.transaction.is_open
            if is_busy or job.begun_s < numbers.committed_s.get(topic, job.begun_s):
                raise ConfigError(
                    f"writes of one foreachBatch to {topic or 'topics that a column names'} are"
                    " under way at the same time: do one after the other, in the same order each"
                    " time, or give each a txnAppId of its own"
                )
            numbers.writing[topic] = job
            return numbers.counts[topic]

    def _numbers_of(self, query_id: str, batch_id: int) -> _Numbers:
        run = self._application().run_of(query_id)
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
            numbers = self._numbers_of(query_id, batch_id)
            with self._guard:
                numbers.counts[job.counted_as] += 1
                numbers.committed_s[job.counted_as] = time.monotonic()

    def _offsets(self, job: _Job, query_id: str, batch_id: int) -> str | None:
        """Returns what Spark wrote of a micro-batch's input, or None if it can't be read."""
        spark = self._application()
        root = job.options.checkpoint or spark.checkpoint_of(job.options.query_name, query_id)
        if root is None:
            return None
        root = root.rstrip("/")
        offsets = spark.read_checkpoint(f"{root}/offsets/{batch_id}")
        for names in file_logs(offsets or ""):
            texts = (spark.read_checkpoint(f"{root}/{name}") for name in names)
            text = next((text for text in texts if text is not None), None)
            # Half of it would be taken for other input when the micro-batch is repeated.
            offsets = None if text is None or offsets is None else f"{offsets}\n{text}"
        if offsets is None:
            _LOG.warning(
                "input_not_known query=%s micro_batch=%d: its checkpoint could not be read; a"
                " restored checkpoint would not be noticed at this micro-batch",
                *(query_id, batch_id),
            )
        return offsets

    def _commit(self, job: _Job) -> dict[str, Any]:
        if job.done is not None:
            return job.done
        try:
            outcome = job.transaction.commit()
        except OffsetsConflictError as error:
            # The abort comes first: while the transaction is open, it holds the offsets that are
            # asked for next.
            job.transaction.abort()
            if job.identity is not None:
                committed = self._cluster(job.options).committed(job.identity.group)
                if job.identity.is_done(committed):
                    return {"state": "replayed"}
            if job.options.group is None:
                raise
            group = job.options.group
            iov = self._cluster(job.options).queries.fetch_offsets(group).offsets
            raise OffsetsConflictError(self._plans.conflict(group, iov)) from error
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
        if job.options.finish_timeout_ms == 0:
            return
        try:
            job.transaction.commit(job.options.finish_timeout_ms / 1000, finished=True)
        except LogtxError as error:
            # The commit is durable. Told as failed, the job would be done a second time.
            _LOG.warning("markers_not_awaited txid=%s error=%s", job.transaction.txid, error)

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

    def _cluster(self, options: SinkOptions) -> Cluster:
        key = json.dumps([sorted(options.kafka.items()), options.coordinator_timeout_ms])
        with self._guard:
            found = self._clusters.get(key)
            if found is None:
                found = self._clusters[key] = Cluster(options)
            return found

    def _query_id(self, options: SinkOptions) -> str | None:
        """Returns a stream's id, which Spark writes to the checkpoint before the first batch, or
        None."""
        root = options.checkpoint or self._application().checkpoint_of(options.query_name, None)
        if root is None:
            return None
        text = self._application().read_checkpoint(root.rstrip("/") + "/metadata")
        if text is None:
            return None
        found: Mapping[str, Any] = json.loads(text)
        return str(found["id"])


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)
