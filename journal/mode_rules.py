"""Rules for topics that are created later: `orders.*` stands for all topics that begin so.

A rule says which mode a topic is switched to when transactions first name it. Of several that fit,
the longest one counts. Nothing depends on a rule: what it begins is a switch like any other, and
the home of the topic decides it. So a rule lies in `__transaction_topics` alone, as the mode of a
name that no topic can have, always under the same key: of two writes the later one counts. Its
transaction group stands where a topic has its id. Readers look for topics by name, and pass over
rules.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from .errors import ConfigError, UnknownRecordError
from .mode_registry import (
    EVERY,
    ModeKey,
    Published,
    TopicModeRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from .modes import Mode, Phase

_MODES: Final = {Phase(mode.value): mode for mode in Mode}
_PREFIX: Final = re.compile(r"[a-zA-Z0-9._-]{0,248}")
_INTERNAL: Final = "__"
"""Begins the names of Kafka's and logtx's own topics. Only a rule that begins so is for them."""


@dataclass(frozen=True, slots=True)
class ModeRule:
    """Which mode a topic is switched to, if its name begins so."""

    name: str
    """The beginning, and `EVERY`."""
    mode: Mode
    transaction_group: str = ""
    """The one whose transactions are placed there; empty for markers."""

    @property
    def prefix(self) -> str:
        """What a topic's name must begin with."""
        return self.name.removesuffix(EVERY)

    def fits(self, topic: str) -> bool:
        """Returns whether it is for a topic of this name."""
        is_internal = topic.startswith(_INTERNAL) and not self.prefix.startswith(_INTERNAL)
        return topic.startswith(self.prefix) and not is_internal


def is_rule(name: str) -> bool:
    """Returns whether a name stands for all topics that begin so."""
    return name.endswith(EVERY)


def check_rule(name: str) -> str:
    """Returns the name of a rule.

    Raises:
        ConfigError: no topic can begin so.
    """
    if not is_rule(name) or not _PREFIX.fullmatch(name.removesuffix(EVERY)):
        raise ConfigError(
            f"{name!r} is no rule: write how the names of topics begin, and one {EVERY} behind it"
        )
    return name


def encode_rule(name: str, rule: ModeRule | None) -> tuple[bytes, bytes | None]:
    """Returns key and value of the record that sets a rule, or with None removes it."""
    key = ModeKey(name, partition=0, incarnation=0, epoch=0)
    if rule is None:
        return encode_key(key), None
    value = TopicModeRecord(
        topic=name,
        topic_id=rule.transaction_group,
        phase=Phase(rule.mode.value),
        home=key.home,
        mode_offset=0,
        offset=0,
    )
    return encode_key(key), encode_value(value)


def rules_in(records: Iterable[Published]) -> dict[str, ModeRule]:
    """Returns the rules that count, by name.

    Args:
        records: those of `__transaction_topics`, in its order.

    Raises:
        UnknownRecordError: a record is of a newer version.
        CorruptRecordError: a record does not decode.
    """
    rules: dict[str, ModeRule] = {}
    for record in records:
        key = decode_key(record.key)
        if not is_rule(key.topic):
            continue
        rules.pop(key.topic, None)
        if record.value is not None:
            told = decode_value(key, record.value)
            if told.phase not in _MODES:
                raise UnknownRecordError(
                    f"rule {key.topic} says {told.phase}; upgrade this program"
                )
            rules[key.topic] = ModeRule(key.topic, _MODES[told.phase], told.topic_id)
    return dict(sorted(rules.items()))


def longest(rules: Mapping[str, ModeRule], topic: str) -> ModeRule | None:
    """Returns the rule for a topic: of those that fit, the one with the longest beginning."""
    fitting = (rule for rule in rules.values() if rule.fits(topic))
    return max(fitting, key=lambda rule: len(rule.name), default=None)
