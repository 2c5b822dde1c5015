"""The nemesis's plan: which faults, when, where and for how long. Drawn from a seed; pure.

Faults of one *track* follow each other with a pause between them. Tracks run side by side:

- ``broker``: at most one broker is hurt at a time, and it has `BROKER_REST_S` to catch up before
  the next one is hurt. So with three replicas and ``min.insync.replicas=2`` there is always a
  majority that has every acknowledged record.
- ``coordinator``: at most one is hurt at a time.
- ``client``: producers, workers, queue workers and consumers, at most one at a time.
- ``trim``: old records are deleted, instantly.
- ``fleeting``: one topic is deleted and made anew.
- ``topics``: the other topics get one more partition each.
- ``spark``: the driver of a Spark query, and its checkpoint.

Every fault is over by the end of the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

BROKER_REST_S: Final = 7.0
"""From the end of a broker's fault to the next one: the broker starts and catches up. With a
smaller value the next fault comes late instead; a larger one means fewer faults."""
CALM_START_S: Final = 3.0
"""No fault comes earlier than this after the start: all clients connect."""
CALM_END_S: Final = 1.0
"""All faults are over this long before the end."""
UPGRADES_AT: Final = (0.3, 0.6)
"""Shares of the load at which the first and the last coordinator are upgraded. What comes late in
its track must still come before the end."""


class What(StrEnum):
    """A kind of fault."""

    KILL = "kill"
    """SIGKILL; the process is started again at the fault's end."""
    PAUSE = "pause"
    """SIGSTOP; SIGCONT at the fault's end."""
    RESTART = "restart"
    """An orderly stop, followed at once by a start."""
    REPLACE = "replace"
    """SIGSTOP; a successor of the same name is started beside the process; SIGCONT at the fault's
    end wakes a zombie."""
    CUT = "cut"
    """Connections are closed and new ones refused, until the fault's end."""
    STALL = "stall"
    """Connections stay open and carry nothing, until the fault's end."""
    DELAY = "delay"
    """What connections carry arrives late, until the fault's end."""
    TRIM = "trim"
    """Old records are deleted."""
    FILL = "fill"
    """A broker's disk is full: it ends at one of its next writes. At the fault's end it is started
    again, with room."""
    MISLEAD = "mislead"
    """The address that a coordinator advertises leads to another one, until the fault's end."""
    INTERRUPT = "interrupt"
    """SIGINT, as by Ctrl-C; when the process has ended, another one takes its place."""
    RECREATE = "recreate"
    """A topic is deleted and made anew."""
    GROW = "grow"
    """Topics get one more partition."""
    RESTORE = "restore"
    """As KILL; an older copy of the checkpoint is put back meanwhile."""
    SWITCH = "switch"
    """A topic is switched to the other mode."""
    SEAL = "seal"
    """A topic takes no records, until the fault's end."""
    UPGRADE = "upgrade"
    """A coordinator of an older commit is stopped in order, and one of today's takes its place."""


class Role(StrEnum):
    """What faults are done to."""

    BROKER = "broker"
    COORDINATOR = "coordinator"
    PRODUCER = "producer"
    WORKER = "worker"
    CONSUMER = "consumer"
    QUEUE = "queue"
    """The workers of a queue."""
    SPARK = "spark"
    """The driver of a Spark query."""
    TOPIC = "topic"
    FLEETING = "fleeting"
    """The topic that is deleted and made anew."""
    TOPICS = "topics"
    """All other topics together."""
    MODE = "mode"
    """The mode of a topic."""
    SEAL = "seal"
    """A topic, as far as it takes records."""


