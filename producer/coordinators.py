"""How a producer reaches coordinators: two protocols, and their implementation over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ..coordinator.client.queries import CoordinatorQueries
from ..coordinator.client.session import CoordinatorClient, SessionOptions
from ..coordinator.protocol.commands import (
    Action,
    Began,
    Binding,
    Connected,
    Done,
    GroupOffsets,
    Outcome,
)
from ..journal.control import BranchRange, TopicPartition
from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from ..journal.records.types import OffsetStep
from ..journal.txid import TxId


class Session(Protocol):
    """One producer's session with the owner of its journal partition; see `CoordinatorClient`.

    `on_reply` gets the reply or an error, once, on the session's own thread; requests are
    answered in the order sent, and each is given up after the session's time-out.
    """

    def connect(self) -> Connected: ...
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
    def end(
        self,
        txid: TxId,
        action: Action,
        writes: Mapping[TopicPartition, tuple[BranchRange, ...]],
        on_reply: Callable[[Outcome | LogtxError], None],
    ) -> None: ...
    def close(self) -> None: ...


class Queries(Protocol):
    """Questions that need no session; blocking and bounded; see `CoordinatorQueries`."""

    def bind_group(self, group: str, transaction_group: str | None) -> Binding: ...
    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> GroupOffsets: ...
    def outcome(self, txid: TxId) -> Outcome: ...
    def add_partitions(self, txid: TxId, first_offsets: Mapping[TopicPartition, int]) -> None: ...
    def close(self) -> None: ...


class Coordinators(Protocol):
    """Makes sessions and queries for one log."""

    def session(
        self, options: SessionOptions, on_closed: Callable[[LogtxError], None]
    ) -> Session: ...
    def queries(self, *, timeout_s: float) -> Queries: ...


class GrpcCoordinators:
    """Coordinators found through the log and reached over gRPC."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def session(self, options: SessionOptions, on_closed: Callable[[LogtxError], None]) -> Session:
        """A session that is not connected yet."""
        return CoordinatorClient(self._log, options, on_closed=on_closed)

    def queries(self, *, timeout_s: float) -> Queries:
        """Questions without a session."""
        return CoordinatorQueries(self._log, timeout_s=timeout_s)
