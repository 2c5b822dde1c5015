"""What nobody used for long, and may be forgotten: producers, consumer groups and their bindings.

Ages are counted in hours of service. The owner ends each hour by a FORGET record, which also names
what is forgotten. So replaying the journal needs no clock, a clock that jumps forgets nothing, and
neither does a time in which no coordinator served.

Why nothing is missed that is forgotten:

1. A producer is forgotten while it has no stream and nothing open. Its generation stays below the
   floor of all new ones, see `Producers`.
2. A consumer group's offsets and claims are forgotten while no unfinished transaction holds them,
   and, if nobody asked for it, while Kafka knows no member of the group.
3. A group's binding is forgotten after its offsets, or two transaction groups would each have half
   of them (trap 28). The caller has asked the other journal partition.
4. A topic's binding is never forgotten: bound anew, it would have two homes, and two of them can't
   agree on the order of what they place. Its mode is known in its home alone, which most often is
   another journal partition; so it can't be told here whether the topic still needs its binding.

Pure: `Shard` calls it, and the owner's shell ends the hours.

Source: Transactional Messaging in Kafka, "Producer IDs and state groups".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Final

from ...journal.errors import NotAllowedError
from ...journal.keys import is_key_name
from ...journal.modes import is_topic_binding
from ...journal.producer_ids import is_anonymous
from ...journal.records.types import Forget
from .claims import Claims
from .clocks import Clocks
from .committed_offsets import CommittedOffsets
from .decision import ShardConfig
from .producers import GENERATION_STEP_MAX, ProducerMetadata, Producers
from .transactions import TransactionMetadataStore

ANONYMOUS_HOURS: Final = 1
"""Full hours after which a producer without a ``transactional.id`` is forgotten. Its client may
come back, so the names of short-lived ones pile up for longer with a larger one; no promise depends
on it."""
NAMES_MAX: Final = 5_000
"""Names of one kind in a FORGET record; further producers get records of their own, groups and
bindings wait for the next hour. Applying more at a time holds the event loop longer."""
NAMES_BYTES_MAX: Final = 200_000
"""Bytes of one kind's names in a record, so that it fits the journal however long they are."""

TURN: Final = 499
"""By how many idle groups the first one moves each hour. Larger than what is asked at a time, and
some would be left out; a prime number, so that it meets every group."""


