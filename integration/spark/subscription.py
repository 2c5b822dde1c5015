"""Which topics and partitions a source reads. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ...journal.control import TopicPartition
from ...journal.errors import ConfigError
from ...journal.settings import take_text
from ...journal.sidecar import check_read_by_user, is_sidecar

_NAMES: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What is read, by one of three options."""

    topics: tuple[str, ...] = ()
    """``subscribe``, or the topics of ``assign``; empty with a pattern."""
    pattern: str | None = None
    """``subscribePattern``: Python's regular expression of whole names. Topics that come later and
    match are read from their start. Sidecars never match."""
    assigned: Mapping[str, tuple[int, ...]] | None = None
    """``assign``: partitions of each topic."""

    @classmethod
    def take(cls, rest: dict[str, Any]) -> Self:
        """Takes the option that says it.

        Raises:
            ConfigError: there is none, more than one, or a bad one.
            UnsupportedTopicError: it names a sidecar: name the topic it belongs to.
        """
        given = {name: take_text(rest, name.lower(), None) for name in _NAMES}
        chosen = [(name, text) for name, text in given.items() if text is not None]
        if len(chosen) != 1:
            found = " and ".join(name for name, _ in chosen) or "none"
            raise ConfigError(
                f"give one of the options {', '.join(_NAMES)}, not {found}: as in"
                " subscribe='flights,legs'"
            )
        [(name, text)] = chosen
        if name == "subscribe":
            topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
            if not topics:
                raise ConfigError("option subscribe names no topic: write it as 'flights,legs'")
            _check_named(topics)
            return cls(topics=topics)
        if name == "subscribePattern":
            return cls(pattern=_checked_pattern(text))
        assigned = _parse_assigned(text)
        _check_named(assigned)
        return cls(topics=tuple(assigned), assigned=assigned)

    def matching(self, listed: Iterable[str]) -> set[str]:
        """Returns which of these topics the pattern matches; none without a pattern."""
        if self.pattern is None:
            return set()
        matches = re.compile(self.pattern).fullmatch
        return {topic for topic in listed if matches(topic) and not is_sidecar(topic)}

    def includes(self, topic: str) -> bool:
        """Returns whether a topic of this name is read."""
        return topic in self.topics or bool(self.matching([topic]))

    def partitions(self, counts: Mapping[str, int]) -> list[TopicPartition]:
        """Returns the partitions that are read.

        Args:
            counts: topic → its number of partitions.

        Raises:
            ConfigError: ``assign`` names a partition that does not exist.
        """
        if self.assigned is None:
            return [(topic, p) for topic, count in counts.items() for p in range(count)]
        for topic, partitions in self.assigned.items():
            if partitions[-1] >= counts[topic]:
                raise ConfigError(
                    f"option assign names partition {partitions[-1]} of topic {topic}, which has"
                    f" {counts[topic]}: name those from 0 to {counts[topic] - 1}"
                )
        return [(topic, p) for topic, partitions in self.assigned.items() for p in partitions]

    def __str__(self) -> str:
        """Returns what is read, for messages."""
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        return _listed(self.topics)


def _listed(topics: Collection[str]) -> str:
    return f"topic{'s' if len(topics) > 1 else ''} {', '.join(sorted(topics))}"


def _check_named(topics: Iterable[str]) -> None:
    for topic in topics:
        check_read_by_user(topic)


def _checked_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"option subscribePattern is no regular expression of Python: {text!r} ({error})"
        ) from error
    return text


def _parse_assigned(text: str) -> dict[str, tuple[int, ...]]:
    bad = ConfigError(f'option assign must be like {{"topic": [0, 1]}}, not {text!r}')
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise bad from error
    if not isinstance(parsed, dict) or not parsed:
        raise bad
    for partitions in parsed.values():
        is_list = isinstance(partitions, list) and bool(partitions)
        # JSON's true is one of Python's numbers.
        if not is_list or not all(type(p) is int and p >= 0 for p in partitions):
            raise bad
    return {topic: tuple(sorted(set(partitions))) for topic, partitions in sorted(parsed.items())}
