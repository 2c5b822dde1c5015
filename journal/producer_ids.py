"""Producer ids: the one name of a producer in the journal and on the wire.

A producer id stands for a ``transactional.id`` within its transaction group. Transaction groups
whose names hash alike share a journal partition, and equal ids in two of them must not fence each
other.

| producer id | stands for |
|---|---|
| ``ID`` | the ``transactional.id`` ID in the transaction group ``default`` |
| ``GROUP&ID`` | the ``transactional.id`` ID in GROUP |
| ``GROUP&&RANDOM`` | a producer in GROUP without a ``transactional.id`` |
| ``&OWNER&KEY`` | a transaction key, see `keys` |

No group contains ``&`` and no id begins with it, so each id is one of these only.

Source: Transactional Messaging in Kafka, "Producer IDs and state groups".
"""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from .errors import ConfigError
from .keys import MARK, is_key_name

DEFAULT_TRANSACTION_GROUP: Final = "default"
"""Transaction group of producers whose settings name none."""


class ProducerName(NamedTuple):
    """A ``transactional.id`` within its transaction group; None stands for no id."""

    transaction_group: str
    transactional_id: str | None


def producer_id_of(transaction_group: str, transactional_id: str | None) -> str:
    """Returns the producer id of a ``transactional.id``; for None a random one of nobody else.

    Raises:
        ConfigError: a name is one that belongs to transaction keys.
    """
    if MARK in transaction_group:
        raise ConfigError(
            f"transaction.group {transaction_group!r} contains '&', which separates it from the"
            " transactional.id: choose another, or set transaction.key instead"
        )
    if transactional_id is None:
        return f"{transaction_group}{MARK}{MARK}{secrets.token_hex(8)}"
    if transactional_id.startswith(MARK):
        raise ConfigError(
            f"transactional.id {transactional_id!r} begins with '&', as the names of transaction"
            " keys do: choose another, or set transaction.key instead"
        )
    if transaction_group == DEFAULT_TRANSACTION_GROUP and MARK not in transactional_id:
        return transactional_id
    return f"{transaction_group}{MARK}{transactional_id}"


def producer_name_of(producer_id: str) -> ProducerName:
    """Returns what a producer id stands for, if it is not a transaction key's name."""
    group, mark, transactional_id = producer_id.partition(MARK)
    if not mark:
        return ProducerName(DEFAULT_TRANSACTION_GROUP, producer_id)
    if transactional_id.startswith(MARK):
        return ProducerName(group, None)
    return ProducerName(group, transactional_id)


def is_anonymous(producer_id: str) -> bool:
    """Returns whether a producer has no ``transactional.id``: nobody can ever replace it."""
    return not is_key_name(producer_id) and producer_name_of(producer_id).transactional_id is None


def is_called(producer_id: str, name: str) -> bool:
    """Returns whether a name means this producer: its producer id, or its ``transactional.id``."""
    if producer_id == name:
        return True
    return not is_key_name(producer_id) and producer_name_of(producer_id).transactional_id == name
