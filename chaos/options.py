"""What `logtx chaos` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from .errors import ChaosError
from .plan import Role

SECONDS_MIN: Final = 8
"""Below it there is no time for a fault."""


class System(StrEnum):
    """Whose transactions are put to the test."""

    LOGTX = "logtx"
    KAFKA = "kafka"
    """Kafka's own, through confluent-kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """The command line of `logtx chaos`, and what only tests ask for."""

    seconds: float = 300
    """Of load; starting, draining, reading and checking come on top."""
    seed: int = 1
    """What the faults are drawn from."""
    system: System = System.LOGTX
    rate: float = 200
    """Transactions per second that the producers are to begin, all together."""
    data_dir: Path | None = None
    """Run directory; None for a temporary one, kept where anomalies are found."""
    mild: bool = False
    """Few and short faults, for runs of seconds."""
    launcher: tuple[str, ...] = ()
    """Module and arguments that start each process of logtx in place of its own module, which
    follows: how tests break it on purpose."""
    brokers: int = 3
    coordinators: int = 3
    producers: int = 4
    """The last ones write with transaction keys."""
    workers: int = 2
    consumers: int = 5

    def check(self) -> None:
        """Raise ChaosError if it can't be done."""
        if self.seconds < SECONDS_MIN:
            raise ChaosError(f"--seconds must be at least {SECONDS_MIN}, to have room for a fault.")
        if self.rate <= 0:
            raise ChaosError("--rate must be more than 0.")

    def counts(self) -> dict[Role, int]:
        """How many of each role run."""
        logtx = self.system is System.LOGTX
        return {
            Role.BROKER: self.brokers,
            Role.COORDINATOR: self.coordinators if logtx else 0,
            Role.PRODUCER: self.producers,
            Role.WORKER: self.workers,
            Role.CONSUMER: self.consumers if logtx else self.consumers - 1,
            Role.TOPIC: 2,
        }
