"""Works off the messages of a queue, with any number of others, in any order.

The names are those of `confluent_kafka.ShareConsumer`. Beyond it: acknowledgements in transactions,
cumulative ones, and releases with a delay.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, Self

from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..coordinator.client.attached import AttachedClient
from ..coordinator.client.queries import CoordinatorQueries
from ..coordinator.protocol.commands import Acknowledge, AckResults, Acquire, Attach, Reply
from ..coordinator.protocol.queues import AcknowledgeType, AckResult, Lease
from ..journal.acks import Acks
from ..journal.control import TopicPartition
from ..journal.dropped import close_later
from ..journal.errors import (
    ConcurrentUseError,
    GroupBoundError,
    LogtxError,
    NotHeldError,
    RequestTimedOutError,
    RetriableError,
    SessionClosedError,
    TopicRecreatedError,
    UnknownTopicError,
)
from ..journal.fork import keep_from_children, refuse
from ..journal.logs.interface import Log
from ..journal.logs.open import open_log
from ..journal.settings import merged
from ..journal.spans import MessageId
from .config import without_callbacks
from .core.holdings import Given, RecordKey
from .core.said import errors, shares
from .core.share_work import ShareWork, by_partition
from .leased import LeaseReader
from .lifetime import weakly
from .range_reader.reading import ReadConfig
from .share_config import ShareConfig

_LOG = logging.getLogger(__name__)

ATTACH_AGAIN_S: Final = 60.0
"""How often it attaches anew, so that partitions which a topic got meanwhile join the queue. A
longer pause delays their first messages, a shorter one asks the coordinator more."""
ATTACH_SOON_S: Final = 1.0
"""The same for a while after a topic was created anew, so that the new one joins the queue soon."""
ANEW_S: Final = 15.0
"""How long that while is: coordinators believe what they know of a topic for ten seconds."""
RENEW_SHARE: Final = 2
"""Divisor: a lease that is still being read after this part of its time gets its time anew."""
PAUSE_S: Final = 0.02
"""Pause of `poll` before it asks again after an error that passes."""
WAIT_S: Final = 60.0
"""Longest single wait for an answer; a poll without an end waits again."""
CLOSE_S: Final = 5.0
"""Longest wait of `close` until what is held is released. Past it others get it a second after the
stream's end."""


class Acknowledging(Protocol):
    """A transaction that messages can be acknowledged in."""

    def send_acks(self, group: str, acks: Sequence[Acks], /) -> None:
        """Makes acknowledgements part of the transaction."""


@dataclass(slots=True)
class _Parts:
    """What a consumer holds. Nothing in here refers to it, or it would live for ever."""

    group_id: str
    own_log: Log | None
    client: AttachedClient | None = None
    reader: LeaseReader | None = None

    def close_clients(self) -> None:
        """Ends the stream, and closes the reader."""
        client, self.client = self.client, None
        if client is not None:
            client.close()
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.close()

    def close(self) -> None:
        """Ends the stream, and closes everything."""
        self.close_clients()
        if self.own_log is not None:
            self.own_log.close()

    def close_later(self) -> None:
        """Closes everything soon, as the garbage collector may call it."""
        _LOG.warning(
            "share_consumer_dropped group=%s: call close(), or use it in a with block",
            self.group_id,
        )
        close_later("share_consumer", f"group={self.group_id}", self.close)


