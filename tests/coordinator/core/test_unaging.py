"""Sidecars that can't age, because nothing is written to their topics."""

from __future__ import annotations

from logtx.coordinator.core.trimming import Bound, Noted, Unaging
from logtx.journal.records.types import PointerStep

KEY, OTHER = ("t._txnlog", 0), ("t._txnlog", 1)
AFTER_MS = 100


def held(key: tuple[str, int], place: int | None) -> Bound:
    """Returns the bound of a partition that is needed by what lies, or is placed, there."""
    noted = Noted(end=9, main_start=0, topic_id="", main_id="")
    step = None if place is None else PointerStep(key, place, 0)
    return Bound(0, step, noted)


def test_what_is_placed_at_the_end_is_told_once_it_has_stood_so() -> None:
    unaging = Unaging(told_after_ms=AFTER_MS)
    bounds, ends = {KEY: held(KEY, 5)}, {KEY: 5}
    assert unaging.look(bounds, ends, 1_000) == []
    assert unaging.longest_ms(1_000) == 0
    assert unaging.look(bounds, ends, 1_099) == []
    assert unaging.longest_ms(1_099) == 99
    assert unaging.look(bounds, ends, 1_100) == [(KEY, 5)]
    assert unaging.look(bounds, ends, 1_200) == [], "it is told"
    assert unaging.longest_ms(1_200) == 200


def test_a_record_behind_it_lets_it_age_and_it_is_told_anew_later() -> None:
    unaging = Unaging(told_after_ms=AFTER_MS)
    bounds = {KEY: held(KEY, 5)}
    unaging.look(bounds, {KEY: 5}, 0)
    assert unaging.look(bounds, {KEY: 5}, 100) == [(KEY, 5)]
    assert unaging.look(bounds, {KEY: 6}, 110) == []
    assert unaging.longest_ms(110) == 0
    bounds = {KEY: held(KEY, 6)}
    assert unaging.look(bounds, {KEY: 6}, 120) == []
    assert unaging.look(bounds, {KEY: 6}, 220) == [(KEY, 6)]


def test_a_pointer_and_what_comes_and_goes_are_not_told() -> None:
    unaging = Unaging(told_after_ms=AFTER_MS)
    for now_ms, place in enumerate(range(5, 300)):
        # A busy topic: ends are told now and then, and each pointer is a new one.
        bounds = {KEY: held(KEY, place), OTHER: held(OTHER, 4)}
        assert unaging.look(bounds, {KEY: place - 3, OTHER: 5}, now_ms) == []
        assert unaging.longest_ms(now_ms) == 0
    assert unaging.look({KEY: held(KEY, None)}, {KEY: 5}, 900) == []
    assert unaging.look({KEY: held(KEY, 5)}, {}, 900) == [], "its end is not known"
    assert unaging.longest_ms(2_000) == 0
