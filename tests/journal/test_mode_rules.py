"""Rules for topics that are created later: what counts, and which one fits."""

from __future__ import annotations

import pytest

from logtx.journal.errors import ConfigError, UnknownRecordError
from logtx.journal.mode_registry import ModeKey, Published, TopicModeRecord, encode_key, latest
from logtx.journal.mode_registry import encode_value as encode_mode
from logtx.journal.mode_rules import ModeRule, check_rule, encode_rule, is_rule, longest, rules_in
from logtx.journal.modes import Mode, Phase

ALL = ModeRule("*", Mode.METADATA, "all")
ORDERS = ModeRule("orders.*", Mode.METADATA, "billing")
EU = ModeRule("orders.eu.*", Mode.MARKERS)
RULES = {rule.name: rule for rule in (ALL, ORDERS, EU)}


def written(*rules: ModeRule | str) -> list[Published]:
    """The records that set these rules, or remove those of which only the name is given."""
    pairs = (encode_rule(r, None) if isinstance(r, str) else encode_rule(r.name, r) for r in rules)
    return [Published(key, value, at) for at, (key, value) in enumerate(pairs)]


@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        ("orders.us", ORDERS),
        ("orders.", ORDERS),
        ("orders", ALL),
        ("orders.eu.x", EU),
        ("orders.eu", ORDERS),
        ("payments", ALL),
        ("__consumer_offsets", None),
    ],
)
def test_the_longest_that_fits_counts(topic: str, rule: ModeRule | None) -> None:
    assert longest(RULES, topic) == rule
    assert longest({}, topic) is None


def test_topics_of_kafka_itself_need_a_rule_that_says_so() -> None:
    assert longest({"__x*": ModeRule("__x*", Mode.METADATA, "g")}, "__xy") is not None


def test_what_was_written_last_counts() -> None:
    other = ModeRule(ORDERS.name, Mode.METADATA, "other")
    assert rules_in(written(ALL, ORDERS, EU)) == RULES
    assert rules_in(written(ORDERS, EU, other)) == {other.name: other, EU.name: EU}
    assert rules_in(written(ORDERS, EU, ORDERS.name)) == {EU.name: EU}
    assert rules_in(written(ORDERS, ORDERS.name, ORDERS)) == {ORDERS.name: ORDERS}
    assert rules_in([]) == {}


def test_rules_and_modes_of_topics_lie_side_by_side() -> None:
    key = ModeKey("orders", partition=3, incarnation=7, epoch=5)
    mode = TopicModeRecord(
        topic="orders",
        topic_id="id",
        phase=Phase.METADATA,
        home=key.home,
        mode_offset=9,
        offset=10,
    )
    records = [Published(encode_key(key), encode_mode(mode), 0), *written(ORDERS)]
    assert latest(records) == {"orders": mode}
    assert rules_in(records) == {ORDERS.name: ORDERS}


def test_a_rule_of_a_newer_version_is_told() -> None:
    key = ModeKey("t*", partition=0, incarnation=0, epoch=0)
    switching = TopicModeRecord(
        topic="t*",
        topic_id="g",
        phase=Phase.TO_METADATA,
        home=key.home,
        mode_offset=0,
        offset=0,
    )
    with pytest.raises(UnknownRecordError, match="upgrade this program"):
        rules_in([Published(encode_key(key), encode_mode(switching), 0)])


@pytest.mark.parametrize("name", ["orders", "", "or*ders", "a*b*", "a b*", "a/*", "x" * 249 + "*"])
def test_what_is_no_rule(name: str) -> None:
    with pytest.raises(ConfigError, match="is no rule: write how"):
        check_rule(name)


def test_what_is_a_rule() -> None:
    assert [check_rule(name) for name in ("*", "a.*", "x" * 248 + "*")]
    assert is_rule("a*")
    assert not is_rule("a")
