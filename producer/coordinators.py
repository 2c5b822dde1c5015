"""How a producer reaches coordinators: protocols, and their implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ..coordinator.client.queries import CoordinatorQueries
from ..coordinator.client.session import CoordinatorClient, SessionOptions
from ..coordinator.client.tls import Tls
from ..coordinator.protocol.commands import (
    Action,
    Began,
    Binding,
    Connected,
    Decided,
    Done,
    GroupOffsets,
    Outcome,
)
from ..journal.acks import Acks
from ..journal.control import BranchRange, TopicPartition
from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from ..journal.records.types import OffsetStep
from ..journal.txid import TxId


class Session(Protocol):
    """One producer's session with the owner of its journal partition; see `CoordinatorClient`.

    `on_reply` gets the reply or an error, once, on a thread that hands out answers, and gets no
    other one meanwhile. Requests are answered in the order sent; each is given up after the
    session's time-out.
    """

    def connect(self, timeout_s: float | None = None) -> Connected: ...
    def begin(
        self,
        on_reply: Callable[[Began | LogtxError], None],
        *,
        timeout_ms: int,
        partitions: Iterable[TopicPartition] = (),
    ) -> None: ...
    def add_partitions(
        self,
        txid: TxId,
        first_offsets: Mapping[TopicPartition, int],
        on_reply: Callable[[Done | LogtxError], None],
    ) -> None: ...
    def add_offsets(
        self,
        txid: TxId,
        group: str,
        steps: Sequence[OffsetStep],
        on_reply: Callable[[Done | LogtxError], None],
    ) -> None: ...
    def add_acks(
        self,
        txid: TxId,
        group: str,
        acks: Sequence[Acks],
        on_reply: Callable[[Done | LogtxError], None],
        *,
        delay_ms: int = 0,
        era: int = 0,
    ) -> None: ...
    def extend(self, txid: TxId, on_reply: Callable[[Done | LogtxError], None]) -> None: ...
    def add_writes(
        self,
        txid: TxId,
        part: int,
        writes: Mapping[TopicPartition, tuple[BranchRange, ...]],
        on_reply: Callable[[Done | LogtxError], None],
    ) -> None: ...
    def end(
        self,
        txid: TxId,
        action: Action,
        writes: Mapping[TopicPartition, tuple[BranchRange, ...]],
        on_reply: Callable[[Outcome | LogtxError], None],
        *,
        parts: int = 0,
    ) -> None: ...
    def outcome(
        self,
        txid: TxId,
        on_reply: Callable[[Outcome | LogtxError], None],
        *,
        until_finished: bool = False,
    ) -> None: ...
    def close(self) -> None: ...


class Queries(Protocol):
    """Requests that need no session; they block, within a time-out. See `CoordinatorQueries`."""

    def bind_group(self, group: str, transaction_group: str | None) -> Binding: ...
    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> GroupOffsets: ...
    def outcome(self, txid: TxId) -> Outcome: ...
    def add_partitions(self, txid: TxId, first_offsets: Mapping[TopicPartition, int]) -> None: ...
    def open_sidecars(self, topics: Iterable[str]) -> None: ...
    def close(self) -> None: ...


class Coordinators(Protocol):
    """Makes sessions and queries for one log."""

    def session(
        self,
        options: SessionOptions,
        on_closed: Callable[[LogtxError], None],
        on_decided: Callable[[Decided], None],
    ) -> Session: ...
    def queries(self, *, timeout_s: float) -> Queries: ...


class FoundCoordinators:
    """Finds coordinators through the log, and connects to them."""

    def __init__(self, log: Log, tls: Tls | None = None) -> None:
        """Connects to nobody yet; `tls` protects the connections."""
        self._log, self._tls = log, tls

    def session(
        self,
        options: SessionOptions,
        on_closed: Callable[[LogtxError], None],
        on_decided: Callable[[Decided], None],
    ) -> Session:
        """Returns a session that is not connected yet."""
        return CoordinatorClient(
            self._log, options, on_closed=on_closed, on_decided=on_decided, tls=self._tls
        )

    def queries(self, *, timeout_s: float) -> Queries:
        """Returns queries that give a request up after `timeout_s`."""
        return CoordinatorQueries(self._log, timeout_s=timeout_s, tls=self._tls)
