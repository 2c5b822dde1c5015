"""Knows for which topics a rule is still to be looked for, and whether one applies. Pure.

A topic is looked at once, when this coordinator first comes across it, and again if another one has
its name. A rule is for topics without a mode: one that was ever switched by its name stays as it
is, and so does one that is bound to another transaction group.
"""

from __future__ import annotations

from typing import Final

from ...journal.mode_rules import ModeRule
from ...journal.modes import Mode
from ..protocol.commands import TopicModeInfo

NAMED_MAX: Final = 100_000
"""Topics that are remembered; beyond it all are forgotten, and looked at again. Bounds memory."""


class NamedTopics:
    """The topics that one coordinator came across."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}
        """Topic → its id when it was noted."""
        self._due: dict[str, str] = {}

    def note(self, topic: str, topic_id: str) -> bool:
        """Notes that a topic was named. Returns whether it is to be looked at."""
        if self._seen.get(topic) == topic_id:
            return False
        if len(self._seen) >= NAMED_MAX:
            self._seen.clear()
        self._seen[topic] = self._due[topic] = topic_id
        return True

    def take(self) -> dict[str, str]:
        """Returns the topics that are to be looked at now, with their ids."""
        due, self._due = self._due, {}
        return due

    def put_back(self, topic: str, topic_id: str) -> None:
        """Looks at a topic again: what was to be done could not be done."""
        if self._seen.get(topic) == topic_id:
            self._due.setdefault(topic, topic_id)


def applies(rule: ModeRule | None, topic_id: str, group: str | None, info: TopicModeInfo) -> bool:
    """Returns whether a topic is to be switched as a rule says.

    Args:
        rule: the longest one that fits; None: none does.
        topic_id: id of the topic that has the name.
        group: the transaction group that the name is bound to; None: to none.
        info: how its home says that the topic stands.
    """
    if rule is None or rule.mode is not Mode.METADATA:
        return False
    if group not in (None, rule.transaction_group):
        return False
    is_same = topic_id in ("", info.topic_id)
    return info.mode_offset < 0 or not is_same
