"""The options that say how to reach Kafka: the same for every command that does."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...journal.errors import ConfigError
from ...journal.tls import OWN as TLS
from ..settings.file import Settings, unknown
from ..settings.read import command_line_settings, read_settings

if TYPE_CHECKING:
    from ...journal.logs.interface import Log

_LOG = logging.getLogger(__name__)

BOOTSTRAP: Final = "bootstrap.servers"
_ALIAS: Final = "metadata.broker.list"
"""librdkafka's own name of the same setting."""
_COORDINATOR: Final = "coordinator"
"""The command whose options a settings file may give."""

Kafka = Mapping[str, str]
"""librdkafka's settings, with ``bootstrap.servers``; empty if none is given and none is needed."""
_Command = Callable[..., None]


def _read_config(ctx: typer.Context, path: Path | None) -> Any:
    """Reads the file before the other options are looked at, as it gives defaults for them."""
    if path is None:
        return None
    settings = read_settings(path)
    if ctx.command.name == _COORDINATOR:
        try:
            ctx.default_map = _defaults(ctx, settings)
        except ConfigError as error:
            raise ConfigError(f"{path}: [{_COORDINATOR}]: {error}") from error
    return settings


def _defaults(ctx: typer.Context, settings: Settings) -> dict[str, Any]:
    # mypy knows only the common base of options and arguments, without the method used below.
    options: dict[str, Any] = {
        p.name: p for p in ctx.command.params if p.name and p.name not in _NOT_IN_TABLE
    }
    for name, value in settings.coordinator.items():
        if name == "bootstrap_servers":
            raise ConfigError(f'{name} belongs into [kafka]: write "{BOOTSTRAP}" there')
        if name not in options:
            raise unknown(f"option {name!r} of logtx coordinator", name, options)
        try:
            options[name].process_value(ctx, value)
        except typer.BadParameter as error:
            raise ConfigError(f"{name} = {value!r}: {error.message}") from error
    return dict(settings.coordinator)


_CONNECTION: Final[Mapping[str, Any]] = {
    "bootstrap_servers": Annotated[
        str | None,
        typer.Option(
            envvar="LOGTX_BOOTSTRAP_SERVERS",
            help="Brokers of the Kafka cluster that holds the journal, as host:port,host:port.",
        ),
    ],
    "config": Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="LOGTX_CONFIG",
            is_eager=True,
            callback=_read_config,
            help="Settings file: TOML with a table \\[kafka] of librdkafka's settings (security, "
            "servers) and a table \\[coordinator], or a .properties file of Kafka's tools. An "
            "option of the command line wins over -X, -X over the file, and the file over the "
            "environment.",
        ),
    ],
    "setting": Annotated[
        list[str] | None,
        typer.Option(
            "-X",
            metavar="NAME=VALUE",
            help="A setting of librdkafka, as security.protocol=SASL_SSL, or of TLS to "
            "coordinators, as coordinator.security.protocol=SSL; may be repeated. In its "
            "value, ${NAME} is taken from the environment, and file:PATH from a file.",
        ),
    ],
}
_NOT_IN_TABLE: Final = frozenset({*_CONNECTION, "help"})


def with_kafka(command: _Command) -> _Command:
    """Gives a command `--bootstrap-servers`, `--config` and `-X`, in place of its argument `kafka`.

    The command gets one mapping, `Kafka`. If the argument has a default, brokers need not be named;
    then an empty one is passed.
    """
    signature = inspect.signature(command, eval_str=True)
    optional = signature.parameters["kafka"].default is not inspect.Parameter.empty

    @functools.wraps(command)
    def run(ctx: typer.Context, **given: Any) -> None:
        kafka = _joined(ctx, *(given.pop(name) for name in _CONNECTION))
        if (kafka or not optional) and not kafka.get(BOOTSTRAP):
            raise ConfigError(
                "no brokers are named: give --bootstrap-servers, or LOGTX_BOOTSTRAP_SERVERS, or"
                f' "{BOOTSTRAP}" in the table [kafka] of a settings file (--config)'
            )
        command(kafka=kafka, **given)

    parameters = [p for name, p in signature.parameters.items() if name != "kafka"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_ONLY, annotation=typer.Context)
    connection = [
        inspect.Parameter(name, keyword, default=None, annotation=annotation)
        for name, annotation in _CONNECTION.items()
    ]
    first = [p for p in parameters if p.kind is not keyword]
    rest = [p for p in parameters if p.kind is keyword]
    made = signature.replace(parameters=[context, *first, *connection, *rest])
    run.__signature__ = made  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in made.parameters.items()}
    return run


def _joined(
    ctx: typer.Context, servers: str | None, config: Settings | None, settings: Sequence[str] | None
) -> dict[str, str]:
    """Joins what the environment, the file, `-X` and `--bootstrap-servers` say; the later wins."""
    source = ctx.get_parameter_source("bootstrap_servers")
    from_environment = source is not None and source.name == "ENVIRONMENT"
    layers: list[Mapping[str, str]] = [
        {} if config is None else config.kafka,
        command_line_settings(settings or ()),
    ]
    if servers:
        layers.insert(0 if from_environment else len(layers), {BOOTSTRAP: servers})
    joined: dict[str, str] = {}
    for layer in layers:
        named = dict(layer)
        if _ALIAS in named:
            named.setdefault(BOOTSTRAP, named.pop(_ALIAS))
        joined.update(named)
    return joined


@contextmanager
def opened(kafka: Kafka) -> Iterator[Log]:
    """Opens the log of these settings, and closes it after the block.

    Raises:
        ConfigError: librdkafka refuses a setting.
    """
    from ...journal.logs.open import open_log

    name_unused(kafka)
    log = open_log(kafka)
    try:
        yield log
    finally:
        log.close()


def name_unused(kafka: Kafka) -> None:
    """Warns of settings that say nothing about how to reach the cluster: they have no effect."""
    from ...journal.logs.kafka_cluster import shared_settings

    unused = sorted(kafka.keys() - shared_settings(kafka).keys() - {BOOTSTRAP, *TLS})
    if unused:
        _LOG.warning("without effect here: %s", ", ".join(unused))
