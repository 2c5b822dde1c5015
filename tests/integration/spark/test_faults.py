"""Faults in drivers of their own processes: afterwards the output equals the input, row for row."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logtx.integration.testing import Cluster

from ...waiting import eventually
from .conftest import ROOT, committed

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
DRIVER = Path(__file__).with_name("driver.py")
RUN_S = 400


class Drivers:
    """Drivers of one query, one after the other or at once."""

    def __init__(self, cluster: Cluster, tmp: Path, mode: str = "stream") -> None:
        self.cluster = cluster
        self.source, self.target = cluster.topic(2), cluster.topic(2)
        self.tmp = tmp
        self.config: dict[str, Any] = {
            "servers": cluster.bootstrap_servers,
            "source": self.source,
            "target": self.target,
            "group": f"group-{self.source}",
            "checkpoint": str(tmp / "checkpoint"),
            "directory": str(tmp),
            "mode": mode,
            "standing": str(tmp / "standing"),
            "go_on": str(tmp / "go-on"),
            "marker": str(tmp / "marker"),
        }
        self.produced = 0
        self._number = 0

    def produce(self, count: int) -> None:
        """Input, committed and seen."""
        end = lambda: sum(self.cluster.log.end_offset(self.source, p) for p in (0, 1))  # noqa: E731
        before = end()
        with self.cluster.producer().begin_transaction() as txn:
            for n in range(self.produced, self.produced + count):
                txn.produce(self.source, b"%d" % n, partition=n % 2)
        self.produced += count
        eventually(lambda: end() == before + count + 2)

    def start(self, fault: str, **settings: Any) -> subprocess.Popen[bytes]:
        """A driver with a fault; its output goes to a file."""
        self._number += 1
        log = (self.tmp / f"driver-{self._number}.log").open("wb")
        config = json.dumps({**self.config, "fault": fault, **settings})
        return subprocess.Popen(
            [sys.executable, str(DRIVER), config], cwd=ROOT, stdout=log, stderr=log
        )

    def run(self, fault: str, **settings: Any) -> int:
        """Its exit status."""
        process = self.start(fault, **settings)
        try:
            return process.wait(RUN_S)
        finally:
            process.kill()

    def log(self, number: int) -> str:
        """What a driver said."""
        return (self.tmp / f"driver-{number}.log").read_text(errors="replace")

    def check(self) -> None:
        """Row for row, none twice, none missing."""
        rows = committed(self.cluster, self.target, self.produced)
        found = Counter(value.rstrip() for *_, value in rows)
        assert found == Counter(b"%d" % n for n in range(self.produced))


@pytest.fixture
def drivers(logtx_cluster: Cluster, tmp_path: Path) -> Drivers:
    """Of a streaming query."""
    made = Drivers(logtx_cluster, tmp_path)
    made.produce(200)
    return made


@pytest.mark.parametrize("fault", ["kill-before", "kill-during", "kill-after"])
def test_a_driver_is_killed_at_a_commit(drivers: Drivers, fault: str) -> None:
    assert drivers.run(fault) == -signal.SIGKILL, drivers.log(1)[-3000:]
    drivers.produce(50)
    assert drivers.run("none") == 0, drivers.log(2)[-3000:]
    drivers.check()


def test_a_commit_that_raises_after_it_was_durable(drivers: Drivers) -> None:
    assert drivers.run("commit-raises") == 1
    assert "the answer was lost" in drivers.log(1)
    drivers.produce(50)
    assert drivers.run("none") == 0, drivers.log(2)[-3000:]
    drivers.check()


def test_a_task_fails_once_after_half(drivers: Drivers) -> None:
    assert drivers.run("task-once") == 0, drivers.log(1)[-3000:]
    drivers.check()


def test_a_task_fails_for_good(logtx_cluster: Cluster, tmp_path: Path) -> None:
    drivers = Drivers(logtx_cluster, tmp_path, mode="batch")
    drivers.produce(200)
    assert drivers.run("task-always") == 1
    assert "fails for good" in drivers.log(1)
    assert not committed(logtx_cluster, drivers.target, 0)
    assert drivers.run("none") == 0, drivers.log(2)[-3000:]
    drivers.check()


def test_two_drivers_of_one_query(drivers: Drivers) -> None:
    older = drivers.start("stand-still")
    try:
        eventually(lambda: Path(drivers.config["standing"]).exists(), 200)
        assert drivers.run("none") == 0, drivers.log(2)[-3000:]
        Path(drivers.config["go_on"]).touch()
        assert older.wait(RUN_S) == 1
        assert "ProducerFencedError" in drivers.log(1), drivers.log(1)[-6000:]
    finally:
        older.kill()
    drivers.check()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A Kafka without the session's coordinators, and two of its own, as processes."""
    from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka

    kafka = LocalKafka(tmp_path / "kafka", java_options=QUICK_TO_START)
    kafka.start()
    try:
        cluster = Cluster.on_kafka(
            kafka.bootstrap_servers, coordinators=2, directory=tmp_path, delete_topics=False
        )
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        kafka.stop()


