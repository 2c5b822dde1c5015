"""Asks coordinators what operators want to know; used by `logtx txn` and `logtx keys`.

Source: Transaction keys, "Admin API & CLI".
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from ...journal.errors import ConfigError
from ...journal.state import State
from ...journal.txid import TxId
from ..protocol.commands import (
    AbortTransaction,
    DeleteKey,
    Done,
    ForgetGroup,
    ForgetProducer,
    GetKey,
    KeyInfo,
    Keys,
    ListKeys,
    ListTransactions,
    Outcome,
    TransactionInfo,
    Transactions,
    UnbindGroup,
)
from .queries import CoordinatorQueries


class AdminQueries(CoordinatorQueries):
    """Questions and orders of operators. Thread-safe; blocks, with the bound of its base class."""

    def partition_count(self) -> int:
        """Returns the number of journal partitions.

        Raises:
            CoordinatorNotAvailableError: no journal exists.
        """
        return self._discovery.partition_count(time.monotonic() + self._timeout_s)

    def list_transactions(
        self,
        partition: int,
        *,
        states: tuple[State, ...] = (),
        age_min_ms: int = 0,
        producer_id: str = "",
        topic: str = "",
    ) -> Iterator[TransactionInfo]:
        """Yields the unfinished transactions of a journal partition, oldest first, page by page.

        Args:
            partition: number of the journal partition.
            states: only transactions in one of these states; empty: any state.
            age_min_ms: only transactions that began at least this many milliseconds ago.
            producer_id: only transactions of this producer id, or of this ``transactional.id`` in
                any transaction group; "": any producer.
            topic: only transactions that registered a partition of this topic; "": any topic.
        """
        after, more = -1, True
        while more:
            command = ListTransactions(
                states=states,
                age_min_ms=age_min_ms,
                producer_id=producer_id,
                topic=topic,
                after=after,
            )
            page = self._ask(partition, command, Transactions)
            yield from page.transactions
            more = page.more and bool(page.transactions)
            if more:
                after = page.transactions[-1].txid.offset

    def describe(self, txid: TxId) -> TransactionInfo | None:
        """Returns a transaction; None if it is finished or unknown: then ask for its `outcome`."""
        command = ListTransactions(after=txid.offset - 1, limit=1)
        page = self._ask(txid.partition, command, Transactions)
        return next((info for info in page.transactions if info.txid == txid), None)

    def abort(self, txid: TxId) -> Outcome:
        """Aborts a transaction. Repeating it succeeds.

        Raises:
            TransactionCommittedError: it is committed, or being committed.
            UnknownTransactionError: it was never begun, or is past the outcome retention.
        """
        return self._ask(txid.partition, AbortTransaction(txid=txid), Outcome)

    def forget_producer(self, partition: int, producer_id: str) -> None:
        """Forgets a producer in a journal partition: the next one begins above its generation.

        Repeating it succeeds, also if it is not known.

        Raises:
            NotAllowedError: it is connected, has transactions open, or is a transaction key.
        """
        self._ask(partition, ForgetProducer(producer_id=producer_id), Done)

    def forget_group(self, group: str) -> None:
        """Forgets a consumer group: its offsets, its claims and its binding.

        Afterwards the group begins anew, in any transaction group. Stop its consumers and producers
        first. Repeating it succeeds, also if it is not known.

        Raises:
            NotAllowedError: a transaction that is not finished moves its offsets.
        """
        bound = self.bind_group(group, None).transaction_group
        if bound is not None:
            self._ask(bound, ForgetGroup(group=group), Done)
            self._ask(group, UnbindGroup(group=group), Done)

    def forget_offsets(self, group: str, topics: Iterable[str]) -> None:
        """Forgets a consumer group's offsets and claims in some topics, for example deleted ones.

        Repeating it succeeds, also if there are none.

        Raises:
            NotAllowedError: a transaction that is not finished moves the group's offsets.
            ConfigError: no topic is named.
        """
        named = tuple(topics)
        if not named:
            raise ConfigError("name the topics, or forget the whole group")
        bound = self.bind_group(group, None).transaction_group
        if bound is not None:
            self._ask(bound, ForgetGroup(group=group, topics=named), Done)

    def list_keys(self, partition: int) -> Iterator[KeyInfo]:
        """Yields the transaction keys whose home is a journal partition, by name, page by page."""
        after, more = "", True
        while more:
            page = self._ask(partition, ListKeys(after=after), Keys)
            yield from page.keys
            more = page.more and bool(page.keys)
            if more:
                after = page.keys[-1].name

    def get_key(self, name: str) -> KeyInfo:
        """Returns a transaction key, by its name `&owner&key`.

        Raises:
            UnknownKeyError: no producer connected with it, or it was deleted.
        """
        return self._ask(name, GetKey(name=name), KeyInfo)

    def delete_key(self, name: str) -> None:
        """Deletes a transaction key and aborts its open transaction. Repeating it succeeds.

        Raises:
            UnknownKeyError: no producer ever connected with it.
        """
        self._ask(name, DeleteKey(name=name), Done)
