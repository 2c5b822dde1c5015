"""The Spark query among the workers: its faults and checkpoints; in `make test-all` a whole run."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from rich.console import Console

from logtx.chaos.checkpoints import Checkpoints
from logtx.chaos.errors import ChaosError
from logtx.chaos.fleet import ChaosSpark
from logtx.chaos.options import ChaosOptions, System
from logtx.chaos.plan import Role, What, plan_faults
from logtx.integration.local.spark_driver import SparkChild

from ..waiting import eventually
from .test_run import SMALL, console, killed, run, told

__all__ = ["console"]


def test_an_older_copy_is_put_back_and_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert not checkpoints.has_backup
    first = checkpoints.path
    first.mkdir()
    (first / "offsets").write_text("older")
    checkpoints.back_up()
    (first / "offsets").write_text("newer")
    (first / "commits").touch()
    checkpoints.restore()
    assert checkpoints.path == first
    assert [p.name for p in first.iterdir()] == ["offsets"]
    assert (first / "offsets").read_text() == "older"
    # The driver is another process.
    driver = Checkpoints(tmp_path)
    assert driver.is_restored
    driver.begin_anew()
    assert not checkpoints.is_restored
    assert checkpoints.path == driver.path != first
    driver.take(3)
    assert driver.is_taken(2)
    assert not driver.is_taken(3)


def test_a_plan_hurts_the_query_only_if_there_is_one() -> None:
    def plan(seed: int, *, spark: bool) -> set[What]:
        counts = ChaosOptions(spark=spark).counts()
        return {f.what for f in plan_faults(seed, 300, counts) if f.role is Role.SPARK}

    assert plan(1, spark=True) == {What.KILL, What.RESTORE, What.REPLACE}
    assert not plan(1, spark=False)
    # What the other roles suffer stays the same.
    others = [
        [f for f in plan_faults(1, 300, ChaosOptions(spark=spark).counts()) if f.role != Role.SPARK]
        for spark in (False, True)
    ]
    assert others[0] == others[1]


def test_a_query_is_for_logtx_alone() -> None:
    options = ChaosOptions(spark=True, system=System.KAFKA)
    with pytest.raises(ChaosError, match="--spark is for logtx"):
        options.check()


def test_a_pause_and_a_kill_reach_the_jvm_of_a_replaced_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import subprocess,time;print(subprocess.Popen(['sleep','60']).pid,flush=True)"
    child = SparkChild("driver", tmp_path / "log", [])
    monkeypatch.setattr(child, "_command", lambda: ["timeit", "-n1", f"{script};time.sleep(60)"])
    child.start()
    eventually(lambda: (tmp_path / "log").read_text().endswith("\n"), 30)
    jvm = psutil.Process(int((tmp_path / "log").read_text()))
    zombie = child.leave_behind()
    assert not child.is_running
    zombie.pause()
    eventually(lambda: jvm.status() == psutil.STATUS_STOPPED, 30)
    zombie.resume()
    eventually(lambda: jvm.status() != psutil.STATUS_STOPPED, 30)
    zombie.kill()
    eventually(lambda: not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE, 30)
    assert issubclass(ChaosSpark, SparkChild)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_query_whose_checkpoint_is_restored(tmp_path: Path, console: Console) -> None:
    # By this seed a kill comes first, which leaves the copy, and then it is put back.
    directory = tmp_path / "run"
    options = SMALL(seconds=60, seed=9, rate=20, data_dir=directory, spark=True)
    found = run(options, console, tmp_path)
    assert found["spark committed"] > 2
    assert found["worker committed"] > 0
    assert "spark" in killed(directory)
    settled = [e["note"] for role, e in told(directory) if role == "spark" and "note" in e]
    assert any("restored" in note for note in settled), settled