TRACKS: Final[Mapping[Role, str]] = {
    Role.BROKER: "broker",
    Role.COORDINATOR: "coordinator",
    Role.PRODUCER: "client",
    Role.WORKER: "client",
    Role.CONSUMER: "client",
    Role.QUEUE: "client",
    Role.SPARK: "spark",
    Role.TOPIC: "trim",
    Role.FLEETING: "fleeting",
    Role.TOPICS: "topics",
    Role.MODE: "mode",
    Role.SEAL: "seal",
}
"""Role → the track of its faults."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the plan."""

    at_s: float
    """Seconds from the start of the load to its beginning."""
    what: What
    role: Role
    number: int
    """Its target's number within the role, from 0."""
    for_s: float = 0.0
    """Its length; 0 for a fault without an end of its own."""
    delay_ms: int = 0
    """Delay of what connections carry, for DELAY; else 0."""

    @property
    def until_s(self) -> float:
        """Seconds from the start of the load to its end."""
        return self.at_s + self.for_s

    @property
    def target(self) -> str:
        """Its target, such as ``broker-1``."""
        return f"{self.role}-{self.number}"


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of fault in a track, with its weight in the draw and the range of its length."""

    what: What
    role: Role
    weight: float
    for_s: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Track:
    """Faults that follow each other, and the range of the pause between two."""

    kinds: Sequence[_Kind]
    pause_s: tuple[float, float]


def _client_kinds(role: Role, weight: float, *, replaceable: bool) -> Iterator[_Kind]:
    yield _Kind(What.KILL, role, 3 * weight, (0.1, 2.0))
    yield _Kind(What.PAUSE, role, 2 * weight, (0.5, 12.0))
    yield _Kind(What.RESTART, role, 1 * weight)
    if replaceable:
        yield _Kind(What.REPLACE, role, 2 * weight, (2.0, 9.0))
    yield _Kind(What.CUT, role, 1 * weight, (0.3, 4.0))
    yield _Kind(What.STALL, role, 1 * weight, (0.3, 6.0))


_COORDINATOR_KINDS: Final = (
    _Kind(What.KILL, Role.COORDINATOR, 4, (0.5, 4.0)),
    _Kind(What.PAUSE, Role.COORDINATOR, 3, (0.5, 8.0)),
    _Kind(What.RESTART, Role.COORDINATOR, 1),
    _Kind(What.CUT, Role.COORDINATOR, 1, (0.5, 4.0)),
    _Kind(What.STALL, Role.COORDINATOR, 1, (0.5, 4.0)),
    _Kind(What.DELAY, Role.COORDINATOR, 1, (1.0, 5.0)),
    _Kind(What.MISLEAD, Role.COORDINATOR, 2, (0.5, 5.0)),
)
_CLIENT_KINDS: Final = (
    *_client_kinds(Role.PRODUCER, 3, replaceable=True),
    *_client_kinds(Role.WORKER, 3, replaceable=True),
    _Kind(What.INTERRUPT, Role.WORKER, 9),
    *_client_kinds(Role.CONSUMER, 2, replaceable=False),
    *_client_kinds(Role.QUEUE, 4, replaceable=True),
    _Kind(What.INTERRUPT, Role.QUEUE, 6),
)
_TRACKS: Final[Mapping[str, _Track]] = {
    "broker": _Track(
        (
            _Kind(What.KILL, Role.BROKER, 3, (1.0, 5.0)),
            _Kind(What.PAUSE, Role.BROKER, 3, (0.5, 7.0)),
            _Kind(What.RESTART, Role.BROKER, 2),
            _Kind(What.CUT, Role.BROKER, 2, (0.5, 6.0)),
            _Kind(What.STALL, Role.BROKER, 2, (0.5, 6.0)),
            _Kind(What.DELAY, Role.BROKER, 2, (2.0, 8.0)),
            _Kind(What.FILL, Role.BROKER, 2, (1.0, 5.0)),
        ),
        (BROKER_REST_S, BROKER_REST_S + 8.0),
    ),
    "coordinator": _Track(_COORDINATOR_KINDS, (4.0, 10.0)),
    "client": _Track(_CLIENT_KINDS, (1.5, 5.0)),
    "trim": _Track((_Kind(What.TRIM, Role.TOPIC, 1),), (12.0, 25.0)),
    "fleeting": _Track((_Kind(What.RECREATE, Role.FLEETING, 1),), (15.0, 30.0)),
    "topics": _Track((_Kind(What.GROW, Role.TOPICS, 1),), (20.0, 60.0)),
    "mode": _Track((_Kind(What.SWITCH, Role.MODE, 1),), (4.0, 14.0)),
    "seal": _Track((_Kind(What.SEAL, Role.SEAL, 1, (1.0, 6.0)),), (12.0, 25.0)),
    "spark": _Track(
        (
            _Kind(What.KILL, Role.SPARK, 3, (0.1, 2.0)),
            _Kind(What.RESTORE, Role.SPARK, 3, (0.1, 2.0)),
            _Kind(What.REPLACE, Role.SPARK, 2, (4.0, 9.0)),
        ),
        (6.0, 15.0),
    ),
}
"""The tracks by name. Longer faults and pauses mean fewer faults in a run."""
_MILD: Final[Mapping[str, _Track]] = {
    "broker": _Track((_Kind(What.DELAY, Role.BROKER, 1, (0.5, 1.5)),), (3.0, 5.0)),
    "coordinator": _Track(
        (
            _Kind(What.KILL, Role.COORDINATOR, 2, (0.5, 1.5)),
            _Kind(What.PAUSE, Role.COORDINATOR, 1, (0.5, 2.0)),
        ),
        (3.0, 5.0),
    ),
    "client": _Track(
        (
            _Kind(What.KILL, Role.PRODUCER, 1, (0.1, 0.5)),
            _Kind(What.KILL, Role.WORKER, 1, (0.1, 0.5)),
            _Kind(What.PAUSE, Role.CONSUMER, 1, (0.5, 2.0)),
            _Kind(What.CUT, Role.PRODUCER, 1, (0.3, 1.0)),
            _Kind(What.KILL, Role.QUEUE, 2, (0.1, 0.5)),
        ),
        (2.0, 4.0),
    ),
    "trim": _Track((_Kind(What.TRIM, Role.TOPIC, 1),), (6.0, 8.0)),
    "mode": _Track((_Kind(What.SWITCH, Role.MODE, 1),), (1.0, 3.0)),
    "seal": _Track((_Kind(What.SEAL, Role.SEAL, 1, (0.5, 1.5)),), (3.0, 5.0)),
    "spark": _Track(
        (
            _Kind(What.KILL, Role.SPARK, 1, (0.1, 0.5)),
            _Kind(What.RESTORE, Role.SPARK, 1, (0.1, 0.5)),
            _Kind(What.REPLACE, Role.SPARK, 1, (3.5, 5.0)),
        ),
        (3.0, 5.0),
    ),
}
"""The same for runs of seconds, without a broker's death."""


