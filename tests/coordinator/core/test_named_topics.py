"""For which topics a rule is looked for, and to which it applies."""

from __future__ import annotations

import pytest

from logtx.coordinator.core import named_topics
from logtx.coordinator.core.named_topics import NamedTopics, applies
from logtx.coordinator.protocol.commands import TopicModeInfo
from logtx.journal.mode_rules import ModeRule
from logtx.journal.modes import Mode, Phase

RULE = ModeRule("orders.*", Mode.METADATA, "billing")


def info(topic_id: str = "", mode_offset: int = -1) -> TopicModeInfo:
    return TopicModeInfo(
        topic="orders.a", topic_id=topic_id, phase=Phase.MARKERS, mode_offset=mode_offset
    )


def test_a_topic_is_looked_at_once() -> None:
    named = NamedTopics()
    assert named.note("a", "1")
    assert not named.note("a", "1")
    assert named.take() == {"a": "1"}
    assert not named.take()
    assert not named.note("a", "1")


def test_another_topic_of_the_name_is_looked_at_too() -> None:
    named = NamedTopics()
    named.note("a", "1")
    named.take()
    assert named.note("a", "2")
    named.put_back("a", "1")
    assert named.take() == {"a": "2"}
    named.put_back("a", "2")
    assert named.take() == {"a": "2"}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_topics, "NAMED_MAX", 2)
    named = NamedTopics()
    assert all(named.note(topic, "1") for topic in "abc")
    assert named.note("a", "1"), "forgotten, and looked at again"
    assert named.take() == dict.fromkeys("abc", "1")


@pytest.mark.parametrize(
    ("rule", "group", "told", "does"),
    [
        (RULE, None, info(), True),
        (RULE, "billing", info(), True),
        (RULE, "billing", info("former", 40), True),
        (RULE, "billing", info("id", 40), False),
        (RULE, "shipping", info(), False),
        (ModeRule("*", Mode.MARKERS), None, info(), False),
        (None, None, info(), False),
    ],
    ids=[
        *("new", "was begun", "created anew", "was switched", "bound elsewhere", "markers"),
        "no rule",
    ],
)
def test_to_which_topics_a_rule_applies(
    rule: ModeRule | None, group: str | None, told: TopicModeInfo, does: bool
) -> None:
    assert applies(rule, "id", group, told) is does


def test_a_log_without_ids_has_one_topic_of_a_name() -> None:
    assert not applies(RULE, "", "billing", info("", 40))
