"""How much a queue's consumer asks for."""

from __future__ import annotations

from logtx.consumer.core.pace import AHEAD_S, POLLS_MAX, SLOW_S, Pace


def test_it_asks_for_what_it_works_off_in_a_while() -> None:
    pace = Pace(5_000)
    assert pace.ask(500, 0.0) == 500, "nothing is known yet"
    pace.begin(500, 100.0)
    assert pace.ask(500, 100 + AHEAD_S / 4) == 2_000
    pace.begin(2_000, 200.0)
    assert pace.ask(500, 200 + AHEAD_S * 2) == 1_000
    assert pace.ask(500, 300.0) == 1_000, "it waited, and worked on nothing"


def test_it_asks_ahead_only_if_it_is_fast() -> None:
    pace = Pace(5_000)
    pace.begin(500, 0.0)
    assert pace.ask_ahead(500) is None, "nothing is known yet"
    pace.begin(2_000, AHEAD_S / 4)
    assert pace.ask_ahead(500) == 2_000
    pace.begin(2_000, AHEAD_S)
    assert pace.ask_ahead(500) == round(2_000 / 0.75)
    pace.begin(2_000, AHEAD_S * 6)
    assert pace.ask_ahead(500) is None


def test_it_asks_for_no_more_than_it_may() -> None:
    for most, least, asked in ((5_000, 1_000, 5_000), (300, 500, 500), (5_000, 1, POLLS_MAX)):
        pace = Pace(most)
        pace.begin(100_000, 0.0)
        assert pace.ask(least, 0.001) == asked
        assert pace.ask_ahead(least) == (asked if most >= least else None)
    pace = Pace(5_000)
    pace.begin(100_000, 0.0)
    assert pace.ask(1, 0.0) == 1, "the clock stands"


def test_who_takes_long_for_a_poll_is_slow() -> None:
    """Once, up to the next poll (trap 186)."""
    pace = Pace(5_000)
    assert not pace.is_slow(100.0), "there was no poll"
    pace.returned(100.0)
    assert pace.is_slow(100.1 + SLOW_S)
    assert not pace.is_slow(200.0), "it has returned nothing since"
    pace.returned(200.0)
    assert not pace.is_slow(200.0 + SLOW_S / 2)
