"""What reaches executors, and what one without logtx says."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from pyspark import cloudpickle

from logtx.integration.spark import commits as commits_module
from logtx.integration.spark.commits import Commit, Commits
from logtx.integration.spark.datasource import registered
from logtx.integration.spark.keeper_client import KeeperAddress
from logtx.integration.spark.options import SinkOptions
from logtx.integration.spark.planning import SourceOptions
from logtx.integration.spark.sink import BatchSink
from logtx.integration.spark.source import BatchSource, StreamSource
from logtx.integration.spark.versions import counts_as, find

from .conftest import ROOT

KEEPER = KeeperAddress("127.0.0.1", 1, b"secret")
SERVERS = {"kafka.bootstrap.servers": "kafka-1:9092"}
READ = SourceOptions.parse({**SERVERS, "subscribe": "a"})
SHIPPED = {
    "data source": registered(KEEPER)({}),
    "sink": BatchSink(KEEPER, SinkOptions.parse({**SERVERS, "topic": "a"})),
    "batch": BatchSource(READ),
    "stream": StreamSource(READ, KEEPER),
}
LOAD = """
import sys
if sys.argv[1] == "without":
    sys.modules["logtx"] = None
from pyspark import cloudpickle
print(type(cloudpickle.loads(sys.stdin.buffer.read())).__name__)
"""


@pytest.mark.parametrize("name", SHIPPED)
def test_an_executor_without_logtx(name: str) -> None:
    raw = cloudpickle.dumps(SHIPPED[name])

    def load(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", LOAD, how]
        done = subprocess.run(command, input=raw, capture_output=True, check=False, timeout=60)
        return subprocess.CompletedProcess(
            command, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    there = load("with")
    assert there.stdout.strip() == type(SHIPPED[name]).__name__, there.stderr
    missing = load("without")
    assert missing.returncode == 1
    last = missing.stderr.strip().splitlines()[-1]
    assert "executor" in last
    assert "can't import logtx" in last
    assert "spark.pyspark.python" in last


def test_s9_logtx_asks_for_no_certain_pyspark() -> None:
    # A cluster's PySpark is that of its Spark, whatever patch release that is.
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    [asked] = [r for text in extras["spark"] if (r := Requirement(text)).name == "pyspark"]
    taken = ("4.0.0", "4.0.5", "4.1.4", "4.2.1", "4.3.0", "4.9.9")
    assert [asked.specifier.contains(version) for version in taken] == [True] * len(taken)
    assert not asked.specifier.contains("3.5.6"), "which has no Python data sources"
    assert not asked.specifier.contains("5.0.0")


def test_s9_a_name_that_this_pyspark_does_not_have() -> None:
    assert find("sql.datasource", "DataSourceArrowWriter") is not None
    assert find("sql.datasource", "DataSourceOfTheFuture") is None
    assert find("sql.of_the_future", "Anything") is None

    class Alone:
        """Anything."""

    assert counts_as("sql.of_the_future", "Anything")(Alone) is Alone
    counts_as("sql.datasource", "DataSourceStreamWriter")(Alone)
    assert issubclass(Alone, find("sql.datasource", "DataSourceStreamWriter"))


def test_as_many_commits_are_kept_as_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits_module, "COMMITS_MAX", 2)
    commits = Commits()
    for name in ("a", "b", "a", "c"):
        commits.note(name, Commit(txid=name, commit_sequence=1, records={}, query_id=name))
    assert [commits.named(n) and n for n in ("a", "b", "c")] == [None, None, "c"]
    last = commits.named(None)
    assert last is not None
    assert last.txid == "c"
    assert [bool(commits.of_query(n)) for n in ("a", "b", "c")] == [True, False, True]
