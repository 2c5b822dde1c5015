"""Asks coordinators what their metadata store knows: of transactions that are finished, too.

Source: PIP-471, "MetadataTransactionBuffer".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

from ...journal.errors import (
    ConfigError,
    CoordinatorNotAvailableError,
    LogtxError,
    MetadataNotServedError,
    OutcomeNotKeptError,
    RequestTimedOutError,
    SessionClosedError,
    TlsError,
    UnknownTransactionError,
)
from ...journal.logs.interface import Log
from ...journal.logs.open import open_log
from ...journal.settings import check_names, plain
from ...journal.tls import OWN as TLS
from ...journal.txid import MAX_OFFSET, TxId
from ..protocol import metadata_pb2 as pb
from ..protocol.metadata import (
    READY,
    Found,
    Header,
    HeaderState,
    Horizon,
    OfAcks,
    OfDeadlines,
    OfFinalState,
    OfHeader,
    OfOperations,
    OfWrites,
    Operation,
    Question,
    StoreStatus,
)
from ..protocol.metadata_wire import (
    horizon_from_wire,
    page_from_wire,
    question_to_wire,
    status_from_wire,
)
from ..transport.tls import Tls
from .discovery import Discovery
from .metadata_calls import MetadataCalls, Pages
from .tls import tls_of

TIMEOUT_S: Final = 10.0
"""How long a question may take by default."""
OBJECTS: Final = ("error_cb", "log_cb", "logger", "oauth_cb", "stats_cb", "throttle_cb")
"""Settings of confluent-kafka's that are objects; those that begin with ``ssl_`` are, too."""
LATE_S: Final = 2.0
"""How much later than asked for an answer may come: the coordinator's own is better than none."""
PAUSE_MIN_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5
"""Pauses before coordinators are looked for again: longer ones find a new one later."""

T = TypeVar("T")


