"""Lets the journals that one coordinator knows hand over to each other, and adopt. Pure.

`adopting` has the rules. Each coordinator follows all journals, so the owner of one knows what the
others say, and asks nobody. Where both are served by one process, neither may act on what the other
has only decided: a home adopts what `Tenure.handed` has, which is durable, and what it answers is
taken when its own records are (`Tenure.when_durable`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from .adopting import HandedOver
from .shard import Shard
from .tenure import Tenure
from .topic_homes import TopicHomes


@dataclass(frozen=True, slots=True)
class Known:
    """A journal partition, as one coordinator knows it."""

    shard: Shard
    """Of its own tenure; else of the replica that follows it."""
    tenure: Tenure | None
    """None: it only follows it."""

    @property
    def handed(self) -> HandedOver:
        """What it hands over, by durable records."""
        return self.shard.handed if self.tenure is None else self.tenure.handed


def exchange(known: Collection[Known], homes: TopicHomes, *, hands_over: bool = True) -> bool:
    """Adopts what may be adopted, and takes the answers that are there.

    Call it when something of these journals was read, or became durable.

    Args:
        known: all journal partitions of which something is known.
        homes: of this coordinator; it is told what they say.
        hands_over: whether what is decided from now on may be handed over.

    Returns:
        Whether there may be more to do at once.
    """
    for each in known:
        homes.learn(each.shard.partition, each.shard.modes)
    for each in known:
        if each.tenure is not None and not hands_over:
            each.shard.homes = None
        elif each.tenure is not None and homes:
            each.shard.watch_homes(homes)
    handing = [each for each in known if each.handed]
    more = False
    for each in known:
        for other in handing:
            if each.tenure is not None and other is not each:
                journal = other.shard.partition, other.shard.incarnation
                more = each.tenure.adopt(journal, other.handed) or more
    for each in known:
        if each.tenure is not None and each.tenure.answers:
            _take_answers(each.tenure, known)
    return more


def is_under_way(known: Collection[Known]) -> bool:
    """Returns whether a topic is in metadata mode, or something is handed over and unfinished."""
    return any(each.shard.modes.places_any or each.shard.handed or each.handed for each in known)


def _take_answers(tenure: Tenure, known: Collection[Known]) -> None:
    wanted = tenure.answers.homes()
    for home in known:
        if home.shard.partition not in wanted:
            continue
        found = tenure.answers.ask(home.shard.adopted)
        if found and home.tenure is None:
            tenure.answered(found)
        elif found and home.tenure is not None:
            home.tenure.when_durable(partial(tenure.answered, found))
