"""The summary that a branch gives to its transaction's owner, and the token that it joins with.

Both travel between processes, by any means that the user has: text and bytes, versioned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import ConfigError
from ...journal.txid import TxId

_VERSION: Final = 1
"""Version of an encoded summary; readers refuse any other."""
_TOKEN_PREFIX: Final = "logtx-branch-1:"
NONCE_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class BranchSummary:
    """What one branch wrote; its records count if the owner accepts this.

    Can be pickled; `to_bytes` is for everything else. Source: PIP-31, "Produce Messages" (many
    producers in one transaction).
    """

    txid: TxId
    branch: int
    """The branch's random 64-bit nonce, never 0."""
    writes: Mapping[TopicPartition, BranchRange]
    """First offset, last offset and number of its records in each partition."""

    def to_bytes(self) -> bytes:
        """Encodes it for another process."""
        writes = [
            [topic, partition, w.first_offset, w.last_offset, w.count]
            for (topic, partition), w in sorted(self.writes.items())
        ]
        body = {"v": _VERSION, "txid": str(self.txid), "branch": self.branch, "writes": writes}
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Decodes what `to_bytes` returned.

        Raises:
            ValueError: it is something else, or of a newer version.
        """
        body = json.loads(raw)
        if not isinstance(body, dict) or body.get("v") != _VERSION:
            raise ValueError(f"not a branch summary of version {_VERSION}")
        try:
            branch = int(body["branch"])
            writes = {
                (str(topic), int(partition)): BranchRange(branch, int(first), int(last), int(n))
                for topic, partition, first, last, n in body["writes"]
            }
            return cls(TxId.parse(body["txid"]), branch, writes)
        except (KeyError, TypeError) as error:
            raise ValueError("a branch summary lacks a field") from error


def make_token(txid: TxId) -> str:
    """Returns the text with which other processes join a transaction."""
    return f"{_TOKEN_PREFIX}{txid}"


def read_token(token: str) -> TxId:
    """Returns the id of the transaction that a token names.

    Raises:
        ConfigError: it is not a token of this version.
    """
    try:
        if token.startswith(_TOKEN_PREFIX):
            return TxId.parse(token.removeprefix(_TOKEN_PREFIX))
    except ValueError as error:
        raise ConfigError(f"not a branch token: {token!r}") from error
    raise ConfigError(f"not a branch token: {token!r}; take one from Transaction.branch_token()")
