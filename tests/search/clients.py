"""Clients of a small world: their scripts, and the commands that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from logtx.coordinator import commands as c
from logtx.journal.control import BranchRange, TopicPartition

from ..coordinator.harness import step as offset_step
from .tenures import TIMEOUT_MS, txid_of

PARTITIONS: Final[tuple[TopicPartition, ...]] = (("a", 0), ("a", 1))
GROUP: Final = "g"
TRANSACTIONAL: Final = frozenset({"offsets", "commit", "abort", "end"})
"""Steps that name a TxId."""


class Client(NamedTuple):
    """One client in a state of the world."""

    step: int
    """Of its script: the request that it sends next or waits for."""
    at: int = -1
    """The coordinator that it waits at; -1: it waits for nothing."""
    attempt: int = 0
    begin: int = -1
    generation: int = 0
    action: int = 0
    """0: none chosen yet; 1: commit; 2: abort."""


START: Final = Client(0)


@dataclass(frozen=True)
class Script:
    """What a client does, step by step."""

    producer_id: str
    nonce: int
    steps: tuple[str, ...]
    """Of connect, connect as 0, begin, offsets, commit, abort, end (either)."""
    request_id: int = 1
    offsets: tuple[int | None, int] = (None, 1)
    start: Client = START


def request(script: Script, step: str, client: Client, action: int) -> c.Command:
    """The command of one step of a script."""
    session = c.Session(script.producer_id, client.generation, script.nonce)
    match step:
        case "connect":
            return c.Connect(producer_id=script.producer_id, nonce=script.nonce)
        case "connect as 0":
            return c.Connect(producer_id=script.producer_id, nonce=script.nonce, generation=0)
        case "begin":
            return c.Begin(
                session=session,
                request_id=script.request_id,
                answered_below=0,
                timeout_ms=TIMEOUT_MS,
            )
        case "offsets":
            moved = (offset_step(("in", 0), *script.offsets),)
            return c.AddOffsets(
                session=session, txid=txid_of(client.begin), group=GROUP, steps=moved
            )
        case _:
            commits = action == 1
            wrote = BranchRange(0, script.request_id, script.request_id, 1)
            return c.End(
                session=session,
                txid=txid_of(client.begin),
                action=c.Action.COMMIT if commits else c.Action.ABORT,
                writes=dict.fromkeys(PARTITIONS, (wrote,)) if commits else {},
            )
