"""Tells where a consumer group stood: its committed offsets after any commit, at any time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from ...journal.control import TopicPartition
from ...journal.errors import ConfigError
from ...journal.position import Position
from ...journal.records.scan import JournalPart, SeenTransaction
from ...journal.records.types import Forget
from ...journal.txid import TxId

Iov = Mapping[TopicPartition, Position]


class Standing(NamedTuple):
    """A consumer group's IOV as it was committed."""

    offsets: Iov
    commit: SeenTransaction | None
    """The group's last commit then; None if the journal does not have it any more."""


class GroupHistory:
    """A consumer group's committed offsets, as far as the journal of its transaction group goes
    back."""

    def __init__(self, group: str, part: JournalPart) -> None:
        """Uses what was read of the journal partition where the group commits."""
        self._group, self._part = group, part
        self.commits = [
            seen
            for seen in part.transactions.values()
            if seen.state.commits
            # The snapshot at the beginning has the steps of commits below it.
            and (seen.commit_sequence or 0) >= part.first
            and any(name == group for name, _ in seen.offsets)
        ]
        """Those that moved the group's offsets, in commit order."""
        self.commits.sort(key=_sequence)

    def after(self, commit: TxId | int) -> Standing:
        """Returns where the group stood right after one of its commits.

        Args:
            commit: the transaction, or its commit sequence.

        Raises:
            ConfigError: it is no commit of the group that the journal still has.
        """
        for seen in self.commits:
            if commit in (seen.txid, seen.commit_sequence):
                return self._standing(_sequence(seen) + 1)
        known = (
            f"between {_sequence(self.commits[0])} and {_sequence(self.commits[-1])}"
            if self.commits
            else "none"
        )
        raise ConfigError(
            f"{commit} is no commit of group {self._group!r} in journal partition"
            f" {self._part.partition}: see `logtx group history` (commit sequences there: {known})"
        )

    def at(self, wall_ms: int) -> Standing:
        """Returns where the group stood at a time, by the coordinators' clocks.

        What the journal has from the first decision on that is later does not count, also if a
        clock was set back behind it.

        Args:
            wall_ms: milliseconds since 1970.

        Raises:
            ConfigError: the journal was trimmed above that time.
        """
        decided = [
            seen
            for seen in self._part.transactions.values()
            if seen.decided_ms is not None and _sequence(seen) >= self._part.first
        ]
        if self._part.first > 0:
            since_ms = min((s.decided_ms or 0 for s in decided), default=None)
            if since_ms is None or wall_ms < since_ms:
                raise ConfigError(
                    f"the journal of group {self._group!r} was trimmed, and goes back to "
                    f"{_time(since_ms)}: where it stood at {_time(wall_ms)} is not known any more"
                )
        later = (_sequence(s) for s in decided if (s.decided_ms or 0) > wall_ms)
        return self._standing(min(later, default=None))

    def _standing(self, below: int | None) -> Standing:
        """Returns where the group stood before the journal offset `below`; None: at the end."""
        offsets = dict(self._part.offsets.get(self._group, {}))
        last: SeenTransaction | None = None
        for at, event in self._events():
            if below is not None and at >= below:
                break
            if isinstance(event, Forget):
                if self._group in event.groups:
                    offsets, last = {}, None
                gone = {topic for name, topic in event.topics if name == self._group}
                offsets = {key: to for key, to in offsets.items() if key[0] not in gone}
                continue
            last = event
            for name, step in event.offsets:
                if name == self._group:
                    offsets[step.topic, step.partition] = step.to
        return Standing(offsets, last)

    def _events(self) -> Iterator[tuple[int, SeenTransaction | Forget]]:
        events: list[tuple[int, SeenTransaction | Forget]] = list(self._part.forgotten)
        events += [(_sequence(seen), seen) for seen in self.commits]
        return iter(sorted(events, key=lambda event: event[0]))


def _sequence(seen: SeenTransaction) -> int:
    return seen.commit_sequence or 0


def _time(wall_ms: int | None) -> str:
    if wall_ms is None:
        return "its snapshot, with no decision since"
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
