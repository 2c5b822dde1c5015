"""What Python workers of Spark do too often: reading zip files, and collecting garbage.

Whenever a worker runs a task, plans or commits, Spark calls `importlib.invalidate_caches`. That
reads the directory of a zip file again for each package that was imported from it: `pyspark.zip`
17 times, and Spark's own jar, which is in the path too. It takes 220 ms, and a micro-batch goes
through three workers one after the other. Behind each task Spark looks for garbage in cycles, and
so does Python behind each 700 new records.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final
from zipimport import ZipImportError, zipimporter

THRESHOLD: Final = 50_000
"""Net new containers that start a collection. Fewer cost CPU for each record, more let garbage in
cycles stay longer."""
_is_frozen = False


class _Kept(zipimporter):
    """Imports from a zip file that does not change."""

    def invalidate_caches(self) -> None:
        """Does nothing."""


def begin_task() -> None:
    """Prepares this process, at the start of a task; the first one does most."""
    global _is_frozen
    keep_importers()
    if not _is_frozen:
        _is_frozen = True
        # Modules are no garbage: the collector passes over them from now on.
        gc.freeze()
        gc.set_threshold(THRESHOLD)


def keep_importers() -> None:
    """Lets this process read the zip files of its ``PYTHONPATH`` once.

    These are as they were when it began. Files that jobs add later (`addPyFile`) are elsewhere, and
    are looked at again as before. To be called again for what was imported since.
    """
    fixed = set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for path, importer in list(sys.path_importer_cache.items()):
        if type(importer) is zipimporter and importer.archive in fixed:
            try:
                sys.path_importer_cache[path] = _Kept(path)
            except ZipImportError:
                continue  # the file is gone, which the next import from it tells
