"""Settings files on the disk: bad ones end in one error that names the file."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from logtx.integration.settings.read import SIZE_MAX, command_line_settings, read_settings
from logtx.journal.errors import ConfigError

GOOD = "[kafka]\n'sasl.password' = '{}'\n"


def test_files_are_relative_to_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "secret").write_text("s3cret\r\n")
    path = tmp_path / "logtx.toml"
    path.write_text(GOOD.format("file:secret"))
    assert read_settings(path).kafka == {"sasl.password": "s3cret"}
    monkeypatch.chdir(tmp_path)
    assert command_line_settings(["sasl.password=file:secret", "client.id=a", "client.id=b"]) == {
        "sasl.password": "s3cret",
        "client.id": "b",
    }
    with pytest.raises(ConfigError, match=r"-X: there is no setting 'a.b'"):
        command_line_settings(["a.b=c"])


def test_the_name_says_what_kind_it_is(tmp_path: Path) -> None:
    path = tmp_path / "admin.properties"
    path.write_text("client.id=${x}\n")
    assert read_settings(path).kafka == {"client.id": "${x}"}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o600])
def test_a_secret_that_others_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = tmp_path / "logtx.toml"
    path.write_text(GOOD.format("x"))
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        read_settings(path)
    warned = [record.getMessage() for record in caplog.records]
    assert warned == (
        [] if mode == 0o600 else [f"others may read the secrets in {path}: chmod 600 it"]
    )


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "logtx.toml"

    def refused(said: str) -> None:
        with pytest.raises(ConfigError, match=said) as caught:
            read_settings(path)
        assert str(path) in str(caught.value)

    refused("No such file or directory")
    path.mkdir()
    refused("is not a file")
    path.rmdir()
    os.mkfifo(path)
    refused("is not a file")
    path.unlink()
    path.write_bytes(b"#" * (SIZE_MAX + 1))
    refused("is larger than")
    path.write_bytes(b"[kafka]\n\xff")
    refused("is not UTF-8")
    path.write_bytes(b"[kafka]\n'client.id' = 'a\0b'")
    refused("not TOML")
    path.write_text(GOOD.format("file:fifo"))
    os.mkfifo(tmp_path / "fifo")
    refused("fifo is not a file")
    with pytest.raises(ConfigError, match="null byte"):
        read_settings(Path("a\0b"))
