"""Parameters of tests of which `make test` runs some: all would cost more than they prove."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest


def slow(values: Iterable[Any]) -> list[Any]:
    """Returns values as parameters of slow tests."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


KAFKA: Final = pytest.param("kafka", marks=pytest.mark.kafka)
SLOW_MOCK: Final = pytest.param("mock", marks=pytest.mark.slow)
"""The mock cluster, where each run of the tests goes the same way on a real broker."""
SLOW_KAFKA: Final = pytest.param("kafka", marks=(pytest.mark.kafka, pytest.mark.slow))
"""The transport `kafka`, where other tests go the same ways to a real broker."""
