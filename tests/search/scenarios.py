"""The small configurations that the search visits, and a smaller form of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from logtx.coordinator.protocol import commands

from ..coordinator.harness import step as offset_step
from . import journal_world as j
from . import marker_world as m
from .adopting_scenarios import ADOPTING_SEARCHES
from .adopting_world import AdoptingScenario, AdoptingWorld
from .clients import GROUP, INPUT, START, Client, Script, request
from .explore import World
from .fences_world import FencesScenario, FencesWorld
from .lives_world import LivesScenario, LivesWorld
from .placed_scenarios import PLACED_SEARCHES
from .places_world import PlacesScenario, PlacesWorld
from .queue_scenarios import QUEUE_SEARCHES
from .queue_world import QueueScenario, QueueWorld
from .sidecar_world import Scenario as SidecarScenario
from .sidecar_world import SidecarWorld
from .tenures import TIMEOUT_MS, txid_of

TWO_PRODUCERS: Final = (
    commands.Connect(producer_id="p0", nonce=1),
    commands.Connect(producer_id="p1", nonce=2),
)
COMMITS: Final = Script("p0", 1, ("begin", "commit"))
ENDS: Final = Script("p1", 2, ("begin", "end"))
BEGUN: Final = {
    # Offsets of the journal: OWNER 0, PRODUCERs 1 and 2, BEGINs 3 and 4.
    "clients": tuple(
        Script(f"p{n}", n + 1, ("commit",), start=Client(0, begin=3 + n)) for n in (0, 1)
    ),
    "preamble": (
        *TWO_PRODUCERS,
        *(request(Script(f"p{n}", n + 1, ()), "begin", START, 0) for n in (0, 1)),
    ),
}
"""Begins with both transactions open."""


def _offsets_preamble() -> tuple[commands.Command, ...]:
    # Offsets of the journal: OWNER 0, PRODUCER 1, BEGINs 2 and 3, ADD_OFFSETS 4 and 5.
    session = commands.SessionId("p", 0, 1)
    begins = tuple(
        commands.Begin(session=session, request_id=n, answered_below=0, timeout_ms=TIMEOUT_MS)
        for n in (1, 2)
    )
    chain = ((2, None, 1), (3, 1, 2))
    steps = tuple(
        commands.AddOffsets(
            session=session,
            txid=txid_of(begin),
            group=GROUP,
            steps=(offset_step(INPUT, start, to),),
        )
        for begin, start, to in chain
    )
    return (commands.Connect(producer_id="p", nonce=1), *begins, *steps)


Scenario = (
    j.Scenario
    | m.MarkerScenario
    | PlacesScenario
    | FencesScenario
    | QueueScenario
    | SidecarScenario
)


@dataclass(frozen=True)
class Search:
    """A configuration in full, and its smaller form for every test run."""

    full: Scenario
    reduced: Scenario

    def world(self, *, reduced: bool = False) -> World:
        """Returns a world to explore."""
        return world_of(self.reduced if reduced else self.full)


def world_of(scenario: Scenario) -> World:
    """Returns the world of a scenario."""
    match scenario:
        case j.Scenario():
            return j.JournalWorld(scenario)
        case m.MarkerScenario():
            return m.MarkerWorld(scenario)
        case AdoptingScenario():
            return AdoptingWorld(scenario)
        case PlacesScenario():
            return PlacesWorld(scenario)
        case LivesScenario():
            return LivesWorld(scenario)
        case FencesScenario():
            return FencesWorld(scenario)
        case QueueScenario():
            return QueueWorld(scenario)
        case SidecarScenario():
            return SidecarWorld(scenario)


def _search(
    kind: Callable[..., Any],
    full: Any,
    reduced: Any,
    less: dict[str, Any] | None = None,
    **rest: Any,
) -> Search:
    """Returns a scenario in full, and reduced: with a smaller budget and the changes in `less`."""
    return Search(kind(budget=full, **rest), kind(budget=reduced, **rest | (less or {})))


OWNERSHIP: Final = _search(
    j.Scenario,
    j.Budget(crashes=1, duplicates=1, bids=1),
    j.Budget(crashes=1, bids=1),
    BEGUN,
    name="ownership",
    what="two producers, a transaction each; a crash, a duplicate of a request or append",
    clients=(COMMITS, ENDS),
    preamble=TWO_PRODUCERS,
    acknowledged_at_once=True,
)
DUEL: Final = _search(
    j.Scenario,
    j.Budget(crashes=1, duplicates=1, bids=2),
    j.Budget(bids=2),
    name="duel",
    what="both coordinators bid, and bid again; both transactions are open already; a crash, a"
    " duplicate of a request or append",
    acknowledged_at_once=True,
    **BEGUN,
)
UNKNOWN: Final = _search(
    j.Scenario,
    j.Budget(losses=1, bids=1, retries=1),
    j.Budget(losses=1, bids=1),
    BEGUN,
    name="unknown outcome",
    what="two producers, a transaction each; an append of unknown outcome, a request sent again;"
    " appends land and are acknowledged in steps of their own",
    clients=(COMMITS, Script("p1", 2, ("begin", "commit"))),
    preamble=TWO_PRODUCERS,
)
EXPIRY: Final = _search(
    j.Scenario,
    j.Budget(crashes=1, bids=1, expiries=1),
    j.Budget(bids=1, expiries=1),
    BEGUN,
    name="expiry",
    what="two producers, a transaction each; every timeout passes, a crash",
    clients=(COMMITS, ENDS),
    preamble=TWO_PRODUCERS,
    acknowledged_at_once=True,
)
FENCING: Final = _search(
    j.Scenario,
    j.Budget(crashes=1, duplicates=1, bids=1),
    j.Budget(bids=1),
    name="fencing",
    what="two instances of one producer, the second fences the first; a crash, a duplicate",
    clients=(
        Script("p", 1, ("connect as 0", "begin", "commit")),
        Script("p", 2, ("connect", "begin", "commit")),
    ),
    acknowledged_at_once=True,
)
DOUBLE_START: Final = _search(
    j.Scenario,
    j.Budget(crashes=1, duplicates=1, bids=1),
    j.Budget(bids=1),
    name="double start",
    what="two instances of one producer with one generation; a crash, a duplicate",
    clients=(
        Script("p", 1, ("connect as 0", "begin", "commit")),
        Script("p", 2, ("connect as 0", "begin", "commit")),
    ),
    acknowledged_at_once=True,
)
PIPELINE: Final[dict[str, Any]] = {
    "clients": tuple(Script("p", 1, ("end",), start=Client(0, begin=begin)) for begin in (2, 3)),
    "preamble": _offsets_preamble(),
    "acknowledged_at_once": True,
}
OFFSETS: Final = _search(
    j.Scenario,
    j.Budget(losses=1, bids=1, expiries=1),
    j.Budget(losses=1, expiries=1),
    name="offsets",
    what="two pipelined transactions with input 0 to 1 and 1 to 2; an append of unknown outcome,"
    " every timeout passes",
    **PIPELINE,
)
QUESTIONS: Final = _search(
    j.Scenario,
    j.Budget(losses=1, bids=1, queries=1),
    j.Budget(losses=1, queries=1),
    name="questions",
    what="the same; an append of unknown outcome, somebody asks for the IOV or for an outcome",
    queries=(commands.FetchOffsets(group=GROUP), commands.GetOutcome(txid=txid_of(2))),
    **PIPELINE,
)
WORKERS: Final = (
    Script("p0", 1, ("offsets", "commit"), start=Client(0, begin=4, claim=3)),
    Script("p1", 2, ("claim", "offsets", "commit"), start=Client(0, begin=5)),
    # The first worker again: it may go back at any moment.
    Script("p0", 1, ("rewind",), start=Client(0, claim=3)),
)
CLAIMS: Final = _search(
    j.Scenario,
    j.Budget(bids=1),
    j.Budget(),
    name="claims",
    what="the input of a worker is given to another, which claims it; the worker goes on, or goes"
    " back, at any moment; another coordinator bids",
    clients=WORKERS,
    # Offsets of the journal: OWNER 0, PRODUCERs 1 and 2, CLAIM 3, BEGINs 4 and 5.
    preamble=(
        *TWO_PRODUCERS,
        commands.ClaimOffsets(group=GROUP, partitions=(INPUT,), claimant=1),
        *(request(Script(f"p{n}", n + 1, ()), "begin", START, 0) for n in (0, 1)),
    ),
    acknowledged_at_once=True,
)
PARTS: Final = _search(
    j.Scenario,
    j.Budget(crashes=1, duplicates=1, bids=1, expiries=1),
    j.Budget(duplicates=1, bids=1),
    name="parts",
    what="a transaction that names in two parts what it wrote, then in its commit; a crash, a"
    " duplicate of a request or append, every timeout passes",
    clients=(
        Script("p0", 1, ("part 0", "part 1", "commit in parts"), start=Client(0, begin=3)),
        Script("p1", 2, ("commit",), start=Client(0, begin=4)),
    ),
    preamble=BEGUN["preamble"],
    acknowledged_at_once=True,
)
TWO_WRITERS: Final = (("begin", 0, 1, "commit"), ("begin", 0, 1, "commit"))
MARKERS: Final = _search(
    m.MarkerScenario,
    m.Budget(crashes=1, bids=1, duplicates=1),
    m.Budget(bids=1),
    {"scripts": (("begin", 0, 1, "commit"), ("begin", 0, "commit"))},
    name="markers",
    what="two producers write to two partitions, consumers read; a crash, a zombie, a duplicate of"
    " a marker or record",
    scripts=TWO_WRITERS,
)
LOOK_UPS: Final = _search(
    m.MarkerScenario,
    m.Budget(bids=1, expiries=1, look_ups=1),
    m.Budget(expiries=1, look_ups=1),
    {"scripts": (("begin", 0, 1, "commit"), ("begin", 0, "commit"))},
    name="look-ups",
    what="the same; every timeout passes, consumers look transactions up",
    scripts=(("begin", 0, 1, "commit"), ("begin", 0, "end")),
)
DUPLICATES: Final = _search(
    m.MarkerScenario,
    m.Budget(bids=1, duplicates=1),
    m.Budget(duplicates=1),
    {"scripts": (("begin", 0, "commit"), ("begin", 0, "commit"))},
    name="one partition",
    what="two transactions in one partition, one of two records; a zombie, a duplicate of a marker"
    " or record",
    scripts=(("begin", 0, 0, "commit"), ("begin", 0, "commit")),
)
PLAIN: Final = _search(
    m.MarkerScenario,
    m.Budget(crashes=1, bids=1, plain=1),
    m.Budget(plain=1),
    {"scripts": (("begin", 0, 0, "commit"), ("begin",))},
    name="plain",
    what="the same with a record of no transaction; a crash, a zombie",
    scripts=(("begin", 0, 0, "commit"), ("begin", 0, "end")),
)
SEARCHES: Final = (
    # The largest first, so that two processes end at about the same time.
    *(MARKERS, PLAIN, DUPLICATES, LOOK_UPS, FENCING, EXPIRY),
    *(CLAIMS, OWNERSHIP, PARTS, DUEL, QUESTIONS, UNKNOWN, DOUBLE_START, OFFSETS),
    *(Search(full, reduced) for full, reduced in PLACED_SEARCHES),
    *(Search(full, reduced) for full, reduced in ADOPTING_SEARCHES),
    *(Search(full, reduced) for full, reduced in QUEUE_SEARCHES),
)
