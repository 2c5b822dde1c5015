"""Takes settings with dotted names out of a user's dict, and checks each.

Every function here removes the setting from `settings` and returns its value.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, MutableMapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

from .errors import ConfigError
from .files import stamp
from .setting_names import JAVA, LIBRDKAFKA

INT32_MAX: Final = 2**31 - 1
_TRUE: Final = ("true", "t", "1")
_FALSE: Final = ("false", "f", "0")
_LIKE_OURS: Final = "coordinator.query.interval.ms"
"""The one setting of librdkafka that begins as some of ours do."""
_OF_FILES: Final = (".location", ".file")
"""Ends of the names of librdkafka's settings that name a file."""
_PLAIN: Final = (str, bytes, int, float)
_UNKNOWN: Final = re.compile(r'No such configuration property: "([^"]*)"')
_D = TypeVar("_D", str, None)
_N = TypeVar("_N", int, None)


def merged(
    config: Mapping[str, Any] | None, settings: Mapping[str, Any], logger: Any
) -> dict[str, Any]:
    """Returns a client's configuration, in each of the forms that confluent-kafka takes.

    Args:
        config: a dict, or None.
        settings: keyword arguments; they have precedence.
        logger: takes librdkafka's log; None: not given.

    Raises:
        ConfigError: the name of a setting is no text.
        TypeError: there is no configuration at all, or `logger` takes no log.
    """
    if logger is not None and not callable(getattr(logger, "log", None)):
        raise TypeError(f"logger must be a logging.Logger, not {logger!r}")
    if config is None and not settings:
        raise TypeError("expected configuration dict")
    given = {} if logger is None else {"logger": logger}
    found = {**(config or {}), **settings, **given}
    for name in found:
        if not isinstance(name, str):
            raise ConfigError(f"a setting's name must be text, not {name!r}")
    return found


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration with one name for each setting, so that none gets round a check.

    Settings in ``default.topic.config`` become settings like others, which win over them; and
    ``metadata.broker.list`` is ``bootstrap.servers``.

    Raises:
        ConfigError: ``default.topic.config`` is no dict.
    """
    rest = dict(config)
    of_topics = rest.pop("default.topic.config", None) or {}
    if not isinstance(of_topics, Mapping):
        raise ConfigError(f"default.topic.config must be a dict, not {of_topics!r}")
    settings = {**of_topics, **rest}
    brokers = settings.pop("metadata.broker.list", None)
    if brokers and not settings.get("bootstrap.servers"):
        settings["bootstrap.servers"] = brokers
    return settings


def agreed(settings: Mapping[str, Any]) -> Hashable | None:
    """Returns what is equal for the same settings of librdkafka; None: nobody else has the same.

    An object that the application gives, such as a callback, a logger or a partitioner, may belong
    to one client. So whoever has one shares nothing. A client reads the files that settings name
    when it is made: where one was written since, as certificates are renewed, the next client is to
    read it too.
    """
    if not all(value is None or isinstance(value, _PLAIN) for value in settings.values()):
        return None
    return frozenset((name, _as_read(name, value)) for name, value in settings.items())


def _as_read(name: str, value: Any) -> Any:
    """Returns a value as librdkafka reads it: 5 and "5" are the same, and a file is its content."""
    if name.endswith(_OF_FILES) and isinstance(value, str):
        return value, stamp(Path(value))
    return value if value is None or isinstance(value, str | bytes) else str(value).lower()


def take_flag(settings: MutableMapping[str, Any], name: str, default: bool) -> bool:
    """Takes a switch, in any form that librdkafka takes: a bool, "true", "t", "1" …

    Raises:
        ConfigError: it is anything else.
    """
    value = settings.pop(name, default)
    text = str(value).lower()
    if text not in _TRUE + _FALSE:
        raise ConfigError(f"{name} must be true or false, not {value!r}")
    return text in _TRUE


def take_text(settings: MutableMapping[str, Any], name: str, default: _D) -> str | _D:
    """Takes a string, which may be empty only if that is the default.

    Raises:
        ConfigError: it is not a string, or empty.
    """
    value = settings.pop(name, default)
    if value == default:
        return default
    if not isinstance(value, str) or not value:
        # A password may be among them: what was given is not shown.
        what = "an empty one" if value == "" else f"of type {type(value).__name__}"
        raise ConfigError(f"{name} must be a non-empty string, not {what}")
    return value


def take_integer(
    settings: MutableMapping[str, Any],
    name: str,
    default: _N,
    least: int,
    most: int = INT32_MAX,
) -> int | _N:
    """Takes a whole number from `least` to `most`, or None where that is the default.

    Raises:
        ConfigError: it is not a whole number, or out of range.
    """
    value = settings.pop(name, default)
    if value is None and default is None:
        return default
    try:
        number = int(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be a whole number, not {value!r}") from error
    if not least <= number <= most:
        raise ConfigError(f"{name} must be between {least} and {most}, not {number}")
    return number


def take_choice(
    settings: MutableMapping[str, Any], name: str, default: _D, allowed: Sequence[str]
) -> str | _D:
    """Takes one of the `allowed` words.

    Raises:
        ConfigError: it is another one.
    """
    value = settings.pop(name, default)
    if value != default and value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return default if value == default else str(value)


def refuse_unknown(
    rest: Mapping[str, Any], prefixes: tuple[str, ...], known: Sequence[str], client: str
) -> None:
    """Refuses settings that begin as logtx's own do, and are none.

    Args:
        rest: the settings that were not taken.
        prefixes: with which logtx's own begin.
        known: names of logtx's own settings.
        client: "producer" or "consumer".

    Raises:
        ConfigError: names the setting, and the one that was probably meant.
    """
    for name in rest:
        if name.startswith(prefixes) and name != _LIKE_OURS:
            raise ConfigError(f"{name} is no setting of a {client}{probably(name, known)}")


def check_names(names: Iterable[str], own: Collection[str] = ()) -> None:
    """Checks that these are settings of librdkafka, or some of logtx's own.

    Raises:
        ConfigError: one is not; names the nearest one, or what to write for a setting of Java's.
    """
    known = LIBRDKAFKA.union(own)
    for name in names:
        if name in JAVA:
            raise ConfigError(
                f"{name} is a setting of Kafka's Java client alone: write instead {JAVA[name]}"
            )
        if name not in known:
            raise ConfigError(f"there is no setting {name!r}{probably(name, known)}")


def refused(reason: str, own: Collection[str] = ()) -> ConfigError:
    """Returns the error for settings that librdkafka refuses.

    Args:
        reason: the text of what it raised.
        own: logtx's own settings of the client, one of which may have been meant.
    """
    found = _UNKNOWN.search(reason)
    hint = probably(found[1], LIBRDKAFKA.union(own)) if found else ""
    return ConfigError(f"librdkafka refuses the settings: {reason}{hint}")


def probably(name: str, known: Collection[str]) -> str:
    """Returns the end of a message about an unknown setting: what it should probably be."""
    if name in JAVA:
        return f": it is one of Kafka's Java client alone; write instead {JAVA[name]}"
    near = get_close_matches(name, sorted(known), 1, 0.7)
    return f": did you mean {near[0]}?" if near else "; check its spelling"