class MetadataClient:
    """Asks a coordinator that has a metadata store. Thread-safe; blocks, except in `watch`.

    It asks the coordinators that own journal partitions, one after another, until one has a store.
    Answers are as of the moment of the question: the coordinator waits until its store has all that
    the journal had then. With `fresh=False` they are what the store has.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | Log,
        *,
        timeout_s: float = TIMEOUT_S,
        tls: Tls | None = None,
    ) -> None:
        """Connects when it is first used.

        Args:
            config: librdkafka's settings, with ``bootstrap.servers``, and those of TLS to
                coordinators (``coordinator.security.protocol`` …); or the log itself, which stays
                open.
            timeout_s: longest time for one question, in seconds.
            tls: what connections are protected with, beside a log; None: nothing.

        Raises:
            ConfigError: a setting is unknown or wrong, or ``bootstrap.servers`` is missing.
            TypeError: `config` is neither settings nor a log.
        """
        if not isinstance(config, Mapping) and not hasattr(config, "end_offset"):
            raise TypeError(f"expected a configuration dict, or a log, not {config!r}")
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s must be more than 0, not {timeout_s!r}")
        self._own = isinstance(config, Mapping)
        if isinstance(config, Mapping):
            texts = (n for n in plain(config) if n not in OBJECTS and not n.startswith("ssl_"))
            check_names(texts, TLS)
        self._tls = tls_of(config) if isinstance(config, Mapping) else tls
        self._log: Log = open_log(config) if isinstance(config, Mapping) else config
        self._timeout_s = timeout_s
        self._discovery = Discovery(self._log)
        self._lock = threading.Lock()
        self._calls: MetadataCalls | None = None
        self._spare: list[MetadataCalls] = []
        """Those that threads opened at the same time as the one that is used."""
        self._closed = False

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Closes it."""
        self.close()

    # ---- questions ------------------------------------------------------------------------------

    def header(self, txid: TxId, *, fresh: bool = True) -> Header | None:
        """Returns the header of a transaction; None: it was never begun, or is not kept any more.

        Raises:
            MetadataNotServedError: no coordinator has a metadata store.
            MetadataStoreError: the store fails.
            CoordinatorNotAvailableError, RequestTimedOutError: nobody answers in time.
            TlsError: the settings of TLS are not those that coordinators need.
        """
        found = next(self._query(OfHeader(txid), fresh=fresh), None)
        record = None if found is None else found.record
        return record if isinstance(record, Header) else None

    def is_aborted(self, txid: TxId) -> bool:
        """Returns whether a transaction is aborted; its records are then to be dropped.

        Raises:
            UnknownTransactionError: the store does not know it: it was never begun, or ended so
                long ago that it is not kept. What is committed and placed is kept while its data
                is there; so is nothing of what was aborted.
            OutcomeNotKeptError: the store does not know it, and keeps a window of time only: it
                may have been committed.
            Errors as `header`.
        """
        header = self.header(txid)
        if header is not None:
            return header.state is HeaderState.ABORTED
        told = f"the metadata store does not know transaction {txid}: it was never begun, or is not"
        if window_ms := self.status().history_ms:
            raise OutcomeNotKeptError(
                f"{told} kept any more, as finished ones are for {window_ms / 1_000:g} s only,"
                " committed or aborted. Ask a store without a window (RocksDB without"
                " --metadata-history-ms), or ask earlier"
            )
        raise UnknownTransactionError(f"{told} kept any more")

    def operations(self, txid: TxId, *, fresh: bool = True) -> list[Operation]:
        """Returns what a transaction does in each partition. Raises as `header`."""
        return list(self._operations(OfOperations(txid), fresh=fresh))

    def history(
        self,
        topic: str,
        partition: int,
        *,
        from_place: int = 0,
        to_place: int = MAX_OFFSET,
        limit: int = 0,
        fresh: bool = True,
    ) -> Iterator[Operation]:
        """Yields the writes in a data partition, by place; those without one come last.

        Args:
            topic: the data topic.
            partition: number of its partition.
            from_place: lowest place.
            to_place: places at and above it are left out; by default none is.
            limit: most writes; 0: all.
            fresh: see the class.

        Raises:
            Errors as `header`.
        """
        question = OfWrites(
            topic=topic, partition=partition, from_place=from_place, to_place=to_place
        )
        return self._operations(question, fresh=fresh, limit=limit)

    def acks(
        self, topic: str, partition: int, group: str | None = None, *, fresh: bool = True
    ) -> Iterator[Operation]:
        """Yields the steps of consumer groups in a partition. Raises as `header`."""
        question = OfAcks(topic=topic, partition=partition, subscription=group)
        return self._operations(question, fresh=fresh)

    def open(self, *, before_ms: int = MAX_OFFSET, fresh: bool = True) -> Iterator[Header]:
        """Yields the open transactions with deadlines before a time. Raises as `header`."""
        return self._headers(OfDeadlines(before_ms=before_ms), fresh=fresh)

    def decided(
        self,
        state: HeaderState,
        *,
        from_ms: int = 0,
        to_ms: int = MAX_OFFSET,
        limit: int = 0,
        fresh: bool = True,
    ) -> Iterator[Header]:
        """Yields the committed or aborted transactions of a span of time. Raises as `header`."""
        question = OfFinalState(state=state, from_ms=from_ms, to_ms=to_ms)
        return self._headers(question, fresh=fresh, limit=limit)

    def horizon(self, topic: str, partition: int) -> Horizon:
        """Returns up to where a data partition is settled, for a reader that is not logtx's.

        Raises:
            UnknownTopicError: there is no such partition.
            Errors as `header`.
        """
        request = pb.HorizonRequest(
            topic=topic, partition=partition, timeout_ms=int(self._timeout_s * 1_000)
        )
        return self._single(lambda calls, left_s: horizon_from_wire(calls.horizon(request, left_s)))

    def status(self) -> StoreStatus:
        """Returns how far a coordinator's store has the journal. Raises as `header`."""
        return self._single(lambda calls, left_s: status_from_wire(calls.status(left_s)))

    @contextmanager
    def watch(self, question: Question, *, fresh: bool = False) -> Iterator[Iterator[Watched]]:
        """Provides what is there, then `READY`, then each change, for as long as it is open.

        Example::

            with client.watch(OfHeader(txid)) as changes:
                for change in changes:
                    ...

        Raises, while it is read:
            WatchLaggedError: the caller did not keep up; watch again.
            MetadataStoreError, SessionClosedError: the store or the coordinator is gone; watch
                again.
        """
        wire = question_to_wire(question, fresh=fresh, timeout_ms=int(self._timeout_s * 1_000))
        self.status()
        with self._lock:
            calls = self._calls
        if calls is None:
            raise SessionClosedError("the coordinator is gone: watch again")
        pages = calls.watch(wire)
        try:
            yield _changes(pages)
        finally:
            pages.close()

    def close(self) -> None:
        """Ends all watches, and closes the connection."""
        with self._lock:
            self._closed = True
            all_calls, self._spare = [*self._spare, self._calls], []
            self._calls = None
        for calls in all_calls:
            if calls is not None:
                calls.close()
        if self._own:
            self._log.close()

    # ---- asking ---------------------------------------------------------------------------------

    def _headers(self, question: Question, *, fresh: bool, limit: int = 0) -> Iterator[Header]:
        for found in self._query(question, fresh=fresh, limit=limit):
            if isinstance(found.record, Header):
                yield found.record

    def _operations(
        self, question: Question, *, fresh: bool, limit: int = 0
    ) -> Iterator[Operation]:
        for found in self._query(question, fresh=fresh, limit=limit):
            if isinstance(found.record, Operation):
                yield found.record

    def _query(self, question: Question, *, fresh: bool, limit: int = 0) -> Iterator[Found]:
        wire = question_to_wire(
            question, limit=limit, fresh=fresh, timeout_ms=int(self._timeout_s * 1_000)
        )

        def ask(calls: MetadataCalls, left_s: float) -> tuple[list[Found], Pages]:
            pages = calls.query(wire, left_s)
            try:
                first = next(pages, None)
                return [] if first is None else page_from_wire(first), pages
            except BaseException:
                pages.close()
                raise

        found, pages = self._single(ask)
        try:
            yield from found
            for page in _unbroken(pages, "the answer broke off", "ask again"):
                yield from page_from_wire(page)
        finally:
            pages.close()

    def _single(self, ask: Callable[[MetadataCalls, float], T]) -> T:
        """Asks the coordinator that answered last, else each one, until one has a store."""
        deadline_s = time.monotonic() + self._timeout_s
        with self._lock:
            if self._closed:
                raise SessionClosedError("the client was closed")
            known = self._calls
        if known is not None:
            try:
                return self._try(ask, known, deadline_s)
            except (CoordinatorNotAvailableError, MetadataNotServedError, TlsError):
                self._forget(known)
        pause_s = PAUSE_MIN_S
        while True:
            try:
                return self._anyone(ask, deadline_s)
            except CoordinatorNotAvailableError:
                # One that is starting, or was just replaced, is not published yet.
                if time.monotonic() + pause_s > deadline_s or self._closed:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, PAUSE_MAX_S)

    def _anyone(self, ask: Callable[[MetadataCalls, float], T], deadline_s: float) -> T:
        """Asks each coordinator, until one has a store.

        Raises:
            CoordinatorNotAvailableError: none was reached.
            TlsError: nor can be, with these settings.
            MetadataNotServedError: of those reached none has a store.
            LogtxError: the answer of the first that has one.
        """
        failure: LogtxError | None = None
        for address in self._addresses(deadline_s):
            calls = MetadataCalls(address, tls=self._tls)
            try:
                answer = self._try(ask, calls, deadline_s)
            except (CoordinatorNotAvailableError, MetadataNotServedError, TlsError) as error:
                calls.close()
                # That one has no store says more than that another one is gone.
                if not isinstance(failure, MetadataNotServedError):
                    failure = error
                continue
            except LogtxError:
                self._keep(calls)
                raise
            except BaseException:
                calls.close()
                raise
            self._keep(calls)
            return answer
        raise failure or CoordinatorNotAvailableError("no coordinator has published itself")

    def _forget(self, calls: MetadataCalls) -> None:
        with self._lock:
            if self._calls is not calls:
                return
            self._calls = None
        calls.close()

    def _keep(self, calls: MetadataCalls) -> None:
        with self._lock:
            if self._closed:
                calls.close()
            elif self._calls is None:
                self._calls = calls
            else:
                # Another thread was quicker. Each may have an answer or a watch under way: closing
                # either of them would break it off.
                self._spare.append(calls)

    def _addresses(self, deadline_s: float) -> list[str]:
        """Returns the addresses of the coordinators that own journal partitions."""
        found: dict[str, None] = {}
        failure: LogtxError | None = None
        for partition in range(self._discovery.partition_count(deadline_s)):
            try:
                left_s = deadline_s - time.monotonic()
                found[self._discovery.look_up(partition, left_s).address] = None
            except CoordinatorNotAvailableError as error:
                failure = error
        if not found and failure is not None:
            raise failure
        return list(found)

    @staticmethod
    def _try(
        ask: Callable[[MetadataCalls, float], T], calls: MetadataCalls, deadline_s: float
    ) -> T:
        # The coordinator waits for its store as long as it was told, and then says why in vain.
        left_s = max(0.05, deadline_s - time.monotonic()) + LATE_S
        try:
            return ask(calls, left_s)
        except LogtxError:
            raise
        except ValueError as error:
            # Another version's, perhaps, which has values that this one does not know.
            raise CoordinatorNotAvailableError(
                f"the coordinator's answer can't be read: {error}"
            ) from error


Watched = Found | str
"""What a watch tells: a record that is there, changed or went; or `READY`."""


def _changes(pages: Pages) -> Iterator[Watched]:
    for page in _unbroken(pages, "the watch broke off", "watch again"):
        yield from page_from_wire(page)
        if page.ready:
            yield READY


def _unbroken(pages: Pages, what: str, fix: str) -> Iterator[pb.MetadataPage]:
    """Yields pages to their end.

    Raises:
        SessionClosedError: they broke off. What the coordinator says of the answer is in a page.
    """
    while True:
        try:
            page = next(pages, None)
        except (CoordinatorNotAvailableError, RequestTimedOutError) as error:
            raise SessionClosedError(f"{what}: {error}; {fix}") from error
        if page is None:
            return
        yield page
