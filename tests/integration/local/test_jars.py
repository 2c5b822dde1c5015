"""Jars: the lock, the download from a mirror on this machine, and every way to refuse a jar."""

from __future__ import annotations

import errno
import hashlib
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from logtx.integration.local import jars
from logtx.integration.local.errors import (
    CacheDirError,
    DownloaderMissingError,
    JarChecksumError,
    JarDownloadError,
    JarLockError,
)

CONTENTS = {"one": b"first jar" * 100, "two": b"second jar" * 100}


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A Maven repository on a local port, as environment for the functions under test."""
    root = tmp_path / "repository"
    for name, content in CONTENTS.items():
        path = root / "org" / "example" / name / "1.0" / f"{name}-1.0.jar"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {jars.MIRROR_VARIABLE: f"http://127.0.0.1:{server.server_port}/"}
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "jars.lock"
    lines = [
        f"org.example:{name}:1.0 {hashlib.sha256(content).hexdigest()} {len(content)}"
        for name, content in CONTENTS.items()
    ]
    path.write_text("# two jars\n\n" + "\n".join(lines) + "\n")
    return path


def test_downloads_what_is_missing_and_then_needs_no_network(
    tmp_path: Path, lock: Path, mirror: dict[str, str], closed_port: int
) -> None:
    cache = tmp_path / "cache"
    paths = jars.ensure_jars(lock=lock, cache=cache, environ=mirror)
    assert {path.name: path.read_bytes() for path in paths} == {
        "one-1.0.jar": CONTENTS["one"],
        "two-1.0.jar": CONTENTS["two"],
    }
    assert sorted(path.name for path in cache.iterdir()) == ["one-1.0.jar", "two-1.0.jar"]
    unreachable = {jars.MIRROR_VARIABLE: f"http://127.0.0.1:{closed_port}"}
    assert jars.ensure_jars(lock=lock, cache=cache, environ=unreachable) == paths


def test_a_corrupt_jar_in_the_cache_is_refused(
    tmp_path: Path, lock: Path, mirror: dict[str, str]
) -> None:
    first, _ = jars.ensure_jars(lock=lock, cache=tmp_path / "cache", environ=mirror)
    first.write_bytes(CONTENTS["one"][:-1] + b"!")
    with pytest.raises(JarChecksumError, match=r"one-1\.0\.jar is not the jar .* delete it"):
        jars.ensure_jars(lock=lock, cache=tmp_path / "cache", environ=mirror)


def test_another_jar_at_the_repository_is_refused_and_not_kept(
    tmp_path: Path, lock: Path, mirror: dict[str, str]
) -> None:
    right = hashlib.sha256(CONTENTS["one"]).hexdigest()
    lock.write_text(lock.read_text().replace(right, "0" * 64))
    with pytest.raises(JarChecksumError, match="refused and not kept"):
        jars.ensure_jars(lock=lock, cache=tmp_path / "cache", environ=mirror)
    assert not (tmp_path / "cache" / "one-1.0.jar").exists()


def test_an_unreachable_registry_is_one_sentence(
    tmp_path: Path, lock: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "_RETRY_DELAY_S", 0.0)
    environ = {jars.MIRROR_VARIABLE: f"http://127.0.0.1:{closed_port}"}
    with pytest.raises(JarDownloadError, match=r"check the network .* LOGTX_MAVEN_MIRROR"):
        jars.ensure_jars(lock=lock, cache=tmp_path / "cache", environ=environ)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_jar_that_the_repository_lacks(
    tmp_path: Path, lock: Path, mirror: dict[str, str]
) -> None:
    lock.write_text(lock.read_text() + f"org.example:absent:2.0 {'a' * 64} 10\n")
    with pytest.raises(JarDownloadError, match=r"Cannot download org\.example:absent:2\.0"):
        jars.ensure_jars(lock=lock, cache=tmp_path / "cache", environ=mirror)


def test_missing_downloader_names_the_extra(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(DownloaderMissingError, match=r"pip install 'logtx\[local\]'"):
        jars.ensure_jars(lock=lock, cache=tmp_path / "cache", environ={})


def test_no_room_in_the_cache(tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_artifact: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("jgo.maven.Artifact.resolve", refuse)
    with pytest.raises(CacheDirError, match=r"No space left on device.*XDG_CACHE_HOME"):
        jars.ensure_jars(lock=lock, cache=tmp_path / "cache", environ={})


def test_a_cache_path_that_is_a_file(tmp_path: Path, lock: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(CacheDirError, match="Cannot write Kafka's jars"):
        jars.ensure_jars(lock=lock, cache=tmp_path / "cache", environ={})


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "org.example:one 00 5\n", f"a:b:c {'0' * 64} many\n"]
)
def test_damaged_lock(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    with pytest.raises(JarLockError, match="restore the file"):
        jars.read_lock(tmp_path / "lock")


def test_missing_lock(tmp_path: Path) -> None:
    with pytest.raises(JarLockError, match="Cannot read"):
        jars.read_lock(tmp_path / "absent")


def test_committed_lock_holds_this_kafka() -> None:
    names = {jar.coordinate for jar in jars.read_lock()}
    assert f"org.apache.kafka:kafka_2.13:{jars.KAFKA_VERSION}" in names
    assert len({jar.file_name for jar in jars.read_lock()}) == len(names)


def test_cache_dir_respects_xdg() -> None:
    assert jars.cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/logtx/jars")
    assert jars.cache_dir({"XDG_CACHE_HOME": "rel"}) == Path.home() / ".cache" / "logtx" / "jars"
