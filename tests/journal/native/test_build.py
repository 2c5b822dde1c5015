"""Building the extension: where that fails it says why, and never fails itself; wheels have it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
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


def hooked(native: Any) -> dict[str, Any]:
    """Returns what the hook tells hatch of a wheel."""
    hook = native.BuildHook(str(ROOT), {}, None, None, "", "wheel")
    told: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", told)
    return told


def test_a_wheel_for_a_platform_that_is_named_has_the_extension_or_fails(
    native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGTX_WHEEL", "musllinux_1_2_aarch64")
    with pytest.raises(RuntimeError, match=r"musllinux_1_2_aarch64: extension\.c"):
        hooked(native)
    monkeypatch.setenv("LOGTX_WHEEL", "any")
    assert hooked(native) == {"artifacts": []}
    monkeypatch.setattr(native, "build", lambda: None)
    monkeypatch.setattr(native, "TARGET", ROOT / "journal" / "x.so")
    monkeypatch.setenv("LOGTX_WHEEL", "macosx_11_0_arm64")
    expected = {"pure_python": False, "tag": "cp311-abi3-macosx_11_0_arm64"}
    assert hooked(native) == {**expected, "artifacts": ["/journal/x.so"]}
    assert "-ldl" not in native.command()
    monkeypatch.setenv("LOGTX_WHEEL", "manylinux_2_17_x86_64")
    assert "-ldl" in native.command()


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.skipif(os.uname()[:5:4] != ("Linux", "x86_64"), reason="the wheel runs there")
def test_a_wheel_that_is_installed_uses_the_extension(tmp_path: Path) -> None:
    made, home = tmp_path / "made", tmp_path / "home"
    subprocess.run([ROOT / "make" / "wheels.sh", made, "x86_64-linux-gnu.2.17"], check=True)
    assert len(list(made.glob("*.whl"))) == 2
    assert len(list(made.glob("*-py3-none-any.whl"))) == 1
    [wheel] = made.glob("*-manylinux_2_17_x86_64*.whl")
    venv.create(home, with_pip=True)
    clean = {name: value for name, value in os.environ.items() if name != "LOGTX_NATIVE"}
    subprocess.run([home / "bin" / "pip", "install", "--quiet", wheel], check=True, env=clean)
    told = subprocess.run(
        [home / "bin" / "logtx", "--version"],
        check=True,
        capture_output=True,
        text=True,
        env=clean,
        cwd=tmp_path,
    )
    assert "native" in told.stdout
    assert "pure Python" not in told.stdout
