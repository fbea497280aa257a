"""A small Spark in this process."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

SPARK = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.authenticate.socketTimeout": "600s",
    "spark.executor.heartbeatInterval": "60s",
    "spark.network.timeout": "600s",
}
"""Small, and quick to start: a test's Spark has little to do. Its limits of time are longer than by default, for a busy machine."""


def python_for_spark(folder: Path) -> str:
    """A program in this folder that is the Python of this process, for workers: `early_python.py` says what is different."""
    program = folder / "python-for-spark"
    early = Path(__file__).with_name("early_python.py")
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(early))} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)


@contextmanager
def local_spark(warehouse: Path, **config: str) -> Iterator[SimpleNamespace]:
    """A Spark of two cores, with everything of it gone afterwards."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    warehouse.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = python_for_spark(warehouse.parent)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.sql.warehouse.dir", str(warehouse))
    for key, value in (SPARK | config).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
