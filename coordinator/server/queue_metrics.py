"""Makes metrics of subscriptions, on the scraper's thread.

The coordinator learns where a partition ends only while consumers wait for messages of it. A queue
whose consumers are all gone is the one to alarm about, so each scrape asks Kafka for the ends.

The coordinator reads no message, so it does not know how old the oldest one is. `OldestSeen` tells
for how long the same offset has been the oldest one, as far as scrapes have seen: the message is at
least so old.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import Metric

from ...journal.control import TopicPartition
from ...journal.errors import BrokerError, LogtxError, UnknownTopicError
from ...journal.logs.interface import Log
from ...journal.places import PartitionId
from ...journal.spans import MessageId
from ..protocol.queues import SubscriptionInfo
from .families import counter, gauge

_LOG = logging.getLogger(__name__)

SUBSCRIPTIONS_MAX: Final = 200
"""Subscriptions with series of their own, the first by name; each adds seven series to every
scrape."""
_LABELS: Final = ("subscription",)
_Ends = Mapping[TopicPartition, int | LogtxError]


class OldestSeen:
    """Knows since when the same offset has been the oldest of its partition."""

    def __init__(self) -> None:
        """Begins without having seen any."""
        self._seen: dict[tuple[str, PartitionId], tuple[MessageId, int]] = {}

    def look(
        self, starts: Mapping[tuple[str, PartitionId], MessageId], now_ms: int
    ) -> dict[str, float]:
        """Takes what is the oldest now, of partitions that have messages.

        Args:
            starts: (subscription, partition) → the bound below which all is deleted.
            now_ms: monotonic time, in ms.

        Returns:
            Subscription → seconds since the one of its partitions that has stood still for longest
            was first seen so.
        """
        seen: dict[tuple[str, PartitionId], tuple[MessageId, int]] = {}
        ages: dict[str, float] = {}
        for key, start in starts.items():
            before = self._seen.get(key)
            since = before[1] if before is not None and before[0] == start else now_ms
            seen[key] = start, since
            ages[key[0]] = max(ages.get(key[0], 0.0), (now_ms - since) / 1000)
        self._seen = seen
        return ages


class QueueSeries:
    """Makes the series of subscriptions at each scrape."""

    def __init__(self, log: Log, timeout_s: float) -> None:
        """Asks `log` where partitions end, for up to `timeout_s` seconds at each scrape."""
        self._log, self._timeout_s = log, timeout_s
        self._oldest = OldestSeen()

    def collect(
        self, infos: Sequence[SubscriptionInfo], count: int, now_ms: int
    ) -> Iterator[Metric]:
        """Yields the metrics.

        Args:
            infos: subscriptions that have series.
            count: number of all subscriptions.
            now_ms: monotonic time, in ms.
        """
        yield gauge("subscriptions", "Subscriptions of queues.", [((), count)], ())
        text = "Subscriptions without series of their own, because there are very many."
        yield gauge("subscriptions_left_out", text, [((), count - len(infos))], ())
        for name, text, of in (
            ("consumers", "Consumers that are attached.", lambda i: len(i.consumers)),
            (
                "pending_offsets",
                "Offsets that unfinished transactions acknowledge.",
                lambda i: sum(p.pending for p in i.partitions),
            ),
            (
                "leased_offsets",
                "Offsets that consumers work on.",
                lambda i: sum(p.leased for p in i.partitions),
            ),
        ):
            values = [([info.group], float(of(info))) for info in infos]
            yield gauge(f"subscription_{name}", text, values, _LABELS)
        again = [([info.group], float(info.redelivered)) for info in infos]
        text = "Offsets that were given out again."
        yield counter("subscription_redelivered_offsets", text, again, _LABELS)
        rejected = [([info.group], float(info.rejected)) for info in infos]
        text = "Offsets that consumers rejected, without a transaction."
        yield counter("subscription_rejected_offsets", text, rejected, _LABELS)
        yield from self._depths(infos, now_ms)

    def _depths(self, infos: Sequence[SubscriptionInfo], now_ms: int) -> Iterator[Metric]:
        infos, ends = self._now(infos)
        depths = depths_of(infos, ends)
        starts = {
            (info.group, part.partition): part.start
            for info in infos
            for part in info.partitions
            if depths.get(info.group, {}).get(part.partition, 0) > 0
        }
        ages = self._oldest.look(starts, now_ms)
        sums = [([group], float(sum(parts.values()))) for group, parts in depths.items()]
        yield gauge(
            "subscription_depth_offsets", "Offsets that are not acknowledged.", sums, _LABELS
        )
        oldest = [([group], ages.get(group, 0.0)) for group in depths]
        text = "Time that the oldest offset which is not acknowledged has been seen to be that."
        yield gauge("subscription_oldest_seconds", text, oldest, _LABELS)

    def _now(self, infos: Sequence[SubscriptionInfo]) -> tuple[Sequence[SubscriptionInfo], _Ends]:
        """Returns subscriptions as brokers name their topics now, and where partitions end."""
        keys = {part.partition.key for info in infos for part in info.partitions}
        if not keys:
            return infos, {}
        try:
            ends = self._log.each_end_offset(keys, timeout_s=self._timeout_s)
            # Asked behind: an end of a topic that was created anew is not taken for the former's.
            topics = sorted({topic for topic, _ in keys})
            ids = self._log.topic_ids(topics, timeout_s=self._timeout_s)
        except BrokerError as error:
            _LOG.warning("metrics_incomplete error=%s", error)
            return infos, {}
        return [info.as_named_now(ids) for info in infos], ends


def depths_of(infos: Sequence[SubscriptionInfo], ends: _Ends) -> dict[str, dict[PartitionId, int]]:
    """Returns how many offsets of each partition are not acknowledged, by subscription.

    A subscription of which an end is not known is left out. So is a partition whose topic is no
    more: nobody can read it.
    """
    depths: dict[str, dict[PartitionId, int]] = {}
    for info in infos:
        read = [part for part in info.partitions if not part.former]
        told = [(part, ends.get(part.partition.key)) for part in read]
        known = [(part, end) for part, end in told if not isinstance(end, UnknownTopicError)]
        of: dict[PartitionId, int] = {
            part.partition: part.depth(end) for part, end in known if isinstance(end, int)
        }
        if len(of) == len(known):
            depths[info.group] = of
    return depths
