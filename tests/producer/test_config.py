"""Settings: ours are checked and taken out, those that break a guarantee are refused."""

from __future__ import annotations

from typing import Any

import pytest

from logtx.consumer.config import ConsumerConfig
from logtx.consumer.consumer import Consumer
from logtx.journal.errors import ConfigError
from logtx.journal.keys import TransactionKey
from logtx.journal.tls import OWN as TLS
from logtx.producer.config import OWN, ProducerConfig
from logtx.producer.producer import Producer


def test_defaults() -> None:
    config = ProducerConfig.parse({"bootstrap.servers": "x:1"})
    assert config.transaction_timeout_ms == 60_000
    assert config.coordinator_timeout_ms == 30_000
    assert config.registration_delay_ms == 50
    assert config.transaction_group == "default"
    assert config.generation is None
    assert config.librdkafka == {
        "acks": "all",
        "enable.idempotence": True,
        "delivery.timeout.ms": 60_000,
    }


def test_anonymous_producers_have_names_of_their_own() -> None:
    first, second = ProducerConfig.parse({}), ProducerConfig.parse({})
    assert first.producer_id != second.producer_id


def test_a_transaction_key_says_who_the_producer_is() -> None:
    config = ProducerConfig.parse({"transaction.key": "nightly run"})
    assert config.transaction_key == TransactionKey("default", "nightly run")
    assert config.producer_id == config.transaction_group == "&default&nightly run"
    assert config.generation is None
    assert "transaction.key" not in config.librdkafka


@pytest.mark.parametrize("key", ["", "a&b", "&", None, 7])
def test_a_key_that_can_not_be_is_refused(key: Any) -> None:
    with pytest.raises(ConfigError, match=r"transaction\.key"):
        ProducerConfig.parse({"transaction.key": key})


@pytest.mark.parametrize(
    ("name", "value"),
    [("transactional.id", "w"), ("transaction.group", "g"), ("transactional.generation", 0)],
)
def test_a_key_excludes_what_it_stands_for(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        ProducerConfig.parse({"transaction.key": "k", name: value})


@pytest.mark.parametrize("name", ["transactional.id", "transaction.group"])
def test_nothing_else_may_be_named_like_a_key(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ProducerConfig.parse({name: "&default&k"})


def test_a_transaction_group_contains_no_mark() -> None:
    with pytest.raises(ConfigError, match="'a&b' contains '&'"):
        ProducerConfig.parse({"transaction.group": "a&b"})


def test_ours_are_taken_out_and_librdkafkas_pass() -> None:
    config = ProducerConfig.parse(
        {
            "transactional.id": "w",
            "transactional.generation": "3",
            "transaction.group": "g",
            "transaction.timeout.ms": 5_000,
            "coordinator.timeout.ms": 1,
            "partition.registration.delay.ms": 0,
            "linger.ms": 1,
            "acks": -1,
            "enable.idempotence": "TRUE",
            "message.timeout.ms": 700,
        }
    )
    assert (config.producer_id, config.generation) == ("g&w", 3)
    assert config.registration_delay_ms == 0
    assert config.delivery_timeout_ms == 700
    assert config.librdkafka == {
        "linger.ms": 1,
        "acks": "all",
        "enable.idempotence": True,
        "message.timeout.ms": 700,
    }


def test_records_are_delivered_within_their_transaction_by_default() -> None:
    config = ProducerConfig.parse({"transaction.timeout.ms": 5_000})
    assert config.librdkafka["delivery.timeout.ms"] == 5_000
    assert config.delivery_timeout_s == 5.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.idempotence", False),
        ("enable.idempotence", "false"),
        ("enable.idempotence", "maybe"),
        ("acks", 1),
        ("acks", "0"),
        ("request.required.acks", 1),
        ("delivery.report.only.error", True),
        ("enable.gapless.guarantee", "true"),
        ("transaction.timeout.ms", 0),
        ("transaction.timeout.ms", "soon"),
        ("coordinator.timeout.ms", 2**31),
        ("partition.registration.delay.ms", -1),
        ("transactions.in.flight.max", 0),
        ("transactional.generation", -1),
        ("transactional.id", 7),
        ("transaction.group", ""),
        ("delivery.timeout.ms", 0),
    ],
)
def test_what_breaks_a_guarantee_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        ProducerConfig.parse({name: value})


