"""`import logtx` costs next to nothing, and every name it offers is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import logtx


def test_importing_loads_no_client_library() -> None:
    check = (
        "import sys, logtx; "
        "heavy = {'confluent_kafka', 'grpc', 'fastavro', 'google.protobuf', 'rocksdict'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("name", logtx.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(logtx, name).__name__ == name
    assert name in dir(logtx)


def test_any_other_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = logtx.nonsense  # type: ignore[attr-defined]
