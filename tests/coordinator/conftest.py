"""Options of the coordinator's tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite-transcripts`."""
    parser.getgroup("logtx").addoption(
        "--rewrite-transcripts",
        action="store_true",
        default=False,
        help="write what the shard printed into the transcripts, to be reviewed as a diff;"
        " name tests/coordinator on the command line with it",
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether to write generated files instead of comparing them."""
    return bool(request.config.getoption("--rewrite-transcripts", default=False))


@pytest.fixture(autouse=True)
def quickly_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confirms a lost tail almost at once: these logs have no leader that could have slept."""
    monkeypatch.setattr("logtx.coordinator.runtime.loading.CONFIRM_S", 0.05)
    monkeypatch.setattr("logtx.coordinator.runtime.loading.CONFIRM_PAUSE_S", 0.01)
