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
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.executor.heartbeatInterval": "60s",
    "spark.network.timeout": "600s",
}
"""Small and quick to start. Its timeouts exceed the defaults, for a busy machine."""


def python_for_spark(folder: Path) -> str:
    """Returns a program in this folder that is the Python of this process, for workers: `early_python.py` says what is
    different.

    Spark also asks it for its version, with `-c`.
    """
    program = folder / "python-for-spark"
    python, early = shlex.quote(sys.executable), shlex.quote(str(Path(__file__).with_name("early_python.py")))
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -m ] || exec {python} "$@"\nexec {python} {early} "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return str(program)


def python_environment(folder: Path) -> dict[str, str]:
    """Returns what says to Spark which Python it starts.

    Spark takes `PYSPARK_PYTHON` for a format that a program registers, and `PYSPARK_DRIVER_PYTHON`, if that is set, for
    one that it finds itself.
    """
    program = python_for_spark(folder)
    return {"PYSPARK_PYTHON": program, "PYSPARK_DRIVER_PYTHON": program}


@contextmanager
def local_spark(warehouse: Path, **config: str) -> Iterator[SimpleNamespace]:
    """A Spark of two cores, which is removed completely afterwards."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    warehouse.mkdir(parents=True, exist_ok=True)
    os.environ.update(python_environment(warehouse.parent))
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
