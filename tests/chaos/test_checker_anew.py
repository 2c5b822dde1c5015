"""A topic that is deleted and made anew: what the checker still expects there, and elsewhere.

A transaction that began before the topic was made anew is exempt in that topic alone. Live readers
of it are not judged, because an offset means a record of each incarnation to them.
"""

from __future__ import annotations

import pytest

from .checker_world import IN, OUT, Txn, World
from .test_checker_anomalies import only
from .test_checker_fine import fine

P0, ANEW = (IN, 0), (OUT, 0)


def both(world: World, process: str = "producer-0.0") -> Txn:
    """An open transaction with a value in a topic that stays, and one in a topic that may not."""
    txn = world.begin(process)
    txn.append(0)
    txn.append(0, OUT)
    return txn


def test_what_was_committed_before_is_expected_elsewhere_alone() -> None:
    world = World()
    both(world).commit()
    world.make_anew(OUT)
    both(world).commit()
    verdict = fine(world.finals())
    assert verdict.stats["values not judged, of a topic made anew"] == 1
    assert verdict.unverifiable["marker in a topic that was made anew"] == 1


@pytest.mark.parametrize("marker_comes", [True, False])
def test_a_transaction_may_end_after_a_part_of_it_was_deleted(*, marker_comes: bool) -> None:
    world = World()
    txn = both(world)
    world.make_anew(OUT)
    txn.ask().decide()
    txn.mark(P0)
    if marker_comes:
        txn.mark(ANEW)  # states a record that was deleted
        world.order[ANEW].clear()
    txn.finish().end("committed")
    fine(world.finals())


def test_a_record_may_land_in_the_new_one_and_be_delivered_or_not() -> None:
    world = World()
    txn = world.begin()
    world.make_anew(OUT)
    txn.append(0)
    txn.append(0, OUT)
    txn.commit()
    world.read("final-0.0")
    world.assign("final-1.0", P0)
    world.poll("final-1.0", P0, world.given(P0))
    fine(world)


def test_it_must_be_whole_elsewhere() -> None:
    world = World()
    txn = both(world)
    txn.append(1)
    txn.commit()
    world.make_anew(OUT)
    world.assign("final-0.0")
    world.poll("final-0.0", P0, world.given(P0))
    only(world, "torn-transaction")


def test_an_abort_is_not_delivered_elsewhere() -> None:
    world = World()
    txn = both(world)
    txn.abort()
    world.make_anew(OUT)
    world.assign("final-0.0")
    world.poll("final-0.0", P0, [0])
    only(world, "g1a")


def test_what_began_after_it_is_judged_there_too() -> None:
    world = World()
    both(world).commit()
    world.make_anew(OUT)
    both(world).commit()
    world.assign("final-0.0")
    world.poll("final-0.0", P0, world.given(P0))
    only(world, "torn-transaction")


def test_its_marker_must_be_there() -> None:
    world = World()
    world.make_anew(OUT)
    txn = both(world)
    txn.ask().decide()
    txn.mark(P0)
    txn.finish().end("committed")
    world.assign("final-0.0")
    world.poll("final-0.0", P0, world.given(P0))
    assert {"missing-marker", "torn-transaction"} <= set(world.judge().counts)


def test_live_readers_of_it_are_not_judged() -> None:
    world = World()
    both(world).commit()
    world.assign("consumer-0.0")
    world.poll("consumer-0.0", P0, world.given(P0))
    world.poll("consumer-0.0", ANEW, world.given(ANEW))
    world.make_anew(OUT)
    both(world).commit()
    world.poll("consumer-0.0", ANEW, world.given(ANEW))
    fine(world.finals())


def test_while_it_is_away_nothing_in_it_is_judged() -> None:
    world = World()
    both(world).commit()
    world.make_anew(OUT)
    both(world).commit()
    world.say("nemesis-0.0", "fault", what="recreate", target=OUT)
    world.assign("final-0.0")
    world.poll("final-0.0", P0, world.given(P0))
    verdict = fine(world)
    assert verdict.stats["values not judged, of a topic made anew"] == 2
