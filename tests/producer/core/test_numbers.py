"""What is missing is never hidden by what other threads send, and hear of, in the meantime."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from logtx.producer.core.numbers import Numbers, PlainCount
from logtx.producer.core.tally import BranchTally, Floors

from ...signals import signal_points, traced


def lowest(ask: Callable[[], int], meanwhile: Callable[[], object]) -> int:
    """Returns the lowest answer if another thread does something once, at any point in between."""
    found, at, points = ask(), 0, 1
    while at < points:
        at, points = at + 1, 0

        def trace(frame: FrameType, event: str, _: Any, at: int = at) -> Any:
            nonlocal points
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_lasti in signal_points(frame.f_code):
                points += 1
                if points == at:
                    meanwhile()
            return trace

        with traced(trace):
            answer = ask()
        found = min(found, answer)
    assert at > 2
    return found


@pytest.mark.parametrize("kind", ["plain", "branch"])
def test_a_missing_report_is_not_hidden(kind: str) -> None:
    plain = PlainCount(print, print)
    tally = BranchTally(0, Floors(), on_settled=lambda: None, on_failure=print)
    offsets = iter(range(1_000))

    def deliver() -> None:
        message = SimpleNamespace(partition=lambda: 0, offset=lambda: next(offsets))
        if kind == "plain":
            plain.admit()
            plain.delivered(None, message)
        else:
            tally.admit()
            tally.receivers()["t"](None, message)

    count = plain if kind == "plain" else tally
    count.admit()
    assert lowest(lambda: count.unreported, deliver) == 1


def test_a_record_that_was_withdrawn_does_not_hide_one() -> None:
    plain = PlainCount(print, print)

    def withdraw() -> None:
        plain.admit()
        plain.withdraw()

    plain.admit()
    assert lowest(lambda: plain.unreported, withdraw) == 1


def test_numbers_are_drawn_once() -> None:
    numbers = Numbers()
    assert [numbers.draw(), numbers.draw(), numbers.drawn, numbers.draw()] == [0, 1, 2, 2]