class Ages:
    """When producers, consumer groups and bindings were used last."""

    def __init__(
        self,
        config: ShardConfig,
        producers: Producers,
        transactions: TransactionMetadataStore,
        offsets: CommittedOffsets,
        claims: Claims,
        bindings: dict[str, str],
    ) -> None:
        """Begins with the first hour. The arguments are the shard's own, which it shares."""
        self.hour = 0
        """Number of hours of service that ended."""
        self.groups: dict[str, int] = {}
        """Consumer group → hour in which it was bound, claimed or moved last."""
        self._connected: dict[str, int] = {}
        """Producer → the last hour at whose end it was connected. It is this owner's memory: one
        that a successor has never seen is as old there as its last record."""
        self._config, self._producers, self._transactions = config, producers, transactions
        self._offsets, self._claims, self._bindings = offsets, claims, bindings

    def use(self, group: str) -> None:
        """Notes that a consumer group was bound, claimed, or moved."""
        self.groups[group] = self.hour

    def is_stale(self, group: str) -> bool:
        """Returns whether a use of the group is worth a record, though it changes nothing else."""
        age = self.hour - self.groups.get(group, 0)
        return age > self._config.group_retention_hours // 7 and not is_topic_binding(group)

    # ---- what the journal says ------------------------------------------------------------------

    def replay(self, record: Forget) -> None:
        """Applies a FORGET record."""
        self._producers.replay_forget(record.producers)
        for group in record.groups:
            self._offsets.forget(group)
            self._claims.forget(group)
        for group, topic in record.topics:
            self._offsets.forget_topic(group, topic)
            self._claims.forget_topic(group, topic)
        for group in record.bindings:
            self._bindings.pop(group, None)
        # Also those that were named once and never committed.
        known = ((g, h) for g, h in self.groups.items() if g in self._bindings or self.knows(g))
        self.groups = dict(known)
        self.hour += record.hours

    def knows(self, group: str) -> bool:
        """Returns whether a consumer group has offsets or claims here."""
        return self._offsets.knows(group) or group in self._claims

    # ---- what is due ----------------------------------------------------------------------------

    def idle_groups(self) -> list[str]:
        """Returns consumer groups whose offsets and claims nobody used for long.

        Begins elsewhere each hour: those behind many that can't be forgotten have their turn too.
        """
        known = chain(self._offsets.groups(), self._claims.groups())
        return self._idle(dict.fromkeys(known))

    def idle_bindings(self) -> list[str]:
        """Returns consumer groups whose bindings nobody used for long, as `idle_groups`."""
        return self._idle(name for name in self._bindings if not is_topic_binding(name))

    def _idle(self, groups: Iterable[str]) -> list[str]:
        oldest = self.hour - self._config.group_retention_hours
        idle = [g for g in groups if self.groups.get(g, 0) <= oldest]
        first = self.hour * TURN % len(idle) if idle else 0
        return idle[first:] + idle[:first]

    def end_hour(
        self, clocks: Clocks, groups: Collection[str], bindings: Collection[str]
    ) -> Forget:
        """Returns the record that ends this hour, and notes who is connected at its end.

        Args:
            clocks: tell which producers have a stream, or the grace to come back.
            groups: those of `idle_groups` that have no member.
            bindings: those of `idle_bindings` whose groups have no offsets any more.
        """
        before = {name: hour for name, hour in self._connected.items() if name in self._producers}
        self._connected = before | dict.fromkeys(clocks.connected(), self.hour)
        held = self._held()
        idle_groups, idle_bindings = set(self.idle_groups()), set(self.idle_bindings())
        return Forget(
            hours=1,
            producers=_fitting(self._idle_producers(clocks)),
            groups=_fitting(g for g in groups if g in idle_groups and g not in held),
            bindings=_fitting(g for g in bindings if g in idle_bindings),
        )

    def rest(self, clocks: Clocks) -> Forget | None:
        """Returns a record that forgets producers for which the last one had no room; None if there
        are none."""
        names = _fitting(self._idle_producers(clocks))
        return Forget(hours=0, producers=names) if names else None

    def _idle_producers(self, clocks: Clocks) -> Iterator[str]:
        retention = self._config.producer_retention_hours
        for name, producer in self._producers.items():
            hours = ANONYMOUS_HOURS if is_anonymous(name) else retention
            used_hour = max(producer.used_hour, self._connected.get(name, 0))
            unused = self.hour - used_hour >= hours
            if unused and self._is_free(name, producer, clocks) and self._is_near(name, producer):
                yield name

    def _is_near(self, name: str, producer: ProducerMetadata) -> bool:
        # The floor holds for every name that is new: one mistaken generation, of a journal that was
        # written before steps had a bound, would leave none of them a higher one.
        step = producer.generation - max(self._producers.floor, 0)
        return is_anonymous(name) or step <= GENERATION_STEP_MAX

    def _is_free(self, name: str, producer: ProducerMetadata, clocks: Clocks) -> bool:
        # A key's epoch is its own floor, and promised to have no gap.
        return not (producer.open or is_key_name(name) or clocks.is_here(name))

    def _held(self) -> set[str]:
        return {group for transaction in self._transactions for group in transaction.offsets}

    # ---- what operators ask ---------------------------------------------------------------------

    def forget_producer(self, name: str, clocks: Clocks) -> Forget | None:
        """Returns the record that forgets a producer; None if it is not known.

        Raises:
            NotAllowedError: it is a transaction key, is connected, or has transactions open.
        """
        producer = self._producers.get(name)
        if producer is None:
            return None
        if is_key_name(name):
            raise NotAllowedError(f"{name!r} is a transaction key: delete the key instead")
        if not self._is_free(name, producer, clocks):
            raise NotAllowedError(
                f"producer {name!r} is connected, or has transactions open: stop it first"
            )
        return Forget(hours=0, producers=(name,))

    def forget_group(self, group: str, topics: tuple[str, ...]) -> Forget | None:
        """Returns the record that forgets a consumer group's offsets and claims; None if it has
        none.

        Args:
            group: the consumer group.
            topics: only those in these topics; none: all.

        Raises:
            NotAllowedError: an unfinished transaction would move its offsets.
        """
        if group in self._held():
            raise NotAllowedError(
                f"a transaction that is not finished moves offsets of consumer group {group!r}:"
                " stop its producers first"
            )
        if not self.knows(group):
            return None
        if topics:
            return Forget(hours=0, topics=tuple((group, topic) for topic in topics))
        return Forget(hours=0, groups=(group,))

    def unbind(self, group: str) -> Forget | None:
        """Returns the record that ends a consumer group's binding; None if it is not bound.

        Raises:
            NotAllowedError: it is a topic's.
        """
        if is_topic_binding(group):
            raise NotAllowedError(f"{group!r} is bound for ever: a topic keeps its home")
        return Forget(hours=0, bindings=(group,)) if group in self._bindings else None


def _fitting(names: Iterable[str]) -> tuple[str, ...]:
    found: list[str] = []
    size = 0
    for name in names:
        size += len(name.encode()) + 2
        if len(found) == NAMES_MAX or size > NAMES_BYTES_MAX:
            break
        found.append(name)
    return tuple(found)
