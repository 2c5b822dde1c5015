"""Random batches and headers, some of them; `make fuzz` draws more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ...extension import use_extension
from ...parameters import examples
from . import fuzzing
from .librdkafka import Librdkafka


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fuzzing.Workbench]:
    """One for all examples."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        extension = use_extension(monkeypatch)
        made = fuzzing.Workbench(Librdkafka(extension, tmp_path_factory.mktemp("fake")))
        yield made
        made.close()


@pytest.mark.parametrize("name", fuzzing.CHECKS)
def test_the_extension_says_what_confluent_kafka_says(bench: fuzzing.Workbench, name: str) -> None:
    fuzzing.fuzz(bench, name, examples(fuzzing.CHECKS[name].number), None)
