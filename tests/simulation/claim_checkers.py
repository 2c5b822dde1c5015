"""Checkers of claims, and of workers that read, process and write; they see a `History` alone."""

from __future__ import annotations

from collections.abc import Iterator

from logtx.coordinator.protocol import commands
from logtx.journal.control import TopicPartition
from logtx.journal.errors import ClaimFencedError

from .history import History, Told
from .reference import Journal, Reading


def claims(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 6: what an older claim let begin takes no effect, and no zombie takes over."""
    for journal in reading.journals:
        for name, what in journal.wrong:
            if name == "claims":
                yield f"journal {journal.partition} at {what}"
    for told in history.told:
        journal, command = reading.journals[told.partition], told.command
        if isinstance(command, commands.ClaimOffsets):
            yield from _claimed(told, journal, command)
        elif isinstance(command, commands.AddOffsets) and isinstance(told.reply, commands.Done):
            yield from _taken(told, journal, command)


def _claimed(told: Told, journal: Journal, command: commands.ClaimOffsets) -> Iterator[str]:
    reply, expected = told.reply, command.expected
    if isinstance(reply, ClaimFencedError):
        if expected is None:
            yield f"{told.coordinator} refused a claim without a condition: {command}"
            return
        # Claim numbers only rise, so what a claim refuses once is refused for ever.
        if all(journal.claim_at(command.group, p, told.at) == n for p, n in expected.items()):
            yield f"{told.coordinator} refused {command}, and nobody claimed since"
    elif isinstance(reply, commands.Claimed):
        claim = journal.claims.get(reply.number)
        if claim is None or claim.at > told.at or claim.record.claimant != command.claimant:
            yield f"{told.coordinator} told claim {reply.number}: the journal had {claim}"
        elif expected is not None and any(claim.former.get(p) != n for p, n in expected.items()):
            yield f"{told.coordinator} let {command} hold, though {claim.former} were claimed"


def _taken(told: Told, journal: Journal, command: commands.AddOffsets) -> Iterator[str]:
    found = journal.transactions.get(command.txid.offset)
    for step in command.steps:
        latest = journal.claim_at(command.group, (step.topic, step.partition), told.asked_at)
        if step.claim is None or latest is None or latest <= step.claim or found is None:
            continue
        if any(at > told.asked_at and s == step for at, _, s in found.steps):
            yield f"{told.coordinator} took {step} of claim {step.claim} behind claim {latest}"


def processed(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 8: every input that was consumed is in the output of one committed transaction."""
    done: dict[tuple[int, str, TopicPartition], list[tuple[int, int]]] = {}
    for txid, work in history.works.items():
        found = reading.transaction(txid)
        if found is None or found.decision is None or not found.decision.committed:
            continue
        for each in work.inputs:
            key = txid.partition, each.group, each.partition
            done.setdefault(key, []).append((each.start, each.end))
    for (number, group, partition), spans in done.items():
        reached = 0
        for start, end in sorted(spans):
            if start != reached:
                what = "twice" if start < reached else "never"
                where = f"{min(start, reached)} to {max(start, reached)}"
                yield f"input {where} of {partition} was processed {what} for {group}"
            reached = end
        commits = reading.journals[number].commits.get(group, [])
        place = commits[-1].places.get(partition) if commits else None
        if place is None or place.o2 != reached:
            yield f"{group} has processed {partition} up to {reached}, and stands at {place}"
