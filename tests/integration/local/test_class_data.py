"""The archive of Kafka's classes: who may use it, and that only a whole one is ever published."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from logtx.integration.local.class_data import ClassData
from logtx.integration.local.cluster import LocalKafka
from logtx.integration.local.jars import ensure_jars
from logtx.integration.local.java import Java

ORDERLY, KILLED = 143, -9


@pytest.fixture
def java(tmp_path: Path) -> Java:
    program = tmp_path / "java"
    program.touch()
    return Java(program=program, major=17, source="test")


@pytest.fixture
def class_data(tmp_path: Path, java: Java) -> ClassData:
    return ClassData.of(java, [], cache=tmp_path / "class-data")


def test_another_jar_or_java_needs_another_archive(tmp_path: Path, java: Java) -> None:
    jar = tmp_path / "kafka.jar"
    jar.write_bytes(b"one")

    def archive() -> Path:
        return ClassData.of(java, [jar], cache=tmp_path).archive

    first = archive()
    assert archive() == first
    jar.write_bytes(b"other")
    second = archive()
    assert second != first
    os.utime(jar, (1, 1))  # a JVM refuses an archive over a jar's time too
    third = archive()
    assert third not in {first, second}
    os.utime(java.program, (1, 1))
    assert archive() not in {first, second, third}


def test_an_orderly_end_publishes_the_archive(class_data: ClassData) -> None:
    assert class_data.options() == []
    training = class_data.training()
    assert training is not None
    training.part.write_bytes(b"classes")
    assert class_data.options() == []
    training.finish(ORDERLY)
    assert class_data.archive.read_bytes() == b"classes"
    assert f"-XX:SharedArchiveFile={class_data.archive}" in class_data.options()
    assert class_data.training() is None
    assert not training.part.exists()


@pytest.mark.parametrize("status", [KILLED, 1])
def test_half_an_archive_is_deleted(class_data: ClassData, status: int) -> None:
    training = class_data.training()
    assert training is not None
    training.part.write_bytes(b"cla")
    training.finish(status)
    assert list(class_data.archive.parent.iterdir()) == []
    assert class_data.training() is not None


def test_an_end_without_an_archive(class_data: ClassData) -> None:
    training = class_data.training()
    assert training is not None
    training.finish(ORDERLY)
    assert class_data.options() == []


def test_what_a_killed_process_left_is_cleared_away(class_data: ClassData) -> None:
    old, new = class_data.training(), class_data.training()
    assert old is not None
    assert new is not None
    assert old.part != new.part
    for training in (old, new):
        training.part.touch()
    two_hours_ago = time.time() - 7200
    os.utime(old.part, (two_hours_ago, two_hours_ago))
    class_data.training()
    assert not old.part.exists()
    assert new.part.exists()


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, java: Java, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert ClassData.of(java, [], cache=tmp_path / "file").training() is None
    assert "class_data_unwritable" in caplog.text


@pytest.mark.slow
@pytest.mark.kafka
def test_a_broker_writes_the_archive_and_the_next_one_maps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = ensure_jars()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with LocalKafka(tmp_path / "kafka", jars=jars) as kafka:
        assert list((tmp_path / "cache/logtx/class-data").glob("*.jsa")) == []
    (archive,) = (tmp_path / "cache/logtx/class-data").iterdir()
    assert archive.suffix == ".jsa"
    with LocalKafka(tmp_path / "kafka", jars=jars) as kafka:
        assert str(archive) in Path(f"/proc/{kafka.pid}/maps").read_text()
    assert archive.exists()
