"""The faults of the drivers that the slow tests start can be built in."""

from __future__ import annotations

import pytest

from logtx.integration.spark.jobs import Jobs

from . import driver


@pytest.mark.parametrize(
    "fault",
    ["kill-before", "kill-during", "kill-after", "commit-raises", "stand-still", "signal-commit"],
)
def test_a_fault_stands_where_jobs_commit(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Jobs.commit
    monkeypatch.setattr(Jobs, "commit", commit)  # undone at the end
    driver.inject(fault, {})
    assert Jobs.commit is not commit
