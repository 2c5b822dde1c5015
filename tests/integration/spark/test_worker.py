import importlib
import subprocess
import sys
import zipimport
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from logtx.integration.spark.worker import keep_importers


@pytest.fixture
def zips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Two zip files on the path with a package each; PYTHONPATH names the first."""
    paths = tmp_path / "fixed.zip", tmp_path / "added.zip"
    for path in paths:
        _write(path, "one")
        monkeypatch.syspath_prepend(str(path))
    monkeypatch.setenv("PYTHONPATH", str(paths[0]))
    before = dict(sys.path_importer_cache), set(sys.modules)
    yield paths
    sys.path_importer_cache.clear()
    sys.path_importer_cache.update(before[0])
    for name in set(sys.modules) - before[1]:
        del sys.modules[name]


def _write(path: Path, *modules: str) -> None:
    with ZipFile(path, "w") as archive:
        for name in ("__init__", *modules):
            archive.writestr(f"in_{path.stem}/{name}.py", "")


def test_a_zip_file_of_the_path_is_not_read_again(
    zips: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed, added = zips
    importlib.import_module("in_fixed.one")
    importlib.import_module("in_added.one")
    read: list[str] = []
    real = zipimport._read_directory  # type: ignore[attr-defined]
    monkeypatch.setattr(zipimport, "_read_directory", lambda path: read.append(path) or real(path))

    importlib.invalidate_caches()
    assert {str(fixed), str(added)} <= set(read), "or Python has mended it: this can go"
    read.clear()
    keep_importers()
    importlib.invalidate_caches()
    assert str(fixed) not in read
    assert str(added) in read


def test_imports_from_it_go_on(zips: tuple[Path, Path]) -> None:
    fixed, added = zips
    importlib.import_module("in_fixed")
    keep_importers()
    assert importlib.import_module("in_fixed.one").__file__ == f"{fixed}/in_fixed/one.py"
    keep_importers()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("in_fixed.two")

    # A job brings another file of the name that it added before.
    importlib.import_module("in_added")
    _write(added, "one", "two")
    importlib.invalidate_caches()
    importlib.import_module("in_added.two")


def test_the_first_task_takes_modules_from_the_collector() -> None:
    code = """
import gc
from logtx.integration.spark.worker import THRESHOLD, begin_task
begin_task()
frozen, kept = gc.get_freeze_count(), [[] for _ in range(100)]
assert frozen > 1_000 and gc.get_threshold()[0] == THRESHOLD
begin_task()
assert gc.get_freeze_count() == frozen, "what tasks make is not kept for good"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
