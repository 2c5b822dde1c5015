"""What operators ask coordinators, over every journal partition or one; behind `logtx txn|keys`.

Source: Transaction keys, "Admin API & CLI".
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from ...journal.state import State
from ...journal.txid import TxId
from ..protocol.commands import (
    AbortTransaction,
    DeleteKey,
    Done,
    GetKey,
    KeyInfo,
    Keys,
    ListKeys,
    ListTransactions,
    Outcome,
    TransactionInfo,
    Transactions,
)
from .queries import CoordinatorQueries


class AdminQueries(CoordinatorQueries):
    """Questions and orders of operators. Thread-safe; blocks; bounded as `CoordinatorQueries`."""

    def partition_count(self) -> int:
        """How many journal partitions there are.

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
        """Unfinished transactions of a journal partition, oldest first, read page by page.

        Args:
            partition: the journal partition.
            states: only those in one of these states.
            age_min_ms: only those that began at least so long ago.
            producer_id: only those of this producer.
            topic: only those registered with a partition of this topic.
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
            more = page.more
            if page.transactions:
                after = page.transactions[-1].txid.offset

    def describe(self, txid: TxId) -> TransactionInfo | None:
        """One transaction, or None if it is finished or unknown: then ask for its `outcome`."""
        command = ListTransactions(after=txid.offset - 1, limit=1)
        page = self._ask(txid.partition, command, Transactions)
        return next((info for info in page.transactions if info.txid == txid), None)

    def abort(self, txid: TxId) -> Outcome:
        """Abort a transaction; a repeat is a success.

        Raises:
            TransactionCommittedError: it is committed, or being committed.
            UnknownTransactionError: never begun, or past the outcome retention.
        """
        return self._ask(txid.partition, AbortTransaction(txid=txid), Outcome)

    def list_keys(self, partition: int) -> Iterator[KeyInfo]:
        """Transaction keys whose home is a journal partition, by name, read page by page."""
        after, more = "", True
        while more:
            page = self._ask(partition, ListKeys(after=after), Keys)
            yield from page.keys
            more = page.more
            if page.keys:
                after = page.keys[-1].name

    def get_key(self, name: str) -> KeyInfo:
        """One transaction key, by its name `&owner&key`.

        Raises:
            UnknownKeyError: nobody connected with it, or it was deleted.
        """
        return self._ask(name, GetKey(name=name), KeyInfo)

    def delete_key(self, name: str) -> None:
        """Delete a transaction key and abort what it has open; a repeat is a success.

        Raises:
            UnknownKeyError: nobody ever connected with it.
        """
        self._ask(name, DeleteKey(name=name), Done)
