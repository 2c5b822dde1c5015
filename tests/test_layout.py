"""Layout rules that import-linter can't check: pure modules do no I/O and draw no random numbers.

Modules in a folder named `core` or `records` are pure, and so is a module that says so in the first
paragraphs of its docstring ("Pure"). They hold the state machines. A clock or a random number in
one of them would break the simulation's promise that a seed replays a run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from .distribution import LONGEST, ON_KAFKA, WITH_ONE_CLUSTER, lacks_a_group

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("journal", "coordinator", "producer", "consumer", "integration", "chaos")
PURE_FOLDERS = {"core", "records"}
SAYS_PURE = re.compile(r"\bPure\b(?!-)")
IMPURE = {
    *("confluent_kafka", "grpc", "rocksdict", "pyspark"),
    *("asyncio", "threading", "time", "random", "uuid"),
}


HARMLESS = {"journal/errors.py": {"confluent_kafka"}}
"""Module → what it may import all the same: the classes of Kafka's errors, which do nothing."""


def modules() -> list[Path]:
    """Returns all hand-written modules of the rooms."""
    return [
        p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py")) if "_pb2" not in p.name
    ]


def is_pure(module: Path) -> bool:
    """Returns whether a module promises to be pure."""
    if PURE_FOLDERS.intersection(module.relative_to(ROOT).parts):
        return True
    source = module.read_text("utf-8")
    # Each process that collects tests comes by: few modules are worth a parse.
    if not SAYS_PURE.search(source):
        return False
    return bool(SAYS_PURE.search(ast.get_docstring(ast.parse(source)) or ""))


PURE_MODULES = [p.relative_to(ROOT).as_posix() for p in modules() if is_pure(p)]


def imported_packages(source: str) -> Iterator[str]:
    """Yields the top-level names of all absolute imports, anywhere in the source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def imported_modules(module: Path) -> Iterator[Path]:
    """Yields our own modules that a module imports."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = module.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            if base.with_suffix(".py").is_file():
                yield base.with_suffix(".py")
            yield from filter(Path.is_file, (base / f"{alias.name}.py" for alias in node.names))


@cache
def imports(module: Path) -> tuple[set[str], set[Path]]:
    """Returns the packages and our own modules that a module imports. Most are reached by many."""
    return set(imported_packages(module.read_text("utf-8"))), set(imported_modules(module))


def reached(module: Path) -> frozenset[Path]:
    """Returns a module, and all of ours that it imports, directly or not."""
    found, todo = {module}, [module]
    while todo:
        _, ours = imports(todo.pop())
        new = ours - found
        found |= new
        todo += new
    return frozenset(found)


@pytest.mark.parametrize("name", PURE_MODULES)
def test_pure_module_reaches_nothing_impure(name: str) -> None:
    for module in reached(ROOT / name):
        path = module.relative_to(ROOT).as_posix()
        packages, _ = imports(module)
        found = IMPURE.intersection(packages)
        assert found <= HARMLESS.get(path, set()), f"{path} imports {found}"


def test_the_state_machines_are_among_the_pure_modules() -> None:
    expected = {
        "coordinator/core/shard.py",
        "coordinator/core/tenure.py",
        "coordinator/client/pursuit.py",
        "coordinator/protocol/frames.py",
        "producer/core/bookkeeping.py",
        "consumer/core/buffer.py",
        "journal/records/codec.py",
        "chaos/checker/core/facts.py",
    }
    assert expected <= set(PURE_MODULES)


def test_imports_are_found_in_functions_too() -> None:
    source = (
        "def f():\n    from time import sleep\n    import os.path, grpc.aio\nfrom . import uuid\n"
    )
    assert set(imported_packages(source)) == {"time", "os", "grpc"}


@pytest.mark.parametrize("package", [p for p in modules() if p.name == "__init__.py"], ids=str)
def test_every_package_says_what_it_is(package: Path) -> None:
    """The docstring says what the package owns, what it imports and what it never does."""
    assert ast.get_docstring(ast.parse(package.read_text("utf-8")))


@pytest.mark.parametrize("name", [*chain(*ON_KAFKA), *LONGEST, *WITH_ONE_CLUSTER])
def test_a_file_that_is_begun_first_is_there(name: str) -> None:
    assert (ROOT / "tests" / name).exists()


def test_whatever_needs_logtx_cluster_is_given_to_one_process() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        if re.search(r"logtx_cluster:\s*Cluster", path.read_text("utf-8")):
            assert path.relative_to(ROOT / "tests").as_posix().startswith(WITH_ONE_CLUSTER)


def test_whatever_needs_logtx_kafka_is_in_a_group(request: pytest.FixtureRequest) -> None:
    # A process of pytest-xdist has loaded few files by now: it looks at each when it loads it.
    assert [item.nodeid for item in request.session.items if lacks_a_group(item)] == []
