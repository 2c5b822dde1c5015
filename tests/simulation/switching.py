"""The operator of a simulated world: switches topics to places and back, while all are at work.

An operator asks the topic's home until the phase is final and readers are told, as `logtx topics
set-mode` does.
"""

from __future__ import annotations

from typing import Final

from logtx.coordinator.protocol import commands
from logtx.journal.errors import LogtxError
from logtx.journal.modes import Mode

from .network import Network, query
from .schedule import Party
from .setting import Setting
from .topology import OUTPUT, TEMPORARY

ASK_MS: Final = 15
"""Pause after which the operator asks again whether a topic is switched."""
FIRST_MS: Final = ((0, 1), (0, 1), (100, 500), (300, 900))
"""Least and most time until a topic is switched first: some are in metadata mode from the start."""
STAYS_MS: Final = (80, 700)
"""Least and most time until it is switched again."""
BACK_SHARE: Final = 0.6
"""Share of the switches after which another one comes."""
WITHOUT_SHARE: Final = 0.15
"""Share of the switches that write no mode records."""
TEMPORARY_SHARE: Final = 0.5
"""Share of the temporary topics that are switched, too."""


class Operator:
    """Switches the topics of one history."""

    def __init__(self, setting: Setting, network: Network) -> None:
        """Plans the first switches."""
        assert setting.modes is not None
        self._setting = setting
        self._network = network
        self._party = Party(setting.scheduler, "operator")
        self._draw = setting.modes
        self.home = self._draw.randrange(setting.journals)
        """Journal partition of the transaction group that the topics are bound to."""
        self.waits: dict[str, Mode] = {}
        """Topic → the mode that it is being switched to."""
        self._plan(OUTPUT)
        if setting.topology.has_temporary and self._draw.random() < TEMPORARY_SHARE:
            self._plan(TEMPORARY)

    def _plan(self, topic: str) -> None:
        first_ms = self._draw.randint(*self._draw.choice(FIRST_MS))
        self._party.later(first_ms, lambda: self._switch(topic, Mode.METADATA))

    def _switch(self, topic: str, mode: Mode) -> None:
        setting = self._setting
        if not setting.faults.on:
            return
        without = self._draw.random() < WITHOUT_SHARE
        setting.faults.count("topic switched without mode records" if without else "topic switched")
        setting.note("operator", f"switches {topic} to", mode.value)
        self.waits[topic] = mode
        self._ask(commands.SetTopicMode(topic=topic, mode=mode, without_records=without))

    def _ask(self, command: commands.SetTopicMode) -> None:
        topic = command.topic
        if topic not in self._setting.topology.truth and topic == TEMPORARY:
            # It was deleted. A new one begins with markers.
            self.waits.pop(topic, None)
            return

        def answered(reply: commands.Reply) -> None:
            info = reply.topics[0] if isinstance(reply, commands.TopicModes) else None
            assert info is not None or isinstance(reply, LogtxError)
            if info is not None and info.published and info.phase.value == command.mode.value:
                self._done(topic, command.mode)
            else:
                self._party.later(ASK_MS, lambda: self._ask(command))

        query(self._network, self._party, self.home, command, answered)

    def _done(self, topic: str, mode: Mode) -> None:
        self._setting.note("operator", f"has switched {topic} to", mode.value)
        self.waits.pop(topic, None)
        if self._draw.random() < BACK_SHARE:
            other = Mode.MARKERS if mode is Mode.METADATA else Mode.METADATA
            stays_ms = self._draw.randint(*STAYS_MS)
            self._party.later(stays_ms, lambda: self._switch(topic, other))
