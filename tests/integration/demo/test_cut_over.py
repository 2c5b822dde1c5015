"""The cut-over of the demo's ledger: its steps, and what the verdict asks of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from logtx.integration.demo import cut_over
from logtx.integration.demo.cut_over import CutOver, Signs
from logtx.integration.demo.errors import DemoError
from logtx.integration.demo.options import DemoOptions
from logtx.integration.demo.verdict import Move, against_move
from logtx.journal.modes import Mode

KAFKA = {"bootstrap.servers": "nowhere:1"}


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that were sealed."""
    found: list[str] = []

    def refuse_records(_: Mapping[str, str], topic: str) -> None:
        found.append(topic)

    monkeypatch.setattr(cut_over, "refuse_records", refuse_records)
    return found


def test_the_ledger_is_sealed_when_all_workers_have_written(
    tmp_path: Path, sealed: list[str]
) -> None:
    signs = Signs(tmp_path)
    move = CutOver(KAFKA, "ledger", tmp_path, workers=2, begin_at=10)
    move.step(9)
    assert not signs.is_wanted
    move.step(10)
    assert signs.is_wanted
    assert not move.is_under_way(0)
    signs.say_written("a")
    move.step(11)
    assert move.is_under_way(0)
    assert (sealed, signs.is_sealed) == ([], False)
    signs.say_written("b")
    move.step(12)
    assert (sealed, signs.is_sealed, move.sealed_at) == (["ledger"], True, 12)
    assert move.is_under_way(0)
    assert not move.is_under_way(1)
    move.step(13)
    assert sealed == ["ledger"]


def test_workers_without_input_hold_nobody_up(
    tmp_path: Path, sealed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_over, "_WRITTEN_WAIT_S", -1.0)
    move = CutOver(KAFKA, "ledger", tmp_path, workers=3, begin_at=0)
    move.step(0)
    assert sealed == []
    Signs(tmp_path).say_written("a")
    move.step(1)
    assert sealed == ["ledger"]


def test_a_worker_waits_for_the_seal_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs = Signs(tmp_path)
    assert not signs.await_sealed(lambda: True)
    monkeypatch.setattr(cut_over, "_SEALED_WAIT_S", 0.05)
    assert not signs.await_sealed(lambda: False)
    monkeypatch.setattr(cut_over, "_SEALED_WAIT_S", 20.0)
    sealing = threading.Timer(0.05, signs.seal)
    sealing.start()
    assert signs.await_sealed(lambda: False)
    sealing.join()


def test_the_verdict_asks_for_a_seal_and_for_a_transaction_across() -> None:
    assert against_move(None) == []
    assert against_move(Move(5, 1)) == []
    [never] = against_move(Move(None, 0))
    assert "never sealed" in never
    [none] = against_move(Move(5, 0))
    assert "No committed transaction spans" in none


def test_the_mode_has_one_coordinator_and_no_spark() -> None:
    DemoOptions(mode=Mode.METADATA).check()
    assert not DemoOptions(mode=Mode.METADATA).is_whole
    for options in (
        DemoOptions(mode=Mode.METADATA, spark=True),
        DemoOptions(mode=Mode.METADATA, coordinators=2),
        DemoOptions(mode=Mode.METADATA, chaos=True, flights=20_000),
    ):
        with pytest.raises(DemoError, match="--mode metadata shows the workers"):
            options.check()
