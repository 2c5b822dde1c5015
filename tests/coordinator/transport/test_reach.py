"""Which addresses of a host are tried, and when. The clock is the test's, the sockets are real."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from logtx.coordinator.client.connection import CALL_DEADLINES
from logtx.coordinator.client.pursuit import PATIENCE_MIN_S
from logtx.coordinator.transport.reach import ADDRESSES_MAX, APART_MS, Found, Race, _in_turns

from .served import TIMEOUT_S, dead_port, dropping


def found(host: str, port: int, family: int = socket.AF_INET) -> Found:
    """Returns an address, as the system finds it."""
    return (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))


@pytest.fixture
def silent() -> Iterator[Found]:
    """An address that drops packets."""
    with dropping() as (host, port):
        yield found(host, port)


@pytest.fixture
def live() -> Iterator[Found]:
    """An address that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield found(*listening.getsockname())


def won(race: Race, now_ms: int) -> socket.socket:
    """Returns the socket that is connected at last; the clock stands still."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        if (made := race.step(now_ms)) is not None:
            return made
        time.sleep(0.005)
    raise AssertionError("nobody took the connection")


def test_trap_258_each_address_has_its_turn_while_those_before_go_on(
    silent: Found, live: Found
) -> None:
    race = Race([silent, silent, live], now_ms=0, by_ms=10_000)
    assert race.step(0) is None
    assert len(race.connecting) == 1
    assert race.next_due_ms == APART_MS
    assert race.step(APART_MS - 1) is None
    assert len(race.connecting) == 1
    assert race.step(APART_MS) is None
    assert len(race.connecting) == 2
    with won(race, 2 * APART_MS) as made:
        assert made.getpeername() == live[4]
        others = list(race.connecting)
        assert len(others) == 2
        race.close()
        assert [each.fileno() for each in others] == [-1, -1]
        assert made.fileno() >= 0
    assert race.next_due_ms is None


def test_an_address_that_refuses_makes_room_for_the_next_at_once(live: Found) -> None:
    race = Race([found("127.0.0.1", dead_port()), live], now_ms=0, by_ms=10_000)
    with won(race, 0) as made:
        assert made.getpeername() == live[4]


def test_so_it_does_while_another_one_goes_on(silent: Found, live: Found) -> None:
    race = Race([silent, found("127.0.0.1", dead_port()), live], now_ms=0, by_ms=10_000)
    assert race.step(0) is None
    with won(race, APART_MS) as made:
        assert made.getpeername() == live[4]
    race.close()


def test_a_family_that_the_machine_lacks_is_passed_over(live: Found) -> None:
    race = Race([found("x", 1, family=-5), live], now_ms=0, by_ms=10_000)
    with won(race, 0) as made:
        assert made.getpeername() == live[4]


def test_when_all_refuse_the_error_says_so() -> None:
    race = Race([found("127.0.0.1", dead_port())] * 3, now_ms=0, by_ms=10_000)
    with pytest.raises(ConnectionRefusedError):
        won(race, 0)
    with pytest.raises(OSError, match="no address"):
        Race([], now_ms=0, by_ms=1).step(0)


def test_all_addresses_are_tried_in_the_first_half_of_the_time(silent: Found) -> None:
    with ExitStack() as stack:
        race = Race([silent] * 100, now_ms=0, by_ms=1_000)
        stack.callback(race.close)
        for now_ms in range(501):
            assert race.step(now_ms) is None
        assert len(race.connecting) == ADDRESSES_MAX
        assert race.next_due_ms is None


def test_families_take_turns_and_the_preferred_one_begins() -> None:
    six = [found(f"::{n}", 1, socket.AF_INET6) for n in range(3)]
    four = [found(f"10.0.0.{n}", 1) for n in range(1)]
    assert _in_turns([*six, *four]) == [six[0], four[0], six[1], six[2]]


def test_a_second_address_has_time_within_the_shortest_patience() -> None:
    """The hello must come, too, and the answer to the first request."""
    assert APART_MS <= PATIENCE_MIN_S * 1_000 / 2
    assert CALL_DEADLINES.hello_ms / 4 >= APART_MS
