"""Reads the text of a settings file: logtx's TOML, or a `.properties` file of Kafka's tools. Pure.

The caller has the files and the environment. A value from either is taken as it is: `${NAME}` and
`file:` in it mean nothing, so no cycle can arise.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from ...journal.errors import ConfigError
from ...journal.settings import check_names
from ...journal.tls import OWN as TLS

KAFKA: Final = "kafka"
COORDINATOR: Final = "coordinator"
_TABLES: Final = (KAFKA, COORDINATOR)
_NOT_YET: Final[Mapping[str, str]] = {
    "coordinator.authentication": "coordinators do not ask clients who they are",
    "coordinator.authorization": "coordinators do not restrict what a client may do",
    "journal": "the journal is on the cluster of [kafka]",
}
"""Tables that this version refuses → how things are without them."""
_FROM_FILE: Final = "file:"
_FROM_ENVIRONMENT: Final = re.compile(r"\$\{([^}]*)\}")
_SECRET: Final = re.compile(r"password|passphrase|secret|key\.pem|jaas|sasl\.oauthbearer\.config")
_BREAK: Final = re.compile(r"(?<!\\)(?:\\\\)*[=:\s]")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where values come from that a file only points at."""

    environment: Mapping[str, str]
    read: Callable[[str], str]
    """Returns the text of a file; raises ConfigError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a settings file says; every value is a text."""

    kafka: Mapping[str, str]
    """Name of a setting of librdkafka, or of TLS to coordinators → its value."""
    coordinator: Mapping[str, str]
    """Name of an option of `logtx coordinator`, with _ for - → its value; the names are not checked
    here."""
    has_secret: bool = False
    """Whether a secret stands in the file itself."""


def parse_toml(text: str, source: Source) -> Settings:
    """Reads logtx's TOML.

    Args:
        text: the file.
        source: where `${NAME}` and `file:` values come from.

    Raises:
        ConfigError: it is not TOML, or has a table, a setting or a value that is not known.
    """
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"this is not TOML: {error}") from error
    for name, table in tables.items():
        if name in _NOT_YET:
            raise _not_yet(name)
        if name not in _TABLES:
            raise unknown(f"table [{name}]", name, _TABLES, "[{}]")
        if not isinstance(table, dict):
            raise ConfigError(f"{name} must be a table: write [{name}] above its settings")
    kafka = dict(_flat(tables.get(KAFKA, {})))
    coordinator = dict(tables.get(COORDINATOR, {}))
    for name in coordinator:
        if f"{COORDINATOR}.{name}" in _NOT_YET:
            raise _not_yet(f"{COORDINATOR}.{name}")
    check_names(kafka, TLS)
    return Settings(
        kafka={name: _resolved(name, value, source) for name, value in kafka.items()},
        coordinator={name: _resolved(name, value, source) for name, value in coordinator.items()},
        has_secret=any(
            _is_secret(name, str(value)) for name, value in (*kafka.items(), *coordinator.items())
        ),
    )


def parse_properties(text: str) -> Settings:
    """Reads a file of Kafka's tools (`--command-config`), by Java's rules, as `[kafka]`.

    Values are taken as they are, as Kafka's tools do.

    Raises:
        ConfigError: a setting is not known, or only the Java client has it.
    """
    kafka: dict[str, str] = {}
    for line in _logical_lines(text):
        end = _BREAK.search(line)
        name = line if end is None else line[: end.end() - 1]
        rest = "" if end is None else line[end.end() - 1 :].lstrip()
        value = rest[1:].lstrip() if rest[:1] in ("=", ":") else rest
        kafka[_unescaped(name)] = _unescaped(value)
    check_names(kafka, TLS)
    for name, value in kafka.items():
        _check_value(name, value)
    has_secret = any(map(_is_secret, kafka, kafka.values()))
    return Settings(kafka=kafka, coordinator={}, has_secret=has_secret)


def to_properties(kafka: Mapping[str, str]) -> str:
    """Returns the text from which `parse_properties` reads these settings."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in kafka.items())


def parse_setting(text: str, source: Source) -> tuple[str, str]:
    """Reads a setting of the command line, as "security.protocol=SASL_SSL".

    Raises:
        ConfigError: there is no "=", or the setting is not known.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ConfigError(f"{text!r} is not NAME=VALUE, as in security.protocol=SASL_SSL")
    check_names([name], TLS)
    return name, _resolved(name, value.strip(), source)


def unknown(what: str, name: str, known: Iterable[str], form: str = "{}") -> ConfigError:
    """Returns the error for a name that is not known, with the nearest one that is."""
    near = get_close_matches(name, sorted(known), 1)
    hint = f"did you mean {form.format(near[0])}?" if near else "check its spelling"
    return ConfigError(f"there is no {what}: {hint}")


def _not_yet(table: str) -> ConfigError:
    return ConfigError(f"this version has no table [{table}]: {_NOT_YET[table]}; remove it")


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted names: without quotes, TOML takes `ssl.ca.location` for tables in tables."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _resolved(name: str, value: object, source: Source) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str():
            found = _from_elsewhere(name, value, source)
            _check_value(name, found)
            return found
        case _:
            raise ConfigError(f"{name} must be a string, a number, true or false, not {value!r}")


def _from_elsewhere(name: str, value: str, source: Source) -> str:
    def look_up(match: re.Match[str]) -> str:
        if match[1] not in source.environment:
            raise ConfigError(f"{name}: the environment variable {match[1]!r} is not set")
        return source.environment[match[1]]

    found = _FROM_ENVIRONMENT.sub(look_up, value)
    if not value.startswith(_FROM_FILE):
        return found
    text = source.read(found.removeprefix(_FROM_FILE)).removesuffix("\n").removesuffix("\r")
    if not text:
        raise ConfigError(f"{name}: the file {found.removeprefix(_FROM_FILE)} is empty")
    return text


def _check_value(name: str, value: str) -> None:
    if "\0" in value:
        raise ConfigError(f"{name} has a NUL in its value, where librdkafka would end it")


def _is_secret(name: str, value: str) -> bool:
    points = value.startswith(_FROM_FILE) or _FROM_ENVIRONMENT.fullmatch(value) is not None
    return _SECRET.search(name) is not None and bool(value) and not points


def _logical_lines(text: str) -> Iterator[str]:
    """Yields lines by Java's rules: a backslash at the end continues a line, # and ! begin a
    comment."""
    whole = ""
    for line in re.split(r"\r\n|\n|\r", text):
        part = line.lstrip(" \t\f")
        if not whole and part[:1] in ("", "#", "!"):
            continue
        backslashes = len(part) - len(part.rstrip("\\"))
        if backslashes % 2:
            whole += part[:-1]
            continue
        yield whole + part
        whole = ""
    if whole:
        yield whole


def _escaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        return f"\\u{ord(match[0]):04x}"

    return re.sub(r"[\\\s=:#!]", one, text)


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        found = match[1]
        return chr(int(found[1:], 16)) if len(found) > 1 else _ESCAPED.get(found, found)

    return _ESCAPE.sub(one, text)
