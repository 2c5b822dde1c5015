"""Works off the messages of a queue, with any number of others, in any order.

The names are those of `confluent_kafka.ShareConsumer`. Beyond it: acknowledgements in transactions,
cumulative ones, and releases with a delay.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, cast

from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..coordinator.client.attached import AttachedClient
from ..coordinator.client.queries import CoordinatorQueries
from ..coordinator.client.tls import opened_tls
from ..coordinator.protocol.commands import AckResults, Acquire, Attach, Attached, Reply
from ..coordinator.protocol.queues import AckResult, Lease
from ..journal.acks import Acks
from ..journal.control import TopicPartition
from ..journal.dropped import close_later
from ..journal.errors import (
    ClosedError,
    ConcurrentUseError,
    ConfigError,
    GroupBoundError,
    IntegrityError,
    LogtxError,
    MalformedHeaderError,
    NotAuthorizedError,
    NotSubscribedError,
    RetriableError,
    SessionClosedError,
    SubscriptionResetError,
    TopicRecreatedError,
    TornTransactionError,
    UnknownTopicError,
)
from ..journal.fork import keep_from_children, refuse
from ..journal.logs import lending
from ..journal.logs.interface import Log
from ..journal.settings import merged
from .acknowledger import Acknowledger, key_of
from .config import without_callbacks
from .core.pace import Pace
from .core.runs import Run
from .dead_letters import Beginning
from .leased import LeaseReader, check_settings
from .lifetime import weakly
from .messages import Messages
from .outbox import WAIT_S, AckCallback
from .range_reader.reading import ReadConfig
from .share_config import ShareConfig

_LOG = logging.getLogger(__name__)

ATTACH_AGAIN_S: Final = 60.0
"""How often it attaches anew, so that partitions which a topic got meanwhile join the queue. A
longer pause delays their first messages, a shorter one asks the coordinator more."""
ATTACH_SOON_S: Final = 1.0
"""The same for a while after a topic was created anew, so that the new one joins the queue
soon, and after other topics were refused."""
ANEW_S: Final = 15.0
"""How long that while is: coordinators believe what they know of a topic for ten seconds."""
RENEW_SHARE: Final = 2
"""Divisor: a lease that is still being read after this part of its time gets its time anew."""
SEND_S: Final = 0.02
"""Pause between two requests with what is accepted, while messages are at hand. A shorter one takes
more requests, and appends to the journal; with a longer one more messages come again if the
consumer is killed."""
PAUSE_S: Final = 0.02
"""Pause of `poll` before it asks again after an error that passes."""
LETTERS_S: Final = 1.0
"""Least time that `commit_sync` gives dead letters: with less, messages come again whose letters
could be written."""
GIVEN_BACK_S: Final = 1.0
"""Longest wait until the rest of a pointer is given back, before a share of it is returned. Past it
the rest counts as delivered if the consumer dies; a longer one delays messages while a coordinator
is away."""
CLOSE_S: Final = 5.0
"""Longest wait of `close` until what is held is released. Past it others get it a second after the
stream's end."""


@dataclass(slots=True)
class _Parts:
    """What a consumer holds. Nothing in here refers to it, or it would live for ever."""

    group_id: str
    lease: lending.Lease
    """By which it uses its log."""
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
        self.lease.close()

    def close_later(self) -> None:
        """Closes everything soon, as the garbage collector may call it."""
        _LOG.warning(
            "share_consumer_dropped group=%s: call close(), or use it in a with block",
            self.group_id,
        )
        close_later("share_consumer", f"group={self.group_id}", self.close)


_LASTING: Final = IntegrityError, MalformedHeaderError, NotAuthorizedError, TornTransactionError
"""Errors of reading whose reason lies in the log, or in what may be read of it."""


