"""Answers operators' questions to a shard: which transactions hang, which transaction keys exist.

Reads the shard's state and never changes it. Answers come a page at a time, so that none is too
large for one message and no question holds up the event loop for long.

Source: Transaction keys, "Admin API & CLI".
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, TypeAlias

from ...journal.errors import UnknownKeyError
from ...journal.keys import is_key_name
from ...journal.producer_ids import is_called
from ...journal.txid import TxId
from ..protocol import commands
from .decision import Instant
from .places import Places
from .producers import ProducerMetadata, Producers
from .transactions import TransactionMetadata, TransactionMetadataStore

_WEIGHT_MAX: Final = 10_000
"""Entries of one page, counted as transactions plus their data partitions.

A page stops here, because one transaction may have very many partitions; its first transaction is
always given, however large. More makes larger messages and holds the event loop longer.
"""

Question: TypeAlias = commands.ListTransactions | commands.ListKeys | commands.GetKey


def answer(
    question: Question,
    producers: Producers,
    store: TransactionMetadataStore,
    places: Places,
    now: Instant,
) -> commands.Reply:
    """Answers an operator's question.

    Raises:
        UnknownKeyError: there is no such transaction key.
    """
    match question:
        case commands.ListTransactions():
            return list_transactions(store, question, now, places)
        case commands.ListKeys():
            return list_keys(producers, store, question, now)
        case commands.GetKey():
            return get_key(producers, store, question, now)


def list_transactions(
    store: TransactionMetadataStore,
    command: commands.ListTransactions,
    now: Instant,
    places: Places,
) -> commands.Transactions:
    """Returns one page of unfinished transactions, in TxId order."""
    found: list[commands.TransactionInfo] = []
    weight = 0
    for transaction in _matching(store, command, now):
        weight += 1 + len(transaction.partitions)
        full = len(found) >= min(max(command.limit, 1), commands.PAGE_MAX) or weight > _WEIGHT_MAX
        if found and full:
            return commands.Transactions(tuple(found), more=True)
        found.append(_info(transaction, now, places))
    return commands.Transactions(tuple(found))


def _matching(
    store: TransactionMetadataStore, command: commands.ListTransactions, now: Instant
) -> Iterator[TransactionMetadata]:
    for transaction in store:
        if (
            transaction.begin > command.after
            and (not command.states or transaction.state in command.states)
            and now.wall_ms - transaction.started_ms >= command.age_min_ms
            and (not command.producer_id or is_called(transaction.producer_id, command.producer_id))
            and (not command.topic or any(t == command.topic for t, _ in transaction.partitions))
        ):
            yield transaction


def _info(
    transaction: TransactionMetadata, now: Instant, places: Places
) -> commands.TransactionInfo:
    # Which of its markers are written is not known here: one that has markers may wait for them.
    only_placed = transaction.placed >= transaction.partitions.keys()
    return commands.TransactionInfo(
        txid=transaction.txid,
        state=transaction.state,
        producer_id=transaction.producer_id,
        generation=transaction.generation,
        started_ms=transaction.started_ms,
        timeout_ms=transaction.timeout_ms,
        partitions=tuple(transaction.partitions),
        groups=tuple(transaction.offsets),
        age_ms=max(0, now.wall_ms - transaction.started_ms),
        reason=transaction.reason,
        placing=only_placed and places.is_waiting(transaction.begin),
    )


def live_keys(producers: Producers) -> Iterator[str]:
    """Yields the names of the transaction keys that are not deleted, in no order."""
    return (n for n, p in producers.items() if is_key_name(n) and not p.voided)


def list_keys(
    producers: Producers, store: TransactionMetadataStore, command: commands.ListKeys, now: Instant
) -> commands.Keys:
    """Returns one page of transaction keys, in the order of their names."""
    limit = min(max(command.limit, 1), commands.PAGE_MAX)
    left = (name for name in live_keys(producers) if name > command.after)
    names = heapq.nsmallest(limit + 1, left)
    unfinished = _unfinished(store)
    keys = (_key(n, producers[n], unfinished.get(n, []), now) for n in names[:limit])
    return commands.Keys(tuple(keys), more=len(names) > limit)


def get_key(
    producers: Producers, store: TransactionMetadataStore, command: commands.GetKey, now: Instant
) -> commands.KeyInfo:
    """Returns one transaction key.

    Raises:
        UnknownKeyError: no client ever connected with it, or it was deleted.
    """
    producer = producers.get(command.name)
    if producer is None or not is_key_name(command.name) or producer.voided:
        raise UnknownKeyError(f"there is no transaction key {command.name!r}")
    return _key(command.name, producer, _unfinished(store).get(command.name, []), now)


def _unfinished(store: TransactionMetadataStore) -> dict[str, list[TxId]]:
    by_key: defaultdict[str, list[TxId]] = defaultdict(list)
    for transaction in store:
        if is_key_name(transaction.producer_id):
            by_key[transaction.producer_id].append(transaction.txid)
    return by_key


def _key(
    name: str, producer: ProducerMetadata, transactions: list[TxId], now: Instant
) -> commands.KeyInfo:
    since_ms = producer.connected_ms
    return commands.KeyInfo(
        name=name,
        epoch=producer.generation,
        connected_ms=since_ms,
        age_ms=max(0, now.wall_ms - since_ms) if since_ms else 0,
        transactions=tuple(transactions),
    )
