"""Settings files: TOML, Java's properties, values from elsewhere, and what is refused."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.integration.settings.file import (
    Settings,
    Source,
    parse_properties,
    parse_setting,
    parse_toml,
    to_properties,
)
from logtx.journal.errors import ConfigError
from logtx.journal.setting_names import JAVA, LIBRDKAFKA

FILES = {"/run/secrets/kafka": "s3cret\n", "/loop": "file:/loop", "/empty": "\n", "/nul": "a\0b"}


def source(**environment: str) -> Source:
    """The files above, and this environment."""

    def read(name: str) -> str:
        if name not in FILES:
            raise ConfigError(f"can't read {name}: No such file or directory")
        return FILES[name]

    return Source(environment=environment, read=read)


def toml(text: str, **environment: str) -> Settings:
    """Reads TOML with that source."""
    return parse_toml(text, source(**environment))


def test_a_whole_file() -> None:
    found = toml(
        """
        [kafka]
        "bootstrap.servers" = "kafka-1:9093,kafka-2:9093"
        security.protocol = "SASL_SSL"   # without quotes TOML makes tables of it
        "sasl.username" = "logtx-${WHERE}"
        "sasl.password" = "file:/run/secrets/kafka"
        "socket.timeout.ms" = 5000
        "socket.keepalive.enable" = true

        [coordinator]
        listen = "0.0.0.0:9095"
        journal_partitions = 3
        """,
        WHERE="west",
    )
    assert found.kafka == {
        "bootstrap.servers": "kafka-1:9093,kafka-2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.username": "logtx-west",
        "sasl.password": "s3cret",
        "socket.timeout.ms": "5000",
        "socket.keepalive.enable": "true",
    }
    assert found.coordinator == {"listen": "0.0.0.0:9095", "journal_partitions": "3"}
    assert not found.has_secret


def test_values_from_elsewhere_mean_what_they_say() -> None:
    def password(value: str, **environment: str) -> str:
        return toml(f"[kafka]\nsasl.password = '{value}'", **environment).kafka["sasl.password"]

    assert password("file:/loop") == "file:/loop", "a cycle can't arise"
    assert password("${A}", A="file:/loop") == "file:/loop"
    assert password("${A}", A="${A}") == "${A}"
    assert password("file:${DIR}/kafka", DIR="/run/secrets") == "s3cret"
    assert password("a$b{c}") == "a$b{c}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[kafka", "this is not TOML"),
        ("[kafak]\na = 1", r"no table \[kafak\]: did you mean \[kafka\]\?"),
        ("[zzz]", r"no table \[zzz\]: check its spelling"),
        ("kafka = 1", "kafka must be a table"),
        ("[kafka]\nsecure.protocol = 'SSL'", "'secure.protocol': did you mean security.protocol"),
        ("[kafka]\nsasl.jaas.config = 'x'", "sasl.jaas.config .*Java.* sasl.username"),
        ("[kafka]\nclient.id = ['a']", "client.id must be a string, a number, true or false"),
        ("[kafka]\nclient.id = 1979-05-27", "client.id must be a string, a number, true or false"),
        ("[kafka]\nclient.id = '${NONE}'", "client.id: the environment variable 'NONE' is not set"),
        ("[kafka]\nclient.id = 'file:/none'", "can't read /none"),
        ("[kafka]\nclient.id = 'file:/empty'", "client.id: the file /empty is empty"),
        ("[kafka]\nclient.id = 'file:/nul'", "client.id has a NUL"),
        ('[kafka]\nclient.id = "a\\u0000b"', "client.id has a NUL"),
        ("[kafka]\nclient.id = 'a\0b'", "this is not TOML"),
        ("[kafka]\nerror_cb = 'x'", "no setting 'error_cb'"),
        ("[journal]\na = 1", r"no table \[journal\]: the journal is on the cluster of \[kafka\]"),
        ("[coordinator.authentication]", r"no table \[coordinator.authentication\]"),
        ("[coordinator.authorization]", r"no table \[coordinator.authorization\]"),
        ("a = " + "[" * 5000, "this is not TOML"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        toml(text)


def test_a_file_of_kafkas_tools() -> None:
    found = parse_properties(
        "# for kafka-topics.sh --command-config\r\n"
        "! another comment\n"
        "bootstrap.servers=kafka-1:9093,\\\n"
        "    kafka-2:9093\n"
        "\n"
        "security.protocol : SASL_SSL\n"
        "  sasl.mechanism PLAIN\n"
        "sasl.username\t= ali\\u0063e\n"
        "sasl.password=a=b:c\\\\ ${x} file:/y\n"
        "ssl.key.password=\n"
        "client\\.id = \\#1\n"
    )
    assert found.kafka == {
        "bootstrap.servers": "kafka-1:9093,kafka-2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "a=b:c\\ ${x} file:/y",
        "ssl.key.password": "",
        "client.id": "#1",
    }
    assert found.coordinator == {}
    assert found.has_secret


@given(
    st.dictionaries(
        st.sampled_from(sorted(LIBRDKAFKA)), st.text(st.characters(exclude_characters="\0"))
    )
)
def test_what_is_written_is_read(kafka: dict[str, str]) -> None:
    assert parse_properties(to_properties(kafka)).kafka == kafka


@pytest.mark.parametrize("name", JAVA)
def test_what_only_java_has_is_refused_by_name_with_what_to_write_instead(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_properties(f"{name}=x")
    assert str(caught.value).startswith(f"{name} is a setting of Kafka's Java client alone")
    assert JAVA[name] in str(caught.value)
    for told in re.findall(r"[a-z]+\.[a-z.]+[a-z]", JAVA[name]):
        assert told in LIBRDKAFKA or told == "sasl.oauthbearer", told


@pytest.mark.parametrize(
    ("values", "has_secret"),
    [
        ({"sasl.password": "x"}, True),
        ({"ssl.key.pem": "x"}, True),
        ({"sasl.oauthbearer.client.secret": "x"}, True),
        ({"sasl.password": "${A}"}, False),
        ({"sasl.password": "x${A}"}, True),
        ({"sasl.password": "file:/run/secrets/kafka"}, False),
        ({"sasl.username": "x", "ssl.key.location": "/etc/key.pem"}, False),
    ],
)
def test_whether_a_secret_stands_in_it(values: Mapping[str, str], has_secret: bool) -> None:
    text = "".join(f"'{name}' = '{value}'\n" for name, value in values.items())
    assert toml("[kafka]\n" + text, A="y").has_secret is has_secret


def test_settings_of_tls_to_coordinators_stand_with_those_of_kafka() -> None:
    found = toml("[kafka]\ncoordinator.security.protocol = 'SSL'")
    assert found.kafka == {"coordinator.security.protocol": "SSL"}
    assert parse_setting("coordinator.ssl.ca.location=a", source())[1] == "a"
    with pytest.raises(ConfigError, match=r"did you mean coordinator\.ssl\.ca\.location"):
        toml("[kafka]\ncoordinator.ssl.ca.locaton = 'a'")
    assert toml("[coordinator]\nssl_key_password = 'x'").has_secret
    assert not toml("[coordinator]\nssl_key_password = '${A}'", A="y").has_secret


def test_a_setting_of_the_command_line() -> None:
    assert parse_setting("client.id=a=b", source()) == ("client.id", "a=b")
    assert parse_setting("sasl.password=file:/run/secrets/kafka", source())[1] == "s3cret"
    for text in ("client.id", "=x", ""):
        with pytest.raises(ConfigError, match="is not NAME=VALUE"):
            parse_setting(text, source())
    with pytest.raises(ConfigError, match=r"did you mean client\.id"):
        parse_setting("clint.id=x", source())


def test_the_names_are_librdkafkas(tmp_path: Path) -> None:
    (library,) = Path(confluent_kafka.__file__).parent.parent.glob(
        "confluent_kafka.libs/librdkafka*.so*"
    )
    librdkafka, libc = ctypes.CDLL(str(library)), ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    shown = tmp_path / "properties"
    opened = ctypes.c_void_p(libc.fopen(str(shown).encode(), b"w"))
    librdkafka.rd_kafka_conf_properties_show(opened)
    libc.fclose(opened)
    rows = [
        line for line in shown.read_text("utf-8").splitlines() if re.match(r"[a-z._]+ +\|", line)
    ]
    written = {
        row.partition("|")[0].strip()
        for row in rows
        if not re.search(r"Type: (pointer|see dedicated API)", row)
    }
    assert written == LIBRDKAFKA
