"""Trimming of sidecars in a simulated world, as `coordinator/server/trimming.py` does it.

`Trimming` is the real one. Each coordinator trims, in each of its lives, by what it has read of the
journals. What takes chance is of a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, cast

from logtx.coordinator.core import floors
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.trimming import JournalView, Noted, Trimming
from logtx.coordinator.runtime.loading import load
from logtx.journal.control import TopicPartition
from logtx.journal.errors import LogtxError
from logtx.journal.logs.interface import Log
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.sidecar import main_partition

from .logs import LogView
from .schedule import Party
from .setting import Setting
from .topology import OUTPUT, SIDECAR

LOOK_MS: Final = (20, 80)
"""Least and most time between two looks."""
DELAY_MS: Final = 150
"""How old a checkpoint must be."""


class Trimmer:
    """What one life of a coordinator knows and trims."""

    def __init__(
        self,
        setting: Setting,
        coordinator: Party,
        draw: Random,
        served: Callable[[int], Shard | None],
        reads: Callable[[], bool],
    ) -> None:
        """Begins without a checkpoint.

        Args:
            setting: of the world.
            coordinator: in whose life this is.
            draw: chance of this life.
            served: returns a journal partition if this coordinator serves it.
            reads: whether it understands what others append.
        """
        self._setting, self._coordinator = setting, coordinator
        self._draw, self._served, self._reads = draw, served, reads
        self._core = Trimming(delay_ms=DELAY_MS, looks_apart_ms=floors.LOOKS_APART_MS)
        self._replicas: dict[int, Replica] = {}
        coordinator.later(self._draw.randint(*LOOK_MS), self.look)

    def look(self) -> None:
        """Notes a checkpoint if one is due, asks for the journals' ends, and trims."""
        setting = self._setting
        self._coordinator.later(self._draw.randint(*LOOK_MS), self.look)
        if self._core.is_due(setting.now_ms):
            self._core.note(self._noted(), setting.now_ms)
        if self._core.wants_journal_ends:
            asked_ms, count = setting.now_ms, setting.journals
            ends = {p: setting.told_end(JOURNAL_TOPIC, p) for p in range(count)}
            self._coordinator.later(
                self._draw.randint(1, 6),
                lambda: self._core.journals_told(ends, asked_ms, setting.now_ms),
            )
        views = {}
        for partition in range(setting.journals):
            shard = self._shard(partition)
            if shard is not None:
                views[partition] = JournalView.of(shard)
        for key, bound in self._core.bounds(views, setting.now_ms).items():
            if bound.noted.is_of(key[0], self._ids()):
                self._trim(key, bound.offset)

    def _trim(self, key: TopicPartition, offset: int) -> None:
        broker = self._setting.broker
        if broker.data_starts.get(key, 0) < offset <= len(broker.data(key)):
            broker.trim_data(key, offset)
            self._setting.history.counts["sidecars trimmed"] += 1

    def _noted(self) -> dict[TopicPartition, Noted]:
        setting, ids = self._setting, self._ids()
        if SIDECAR not in ids:
            return {}
        found: dict[TopicPartition, Noted] = {}
        for _, partition in setting.output_keys:
            key = SIDECAR, partition
            found[key] = Noted(
                end=setting.told_end(*key),
                main_start=setting.broker.data_starts.get(main_partition(key), 0),
                topic_id=ids[SIDECAR],
                main_id=ids[OUTPUT],
            )
        return found

    def _ids(self) -> dict[str, str]:
        truth = self._setting.topology.truth
        return {t: truth[t].topic_id for t in (OUTPUT, SIDECAR) if t in truth}

    def _shard(self, partition: int) -> Shard | None:
        """Returns a journal partition as this coordinator knows it: its own, or as it read it."""
        if (served := self._served(partition)) is not None:
            return served
        broker, replica = self._setting.broker, self._replicas.get(partition)
        if not self._reads() or partition in broker.losses:
            return None
        try:
            if replica is None or replica.next_offset < broker.starts[partition]:
                log, config = cast(Log, LogView(broker)), self._setting.shard_config
                replica = self._replicas[partition] = load(log, partition, config, timeout_s=60)
            for record in broker.journal(partition)[replica.next_offset :]:
                replica.feed(record.offset, record.entry)
        except LogtxError:
            # As a coordinator whose partition can't be read now.
            self._replicas.pop(partition, None)
            return None
        return replica.shard
