"""What goes wrong, drawn from the seed: which kinds a history has, and how often."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final

CHANNELS: Final[dict[str, tuple[str, ...]]] = {
    "request": ("lost", "duplicated", "delayed", "reordered"),
    "reply": ("lost", "duplicated", "delayed", "reordered"),
    "journal append": ("lost", "unacknowledged", "late", "duplicated", "reordered", "delayed"),
    "data append": ("lost", "unacknowledged", "late", "delayed"),
    "marker append": ("refused", "unacknowledged", "delayed"),
    "offsets append": ("unacknowledged", "delayed"),
}
"""Channel → faults of its messages. ``late``: the writer gives it up, and it lands after all."""
EVENTS: Final = (
    "coordinator crashed",
    "coordinator paused",
    "coordinator usurped",
    "coordinator's clock jumped",
    "partition given away",
    "checkpoint delayed",
    "producer crashed",
    "producer paused",
    "producer replaced while paused",
    "producer started twice",
    "key deleted",
    "consumer crashed",
    "consumer paused",
    "look-up failed",
    "group rebalanced",
    "marker producer full",
    "marker producer hangs",
    "look-up of a topic slow",
    "look-up of a topic failed",
    "broker knows no topic",
    "broker knows the topic's predecessor",
    "broker knows fewer partitions",
)
TRIALS: Final = (
    "topic grows",
    "no look-ups for long",
    "no look-ups for a new commit",
    "coordinator can't read the journal",
    "checkpoint restored elsewhere",
    "journal producer renewed",
    "one id in two groups",
    "coordinator notices that it stood still",
    "little in one turn",
)
"""Events with a `Random` of their own: histories without them are as they would be without it."""
KINDS: Final = (
    *(f"{c} {kind}" for c, kinds in CHANNELS.items() for kind in kinds),
    *EVENTS,
    *TRIALS,
    "writes in parts",
    "former leader answered",
    "topic switched",
    "topic switched without mode records",
    "mode record written twice",
    "ends of partitions told late",
    "end of a partition not told",
    "gate told late",
    "gate not told",
    "modes read late",
    "data trimmed",
)
_TRIAL_CHANCE: Final = 0.25
"""Share of the histories that have one of `TRIALS`."""
OVERTAKEN_SHARE: Final = 0.3
"""Share of the first markers of a producer in a partition, with others behind them, that are
overtaken."""
_CHANCES: Final = (0.0, 0.0, 0.01, 0.03, 0.1)
"""Shares of messages with a fault, drawn per kind. Most histories lack most kinds, so that some
get far."""
_MARKER_CHANCES: Final = (0.0, 0.0, 0.05, 0.1, 0.2)
"""The same for markers: there are few of them in each lane."""


def _chances(channel: str) -> tuple[float, ...]:
    return _MARKER_CHANCES if channel == "marker append" else _CHANCES


class Faults:
    """Draws faults for one history and counts them."""

    def __init__(
        self,
        chance: Random,
        trials: Random,
        parts: Random,
        ends: Random,
        modes: Random,
        counts: Counter[str],
    ) -> None:
        """Draws which kinds of faults this history has.

        Args:
            chance: of the history.
            trials: what `TRIALS` draw from.
            parts: what decides which transactions name what they wrote in parts.
            ends: what decides when a partition's former leader answers readers.
            modes: what decides whether and when topics are switched.
            counts: counts the faults that happened, by their name in `KINDS`.
        """
        self.on = True
        self.calm = False
        """Whether none happens for the moment."""
        self.trials = trials
        self._chance = chance
        self._counts = counts
        self._channels = {
            channel: [(kind, chance.choice(_chances(channel))) for kind in kinds]
            for channel, kinds in CHANNELS.items()
        }
        self._totals = {c: sum(p for _, p in kinds) for c, kinds in self._channels.items()}
        self._events = {event: chance.random() < 0.6 for event in EVENTS}
        self._parts = parts if parts.random() < _TRIAL_CHANCE else None
        self.modes = modes
        """What decides when topics are switched; None if none is."""
        self.ends = ends if ends.random() < _TRIAL_CHANCE else None
        """What decides when a former leader answers; None if none does."""
        self._trials = {trial for trial in TRIALS if trials.random() < _TRIAL_CHANCE}

    def spare(self, channel: str, share: float) -> None:
        """Lets only a share of the faults of a channel happen."""
        kinds = self._channels[channel] = [(k, p * share) for k, p in self._channels[channel]]
        self._totals[channel] = sum(p for _, p in kinds)

    def of(self, channel: str) -> str:
        """Returns what becomes of a message; "" if it arrives."""
        if not self.on or self.calm:
            return ""
        drawn = self._chance.random()
        if drawn >= self._totals[channel]:
            return ""
        for kind, share in self._channels[channel]:
            drawn -= share
            if drawn < 0:
                self._counts[f"{channel} {kind}"] += 1
                return kind
        return ""

    def happens(self, event: str, share: float, *, counted: bool = True) -> bool:
        """Returns whether one of `EVENTS` happens now: in `share` of the calls, if enabled."""
        if not self.on or self.calm:
            return False
        if not (self._events[event] and self._chance.random() < share):
            return False
        if counted:
            self._counts[event] += 1
        return True

    def overtakes(self) -> bool:
        """Returns whether the second marker of a producer is taken, and not the first one.

        Lanes never let that happen: so nothing is drawn but where they are broken.
        """
        return self.on and not self.calm and self.trials.random() < OVERTAKEN_SHARE

    def tries(self, trial: str, share: float = 1.0) -> bool:
        """Returns whether one of `TRIALS` happens now: in `share` of the calls, if enabled."""
        if self.calm or trial not in self._trials:
            return False
        if share < 1 and self.trials.random() >= share:
            return False
        self._counts[trial] += 1
        return True

    def writes_in_parts(self) -> bool:
        """Returns whether a transaction names in parts what its branches wrote."""
        if self._parts is None or self._parts.random() < 0.5:
            return False
        self._counts["writes in parts"] += 1
        return True

    def branches(self, partitions_max: int) -> list[list[int]]:
        """Returns the data partitions that each branch of such a transaction writes to."""
        assert self._parts is not None
        draw = self._parts.randrange
        return [[draw(partitions_max) for _ in range(1 + draw(3))] for _ in range(1 + draw(3))]

    def count(self, event: str) -> None:
        """Counts one of `EVENTS` that took effect."""
        self._counts[event] += 1
