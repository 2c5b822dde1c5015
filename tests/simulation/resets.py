"""The operator of a simulated queue: resets and deletes its subscription, while its workers rest.

For that its workers leave: some close their consumers, others lose their streams and go on with
what they have, without hearing of it. The operator looks at the subscription and asks until it is
answered, as `logtx subscription reset` and `delete` do. Then all come back.
"""

from __future__ import annotations

from random import Random
from typing import Final

from logtx.coordinator.core import dispatch
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import SubscriptionInfo
from logtx.journal.errors import NotAllowedError

from .network import Network, query
from .queues import QUEUE
from .schedule import Party
from .setting import Setting

FIRST_MS: Final = (100, 700)
"""Least and most time until the first order."""
PAUSE_MS: Final = (200, 700)
"""Least and most time until the next one."""
AWAY_MS: Final = 120
"""How long workers stay away beyond the time after which they count as gone."""
TRIES: Final = 12
"""Most tries of one order: transactions may hold it up for longer than it is worth."""
AGAIN_MS: Final = 40
"""Pause between two tries."""
DELETE_SHARE: Final = 0.3
"""Share of the orders that delete."""
PART_SHARE: Final = 0.3
"""Share of the resets that are of some partitions alone."""


class QueueOperator:
    """Resets and deletes one subscription, again and again until the faults stop."""

    def __init__(self, setting: Setting, network: Network, draw: Random) -> None:
        """Plans the first order."""
        self._setting, self._network, self._draw = setting, network, draw
        self._party = Party(setting.scheduler, "operator of the queue")
        self._home = setting.home("group-0")
        self._tries = 0
        self._party.later(draw.randint(*FIRST_MS), self._begin)

    def _begin(self) -> None:
        setting = self._setting
        if not setting.faults.on:
            return
        setting.workers_leave = True
        self._tries = 0
        self._party.later(dispatch.GONE_MS + self._draw.randint(0, AWAY_MS), self._look)

    def _end(self) -> None:
        self._setting.workers_leave = False
        self._party.later(self._draw.randint(*PAUSE_MS), self._begin)

    def _look(self) -> None:
        self._tries += 1
        if not self._setting.faults.on or self._tries > TRIES:
            self._end()
            return
        ask = commands.DescribeSubscriptions(groups=(QUEUE,))
        query(self._network, self._party, self._home, ask, self._order)

    def _order(self, reply: commands.Reply) -> None:
        if not isinstance(reply, commands.SubscriptionsPage):
            self._end()  # There is none yet.
            return
        command = self._command(reply.subscriptions[0])
        self._setting.history.orders.append(command)
        query(self._network, self._party, self._home, command, self._answered)

    def _command(self, info: SubscriptionInfo) -> commands.Command:
        draw, broker = self._draw, self._setting.broker
        if draw.random() < DELETE_SHARE:
            return commands.DeleteSubscription(group=QUEUE, era=info.era)
        partitions = [part.partition for part in info.partitions if not part.former]
        if draw.random() < PART_SHARE and partitions:
            partitions = draw.sample(partitions, draw.randint(1, len(partitions)))
        starts = {
            partition: draw.choice((0, draw.randint(0, len(broker.data(partition.key)))))
            for partition in partitions
        }
        return commands.ResetSubscription(group=QUEUE, era=info.era, starts=starts)

    def _answered(self, reply: commands.Reply) -> None:
        setting = self._setting
        setting.note(self._party.name, "is told", repr(reply))
        if isinstance(reply, NotAllowedError):
            self._party.later(AGAIN_MS, self._look)
            return
        setting.history.counts["orders of the queue's operator"] += isinstance(reply, commands.Done)
        self._end()
