"""Topics as Iceberg tables: Spark reads, writes Parquet, and the log is trimmed after the commit."""

from __future__ import annotations

from importlib import import_module

__all__ = ["check_packages"]


def check_packages(*, with_spark: bool) -> None:
    """Checks that the packages of tables are installed. Errors: ImportError, which says what to install."""
    needed = {"pyarrow": "table", "pyiceberg": "table"} | ({"pyspark": "pipeline"} if with_spark else {})
    for package, extra in needed.items():
        try:
            import_module(package)
        except ImportError as error:
            raise ImportError(
                f"tables need {package}: install Lowtide with its extra `{extra}` ({error})", name=error.name
            ) from error
