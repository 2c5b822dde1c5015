"""The operator who skips messages of a simulated queue that nobody can ever read.

Plays who reads what a worker logs, and runs the `logtx subscription skip` that it names. Without
that, what a queue can't read holds it up once its window is full.
"""

from __future__ import annotations

from random import Random
from typing import Final

from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import OPERATOR, AcknowledgeType, Lease
from logtx.journal.acks import Acks

from .history import Skip
from .network import Network, query
from .schedule import Party
from .setting import Setting

READS_MS: Final = (200, 2_000)
"""Least and most time until the log is read."""


class Skipper:
    """Skips what workers of a queue say that they can't read."""

    def __init__(self, setting: Setting, network: Network, draw: Random) -> None:
        """Does nothing until it is told of something."""
        self._setting, self._network, self._draw = setting, network, draw
        self._party = Party(setting.scheduler, "operator who skips")
        self._home = setting.home("group-0")
        self._plans: set[tuple[int, Acks]] = set()

    def is_told(self, group: str, era: int, lease: Lease, error: Exception) -> None:
        """Takes what a worker logs of a lease that nobody can read, of one offset."""
        acks = Acks(lease.partition, (lease.span,))
        if (era, acks) in self._plans:
            return
        self._plans.add((era, acks))
        self._setting.history.skips.append(Skip(lease.partition, lease.span, repr(error)))
        command = commands.Acknowledge(
            group=group, consumer=OPERATOR, type=AcknowledgeType.REJECT, acks=(acks,), era=era
        )
        later_ms = self._draw.randint(*READS_MS)
        self._party.later(later_ms, lambda: self._ask(command))

    def _ask(self, command: commands.Acknowledge) -> None:
        self._setting.note(self._party.name, "skips", command.acks)
        self._setting.history.counts["messages of a queue that an operator skips"] += 1
        query(self._network, self._party, self._home, command, self._answered)

    def _answered(self, reply: commands.Reply) -> None:
        self._setting.note(self._party.name, "is told", repr(reply))
