"""What the keeper asks Spark, of all sessions of a driver; the JVM's objects are made here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logtx.integration.spark import application as application_module
from logtx.integration.spark.application import SparkApplication


def query(query_id: str, run_id: str, *, name: str | None = None, trigger: str = "P") -> Any:
    """Spark's object of a query that runs."""
    text = {"id": query_id, "runId": run_id}
    ids = {key: lambda t=t: SimpleNamespace(toString=lambda: t) for key, t in text.items()}
    root = f"file:/checkpoints/{query_id}"
    rest = {"resolvedCheckpointRoot": root, "name": name, "trigger": trigger}
    return SimpleNamespace(**ids, **{key: lambda v=v: v for key, v in rest.items()})


def application(*queries: Any, root: str | None = None) -> SparkApplication:
    """That of a session which started none of these queries itself."""
    running = SimpleNamespace(values=lambda: list(queries))
    shared = SimpleNamespace(activeStreamingQueries=lambda: running)
    streams = SimpleNamespace(active=list)
    jvm = SimpleNamespace(sharedState=lambda: shared, streams=lambda: streams)
    conf = SimpleNamespace(get=lambda *_: root)
    spark: Any = SimpleNamespace(_jsparkSession=jvm, conf=conf)
    return SparkApplication(spark)


def test_a_query_of_another_session_is_known() -> None:
    asked = application(query("one", "1-1"), query("two", "2-1", name="q"), root="/mine")
    assert [asked.run_of(of) for of in ("one", "two", "none")] == ["1-1", "2-1", None]
    assert asked.checkpoint_of(None, "one") == "file:/checkpoints/one"
    assert asked.checkpoint_of("q", None) == "file:/checkpoints/two", "of the query, not of here"
    assert asked.checkpoint_of("later", None) == "/mine/later"
    assert asked.checkpoint_of(None, "none") is None


def test_a_name_that_queries_of_two_sessions_have_tells_neither() -> None:
    asked = application(query("one", "1", name="q"), query("two", "2", name="q"), root="/mine")
    assert asked.checkpoint_of("q", None) is None
    assert asked.checkpoint_of("q", "two") == "file:/checkpoints/two"


@pytest.mark.parametrize(
    ("triggers", "whole"),
    [(["AvailableNow"], True), (["AvailableNow"] * 2, True), (["AvailableNow", "P"], False)],
)
def test_s7_equal_options_of_two_queries(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    triggers: list[str],
    whole: bool,
) -> None:
    monkeypatch.setattr(application_module, "source_options", lambda _: [None, {"topic": "a"}])
    running = [query(str(n), "1", trigger=trigger) for n, trigger in enumerate(triggers)]
    asked = application(*running)
    assert asked.reads_to_the_end({"topic": "a"}) is whole
    assert asked.reads_to_the_end({"topic": "b"}) is False
    assert ("read with equal options" in caplog.text) is (len(set(triggers)) > 1)


def on_a_cluster(files: dict[str, str]) -> SparkApplication:
    """One whose default file system has these files."""
    system = SimpleNamespace(
        exists=files.__contains__,
        open=lambda path: SimpleNamespace(text=files[path], close=lambda: None),
    )

    class Place(str):
        """Hadoop's path."""

        def getFileSystem(self, _configuration: object) -> Any:  # noqa: N802 - Hadoop's name
            """Returns the only one."""
            return system

    reading = SimpleNamespace(toString=lambda stream, _encoding: stream.text)
    apache = SimpleNamespace(
        hadoop=SimpleNamespace(fs=SimpleNamespace(Path=Place)),
        commons=SimpleNamespace(io=SimpleNamespace(IOUtils=reading)),
    )
    jvm = SimpleNamespace(org=SimpleNamespace(apache=apache))
    context = SimpleNamespace(hadoopConfiguration=lambda: None)
    spark: Any = SimpleNamespace(_jvm=jvm, _jsc=context)
    return SparkApplication(spark)


def test_s16_a_file_of_this_machine_is_not_taken_for_one_of_the_cluster(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata")
    Path(path).write_text("of this machine")
    assert on_a_cluster({path: "of the cluster"}).read_checkpoint(path) == "of the cluster"
    assert on_a_cluster({}).read_checkpoint(path) is None
    assert on_a_cluster({}).read_checkpoint(f"file:{path}") == "of this machine"
    hdfs = f"hdfs://name-node:8020{path}"
    assert on_a_cluster({hdfs: "of HDFS"}).read_checkpoint(hdfs) == "of HDFS"
