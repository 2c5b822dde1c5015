"""The other coordinators, and which of them are presumed dead. Pure: the caller has the time.

A process is known by its nonce, for an address may be used again. Evidence of its life are streams
that it answers, in either direction, and OWNER records that it appends. A wrong guess is harmless:
the journal's epochs decide. But two healthy coordinators that can't reach each other must not take
each other's partitions for ever (trap 7). So each OWNER record counts as evidence that its writer
lives, which is believed for longer each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from .balance import Member
from .patience import Patience

HEARD_S: Final = 1.0
"""How long news on an incoming stream counts as evidence of life: four times `HEARTBEAT_S`.

Shorter, and a busy peer may be presumed dead; longer, and a dead one is bid for later.
"""
PROOF_MIN_S: Final = 2.0
"""How long the first OWNER record of a process that can't be reached is believed.

The time doubles with each further one. Shorter, and two coordinators that can't reach each other
take each other's partitions more often; longer, and a process that dies after its OWNER record is
replaced later.
"""
PROOF_MAX_S: Final = 300.0
"""Upper bound of that time."""
UNPROVEN_MAX: Final = 10_000
"""How far beyond our own end another one is believed whoever tells it, in records.

As many as an owner has in flight, so that a standby is believed which alone has seen them and never
owned anything. More would let a stranger claim a larger loss.
"""
KNOWN_MAX: Final = 256
"""Processes remembered. Beyond it the oldest are forgotten that have no stream and own nothing.

