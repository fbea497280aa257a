"""Spark for the table job: runs tasks in executors."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from lowtide.pipeline.table.job import Runner
    from lowtide.pipeline.table.writing import TaskOutput, WriteTask


class SparkFailedError(Exception):
    """Spark does not start, or has ended. The message says why."""


class Workers(NamedTuple):
    """What runs tasks."""

    run_all: Runner
    parallelism: int
    """How many tasks run at the same time."""
    context: Any
    """The SparkContext."""


@contextmanager
def spark_workers(master: str, settings: Mapping[str, str]) -> Iterator[Workers]:
    """Starts Spark, and stops it at the end. Errors: SparkFailedError."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra

    conf = SparkConf().setMaster(master)
    for key, value in settings.items():
        conf.set(key, value)
    try:
        context = SparkContext(conf=conf)
    except Exception as error:
        raise SparkFailedError(f"Spark does not start with master {master}: {_reason(error)}") from error
    if "spark.pyspark.python" not in settings and master.startswith("local"):
        context.pythonExec = sys.executable  # Executors on this machine have the same packages.
    try:
        yield Workers(spark_runner(context), context.defaultParallelism, context)
    finally:
        with contextlib.suppress(Exception):  # Its JVM may have ended before it.
            context.stop()


def spark_runner(context: Any) -> Runner:
    """Returns what runs tasks in the executors of a Spark context."""

    def run_all(tasks: Sequence[WriteTask]) -> list[TaskOutput]:
        from lowtide.pipeline.table.writing import run_tasks  # noqa: PLC0415 - an extra

        if not tasks:
            return []
        try:
            results: list[TaskOutput] = context.parallelize(tasks, len(tasks)).mapPartitions(run_tasks).collect()
        except Exception as error:
            if isinstance(error, ConnectionError) or type(error).__name__ in _OF_AN_ENDED_SPARK:
                raise SparkFailedError(f"Spark has ended: {error}") from error
            raise
        return results

    return run_all


_OF_AN_ENDED_SPARK: Final = ("Py4JError", "Py4JNetworkError")
"""The errors of PySpark's connection to Java. A failed task is a Py4JJavaError."""


def _reason(error: Exception) -> str:
    """Returns the line of an error that says most: of Java's exceptions the message of the last cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    caused = [line for line in lines if line.startswith(("Caused by:", ": "))]
    return (caused or lines or [type(error).__name__])[-1 if caused else 0].removeprefix(": ").removesuffix(".")
