"""`lowtide-spark-python` runs PySpark's modules from an environment of the same version as Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lowtide.pipeline import spark_python

PROBE = "import sys; print(__name__, __file__, sys.argv[1:], sys.path[0], __spec__.name, sep='|')"


def package(folder: Path, version: str) -> str:
    (folder / "pyspark").mkdir(parents=True)
    for name, text in {"__init__": "", "version": f'__version__ = "{version}"', "probe": PROBE}.items():
        (folder / "pyspark" / f"{name}.py").write_text(text)
    return str(folder)


def archive(folder: Path, version: str) -> str:
    package(folder / "unpacked", version)
    with zipfile.ZipFile(folder / "pyspark.zip", "w") as made:
        for source in (folder / "unpacked/pyspark").iterdir():
            made.write(source, f"pyspark/{source.name}")
    return str(folder / "pyspark.zip")


@pytest.fixture
def installed(tmp_path: Path) -> str:
    return package(tmp_path / "installed", "4.2.0")


def test_archives_of_the_installed_version_come_last(tmp_path: Path, installed: str):
    zipped = archive(tmp_path, "4.2.0")
    path = ["/here", zipped, "/spark/py4j-0.10.9.9-src.zip", "/other.zip", installed]
    assert spark_python.archives_last(path) == [
        "/here",
        "/other.zip",
        installed,
        zipped,
        "/spark/py4j-0.10.9.9-src.zip",
    ]


@pytest.mark.parametrize("version", ["4.2.1", "4.1.0"])
def test_archives_of_another_version_stay_where_spark_puts_them(tmp_path: Path, installed: str, version: str):
    path = [archive(tmp_path, version), installed]
    assert spark_python.archives_last(path) == path


def test_archives_stay_where_nothing_is_installed_or_they_can_not_be_read(tmp_path: Path, installed: str):
    alone = [archive(tmp_path, "4.2.0"), str(tmp_path)]
    assert spark_python.archives_last(alone) == alone
    missing = [str(tmp_path / "absent/pyspark.zip"), installed]
    assert spark_python.archives_last(missing) == missing


def started(tmp_path: Path, *arguments: str, path: tuple[str, ...] = ()) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, spark_python.__file__, *arguments]
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_module_of_pyspark_runs_as_with_python_m(tmp_path: Path, installed: str):
    path = (archive(tmp_path, "4.2.0"), installed)
    place = f"{installed}/pyspark/probe.py"
    assert (
        started(tmp_path, "-m", "pyspark.probe", "x", "-m", path=path)
        == f"__main__|{place}|['x', '-m']|{tmp_path}|pyspark.probe"
    )


def test_everything_else_is_left_to_python(tmp_path: Path):
    """Spark also asks it for its version."""
    assert (
        started(tmp_path, "-c", "import sys; print(sys.argv, sys.executable)", "y") == f"['-c', 'y'] {sys.executable}"
    )
    assert started(tmp_path, "--version") == f"Python {sys.version.split()[0]}"
    (tmp_path / "mine.py").write_text("import sys; print(__name__, sys.argv[1:])")
    assert started(tmp_path, "-m", "mine", "z") == "__main__ ['z']"
