"""The other coordinators, and which of them are presumed dead. Pure: the caller has the time.

A process is known by its nonce: an address may be used again. Evidence of its life are streams
that it answers, in either direction, and OWNER records that it appends. Being wrong is harmless:
the journal's epochs decide. But two healthy coordinators that can't reach each other must not
take each other's partitions for ever (each OWNER is evidence that its writer lives, and that is
believed for longer each time).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from .balance import Member

HEARD_S: Final = 1.0
"""An incoming stream is evidence for so long after something came by it."""
PROOF_MIN_S: Final = 2.0
"""An OWNER record of a process that can't be reached is believed for so long at first …"""
PROOF_MAX_S: Final = 300.0
"""… and for twice as long each time, up to this."""
KNOWN_MAX: Final = 256
"""Processes remembered beside those that are reached or own something: those that came first are
forgotten beyond."""


@dataclass(slots=True)
class _Process:
    member: Member
    linked: bool = False
    """Our stream to it is up."""
    heard_s: float = float("-inf")
    """When something came by its stream to us."""
    missed: bool = False
    """It did not answer when it was last called."""
    proofs: int = 0
    """OWNER records that came when the belief in those before had ended."""
    believed_until_s: float = float("-inf")

    def reached(self, now_s: float) -> bool:
        return self.linked or now_s - self.heard_s < HEARD_S

    def dead(self, now_s: float) -> bool:
        return self.missed and not self.reached(now_s) and now_s >= self.believed_until_s


class Members:
    """What one coordinator knows of the others. Times are monotonic seconds."""

    def __init__(self, own_nonce: int, own_address: str) -> None:
        """Know nobody."""
        self._own_nonce = own_nonce
        self._own_addresses = {own_address}
        self._processes: dict[int, _Process] = {}
        self._ends: dict[int, int] = {}
        """Journal partition → the highest end that anybody told of."""
        self._owners: dict[int, int] = {}
        """Journal partition → whose OWNER record is the current one."""

    def learn(self, nonce: int, address: str) -> bool:
        """There is, or was, such a process; False if that is known, or it is this one."""
        if nonce == self._own_nonce or nonce in self._processes:
            return False
        process = self._processes[nonce] = _Process(Member(nonce=nonce, address=address))
        # At our own address we are: whoever was there before has ended.
        process.missed = address in self._own_addresses
        if len(self._processes) > KNOWN_MAX:
            self._forget_one(but=nonce)
        return True

    def owns(self, nonce: int, address: str, partition: int) -> None:
        """A process's OWNER record is the current one of a journal partition."""
        self._owners[partition] = nonce
        self.learn(nonce, address)

    def link(self, member: Member) -> None:
        """It answered at its address, so any other process that was there has ended."""
        self.tell(member)
        process = self._processes[member.nonce]
        process.linked, process.missed = True, False
        process.proofs, process.believed_until_s = 0, float("-inf")
        for other in self._processes.values():
            if other is not process and other.member.address == member.address:
                other.linked, other.missed, other.heard_s = False, True, float("-inf")

    def answered_by_us(self, address: str) -> None:
        """We answered at an address: it is another name of ours, and is called no more.

        A coordinator may come back under another name; who was there by the old one has ended.
        """
        self._own_addresses.add(address)
        self.missed(address)

    def unlink(self, nonce: int) -> None:
        """Our stream to it broke; nothing is concluded before another call of it."""
        if nonce in self._processes:
            self._processes[nonce].linked = False

    def missed(self, address: str) -> None:
        """Nobody answered at an address."""
        for process in self._processes.values():
            if process.member.address == address and not process.linked:
                process.missed = True

    def heard(self, member: Member, now_s: float) -> None:
        """Something came by its stream to us."""
        self.tell(member)
        self._processes[member.nonce].heard_s = now_s

    def silent(self, nonce: int) -> None:
        """Its stream to us ended."""
        if nonce in self._processes:
            self._processes[nonce].heard_s = float("-inf")

    def tell(self, member: Member) -> None:
        """What a coordinator says of itself."""
        self.learn(member.nonce, member.address)
        self._processes[member.nonce].member = member
        for partition, end in member.ends.items():
            self._ends[partition] = max(end, self.known_end(partition))

    def proven(self, nonce: int, address: str, now_s: float) -> None:
        """It has just appended an OWNER record that won."""
        if nonce == self._own_nonce:
            return
        self.learn(nonce, address)
        process = self._processes[nonce]
        # Those that it appends at about one time, for several partitions, prove no more than one.
        if not process.reached(now_s) and now_s >= process.believed_until_s:
            process.proofs += 1
            pause_s = min(PROOF_MIN_S * 2 ** min(process.proofs - 1, 16), PROOF_MAX_S)
            process.believed_until_s = now_s + pause_s

    def known_end(self, partition: int) -> int:
        """Offset below which others have seen everything of a journal partition durable.

        A journal that ends below has lost its tail, though whoever came after the loss can't see
        it in the journal (trap 10).
        """
        return self._ends.get(partition, 0)

    def gained(self, nonce: int, partition: int, epoch: int) -> None:
        """It said that it serves a partition from now on; its own news of that come later."""
        process = self._processes.get(nonce)
        if process is not None:
            member = process.member
            process.member = replace(member, owned={**member.owned, partition: epoch})

    def dead(self, nonce: int, now_s: float) -> bool:
        """Whether a process is presumed dead; not before it was called once."""
        process = self._processes.get(nonce)
        return process is not None and process.dead(now_s)

    def idle(self, nonce: int, partition: int, epoch: int, now_s: float) -> bool:
        """Whether a process that is reached says nothing of serving what it owns since `epoch`.

        It has only just won it and its news are on their way; or it was surprised, and loads.
        """
        process = self._processes.get(nonce)
        return (
            process is not None
            and process.reached(now_s)
            and process.member.owned.get(partition, -1) < epoch
        )

    def get(self, nonce: int) -> Member | None:
        """A process, alive or not; None for an unknown one and for this."""
        process = self._processes.get(nonce)
        return process.member if process is not None else None

    def reached(self, now_s: float) -> list[Member]:
        """Those that answer, or lately did, by nonce."""
        found = (p.member for p in self._processes.values() if p.reached(now_s))
        return sorted(found, key=lambda m: m.nonce)

    def linked(self) -> list[Member]:
        """Those that can be asked for something, by nonce."""
        found = (p.member for p in self._processes.values() if p.linked)
        return sorted(found, key=lambda m: m.nonce)

    def addresses(self, now_s: float, needed: Iterable[int]) -> set[str]:
        """Where to call: whoever is not presumed dead, and of the others those `needed`."""
        keep = set(needed)
        return {
            p.member.address
            for nonce, p in self._processes.items()
            if p.member.address not in self._own_addresses and (nonce in keep or not p.dead(now_s))
        }

    def _forget_one(self, *, but: int) -> None:
        # Insertion order: the oldest first; whoever lives is told of again. But an owner that is
        # forgotten is never presumed dead, and nobody bids for what it had.
        kept = {but, *self._owners.values()}
        idle = [n for n, p in self._processes.items() if n not in kept and not p.linked]
        if idle:
            del self._processes[idle[0]]
