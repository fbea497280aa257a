"""The data source for PySpark: topics as data frames, batch and stream, and the deletion of consumed records.

It reaches any Kafka cluster over TCP only, with `lowtide.admin` and the protocol; it imports nothing of a broker.
Executors receive settings that can be pickled, and open their own connections.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["LowtideDataSource", "TrimListener", "register", "union_of"]

_MODULES = {"LowtideDataSource": "data_source", "TrimListener": "trim_listener", "union_of": "table.union"}

_NEEDED = "lowtide.pipeline needs PySpark 4.2 or newer and PyArrow: install Lowtide with its extra `pipeline`"


def register(spark: Any) -> None:
    """Registers `format("lowtide")` in a Spark session.

    Errors: ImportError, which says what to install.
    """
    spark.dataSource.register(_imported("data_source", "LowtideDataSource"))


def __getattr__(name: str) -> Any:
    """Imports the modules that need PySpark on first use."""
    if name in _MODULES:
        return _imported(_MODULES[name], name)
    raise AttributeError(f"module 'lowtide.pipeline' has no attribute {name!r}")


def _imported(module: str, name: str) -> Any:
    """Returns a name of a module. Errors: ImportError, which says what to install."""
    try:
        return getattr(import_module(f"lowtide.pipeline.{module}"), name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("pyspark", "pyarrow"):
            raise ImportError(f"{_NEEDED} ({error})", name=error.name) from error
        raise