class ShareConsumer(Acknowledger):
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
        producer: Beginning | None = None,
        log: Log | None = None,
        **more: Any,
    ) -> None:
        """Checks the settings. `subscribe` begins.

        Args:
            config: settings by name.
            producer: a `Producer` of the subscription's transaction group. It begins the
                transactions of dead letters, and goes on to mean the transaction that it meant. The
                caller closes it, after the consumer.
            log: the log to read; None opens the one that ``bootstrap.servers`` names.
            more: further settings: ``ShareConsumer(**config)``.

        Raises:
            ConfigError: a setting is missing, unknown or out of range, or a dead-letter topic is
                named without a producer.
        """
        config = merged(config, more, None)
        super().__init__(ShareConfig.parse(config), producer)
        self._tls = opened_tls(self._config.tls)
        lease = lending.LOGS.lend(config, log=log)
        self._log: Log = lease.log
        try:
            check_settings(self._log, without_callbacks(self._config.librdkafka))
        except BaseException:
            lease.close()
            raise
        self._parts = _Parts(self.group_id, lease)
        self._dropped = weakref.finalize(self, self._parts.close_later)
        self._dropped.atexit = False
        self._topics: tuple[str, ...] = ()
        self._starts: Mapping[TopicPartition, int] = {}
        self._changing: Future[Reply] | None = None
        """The answer to the Attach that named other topics last; None once it is looked at."""
        self._changes = 0
        """Number of such Attaches."""
        self._is_refused = False
        """Whether that was refused, so that the coordinator has the topics of before."""
        self._failure: Exception | None = None
        """What the next poll raises: it happened behind the messages of the last one."""
        self._is_deleted = False
        """Whether an operator has deleted the subscription, and the next poll makes it anew."""
        self._client: AttachedClient | None = None
        self._acquiring: Future[Reply] | None = None
        """The answer to the question for messages that is under way, or not looked at."""
        self._leases_ahead = False
        """Whether the coordinator gives out leases while others are worked on."""
        self._reader: LeaseReader | None = None
        self._reading: Generator[Run, None, None] | None = None
        self._unseen: Run | None = None
        """What was read of the lease, and is not given out."""
        self._renew_s = self._attach_s = self._send_s = 0.0
        """Monotonic times: when the lease is to be renewed, the consumer to attach anew, and what
        is accepted to be sent."""
        self._rests = False
        """Whether it takes nothing up to the next poll."""
        self._anew_s = 0.0
        """Monotonic time up to which it attaches often, as a topic was created anew."""
        self._pace = Pace(self._config.prefetch_records)
        self._polling = threading.Lock()
        self._closed = False
        keep_from_children(self)

    # ---- subscription ---------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str]) -> None:
        """Joins the subscription for these topics, and for no others; the first consumer makes it.

        Does not wait until the consumer is attached: `poll` does, and tells what was refused. What
        it was given of other topics stays its own, until it is acknowledged.

        Args:
            topics: names of topics; none at all is `unsubscribe`.

        Raises:
            GroupBoundError: the subscription belongs to another transaction group.
            UnknownTopicError: with ``auto.offset.reset=latest``, a topic does not exist.
            CoordinatorNotAvailableError: no coordinator answers in time.
            ValueError: a name is empty, or there twice.
            ConfigError: the dead-letter topic is among them.
            ConcurrentUseError: another thread polls.
            ClosedError: the consumer is closed.
        """
        if isinstance(topics, str):
            raise TypeError(f"topics are a list of names: subscribe([{topics!r}])")
        named = tuple(topics)
        if "" in named or len(set(named)) < len(named):
            raise ValueError(f"each topic has a name, and is there once: {list(named)}")
        if self._config.dead_letter_topic in named:
            raise ConfigError(
                f"{self._config.dead_letter_topic} has the dead letters of this subscription, which"
                " would come back to it: work them off by another one"
            )
        with self._alone():
            self._check_open()
            if self._client is None and named:
                self._join(named)
            elif self._client is not None:
                self._change(self._client, named)

    def unsubscribe(self) -> None:
        """Takes part in no topic any more. What it was given stays its own, until it is
        acknowledged.

        Raises:
            ConcurrentUseError: another thread polls.
            ClosedError: the consumer is closed.
        """
        self.subscribe(())

    def subscription(self) -> list[str]:
        """Returns the topics that it is subscribed to."""
        return list(self._topics)

    def _join(self, topics: tuple[str, ...]) -> None:
        config, timeout_s = self._config, self._config.coordinator_timeout_ms / 1000
        self._bind()
        if self._dead_letters is not None:
            self._dead_letters.bind()
        starts = self._first_starts(topics)
        kafka = without_callbacks(config.librdkafka)
        read = ReadConfig(
            kafka=kafka,
            pending_memory_max_bytes=config.pending_memory_max_bytes,
            pending_dir=config.pending_dir,
            torn_skip=config.torn_skip,
            fail_on_data_loss=False,
            subscription=self.group_id,
        )
        self._reader = self._parts.reader = LeaseReader(
            *(self._log, kafka, read),
            timeout_s=timeout_s,
            tls=self._tls,
            on_step=weakly(self._renew_if_due),
            counters=self._counters,
        )
        self._topics, self._starts = topics, starts
        self._attach_s = time.monotonic() + ATTACH_AGAIN_S
        client = self._parts.client = AttachedClient(
            self._log,
            config.transaction_group,
            timeout_s=timeout_s,
            attach=partial(_attach_of, weakref.ref(self)),
            on_attached=weakly(self._attached),
            on_leases=weakly(self._leased),
            tls=self._tls,
        )
        try:
            client.start()
        except BaseException:
            self._parts.close_clients()
            self._reader, self._topics = None, ()
            raise
        self._client = client

    def _bind(self) -> None:
        config, timeout_s = self._config, self._config.coordinator_timeout_ms / 1000
        queries = CoordinatorQueries(self._log, timeout_s=timeout_s, tls=self._tls)
        try:
            bound = queries.bind_group(self.group_id, config.transaction_group).transaction_group
        finally:
            queries.close()
        if bound != config.transaction_group:
            raise GroupBoundError(
                f"subscription {self.group_id!r} belongs to transaction group {bound!r}, not to"
                f" {config.transaction_group!r}: set transaction.group to that one"
            )

    def _make_anew(self, client: AttachedClient) -> None:
        """Makes the subscription anew, as a first consumer does. What was held of the former one is
        dropped."""
        self._bind()
        starts = self._first_starts(self._topics)
        with self._lock:
            # Both at once: without an era it is made, and must not begin anywhere (trap 149).
            self._starts = starts
            self._work.forget_era()
        self._is_deleted = False
        self._attach_anew(client)

    def _change(self, client: AttachedClient, topics: tuple[str, ...]) -> None:
        """Attaches for other topics. What was not given out yet goes back."""
        starts = self._first_starts(topics)

        def leave() -> None:
            self._work.put_back()
            self._topics, self._starts, self._rests = topics, starts, False

        self._end(leave)
        self._outbox.send(client)
        self._attach_anew(client)

    def _attach_anew(self, client: AttachedClient) -> None:
        self._changes, self._is_refused = self._changes + 1, False
        self._changing = client.submit(self._attach())
        self._changing.add_done_callback(partial(weakly(self._changed), self._changes))

    def _look_at_change(self) -> None:
        """Raises what other topics were refused with. They are named again soon.

        The consumer is attached still, with the topics of before: nothing else would tell that it
        gets no messages, or those that it left.
        """
        if self._changing is None or not self._changing.done():
            return
        with self._lock:
            refusal, self._changing = self._changing.result(), None
        if isinstance(refusal, LogtxError):
            self._is_refused = True
            self._attach_s = time.monotonic() + ATTACH_SOON_S
            raise refusal

    def _changed(self, number: int, answer: Future[Reply]) -> None:
        with self._lock:
            # If it was refused, the next one is to say where the queue begins (trap 143). So too if
            # it rests: what attached may have been said without topics.
            is_last = number == self._changes and not self._rests
            if is_last and isinstance(answer.result(), Attached):
                self._starts = {}

    def _first_starts(self, topics: tuple[str, ...]) -> Mapping[TopicPartition, int]:
        keys: list[TopicPartition] = []
        for topic in topics:
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
            held, era = self._work.held(), self._work.era
            topics = () if self._rests else self._topics
        return Attach(
            group=self.group_id,
            consumer=self._number,
            kind=self._config.kind,
            topics=topics,
            starts=self._starts,
            held=held,
            ack_timeout_ms=self._config.ack_timeout_ms,
            era=era,
        )

    def _attached(self, attached: Attached) -> None:
        with self._lock:
            # They are of the topics that were there: one that is made anew begins at its start.
            is_changing = self._changing is not None and not self._changing.done()
            if not (self._rests or is_changing):
                self._starts = {}
            self._leases_ahead = attached.leases_ahead
            was_reset = self._work.attached(attached.leases, time.monotonic(), attached.era)
        if was_reset:
            _LOG.warning("subscription_reset group=%s: what was held is dropped", self.group_id)

    def _leased(self, leases: tuple[Lease, ...]) -> None:
        with self._lock:
            # Nobody reads what comes while it rests, or has left. To attach does not name it: it is
            # let go of.
            if self._topics and not self._rests:
                self._work.leased(leases, time.monotonic())

    # ---- messages -------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> Messages:
        """Returns messages to work on; none if there are none within `timeout` seconds. A negative
        one has no end. At most `max_records`, or ``max.poll.records`` without it.

        First sends what was acknowledged. While messages are at hand, what was accepted goes out
        within `SEND_S`. In implicit mode all that the last poll returned is accepted, save what was
        acknowledged otherwise.

        Takes longer than `timeout` while it reads messages that it was given: brokers that don't
        answer fail it after a minute.

        Raises:
            UnknownTopicError, UnsupportedTopicError: a topic can be no queue. When that is mended,
                the next poll goes on; so too after other errors.
            NotSupportedError: a coordinator or an operator's setting does not allow queues.
            TornTransactionError, IntegrityError, MalformedHeaderError, NotAuthorizedError,
                TopicRecreatedError: what it was given can't be read. What came before it was
                returned by the poll before. It is given out again after a second; that of a topic
                that is no more is rejected.
            CoordinatorNotAvailableError, RequestTimedOutError, BrokerError: the same, for it is not
                known where its transactions end.
            DeadLetterError: a dead letter can't be written. Its message is given out again after a
                second.
            SubscriptionResetError: an operator has reset or deleted the subscription since what was
                acknowledged was given out. The next poll goes on; if it was deleted, it makes the
                subscription anew.
            GroupBoundError: it was deleted, and belongs to another transaction group now.
            ValueError: `max_records` is below 1.
            ConcurrentUseError: another thread polls.
            NotSubscribedError, ClosedError: the consumer is not subscribed, or closed.
        """
        most = self._config.poll_records if max_records is None else max_records
        if most < 1:
            raise ValueError("max_records is 1 at least")
        client, deadline_s = self._open_client(), _deadline_s(timeout)
        if not self._topics:
            raise NotSubscribedError("the consumer is not subscribed: call subscribe")
        with self._alone():
            if self._pace.is_slow(time.monotonic()) and self._has_more_than(most):
                self._end(self._work.put_back)
            self._accept_last()
            self._send_if_due(client)
            self._outbox.look_at_answers()
            if self._is_deleted:
                self._make_anew(client)
            self._wake(client)
            self._look_at_change()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            found = Messages()
            try:
                while True:
                    self._read(client, found, most)
                    if found:
                        break
                    self._outbox.send(client)
                    self._outbox.look_at_answers()
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        break
                    self._acquire(client, min(left_s, WAIT_S), most)
            except BaseException:
                self.give_back(found)
                raise
            if not self._config.is_explicit:
                with self._lock:
                    self._work.return_all(map(key_of, found))
            self._counters.delivered_records += len(found)
            self._pace.returned(time.monotonic())
            return found

    def _send_if_due(self, client: AttachedClient) -> None:
        # A fast application polls thousands of times in a second.
        now_s = time.monotonic()
        with self._lock:
            may_wait = self._reading is not None and self._work.only_accepts
        if may_wait and now_s < self._send_s:
            # The next message may take long, or kill this process.
            self._outbox.send_within(client, self._send_s - now_s)
            return
        self._send_s = now_s + SEND_S
        self._outbox.send(client)

    def _has_more_than(self, most: int) -> bool:
        """Returns whether it holds more than a poll returns, which others may wait for."""
        holdings = self._work.holdings
        lease = holdings.lease
        is_large = lease is not None and lease.span.offset_count > self._share(most)
        return is_large or holdings.has_unread

    def _share(self, most: int) -> int:
        """Returns how many offsets a poll of so many messages asks for at least."""
        return min(most, self._config.poll_records)

    def rest(self, unseen: Iterable[Message] = ()) -> None:
        """Gives back all that no application has seen, and takes nothing up to the next `poll`.

        For who polls no more for a while: what the last request for messages brought meanwhile
        would be nobody's until its lease is over. Does not wait.

        Args:
            unseen: messages that were polled, and nobody has looked at.

        Raises:
            ConcurrentUseError: another thread polls. `unseen` is given back.
            NotSubscribedError, ClosedError: the consumer is not subscribed, or closed.
        """
        self.give_back(unseen)
        client = self._open_client()
        with self._alone():
            self._end(self._put_back_and_rest)
            # Without topics, a request that waits gets nothing (trap 131). So this comes first:
            # else that one gets what is given back, and to attach names it, up to the answer.
            client.submit(self._attach())
            self._outbox.send(client)

    def _put_back_and_rest(self) -> None:
        self._work.put_back()
        self._rests = True

    def _wake(self, client: AttachedClient) -> None:
        if self._rests:
            with self._lock:
                self._rests = False
            self._attach_anew(client)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._polling.acquire(blocking=False):
            raise ConcurrentUseError(
                "another thread polls, commits or closes, or this one within a callback or a"
                " signal handler: one at a time may. To end it, set a flag, and close it where it"
                " polls"
            )
        try:
            yield
        finally:
            self._polling.release()

    def _open_client(self) -> AttachedClient:
        self._check_open()
        if self._client is None:
            raise NotSubscribedError("the consumer is not subscribed: call subscribe")
        return self._client

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed: make another one")

    def _accept_last(self) -> None:
        with self._lock:
            self._work.accept_returned()

    def _acquire(self, client: AttachedClient, wait_s: float, most: int) -> None:
        """Waits until it is given messages, or something passes, or the time is up."""
        if self._acquiring is None:
            now_s = time.monotonic()
            if now_s >= self._attach_s:
                # Not while a question for messages is under way: they would not be named.
                again_s = ATTACH_SOON_S if now_s < self._anew_s else ATTACH_AGAIN_S
                self._attach_s = now_s + again_s
                if self._is_refused or self._changing is not None:
                    self._attach_anew(client)
                else:
                    client.submit(self._attach())
            least = self._share(most)
            self._ask_for(client, least, self._pace.ask(least, now_s))
        assert self._acquiring is not None, "it was asked"
        try:
            reply = self._acquiring.result(wait_s)
        except TimeoutError:
            return  # It is waited for by the next poll.
        self._acquiring = None
        if isinstance(reply, RetriableError):
            time.sleep(min(PAUSE_S, wait_s))
        elif isinstance(reply, SubscriptionResetError | GroupBoundError) and self._was_attached:
            self._is_deleted = True
            raise SubscriptionResetError(
                f"subscription {self.group_id!r} was deleted ({reply}): the next poll makes it anew"
            ) from reply
        elif isinstance(reply, LogtxError):
            raise reply

    def _ask_for(
        self, client: AttachedClient, least: int, new: int, *, ahead: bool = False
    ) -> None:
        assert self._reader is not None, "it is subscribed"
        command = Acquire(
            group=self.group_id,
            consumer=self._number,
            max_offsets=least,
            max_new_offsets=new,
            at_ends=self._reader.may_be_placed(self._topics),
            delivery_limit=self._config.delivery_limit,
            ahead=ahead,
        )
        self._acquiring = client.submit(command)

    def _ask_ahead(self, client: AttachedClient, least: int) -> None:
        """Asks for the next lease, when one is begun: so nobody has to wait for the answer."""
        last = self._acquiring
        if last is not None and last.done() and not isinstance(last.result(), LogtxError):
            last = self._acquiring = None  # It is what was begun.
        new = self._pace.ask_ahead(least)
        is_due = time.monotonic() >= self._attach_s  # Then it attaches first.
        if last is None and self._leases_ahead and new is not None and not is_due:
            self._ask_for(client, least, new, ahead=True)

    @property
    def _was_attached(self) -> bool:
        return self._work.era is not None

    def _read(self, client: AttachedClient, found: list[Message], most: int) -> None:
        while not found:
            if self._reading is None:
                if not self._begin():
                    return
                self._ask_ahead(client, self._share(most))
            assert self._reading is not None, "it has begun"
            try:
                self._take(client, found, most)
                if self._work.has_letters:
                    self._outbox.send(client)
            except TopicRecreatedError as error:
                self._attach_s, self._anew_s = 0.0, time.monotonic() + ANEW_S
                self._end(self._work.gone)
                self._fail(error, found)
            except Exception as error:  # noqa: BLE001 - the application gets it
                self._end(partial(self._work.unreadable, is_lasting=isinstance(error, _LASTING)))
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
        self._reading, self._renew_s = self._reader.runs(lease), 0.0
        self._pace.begin(lease.span.offset_count, time.monotonic())
        return True

    def _take(self, client: AttachedClient, found: list[Message], most: int) -> None:
        assert self._reading is not None, "a lease is read"
        assert self._reader is not None, "it is subscribed"
        share, count = self._share(most), 0
        while (run := self._unseen or next(self._reading, None)) is not None:
            number = min(most - count, self._work.count_of(run, share))
            self._unseen, run = run.part(number, len(run)), run.part(0, number)
            count += len(run)
            last = self._work.holdings.lease
            with self._lock:
                is_own = self._work.give_run(run, time.monotonic())
                exhausted = self._work.exhaust_run(run)
                enough = self._work.has_enough((run.topic, run.partition, run.offsets[-1]), share)
            if not is_own or last is None:
                self._end(self._work.give_up)
                return
            if self._unseen:
                self._reader.given(last, run, len(run) - 1)
            if exhausted:
                self._counters.exhausted_records += len(run)
            else:
                self._counters.redelivered_records += len(run) * (last.delivery_count > 1)
                found += cast("Sequence[Message]", run.records)
            if enough:
                self._end(self._work.give_up)
                self._outbox.send(client)
                # Before the application gets what may kill it.
                wait(self._outbox.futures(), GIVEN_BACK_S)
                return
            if count >= most:
                self._renew(client)
                return
        self._end(partial(self._work.finish, self._reader.bound))

    def _end(self, end: Callable[[], None]) -> None:
        """Ends reading a lease; `end` says what becomes of the rest of it."""
        if self._reading is not None:
            self._reading.close()
        self._reading = self._unseen = None
        with self._lock:
            end()

    def _renew_if_due(self) -> None:
        if self._client is not None:
            self._renew(self._client)

    def _renew(self, client: AttachedClient) -> None:
        """Begins the time of a long lease anew: it goes on."""
        now_s, timeout_s = time.monotonic(), self.ack_timeout
        with self._lock:
            holdings = self._work.holdings
            lease, until_s, era = holdings.lease, holdings.until_s, holdings.era
        soon_s = timeout_s / RENEW_SHARE
        if lease is None or until_s - now_s > soon_s or now_s < self._renew_s:
            return
        self._renew_s = now_s + soon_s
        answer = self._outbox.renew(client, Acks(lease.partition, (lease.span,)), era)
        answer.add_done_callback(partial(weakly(self._renewed), lease, now_s + timeout_s))

    def _renewed(self, lease: Lease, until_s: float, answer: Future[Reply]) -> None:
        reply = answer.result()
        if isinstance(reply, AckResults):
            with self._lock:
                is_lost = reply.of(lease.partition, lease.span) is AckResult.LOST
                self._work.renewed(lease, until_s, is_lost=is_lost)

    # ---- acknowledgements -----------------------------------------------------------------------

    def set_acknowledgement_commit_callback(self, callback: AckCallback | None) -> None:
        """Lets a function be told of the answers to what is acknowledged outside of transactions.

        It is called by the thread that polls, within `poll`, `commit_sync`, `commit_async` and
        `close`, and must not call these. Then `poll` raises no such errors. Dead letters are told,
        too.

        Args:
            callback: called with (partition → offsets, what went wrong or None); None ends it.

        Raises:
            TypeError: it is no function.
            ClosedError: the consumer is closed.
        """
        self._check_open()
        if callback is not None and not callable(callback):
            raise TypeError(f"a callback is a function or None, not {callback!r}")
        self._outbox.callback = callback

    def commit_async(self) -> None:
        """Sends what was acknowledged plainly, and does not wait. Errors are told by `poll`.

        Raises:
            ConcurrentUseError: another thread polls.
            NotSubscribedError, ClosedError: the consumer is not subscribed, or closed.
        """
        client = self._open_client()
        with self._alone():
            self._accept_last()
            self._outbox.send(client)
            if self._outbox.callback is not None:
                self._outbox.look_at_answers()

    def commit_sync(self, timeout: float = 30.0) -> dict[KafkaPartition, LogtxError | None]:
        """Sends what was acknowledged plainly, and waits for the answers.

        Args:
            timeout: seconds to wait; a negative one has no end. Dead letters have `LETTERS_S` at
                least, and the first one of a producer its ``coordinator.timeout.ms``.

        Returns:
            Partition → what went wrong there, or None: of what was sent and not answered before.
            NotHeldError: a message was acknowledged before, a transaction acknowledges it, or it
            was renewed too late. Others of the partition were taken.

        Raises:
            RequestTimedOutError: an answer did not come in time. It may have been taken: what is
                acknowledged twice changes nothing the second time.
            ConcurrentUseError: another thread polls.
            NotSubscribedError, ClosedError: the consumer is not subscribed, or closed.
        """
        client, deadline_s = self._open_client(), _deadline_s(timeout)
        with self._alone():
            self._accept_last()
            self._outbox.send(client, None if timeout < 0 else max(timeout, LETTERS_S))
            return self._outbox.await_answers(deadline_s, timeout, self._why)

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
                    self._outbox.tell_answered()
            finally:
                self._closed = True
                self._dropped.detach()
                if self._reading is not None:
                    self._reading.close()
                self._parts.close()

    def after_fork(self) -> None:
        """Refuses everything in a child of the process that made it."""
        refuse(self)
        self._closed = True
        self._dropped.detach()

    def _release_held(self, client: AttachedClient) -> None:
        with self._lock:
            self._work.let_go()
            # What it does not name when it attaches is free at once. Its request that waits must
            # not get any of that: without topics it gets nothing.
            self._topics = ()
        self._outbox.send(client, CLOSE_S)
        deadline_s = time.monotonic() + CLOSE_S
        left = [*self._outbox.futures(), client.submit(self._attach())]
        for future in left:
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
    if math.isnan(timeout):
        raise ValueError("a timeout is a number of seconds; a negative one has no end")
    return time.monotonic() + timeout if timeout >= 0 else float("inf")
