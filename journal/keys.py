"""Transaction keys: (owner, key), and the one name that stands for both.

That name is the key's producer id and its transaction group, so a key has one home, found by hash.
A key contains no ``&``, so the name tells owner and key apart, whatever the owner is called.

Source: Transaction keys, "Key Concepts" and "PulsarClientBuilder".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .errors import ConfigError

DEFAULT_OWNER: Final = "default"
"""Owner of the keys of clients that are not authenticated."""
FIRST_EPOCH: Final = -1
"""Epoch that a client sends if it was never given one."""
MARK: Final = "&"
"""Separates the parts of a name. A key, and the name of a transaction group, contain none."""


@dataclass(frozen=True, slots=True, order=True)
class TransactionKey:
    """A transaction key of one owner: one connection and one open transaction at a time."""

    owner: str
    key: str

    def __post_init__(self) -> None:
        """Checks the key.

        Raises:
            ConfigError: it is empty, or contains ``&``.
        """
        if not self.key:
            raise ConfigError("transaction.key is empty: name the task that it stands for")
        if MARK in self.key:
            raise ConfigError(
                f"transaction.key {self.key!r} contains '&', which separates owner and key:"
                " choose another character"
            )

    @property
    def name(self) -> str:
        """Producer id and transaction group of the key."""
        return f"{MARK}{self.owner}{MARK}{self.key}"

    @classmethod
    def parse(cls, name: str) -> TransactionKey:
        """Returns the key that a name stands for.

        Raises:
            ConfigError: the name does not stand for a key.
        """
        if not is_key_name(name) or name.count(MARK) < 2:
            raise ConfigError(f"{name!r} is not the name of a transaction key: &OWNER&KEY")
        owner, _, key = name[1:].rpartition(MARK)
        return cls(owner, key)


def is_key_name(name: str) -> bool:
    """Returns whether a producer id or transaction group begins like a key's name."""
    return name.startswith(MARK)
