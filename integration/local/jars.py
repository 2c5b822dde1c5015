"""Resolves Kafka's jars once into a lock, downloads what it lists, and verifies them every time.

`jars.lock` lists each jar's coordinate, SHA-256 and size. A jar gets its place in the cache only
after its hash was checked, so a killed download leaves no half file there. Every later start hashes
all of them again (44 MB, 30 ms), so that what runs is what the lock names. The downloader (the PyPI
library jgo) knows the repository's address; this module adds only a mirror, if asked to.

    python -m logtx.integration.local.jars          download and verify
    python -m logtx.integration.local.jars --lock   resolve again and rewrite the lock
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .errors import (
    CacheDirError,
    DownloaderMissingError,
    JarChecksumError,
    JarDownloadError,
    JarLockError,
    LocalKafkaError,
)

if TYPE_CHECKING:
    from jgo.maven import MavenContext

KAFKA_VERSION: Final = "4.3.1"
LOCK_PATH: Final = Path(__file__).with_name("jars.lock")
MIRROR_VARIABLE: Final = "LOGTX_MAVEN_MIRROR"

_KAFKA: Final = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
# Kafka logs through SLF4J and leaves the backend to its distribution: without this jar a broker
# from the bare dependencies logs nothing at all, and could not say why it fails. It is added by
# itself: resolved together with Kafka, its own preferences would replace Kafka's Jackson.
_LOGGING: Final = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
_DOWNLOADS_AT_ONCE: Final = 4
"""Jars downloaded, or hashed, at the same time; more of them put more load on the repository."""
_ATTEMPTS: Final = 3
"""Downloads of one jar before it fails; with fewer, a short network fault fails the start."""
_RETRY_DELAY_S: Final = 0.5
"""Pause after the first failed download; after the second it is twice as long."""
_HTTP_TIMEOUT_S: Final = 20
"""Time-out of one HTTP request; a smaller value fails on a slow network."""

Advance = Callable[[int], None]
"""Callback that gets the number of bytes that just arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One line of the lock."""

    coordinate: str
    """group:artifact:version"""
    sha256: str
    """Lower-case hex."""
    size_bytes: int

    @property
    def file_name(self) -> str:
        """The jar's name in the cache, as in a Maven repository."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the jars' directory: `$XDG_CACHE_HOME/logtx/jars`, by default under ~/.cache."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and to be ignored.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "logtx" / "jars"


def read_lock(path: Path = LOCK_PATH) -> list[Jar]:
    """Returns the lock's jars. Raises JarLockError if a line is damaged or the file is missing."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise JarLockError(f"Cannot read Kafka's jar lock {path}: {error.strerror}.") from error
    jars = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match line.split():
            case [coordinate, sha256, size] if (
                coordinate.count(":") == 2 and len(sha256) == 64 and size.isdecimal()
            ):
                jars.append(Jar(coordinate=coordinate, sha256=sha256, size_bytes=int(size)))
            case _:
                raise JarLockError(f"Line {number} of {path} is damaged; restore the file.")
    if not jars:
        raise JarLockError(f"Kafka's jar lock {path} is empty; restore the file.")
    return jars


def ensure_jars(
    *,
    lock: Path = LOCK_PATH,
    cache: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Path]:
    """Downloads missing jars and verifies all. Returns their paths, in the lock's order.

    Uses no network if no jar is missing. A progress bar goes to stderr. `cache` defaults to
    `cache_dir()`; the environment's LOGTX_MAVEN_MIRROR replaces the repository's address.

    Raises JarLockError, JarChecksumError, JarDownloadError, DownloaderMissingError or
    CacheDirError.
    """
    jars = read_lock(lock)
    directory = cache or cache_dir(environ)
    missing = [jar for jar in jars if not (directory / jar.file_name).is_file()]
    if missing:
        _download(missing, directory, environ)
    fresh = set(missing)
    _verify([(jar, directory / jar.file_name) for jar in jars if jar not in fresh])
    return [directory / jar.file_name for jar in jars]


def _verify(files: Sequence[tuple[Jar, Path]]) -> None:
    with ThreadPoolExecutor(max_workers=_DOWNLOADS_AT_ONCE) as pool:  # hashing releases the GIL
        hashes = list(pool.map(_sha256, (path for _, path in files)))
    for (jar, path), found in zip(files, hashes, strict=True):
        if found != jar.sha256:
            raise JarChecksumError(
                f"{path} is not the jar that jars.lock names (SHA-256 {found[:12]}…, "
                f"expected {jar.sha256[:12]}…): delete it, and it will be downloaded again."
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(jars: Sequence[Jar], directory: Path, environ: Mapping[str, str]) -> None:
    # The downloader writes straight to a file's final name. So it gets a directory of its own, on
    # the same file system, and a jar is renamed into the cache when its hash is right.
    try:
        directory.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=directory))
    except OSError as error:
        raise _unwritable(directory, error) from error
    try:
        with (
            _progress(sum(jar.size_bytes for jar in jars), len(jars)) as advance,
            ThreadPoolExecutor(max_workers=_DOWNLOADS_AT_ONCE) as pool,
        ):
            maven = _maven(staging, environ, advance)
            tasks = [pool.submit(_fetch, jar, maven, directory) for jar in jars]
            try:
                for task in as_completed(tasks):
                    task.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fetch(jar: Jar, maven: MavenContext, directory: Path) -> None:
    artifact = maven.create_dependency(jar.coordinate).artifact
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            path = artifact.resolve()
            break
        except (OSError, RuntimeError) as error:
            # The HTTP client's errors are OSErrors too, but without the system's error number.
            if isinstance(error, OSError) and error.errno is not None:
                raise _unwritable(directory, error) from error
            if artifact.cached_path is not None:  # half a file, which the next attempt would use
                artifact.cached_path.unlink(missing_ok=True)
            if attempt == _ATTEMPTS or isinstance(error, RuntimeError):
                raise JarDownloadError(
                    f"Cannot download {jar.coordinate} ({type(error).__name__}): check the network "
                    f"and proxy settings, or name a Maven mirror in {MIRROR_VARIABLE}."
                ) from error
            time.sleep(_RETRY_DELAY_S * attempt)
    found = _sha256(path)
    if found != jar.sha256:
        raise JarChecksumError(
            f"The repository's {jar.file_name} is not the one that jars.lock names "
            f"(SHA-256 {found[:12]}…, expected {jar.sha256[:12]}…); it was refused and not kept."
        )
    path.replace(directory / jar.file_name)


def _unwritable(directory: Path, error: OSError) -> CacheDirError:
    return CacheDirError(
        f"Cannot write Kafka's jars to {directory} ({error.strerror}): "
        "make room or make it writable, or set XDG_CACHE_HOME to a directory that is."
    )


def _maven(
    repo_cache: Path, environ: Mapping[str, str], advance: Advance | None = None
) -> MavenContext:
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise DownloaderMissingError(
            "Downloading Kafka needs the package jgo: install it with `pip install 'logtx[local]'`."
        ) from error

    @contextmanager
    def on_file(_name: str, _size: int) -> Iterator[Advance]:
        yield advance or (lambda _count: None)

    mirror = environ.get(MIRROR_VARIABLE, "").rstrip("/")
    return MavenContext(
        resolver=PythonResolver(progress_callback=on_file),
        repo_cache=repo_cache,
        remote_repos={"mirror": mirror} if mirror else None,
        timeout=_HTTP_TIMEOUT_S,
    )


def _progress(total_bytes: int, count: int) -> AbstractContextManager[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    @contextmanager
    def bar() -> Iterator[Advance]:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
            task = progress.add_task(f"Kafka's {count} jars", total=total_bytes)
            yield lambda received: progress.update(task, advance=received)

    return bar()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a lock is made from."""

    title: str
    """Name for people."""
    coordinates: tuple[str, ...]
    """Coordinates that are resolved together, with all that they need at run time."""
    further: tuple[str, ...] = ()
    """Coordinates that are added as they are."""
    is_there: Callable[[str], bool] = lambda _file_name: False
    """Tells by a jar's file name whether it comes from elsewhere; it is then left out."""


