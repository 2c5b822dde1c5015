"""A `java` that runs shell commands instead of Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from logtx.integration.local import cluster

_PROGRAM = """#!/bin/sh
case "$*" in
*StorageTool*) {format} ;;
*) {run} ;;
esac
"""


def fake_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, format: str = "exit 0", run: str = "exit 0"
) -> None:
    """Put it where it is found first; `$*` in the commands are Java's arguments."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(_PROGRAM.format(format=format, run=run))
    program.chmod(0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setattr(cluster, "ensure_jars", list)