def test_the_settings_of_topics_get_round_nothing() -> None:
    with pytest.raises(ConfigError, match="acks must be all"):
        ProducerConfig.parse({"default.topic.config": {"acks": "1"}})
    config = ProducerConfig.parse(
        {"default.topic.config": {"message.timeout.ms": 1234}, "metadata.broker.list": "b:1"}
    )
    assert config.delivery_timeout_ms == 1234
    assert not {"default.topic.config", "metadata.broker.list"} & config.librdkafka.keys()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("transaction.timeoutms", "transaction.timeout.ms"),
        ("transaction.id", "transactional.id"),
        ("transactional.ID", "transactional.id"),
        ("coordinator.timeout", "coordinator.timeout.ms"),
        ("transactions.in.flight", "transactions.in.flight.max"),
        ("partition.registration.delay", "partition.registration.delay.ms"),
    ],
)
def test_a_typing_error_is_refused_with_the_name_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is no setting of a producer: .*{meant}\?$"):
        ProducerConfig.parse({name: "1"})


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("partitions.registration.delay.ms", "did you mean partition.registration.delay.ms?"),
        ("linger", "did you mean linger.ms?"),
    ],
)
def test_what_librdkafka_does_not_know_is_refused_too(name: str, end: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Producer({"bootstrap.servers": "127.0.0.1:9", "log_level": 0, name: "1"})
    assert str(caught.value).endswith(end)


def test_a_name_that_is_no_text_is_refused() -> None:
    wrong: Any = {"bootstrap.servers": "127.0.0.1:9", 5: "x"}
    for make in (Producer, Consumer):
        with pytest.raises(ConfigError, match=r"^a setting's name must be text, not 5$"):
            make(wrong)


def test_a_serializer_is_refused_with_what_to_do() -> None:
    servers = {"bootstrap.servers": "127.0.0.1:9", "log_level": 0}
    with pytest.raises(ConfigError, match=r"give produce\(\) what the serializer returns$"):
        Producer({**servers, "value.serializer": str})
    with pytest.raises(ConfigError, match=r"call the deserializer with what a message has$"):
        Consumer({**servers, "group.id": "g", "key.deserializer": str})


@pytest.mark.parametrize(
    "name", ["coordinator.query.interval.ms", "partition.assignment.strategy", "partitioner"]
)
def test_librdkafkas_settings_that_look_like_ours_pass(name: str) -> None:
    assert ProducerConfig.parse({name: "1"}).librdkafka[name] == "1"
    assert ConsumerConfig.parse({"group.id": "g", name: "1"}).librdkafka[name] == "1"


def test_all_of_our_settings_are_known() -> None:
    for name in OWN:
        special = {
            "transaction.begin.ahead": True,
            "transaction.sidecar.min.bytes": 0,
            "coordinator.ssl.endpoint.identification.algorithm": "none",
        }
        given: dict[str, Any] = {name: special.get(name, "1")}
        if name in TLS:
            # Each of them needs these two.
            given.setdefault("coordinator.ssl.certificate.location", "c.pem")
            given["coordinator.security.protocol"] = "SSL"
        assert name not in ProducerConfig.parse(given).librdkafka


@pytest.mark.parametrize(
    ("size", "from_bytes"), [(-1, None), (0, 0), ("0", 0), (1, 1), (2**26, 2**26)]
)
def test_sidecars_are_for_what_no_transaction_says(size: Any, from_bytes: int | None) -> None:
    config = ProducerConfig.parse({"transaction.sidecar.min.bytes": size})
    assert config.sidecar_from(None) == from_bytes
    assert config.sidecar_from(True) == 0
    assert config.sidecar_from(False) is None
    assert ProducerConfig.parse({}).sidecar_from(None) is None


@pytest.mark.parametrize("size", [-2, "many"])
def test_a_size_is_a_number_of_bytes(size: Any) -> None:
    with pytest.raises(ConfigError, match=r"transaction\.sidecar\.min\.bytes"):
        ProducerConfig.parse({"transaction.sidecar.min.bytes": size})
