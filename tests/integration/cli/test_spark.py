"""`logtx spark`: what needs no Spark, and the sentences of what is wrong."""

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
from logtx.integration.cli import main as cli
from logtx.integration.cli import spark as cli_spark
from logtx.integration.spark.errors import JavaMissingError, PySparkMissingError
from logtx.integration.spark.session import check_java
from logtx.integration.testing import Cluster
from logtx.journal.position import Place, Position
from logtx.journal.records.types import OffsetStep

from ..spark.conftest import ROOT, eventually

COMMANDS = [command.name for command in cli_spark.spark.registered_commands]


@pytest.fixture
def servers(logtx_memory_cluster: Cluster) -> str:
    """A cluster where the group "ledger" has committed twice."""
    cluster = logtx_memory_cluster
    cluster.log.create_topic("flights", partitions=2)
    cluster.log.create_topic("ledger", partitions=1)
    producer = cluster.producer()
    for begin, end in ((None, 3), (3, 5)):
        with producer.begin_transaction() as txn:
            txn.produce("ledger", b"x")
            place = None if begin is None else Place(begin)
            txn.send_offsets("ledger", [OffsetStep("flights", 1, place, Position.at(end))])
    with producer.begin_transaction() as txn:
        for _ in range(9):
            txn.produce("flights", b"x", partition=1)
    eventually(lambda: cluster.log.end_offset("flights", 1) == 10)
    eventually(lambda: bool(asked("iov", cluster.bootstrap_servers)))
    return cluster.bootstrap_servers


def run(command: str, servers: str, *arguments: str) -> Any:
    return CliRunner().invoke(
        cli.app, ["spark", command, "--bootstrap-servers", servers, *arguments]
    )


def asked(command: str, servers: str, *arguments: str) -> Any:
    result = run(command, servers, "--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_iovs_and_their_history(servers: str) -> None:
    (row,) = asked("iov", servers, "--group", "ledger")
    assert (row["topic"], row["partition"], row["offset"], row["lag"]) == ("flights", 1, 5, 5)
    assert row["committed_ms"] > 0
    steps = asked("iov", servers, "--history")
    assert [(s["from_offset"], s["to_offset"]) for s in steps] == [(None, 3), (3, 5)]
    assert steps[1]["txid"] == row["txid"]
    assert "flights" in run("iov", servers).output
    assert asked("iov", servers, "--group", "nobody") == []


def test_where_a_group_goes_on(servers: str) -> None:
    rows = asked("recover", servers, "--group", "ledger", "--topic", "flights")
    assert [(r["partition"], r["committed"], r["from_offset"], r["lag"]) for r in rows] == [
        (0, None, 0, 0),
        (1, 5, 5, 5),
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_what_it_does(command: str) -> None:
    result = CliRunner().invoke(cli.app, ["spark", command, "--help"])
    assert result.exit_code == 0
    assert "logtx spark" in result.output
    assert command in (ROOT / "docs/spark.md").read_text("utf-8")


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


@pytest.mark.parametrize("command", [("audit",), ("export", "--topic=t", "--path=p")])
def test_a_job_without_pyspark(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setattr("logtx.integration.spark.find_spec", lambda _name: None)
    for name in ("audit", "export"):
        monkeypatch.delitem(vars(logtx.integration.spark), name, raising=False)
    arguments = ["spark", *command, "--bootstrap-servers", "localhost:1"]
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
