"""Building the extension where that fails: it says why, and never fails itself."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`make/native.py`, with a compiler that fails, and a target elsewhere."""
    spec = spec_from_file_location("native", ROOT / "make" / "native.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    compiler = tmp_path / "cc"
    compiler.write_text(
        "#!/bin/sh\nprintf 'extension.c:1: error: \\374\\n2 errors\\n' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(module, "TARGET", tmp_path / "_extension.abi3.so")
    monkeypatch.setattr(sys, "argv", ["native.py"])
    return module


def test_a_message_that_is_no_utf_8_is_told(native: Any) -> None:
    assert native.build() == "extension.c:1: error: \N{REPLACEMENT CHARACTER}"


def test_what_was_built_before_is_removed(native: Any, capsys: pytest.CaptureFixture[str]) -> None:
    native.TARGET.touch()
    native.main()
    assert not native.TARGET.exists()
    assert "without its C extension" in capsys.readouterr().out


def test_what_can_not_be_removed_stays_as_in_a_checkout_that_is_read_only(
    native: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # A folder in its place is not unlinked either, and root may write everywhere.
    native.TARGET.mkdir()
    native.main()
    told = capsys.readouterr().out
    assert told.startswith("logtx: with its former C extension")
    assert str(native.TARGET) in told
