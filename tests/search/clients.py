"""Clients of a small world: their scripts, and the commands that these lead to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange, TopicPartition

from ..coordinator.harness import step as offset_step
from .tenures import TIMEOUT_MS, txid_of

PARTITIONS: Final[tuple[TopicPartition, ...]] = (("a", 0), ("a", 1))
GROUP: Final = "g"
INPUT: Final[TopicPartition] = ("in", 0)
TRANSACTIONAL: Final = frozenset(
    {"offsets", "part 0", "part 1", "commit", "commit in parts", "abort", "end"}
)
"""Steps that name a TxId."""


class Client(NamedTuple):
    """One client in a state of the world."""

    step: int
    """Step of its script: the request that it sends next or waits for."""
    at: int = -1
    """The coordinator whose answer it waits for; -1: none."""
    attempt: int = 0
    begin: int = -1
    generation: int = 0
    action: int = 0
    """0: none chosen yet; 1: commit; 2: abort."""
    claim: int = -1
    """Number of the claim under which it reads its input; -1: none."""
    place: int = -1
    """How far it has read its input; -1: nothing of it was ever committed."""


START: Final = Client(0)


@dataclass(frozen=True)
class Script:
    """What a client does, step by step."""

    producer_id: str
    nonce: int
    steps: tuple[str, ...]
    """Each is connect, connect as 0, begin, claim, rewind, offsets, part 0, part 1, commit,
    commit in parts (two of them), abort or end (either).

    A claim takes the input over; a rewind claims it again on condition that no other client claimed
    it since. Offsets go from the place that the claim's answer told to the next input.
    """
    request_id: int = 1
    start: Client = START


def request(script: Script, step: str, client: Client, action: int) -> commands.Command:
    """Returns the command of one step of a script."""
    session = commands.SessionId(script.producer_id, client.generation, script.nonce)
    match step:
        case "connect":
            return commands.Connect(producer_id=script.producer_id, nonce=script.nonce)
        case "connect as 0":
            return commands.Connect(
                producer_id=script.producer_id, nonce=script.nonce, generation=0
            )
        case "begin":
            return commands.Begin(
                session=session,
                request_id=script.request_id,
                answered_below=0,
                timeout_ms=TIMEOUT_MS,
            )
        case "claim":
            return commands.ClaimOffsets(group=GROUP, partitions=(INPUT,), claimant=script.nonce)
        case "rewind":
            return commands.ClaimOffsets(
                group=GROUP,
                partitions=(INPUT,),
                claimant=-script.nonce,
                expected={INPUT: client.claim},
            )
        case "offsets":
            start = None if client.place < 0 else client.place
            claim = None if client.claim < 0 else client.claim
            moved = (offset_step(INPUT, start, (start or 0) + 1, claim),)
            return commands.AddOffsets(
                session=session, txid=txid_of(client.begin), group=GROUP, steps=moved
            )
        case "part 0" | "part 1":
            part = int(step[-1])
            of_branch = BranchRange(part + 1, part, part, 1)
            return commands.AddWrites(
                session=session,
                txid=txid_of(client.begin),
                part=part,
                writes=dict.fromkeys(PARTITIONS[part:], (of_branch,)),
            )
        case _:
            commits = action == 1
            wrote = BranchRange(0, script.request_id, script.request_id, 1)
            return commands.End(
                session=session,
                txid=txid_of(client.begin),
                action=commands.Action.COMMIT if commits else commands.Action.ABORT,
                writes=dict.fromkeys(PARTITIONS, (wrote,)) if commits else {},
                parts=2 if step == "commit in parts" else 0,
            )
