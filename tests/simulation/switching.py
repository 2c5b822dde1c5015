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
from .schedule import Act, Party
from .setting import Setting
from .topology import OUTPUT, TEMPORARY

ASK_MS: Final = 15
"""Pause after which the operator asks again whether a topic is switched."""
FIRST_MS: Final = ((0, 1), (0, 1), (100, 500), (300, 900))
"""Least and most time until a topic is switched first: some are in metadata mode from the start."""
BLIND_SHARE: Final = 0.15
"""Share of the histories whose topic is switched without mode records, before anybody reads it."""
ONE_BLIND_OF: Final = 5
"""One of so many later switches to metadata mode writes no mode records."""
STAYS_MS: Final = (80, 700)
"""Least and most time until it is switched again."""
BACK_SHARE: Final = 0.6
"""Share of the switches after which another one comes."""
TEMPORARY_SHARE: Final = 0.5
"""Share of the temporary topics that are switched, too."""


class Operator:
    """Switches the topics of one history."""

    def __init__(
        self, setting: Setting, network: Network, begin_reading: Act, *, once: bool = False
    ) -> None:
        """Plans the first switches. `begin_reading` is called at once, or when a topic is switched
        that nobody may read before.

        With `once` there is one switch, of the output, and nobody reads it before.
        """
        assert setting.modes is not None
        self._once = once
        self._begin_reading: Act | None = begin_reading
        self._setting = setting
        self._network = network
        self._party = Party(setting.scheduler, "operator")
        self._draw = setting.modes
        self.home = self._draw.randrange(setting.journals)
        """Journal partition of the transaction group that the topics are bound to."""
        setting.places_at = self.home
        self.has_switched = False
        """Whether a switch of the output was ever over."""
        self.waits: dict[str, Mode] = {}
        """Topic → the mode that it is being switched to."""
        if self._draw.random() < BLIND_SHARE:
            self._switch(OUTPUT, Mode.METADATA, without_records=True)
        else:
            if not once:
                self._readers_begin()
            self._plan(OUTPUT)
        if once:
            return
        if setting.topology.has_temporary and self._draw.random() < TEMPORARY_SHARE:
            self._plan(TEMPORARY)

    def _plan(self, topic: str) -> None:
        first_ms = self._draw.randint(*self._draw.choice(FIRST_MS))
        blind = first_ms % ONE_BLIND_OF == 1
        self._party.later(
            first_ms, lambda: self._switch(topic, Mode.METADATA, without_records=blind)
        )

    @property
    def is_before_readers(self) -> bool:
        """Whether nobody may read the topic yet."""
        return self._begin_reading is not None

    def _readers_begin(self) -> None:
        begin, self._begin_reading = self._begin_reading, None
        if begin is not None:
            begin()

    def _switch(self, topic: str, mode: Mode, *, without_records: bool = False) -> None:
        setting, without = self._setting, without_records
        if not setting.faults.on:
            return
        setting.faults.count("topic switched without mode records" if without else "topic switched")
        if without and not self.is_before_readers:
            setting.history.counts["topic switched without mode records while it is read"] += 1
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
        self.has_switched |= topic == OUTPUT
        self._readers_begin()
        if not self._once and self._draw.random() < BACK_SHARE:
            other = Mode.MARKERS if mode is Mode.METADATA else Mode.METADATA
            stays_ms = self._draw.randint(*STAYS_MS)
            blind = other is Mode.METADATA and stays_ms % ONE_BLIND_OF == 1
            self._party.later(stays_ms, lambda: self._switch(topic, other, without_records=blind))
