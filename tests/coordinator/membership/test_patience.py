"""How much longer others are waited for by a process that runs late itself (trap 205)."""

from __future__ import annotations

import pytest

from logtx.coordinator.membership.patience import (
    FACTOR,
    MEMORY_S,
    MORE_MAX_S,
    UNNOTICED_S,
    Patience,
)


def test_who_keeps_up_waits_no_longer() -> None:
    patience = Patience()
    assert patience.more_s(0.0) == 0.0
    patience.woke(UNNOTICED_S / 2, 1.0)
    patience.woke(-0.01, 1.1)
    assert patience.more_s(1.2) == 0.0


def test_who_runs_late_waits_several_times_that_for_a_while() -> None:
    patience = Patience()
    patience.woke(0.1, 1.0)
    patience.woke(0.3, 2.0)
    patience.woke(0.2, 3.0)
    assert patience.more_s(3.0) == pytest.approx(FACTOR * 0.3)
    assert patience.more_s(2.0 + MEMORY_S) == pytest.approx(FACTOR * 0.3)
    assert patience.more_s(2.1 + MEMORY_S) == pytest.approx(FACTOR * 0.2)
    assert patience.more_s(3.1 + MEMORY_S) == 0.0


def test_a_stopped_machine_makes_nobody_wait_for_ever() -> None:
    patience = Patience()
    patience.woke(3_600.0, 4_000.0)
    assert patience.more_s(4_000.0) == MORE_MAX_S
