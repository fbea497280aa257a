"""`lowtide-spark-python`: a Python for Spark that imports PySpark from the environment, which has its bytecode.

    PYSPARK_PYTHON=/path/to/environment/bin/lowtide-spark-python

Spark starts Python processes for each run of a streaming query, for planning, reading and writing. It puts its own
`pyspark.zip` first on their path. This archive has no bytecode, so each process compiles what it imports. If the
environment has the same version of PySpark, this command moves the archive to the end of the path. Otherwise it behaves
like `python -m MODULE`, and passes anything that is not PySpark's to Python.
"""

from __future__ import annotations

import os  # noqa: TID251 - it becomes another process, before anything of Lowtide is needed
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Final
from zipimport import ZipImportError, zipimporter

OF_SPARK: Final = ("pyspark.zip", "py4j-*-src.zip")
"""The archives that Spark puts on the path. Source: Spark's PythonUtils.sparkPythonPath."""

VERSION: Final = "pyspark/version.py"


def main() -> None:
    """Runs a module of PySpark, or replaces the process by Python for anything else."""
    words = sys.argv[1:]
    if len(words) < len(("-m", "MODULE")) or words[0] != "-m" or not words[1].startswith("pyspark."):
        os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - what Spark would have started
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())  # As with `python -m`; here it is the folder of the command.
    sys.path[:] = archives_last(sys.path)
    sys.argv = ["-m", *words[2:]]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)


def archives_last(path: Sequence[str]) -> list[str]:
    """Moves Spark's archives to the end of the path, if the rest of it has the same version of PySpark."""
    archives = [entry for entry in path if any(PurePath(entry).match(name) for name in OF_SPARK)]
    rest = [entry for entry in path if entry not in archives]
    versions = {version for version in map(_version, archives) if version is not None}
    installed = next((version for version in map(_version, rest) if version is not None), None)
    return [*rest, *archives] if versions == {installed} else list(path)


def _version(entry: str) -> bytes | None:
    """Returns the version file of the PySpark in a folder or an archive; None without one."""
    try:
        if entry.endswith(".zip"):
            return zipimporter(entry).get_data(VERSION)
        return Path(entry, VERSION).read_bytes()
    except (OSError, ZipImportError):
        return None


if __name__ == "__main__":
    main()