KAFKA: Final = Wanted(
    title=f"Apache Kafka {KAFKA_VERSION}", coordinates=(_KAFKA,), further=(_LOGGING,)
)


def write_lock(
    path: Path = LOCK_PATH, environ: Mapping[str, str] = os.environ, *, wanted: Wanted = KAFKA
) -> int:
    """Resolves what is wanted with what that needs, hashes every jar, and rewrites the lock.

    Returns the number of jars. Raises JarDownloadError, JarLockError or DownloaderMissingError.
    """
    with tempfile.TemporaryDirectory(prefix="logtx-jars-") as scratch:
        maven = _maven(Path(scratch), environ)
        try:
            asked = [maven.create_dependency(c) for c in wanted.coordinates]
            inputs, transitive = maven.resolver.resolve(asked)
            needed = (*inputs, *transitive, *map(maven.create_dependency, wanted.further))
            found = [dependency.artifact for dependency in needed if dependency.type == "jar"]
            found = [a for a in found if not wanted.is_there(a.filename)]
            lines = sorted({_lock_line(str(a.component), a.resolve()) for a in found})
        except (OSError, RuntimeError) as error:
            raise JarDownloadError(
                f"Cannot resolve the jars of {wanted.title} ({type(error).__name__}): check the "
                f"network, or name a Maven mirror in {MIRROR_VARIABLE}."
            ) from error
    names = [line.split()[0].split(":")[1] for line in lines]
    if len(set(names)) != len(names):  # the cache is flat, and two versions would both be loaded
        raise JarLockError("Two of Kafka's jars have the same artifact name; the lock was kept.")
    header = (
        f"# The jars of {wanted.title}: coordinate, SHA-256, bytes.\n"
        "# Written by `make lock`; every start checks them.\n"
    )
    path.write_text(header + "".join(f"{line}\n" for line in lines))
    return len(lines)


def _lock_line(coordinate: str, path: Path) -> str:
    return f"{coordinate} {_sha256(path)} {path.stat().st_size}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns 0; or 1, with a sentence on stderr, if it failed."""
    parser = argparse.ArgumentParser(prog="python -m logtx.integration.local.jars")
    parser.add_argument("--lock", action="store_true", help="resolve anew and rewrite jars.lock")
    try:
        if parser.parse_args(arguments).lock:
            print(f"{LOCK_PATH.name}: {write_lock()} jars")
        else:
            print(f"{len(ensure_jars())} jars in {cache_dir()}")
    except LocalKafkaError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