More takes memory; fewer may forget a process that is still to be called.
"""


@dataclass(slots=True)
class _Process:
    member: Member
    linked: bool = False
    """Whether our stream to it is up."""
    heard_s: float = float("-inf")
    """When news last came by its stream to us."""
    missed: bool = False
    """Whether it did not answer when it was last called."""
    proofs: int = 0
    """OWNER records that came when the ones before were no longer believed."""
    believed_until_s: float = float("-inf")
    """Until when its last proof is believed."""

    def reached(self, now_s: float) -> bool:
        return self.linked or now_s - self.heard_s < HEARD_S

    def dead(self, now_s: float) -> bool:
        return self.missed and not self.reached(now_s) and now_s >= self.believed_until_s


class Members:
    """What one coordinator knows about the others. Times are monotonic seconds."""

    def __init__(self, own_nonce: int, own_address: str) -> None:
        self.patience: Final = Patience()
        """How much longer than usual to wait for others."""
        self._own_nonce = own_nonce
        self._own_addresses = {own_address}
        self._processes: dict[int, _Process] = {}
        self._ends: dict[int, int] = {}
        """Journal partition → the highest end that a proven process told of."""
        self._proven: set[int] = set()
        """Nonces of processes that have appended an OWNER record."""
        self._owners: dict[int, int] = {}
        """Journal partition → nonce of the process that wrote the current OWNER record."""

    def learn(self, nonce: int, address: str) -> bool:
        """Adds a process that exists or existed.

        Returns:
            False if it was known already, or is this process.
        """
        if nonce == self._own_nonce or nonce in self._processes:
            return False
        process = self._processes[nonce] = _Process(Member(nonce=nonce, address=address))
        # We are at our own address: another process that was there has ended.
        process.missed = address in self._own_addresses
        if len(self._processes) > KNOWN_MAX:
            self._forget_one(but=nonce)
        return True

    def owns(self, nonce: int, address: str, partition: int) -> None:
        """Notes whose OWNER record is the current one of a journal partition."""
        self._owners[partition] = nonce
        self.learn(nonce, address)
        self._proven.add(nonce)
        if nonce in self._processes:
            self._believe(self._processes[nonce].member)

    def link(self, member: Member) -> None:
        """Notes that our stream to a process is up: it answered at its address.

        Any other process that was at this address has ended.
        """
        self.tell(member)
        process = self._processes[member.nonce]
        process.linked, process.missed = True, False
        process.proofs, process.believed_until_s = 0, float("-inf")
        for other in self._processes.values():
            if other is not process and other.member.address == member.address:
                other.linked, other.missed, other.heard_s = False, True, float("-inf")

    def answered_by_us(self, address: str) -> None:
        """Notes that we answered at an address: it is another name of ours, and is called no more.

        A coordinator may come back under another name. The process that had the old one has ended.
        """
        self._own_addresses.add(address)
        self.missed(address)

    def unlink(self, nonce: int) -> None:
        """Notes that our stream to a process broke. It is not presumed dead before another call."""
        if nonce in self._processes:
            self._processes[nonce].linked = False

    def missed(self, address: str) -> None:
        """Notes that no process answered at an address."""
        for process in self._processes.values():
            if process.member.address == address and not process.linked:
                process.missed = True

    def heard(self, member: Member, now_s: float) -> None:
        """Takes news that came by a process's stream to us."""
        self.tell(member)
        self._processes[member.nonce].heard_s = now_s

    def silent(self, nonce: int) -> None:
        """Notes that a process's stream to us ended."""
        if nonce in self._processes:
            self._processes[nonce].heard_s = float("-inf")

    def tell(self, member: Member) -> None:
        """Takes what a coordinator says about itself."""
        self.learn(member.nonce, member.address)
        process = self._processes[member.nonce]
        before = process.member.ends
        ends = {p: max(end, before.get(p, 0)) for p, end in member.ends.items()}
        process.member = replace(member, ends={**before, **ends})
        if member.nonce in self._proven:
            self._believe(process.member)

    def _believe(self, member: Member) -> None:
        for partition, end in member.ends.items():
            self._ends[partition] = max(end, self._ends.get(partition, 0))

    def proven(self, nonce: int, address: str, now_s: float) -> None:
        """Notes that a process has just won a journal partition by an OWNER record."""
        if nonce == self._own_nonce:
            return
        self.learn(nonce, address)
        process = self._processes[nonce]
        # Several OWNER records at about one time, for several partitions, count as one proof.
        if not process.reached(now_s) and now_s >= process.believed_until_s:
            process.proofs += 1
            pause_s = min(PROOF_MIN_S * 2 ** min(process.proofs - 1, 16), PROOF_MAX_S)
            process.believed_until_s = now_s + pause_s

    def known_end(self, partition: int, own_end: int) -> int:
        """Returns the offset below which somebody has seen all of a journal partition durable.

        A journal that ends below it has lost its tail. A process that came after the loss can't see
        that in the journal (trap 10).

        Anybody who reaches our port can tell of an end. What lies far beyond our own is believed
        only of a process whose OWNER record we have read.

        Args:
            partition: the journal partition.
            own_end: the same offset as this coordinator has seen by itself.
        """
        limit = own_end + UNPROVEN_MAX
        told = (p.member.ends.get(partition, 0) for p in self._processes.values())
        return max(own_end, self._ends.get(partition, 0), *(end for end in told if end <= limit))

    def gained(self, nonce: int, partition: int, epoch: int) -> None:
        """Notes that a process serves a partition from now on, as it just said.

        Its own news of that comes later.
        """
        process = self._processes.get(nonce)
        if process is not None:
            member = process.member
            process.member = replace(member, owned={**member.owned, partition: epoch})

    def dead(self, nonce: int, now_s: float) -> bool:
        """Returns whether a process is presumed dead. It never is before it was called once."""
        process = self._processes.get(nonce)
        return process is not None and process.dead(now_s)

    def idle(self, nonce: int, partition: int, epoch: int, now_s: float) -> bool:
        """Returns whether a process that is reached does not say that it serves its partition.

        Either it has only just won the partition under `epoch` and its news is on its way, or it
        was surprised and is loading the journal.
        """
        process = self._processes.get(nonce)
        return (
            process is not None
            and process.reached(now_s)
            and process.member.owned.get(partition, -1) < epoch
        )

    def get(self, nonce: int) -> Member | None:
        """Returns a process, alive or not; None for an unknown one and for this process."""
        process = self._processes.get(nonce)
        return process.member if process is not None else None

    def reached(self, now_s: float) -> list[Member]:
        """Returns the coordinators that answer, or lately did, ordered by nonce."""
        found = (p.member for p in self._processes.values() if p.reached(now_s))
        return sorted(found, key=lambda m: m.nonce)

    def linked(self) -> list[Member]:
        """Returns the coordinators that we have a stream to, ordered by nonce."""
        found = (p.member for p in self._processes.values() if p.linked)
        return sorted(found, key=lambda m: m.nonce)

    def addresses(self, now_s: float, needed: Iterable[int]) -> set[str]:
        """Returns the addresses to call.

        They are those of all processes that are not presumed dead, and of those named by `needed`.
        """
        keep = set(needed)
        return {
            p.member.address
            for nonce, p in self._processes.items()
            if p.member.address not in self._own_addresses and (nonce in keep or not p.dead(now_s))
        }

    def _forget_one(self, *, but: int) -> None:
        # In insertion order, the oldest first. Others will tell us again of a process that lives.
        # An owner is kept: if it were forgotten, it would never be presumed dead, and no candidate
        # would bid for what it had.
        kept = {but, *self._owners.values()}
        idle = [n for n, p in self._processes.items() if n not in kept and not p.linked]
        if idle:
            del self._processes[idle[0]]
