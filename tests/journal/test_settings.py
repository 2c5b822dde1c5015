"""A misspelt setting: the error names the one that was probably meant, whichever client got it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import logtx
from logtx.journal.errors import ConfigError
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.settings import check_names

SERVERS = {"bootstrap.servers": "localhost:1"}


def consumer(settings: Mapping[str, Any]) -> None:
    """Makes a consumer."""
    logtx.Consumer({**SERVERS, "group.id": "g", **settings}).close()


def producer(settings: Mapping[str, Any]) -> None:
    """Makes a producer."""
    logtx.Producer({**SERVERS, **settings}).close()


def admin(settings: Mapping[str, Any]) -> None:
    """Asks for a topic."""
    KafkaLog({**SERVERS, **settings}).topic_info("t")


def metadata(settings: Mapping[str, Any]) -> None:
    """Makes a client of the metadata store."""
    logtx.MetadataClient({**SERVERS, **settings}).close()


def command_line(settings: Mapping[str, Any]) -> None:
    """Gives settings to a command, with -X."""
    check_names(settings)


@pytest.mark.parametrize("use", [consumer, producer, admin, metadata, command_line])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ssl.ca.locaton", r"did you mean ssl\.ca\.location\?"),
        ("sasl.usrname", r"did you mean sasl\.username\?"),
        ("ssl.enabled.protocols", "Java client alone.* write instead nothing: remove it"),
    ],
)
def test_the_setting_that_was_probably_meant(
    use: Callable[[Mapping[str, Any]], None], name: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=hint):
        use({name: "x"})


@pytest.mark.parametrize(
    ("use", "name", "hint"),
    [
        (consumer, "fetch.min.byte", r"did you mean fetch\.min\.bytes\?"),
        (consumer, "pendings.dir", r"did you mean pending\.dir\?"),
        (producer, "linger.msec", r"did you mean linger\.ms\?"),
        (producer, "something.else", "No such configuration property.*check its spelling"),
        (consumer, "something.else", "No such configuration property.*check its spelling"),
        (metadata, "grpc.max_receive_message_length", "there is no setting.*check its spelling"),
    ],
)
def test_a_setting_of_one_client(
    use: Callable[[Mapping[str, Any]], None], name: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=hint):
        use({name: "x"})


def test_settings_that_are_objects_are_settings_of_every_client() -> None:
    metadata({"logger": logging.getLogger("x"), "oauth_cb": print, "ssl_key": object()})
