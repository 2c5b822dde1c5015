"""Lock files hold versions and hashes; where packages come from is the installing machine's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOCKS = ["requirements.lock", *(f"make/{name}.lock" for name in ("build", "jdk"))]
JAR_LOCKS = [
    "integration/local/jars.lock",
    "benchmarks/spark/jars.lock",
    "tests/integration/local/kafka-4.1.lock",
]
PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


@pytest.mark.parametrize("name", [*LOCKS, *JAR_LOCKS])
def test_no_registry_and_no_path(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text
    assert str(ROOT) not in text


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_hashes(name: str) -> None:
    requirements = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    pins = [line for line in requirements if line and not line.startswith("#")]
    assert pins
    assert all("==" in pin and "--hash=sha256:" in pin for pin in pins)


def test_the_build_tools_are_a_subset() -> None:
    everything = set(PIN.findall((ROOT / "requirements.lock").read_text()))
    assert set(PIN.findall((ROOT / "make/build.lock").read_text())) <= everything
