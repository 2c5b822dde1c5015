"""Builds the C extension, if this machine has what it needs; logtx works without it.

    python make/native.py [FLAG …]

Flags are for the compiler. It is also hatch's build hook: a wheel has the extension, or it is one
for any platform. Prints one line if there is none, and never fails for that, except for a wheel of
a platform that LOGTX_WHEEL names.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "journal" / "native"
_NAMES = ("extension.c", "reader.c", "columns.c", "arena.c", "records.c")
SOURCES = [FOLDER / name for name in _NAMES]
TARGET = FOLDER / "_extension.abi3.so"
"""It keeps to the limited API: one for all versions of Python from 3.11 on."""

WHEEL = "LOGTX_WHEEL"
"""Environment variable with a wheel's platform, as its name has it, where CC compiles for that one;
"any": without the extension."""


def command(*flags: str) -> list[str]:
    """Returns the compiler's call."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    platform = os.environ.get(WHEEL) or sys.platform
    is_mac = platform.startswith(("darwin", "macosx"))
    libraries = ["-undefined", "dynamic_lookup"] if is_mac else ["-ldl"]
    return [
        *compiler,
        *("-std=c11", "-D_GNU_SOURCE", "-O2", "-g0", "-fPIC", "-shared", "-pthread"),
        *("-Wall", "-Wextra", "-Wno-cast-function-type", *flags),
        *("-I", sysconfig.get_paths()["include"], *map(str, SOURCES)),
        *libraries,
    ]


def build(*flags: str) -> str | None:
    """Builds it in its folder. Returns why there is none, or None."""
    if sys.platform == "win32":
        return "it is for POSIX systems"
    made = TARGET.with_suffix(f".{os.getpid()}")
    try:
        subprocess.run(
            [*command(*flags), "-o", str(made)],
            check=True,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=300,
        )
        # Not in place: a process may have the former one loaded.
        made.replace(TARGET)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["the compiler failed"]
        return str(next((line for line in lines if "error" in line), lines[-1]))
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        _remove(made)
    return None


def _remove(path: Path) -> str:
    """Removes a file. Returns why it is still there, or nothing: its folder may be read-only."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return str(error)
    return ""


def main() -> None:
    """Builds it, and says so if that fails."""
    flaw = build(*sys.argv[1:])
    if flaw is None:
        return
    if left := _remove(TARGET):
        print(f"logtx: with its former C extension, as there is no newer one: {flaw}; {left}")
    else:
        print(f"logtx: without its C extension, so producers take more CPU time: {flaw}")


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:
    pass
else:

    class BuildHook(BuildHookInterface[Any]):
        """Builds the extension for a wheel, and for an editable installation."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Adds it to a wheel.

            Raises:
                RuntimeError: there is none for the platform that was named.
            """
            place = os.environ.get(WHEEL, "")
            if place == "any":
                return
            flaw = build()
            if flaw is not None and place:
                raise RuntimeError(f"no C extension for {place}: {flaw}")
            if flaw is not None:
                self.app.display_warning(f"without the C extension: {flaw}")
            elif version != "editable":
                place = place or sysconfig.get_platform().replace("-", "_").replace(".", "_")
                build_data["pure_python"] = False
                build_data["tag"] = f"cp311-abi3-{place}"
                build_data["artifacts"].append(f"/{TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
