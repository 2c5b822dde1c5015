"""The error tree: codes are unique and come back as the same class."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from copy import copy
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from logtx.integration.local.errors import LocalKafkaError
from logtx.journal import errors
from logtx.journal.errors import (
    BrokerError,
    LogtxError,
    NotCoordinatorError,
    RetriableError,
    error_from_code,
)

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, LogtxError) and "code" in vars(cls) and cls.code
]


def test_codes_are_unique() -> None:
    assert len({cls.code for cls in CLASSES}) == len(CLASSES) > 10


def test_an_error_crosses_the_wire_as_its_class() -> None:
    for cls in CLASSES:
        error = error_from_code(cls.code, "why")
        assert type(error) is cls
        assert str(error) == "why"
    assert type(error_from_code(9999, "why")) is LogtxError
    assert type(error_from_code(0, "why")) is LogtxError


@pytest.mark.parametrize("cls", CLASSES)
def test_programs_for_confluent_kafka_catch_it(cls: type[LogtxError]) -> None:
    with pytest.raises(KafkaException) as caught:
        raise cls("why")
    told = caught.value.args[0]
    assert (told.code(), told.str()) == (cls.kafka_code, "why")
    flags = told.retriable(), told.fatal(), told.txn_requires_abort()
    assert flags == (cls.retriable, cls.fatal, cls.txn_requires_abort)
    assert sum(flags) <= 1, "a program does one of: call again, abort, close"
    assert cls.retriable == issubclass(cls, RetriableError)


@pytest.mark.parametrize(
    "error",
    [
        BrokerError("why", kafka_code=KafkaError.NOT_LEADER_FOR_PARTITION),
        NotCoordinatorError("why", hint="there:9100"),
        LocalKafkaError("why", ["a line"]),
    ],
)
@pytest.mark.parametrize("again", [copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_copy_says_the_same(error: LogtxError, again: Callable[[LogtxError], Any]) -> None:
    copied = again(error)
    assert type(copied) is type(error)
    assert (str(copied), repr(copied)) == (str(error), repr(error))
    assert copied.args[0].code() == error.args[0].code()
    for name in ("hint", "details"):
        assert getattr(copied, name, None) == getattr(error, name, None)
