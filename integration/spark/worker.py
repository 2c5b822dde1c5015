"""Keeps Spark from reading zip files again at the start of each request to a Python worker.

Spark calls `importlib.invalidate_caches` whenever a worker runs a task, plans or commits. Before
Python 3.13 that reads the directory of a zip file again for each package that was imported from it:
that of `pyspark.zip` 17 times, and Spark's own jar, which is in the path too. It takes 220 ms, and
a micro-batch goes through three workers one after the other.
"""

from __future__ import annotations

import os
import sys
from zipimport import ZipImportError, zipimporter


class _Kept(zipimporter):
    """Imports from a zip file that does not change."""

    def invalidate_caches(self) -> None:
        """Does nothing."""


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
