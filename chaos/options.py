"""The options of `logtx chaos`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from .errors import ChaosError
from .plan import Role

EXTENSION: Final = "logtx.journal.native._extension"
"""The module that --native needs. Whether it works, each process finds out."""
SECONDS_MIN: Final = 8
"""Shorter loads leave no time for a fault."""


class System(StrEnum):
    """The system whose transactions are tested."""

    LOGTX = "logtx"
    KAFKA = "kafka"
    """Kafka's own transactions, through confluent-kafka."""


class Metadata(StrEnum):
    """Which topics begin in metadata mode. Unless it is `NONE`, all are switched back and forth."""

    NONE = "none"
    """None, and none is ever switched."""
    HALF = "half"
    """The workers' input, or their output; the seed chooses."""
    ALL = "all"
    """Both, and the topic that is deleted and made anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """The options of the command line, and those that only tests set."""

    seconds: float = 300
    """Length of the load. Starting, draining, reading and checking come on top."""
    commits: int | None = None
    """The load ends once so many transactions are committed, if `seconds` are not over before, and
    then the run says that it fell short. None: it lasts for `seconds`."""
    seed: int = 1
    """The plan of the faults is drawn from it."""
    system: System = System.LOGTX
    rate: float = 200
    """Transactions per second that all producers together aim at."""
    data_dir: Path | None = None
    """Run directory; None for a temporary one, which is kept if anomalies are found."""
    mild: bool = False
    """Few and short faults, for runs of seconds."""
    upgrade_from: str | None = None
    """A commit or a tag, whose coordinators are started first. In the middle of the load today's
    take their places, one after the other. None: all are today's."""
    spark: bool = False
    """Whether a Spark query is one of the workers."""
    metadata: Metadata = Metadata.NONE
    """Which topics begin in metadata mode."""
    sidecar: bool = False
    """Whether a share of the transactions writes to sidecars."""
    queue: bool = False
    """Whether queue workers work off the workers' input, too."""
    native: bool = False
    """Whether half of the clients take the C extension."""
    launcher: tuple[str, ...] = ()
    """Module and arguments that start each process of logtx; the process's own module and arguments
    follow them. Tests break logtx on purpose this way."""
    brokers: int = 3
    coordinators: int = 3
    producers: int = 4
    """The last of them write with transaction keys."""
    workers: int = 2
    consumers: int = 5
    queue_workers: int = 2

    def check(self) -> None:
        """Raises ChaosError if such a run is not possible."""
        for is_wrong, why in self._complaints():
            if is_wrong:
                raise ChaosError(why)

    def _complaints(self) -> Iterator[tuple[bool, str]]:
        """Yields (whether it is wrong, the sentence that says so)."""
        of_kafka = self.system is not System.LOGTX
        is_switched = self.metadata is not Metadata.NONE
        of_two_builds = self.upgrade_from is not None
        yield (
            self.seconds < SECONDS_MIN,
            f"--seconds must be at least {SECONDS_MIN}, to have room for a fault.",
        )
        yield self.rate <= 0, "--rate must be more than 0."
        yield self.commits is not None and self.commits < 1, "--commits must be at least 1."
        for is_set, sentence in (
            (of_two_builds, "--upgrade-from is for logtx: Kafka has no coordinators of its own."),
            (is_switched, "--metadata is for logtx: Kafka always writes markers."),
            (self.sidecar, "--sidecar is for logtx: Kafka has no sidecars."),
            (self.queue, "--queue is for logtx: Kafka's share groups have no transactions."),
            (self.native, "--native is for logtx: Kafka's clients don't use the extension."),
            (self.spark, "--spark is for logtx: Spark's own sink has no transactions."),
        ):
            yield of_kafka and is_set, sentence
        for is_set, name, what in (
            (is_switched, "--metadata", "can't switch topics"),
            (self.sidecar, "--sidecar", "know no sidecars"),
            (self.queue, "--queue", "know no queues"),
        ):
            why = f"{name} needs coordinators of one build: older ones {what}."
            yield is_set and of_two_builds, f"{why} Leave out --upgrade-from."
        yield (
            self.spark and find_spec("pyspark") is None,
            "--spark needs PySpark: pip install 'logtx[spark]'.",
        )
        yield (
            self.native and find_spec(EXTENSION) is None,
            "--native needs the C extension: make it with python make/native.py.",
        )

    def counts(self) -> dict[Role, int]:
        """Returns how many of each role run."""
        logtx = self.system is System.LOGTX
        switched = {Metadata.NONE: 0, Metadata.HALF: 2, Metadata.ALL: 3}[self.metadata]
        return {
            Role.BROKER: self.brokers,
            Role.COORDINATOR: self.coordinators if logtx else 0,
            Role.PRODUCER: self.producers,
            Role.WORKER: self.workers,
            Role.CONSUMER: self.consumers if logtx else self.consumers - 1,
            Role.QUEUE: self.queue_workers if self.queue else 0,
            Role.SPARK: 1 if self.spark else 0,
            Role.TOPIC: 2,
            Role.FLEETING: 1 if logtx else 0,
            Role.TOPICS: 1,
            Role.MODE: switched,
            Role.SEAL: min(switched, 2),
        }