def plan_faults(
    seed: int, seconds: float, counts: Mapping[Role, int], *, mild: bool = False
) -> list[Fault]:
    """Returns the faults of a run, in the order of their beginnings.

    Args:
        seed: the same seed and arguments give the same plan.
        seconds: length of the load.
        counts: how many of each role there are; a role that has none is not hurt.
        mild: few and short faults, and no broker dies: for runs of seconds.
    """
    faults: list[Fault] = []
    for name, track in (_MILD if mild else _TRACKS).items():
        # Each track has a generator of its own: what one track draws does not change the others.
        faults += _draw(Random(f"{seed}/{name}"), track, seconds, counts)
    return sorted(faults, key=lambda fault: (fault.at_s, fault.target))


def plan_upgrades(seconds: float, coordinators: int) -> list[Fault]:
    """Returns the upgrades of a run: each coordinator once, in the middle of the load."""
    first_s, last_s = (share * seconds for share in UPGRADES_AT)
    step_s = (last_s - first_s) / max(1, coordinators - 1)
    return [
        Fault(round(first_s + number * step_s, 3), What.UPGRADE, Role.COORDINATOR, number)
        for number in range(coordinators)
    ]


def _draw(
    random: Random, track: _Track, seconds: float, counts: Mapping[Role, int]
) -> Iterator[Fault]:
    kinds = [kind for kind in track.kinds if counts.get(kind.role, 0) > 0]
    now_s = CALM_START_S + random.uniform(0, track.pause_s[0])
    while kinds:
        (kind,) = random.choices(kinds, [kind.weight for kind in kinds])
        fault = Fault(
            at_s=round(now_s, 3),
            what=kind.what,
            role=kind.role,
            number=random.randrange(counts[kind.role]),
            for_s=round(random.uniform(*kind.for_s), 3),
            delay_ms=random.randrange(5, 150) if kind.what is What.DELAY else 0,
        )
        if fault.until_s > seconds - CALM_END_S:
            return
        yield fault
        now_s = fault.until_s + random.uniform(*track.pause_s)
