"""Security settings reach every client that Spark's functions and commands make (finding S5).

Seen whole by `logtx demo --spark` on a cluster with SASL; here by what is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from logtx.consumer.range_reader.reading import Range, RangeReader
from logtx.integration import spark as logtx_spark
from logtx.integration.cli import logs as cli_logs
from logtx.integration.cli import main as cli
from logtx.integration.inspect.checks import Report
from logtx.integration.spark import auditing, exporting, recovery
from logtx.integration.spark.options import SinkOptions
from logtx.integration.spark.planning import SourceOptions
from logtx.journal.errors import ConfigError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.producer.config import ProducerConfig

SERVERS = "kafka-1:9093"
KAFKA = {"security.protocol": "SASL_SSL", "sasl.username": "me", "sasl.password": "s3cret"}
GIVEN = {f"kafka.{name}": value for name, value in KAFKA.items()}
WHOLE = {"bootstrap.servers": SERVERS, **KAFKA}


class Opened(Exception):  # noqa: N818 - it is no error
    """Ends the function at its first client."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Collects with what settings logs are opened."""
    seen: list[Mapping[str, Any]] = []

    def open_log(settings: Mapping[str, Any]) -> MemoryLog:
        seen.append(settings)
        raise Opened

    for module in (recovery, auditing, exporting):
        monkeypatch.setattr(module, "open_log", open_log)
    monkeypatch.setattr(exporting, "_Files", lambda *_: SimpleNamespace(last=lambda: None))
    return seen


SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "iovs": lambda **given: recovery.iovs(SPARK, **given),
    "iov_history": lambda **given: recovery.iov_history(SPARK, **given),
    "audit": lambda **given: auditing.audit(SPARK, **given),
    "export": lambda **given: exporting.export(SPARK, subscribe="a", path="p", **given),
    "resume": lambda **given: recovery.resume(
        SimpleNamespace(read=None, readStream=None),  # type: ignore[arg-type]
        group="g",
        subscribe="a",
        **given,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_s5_functions_pass_on_all_settings(name: str, opened: list[Mapping[str, Any]]) -> None:
    with pytest.raises(Opened):
        FUNCTIONS[name](bootstrap_servers=SERVERS, **GIVEN)
    assert opened == [WHOLE]
    with pytest.raises(ConfigError, match=r"sasl\.username is no option"):
        FUNCTIONS[name](bootstrap_servers=SERVERS, **{"sasl.username": "me"})


def test_settings_of_tls_to_coordinators_are_options_without_a_prefix() -> None:
    tls = {"coordinator.security.protocol": "SSL", "coordinator.ssl.ca.location": "ca.pem"}
    options = {"kafka.bootstrap.servers": SERVERS, **tls}
    whole = {"bootstrap.servers": SERVERS, **tls}
    sink = SinkOptions.parse({**options, "topic": "a"})
    assert sink.kafka == whole
    assert sink.branch().items() >= tls.items()
    assert ProducerConfig.parse(sink.producer("p")).tls is not None
    assert SourceOptions.parse({**options, "subscribe": "a"}).read.kafka.items() >= whole.items()


def test_s5_the_sinks_and_the_sources_clients_get_all_settings() -> None:
    options = {"kafka.bootstrap.servers": SERVERS, **GIVEN}
    sink = SinkOptions.parse({**options, "topic": "a"})
    for config in (sink.producer("p"), sink.branch(), SinkOptions.from_json(sink.to_json()).kafka):
        assert config.items() >= WHOLE.items()
    source = SourceOptions.parse({**options, "subscribe": "a"})
    assert source.read.kafka == WHOLE
    reader = RangeReader(source.read, Range("a", 0, Position.at(0), 1), MemoryLog("any"))
    assert reader._settings.items() >= KAFKA.items()
    reader.close()


@pytest.mark.parametrize(
    ("command", "function"),
    [
        (("audit", "--master", "local[1]"), "audit"),
        (("export", "--topic", "a", "--path", "p"), "export"),
    ],
)
def test_s5_commands_pass_on_all_settings(
    command: tuple[str, ...], function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    @contextmanager
    def session(*_: object) -> Iterator[None]:
        yield None

    def run(_session: object, **given: Any) -> Any:
        seen.append(given)
        if function == "audit":
            return Report()
        return SimpleNamespace(records=0, to_sequence=0, from_sequence=0, path="p")

    monkeypatch.setattr(cli_logs, "_session", session)
    monkeypatch.setattr(cli_logs, "open_cluster", session)
    monkeypatch.setitem(vars(logtx_spark), function, run)
    settings = [f"-X{name}={value}" for name, value in KAFKA.items()]
    result = CliRunner().invoke(cli.app, [*command, "--bootstrap-servers", SERVERS, *settings])
    assert result.exit_code == 0, (result.exception, result.output)
    (given,) = seen
    assert given["bootstrap_servers"] == SERVERS
    assert given.items() >= GIVEN.items()
