"""The limit of open files: raised to what the system allows, and told where that is low."""

from __future__ import annotations

import resource

import pytest

from logtx.coordinator.service import DESCRIPTORS_MIN, allow_descriptors

INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "warned"),
    [
        (1_024, 524_288, [(524_288, 524_288)], ""),
        (524_288, 524_288, [], ""),
        (1_024, 1_024, [], "few_descriptors limit=1024"),
        (256, 2_048, [(2_048, 2_048)], "few_descriptors limit=2048"),
        (1_024, INFINITY, [(INFINITY, INFINITY)], ""),
        (DESCRIPTORS_MIN, DESCRIPTORS_MIN, [], ""),
    ],
)
def test_the_soft_limit_is_raised_to_the_hard_one(
    soft: int,
    hard: int,
    raised: list[tuple[int, int]],
    warned: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: done.append(limits))
    allow_descriptors()
    assert done == raised
    assert (warned in caplog.text) if warned else not caplog.text


def test_a_system_that_refuses_is_no_reason_not_to_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    allow_descriptors()
    assert "descriptors_not_raised soft=1024" in caplog.text
    assert "few_descriptors limit=1024" in caplog.text