def test_the_coordinator_is_killed_within_a_micro_batch(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    drivers = Drivers(own_cluster, tmp_path)
    drivers.produce(200)
    process = drivers.start("signal-commit")
    try:
        eventually(lambda: Path(drivers.config["standing"]).exists(), 200)
        own_cluster.kill_coordinator()
        assert process.wait(RUN_S) == 0, drivers.log(1)[-3000:]
    finally:
        process.kill()
    drivers.check()


def spark_home() -> str:
    """Where PySpark is installed."""
    import pyspark

    return str(Path(pyspark.__file__).parent)


def cluster_settings() -> dict[str, Any]:
    """Executors of their own processes."""
    os.environ["SPARK_HOME"] = spark_home()
    return {
        "master": "local-cluster[2,1,600]",
        "conf": {"spark__executor__memory": "512m", "spark__task__maxFailures": "4"},
    }


@pytest.fixture
def on_executors(
    logtx_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Drivers]:
    """`on_executors(mode="batch", **settings)`: a job or a query on two executors."""
    monkeypatch.setenv("SPARK_HOME", os.environ.get("SPARK_HOME", ""))

    def make(mode: str = "batch", **conf: str) -> Drivers:
        drivers = Drivers(logtx_cluster, tmp_path, mode=mode)
        settings = cluster_settings()
        settings["conf"] |= conf
        drivers.config |= settings
        drivers.produce(200)
        return drivers

    return make


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[str]:
    """URL of a Spark cluster whose workers go by two names of this machine: Spark runs no
    speculative attempt on the host of the first one."""
    home, port = spark_home(), free_port()
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    common = ["--webui-port", "0"]
    master = [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), *common]
    commands = [master]
    for host in ("127.0.0.1", "localhost"):
        place = ["--host", host, "--cores", "1", "--memory", "600m", *common]
        work = ["--work-dir", str(tmp_path / f"work-{host}")]
        commands.append([f"{deploy}.worker.Worker", *place, *work, url])
    environ = {**os.environ, "SPARK_HOME": home, "SPARK_DAEMON_MEMORY": "128m"}
    environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOG_DIR": str(tmp_path)}
    started = []
    try:
        for number, command in enumerate(commands):
            log = (tmp_path / f"spark-{number}.log").open("wb")
            line = [str(Path(home) / "bin" / "spark-class"), *command]
            started.append(subprocess.Popen(line, stdout=log, stderr=log, env=environ))
        said = tmp_path / "spark-0.log"
        eventually(lambda: said.read_text().count("Registering worker") == 2, 120)
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("mode", ["batch", "stream"])
@pytest.mark.parametrize("master", ["local-cluster", "standalone"])
def test_an_executor_is_lost(
    on_executors: Callable[..., Drivers], request: pytest.FixtureRequest, master: str, mode: str
) -> None:
    drivers = on_executors(mode)
    if master == "standalone":
        drivers.config["master"] = request.getfixturevalue("two_hosts")
    drivers.config["limit"] = 400
    process = drivers.start("slow-task", slow_s=120)
    try:
        marker = Path(drivers.config["marker"])
        eventually(lambda: marker.exists() and marker.read_text() != "", 200)
        time.sleep(1)
        executor = parent_java(int(marker.read_text()))
        os.kill(executor, signal.SIGKILL)
        assert process.wait(RUN_S) == 0, drivers.log(1)[-3000:]
    finally:
        process.kill()
    drivers.check()


def test_an_executor_without_logtx(on_executors: Callable[..., Drivers], tmp_path: Path) -> None:
    without = tmp_path / "without"
    without.mkdir()
    # Only executors have that variable: the driver's own Python workers get the path, too.
    (without / "sitecustomize.py").write_text(
        "import os, sys\nif 'SPARK_EXECUTOR_DIRS' in os.environ: sys.modules['logtx'] = None\n"
    )
    drivers = on_executors(spark__executorEnv__PYTHONPATH=str(without))
    assert drivers.run("none") == 1
    assert "the Python of this executor" in drivers.log(1)
    assert "ship an environment with it" in drivers.log(1)
    assert not committed(drivers.cluster, drivers.target, 0)


def test_the_commands_obey_spark_submit(
    logtx_cluster: Cluster, two_hosts: str, tmp_path: Path
) -> None:
    topic = logtx_cluster.topic(2)
    with logtx_cluster.producer().begin_transaction() as txn:
        txn.produce(topic, b"x")
    job = tmp_path / "job.py"
    job.write_text("from logtx.integration.cli.main import main\nmain()\n")
    servers = ("--bootstrap-servers", logtx_cluster.bootstrap_servers)
    environ = {**os.environ, "SPARK_HOME": spark_home(), "PYSPARK_PYTHON": sys.executable}
    settings = ("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1")
    submit = [str(Path(spark_home()) / "bin" / "spark-submit"), "--master", two_hosts, *settings]
    audit = [*submit, str(job), "audit", *servers, "--topic", topic, "--json"]
    done = subprocess.run(
        audit, env=environ, capture_output=True, text=True, check=False, timeout=RUN_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout[done.stdout.index("{") :])["transactions"] >= 1
    assert "Registered app logtx" in (tmp_path / "spark-0.log").read_text()


def test_speculative_attempts(on_executors: Callable[..., Drivers], two_hosts: str) -> None:
    drivers = on_executors(
        spark__speculation="true",
        spark__speculation__interval="200ms",
        spark__speculation__multiplier="1.2",
        spark__speculation__quantile="0.1",
        spark__speculation__minTaskRuntime="1s",
        # So that rows get from the sleeping attempt to its writer a few at a time.
        spark__sql__execution__arrow__maxRecordsPerBatch="5",
        spark__buffer__size="64",
    )
    drivers.config["master"] = two_hosts
    # It sleeps for longer than is waited for: only another attempt can end the job.
    assert drivers.run("slow-task", slow_s=RUN_S * 2) == 0, drivers.log(1)[-3000:]
    # The first attempt wrote a half, and slept while the second one won.
    raw = drivers.cluster.consumer(drivers.target, isolation_level="read_uncommitted")
    written = 0
    while batch := raw.consume(1_000, 3):
        written += len(batch)
    assert written > drivers.produced
    drivers.check()


def parent_java(pid: int) -> int:
    """The executor that a Python worker belongs to."""
    import psutil

    return next(p.pid for p in psutil.Process(pid).parents() if "java" in p.name())
