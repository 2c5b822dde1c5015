"""Reads settings files, and joins what they, the command line and the environment say."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ...journal.errors import ConfigError
from ...journal.files import warn_if_others_read
from .file import Settings, Source, parse_properties, parse_setting, parse_toml, to_properties

SIZE_MAX: Final = 1024 * 1024
"""Largest settings file in bytes; a larger one is surely another kind of file."""
_PROPERTIES: Final = ".properties"


def read_settings(path: Path) -> Settings:
    """Reads a settings file: by its name a `.properties` file of Kafka's tools, or else TOML.

    `file:` values are relative to the directory of the file. Warns if others may read a secret in
    it.

    Raises:
        ConfigError: it can't be read, or what it says is refused; names the file.
    """
    try:
        text = _read(path)
        if path.suffix == _PROPERTIES:
            settings = parse_properties(text)
        else:
            settings = parse_toml(text, _source(path.parent))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if settings.has_secret:
        warn_if_others_read(path, "the secrets")
    return settings


def command_line_settings(texts: Iterable[str]) -> dict[str, str]:
    """Reads settings of the command line, each NAME=VALUE; of two with one name the later wins.

    Raises:
        ConfigError: one is refused.
    """
    source = _source(Path())
    try:
        return dict(parse_setting(text, source) for text in texts)
    except ConfigError as error:
        raise ConfigError(f"-X: {error}") from error


def write_settings(path: Path, kafka: Mapping[str, str]) -> None:
    """Writes a `.properties` file that nobody else can read. Raises OSError."""
    path.touch(mode=0o600)
    path.write_text(to_properties(kafka), encoding="utf-8")


def _source(directory: Path) -> Source:
    return Source(environment=os.environ, read=lambda name: _read(directory / name))


def _read(path: Path) -> str:
    try:
        # Not opened before it is known to be a file: to open a FIFO could wait for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(f"{path} is not a file")
        with path.open("rb") as opened:
            data = opened.read(SIZE_MAX + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"can't read {path}: {why}") from error
    if len(data) > SIZE_MAX:
        raise ConfigError(f"{path} is larger than {SIZE_MAX} bytes: is it a settings file?")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}") from error
