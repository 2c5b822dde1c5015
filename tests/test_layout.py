"""Layout rules that import-linter cannot hold: the pure modules do no I/O and draw no chance.

They hold the three state machines (DESIGN: sans-IO cores); a clock or a random number in one of
them would end the simulation's promise that a seed replays a run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import LONGEST

ROOT = Path(__file__).resolve().parent.parent

PURE_MODULES = [
    "journal/txid.py",
    "journal/control.py",
    "journal/records.py",
    "journal/fate.py",
    "journal/keys.py",
    "journal/position.py",
    "journal/record_codec.py",
    "journal/record_reader.py",
    "journal/snapshots.py",
    "journal/state.py",
    "coordinator/balance.py",
    "coordinator/claims.py",
    "coordinator/clocks.py",
    "coordinator/limits.py",
    "coordinator/members.py",
    "coordinator/names.py",
    "coordinator/waiting.py",
    "coordinator/watermark.py",
    "coordinator/admin.py",
    "coordinator/answers.py",
    "coordinator/commands.py",
    "coordinator/counters.py",
    "coordinator/data_partitions.py",
    "coordinator/decision.py",
    "coordinator/metadata.py",
    "coordinator/offsets.py",
    "coordinator/producers.py",
    "coordinator/shard.py",
    "coordinator/replica.py",
    "coordinator/snapshot.py",
    "coordinator/tenure.py",
    "producer/bookkeeping.py",
    "producer/tally.py",
    "consumer/buffer.py",
    "consumer/ranges.py",
    "consumer/whole.py",
    *(
        f"integration/chaos/checker/{name}.py"
        for name in (
            *("assemble", "avro", "cycles", "facts", "fencing", "finals", "findings", "history"),
            *("inputs", "journal", "judge", "logs", "markers", "polls", "reads", "serial"),
            *("wire", "writes"),
        )
    ),
    "integration/spark/checks.py",
    "integration/spark/options.py",
    "integration/spark/steps.py",
    "integration/spark/vector.py",
]

IMPURE = {
    *("confluent_kafka", "grpc", "rocksdict", "pyspark"),
    *("asyncio", "threading", "time", "random", "uuid"),
}


def imported_packages(source: str) -> Iterator[str]:
    """Top-level names of all absolute imports, wherever in the source they stand."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("module", PURE_MODULES)
def test_pure_module_imports_nothing_impure(module: str) -> None:
    assert not IMPURE.intersection(imported_packages((ROOT / module).read_text()))


def test_imports_are_found_in_functions_too() -> None:
    source = (
        "def f():\n    from time import sleep\n    import os.path, grpc.aio\nfrom . import uuid\n"
    )
    assert set(imported_packages(source)) == {"time", "os", "grpc"}


@pytest.mark.parametrize("name", LONGEST)
def test_a_file_that_is_begun_first_is_there(name: str) -> None:
    assert (ROOT / "tests" / name).is_file()
