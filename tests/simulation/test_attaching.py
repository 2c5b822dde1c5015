"""What an owner knows of a consumer that rests: the network's faults are told from the client's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from logtx.coordinator.protocol.commands import Acquire, Attach, Leases
from logtx.journal.acks import SubscriptionKind

from .attaching import Attachment, ConsumerStream
from .history import Resting, Told
from .queue_checkers import _rests
from .queues import QUEUE
from .schedule import Party
from .world import World

CONSUMER: Final = 7
WANTS: Final = Attach(
    group=QUEUE,
    consumer=CONSUMER,
    kind=SubscriptionKind.SHARED,
    topics=("out",),
    starts={},
    held=(),
    ack_timeout_ms=600,
)
RESTS: Final = replace(WANTS, topics=())
WANTS_AS_IT_WAS: Final = replace(WANTS)
"""A client that repeats what it has sent makes it anew."""


def is_blamed(sent: list[Attach], arrived: list[Attach]) -> bool:
    """Returns whether the checker minds that a consumer which rests is given messages, when its
    Attaches, which it sent in one order, have arrived in another one."""
    world = World(0, queues=True)
    _rest(world)
    stream = _stream(world)
    for number, command in enumerate(sent):
        stream.send(number, command)  # It does not arrive: virtual time stands still.
    for command in arrived:
        stream._arrived(0, command)
    return _minds_messages(world)


def _rest(world: World) -> None:
    world.history.resting.append(Resting(CONSUMER, since=world.history.tick()))


def _stream(world: World) -> ConsumerStream:
    client: Any = SimpleNamespace(party=Party(world.setting.scheduler, "worker"))
    return ConsumerStream(
        world.network, cast(Attachment, client), world.coordinators["c0"], 0, (QUEUE, CONSUMER)
    )


def _minds_messages(world: World) -> bool:
    history = world.history
    asks = Acquire(group=QUEUE, consumer=CONSUMER, max_offsets=1)
    told = Told("c0", 0, asks, Leases(()), history.tick(), 0, history.tick(), 0)
    return _rests(history, told, asks)


@pytest.mark.parametrize(
    "arrived",
    [
        pytest.param([WANTS, RESTS, WANTS], id="twice"),
        pytest.param([WANTS, RESTS, RESTS, WANTS], id="both twice"),
    ],
)
def test_who_is_woken_by_the_network_may_be_given_messages(arrived: list[Attach]) -> None:
    assert not is_blamed([WANTS, RESTS], arrived)


def test_an_attach_that_was_overtaken_wakes_too() -> None:
    later = replace(WANTS)
    assert not is_blamed([WANTS, later, RESTS], [WANTS, RESTS, later])


@pytest.mark.parametrize("is_late", [False, True])
def test_a_connection_that_was_given_up_may_be_heard_behind_the_next_one(is_late: bool) -> None:
    world = World(0, queues=True)
    _rest(world)
    former, following = _stream(world), _stream(world)
    former.send(0, WANTS)
    following.send(0, RESTS)
    streams = [(former, WANTS), (following, RESTS)]
    for stream, command in streams[::-1] if is_late else streams:
        stream._arrived(0, command)
    assert _minds_messages(world) != is_late


@pytest.mark.parametrize(
    ("sent", "arrived"),
    [
        pytest.param([WANTS, RESTS], [WANTS, RESTS], id="in order"),
        pytest.param([WANTS, RESTS], [WANTS, WANTS, RESTS], id="twice before it"),
        pytest.param([WANTS, RESTS], [WANTS, RESTS, RESTS], id="rests twice"),
        pytest.param(
            [WANTS, RESTS, WANTS_AS_IT_WAS], [WANTS, RESTS, WANTS_AS_IT_WAS], id="repeated"
        ),
    ],
)
def test_who_rests_is_given_nothing(sent: list[Attach], arrived: list[Attach]) -> None:
    assert is_blamed(sent, arrived)