class ShareConsumer:
    """Takes messages of a subscription, which any number of others work on, too.

    One thread at a time may poll, commit or close. Messages may be acknowledged by any thread.
    Takes the settings of `ShareConfig` and librdkafka's own.

    Source: PIP-31, "Acknowledgements in Transactions".
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *,
        log: Log | None = None,
        **more: Any,
    ) -> None:
        """Checks the settings. `subscribe` begins.

        Args:
            config: settings by name.
            log: the log to read; None opens the one that ``bootstrap.servers`` names.
            more: further settings: ``ShareConsumer(**config)``.

        Raises:
            ConfigError: a setting is missing, unknown or out of range.
        """
        config = merged(config, more, None)
        self._config = ShareConfig.parse(config)
        self.group_id = self._config.group_id
        self._log: Log = log if log is not None else open_log(config)
        self._parts = _Parts(self.group_id, self._log if log is None else None)
        self._dropped = weakref.finalize(self, self._parts.close_later)
        self._dropped.atexit = False
        self._number = random.SystemRandom().getrandbits(63)
        self._topics: tuple[str, ...] = ()
        self._starts: Mapping[TopicPartition, int] = {}
        self._lock = threading.Lock()
        """Guards what follows, up to the client. Nothing that holds it waits."""
        self._work = ShareWork()
        self._failure: Exception | None = None
        """What the next poll raises: it happened behind the messages of the last one."""
        self._client: AttachedClient | None = None
        self._sent: deque[tuple[Acknowledge, Future[Reply]]] = deque()
        """Acknowledgements whose answers were not looked at."""
        self._acquiring: Future[Reply] | None = None
        self._reader: LeaseReader | None = None
        self._reading: Iterator[tuple[Message, MessageId]] | None = None
        self._renew_s = self._attach_s = 0.0
        """Monotonic times: when the lease may be renewed again, and when to attach anew."""
        self._anew_s = 0.0
        """Monotonic time up to which it attaches often, as a topic was created anew."""
        self._polling = threading.Lock()
        self._closed = False
        keep_from_children(self)

    # ---- subscription ---------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str]) -> None:
        """Joins the subscription for these topics; the first consumer makes it.

        Does not wait until the consumer is attached: `poll` does, and tells what was refused.

        Raises:
            GroupBoundError: the subscription belongs to another transaction group.
            UnknownTopicError: with ``auto.offset.reset=latest``, a topic does not exist.
            CoordinatorNotAvailableError: no coordinator answers in time.
            SessionClosedError: the consumer is closed, or subscribed already.
        """
        if self._closed or self._client is not None:
            raise SessionClosedError("the consumer is closed, or subscribed: make another one")
        config, timeout_s = self._config, self._config.coordinator_timeout_ms / 1000
        queries = CoordinatorQueries(self._log, timeout_s=timeout_s)
        try:
            bound = queries.bind_group(self.group_id, config.transaction_group).transaction_group
        finally:
            queries.close()
        if bound != config.transaction_group:
            raise GroupBoundError(
                f"subscription {self.group_id!r} belongs to transaction group {bound!r}, not to"
                f" {config.transaction_group!r}: set transaction.group to that one"
            )
        self._topics = tuple(topics)
        self._starts = self._first_starts()
        kafka = without_callbacks(config.librdkafka)
        read = ReadConfig(
            kafka=kafka,
            pending_memory_max_bytes=config.pending_memory_max_bytes,
            pending_dir=config.pending_dir,
            torn_skip=config.torn_skip,
            fail_on_data_loss=False,
            reader="logtx.ShareConsumer",
        )
        self._reader = self._parts.reader = LeaseReader(self._log, kafka, read, timeout_s=timeout_s)
        self._attach_s = time.monotonic() + ATTACH_AGAIN_S
        client = self._parts.client = AttachedClient(
            self._log,
            config.transaction_group,
            timeout_s=timeout_s,
            attach=partial(_attach_of, weakref.ref(self)),
            on_attached=weakly(self._attached),
            on_leases=weakly(self._leased),
        )
        try:
            client.start()
        except BaseException:
            self._parts.close_clients()
            self._reader = None
            raise
        self._client = client

    def _first_starts(self) -> Mapping[TopicPartition, int]:
        keys: list[TopicPartition] = []
        for topic in self._topics:
            try:
                keys += [(topic, p) for p in range(self._log.partition_count(topic))]
            except UnknownTopicError:
                if self._config.reset == "latest":
                    raise  # It would begin at 0 when it is there. With earliest, `poll` tells.
        if self._config.reset == "latest":
            return self._log.end_offsets(keys)
        return self._log.start_offsets(keys)

    def _attach(self) -> Attach:
        with self._lock:
            held = self._work.held()
        return Attach(
            group=self.group_id,
            consumer=self._number,
            kind=self._config.kind,
            topics=self._topics,
            starts=self._starts,
            held=held,
            ack_timeout_ms=self._config.ack_timeout_ms,
        )

    def _attached(self, leases: tuple[Lease, ...]) -> None:
        with self._lock:
            # They are of the topics that were there: one that is made anew begins at its start.
            self._starts = {}
            self._work.attached(leases, time.monotonic())

    def _leased(self, leases: tuple[Lease, ...]) -> None:
        with self._lock:
            self._work.leased(leases, time.monotonic())

    # ---- messages -------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0) -> list[Message]:
        """Returns messages to work on; none if there are none within `timeout` seconds. A negative
        one has no end.

        First sends what was acknowledged. In implicit mode that is all that the last poll returned,
        save what was acknowledged otherwise.

        Takes longer than `timeout` while it reads messages that it was given: brokers that don't
        answer fail it after a minute.

        Raises:
            UnknownTopicError, UnsupportedTopicError: a topic can be no queue. When that is mended,
                the next poll goes on; so too after other errors.
            NotSupportedError: a transaction has its records in a sidecar, or a coordinator or an
                operator's setting does not allow queues.
            TornTransactionError, IntegrityError, MalformedHeaderError, TopicRecreatedError: what it
                was given can't be read. What came before it was returned by the poll before. It is
                given out again after a second; that of a topic that is no more is rejected.
            CoordinatorNotAvailableError, RequestTimedOutError, BrokerError: the same, for it is not
                known where its transactions end.
            ConcurrentUseError: another thread polls.
            SessionClosedError: the consumer is not subscribed, or closed.
        """
        client = self._open_client()
        with self._alone():
            deadline_s = _deadline_s(timeout)
            self._accept_last()
            self._send(client)
            self._look_at_answers()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            found: list[Message] = []
            try:
                while True:
                    self._read(client, found)
                    left_s = deadline_s - time.monotonic()
                    if found or left_s <= 0:
                        break
                    self._send(client)
                    self._acquire(client, min(left_s, WAIT_S))
            except BaseException:
                with self._lock:
                    self._work.take_back(map(_key, found))
                raise
            if not self._config.is_explicit:
                with self._lock:
                    self._work.return_all(map(_key, found))
            return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._polling.acquire(blocking=False):
            raise ConcurrentUseError(
                "another thread polls, commits or closes, or a signal handler interrupted the call"
                " that does: one at a time may. To end it, set a flag, and close it where it polls"
            )
        try:
            yield
        finally:
            self._polling.release()

    def _open_client(self) -> AttachedClient:
        if self._client is None or self._closed:
            raise SessionClosedError("the consumer is not subscribed, or closed")
        return self._client

    def _accept_last(self) -> None:
        with self._lock:
            self._work.accept_returned()

    def _acquire(self, client: AttachedClient, wait_s: float) -> None:
        """Waits until it is given messages, or something passes, or the time is up."""
        if self._acquiring is None:
            now_s = time.monotonic()
            if now_s >= self._attach_s:
                # Not while a question for messages is under way: they would not be named.
                again_s = ATTACH_SOON_S if now_s < self._anew_s else ATTACH_AGAIN_S
                self._attach_s = now_s + again_s
                client.submit(self._attach())
            most = self._config.poll_records
            assert self._reader is not None, "it is subscribed"
            command = Acquire(
                group=self.group_id,
                consumer=self._number,
                max_offsets=most,
                at_ends=self._reader.may_be_placed(self._topics),
            )
            self._acquiring = client.submit(command)
        try:
            reply = self._acquiring.result(wait_s)
        except TimeoutError:
            return  # It is waited for by the next poll.
        self._acquiring = None
        if isinstance(reply, RetriableError):
            time.sleep(min(PAUSE_S, wait_s))
        elif isinstance(reply, LogtxError):
            raise reply

    def _read(self, client: AttachedClient, found: list[Message]) -> None:
        while not found:
            if self._reading is None and not self._begin():
                return
            assert self._reading is not None, "it has begun"
            try:
                self._take(client, found)
            except TopicRecreatedError as error:
                self._attach_s, self._anew_s = 0.0, time.monotonic() + ANEW_S
                self._end(self._work.gone)
                self._fail(error, found)
            except Exception as error:  # noqa: BLE001 - the application gets it
                self._end(self._work.unreadable)
                self._fail(error, found)
            except BaseException:
                self._end(self._work.give_up)
                raise

    def _fail(self, error: Exception, found: list[Message]) -> None:
        """Raises what happened behind messages by the next poll: these must be returned first."""
        if not found:
            raise error
        self._failure = error

    def _begin(self) -> bool:
        with self._lock:
            lease = self._work.begin(time.monotonic())
        if lease is None:
            return False
        assert self._reader is not None, "it is subscribed"
        self._reading, self._renew_s = self._reader.messages(lease), 0.0
        return True

    def _take(self, client: AttachedClient, found: list[Message]) -> None:
        assert self._reading is not None, "a lease is read"
        for message, name in self._reading:
            with self._lock:
                now_s = time.monotonic()
                is_given = self._work.give(_key(message), name, id(message), now_s)
            if not is_given:
                self._end(self._work.give_up)
                return
            found.append(message)
            if len(found) >= self._config.poll_records:
                self._renew(client)
                return
        assert self._reader is not None, "it is subscribed"
        self._end(partial(self._work.finish, self._reader.bound))

    def _end(self, end: Callable[[], None]) -> None:
        """Ends reading a lease; `end` says what becomes of the rest of it."""
        if self._reading is not None:
            self._reading.close()  # type: ignore[attr-defined]  # it is a generator
        self._reading = None
        with self._lock:
            end()

    def _renew(self, client: AttachedClient) -> None:
        """Begins the time of a long lease anew: it goes on."""
        now_s, timeout_s = time.monotonic(), self._config.ack_timeout_ms / 1000
        with self._lock:
            lease, until_s = self._work.holdings.lease, self._work.holdings.until_s
        soon_s = timeout_s / RENEW_SHARE
        if lease is None or until_s - now_s > soon_s or now_s < self._renew_s:
            return
        self._renew_s = now_s + soon_s
        acks = (Acks(lease.partition, (lease.span,)),)
        renewed = partial(weakly(self._renewed), lease, now_s + timeout_s)
        client.submit(self._command(AcknowledgeType.RENEW, 0, acks)).add_done_callback(renewed)

    def _renewed(self, lease: Lease, until_s: float, answer: Future[Reply]) -> None:
        reply = answer.result()
        if isinstance(reply, AckResults):
            with self._lock:
                self._work.renewed(lease, until_s, is_lost=AckResult.LOST in reply.results)

    def delivery_count(self, message: Message) -> int:
        """Returns how often a message was given out, this time included, as far as the coordinator
        knows: a new one begins to count anew.

        Raises:
            NotHeldError: the message is not this consumer's, or acknowledged.
        """
        with self._lock:
            given = self._work.holdings.look(self._key_of(message))
        if given is None:
            raise _not_held(message)
        return given.delivery_count

    # ---- acknowledgements -----------------------------------------------------------------------

    def acknowledge(
        self,
        message: Message,
        ack_type: AcknowledgeType | Enum = AcknowledgeType.ACCEPT,
        *,
        txn: Acknowledging | None = None,
        delay: float = 0.0,
    ) -> None:
        """Says what became of a message.

        Args:
            message: one that `poll` returned.
            ack_type: ACCEPT: it is worked off. REJECT: it can't be, by nobody. RELEASE: give it out
                again. RENEW: it is being worked on, so its time begins anew.
            txn: accept it in this transaction: it counts with the commit, and if that aborts, it
                is given out again. Without it, the next `poll`, `commit_sync` or `commit_async`
                sends what was said.
            delay: with RELEASE: how long nobody gets it, in seconds.

        Raises:
            NotHeldError: the message is not this consumer's, or acknowledged.
            ValueError: these arguments don't go together, or not with the implicit mode.
            AckConflictError, TransactionStateError, …: as `Transaction.send_acks`.
        """
        type_ = AcknowledgeType[ack_type.name]
        if (txn is not None and type_ is not AcknowledgeType.ACCEPT) or (
            delay and type_ is not AcknowledgeType.RELEASE
        ):
            raise ValueError("only ACCEPT goes with a transaction, and only RELEASE with a delay")
        if txn is not None or type_ is AcknowledgeType.RENEW:
            self._check_explicit()
        with self._lock:
            key = self._key_of(message)
            given = self._work.holdings.look(key)
            if txn is None:
                self._work.acknowledge(key, type_, round(delay * 1000))
        if given is None:
            raise _not_held(message)
        if txn is not None:
            self._send_acks(txn, {key: given})

    def acknowledge_cumulative(self, message: Message, *, txn: Acknowledging | None = None) -> None:
        """Accepts a message, and all of its partition that this consumer was given before it.

        Passes over what others have: it names what this consumer holds.

        Raises:
            NotHeldError: the message is not this consumer's, or acknowledged.
            AckConflictError, TransactionStateError, …: as `Transaction.send_acks`.
        """
        if txn is not None:
            self._check_explicit()
        with self._lock:
            key = self._key_of(message)
            found = self._work.holdings.up_to(key)
            if txn is None:
                self._work.accept_up_to(key)
        if not found:
            raise _not_held(message)
        if txn is not None:
            self._send_acks(txn, found)

    def _key_of(self, message: Message) -> RecordKey:
        """Returns the name of a message that the application has. Call it with the lock.

        Raises:
            NotHeldError: it is of a topic that was created anew since.
        """
        key = _key(message)
        if self._work.holdings.is_another(key, id(message)):
            raise _not_held(message)
        return key

    def _check_explicit(self) -> None:
        # The next poll would accept what the transaction did not get, or what is still worked on.
        if not self._config.is_explicit:
            raise ValueError(
                "set share.acknowledgement.mode=explicit: in implicit mode the next poll accepts"
                " what this one returned, whatever becomes of the transaction"
            )

    def _send_acks(self, txn: Acknowledging, given: Mapping[RecordKey, Given]) -> None:
        txn.send_acks(self.group_id, by_partition(given.values()))
        with self._lock:
            self._work.accepted_elsewhere(given)

    def release_all(self, delay: float = 0.0) -> None:
        """Gives back all that it was given and has not acknowledged.

        Args:
            delay: how long nobody gets it, in seconds.
        """
        with self._lock:
            self._work.release_all(round(delay * 1000))

    def commit_async(self) -> None:
        """Sends what was acknowledged plainly, and does not wait. Errors are told by `poll`.

        Raises:
            ConcurrentUseError: another thread polls.
            SessionClosedError: the consumer is not subscribed, or closed.
        """
        client = self._open_client()
        with self._alone():
            self._accept_last()
            self._send(client)

    def commit_sync(self, timeout: float = 30.0) -> dict[KafkaPartition, LogtxError | None]:
        """Sends what was acknowledged plainly, and waits for the answers.

        Returns:
            Partition → what went wrong there, or None: of what was sent and not answered before.
            NotHeldError: a message was acknowledged before, a transaction acknowledges it, or it
            was renewed too late. Others of the partition were taken.

        Raises:
            RequestTimedOutError: an answer did not come in time. It may have been taken: what is
                acknowledged twice changes nothing the second time.
            ConcurrentUseError: another thread polls.
            SessionClosedError: the consumer is not subscribed, or closed.
        """
        client = self._open_client()
        with self._alone():
            self._accept_last()
            self._send(client)
            return self._await_answers(timeout)

    def _await_answers(self, timeout: float) -> dict[KafkaPartition, LogtxError | None]:
        deadline_s = _deadline_s(timeout)
        results: dict[KafkaPartition, LogtxError | None] = {}
        while self._sent:
            command, future = self._sent[0]
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                reply = future.result(min(left_s, WAIT_S))
            except TimeoutError:
                if left_s > WAIT_S:
                    continue
                raise RequestTimedOutError(
                    f"acknowledgements had no answer within {timeout:g} s ({self._why()})"
                ) from None
            self._sent.popleft()
            error = reply if isinstance(reply, LogtxError) else None
            told = reply.results if isinstance(reply, AckResults) else ()
            refused = errors(command.type, command.acks, told)
            for each in command.acks:
                where = KafkaPartition(each.partition.topic, each.partition.partition)
                results[where] = results.get(where) or error or refused.get(each.partition.key)
        return results

    def _send(self, client: AttachedClient) -> None:
        with self._lock:  # An attachment in between would not name them.
            for (type_, delay_ms), acks in self._work.outgoing().items():
                for share in shares(acks):
                    command = self._command(type_, delay_ms, share)
                    self._sent.append((command, client.submit(command)))

    def _command(
        self, type_: AcknowledgeType, delay_ms: int, acks: tuple[Acks, ...]
    ) -> Acknowledge:
        return Acknowledge(
            group=self.group_id,
            consumer=self._number,
            type=type_,
            acks=acks,
            delay_ms=delay_ms,
        )

    def _look_at_answers(self) -> None:
        while self._sent and self._sent[0][1].done():
            _, future = self._sent.popleft()
            reply = future.result()
            if not isinstance(reply, AckResults):
                raise reply if isinstance(reply, LogtxError) else LogtxError(f"got {reply}")

    def _why(self) -> str:
        return self._client.why if self._client is not None else "it is not subscribed"

    # ---- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Sends what was acknowledged, releases what was not, and leaves. Waits for a bounded time.

        In implicit mode, what the last poll returned is released, too: nobody said that it is
        worked off.

        Raises:
            ConcurrentUseError: another thread polls: let that one close it. Nothing was done.
        """
        if self._closed:
            return
        with self._alone():
            try:
                if self._client is not None:
                    self._release_held(self._client)
            finally:
                self._closed = True
                self._dropped.detach()
                if self._reading is not None:
                    self._reading.close()  # type: ignore[attr-defined]  # it is a generator
                self._parts.close()

    def after_fork(self) -> None:
        """Refuses everything in a child of the process that made it."""
        refuse(self)
        self._closed = True
        self._dropped.detach()

    def _release_held(self, client: AttachedClient) -> None:
        with self._lock:
            self._work.let_go()
        self._send(client)
        # What it does not name when it attaches is free at once. Its request that waits must not
        # get any of that: without topics it gets nothing.
        self._topics = ()
        deadline_s = time.monotonic() + CLOSE_S
        for future in (*(future for _, future in self._sent), client.submit(self._attach())):
            try:
                future.result(max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                return  # The stream's end says the same, a second later.

    def __enter__(self) -> Self:
        """Begins a block that closes the consumer at its end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the consumer."""
        self.close()


def _attach_of(consumer: weakref.ref[ShareConsumer]) -> Attach:
    found = consumer()
    if found is None:
        raise SessionClosedError("the consumer was dropped")
    return found._attach()


def _deadline_s(timeout: float) -> float:
    return time.monotonic() + timeout if timeout >= 0 else float("inf")


def _key(message: Message) -> RecordKey:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "it was polled"
    assert partition is not None, "it was polled"
    assert offset is not None, "it was polled"
    return topic, partition, offset


def _not_held(message: Message) -> NotHeldError:
    where = f"{message.topic()}[{message.partition()}] at {message.offset()}"
    return NotHeldError(
        f"the message of {where} is not held here: it was acknowledged, or not given to this"
        " consumer"
    )
