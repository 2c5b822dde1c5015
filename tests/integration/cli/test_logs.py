"""`logtx audit` and `logtx export`: without Spark, and the sentences of what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import logtx.integration.spark
from logtx.integration.cli import logs as cli_logs
from logtx.integration.cli import main as cli
from logtx.integration.inspect.checks import Report
from logtx.integration.spark.errors import JavaMissingError, PySparkMissingError
from logtx.integration.spark.session import check_java
from logtx.integration.testing import Cluster
from logtx.journal.errors import ConfigError, NotSupportedError

from ...waiting import eventually
from ..spark.conftest import ROOT


def run(cluster: Cluster, *arguments: str) -> Any:
    """Runs a command on that cluster."""
    return CliRunner().invoke(
        cli.app, [*arguments, "--bootstrap-servers", cluster.bootstrap_servers]
    )


def test_an_audit_without_spark(logtx_memory_cluster: Cluster) -> None:
    cluster = logtx_memory_cluster
    topic = cluster.topic(1)
    with cluster.producer().begin_transaction() as txn:
        txn.produce(topic, b"x")
    eventually(lambda: cluster.log.end_offset(topic, 0) == 2)
    done = run(cluster, "audit", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert (report["clean"], report["records"], report["markers"]) == (True, 1, 1)
    # A record of a transaction that never was.
    cluster.late_record(f"{str(txn.txid).rpartition('-')[0]}-{10**6}", topic)
    broken = run(cluster, "audit", "--topic", topic)
    assert broken.exit_code == cli_logs.EXIT_NOT_CLEAN
    assert "orphaned_records" in broken.output
    assert "not clean" in broken.output
    both = run(cluster, "audit", "--master", "local[1]", "--processes", "2")
    assert isinstance(both.exception, ConfigError)


def test_an_export_needs_one_target(logtx_memory_cluster: Cluster) -> None:
    cluster = logtx_memory_cluster
    topic = cluster.topic(1)
    for arguments in (
        (),
        ("--path", "p", "--to-topic", "t"),
        ("--path", "p", "--restart"),
        ("--topic", "other", "--to-topic", "t"),
    ):
        assert isinstance(
            run(cluster, "export", "--topic", topic, *arguments).exception, ConfigError
        )
    # Kafka's own transactions are what a log in memory does not have.
    done = run(cluster, "export", "--topic", topic, "--to-topic", "latest")
    assert isinstance(done.exception, NotSupportedError), done.exception


def test_java_that_is_missing_or_too_old(tmp_path: Path) -> None:
    with pytest.raises(JavaMissingError, match="Spark needs Java 17 or later"):
        check_java({"PATH": str(tmp_path)})
    old = tmp_path / "bin"
    old.mkdir()
    (old / "java").write_text("#!/bin/sh\nexit 1\n")
    (old / "java").chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    with pytest.raises(JavaMissingError, match="none was found there"):
        check_java({"PATH": str(old)})


def test_importing_logtx_imports_no_pyspark() -> None:
    code = (
        "import sys, logtx, logtx.integration.cli.main; logtx.spark;"
        "assert not {'pyspark', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


@pytest.mark.parametrize(
    "command", [("audit", "--master=local[1]"), ("export", "--topic=t", "--path=p")]
)
def test_a_job_without_pyspark(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setattr("logtx.integration.spark.find_spec", lambda _name: None)
    for name in ("audit", "export"):
        monkeypatch.delitem(vars(logtx.integration.spark), name, raising=False)
    arguments = [*command, "--bootstrap-servers", "localhost:1"]
    done = CliRunner().invoke(cli.app, arguments)
    assert isinstance(done.exception, PySparkMissingError)


def test_pyspark_that_is_missing(tmp_path: Path) -> None:
    code = (
        "import importlib.util as u; import logtx; find = u.find_spec\n"
        "import logtx.integration.spark as s; s.find_spec = lambda name: None\n"
        "try: logtx.spark.register\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=ROOT,
        timeout=60,
        capture_output=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert b"pip install 'logtx[spark]'" in done.stdout


@pytest.mark.parametrize(
    ("submitted", "options", "by_spark"),
    [
        (True, (), True),
        (True, ("--processes", "1"), False),
        (False, (), False),
        (False, ("--master", "local[1]"), True),
    ],
)
def test_a_job_of_spark_submit_audits_by_spark(
    monkeypatch: pytest.MonkeyPatch, submitted: bool, options: tuple[str, ...], by_spark: bool
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    if submitted:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4040")
    asked: list[str] = []

    def take(name: str) -> None:
        monkeypatch.setattr(cli_logs, name, lambda *_: asked.append(name) or Report())

    take("_audit_by_spark")
    take("_audit_here")
    arguments = ["audit", "--bootstrap-servers", "memory://a", *options]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert asked == ["_audit_by_spark" if by_spark else "_audit_here"]
