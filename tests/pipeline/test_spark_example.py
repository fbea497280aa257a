"""`examples/spark_trim.py` runs unchanged, and leaves nothing in its topic."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300


def test_the_example_for_spark(lowtide: SimpleNamespace, tmp_path: Path):
    """Runs in a separate Spark, as readers run it, with the Python that docs/pipeline.md recommends."""
    # Spark looks for no data sources if the path of its Python has a space: the folder of this tree may have one.
    python = tmp_path / "python"
    python.symlink_to(Path(sys.executable).with_name("lowtide-spark-python"))
    environment = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    command = [sys.executable, str(ROOT / "examples/spark_trim.py"), lowtide.bootstrap]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "customer 0 1683",
        "customer 1 1617",
        "customer 2 1650",
        "0 of 100 orders are left in the topic",
    ]
